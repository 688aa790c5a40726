"""Every vector of `backoff.json`, and what holds of any policy at any attempt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobs_admin.core import backoff
from jobs_admin.core.policy import LONGEST_S, parse
from tests.kit.policy_documents import CASES, DRAWN_POLICIES, GROWING_POLICIES, POLICIES

ATTEMPTS = some.one_of(some.integers(1, 40), some.integers(1, 10**9), some.sampled_from([10**9, 10**18, 10**400]))
DRAWS = some.one_of(some.floats(0, 1, exclude_max=True), some.sampled_from([0.0, math.nextafter(1, 0)]))


@pytest.mark.parametrize("vector", CASES["vectors"], ids=lambda vector: vector["name"])
def test_a_published_formula_gives_its_published_delays(vector):
    policy = parse(vector["policy"])
    for published in vector["delays"]:
        found = backoff.bounds(policy, published["attempt"])
        assert found.shortest_s == pytest.approx(published["shortest_s"], rel=1e-12, abs=0)
        assert found.longest_s == pytest.approx(published["longest_s"], rel=1e-12, abs=0)


@pytest.mark.parametrize("vector", CASES["vectors"], ids=lambda vector: vector["name"])
def test_both_ends_of_a_published_range_can_be_drawn(vector):
    policy = parse(vector["policy"])
    for published in vector["delays"]:
        least, most = (backoff.delay(policy, published["attempt"], lambda u=u: u) for u in (0.0, math.nextafter(1, 0)))
        assert (least, most) == pytest.approx((published["shortest_s"], published["longest_s"]))


@given(POLICIES, ATTEMPTS, DRAWS, some.one_of(some.none(), some.floats()))
def test_a_wait_is_within_its_bounds_and_its_cap_at_any_attempt(document, attempt, u, previous_s):
    policy = parse(document)
    wait, within = backoff.delay(policy, attempt, lambda: u, previous_s), backoff.bounds(policy, attempt)
    assert 0 <= within.shortest_s <= wait <= within.longest_s <= document.get("cap_s", LONGEST_S)
    assert within.shortest_s <= within.mean_s * (1 + 1e-3) and within.mean_s <= within.longest_s * (1 + 1e-12)


@given(GROWING_POLICIES, ATTEMPTS, ATTEMPTS)
def test_the_envelope_never_falls(document, one, other):
    policy = parse(document)
    sooner, later = (backoff.bounds(policy, attempt) for attempt in sorted((one, other)))
    assert sooner.longest_s <= later.longest_s


@given(DRAWN_POLICIES, ATTEMPTS, ATTEMPTS)
def test_also_what_is_drawn_from_the_draw_before_may_only_grow(document, one, other):
    policy = parse(document)
    sooner, later = (backoff.bounds(policy, attempt) for attempt in sorted((one, other)))
    assert sooner.longest_s <= later.longest_s and sooner.mean_s <= later.mean_s * (1 + 1e-3)


@given(some.floats(0.001, 100), some.floats(2, 100), some.integers(1, 200))
def test_doubling_means_that_each_wait_is_at_least_twice_the_one_before_until_the_cap(first, factor, attempt):
    policy = parse({"backoff": {"kind": "exponential", "first_delay_s": first, "factor": factor}, "cap_s": 600})
    this, following = (backoff.bounds(policy, n).longest_s for n in (attempt, attempt + 1))
    assert following >= min(600, 2 * this * (1 - 1e-12))


@given(POLICIES, ATTEMPTS)
def test_one_question_is_one_draw(document, attempt):
    drawn = []
    backoff.delay(parse(document), attempt, lambda: drawn.append(1) or 0.5, wish_s=3.0)
    assert len(drawn) == 1


def test_a_schedule_has_a_wait_after_every_attempt_but_the_last():
    assert [one.attempt for one in backoff.schedule(parse({"max_attempts": 4}))] == [1, 2, 3]
    assert backoff.schedule(parse({"max_attempts": 1})) == []


def test_a_table_goes_on_with_its_last_entry():
    policy = parse({"backoff": {"kind": "table", "delays_s": [1, 60]}})
    assert [backoff.bounds(policy, n).longest_s for n in (1, 2, 3, 10**9)] == [1, 60, 60, 60]
    assert policy.max_attempts == 3


def test_an_additive_jitter_is_not_lost_at_the_cap():
    """A cap that cuts after the jitter would lose it: all jobs at the cap wait exactly the cap, and wake together."""
    policy = parse(
        {"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": {"kind": "additive", "seconds": 5}, "cap_s": 60}
    )
    assert (backoff.bounds(policy, 1).shortest_s, backoff.bounds(policy, 1).longest_s) == (55, 60)


def test_what_is_requested_is_never_cut_short_and_at_most_a_fifth_is_put_on_top():
    case = CASES["retry_after"]
    policy = parse({"retry_after": {"jitter": case["jitter_up_to"]}})
    waits = [backoff.delay(policy, 1, lambda u=u: u / 1000, wish_s=case["retry_after_s"]) for u in range(1000)]
    assert waits[0] == case["shortest_s"] and case["longest_s"] - 0.1 < waits[-1] <= case["longest_s"]


def test_where_the_backoff_is_longer_than_what_is_requested_it_decides():
    policy = parse({"backoff": {"kind": "fixed", "first_delay_s": 100}})
    assert backoff.delay(policy, 1, lambda: 0.5, wish_s=1) == 100


def test_what_is_put_on_top_does_not_go_beyond_the_cap_of_what_may_be_requested():
    policy = parse({"retry_after": {"cap_s": 66}})
    assert backoff.delay(policy, 1, lambda: math.nextafter(1, 0), wish_s=60) == pytest.approx(66)


def test_a_decorrelated_backoff_follows_what_was_waited_and_not_what_a_server_requested():
    policy = parse({"backoff": {"kind": "decorrelated", "first_delay_s": 1}, "cap_s": 100})
    top = math.nextafter(1, 0)
    assert backoff.delay(policy, 2, lambda: top, previous_s=2) == pytest.approx(6)
    assert backoff.delay(policy, 2, lambda: top, previous_s=90) == pytest.approx(9)


def test_the_mean_of_a_decorrelated_backoff_is_what_many_paths_average():
    from random import Random

    policy, random = parse({"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "cap_s": 60}), Random(1).random
    sums, paths = [0.0] * 12, 8_000
    for _ in range(paths):
        wait = None
        for n in range(12):
            wait = backoff.delay(policy, n + 1, random, wait)
            sums[n] += wait
    assert [backoff.bounds(policy, n + 1).mean_s for n in range(12)] == pytest.approx(
        [one / paths for one in sums], rel=0.03
    )
