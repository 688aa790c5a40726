"""Secrets that a job's arguments name are hidden where its error repeats it; what is common or short is not."""

from __future__ import annotations

import time

import pytest

from jobs_admin.core.redaction import MOST_VALUES, PLACEHOLDER, named_values, without_values
from tests.kit.cases import with_cases

SECRET = "Tundra-hazel#31"


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": SECRET},
        {"deep": [{"x": {"db_password": SECRET}}]},
        [["password", SECRET]],
        [{"name": "DB_PASSWORD", "value": SECRET}],
        {"credentials": ["bob", SECRET]},
        {"credentials": {"user": "bob", "password": SECRET}},
        {"tokens": [SECRET]},
    ],
)
def test_a_value_under_a_secret_name_is_known_wherever_it_is(arguments):
    assert named_values(arguments) == (SECRET,)


@pytest.mark.parametrize(
    "text",
    [
        f"login('bob', '{SECRET}') failed",
        f"{SECRET} is not accepted",
        f"cannot open x://bob/{SECRET}/y",
        "cannot open x://bob/Tundra-hazel%2331/y",
        f'b"\\n{SECRET}\\r"',
    ],
)
def test_it_is_hidden_in_a_text_as_texts_write_it(text):
    shown, hidden = without_values(text, (SECRET,))
    assert hidden == 1 and PLACEHOLDER in shown and "hazel" not in shown


def test_quotes_and_backslashes_are_found_as_a_repr_and_json_write_them():
    value = "a\"b\\c'd-ü-17"
    for text in (repr({"x": value}), f"said {value!r}", '{"x": "a\\"b\\\\c\'d-\\u00fc-17"}', f"{value} x"):
        assert "17" not in without_values(text, (value,))[0], text


@with_cases(
    "value",
    ["admin", "Winter", "hunter", "x1", "12345", "483917", "20261122", "2026-11-22T10:15:00Z", "not configured", "", "  spaces 1  ",
     "https://auth.example.com/oauth/token", "/run/secrets/db1", "shop.auth.Backend", "bob7@example.com", "db1.internal:5432",
     "us-east-1.amazonaws.com", "1.22.333", "https://example.com:8443/v2", None, True, 17, 1.5, [], {}],
)  # fmt: skip
def test_a_common_or_short_value_is_not_searched_for(value):
    assert named_values({"password": value, "token": value}) == ()


def test_a_value_within_a_longer_word_stays():
    assert without_values("id aa9182736455 of 9182736455b", ("9182736455",)) == ("id aa9182736455 of 9182736455b", 0)


def test_a_user_of_hidden_credentials_stays():
    assert named_values({"credentials": {"user": "alice.smith7", "region": "eu-west-1"}}) == ()


def test_of_many_values_some_are_known():
    assert len(named_values({"passwords": [f"value-{n}-x" for n in range(500)]})) == MOST_VALUES


@pytest.mark.parametrize("piece", ["a", "_", "a.", "a-1.", "://", "é", "1."])
def test_a_hostile_value_costs_little(piece):
    began = time.process_time()
    values = named_values(
        {"password": (piece * 4_000)[:4_000], "tokens": [(piece * 3_000)[:n] for n in range(2_900, 2_999)]}
    )
    without_values(piece * 2_000_000, values)
    named_values({"token": {"a": [[piece * 9] * 1_000] * 1_000}})
    assert time.process_time() - began < 3


def test_a_long_text_is_searched_at_its_ends():
    shown, hidden = without_values(f"{SECRET} {' x' * 1_000_000} {SECRET}", (SECRET,))
    assert hidden == 2 and SECRET not in shown


def test_half_a_pair_of_surrogates_in_a_secret_is_hidden_as_any_other_text():
    secrets = named_values({"password": "hunter2\ud800x"})
    assert without_values("refused hunter2\ud800x", secrets) == ("refused [redacted]", 1)
