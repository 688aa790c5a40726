"""A small `or` between two qualifiers is a word, an open parenthesis is none: that is said, with what was meant."""

from __future__ import annotations

import pytest

from jobs_admin.core.query import parse


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source:bus or source:shop", "For either: source:bus,shop, or write OR in capitals."),
        ("queue:a source:bus Or source:shop", "“Or” was searched for as a word. For either: source:bus,shop,"),
        ("source:bus or task:a.b", "For either: write OR in capitals."),
        ("-source:bus or source:shop", "For either: write OR in capitals."),
    ],
)
def test_a_small_or_between_qualifiers_is_reported(text, message):
    (hint,) = parse(text).hints
    assert message in hint


@pytest.mark.parametrize(
    "text", ["now or never", "error:A OR error:B", "timeout or error:A", "source:bus or", "or source:bus"]
)
def test_other_ors_are_not_spoken_of(text):
    assert not any("For either" in hint for hint in parse(text).hints)


@pytest.mark.parametrize("text", ["(queue:a", "(queue:a or task:b)", "timeout (args.id:4"])
def test_a_group_that_is_none_is_reported(text):
    assert any("a group contains only qualifiers and OR" in hint for hint in parse(text).hints)


def test_of_a_group_and_of_other_parentheses_nothing_is_reported():
    assert parse("(queue:a OR task:b) (timeout) f(x").hints == ()
