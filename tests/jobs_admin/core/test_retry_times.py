from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings

from jobs_admin.core import backoff
from jobs_admin.core.policy import parse
from jobs_admin.core.retry_times import survives, totals
from tests.kit.policy_documents import CASES, POLICIES

DOUBLING = {"kind": "exponential", "first_delay_s": 2, "factor": 2}


def draw_totals(policy, jobs, seed=3):
    """The totals of that many jobs, in order, by drawing every wait of each."""
    random, found = Random(seed).random, []
    for _ in range(jobs):
        total, wait = 0.0, None
        for attempt in range(1, policy.max_attempts):
            wait = backoff.delay(policy, attempt, random, wait)
            total += wait
        found.append(total)
    return sorted(found)


@pytest.mark.parametrize("case", CASES["totals"], ids=lambda case: str(case["attempts"]))
def test_the_total_of_a_doubling_backoff_is_the_published_one(case):
    first = case["base_ms"] / 1000
    found = totals(parse({"backoff": {**DOUBLING, "first_delay_s": first}, "max_attempts": case["attempts"]}))
    assert [found.shortest_s, found.p1_s, found.p50_s, found.p99_s, found.longest_s, found.mean_s] == [
        case["total_ms"] / 1000
    ] * 6
    assert found.longest_s == first * (2 ** (case["attempts"] - 1) - 1)


@pytest.mark.parametrize("case", CASES["totals_capped"])
def test_the_total_with_a_cap_is_the_published_one(case):
    policy = parse(
        {
            "backoff": {**DOUBLING, "first_delay_s": case["base_s"]},
            "cap_s": case["cap_s"],
            "max_attempts": case["attempts"],
        }
    )
    assert totals(policy).longest_s == case["total_s"]


def test_full_jitter_takes_half_as_long_on_average():
    found = totals(parse({"backoff": DOUBLING, "jitter": {"kind": "full"}, "max_attempts": 5}))
    assert found.mean_s == CASES["full_jitter_b2_N5"]["mean_total_s"]
    assert (found.shortest_s, found.longest_s) == (0, 30)
    assert found.p50_s == pytest.approx(15, abs=0.05)


PERCENTILES = {
    "full": {"backoff": DOUBLING, "jitter": {"kind": "full"}, "max_attempts": 5},
    "down, capped": {
        "backoff": DOUBLING,
        "jitter": {"kind": "down", "fraction": 0.1},
        "cap_s": 300,
        "max_attempts": 12,
    },
    "one wait": {"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": {"kind": "equal"}, "max_attempts": 2},
    "celery": {"backoff": DOUBLING, "jitter": {"kind": "celery"}, "cap_s": 600, "max_attempts": 6},
    "sidekiq": {
        "backoff": {"kind": "polynomial", "power": 4, "plus_s": 15},
        "jitter": {"kind": "sidekiq"},
        "max_attempts": 10,
    },
    "decorrelated": {"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "cap_s": 60, "max_attempts": 8},
    "sixty": {"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": {"kind": "full"}, "max_attempts": 60},
}


@pytest.mark.parametrize("name", PERCENTILES)
def test_percentiles_are_those_of_many_drawn_jobs(name):
    policy = parse(PERCENTILES[name])
    found, many = totals(policy), draw_totals(policy, 3_000)
    for share, value, near in ((0.01, found.p1_s, 0.01), (0.5, found.p50_s, 0.04), (0.99, found.p99_s, 0.01)):
        assert sum(one < value for one in many) / len(many) == pytest.approx(share, abs=near)


@given(POLICIES)
@settings(max_examples=20)
def test_totals_are_in_order_whatever_the_policy(document):
    found = totals(parse(document))
    slack = 1e-9 * found.longest_s
    ordered = [found.shortest_s, found.p1_s, found.p50_s, found.p99_s, found.longest_s]
    assert ordered == sorted(ordered) and found.shortest_s >= 0
    assert found.shortest_s - slack <= found.mean_s <= found.longest_s + slack


def test_an_outage_is_surely_survived_as_long_as_the_shortest_waits_last():
    bare = survives(parse({"backoff": DOUBLING, "max_attempts": 5}))
    assert (bare.surely_s, bare.probably_s) == (30, 30)
    spread = survives(parse({"backoff": DOUBLING, "jitter": {"kind": "full"}, "max_attempts": 5}))
    assert spread.surely_s == 0 and spread.probably_s == pytest.approx(4.06, abs=0.1)
    assert survives(parse({"max_attempts": 1})).probably_s == 0
