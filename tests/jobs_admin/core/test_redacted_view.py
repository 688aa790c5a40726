from __future__ import annotations

import json

import pytest
from hypothesis import given

from jobs_admin.core.redacted_view import Plain, Veiled, build_display
from jobs_admin.core.redaction import PLACEHOLDER, redact
from tests.kit.values import VALUES


@given(VALUES)
def test_redacting_piece_by_piece_equals_redacting_all(value):
    assert build_display(Veiled(value)) == redact(value)[0]


@given(VALUES)
def test_what_is_plain_is_shown_as_it_is(value):
    assert build_display(Plain(value)) == value


@given(VALUES, VALUES)
def test_two_values_are_the_same_where_their_json_is(one, other):
    def is_same(a, b):
        return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)

    assert Plain(one).same(Plain(other)) == Veiled(one).same(Veiled(other)) == is_same(one, other)


def test_a_hidden_value_has_no_entries_and_no_words_but_the_mark():
    ((_, hidden),) = Veiled({"password": {"old": "hunter2"}}).entries()
    assert (hidden.kind, hidden.text(), list(hidden.entries())) == ("hidden", PLACEHOLDER, [])


def test_a_secret_that_straddles_the_end_of_what_is_shown_is_hidden():
    text = "x" * 90 + " https://ann:very-secret-password@example.com/"
    assert "very" not in Veiled(text).text(115)


def test_values_nested_deeper_than_they_are_shown_end_in_a_mark():
    value = []
    for _ in range(300):
        value = [value]
    assert build_display(Veiled(value)) == redact(value)[0]


@pytest.mark.parametrize("start", [0, 1, 99_999])
def test_entries_begin_where_they_are_requested(start):
    name, piece = next(Veiled(list(range(100_000))).entries(start))
    assert (name, piece.text()) == (str(start), str(start))
