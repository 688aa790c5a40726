from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_admin.core.pacing import Bucket
from tests.kit.endurance import times

rates = st.floats(0.001, 100_000)


def sendings(rate, pauses, wanted=10**9):
    """Moments at which jobs go when a person asks after each of these pauses."""
    now, sent = 100.0, []
    bucket = Bucket(rate, now)
    for pause in pauses:
        now += pause
        sent.append((now, bucket.take(wanted, now)))
    return sent


def most_in_a_second(sent):
    most = 0
    for first, (start, _) in enumerate(sent):
        most = max(most, sum(n for at, n in sent[first:] if at <= start + 1))
    return most


@settings(max_examples=times(75, 300))
@given(rates, st.lists(st.one_of(st.floats(0, 0.05), st.floats(0, 3), st.just(0.0)), max_size=80))
def test_no_second_ever_holds_more_than_the_rate_allows(rate, pauses):
    assert most_in_a_second(sendings(rate, pauses)) <= 1.05 * rate + 3


@settings(max_examples=times(75, 300))
@given(
    rates,
    st.lists(
        st.tuples(st.floats(0, 0.05) | st.floats(0, 3), st.just(0.0) | st.floats(0, 2), st.booleans()), max_size=60
    ),
)
def test_calls_that_take_long_never_make_a_bunch_where_the_jobs_arrive(rate, calls):
    now, sent, bucket = 100.0, [], Bucket(rate, 100.0)
    for pause, takes, arrives_at_once in calls:
        now += pause
        granted, taken_at = bucket.take(10**9, now), now
        now += takes
        sent.append((taken_at if arrives_at_once else now, granted))
        bucket.delayed(takes)
    assert most_in_a_second(sent) <= 1.05 * rate + 3


@settings(max_examples=times(75, 300))
@given(rates, rates, st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_changing_the_rate_never_bunches(first, second, pauses):
    now, sent = 0.0, []
    bucket = Bucket(first, now)
    for index, pause in enumerate(pauses):
        now += pause
        if index == len(pauses) // 2:
            bucket.change(second, now)
        sent.append((now, bucket.take(10**9, now)))
    assert most_in_a_second(sent) <= 1.05 * max(first, second) + 4


@pytest.mark.parametrize("rate", [0.5, 7, 50, 500, 5_000])
def test_a_steady_sender_takes_as_long_as_the_rate_reports(rate):
    jobs = math.ceil(rate * 10)
    now, bucket, sent = 0.0, Bucket(rate, 0.0), 0
    while sent < jobs:
        now += max(0.004, bucket.wait(now))
        sent += bucket.take(jobs - sent, now)
    assert now == pytest.approx((jobs - 1) / rate, rel=0.02)


def test_small_stalls_are_made_good():
    now, bucket, sent = 0.0, Bucket(100, 0.0), 0
    for step in range(1, 2_001):
        now += 0.01 if step % 100 else 0.03
        sent += bucket.take(10**6, now)
    assert sent == pytest.approx(now * 100, rel=0.01)


def test_an_hour_s_pause_is_not_made_good():
    sent = sendings(50, [0.02] * 50 + [3600] + [0.02] * 50)
    assert sum(n for _, n in sent[50:]) <= 55


def test_waiting_the_announced_time_is_enough():
    bucket = Bucket(3, 0.0)
    bucket.take(1, 0.0)
    assert bucket.take(1, bucket.wait(0.0)) == 1


def test_ahead_reports_what_will_be_granted():
    bucket = Bucket(100, 0.0)
    due = bucket.ahead(0.25, 0.0)
    granted = sum(bucket.take(10**6, step / 100) for step in range(26))
    assert granted == pytest.approx(due, abs=1) and due == 26


def test_without_a_rate_everything_goes():
    assert Bucket(None, 0.0).take(45_000, 0.0) == 45_000


@settings(max_examples=times(50, 200))
@given(
    rates,
    st.floats(0.01, 1),
    st.integers(0, 9),
    st.lists(st.one_of(st.floats(0, 0.05), st.floats(0, 3), st.just(0.0)), max_size=80),
)
def test_jitter_and_stalls_and_pauses_never_break_the_bound(rate, jitter, seed, pauses):
    now, sent, bucket = 100.0, [], Bucket(rate, 100.0, jitter, Random(seed))
    for pause in pauses:
        now += pause
        sent.append((now, bucket.take(10**9, now)))
    assert most_in_a_second(sent) <= 1.05 * rate + 3


@pytest.mark.parametrize("rate", [0.5, 7, 50, 500])
def test_with_jitter_it_takes_as_long_as_the_rate_reports(rate):
    jobs, now, bucket, sent = math.ceil(rate * 100), 0.0, Bucket(rate, 0.0, 1.0, Random(1)), 0
    while sent < jobs:
        now += max(0.001, bucket.wait(now))
        sent += bucket.take(jobs - sent, now)
    assert now == pytest.approx((jobs - 1) / rate, rel=0.02)


def test_jitter_reaches_every_part_of_a_gap():
    now, bucket, sent = 0.0, Bucket(1, 0.0, 1.0, Random(1)), []
    while len(sent) < 400:
        now += bucket.wait(now)
        sent += [now] * bucket.take(1, now)
    assert {int(at % 1 * 10) for at in sent} == set(range(10))


@given(st.floats(0.1, 500), st.integers(0, 5))
def test_waiting_the_announced_time_is_enough_with_jitter_too(rate, seed):
    bucket, now = Bucket(rate, 0.0, 1.0, Random(seed)), 0.0
    for _ in range(20):
        now += bucket.wait(now)
        assert bucket.take(1, now) == 1


@settings(max_examples=times(50, 200))
@given(
    st.lists(st.tuples(rates, st.floats(0, 1.5), st.none() | st.floats(0, 1)), min_size=1, max_size=60),
    st.floats(0, 1),
    st.integers(0, 9),
)
def test_a_rate_and_jitter_that_change_at_every_check_never_break_the_bound_of_the_highest(changes, jitter, seed):
    now, sent, bucket = 0.0, [], Bucket(changes[0][0], 0.0, jitter, Random(seed))
    for rate, pause, other in changes:
        bucket.change(rate, now, other)
        for part in range(4):
            sent.append((now + part * pause / 4, bucket.take(10**9, now + part * pause / 4)))
        now += pause
    assert most_in_a_second(sent) <= 1.05 * max(rate for rate, *_ in changes) + 3
