from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_admin.core.pacing import estimate, outlook, parse, settled, simulate, simulation
from tests.kit.endurance import times


def test_the_estimate_counts_the_gaps_between_jobs():
    assert estimate(101, parse({"rate": 10})).duration_s == 10
    assert estimate(1, parse({"rate": 10})).duration_s == 0
    assert estimate(0, parse(None)).peak_per_second == 0
    assert estimate(45_000, parse({"rate": 50})).peak_per_second == 50
    assert estimate(600, parse({"over": 60})).duration_s == pytest.approx(60, rel=0.01)


def test_a_careful_replay_takes_its_canary_and_its_ramp_longer():
    careful = estimate(45_000, parse({"style": "careful", "rate": 300}))
    assert 150 + 10 < careful.duration_s < 250 and 300 <= careful.peak_per_second <= 1.05 * 300 + 3


def planned(jobs=45_000, median=300, pace=None, **observed):
    settled_pace = settled(parse(pace or {"style": "careful"}), jobs=jobs, median_per_s=median)
    return simulate(jobs, settled_pace, **{"runtime_s": 0.3, "concurrency": 100, **observed})


def test_a_picture_holds_all_jobs_and_reports_what_it_assumes():
    seen = planned().as_planned
    width = seen.starts[1][0] - seen.starts[0][0]
    assert len(seen.starts) <= 120 and sum(rate for _, rate in seen.starts) * width == pytest.approx(45_000, rel=0.01)
    assert seen.held_because is None and 150 < seen.ends_after_s < 260
    assert planned().assumptions[0] == "A job takes 0.3 s, the recent duration of such jobs."
    assert "unknown" in planned(runtime_s=None, concurrency=None).assumptions[1]


def test_with_half_failing_again_it_is_held_after_a_few_and_with_a_tenth_it_goes_on():
    planned_, tenth, half = planned().outlooks
    assert (planned_.failing, tenth.failing, half.failing) == (0, 0.1, 0.5)
    assert half.held_because and half.sent <= 50 and half.ends_after_s is None
    assert tenth.held_because is None and tenth.sent == 45_000


@pytest.mark.parametrize(("jobs", "shares"), [(1, [0]), (9, [0]), (10, [0, 0.5]), (49, [0, 0.5]), (50, [0, 0.1, 0.5])])
def test_a_share_of_few_jobs_is_not_simulated(jobs, shares):
    assert [one.failing for one in planned(jobs=jobs).outlooks] == shares


def test_workers_that_cannot_keep_up_make_jobs_wait():
    seen = planned(pace={"rate": 100}, jobs=6_000, runtime_s=1.0, concurrency=50).as_planned
    assert seen.peak_per_second == pytest.approx(50, abs=2)
    assert seen.ends_after_s == pytest.approx(121, rel=0.05) and seen.longest_wait_s == pytest.approx(60, rel=0.03)
    planned_rates = planned(pace={"rate": 100, "queue_cap": 100}, jobs=6_000, runtime_s=1.0, concurrency=50).as_planned
    assert planned_rates.longest_wait_s <= 2.1 and planned_rates.ends_after_s == pytest.approx(121, rel=0.05)


@settings(max_examples=times(20, 40), deadline=None)
@given(
    st.integers(1, 60_000),
    st.sampled_from(
        [{"style": "careful"}, {"rate": 7}, {"rate": 900, "ramp": {"from": 1}}, {"over": 600}, {"style": "at_once"}]
    ),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 500)),
)
def test_any_replay_comes_to_an_end_or_is_held_and_never_starts_more_than_there_are(jobs, pace, failing, concurrency):
    settled_pace = settled(parse(pace), jobs=jobs, median_per_s=200)
    seen = outlook(jobs, settled_pace, failing, runtime_s=0.3, concurrency=concurrency)
    assert (seen.ends_after_s is None) == (seen.held_because is not None)
    assert 0 < seen.sent <= jobs and seen.peak_per_second <= jobs
    if settled_pace.highest:
        assert seen.peak_per_second <= 1.05 * settled_pace.highest + 3


@pytest.mark.parametrize("jobs, every", [(3, 30), (10, 30), (50, 600), (200, 2), (7, 0.5)])
def test_a_slow_pace_ends_when_its_last_job_has_run(jobs, every):
    seen = outlook(jobs, settled(parse({"every": every}), jobs=jobs), 0.0, runtime_s=0.3)
    assert seen.ends_after_s == pytest.approx(
        (jobs - 1) * every, abs=max(2 * simulation.CHECK_S, every / 10, jobs * every / 20)
    )


def test_the_same_seed_gives_the_same_picture():
    assert planned(seed=3) == planned(seed=3)
    assert planned(seed=3).outlooks[1] != planned(seed=4).outlooks[1]


@pytest.mark.parametrize(
    "pace", [{"rate": 0.001}, {"ramp": {"from": 0.001, "to": 0.002}}, {"ramp": {"from": 0.01, "to": 9_000}}]
)
def test_the_slowest_paces_cost_no_more_and_their_end_is_reported(pace):
    settled_pace = settled(parse(pace), jobs=100_000)
    for failing in (0.0, 0.1):
        run = simulation._Run(100_000, settled_pace, failing, 1.0, 100, Random(0))
        seen = run.end()
        assert len(run.points) <= 4_002 and seen.sent == 100_000
    assert estimate(100_000, settled_pace).duration_s > 100_000 / settled_pace.highest * 0.99


@pytest.mark.parametrize("median", [None, 300, 5_000])
def test_it_takes_few_steps_however_many_jobs_there_are(median):
    # Some 8 looks a millisecond on a small machine: a picture is drawn while somebody types.
    run = simulation._Run(
        45_000, settled(parse({"style": "careful"}), jobs=45_000, median_per_s=median), 0.1, 0.3, 300, Random(0)
    )
    run.end()
    assert len(run.points) < 2_000
