"""The sums that a fold keeps of any samples, in any parts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.queues.depths.rolling import Folded, fold

pytestmark = pytest.mark.databases

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
DEPTHS = ("waiting", "active", "delayed", "dead")
some = st.none() | st.integers(0, 10**6)


@st.composite
def folded_samples(draw):
    waiting, active, delayed, dead = (draw(some) for _ in DEPTHS)
    why = draw(st.sampled_from(["", "", "refused", "timed out"]))
    oldest = draw(st.none() | st.integers(0, 10**6).map(lambda s: NOW - timedelta(seconds=s)))
    return Folded(
        1, not why, why, waiting, active, delayed, dead, draw(some), oldest, draw(st.none() | st.floats(0, 1e6)),
        draw(st.none() | st.floats(0, 1e6)), waiting, waiting, active, active, delayed, delayed, dead, dead,
    )  # fmt: skip


@given(st.lists(folded_samples(), min_size=1, max_size=40))
def test_the_least_the_most_and_the_last_of_any_checks_are_stored(rows):
    one = fold(rows)
    for name in DEPTHS:
        known = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        assert getattr(one, name) == (known[-1] if known else None)
        assert getattr(one, f"{name}_min") == min(known, default=None)
        assert getattr(one, f"{name}_max") == max(known, default=None)
    assert one.looks == len(rows) and one.oldest_dead_at == rows[-1].oldest_dead_at


@given(st.lists(folded_samples(), min_size=2, max_size=40), st.data())
def test_folding_the_parts_equals_folding_all(rows, data):
    cut = data.draw(st.integers(1, len(rows) - 1))
    at_once, parts = fold(rows), fold([fold(rows[:cut]), fold(rows[cut:])])
    assert parts._replace(failed_per_min=None, succeeded_per_min=None) == at_once._replace(
        failed_per_min=None, succeeded_per_min=None
    )


@given(st.lists(folded_samples(), min_size=1, max_size=40))
def test_what_could_not_be_reached_at_any_moment_is_reported_with_its_reason(rows):
    one = fold(rows)
    assert one.is_reachable == any(row.is_reachable for row in rows)
    assert one.why == next((row.why for row in reversed(rows) if row.why), "")


def test_rates_are_the_mean_so_that_they_come_to_what_failed():
    row = Folded(1, True, "", 0, 0, 0, 0, None, None, 0.0, None, *[0] * 8)
    minutes = [row._replace(failed_per_min=n, looks=n_samples) for n, n_samples in ((6.0, 6), (0.0, 6), (9.0, 3))]
    one = fold(minutes)
    assert one.failed_per_min == pytest.approx((6 * 6 + 9 * 3) / 15) and one.succeeded_per_min is None
