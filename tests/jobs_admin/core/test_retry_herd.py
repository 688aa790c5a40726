from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from jobs_admin.core import backoff
from jobs_admin.core.policy import parse
from jobs_admin.core.retry_times import MOST_RETRIES, collisions, herd, laws, lost_capacity_s
from tests.kit.policy_documents import CASES, POLICIES

DOUBLING = {"kind": "exponential", "first_delay_s": 2, "factor": 2}


def fixed(first_delay_s, jitter=None, attempts=2, **more):
    return parse(
        {
            "backoff": {"kind": "fixed", "first_delay_s": first_delay_s},
            "jitter": {"kind": jitter or "none", **more},
            "max_attempts": attempts,
        }
    )


def test_jobs_spread_over_two_seconds_come_back_at_half_of_them_a_second():
    case = CASES["herd"]
    found = herd(fixed(case["over_s"], "full"), case["jobs"])
    assert found.points == [(0, case["mean_per_second"]), (1, case["mean_per_second"])]
    assert found.peak_per_s == case["mean_per_second"]


def test_without_jitter_all_come_back_in_one_second():
    found = herd(parse({"backoff": DOUBLING, "max_attempts": 4}), 45_000)
    assert found.points == [(2, 45_000), (6, 45_000), (14, 45_000)]
    assert (found.peak_per_s, found.peak_at_s) == (45_000, 2)


@pytest.mark.parametrize(
    ("jitter", "peak"),
    [
        ({"kind": "none"}, 45_000),
        ({"kind": "plus_minus", "fraction": 0.1}, 3_750),  # 12 seconds
        ({"kind": "down", "fraction": 0.5}, 1_500),  # 30 seconds
        ({"kind": "full"}, 750),
    ],
    ids=lambda value: str(value["kind"]) if isinstance(value, dict) else "",
)
def test_forty_five_thousand_jobs_a_minute_after_an_outage(jitter, peak):
    found = herd(
        parse({"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": jitter, "max_attempts": 2}), 45_000
    )
    assert found.peak_per_s == pytest.approx(peak, rel=0.001)


SHAPES = {
    "full": {"backoff": DOUBLING, "jitter": {"kind": "full"}, "cap_s": 20, "max_attempts": 6},
    "equal": {"backoff": DOUBLING, "jitter": {"kind": "equal"}, "max_attempts": 5},
    "celery": {"backoff": DOUBLING, "jitter": {"kind": "celery"}, "cap_s": 600, "max_attempts": 5},
    "sidekiq": {
        "backoff": {"kind": "polynomial", "power": 4, "plus_s": 15},
        "jitter": {"kind": "sidekiq"},
        "max_attempts": 4,
    },
    "decorrelated": {"backoff": {"kind": "decorrelated", "first_delay_s": 5}, "cap_s": 60, "max_attempts": 4},
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_picture_is_that_of_a_drawn_herd(name):
    policy, jobs, random = parse(SHAPES[name]), 20_000, Random(8).random
    found, starts = herd(policy, jobs), {}
    for _ in range(jobs):
        at, wait = 0.0, None
        for attempt in range(1, policy.max_attempts):
            wait = backoff.delay(policy, attempt, random, wait)
            at += wait
            starts[int(at)] = starts.get(int(at), 0) + 1
    assert found.step_s == 1
    points = dict(found.points)
    off = sum(abs(points.get(second, 0) - starts.get(second, 0)) for second in points.keys() | starts.keys())
    assert off < 0.08 * sum(starts.values())
    assert found.peak_per_s == pytest.approx(max(starts.values()), rel=0.1)


@given(POLICIES, some.integers(0, 1_000_000))
@settings(max_examples=20)
def test_whatever_the_policy_every_retry_is_in_the_picture_and_the_picture_is_small(document, jobs):
    policy = parse(document)
    found = herd(policy, jobs)
    retries = min(policy.max_attempts - 1, MOST_RETRIES)
    assert found.retries == retries and len(found.points) <= 260
    seen = sum(starts for _, starts in found.points)
    assert seen <= jobs * retries * 1.0001 + 1
    assert seen == pytest.approx(jobs * retries, rel=0.02, abs=3)
    assert 0 <= found.peak_per_s <= jobs * max(1, retries) * 1.0001


LONG = {
    "decorrelated": {"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "cap_s": 60, "max_attempts": 40},
    "full": {"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": {"kind": "full"}, "max_attempts": 40},
    "linear": {"backoff": {"kind": "linear", "first_delay_s": 2}, "jitter": {"kind": "equal"}, "max_attempts": 40},
    "sidekiq": {
        "backoff": {"kind": "polynomial", "power": 4, "plus_s": 15},
        "jitter": {"kind": "sidekiq"},
        "max_attempts": 26,
    },
}


@pytest.mark.parametrize("name", LONG)
def test_the_busiest_second_is_found_where_the_picture_has_longer_steps(name):
    policy = parse(LONG[name])
    found, times = herd(policy, 1000), laws(policy)
    assert found.step_s > 1
    seconds = [at / 4 for at in range(4 * 300)]  # waits spread the more, the later: the busiest second is an early one
    busiest = max(1000 * sum(one.share_until(at + 1) - one.share_until(at) for one in times) for at in seconds)
    assert found.peak_per_s == pytest.approx(busiest, rel=0.05)


def test_a_picture_can_have_the_steps_of_another_one():
    long, short = parse({"backoff": {"kind": "fixed", "first_delay_s": 600}, "max_attempts": 5}), fixed(20, "full")
    step = herd(long, 1000).step_s
    assert step == 15 and [starts for _, starts in herd(short, 1000, step).points] == [750, 250]


def test_nothing_is_retried_where_there_is_one_attempt():
    assert herd(parse({"max_attempts": 1}), 45_000).points == []


def test_pairs_in_the_same_millisecond_are_those_of_the_formula():
    assert collisions(fixed(2, "full"), 1000) == 249.75  # N (N - 1) / 2 · w / D
    assert collisions(fixed(2, "full"), 1000, within_s=1) == 249_750  # about N² / 2 D
    assert collisions(fixed(2), 1000) == 499_500
    policy, random, found = fixed(2, "full"), Random(2), []
    for _ in range(25):
        buckets: dict[int, int] = {}
        for _ in range(1000):
            bucket = int(backoff.delay(policy, 1, random.random) * 1000)
            buckets[bucket] = buckets.get(bucket, 0) + 1
        found.append(sum(n * (n - 1) // 2 for n in buckets.values()))
    assert sum(found) / len(found) == pytest.approx(249.75, rel=0.05)


def test_full_second_jitter_has_few_instants_to_spread_over():
    assert collisions(fixed(60, "celery"), 1000) == pytest.approx(499_500 / 61)


def test_a_pill_costs_what_its_crashes_cost():
    for case in CASES["poison"]:
        assert lost_capacity_s(case["crashes_before_quarantine"], 10) == 10 * case["threshold"]
