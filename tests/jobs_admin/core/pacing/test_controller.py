from __future__ import annotations

import json

import pytest

from jobs_admin.core.pacing import Controller, Judged, Seen, parse, settled


class SteadyReplay:
    """A replay of 1,000 jobs, looked at every second. Each check reports the settled jobs."""

    def __init__(self, pace=None, median=100, jobs=1000, workers=None):
        self.pace = settled(parse(pace or {"style": "careful"}), jobs=jobs, median_per_s=median)
        self.controller = Controller(self.pace, 0.0)
        self.now, self.jobs, self.sent, self.settled, self.workers = 0.0, jobs, 0, 0, workers

    def __call__(self, ok=0, failed=0, send=0, **error):
        self.now += 1
        self.sent += send
        self.settled += ok + failed
        sent_at = self.now - 0.5
        judged = [Judged(self.now, sent_at, False, **error)] * failed
        judged += [Judged(self.now, sent_at, True, n=ok)] if ok else []
        seen = Seen(self.now, self.sent, self.sent - self.settled, self.jobs - self.sent, judged, self.workers)
        # Every look through JSON, as if the process before had been killed.
        self.controller = Controller.from_dict(self.pace, json.loads(json.dumps(self.controller.as_dict())))
        return self.controller.assess(seen)

    def past_the_canary(self):
        self(send=10)
        self(ok=10, send=30)
        assert self(ok=30, send=10).state == "ramping"
        self(ok=10)
        return self


def test_it_begins_with_a_few_at_a_low_rate():
    verdict = SteadyReplay()()
    assert (verdict.state, verdict.rate, verdict.may_send, verdict.because) == ("canary", 5, 10, None)


def test_a_canary_that_runs_well_lets_the_rest_go():
    steering = SteadyReplay()
    steering(send=10)
    assert steering(ok=10).may_send == 30
    assert steering(ok=0).state == "canary"
    assert steering(send=20).state == "canary"
    assert steering(ok=20).may_send == 50
    steering(send=20)
    verdict = steering(ok=10)
    assert verdict.state == "ramping" and verdict.rate >= 5 and verdict.may_send > 50


def test_a_canary_passes_where_the_sender_has_a_clock_behind_that_of_the_start():
    steering = SteadyReplay({"style": "careful", "canary": {"jobs": 3}})
    steering(send=3)
    steering.now += 1
    steering.settled += 3
    behind = [Judged(steering.now, -1.5, True, n=1), Judged(steering.now, 0.5, True, n=2)]
    verdict = steering.controller.assess(Seen(steering.now, 3, 0, 997, behind))
    assert verdict.state == "ramping" and (verdict.may_send is None or verdict.may_send > 3)


def test_a_canary_that_fails_holds_and_reports_with_what():
    steering = SteadyReplay()
    steering(send=10)
    steering(ok=4, failed=2, group=7, is_same_group=True)
    verdict = steering(failed=4, group=7, is_same_group=True)
    assert verdict.state == "held" and verdict.may_send == steering.sent
    assert verdict.because.sentence("TimeoutError at pay.charge") == (
        "6 of 10 canary jobs failed again with TimeoutError at pay.charge. This replay stops when clearly more than 30 % fail again."
    )
    assert verdict.because.group == 7 and verdict.because.is_same_group
    assert steering().because == verdict.because


def test_a_held_canary_names_its_jobs_canary_jobs_whichever_rule_was_quicker():
    """The first group was just set aside when the other jobs of it failed, too: "9 of the last 9 jobs"."""
    controller = Controller(settled(parse({"style": "careful"}), jobs=1000, median_per_s=100), 0.0)

    def assess_failures(now, unsettled, failed):
        judged = [Judged(now, 0.2, False, 7, is_same_group=True, died_of=7)] * failed
        return controller.assess(Seen(now, 10, unsettled, 990, judged, has_others=lambda groups: True))

    assess_failures(1.0, 10, 5)
    verdict = assess_failures(1.5, 5, 4)
    assert (verdict.state, verdict.because.kind, verdict.because.limit) == ("held", "canary", 0.3)
    assert verdict.because.sentence().startswith("9 of 9 canary jobs failed again.")


@pytest.mark.parametrize("pace", [{"style": "careful"}, {"canary": {"jobs": 2, "success": 1}}, {"rate": 50}])
def test_one_of_two_does_not_trip_it(pace):
    steering = SteadyReplay(pace)
    steering(send=2)
    verdict = steering(ok=1, failed=1, group=7)
    assert verdict.state != "held" and (verdict.may_send is None or verdict.may_send > 2)


def test_six_of_ten_trip_a_steady_replay():
    steering = SteadyReplay({"rate": 50})
    steering(send=20)
    steering(ok=4, failed=3, group=1)
    verdict = steering(failed=3, group=2)
    assert verdict.state == "held" and verdict.because.kind == "failing"
    assert verdict.because.sentence("X") == (
        "6 of the last 10 jobs failed again, 3 of them with X. This replay stops when clearly more than 30 % fail again."
    )


def test_a_run_of_failures_is_reported_with_the_error_of_that_run_and_not_of_a_longer_time():
    steering = SteadyReplay().past_the_canary()
    steering(send=80)
    assert steering(failed=7, ok=60, group=1).state != "held"
    verdict = steering(failed=6, group=2)
    assert verdict.state == "held" and (verdict.because.group, verdict.because.in_group) == (2, 6)
    assert verdict.because.sentence("X").startswith("6 of the last 6 jobs failed again with X.")
    # Of several errors in the run, the commonest.
    steering = SteadyReplay().past_the_canary()
    steering(send=80)
    steering(failed=7, ok=60, group=1)
    steering(failed=1, group=3)
    because = steering(failed=4, group=2, is_same_group=True).because
    assert because.sentence("X").startswith("5 of the last 5 jobs failed again, 4 of them with X.")
    assert because.is_same_group


def test_a_run_of_failures_that_an_older_version_began_is_reported_without_its_error():
    steering = SteadyReplay().past_the_canary()
    steering(send=80)
    steering(failed=7, ok=60, group=1)
    steering.controller._newest = [one[:2] for one in steering.controller._newest]
    steering.controller._newest += [[False, None]] * 4
    because = steering(failed=1, group=2).because
    assert (because.failed, because.group) == (5, None) and because.in_group <= because.failed


def test_errors_that_were_never_seen_hold_it_sooner():
    steering = SteadyReplay().past_the_canary()
    steering(send=100)
    assert steering(ok=50, failed=20, group=9).state == "running"
    other = SteadyReplay().past_the_canary()
    other(send=100)
    verdict = other(ok=60, failed=40, group=9, is_new_group=True)
    assert (verdict.state, verdict.because.kind) == ("held", "new_groups")


def test_a_canary_without_news_is_held():
    steering = SteadyReplay({"style": "careful", "canary": {"within": 60}})
    steering(send=10)
    states = [steering().state for _ in range(70)]
    assert states.index("held") in range(55, 65)
    assert steering().because.sentence() == "10 jobs were sent and no outcome was reported for 1 min."


def test_nothing_more_is_sent_into_a_queue_that_reports_nothing():
    steering = SteadyReplay().past_the_canary()
    steering(send=20)
    assert [steering().may_send for _ in range(15)][-1] == steering.sent
    assert steering(ok=20).may_send > steering.sent
    steering(send=20)
    assert [steering().state for _ in range(310)][-1] == "held"


def test_a_queue_that_does_not_drain_is_reported_by_its_bound():
    steering = SteadyReplay({"rate": 50, "in_flight": 40})
    steering(send=20)
    steering(ok=20, send=40)
    assert steering().may_send == 60
    verdict = [steering() for _ in range(310)][-1]
    assert verdict.because.sentence() == "40 jobs were sent and none has settled for 5 min: the queue is not draining."


def test_workers_that_vanish_hold_it():
    steering = SteadyReplay(workers=3).past_the_canary()
    steering(send=10)
    steering.workers = 0
    assert steering().may_send == steering.sent
    verdict = [steering() for _ in range(40)][-1]
    assert verdict.state == "held" and verdict.because.kind == "workers_gone"
    back = SteadyReplay(workers=0)
    back(send=10)
    assert [back().state for _ in range(40)][-1] == "canary"


def test_a_person_may_go_on_and_it_begins_slowly():
    steering = SteadyReplay().past_the_canary()
    steering(send=60)
    assert steering(failed=60, group=1).state == "held"
    steering.controller.resumed(steering.now)
    # What was sent before is no evidence any more.
    old = [Judged(steering.now, steering.now - 2, False, 1, n=40)]
    verdict = steering.controller.assess(Seen(steering.now, steering.sent, 0, steering.jobs - steering.sent, old))
    assert (verdict.state, verdict.may_send) == ("canary", steering.sent + 5) and verdict.rate < 2


def test_a_steady_replay_that_goes_on_climbs_back():
    steering = SteadyReplay({"rate": 50}, jobs=10**6)
    steering(send=50)
    assert steering(failed=50).state == "held"
    steering.controller.resumed(steering.now + 0.4)
    rates = []
    for _ in range(90):
        verdict = steering(send=50, ok=50)
        rates.append(verdict.rate)
    assert rates[0] <= 6 and rates == sorted(rates) and rates[-1] == 50
    assert verdict.state == "running"


def test_at_once_is_not_judged():
    steering = SteadyReplay({"style": "at_once"})
    steering(send=500)
    verdict = steering(failed=500, group=1)
    assert (verdict.state, verdict.rate, verdict.may_send) == ("running", None, None)


def test_what_is_in_flight_is_bounded():
    steering = SteadyReplay({"rate": 50, "in_flight": 60})
    steering(send=20)
    assert steering(ok=20, send=40).may_send == 80
    assert steering(ok=20, send=10).may_send == 100


def test_nothing_is_held_when_all_is_sent():
    steering = SteadyReplay(jobs=10)
    steering(send=10)
    assert steering(failed=10, group=1).state == "canary"


def steadily(steering, seconds, ok, failed=0):
    return [steering(send=ok + failed, ok=ok, failed=failed) for _ in range(seconds)]


@pytest.mark.parametrize("rate", [5, 12, 50, 300])
@pytest.mark.parametrize("state", ["canary", "ramping", "running", "floor"])
def test_a_total_outage_holds_within_twenty_jobs_in_every_state(state, rate):
    steering = SteadyReplay({"style": "careful", "rate": rate}, jobs=10**6)
    if state != "canary":
        steering.past_the_canary()
    if state == "running":
        steadily(steering, 300, ok=rate)
    if state == "floor":
        for _ in range(30):
            steering.controller._steering.rate = steering.controller._lowest
            steering(send=1, ok=1)
    failed = 0
    while (verdict := steering(send=1, failed=1, group=1)).state != "held":
        failed += 1
        assert failed < 20
    assert verdict.because.kind in ("canary", "failing") and verdict.because.sentence().endswith("30 % fail again.")


def test_what_fails_at_the_lowest_rate_never_becomes_usual_above_the_stop_share():
    steering = SteadyReplay({"style": "careful", "rate": 100, "stop": {"failed": 0.9, "new_groups": False}}, jobs=10**6)
    steering.past_the_canary()
    rates = [verdict.rate for verdict in steadily(steering, 400, ok=1, failed=3)]
    assert steering.controller._steering.usual <= 0.9 and rates == sorted(rates, reverse=True)


def test_resumed_it_climbs_to_three_quarters_of_the_rate_that_failed_and_later_a_little_beyond():
    steering = SteadyReplay({"style": "careful", "rate": 300}, jobs=10**6)
    steering.past_the_canary()
    while (reached := steering(send=40, ok=40).rate) < 40:
        pass
    assert steering(send=60, failed=60, group=1).state == "held"
    steering.controller.resumed(steering.now)
    rates = [verdict.rate for verdict in steadily(steering, 200, ok=30)]
    assert rates[0] <= 5 and any(rate == pytest.approx(0.75 * reached) for rate in rates)
    later = [verdict.rate for verdict in steadily(steering, 900, ok=30)]
    assert 0.8 * reached <= max(later) <= 0.85 * reached + 1e-9


def test_an_outage_at_a_rate_that_was_well_for_long_is_not_blamed_on_the_rate():
    steering = SteadyReplay({"style": "careful", "rate": 20}, jobs=10**6)
    steering.past_the_canary()
    assert steadily(steering, 200, ok=20)[-1].rate == 20
    assert steering(send=30, failed=30, group=1).state == "held"
    steering.controller.resumed(steering.now)
    assert steadily(steering, 200, ok=20)[-1].rate == 20


def test_the_second_outage_at_a_rate_that_was_well_for_long_is_blamed_on_it():
    """A service that bears less from time to time falls over at the same rate each time."""
    steering = SteadyReplay({"style": "careful", "rate": 20}, jobs=10**6)
    steering.past_the_canary()
    for _ in range(2):
        assert steadily(steering, 200, ok=20)[-1].rate == 20
        assert steering(send=30, failed=30, group=1).state == "held"
        steering.controller.resumed(steering.now)
    assert max(verdict.rate for verdict in steadily(steering, 2_000, ok=20)) == pytest.approx(0.85 * 20)


def test_what_succeeded_for_long_does_not_hide_what_fails_now():
    steering = SteadyReplay({"style": "careful", "rate": 20}, jobs=10**6)
    steering.past_the_canary()
    assert steadily(steering, 1_000, ok=20)[-1].rate == 20
    assert steadily(steering, 4, ok=16, failed=4)[-1].rate < 20


def test_an_outage_of_some_that_was_taken_for_usual_is_soon_forgotten():
    """One customer's service of several is down for a minute: going slower helps nothing until it is back."""
    steering = SteadyReplay({"style": "careful", "rate": 20}, jobs=10**6)
    steering.past_the_canary()
    steadily(steering, 120, ok=20)
    steadily(steering, 60, ok=17, failed=3)
    assert steering.controller._steering.usual > 0.1
    steadily(steering, 20, ok=20)
    assert steering.controller._steering.usual < 0.05


def test_a_service_that_falls_for_some_jobs_again_and_again_has_its_rate_blamed():
    steering = SteadyReplay({"style": "careful", "rate": 300}, jobs=10**6)
    steering.past_the_canary()
    for _ in range(3):
        for _ in range(200):
            if steering(send=20, ok=20).rate >= 20:
                break
        steadily(steering, 8, ok=16, failed=4)
    assert max(verdict.rate for verdict in steadily(steering, 2_000, ok=20)) <= 0.86 * 20 * 1.1


def test_a_steady_replay_sends_few_into_a_service_that_is_down():
    steering = SteadyReplay({"rate": 50}, jobs=190)
    assert steering(send=5).may_send == 20
    assert steering(send=15, failed=5, group=1).state == "held"


def test_a_steady_replay_goes_on_where_news_take_long_or_never_come():
    steering = SteadyReplay({"rate": 50}, jobs=190)
    steering(send=20)
    assert [steering().may_send for _ in range(12)][-1] is None
    silent = SteadyReplay({"rate": 50}, jobs=190)
    seen = Seen(1.0, 20, 0, 170, are_reported=False)
    assert silent.controller.assess(seen).may_send is None


def test_it_goes_on_from_what_the_version_before_wrote():
    steering = SteadyReplay({"style": "careful", "rate": 100}, jobs=10**6)
    steering.past_the_canary()
    values = json.loads(json.dumps(steering.controller.as_dict()))
    for name in ("cap_s", "newest", "bad", "good", "good_since", "good_of"):
        del values[name]
    older = {"downs": 2, "share": 0.2, "before": 12.0, "rate": 8.0, "changed_at": 1.0}
    values["steering"] = older
    read = Controller.from_dict(steering.pace, values)
    verdict = read.assess(Seen(steering.now + 1, steering.sent, 0, 1000))
    assert (verdict.state, verdict.rate) == ("ramping", 8.0)


def test_one_fall_for_some_jobs_has_its_rate_blamed_and_is_waited_for_at_a_tenth_of_it():
    """Going slower does not help at once: one tenant's service was knocked over."""
    steering = SteadyReplay({"style": "careful", "rate": 300}, jobs=10**6)
    steering.past_the_canary()
    while (reached := steering(send=20, ok=20).rate) < 20:
        pass
    rates = [verdict.rate for verdict in steadily(steering, 8, ok=16, failed=4)]
    assert rates[-1] == pytest.approx(reached / 10, rel=0.1)
    assert max(verdict.rate for verdict in steadily(steering, 300, ok=20)) <= 0.85 * 1.1 * reached


def test_what_fails_since_the_beginning_is_no_fall():
    steering = SteadyReplay({"style": "careful", "rate": 300}, jobs=10**6).past_the_canary()
    steadily(steering, 600, ok=18, failed=2)
    assert steering.controller._bad is None and steering.controller._steering.rate > 20


def test_a_canary_that_failed_bounds_no_climb():
    """A service that is only just coming back may carry many times as much some minutes later."""
    steering = SteadyReplay({"style": "careful", "rate": 50}, jobs=10**6)
    steering(send=10)
    assert steering(ok=3, failed=7, group=1).state == "held"
    steering.controller.resumed(steering.now)
    verdict = steering()
    assert (verdict.state, verdict.rate) == ("canary", pytest.approx(0.5))
    assert steadily(steering, 400, ok=20)[-1].rate == 50
