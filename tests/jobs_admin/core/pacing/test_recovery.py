"""The controller against services that are made up (`bench/recovery.py`): what careful promises, in short."""

from __future__ import annotations

import json
from random import Random
from statistics import mean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs_admin.core import pacing
from jobs_admin.core.pacing import Controller, Judged, Seen, parse
from tests.kit.endurance import times
from tests.rigs.recovery import ALL_CURVES, CURVES, UNFAIR, WAYS, Paced, Partner, World, story


def careful(jobs, median=None, **more):
    return pacing.settled(parse({"style": "careful", **more}), jobs=jobs, median_per_s=median)


class Forgetful(Paced):
    """A controller whose process is killed after every check; another goes on from the stored state."""

    def assess(self, seen):
        self.controller = Controller.from_dict(self.pace, json.loads(json.dumps(self.controller.as_dict())))
        super().assess(seen)


@pytest.mark.parametrize("seed", range(times(1, 3)))
@pytest.mark.parametrize("curve", [curve for curve in ALL_CURVES if curve not in UNFAIR])
def test_careful_never_knocks_a_recovering_service_over(curve, seed):
    result = story(curve, "careful", 15_000, seed)
    assert (result["collapses"], result["held"]) == (0, 0)
    assert result["failed_again_percent"] < 1


def test_everything_at_once_does_and_the_jobs_die_again():
    result = story("warming", "everything at once", 15_000, 0)
    assert result["collapses"] >= 3 and result["failed_again_percent"] > 50


def test_careful_takes_at_most_half_as_long_again_as_who_knows_the_capacity():
    knows = story("warming", "oracle", 45_000, 0)["through_after_s"]
    assert story("warming", "careful", 45_000, 0)["through_after_s"] < 1.3 * knows


@pytest.mark.long("Plays four minutes of a partner for each capacity that is drawn.")
@settings(max_examples=times(1, 10), deadline=None)
@given(st.floats(20, 400), st.floats(1.5, 4), st.integers(0, 99))
@example(20.0, 2.0, 0)
@example(370.0060450536296, 3.0, 0)  # two steps down within 12 s with steps up between: no fall
@example(231.0, 4.0, 2)  # after a step down, 4 of 302 fail at 0.95 of the capacity: no fall
def test_it_finds_within_a_fifth_what_it_can_only_feel(capacity, too_much, seed):
    jobs, way = round(capacity * 240), Paced(careful(round(capacity * 240), capacity * too_much))
    partner = Partner(lambda at: capacity)
    World(partner, jobs, Random(seed)).run(way)
    rates = [rate for at, _, rate in way.rates if at > 120]
    assert mean(rates[: len(rates) * 3 // 4]) == pytest.approx(capacity, rel=0.2)
    assert partner.collapses == 0


@settings(max_examples=times(8, 25), deadline=None)
@given(
    st.floats(0.01, 40),
    st.floats(0.1, 5),
    st.floats(0.25, 3),
    st.sampled_from([None, 20, 300, 5_000]),
    st.integers(0, 99),
)
def test_a_service_that_is_still_down_gets_at_most_250_requests(runtime_s, news_s, check_s, median, seed):
    partner, way = Partner(lambda at: 1e-6), Paced(careful(45_000, median))
    world = World(partner, 45_000, Random(seed), runtime_s=runtime_s, news_s=news_s, check_s=check_s)
    world.run(way, until=lambda: bool(way.holds))
    assert "canary jobs failed again." in way.holds[0]
    # Nothing more is sent; what was sent makes its six attempts.
    assert world.sent * 6 <= 250


def test_an_outage_in_the_middle_holds_it_soon():
    partner, way = Partner(lambda at: 300 if at < 100 else 1e-6), Paced(careful(45_000, 300))
    world = World(partner, 45_000, Random(0))
    world.run(way, until=lambda: bool(way.holds))
    assert world.now < 103 and "clearly more than 30 %" in way.holds[0]


def test_a_rate_that_knocked_a_service_over_without_a_sign_is_not_tried_again():
    partner, way = Partner(lambda at: 200, sheds=False), Paced(careful(45_000, 500))
    World(partner, 45_000, Random(0)).run(way)
    assert partner.collapses == len(way.holds) == 1
    last_hold_at = [at for at, state, _ in way.rates if state == "held"][-1]
    assert 150 < max(rate for at, _, rate in way.rates if at > last_hold_at) < 1.3 * 200


def test_a_person_may_name_a_rate_that_it_failed_at():
    partner, way = Partner(lambda at: 200, sheds=False), Paced(careful(45_000, 500))
    World(partner, 45_000, Random(0)).run(way, until=lambda: bool(way.holds))
    other = careful(45_000, 400)
    same, changed = (Controller.from_dict(pace, way.controller.as_dict()) for pace in (way.pace, other))
    assert same._high < 300 and changed._high == 400


@pytest.mark.parametrize("broken", [0.02, 0.05, 0.1])
def test_broken_jobs_do_not_keep_the_others_back_for_ever(broken):
    partner = Partner(lambda at: 300)
    result = World(partner, 15_000, Random(1), broken=broken).run(Paced(careful(15_000, 150)))
    assert result["held"] == 0 and result["collapses"] == 0
    assert result["all_sent_after_s"] < 450


@pytest.mark.parametrize("curve", ["warming", "flapping", "cliff"])
def test_any_process_goes_on_where_another_was_killed(curve):
    def run_with(kind):
        partner = Partner(CURVES[curve])
        way = kind(careful(12_000, 600))
        return World(partner, 12_000, Random(5)).run(way), way.rates, way.holds

    assert run_with(Forgetful) == run_with(Paced)


@settings(max_examples=times(30, 60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 40), st.floats(0.1, 9)), max_size=60),
    st.sampled_from([{}, {"in_flight": 30}, {"canary": {"jobs": 3}}, {"ramp": {"from": 2, "to": 40}}]),
)
def test_whatever_comes_home_the_bounds_hold_and_the_state_survives_the_trip(checks, more):
    pace = careful(2_000, 100, **more)
    controller, now, sent, home = Controller(pace, 0.0), 0.0, 0, 0
    again, verdict = Controller(pace, 0.0), controller.assess(Seen(0.0, 0, 0, 2_000))
    again.assess(Seen(0.0, 0, 0, 2_000))
    for send, ok, failed, passed in checks:
        now += passed
        most = 2_000 if verdict.may_send is None else verdict.may_send
        sent += max(0, min(send, most - sent)) if verdict.state != "held" else 0
        ok = min(ok, sent - home)
        failed = min(failed, sent - home - ok)
        home += ok + failed
        judged = [Judged(now, now - 0.3, True, n=ok), Judged(now, now - 0.3, False, 1, n=failed)]
        seen = Seen(now, sent, sent - home, 2_000 - sent, [one for one in judged if one.n])
        verdict = controller.assess(seen)
        again = Controller.from_dict(pace, json.loads(json.dumps(again.as_dict())))
        assert again.assess(seen) == verdict
        assert again.as_dict() == controller.as_dict()
        assert verdict.rate is not None and 0 < verdict.rate <= pace.highest
        if verdict.state == "held":
            assert verdict.may_send == sent and verdict.because.sentence("E").endswith(".")
        elif pace.in_flight and verdict.may_send is not None:
            assert verdict.may_send - home <= max(pace.in_flight, sent - home)


@settings(max_examples=times(30, 100))
@given(st.sampled_from(["careful", "steady"]), st.booleans(), st.booleans(), st.integers(1, 50))
def test_one_of_two_never_trips(style, is_new, first_fails, canary):
    pace = pacing.settled(parse({"style": style, "canary": {"jobs": canary, "success": 1}}), jobs=1_000)
    controller = Controller(pace, 0.0)
    for n, ok in enumerate([not first_fails, first_fails], start=1):
        judged = [Judged(n, n - 0.5, ok, None if ok else 1, is_new_group=is_new and not ok)]
        assert controller.assess(Seen(float(n), 2, 2 - n, 998, judged)).state != "held"


def test_every_way_of_the_story_is_one():
    assert {"everything at once", "fixed delay of 60 s", "full jitter over 60 s", "careful", "oracle"} <= WAYS.keys()
