from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.query import parse
from jobs_admin.core.text import class_name, fits, list_some, whole_number


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_star_fits_anything_and_all_else_itself(pattern, text):
    wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
    assert fits(pattern, text) == wanted


def test_many_stars_take_no_more_time_than_one():
    assert not fits("*e" * 2_000 + "*x", "e" * 4_000)


def test_a_state_of_stars_is_read_at_once():
    assert parse("state:" + "*" * 3_000 + "x").hints and not parse("state:" + "*" * 3_000).hints


@given(st.text("0123456789-+ _.²٣", max_size=6))
def test_an_integer_is_plain_digits_and_nothing_else(text):
    assert whole_number(text) == (int(text) if re.fullmatch("[0-9]+", text) else None)


def test_an_integer_fits_a_column():
    assert whole_number("9" * 18) == 10**18 - 1
    assert whole_number("9" * 19) is None and whole_number("1234", digits=3) is None and whole_number(None) is None


@pytest.mark.parametrize(
    ("error_type", "name"),
    [
        ("smtplib.SMTPServerDisconnected", "SMTPServerDisconnected"),
        ("_csv.Error", "_csv.Error"),
        ("struct.error", "struct.error"),
        ("requests.exceptions.HTTPError", "requests.HTTPError"),
        ("urllib.error.HTTPError", "urllib.HTTPError"),
        ("django.db.utils.IntegrityError", "django.IntegrityError"),
        ("shop.partner.Timeout", "partner.Timeout"),
        ("TimeoutError", "TimeoutError"),
        ("KeyError", "KeyError"),
        ("a.exceptions.Error", "a.Error"),
        ("exceptions.Error", "Error"),
        ("", ""),
        (".", "."),
    ],
)
def test_a_class_keeps_the_module_where_many_libraries_share_its_name(error_type, name):
    assert class_name(error_type) == name


def test_the_first_names_are_listed_and_the_others_counted():
    assert [list_some("abc"[:n], 2) for n in range(4)] == ["", "a", "a, b", "a, b and 1 more"]
    assert list_some(["a"] * 1_235, 1) == "a and 1,234 more"
