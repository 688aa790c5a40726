from __future__ import annotations

import json

import pytest

from jobs_admin.core.pacing import Controller, Judged, Seen, parse, settled


class Look:
    """A replay of 1,000 jobs, looked at every second. What is told is what came home."""

    def __init__(self, pace=None, median=100, jobs=1000, workers=None):
        self.pace = settled(parse(pace or {"style": "careful"}), jobs=jobs, median_per_s=median)
        self.controller = Controller(self.pace, 0.0)
        self.now, self.jobs, self.sent, self.settled, self.workers = 0.0, jobs, 0, 0, workers

    def __call__(self, ok=0, failed=0, send=0, **error):
        self.now += 1
        self.sent += send
        self.settled += ok + failed
        sent_at = self.now - 0.5
        judged = [Judged(self.now, sent_at, True, n=ok)] if ok else []
        judged += [Judged(self.now, sent_at, False, **error)] * failed
        seen = Seen(self.now, self.sent, self.sent - self.settled, self.jobs - self.sent, judged, self.workers)
        # Every look through JSON, as if the process before had been killed.
        self.controller = Controller.from_dict(self.pace, json.loads(json.dumps(self.controller.as_dict())))
        return self.controller.look(seen)

    def past_the_canary(self):
        self(send=10)
        self(ok=10, send=30)
        assert self(ok=30, send=10).state == "ramping"
        self(ok=10)
        return self


def test_it_begins_with_a_few_at_a_low_rate():
    verdict = Look()()
    assert (verdict.state, verdict.rate, verdict.may_send, verdict.because) == ("canary", 5, 10, None)


def test_a_canary_that_runs_well_lets_the_rest_go():
    look = Look()
    look(send=10)
    assert look(ok=10).may_send == 30
    assert look(ok=0).state == "canary"
    assert look(send=20).state == "canary"
    assert look(ok=20).may_send == 50
    look(send=20)
    verdict = look(ok=10)
    assert verdict.state == "ramping" and verdict.rate >= 5 and verdict.may_send > 50


def test_a_canary_that_fails_holds_and_says_with_what():
    look = Look()
    look(send=10)
    look(ok=4, failed=2, group=7, is_same_group=True)
    verdict = look(failed=4, group=7, is_same_group=True)
    assert verdict.state == "held" and verdict.may_send == look.sent
    assert verdict.because.sentence("TimeoutError at pay.charge") == (
        "6 of 10 canary jobs failed again with TimeoutError at pay.charge."
    )
    assert verdict.because.group == 7 and verdict.because.is_same_group
    assert look().because == verdict.because


@pytest.mark.parametrize("pace", [{"style": "careful"}, {"canary": {"jobs": 2, "success": 1}}, {"rate": 50}])
def test_one_of_two_does_not_trip_it(pace):
    look = Look(pace)
    look(send=2)
    verdict = look(ok=1, failed=1, group=7)
    assert verdict.state != "held" and (verdict.may_send is None or verdict.may_send > 2)


def test_six_of_ten_trip_a_steady_replay():
    look = Look({"rate": 50})
    look(send=20)
    look(ok=4, failed=3, group=1)
    verdict = look(failed=3, group=2)
    assert verdict.state == "held" and verdict.because.kind == "failing"
    assert (
        verdict.because.sentence("X") == "6 of the last 10 jobs failed again, 3 of them with X. More than 30% stop it."
    )


def test_errors_that_were_never_seen_hold_it_sooner():
    look = Look().past_the_canary()
    look(send=100)
    assert look(ok=50, failed=20, group=9).state == "running"
    other = Look().past_the_canary()
    other(send=100)
    verdict = other(ok=60, failed=40, group=9, is_new_group=True)
    assert (verdict.state, verdict.because.kind) == ("held", "new_groups")


def test_a_canary_without_news_is_held():
    look = Look({"style": "careful", "canary": {"within": 60}})
    look(send=10)
    states = [look().state for _ in range(70)]
    assert states.index("held") in range(55, 65)
    assert look().because.sentence() == "No news for 60 s of 10 jobs that were sent."


def test_nothing_more_is_sent_into_a_queue_that_tells_nothing():
    look = Look().past_the_canary()
    look(send=20)
    assert [look().may_send for _ in range(15)][-1] == look.sent
    assert look(ok=20).may_send > look.sent
    look(send=20)
    assert [look().state for _ in range(310)][-1] == "held"


def test_a_queue_that_does_not_drain_is_told_by_its_bound():
    look = Look({"rate": 50, "in_flight": 40})
    look(send=40)
    assert look().may_send == 40
    verdict = [look() for _ in range(310)][-1]
    assert verdict.because.sentence() == "40 jobs were sent and none came home for 5 min: the queue does not drain."


def test_workers_that_vanish_hold_it():
    look = Look(workers=3).past_the_canary()
    look(send=10)
    look.workers = 0
    assert look().may_send == look.sent
    verdict = [look() for _ in range(40)][-1]
    assert verdict.state == "held" and verdict.because.kind == "workers_gone"
    back = Look(workers=0)
    back(send=10)
    assert [back().state for _ in range(40)][-1] == "canary"


def test_a_person_may_go_on_and_it_begins_slowly():
    look = Look().past_the_canary()
    look(send=60)
    assert look(failed=60, group=1).state == "held"
    look.controller.resumed(look.now)
    # What was sent before is no evidence any more.
    old = [Judged(look.now, look.now - 2, False, 1, n=40)]
    verdict = look.controller.look(Seen(look.now, look.sent, 0, look.jobs - look.sent, old))
    assert (verdict.state, verdict.rate, verdict.may_send) == ("canary", 5, look.sent + 10)


def test_a_steady_replay_that_goes_on_climbs_back():
    look = Look({"rate": 50}, jobs=10**6)
    look(send=50)
    assert look(failed=50).state == "held"
    look.controller.resumed(look.now + 0.4)
    rates = []
    for _ in range(90):
        verdict = look(send=50, ok=50)
        rates.append(verdict.rate)
    assert rates[0] <= 6 and rates == sorted(rates) and rates[-1] == 50
    assert verdict.state == "running" and verdict.may_send is None


def test_at_once_is_not_judged():
    look = Look({"style": "at_once"})
    look(send=500)
    verdict = look(failed=500, group=1)
    assert (verdict.state, verdict.rate, verdict.may_send) == ("running", None, None)


def test_what_is_in_flight_is_bounded():
    look = Look({"rate": 50, "in_flight": 100})
    assert look(send=70).may_send == 100
    assert look(ok=20, send=10).may_send == 120


def test_nothing_is_held_when_all_is_sent():
    look = Look(jobs=10)
    look(send=10)
    assert look(failed=10, group=1).state == "canary"
