from __future__ import annotations

from itertools import pairwise
from math import log
from random import Random

import pytest

from jobs_admin.core.pacing import Judged
from jobs_admin.core.pacing.steering import Steering

LOW, HIGH = 5.0, 300.0


class Climb:
    """A steering at 100 a second that is looked at every second; each check gets the settled ones of the jobs sent just before."""

    def __init__(self, rate=100.0, **known):
        self.now, self.steering = 0.0, Steering(rate, 0.0, **known)

    def __call__(self, ok=0, failed=0, runtime_s=None, sent_at=None):
        self.now += 1
        sent_at = self.now - 0.3 if sent_at is None else sent_at
        judged = [
            Judged(self.now, sent_at, False, 1, n=failed),
            Judged(self.now, sent_at, True, runtime_s=runtime_s, n=ok),
        ]
        return self.steering.steer([one for one in judged if one.n], 1.0, self.now, LOW, HIGH)

    @property
    def rate(self):
        return self.steering.rate


def test_it_climbs_while_all_runs_well_and_never_above_the_top():
    climb, rates = Climb(), []
    for _ in range(90):
        climb(ok=100)
        rates.append(climb.rate)
    assert rates == sorted(rates) and rates[-1] == HIGH
    assert all(later - rate <= 0.1 * rate + 1e-9 for rate, later in pairwise(rates))
    assert rates[25] < HIGH


def test_it_waits_for_jobs_that_were_sent_at_the_present_rate():
    climb = Climb()
    climb(ok=100)
    risen = climb.rate
    assert risen > 100
    for _ in range(5):
        climb(ok=100, sent_at=0.5)
    assert climb.rate == risen
    climb(ok=100)
    assert climb.rate > risen


def test_one_failure_takes_the_last_step_back_and_two_beyond_doubt_make_it_slower():
    climb = Climb(rate=10.0)
    assert climb(ok=9, failed=1) is None and climb.rate == 9
    assert climb(ok=9) is None and climb.rate == 9
    why = climb(ok=8, failed=2)
    assert why.kind == "backed_off" and climb.rate < 9
    assert (why.rate, why.to_rate) == (9, climb.rate)


def test_it_goes_down_by_what_failed_and_at_most_by_half():
    assert_rates = {5: 0.85 * 95, 20: 0.85 * 80, 90: 50}
    for failed, rate in assert_rates.items():
        climb = Climb()
        climb(ok=100 - failed, failed=failed)
        assert climb.rate == pytest.approx(rate)


def test_what_was_sent_before_it_went_down_does_not_count_again():
    climb = Climb()
    climb(ok=80, failed=20)
    slowed = climb.rate
    climb(ok=80, failed=20, sent_at=climb.now - 0.5)
    assert climb.rate == slowed


def test_after_a_ceiling_it_stays_below_it_for_long_and_then_tries_again():
    climb, rates = Climb(), []
    climb(ok=90, failed=10)
    for _ in range(40):
        climb(ok=80)
        rates.append(climb.rate)
    assert rates == sorted(rates)
    assert max(rates[:11]) < 90 and rates[-1] > 120


def test_what_fails_at_every_rate_is_usual():
    climb = Climb()
    for _ in range(6):
        climb.now += 1
        climb(ok=80, failed=20)
    slow = climb.rate
    for _ in range(200):
        climb(ok=80, failed=20)
    assert climb.steering.usual == pytest.approx(0.2, abs=0.02) and climb.rate > 1.5 * slow


def test_a_little_too_much_for_long_does_not_become_usual():
    climb = Climb(usual=0.01, usual_of=1000)
    for _ in range(200):
        climb(ok=98, failed=2)
    assert climb.steering.usual <= 0.011


def test_jobs_that_take_much_longer_make_it_slower():
    climb = Climb()
    climb.steering.usual_runtime = log(0.3)
    assert climb(ok=100, runtime_s=0.5) is None
    why = climb(ok=100, runtime_s=0.9)
    assert (why.kind, round(why.usual_s, 2), round(why.runtime_s, 1)) == ("slower", 0.3, 0.9)


def test_jobs_of_another_kind_that_always_take_longer_do_not_keep_it_slow():
    climb = Climb()
    climb.steering.usual_runtime = log(0.3)
    for _ in range(150):
        climb(ok=100, runtime_s=3)
    assert climb.rate > 100


def test_very_different_jobs_are_not_taken_for_slow_ones():
    random, climb = Random(1), Climb()
    times = [random.lognormvariate(-1, 1.5) for _ in range(10_000)]
    climb.steering.steer([Judged(0, 0, True, runtime_s=at) for at in times[:50]], 1.0, 0.0, LOW, HIGH)
    reported = []
    for n in range(100, 4_000, 25):
        climb.now += 1
        judged = [Judged(climb.now, climb.now - 0.3, True, runtime_s=at) for at in times[n : n + 25]]
        reported.append(climb.steering.steer(judged, 1.0, climb.now, LOW, HIGH))
    assert not any(reported)


def test_it_goes_on_from_what_another_version_wrote():
    values = Steering(7.0, 1.0).as_dict() | {"of_tomorrow": 5}
    del values["down_at"]
    assert Steering.from_dict(values) == Steering(7.0, 1.0)


def test_probes_of_the_same_limit_become_rare():
    """Failures of a service that refuses what is above 100 a second: as often as the logarithm of the time."""
    climb, downs = Climb(rate=80.0), []
    for _ in range(6_000):
        failed = max(0, round(climb.rate - 100))
        if climb(ok=round(climb.rate) - failed, failed=failed):
            downs.append(climb.now)
    gaps = [later - earlier for earlier, later in pairwise(downs)]
    assert 3 <= len(downs) <= 12 and gaps[-1] > 4 * gaps[0]


def test_a_rate_at_which_an_older_version_had_trouble_before_bounds_no_climb():
    """There `before` outlived the trouble, which `downs` had counted back to 0."""
    older = Steering(20.0, 1.0).as_dict() | {"downs": 0, "share": 0.0, "before": 60.0}
    assert Steering.from_dict(older).before == 0 and Steering.from_dict(older | {"downs": 2}).before == 60
