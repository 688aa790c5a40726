"""The value of `countdown=…`, read from the code as it is written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.lint import curve


def waits(text, retries):
    found = curve.waits(text, retries)
    return found and (found.shortest, found.longest)


@pytest.mark.parametrize(
    ("text", "at_0", "at_3"),
    [
        ("10", (10, 10), (10, 10)),
        ("2 ** self.request.retries", (1, 1), (8, 8)),
        ("min(5, 2 ** (self.request.retries + 1))", (2, 2), (5, 5)),
        ("60 * (1 + self.request.retries)", (60, 60), (240, 240)),
        ("int(random.uniform(2, 4) ** self.request.retries)", (1, 1), (8, 64)),
        ("2 ** self.request.retries + random.randint(0, 9)", (1, 10), (8, 17)),
        ("random.random() * 2 ** self.request.retries", (0, 1), (0, 8)),
        ("random.randrange(5)", (0, 4), (0, 4)),
        ("[10, 60, 300][min(self.request.retries, 2)]", (10, 10), (300, 300)),
        ("10 if self.request.retries else 60", (10, 60), (10, 60)),
        ("get_exponential_backoff_interval(factor=2, retries=self.request.retries, maximum=9, full_jitter=True)", (0, 2), (0, 9)),
        ("get_exponential_backoff_interval(2, self.request.retries, 9)", (2, 2), (9, 9)),
        ("-5", (0, 0), (0, 0)),
        ("3600 // (task.request.retries + 1)", (3600, 3600), (900, 900)),
    ],
)  # fmt: skip
def test_arithmetic_is_worked_out(text, at_0, at_3):
    assert (waits(text, 0), waits(text, 3)) == (at_0, at_3)


@pytest.mark.parametrize(
    "text",
    ["wait_for(error)", "error.wait", "delay", "", "1 +", "self.request.retries.x", "10 % random.random()", "'10'", "1 / 0",
     "(-8) ** 0.5", "[1, 2][self.request.retries + 5]", "min(*waits)", "lambda: 3", "(" * 150, "None", "min()"],
)  # fmt: skip
def test_what_only_the_running_job_knows_cannot_be_reported(text):
    assert curve.waits(text, 1) is None


def test_an_expression_that_follows_the_server_is_recognised():
    assert curve.follows_server("error.retry_after")
    assert curve.follows_server("int(e.response.headers.get('Retry-After', 5))")
    assert not curve.follows_server("2 ** self.request.retries")


@given(st.floats(0, 100), st.floats(0, 100), st.integers(0, 20), st.integers(0, 2**32))
def test_what_is_drawn_is_between_the_ends(a, b, retries, seed):
    text = f"min(500, {a!r} + random.uniform({a!r}, {b!r}) * self.request.retries)"
    drawn = min(500, a + random.Random(seed).uniform(a, b) * retries)
    shortest, longest = waits(text, retries)
    assert shortest - 1e-6 <= drawn <= longest + 1e-6


@given(st.text(max_size=300))
def test_a_bad_text_is_at_worst_not_reported(text):
    curve.waits(text, 2)
