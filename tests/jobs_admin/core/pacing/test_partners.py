"""Careful against partners drawn at random (`bench/partners.py`), a few of them and few jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs_admin.core.pacing import settled
from jobs_admin.core.pacing.parsing import parse
from tests.kit.endurance import times
from tests.rigs.partners import KINDS, meet, partners

JOBS = 4_000
DRAWN = {drawn.name: drawn for drawn in partners(1)}


def test_ten_kinds_are_drawn_and_the_same_seed_draws_the_same():
    assert len(DRAWN) == 40 and len({drawn.kind for drawn in DRAWN.values()}) == len(KINDS) == 10
    again = {drawn.name: drawn for drawn in partners(1)}
    assert all(one.usual == again[name].usual for name, one in DRAWN.items())


@pytest.mark.parametrize(
    "name",
    ["step 1", "drift 4", "periodic 1", "per tenant 1", "slow 3", "flapping 4", "below the start 2", "no sign 4"],
)
def test_a_fresh_desk_knocks_a_partner_over_at_most_once_and_few_jobs_die_again(name):
    met = meet(DRAWN[name], "fresh", JOBS, seed=1)
    assert met["collapses"] <= 1 and met["dead_percent"] < 2


def test_a_partner_that_gives_no_sign_is_not_knocked_over_twice_by_the_same_climb():
    """588 jobs at 12 a second, attempted once. The jobs that are out as it falls die: of so few jobs some 3 %, in the first climb."""
    drawn = replace(DRAWN["no sign 4"], curve=lambda t: 12.0)
    for seed in (1, 2, 3):
        fresh, busy = (meet(drawn, way, 588, seed=seed) for way in ("fresh", "busy"))
        assert fresh["collapses"] == 1 and fresh["held"] <= 1 and fresh["dead_percent"] < 4, fresh
        assert busy["collapses"] == 0 and busy["dead"] == 0, busy


def test_one_tenant_of_several_is_not_knocked_over_again_and_again():
    """Failures of the one tenant are few among all, and never hold the replay."""
    met = meet(DRAWN["per tenant 4"], "fresh", times(15_000, 45_000), seed=1)
    assert met["collapses"] <= 1 and met["dead_percent"] < 0.5


@pytest.mark.parametrize(
    ("seed", "name", "way"),
    [(1, "per tenant 4", "resumed"), (1, "half-broken 2", "busy"), (20261, "warm-up 4", "fresh")],
)
def test_one_collapse_and_two_and_a_half_times_the_oracle_are_the_most(seed, name, way):
    """Several services behind one rate, groups that fail whatever it does, and a canary that meets a cold service."""
    drawn = next(drawn for drawn in partners(seed) if drawn.name == name)
    met = meet(drawn, way, times(25_000, 45_000), seed=seed)
    assert met["collapses"] <= 1 and met["dead_percent"] < 2 and met["times_the_oracle"] <= 2.5


def test_a_partner_below_the_start_is_not_failed_for_long():
    """The partner carries less than careful begins with: careful goes below that, or holds."""
    met = meet(DRAWN["below the start 2"], "fresh", 300, seed=1)
    assert met["collapses"] <= 1 and met["dead"] < 30


def test_what_this_desk_knows_bounds_the_climb():
    drawn = DRAWN["no sign 2"]
    assert settled(parse({"style": "careful"}), jobs=JOBS, median_per_s=drawn.usual).highest == drawn.usual
    assert meet(drawn, "busy", JOBS, seed=1)["collapses"] == 0
