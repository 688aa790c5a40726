from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.alert_state import CLEAR, FIRE, KEEP, QUIET, Act, Numbers, Phase, step

numbers = st.builds(
    lambda threshold, share, for_s, keep, no_data: Numbers(threshold, threshold * share, for_s, keep, no_data),
    st.integers(0, 20), st.floats(0, 1), st.integers(0, 60), st.integers(0, 60), st.sampled_from([KEEP, FIRE, CLEAR]),
)  # fmt: skip
samples = st.lists(
    st.tuples(st.integers(1, 30), st.none() | st.integers(0, 40) | st.just(math.nan), st.booleans()), max_size=60
)


def run(rule, values, *, every=5.0, start=0.0):
    """(at, act) for each value, one every that many seconds; None is no data."""
    stand, done = QUIET, []
    for n, value in enumerate(values):
        at = start + n * every
        stand, act = step(stand, value, at, rule)
        if act:
            done.append((at, act))
    return done


def acts(rule, values, **more):
    return [act for _, act in run(rule, values, **more)]


@given(numbers, samples)
def test_acts_follow_each_other_as_they_must(rule, taken):
    after = {
        None: {Act.OPEN, Act.FIRE}, Act.OPEN: {Act.DROP, Act.FIRE}, Act.DROP: {Act.OPEN, Act.FIRE},
        Act.FIRE: {Act.RESOLVE}, Act.RESOLVE: {Act.OPEN, Act.FIRE},
    }  # fmt: skip
    stand, last, at = QUIET, None, 0
    for wait, value, is_breached in taken:
        at += wait
        stand, act = step(stand, value, at, rule, is_blocked=is_breached)
        if act:
            assert act in after[last]
            last = act


@given(numbers, samples)
def test_nothing_fires_or_ends_while_it_is_held_or_for_want_of_data_that_is_stored(rule, taken):
    stand, at = QUIET, 0
    for wait, value, is_breached in taken:
        at += wait
        stand, act = step(stand, value, at, rule, is_blocked=is_breached)
        if is_breached:
            assert act in (None, Act.OPEN)
        elif (value is None or math.isnan(value)) and rule.no_data == KEEP:
            assert act is None


@given(numbers, samples)
def test_it_fires_after_so_long_above_and_ends_after_so_long_at_or_below(rule, taken):
    stand, at, above_since, below_since = QUIET, 0, None, None
    for wait, value, _ in taken:
        at += wait
        value = 0 if value is None or math.isnan(value) else value
        above_since = None if value <= rule.threshold else at if above_since is None else above_since
        below_since = None if value > rule.clears_at else at if below_since is None else below_since
        stand, act = step(stand, value, at, rule)
        if act is Act.FIRE:
            assert at - above_since >= rule.for_s
        if act is Act.RESOLVE:
            assert at - below_since >= rule.keep_firing_s
        if above_since is not None and at - above_since >= rule.for_s:
            assert stand.phase is Phase.FIRING  # never later than it must


@given(numbers, samples, st.integers(0, 100))
def test_an_older_value_changes_nothing(rule, taken, back):
    stand, at = QUIET, 0
    for wait, value, is_breached in taken:
        at += wait
        stand, _ = step(stand, value, at, rule, is_blocked=is_breached)
    assert step(stand, 10**6, at - back, rule) == (stand, None) if taken else True


@given(numbers, samples)
def test_the_peak_is_the_highest_value_of_the_episode(rule, taken):
    stand, at, highest = QUIET, 0, 0
    for wait, value, is_breached in taken:
        at += wait
        stand, act = step(stand, value, at, rule, is_blocked=is_breached)
        known = value if value is not None and not math.isnan(value) else None
        if act in (Act.OPEN, Act.FIRE) and stand.opened_at == at:
            highest = 0
        if stand.phase is not Phase.QUIET:
            highest = max(highest, known if known is not None else highest)
            assert stand.peak >= (known or 0) if known is not None else True


@pytest.mark.parametrize("every", [1, 2, 5, 10])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("clear", [None, 90])
def test_flapping_by_one_a_second_for_ten_minutes_gives_at_most_two_notices(every, shift, clear):
    """Looked at every that many seconds, at every beat, then a real breach."""
    rule = Numbers(100, clear, for_s=60, keep_firing_s=120)
    flapping = [100 + (t + shift) % 2 for t in range(0, 600, every)]
    transitions = [
        act for act in acts(rule, [*flapping, *[500] * (200 // every)], every=every) if act in (Act.FIRE, Act.RESOLVE)
    ]
    assert transitions in ([Act.FIRE], [Act.FIRE, Act.RESOLVE])
    if Act.FIRE not in acts(rule, flapping, every=every):
        fired = next(at for at, act in run(rule, [*flapping, *[500] * (200 // every)], every=every) if act is Act.FIRE)
        assert fired - 600 <= rule.for_s + 15


def test_no_data_means_what_the_rule_sets():
    above, none = [9] * 3, [None] * 30
    decisions = {kind: acts(Numbers(5, None, 10, 20, kind), [*above, *none]) for kind in (KEEP, FIRE, CLEAR)}
    assert decisions == {
        KEEP: [Act.OPEN, Act.FIRE],
        FIRE: [Act.OPEN, Act.FIRE],
        CLEAR: [Act.OPEN, Act.FIRE, Act.RESOLVE],
    }
    assert acts(Numbers(5, None, 10, 20, FIRE), none) == [Act.OPEN, Act.FIRE]
    assert acts(Numbers(5, None, 10, 20, KEEP), none) == acts(Numbers(5, None, 10, 20, CLEAR), none) == []


def test_between_clear_and_threshold_it_stays_as_it_is():
    assert acts(Numbers(100, 50, 0, 0), [101, 60, 100, 51, 101, 50]) == [Act.FIRE, Act.RESOLVE]


def test_what_was_true_while_it_was_held_fires_as_soon_as_it_is_let_go():
    rule = Numbers(10, None, 30, 0)
    stand, done = QUIET, []
    for at in range(0, 100, 5):
        stand, act = step(stand, 50, at, rule, is_blocked=at < 60)
        done += [(at, act)] if act else []
    assert done == [(0, Act.OPEN), (60, Act.FIRE)]
