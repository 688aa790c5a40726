"""Drawn values have the law that its source states: Kolmogorov and Smirnov's test on 45,000 draws of each kind.

The laws are written out here from their sources and share nothing with the code. The bound is that of alpha = 1e-6, so
that one run in a hundred thousand of all of these would fail by chance; the seed is fixed besides.
"""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from jobs_admin.core import backoff
from jobs_admin.core.policy import parse

JOBS = 45_000
ALPHA = 1e-6
FAR = math.sqrt(-math.log(ALPHA / 2) / 2 / JOBS)  # 0.0127


def even(least, most):
    return lambda x: min(1.0, max(0.0, (x - least) / (most - least)))


def integer_steps(least, gap, numbers):
    return lambda x: min(1.0, max(0.0, (math.floor((x - least) / gap) + 1) / numbers))


def decorrelated_second(x):
    """The mean excess of U(2, 3 V) with V from U(2, 6): the mean over v of what lies below x; 4,000 slices of v."""
    return sum(even(2, 3 * (2 + 4 * (i + 0.5) / 4000))(x) for i in range(4000)) / 4000


EXPONENTIAL = {"kind": "exponential", "first_delay_s": 2, "factor": 2}
LAWS = {
    "full": ({"jitter": {"kind": "full"}}, 4, even(0, 16)),
    "full, capped": ({"jitter": {"kind": "full"}, "cap_s": 60}, 9, even(0, 60)),
    "equal": ({"jitter": {"kind": "equal"}}, 4, even(8, 16)),
    "down, as BullMQ": ({"jitter": {"kind": "down", "fraction": 0.5}}, 4, even(8, 16)),
    "down, capped": ({"jitter": {"kind": "down", "fraction": 0.1}, "cap_s": 300}, 9, even(270, 300)),
    "plus_minus": ({"jitter": {"kind": "plus_minus", "fraction": 0.1}, "cap_s": 60}, 4, even(14.4, 17.6)),
    "plus_minus, capped": ({"jitter": {"kind": "plus_minus", "fraction": 0.1}, "cap_s": 60}, 9, even(54, 60)),
    "additive": ({"jitter": {"kind": "additive", "seconds": 0.5}}, 4, even(16, 16.5)),
    "additive, capped": ({"jitter": {"kind": "additive", "seconds": 5}, "cap_s": 60}, 9, even(55, 60)),
    "celery": ({"jitter": {"kind": "celery"}, "cap_s": 600}, 4, integer_steps(0, 1, 17)),
    "sidekiq": (
        {
            "backoff": {"kind": "polynomial", "first_delay_s": 1, "power": 4, "plus_s": 15},
            "jitter": {"kind": "sidekiq"},
        },
        4,
        integer_steps(96, 4, 10),
    ),
    "decorrelated, first": ({"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "cap_s": 600}, 1, even(2, 6)),
}


def draws(document, attempt, seed=17):
    policy, random = parse({"backoff": EXPONENTIAL, **document}), Random(seed).random
    return [backoff.delay(policy, attempt, random) for _ in range(JOBS)]


def distance(found, law):
    """The greatest difference between what was drawn and the law, at steps of either."""
    ordered = sorted(found)
    distinct = {}
    for n, one in enumerate(ordered, 1):
        distinct[one] = n
    before, most = 0, 0.0
    for one, n in distinct.items():
        below = math.nextafter(one, -math.inf)
        most = max(most, abs(n / len(ordered) - law(one)), abs(before / len(ordered) - law(below)))
        before = n
    return most


@pytest.mark.parametrize("name", LAWS)
def test_what_is_drawn_has_the_stated_law(name):
    document, attempt, law = LAWS[name]
    assert distance(draws(document, attempt), law) < FAR


def test_a_second_decorrelated_wait_has_the_law_that_follows_from_the_first():
    policy, random = parse({"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "cap_s": 600}), Random(3).random
    found = [backoff.delay(policy, 2, random, backoff.delay(policy, 1, random)) for _ in range(JOBS)]
    at = [2 + i / 5 for i in range(1, 80)]
    ordered = sorted(found)
    shares = [sum(one <= x for one in ordered[:: JOBS // 4500]) / len(ordered[:: JOBS // 4500]) for x in at]
    assert shares == pytest.approx([decorrelated_second(x) for x in at], abs=FAR)


def test_the_test_sees_mistakes_of_published_code():
    """Archon cuts after its jitter, Conde spreads beyond the cap (docs/policies.md), Oban's jitter reached half of its range."""
    random = Random(17)
    cut_after = [min(300, 2 * 2**8 * (1 + random.random() * 0.1)) for _ in range(JOBS)]
    beyond = [60 * (0.9 + random.random() * 0.2) for _ in range(JOBS)]
    half = [30 + 30 * random.random() for _ in range(JOBS)]
    assert distance(cut_after, even(270, 300)) > FAR
    assert distance(beyond, even(54, 60)) > FAR
    assert distance(half, even(0, 60)) > FAR


@pytest.mark.parametrize("name", ["full", "equal", "plus_minus", "additive"])
def test_one_draw_reports_nothing_of_the_next(name):
    document, attempt, _ = LAWS[name]
    found = draws(document, attempt)
    mean = sum(found) / JOBS
    variance = sum((one - mean) ** 2 for one in found)
    together = sum((one - mean) * (next_ - mean) for one, next_ in pairwise(found))
    assert abs(together / variance) < 0.025
