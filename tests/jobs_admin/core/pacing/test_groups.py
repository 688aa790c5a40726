"""Groups that fail again by themselves are set aside; what fails in all groups holds."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from jobs_admin.core.pacing import Controller, Judged, Seen, parse, settled
from jobs_admin.core.pacing.groups import MOST_ASIDE, Groups, false_alarm_rate


class Mixed:
    """A replay of jobs that died of several groups, played second by second; what a group does, a function of time says.

    `jobs`: the group of each job, in the order of sending. `fails`: group -> the share that fails at a time. Jobs that
    fail are back after half a second, jobs that succeed after `takes_s`.
    """

    def __init__(self, jobs, fails, pace=None, takes_s=2.0, seed=1):
        self.pace = settled(parse(pace or {"style": "careful"}), jobs=len(jobs), median_per_s=100)
        self.controller = Controller(self.pace, 0.0)
        self.planned, self.fails, self.takes_s, self.random = list(jobs), fails, takes_s, Random(seed)
        self.now, self.sent, self.home = 0.0, 0, 0
        self.out: list[Judged] = []
        self.succeeded: Counter = Counter()
        self.failed: Counter = Counter()
        self.set_aside: dict = {}
        self.verdict = self._assess([])

    def _assess(self, judged):
        aside = set(self.set_aside)
        seen = Seen(
            self.now,
            self.sent,
            self.sent - self.home,
            len(self.planned),
            judged,
            set_aside=aside,
            has_others=lambda groups: any(group not in groups for group in self.planned),
        )
        # Every look through JSON, as if the process before had been killed.
        self.controller = Controller.from_dict(self.pace, json.loads(json.dumps(self.controller.as_dict())))
        verdict = self.controller.assess(seen)
        for why in verdict.set_aside:
            self.set_aside[why.group] = why
            self.planned = [group for group in self.planned if group != why.group]
        for group in verdict.bring_back:
            del self.set_aside[group]
        return verdict

    def run(self, seconds=600):
        for _ in range(int(seconds * 2)):
            if self.verdict.state == "held" or not (self.planned or self.out):
                break
            self._send()
            self.now += 0.5
            came = [one for one in self.out if one.at <= self.now]
            self.out = [one for one in self.out if one.at > self.now]
            self.home += len(came)
            for one in came:
                (self.succeeded if one.ok else self.failed)[one.died_of] += 1
            self.verdict = self._assess(came)
        return self

    def _send(self):
        most = len(self.planned) if self.verdict.may_send is None else self.verdict.may_send - self.sent
        rate = self.verdict.rate or 1000
        for _ in range(max(0, min(most, int(rate / 2 + self.random.random()), len(self.planned)))):
            group = self.planned.pop(0)
            share = self.fails.get(group, lambda at: 0.0)
            ok = self.random.random() >= (share(self.now) if callable(share) else share)
            at = self.now + (self.takes_s if ok else 0.4)
            error = None if ok else group
            self.out.append(Judged(at, self.now, ok, error, is_same_group=not ok, died_of=group))
            self.sent += 1


def in_turns(counts):
    """Jobs of these groups, spread evenly over the whole: {group: how many}."""
    places = [((n + 0.5) / count, group) for group, count in counts.items() for n in range(count)]
    return [group for _, group in sorted(places)]


def test_permanent_groups_are_set_aside_one_by_one_and_the_curable_jobs_all_come_back():
    counts = {f"dead{n}": 40 for n in range(12)} | {f"curable{n}": 192 for n in range(5)}
    played = Mixed(in_turns(counts), {name: 1.0 for name in counts if name.startswith("dead")}).run()
    assert played.verdict.state != "held"
    assert set(played.set_aside) == {name for name in counts if name.startswith("dead")}
    assert sum(played.succeeded.values()) == 960
    # What each costs: the five that prove it, and what was under way meanwhile.
    assert max(played.failed.values()) <= 12


def test_what_holds_back_a_group_is_reported_with_its_numbers():
    played = Mixed(in_turns({"dead": 50, "curable": 150}), {"dead": 1.0}).run()
    why = played.set_aside["dead"]
    assert (why.kind, why.failed, why.group, why.is_same_group) == ("group", why.judged, "dead", True)
    assert why.bound > why.limit == 0.5 and not why.holds
    assert (
        why.sentence()
        == f"{why.failed} of {why.judged} jobs of this group failed with the same error: set aside, the other groups continue."
    )


def test_five_quick_failures_of_one_group_do_not_hold_a_canary_whose_other_jobs_are_still_running():
    played = Mixed(in_turns({"dead": 60, "curable": 60}), {"dead": 1.0}, takes_s=20).run()
    assert played.verdict.state != "held" and played.succeeded["curable"] == 60


@pytest.mark.parametrize("groups", [1, 2, 6, 17, 400])
def test_an_outage_holds_whatever_the_groups_and_sets_none_aside(groups):
    counts = {f"g{n}": 400 // groups for n in range(groups)}
    played = Mixed(in_turns(counts), dict.fromkeys(counts, 1.0)).run()
    assert (played.verdict.state, played.verdict.because.kind) == ("held", "canary")
    assert played.sent <= 17 and not played.set_aside


def test_an_outage_in_the_middle_holds_and_brings_back_the_group_that_it_began_with():
    jobs = ["first"] * 300 + ["second"] * 200 + ["third"] * 200
    down = {name: lambda at: float(at > 30) for name in ("second", "third")}
    played = Mixed(jobs, down | {"first": lambda at: float(at > 30)}).run()
    assert played.verdict.state == "held" and played.verdict.because.holds
    assert played.set_aside == {}


def test_a_group_that_is_all_there_is_holds_as_before():
    played = Mixed(["only"] * 200, {"only": 1.0}).run()
    assert played.verdict.state == "held" and not played.set_aside


@pytest.mark.parametrize("pace", [{"rate": 20}, {"style": "careful", "canary": {"jobs": 20}}])
def test_a_group_that_fails_when_all_others_are_sent_holds(pace):
    """The service of the last group may have gone down after the others succeeded: the group is not sent to its end for that."""
    played = Mixed(["first"] * 300 + ["last"] * 500, {"last": 1.0}, pace=pace).run()
    assert (played.verdict.state, played.verdict.because.kind) == ("held", "failing")
    assert played.succeeded["first"] > 250 and played.failed["last"] <= 60 and not played.set_aside


def test_a_canary_of_a_version_that_counted_no_groups_goes_on_from_its_numbers():
    played = Mixed(in_turns({"one": 300, "other": 300}), {}).run(seconds=5)
    older = played.controller.as_dict()
    counts = older.pop("groups")[0]
    assert older["state"] == "canary"
    older["well"], older["failed"] = sum(one[1] for one in counts), sum(one[2] for one in counts)
    assert 0 < older["well"] < played.pace.canary.jobs
    played.controller = Controller.from_dict(played.pace, older)
    assert sum(played.run().succeeded.values()) == 600


def test_a_replay_of_a_version_that_took_a_total_outage_for_usual_goes_on():
    played = Mixed(in_turns({"one": 300, "other": 300}), {"one": 0.05, "other": 0.05}).run(seconds=30)
    older = played.controller.as_dict()
    older["steering"]["usual"] = 1.0
    played.controller = Controller.from_dict(played.pace, older)
    played.run()
    assert played.verdict.state != "held" and sum(played.succeeded.values()) > 500


def test_what_is_remembered_is_bounded_where_each_of_45000_jobs_has_a_group_of_its_own():
    groups = Groups()
    for at in range(0, 45_000, 500):
        groups.add([Judged(at, at, n % 10 != 0, died_of=n) for n in range(at, at + 500)])
    assert len(json.dumps(groups.as_list())) < 30_000
    assert groups.succeeded == 40_500
    assert sum(one.judged for one in groups.counts.values()) == 45_000


def test_where_each_job_has_a_group_of_its_own_failures_still_hold():
    jobs = [f"g{n}" for n in range(1000)]
    played = Mixed(jobs, dict.fromkeys(jobs, 0.6)).run()
    assert played.verdict.state == "held"


def test_what_is_remembered_of_45000_groups_is_bounded():
    jobs = [f"g{n}" for n in range(45_000)]
    groups = Groups()
    failing = [Judged(1.0, 0.5, n % 10 > 0, None if n % 10 else job, died_of=job) for n, job in enumerate(jobs)]
    for start in range(0, len(failing), 500):
        groups.add(failing[start : start + 500])
        groups = Groups.from_list(json.loads(json.dumps(groups.as_list())))
    assert len(json.dumps(groups.as_list())) < 50_000
    assert groups.succeeded == 40_500 and groups.failed + groups.lost == 4_500


def test_a_large_group_among_thousands_of_small_ones_is_still_set_aside():
    small = [f"g{n}" for n in range(3_000)]
    jobs = small[:1_500] + in_turns({"dead": 200} | dict.fromkeys(small[1_500:], 1))
    played = Mixed(jobs, {"dead": 1.0}).run()
    assert set(played.set_aside) == {"dead"} and played.verdict.state != "held"
    assert sum(played.succeeded.values()) == 3_000


def test_a_group_that_fails_by_half_is_not_set_aside_lightly():
    """A group whose jobs are curable in part goes on until that is beyond doubt, and the others are not held for it."""
    played = Mixed(in_turns({"half": 60, "curable": 600}), {"half": 0.3}).run()
    assert played.verdict.state != "held" and not played.set_aside


def test_a_group_brought_back_is_judged_again():
    played = Mixed(in_turns({"dead": 60, "curable": 600}), {"dead": 1.0})
    played.run(seconds=20)
    assert "dead" in played.set_aside
    del played.set_aside["dead"]
    played.fails = {}
    played.planned = in_turns({"dead": 40, "curable": len(played.planned)})
    played.run()
    assert played.verdict.state != "held" and not played.set_aside and played.succeeded["dead"] == 40


def test_steady_sets_aside_too_and_at_once_never_does():
    jobs = in_turns({"dead": 100, "curable": 300})
    steady = Mixed(jobs, {"dead": 1.0}, pace={"rate": 20}).run()
    assert set(steady.set_aside) == {"dead"} and steady.succeeded["curable"] == 300
    at_once = Mixed(jobs, {"dead": 1.0}, pace={"style": "at_once"}).run()
    assert not at_once.set_aside and at_once.failed["dead"] == 100


def test_the_false_alarm_rate_is_what_the_page_reports():
    assert 1 / false_alarm_rate(0.05) == pytest.approx(3_160_000, rel=0.01)
    assert 1 / false_alarm_rate(0.1) == pytest.approx(95_500, rel=0.01)
    assert 1 / false_alarm_rate(0.2) == pytest.approx(2_616, rel=0.01)
    assert 1 / false_alarm_rate(0.3) == pytest.approx(271, rel=0.01)


def test_a_group_of_which_much_fails_from_the_start_is_no_evidence_while_clearly_less_of_the_others_fails():
    groups = Groups()
    half = [Judged(1.0, 0.5, n % 2 == 0, 7, died_of=7) for n in range(12)]
    others = [Judged(1.0, 0.5, True, n=40, died_of=1), Judged(1.0, 0.5, False, 1, n=2, died_of=1)]
    assert {one.died_of for one in groups.add([*others, *half])} == {1}
    groups = Groups.from_list(json.loads(json.dumps(groups.as_list())))
    assert groups.failed == 2 and not groups.to_set_aside(lambda groups: True)


def test_groups_that_fail_alike_are_all_evidence():
    groups = Groups()
    judged = [Judged(1.0, 0.5, n % 2 == 0, 7, died_of=group) for n in range(12) for group in (1, 2)]
    assert groups.add(judged) == judged


def test_no_more_groups_are_set_aside_than_a_row_holds():
    groups = Groups(aside={f"g{n}" for n in range(MOST_ASIDE)})
    groups.add([Judged(0, 0, True, died_of="well", n=50), Judged(0, 0, False, died_of="bad", n=10)])
    assert groups.to_set_aside(lambda _: True) == ()
    groups.aside.pop()
    assert [one.group for one in groups.to_set_aside(lambda _: True)] == ["bad"]
