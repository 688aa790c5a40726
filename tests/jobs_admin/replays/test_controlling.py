"""The effect of the controller's decision on a row, on a source in memory and with time that is passed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.core import pacing
from jobs_admin.core.refused import Refused
from jobs_admin.models import Attempt, AuditEvent, DepthSample, Replay
from jobs_admin.replays import acts, claiming, controlling, observation, setting_aside
from tests.kit.people import ANN
from tests.kit.replays import CAREFUL, START, Steered, counts, dated_group, died_of
from tests.kit.replays import start_replay as started

pytestmark = pytest.mark.django_db


@pytest.fixture
def steered(shop, bury):
    return Steered(bury(200))


def test_a_canary_goes_first_and_then_the_rest_faster_and_faster(steered):
    assert (steered.replay.state, steered.replay.may_send, steered.replay.rate) == ("canary", 10, 5)
    steered.come_home(steered.send(10), "success")
    assert steered.passed().may_send == 30
    steered.come_home(steered.send(20), "success")
    steered.passed()
    steered.come_home(steered.send(20), "success")
    replay = steered.passed()
    assert replay.state == "ramping" and replay.state_since == steered.now
    before = replay.rate
    for _ in range(5):
        steered.come_home(steered.send(10), "success")
        steered.passed()
    assert steered.replay.rate > before and steered.replay.may_send > 100


def test_a_canary_that_fails_is_held_with_the_evidence(shop, bury):
    known, new = dated_group("a"), dated_group("b", first_seen=START + timedelta(seconds=1))
    steered = Steered(died_of(bury(200), known))
    items = steered.send(10)
    steered.come_home(items[:4], "success")
    steered.come_home(items[4:9], "retry", group=known)
    steered.come_home(items[9:], "exception", group=new)
    replay = steered.passed()
    assert replay.state == "held" and replay.may_send == 10
    assert replay.held_because == (
        "6 of 10 canary jobs failed again, 5 of them with TimeoutError at shop/pay.py in charge. "
        "This replay stops when clearly more than 30 % fail again."
    )
    evidence = replay.evidence
    assert (evidence["kind"], evidence["failed"], evidence["judged"], evidence["others"]) == ("canary", 6, 10, 0)
    assert [(g["fingerprint"], g["count"], g["same"], g["is_new"]) for g in evidence["groups"]] == [
        ("v1-a", 5, 5, False),
        ("v1-b", 1, 0, True),
    ]
    event = AuditEvent.objects.get(act="replay.hold")
    assert (event.actor, event.source, event.reason) == ("controller", "shop", replay.held_because)
    assert not replays.send("one")
    assert replay.current_hold_reason == replay.held_because
    steered.come_home(items[4:6], "success", attempt=2)
    replay = steered.passed()
    assert (
        replay.current_hold_reason
        == f"{replay.held_because} Now, of 10 sent, 6 succeeded and 1 failed again; 3 not settled."
    )


def test_what_a_person_did_meanwhile_wins(steered):
    items = steered.send(10)
    steered.come_home(items, "exception")
    replay = Replay.objects.get(pk=steered.replay.pk)
    replays.pause(ANN, Replay.objects.get(pk=replay.pk))
    controlling._control_replay(replay, steered.now + timedelta(seconds=1))
    assert Replay.objects.get(pk=replay.pk).state == "paused"
    assert not AuditEvent.objects.filter(act="replay.hold").exists()


def test_a_replay_that_cannot_be_judged_stops_no_other(shop, bury):
    broken, other = Steered(bury(30)), Steered(bury(30))
    Replay.objects.filter(pk=broken.replay.pk).update(pace={"style": "junk"})
    before = other.replay.controller["n"]
    with pytest.raises(controlling.CannotJudge, match=f"replay #{broken.replay.pk} cannot be judged: Refused"):
        replays.settle(START + timedelta(seconds=2))
    other.replay.refresh_from_db()
    assert other.replay.controller["n"] > before


@pytest.mark.parametrize("state", ["running", "held"])
@pytest.mark.parametrize(
    "known",
    [[], {"n": "x"}, {"n": 1, "core": []}, {"n": 1, "core": {"at": "x", "cap": "x", "bad": []}}, {"n": 1, "phases": 5},
     {"n": 1, "phases": [["junk", "held"], 5]}, {"n": 1, "until": "junk"}, {"n": 1, "left_out": {"groups": 5}}],
)  # fmt: skip
def test_what_a_controller_knew_in_another_shape_is_as_if_it_were_not_known(shop, bury, known, state):
    steered = Steered(bury(30))
    Replay.objects.update(state=state, controller=known)
    steered.replay.refresh_from_db()
    assert controlling.learned_limit(steered.replay) is None and controlling.phases(steered.replay) == ()
    if state == "held":
        replays.resume(ANN, steered.replay)
        steered.now = timezone.now()
    before = Replay.objects.get().controller
    steered.passed(2)
    assert steered.passed(2).controller != before and "at" in steered.replay.controller["core"]


# What the version before groups were judged stored of a replay that it had slowed down twice, and of one that it held.
_BY_AN_OLDER_VERSION = {
    "state": "running", "at": 0.0, "since": 0.0, "sent": 60, "base": 0, "home": 60, "climbs": True, "well": 52,
    "failed": 8, "quiet_s": 0.0, "workerless_s": 0.0, "lag_s": 0.5, "cap": None, "cap_of": None,
    "outcomes": [[9, [[1, False, True, 1]]], [43, []], [0, [[3, False, True, 2], [1, False, True, 5]]]],
    "steering": {
        "rate": 5.0, "changed_at": 0.0, "down_at": 0.0, "fresh": 7, "well": 0.0, "failed": 7.0, "elapsed_s": 2.5,
        "usual": 0.45, "downs": 2, "share": 1.0, "before": 19.7, "ceiling": 5.0, "climbing_s": 82.5,
        "usual_runtime": -1.2, "runtime": 0.0, "runtime_squares": 0.0, "runtimes": 0,
    },
    "held_for": None,
}  # fmt: skip
_CANARY_EVIDENCE = {"kind": "canary", "failed": 6, "judged": 6, "limit": 0.2, "bound": 0.61, "group": 1, "in_group": 3}


@pytest.mark.parametrize("state", ["running", "held"])
def test_a_replay_that_an_older_version_steered_goes_on(shop, bury, state):
    steered = Steered(bury(300))
    times = dict.fromkeys(("at", "since"), steered.now.timestamp())
    core = _BY_AN_OLDER_VERSION | times | {"state": state, "held_for": _CANARY_EVIDENCE if state == "held" else None}
    core["steering"] |= {"changed_at": times["at"], "down_at": times["at"]}
    steered.come_home(steered.send(60), "success")
    Replay.objects.update(state=state, controller={"n": 7, "until": None, "core": core, "left_out": None})
    if state == "held":
        replays.resume(ANN, steered.replay)
        steered.now = timezone.now()
    for _ in range(20):
        steered.come_home(steered.send(10), "success")
        steered.passed()
    assert steered.replay.state in ("running", "ramping") and steered.replay.rate > 5
    assert steered.replay.controller["n"] > 20


def test_of_two_that_check_once_one_writes(steered):
    items = steered.send(10)
    steered.come_home(items, "success")
    replays.settle(steered.now + timedelta(seconds=0.1))
    one, two = (Replay.objects.get(pk=steered.replay.pk) for _ in range(2))
    later = steered.now + timedelta(seconds=2)
    assert controlling._control_replay(one, later) and not controlling._control_replay(two, later)
    steered.replay.refresh_from_db()
    assert steered.replay.may_send == 30 and steered.replay.controller["core"]["groups"][0] == [[None, 10, 0, False]]


def test_a_changed_pace_is_not_overwritten_by_a_check_that_began_before(steered):
    replay = Replay.objects.get(pk=steered.replay.pk)
    changed = replays.change_pace(ANN, Replay.objects.get(pk=replay.pk), {"style": "at_once"})
    assert (changed.state, changed.rate, changed.may_send) == ("running", None, None)
    assert not controlling._control_replay(replay, steered.now + timedelta(seconds=2))
    replay.refresh_from_db()
    assert (replay.rate, replay.may_send, replay.controller) == (None, None, changed.controller)


def test_resumed_it_begins_low_and_what_was_sent_before_is_no_evidence(shop, bury):
    steered = Steered(bury(200))
    early = steered.send(10)
    steered.come_home(early[:8], "exception")
    assert steered.passed().state == "held"
    before = timezone.now()
    replay = replays.resume(ANN, steered.replay)
    assert (replay.state, replay.held_because, replay.evidence, replay.may_send) == ("canary", "", None, 15)
    steered.now = max(steered.now, before) + timedelta(seconds=1)
    steered.come_home(early[8:], "exception")
    steered.come_home(steered.send(5), "success")
    assert steered.passed().state == "canary" and steered.replay.may_send == 25


def test_resumed_by_a_process_whose_clock_is_ahead_of_the_senders_it_still_judges(shop, bury):
    steered = Steered(bury(200), now=timezone.now() - timedelta(minutes=1))
    early = steered.send(10)
    steered.come_home(early[:8], "exception")
    assert steered.passed().state == "held"
    assert replays.resume(ANN, steered.replay).may_send == 15  # by a clock that is a minute ahead
    steered.now += timedelta(seconds=1)
    steered.come_home(early[8:], "exception")  # sent before: no evidence
    steered.come_home(steered.send(5), "success")
    assert (steered.passed().state, steered.replay.may_send) == ("canary", 25)


def test_paused_and_resumed_it_goes_on_where_it_was(steered):
    for count in (10, 20, 20, 10, 10, 10):
        steered.come_home(steered.send(count), "success")
        steered.passed()
    rate = steered.replay.rate
    assert steered.replay.state == "ramping" and rate > 5
    assert replays.pause(ANN, steered.replay).state == "paused"
    steered.passed(1)
    replay = replays.resume(ANN, steered.replay)
    assert (replay.state, replay.controller["core"]["groups"][0]) == (
        "ramping",
        [[None, 80, 0, False]],
    ) and replay.rate >= rate


def test_a_group_that_fails_again_is_set_aside_alone_and_the_rest_goes(shop, bury):
    bad, good = dated_group("bad"), dated_group("good")
    ids = died_of(bury(40), bad) + died_of(bury(40), good)
    steered = Steered(ids)
    items = steered.send(10)
    steered.come_home(items, "exception", group=bad)
    replay = steered.passed()
    assert (replay.state, replay.without_groups, replay.may_send) == ("canary", [bad.pk], 20)
    assert {item.failure for item in claiming.find_planned(replay, 0, 80)} == set(ids[40:])
    (aside,) = replays.groups_aside(ANN, replay)
    assert (aside.group, aside.phase, aside.by, aside.jobs) == (bad, "run", "controller", 30)
    assert (
        aside.reason == "10 of 10 jobs of this group failed with the same error: set aside, the other groups continue."
    )
    event = AuditEvent.objects.get(act="replay.set_aside")
    assert (event.actor, event.after) == ("controller", {"without_groups": [bad.pk]})
    replay = steered.passed()
    assert counts(replay) == {"planned": 40, "cancelled": 30, "failed_again": 10}
    assert replay.items.filter(state="cancelled").values_list("outcome", flat=True).distinct().get() == (
        "Set aside with its group: the replay continues without it."
    )
    assert set(replay.items.filter(state="planned").values_list("failure__group", flat=True)) == {good.pk}
    Replay.objects.update(rate=500)
    for _ in range(10):
        replays.send("one")
    assert counts(replay)["sent"] == 10  # as many as it may, whatever was set aside


def test_a_group_set_aside_is_brought_back_by_one_act(shop, bury):
    bad, good = dated_group("bad"), dated_group("good")
    steered = Steered(died_of(bury(700), bad) + died_of(bury(40), good))
    steered.come_home(steered.send(10), "exception", group=bad)
    for _ in range(3):
        steered.passed()
    assert counts(steered.replay) == {"planned": 40, "cancelled": 690, "failed_again": 10}
    elsewhere = steered.replay.items.filter(state="cancelled").last()
    other = started([elsewhere.failure_id])  # its jobs are free meanwhile
    replay = replays.bring_back(ANN, steered.replay, ["v1-bad"], reason="its partner is back")
    assert (replay.without_groups, replay.set_aside) == ([], [])
    steered.passed()
    assert counts(steered.replay) == {"planned": 40 + 689, "cancelled": 1, "failed_again": 10}
    assert other.items.get().state == "planned"
    # What is known of it is forgotten: it is judged anew.
    assert steered.passed().without_groups == []
    assert AuditEvent.objects.get(act="replay.bring_back").reason == "its partner is back"
    with pytest.raises(Refused, match="Only groups set aside during the replay"):
        replays.bring_back(ANN, replay, ["v1-good"])


def test_a_group_brought_back_while_its_jobs_are_being_cancelled_is_planned_again(shop, bury, monkeypatch):
    """The look that cancels them is refused: an operator acted meanwhile. It was the only one that knew of them."""
    bad, good = dated_group("bad"), dated_group("good")
    steered = Steered(died_of(bury(700), bad) + died_of(bury(40), good))
    steered.come_home(steered.send(10), "exception", group=bad)
    assert steered.passed().without_groups == [bad.pk]
    real = setting_aside.apply

    def carry_out(replay, done, now):
        answer = real(replay, done, now)
        monkeypatch.undo()
        replays.bring_back(ANN, replay, ["v1-bad"], reason="its partner is back")
        return answer

    monkeypatch.setattr(setting_aside, "apply", carry_out)
    steered.passed()
    assert steered.passed().without_groups == []
    assert counts(steered.replay) == {"planned": 730, "failed_again": 10}


def test_a_pace_that_judges_sets_a_failing_group_aside_from_the_start(shop, bury):
    bad, good = dated_group("bad"), dated_group("good")
    steered = Steered(died_of(bury(40), bad) + died_of(bury(40), good), {"style": "at_once", "in_flight": 80})
    items = steered.send(70)
    steered.come_home(items[:10], "exception", group=bad)
    steered.come_home(items[40:], "success")
    assert steered.passed().without_groups == []
    replay = replays.change_pace(ANN, steered.replay, CAREFUL, reason="slower")
    assert replay.without_groups == [bad.pk]
    assert [one.code for one in replays.groups_aside(ANN, replay)] == ["failed_again"]
    event = AuditEvent.objects.get(act="replay.set_aside")
    assert (event.actor, event.after) == ("controller", {"without_groups": [bad.pk]})
    assert steered.passed().without_groups == [bad.pk]


def test_a_group_that_an_operator_excluded_is_not_brought_back_by_an_outage(shop, bury):
    """Unlike one that the controller set aside just before all others began to fail."""
    first, second, third = dated_group("first"), dated_group("second"), dated_group("third")
    steered = Steered([pk for one in (first, second, third) for pk in died_of(bury(20), one)])
    steered.come_home(steered.send(4), "exception", group=first)
    steered.passed()
    replays.pause(ANN, steered.replay)
    replays.resume(ANN, steered.replay, without_groups=["v1-first"], reason="its partner is gone for good")
    steered.now = timezone.now()
    steered.passed()
    assert counts(steered.replay) == {"planned": 40, "cancelled": 16, "failed_again": 4}
    steered.come_home(steered.send(30), "exception", group=second)
    for _ in range(3):
        steered.passed()
    assert steered.replay.state == "held" and first.pk in steered.replay.without_groups


def test_resumed_without_several_groups_their_jobs_are_left_out(shop, bury):
    groups = [dated_group("one"), dated_group("two"), dated_group("good")]
    steered = Steered([pk for one in groups for pk in died_of(bury(20), one)])
    replays.pause(ANN, steered.replay)
    replay = replays.resume(ANN, steered.replay, without_groups=["v1-one", "v1-two"])
    assert replay.may_send == 0 and [one.code for one in replays.groups_aside(ANN, replay)] == ["asked", "asked"]
    steered.now = timezone.now()
    assert counts(steered.passed()) == {"planned": 20, "cancelled": 40}


def test_resumed_without_the_jobs_of_a_search_the_rest_of_their_group_goes(shop, bury):
    """The curable half of a mixed group is not cancelled; jobs that are not created yet are left out too."""
    mixed = dated_group("mixed")
    ids = died_of(bury(600, tenant="acme"), mixed) + died_of(bury(600, tenant="globex"), mixed)
    assert len(ids) == 1200
    replay = replays.launch(ANN, query="queue:emails", reason="back", pace={"style": "careful"})
    replays.pause(ANN, replay)
    assert replay.frozen.exists()
    with pytest.raises(Refused, match="No unsent job of this replay matches"):
        replays.resume(ANN, replay, without="tenant:initech")
    replay.refresh_from_db()
    assert replay.state == "paused"
    replay = replays.resume(ANN, replay, without="tenant:acme", reason="acme is gone")
    while replays.create_items():
        pass
    replay.refresh_from_db()
    assert counts(replay)["planned"] == 600 and (replay.planned, replay.cancelled) == (600, 600)
    assert set(replay.items.filter(state="planned").values_list("failure__tenant", flat=True)) == {"globex"}
    assert AuditEvent.objects.get(act="replay.resume").after["left_out"] == 600


def test_jobs_excluded_by_a_search_stay_planned_if_the_act_is_not_audited(shop, bury):
    bury(600, tenant="acme")
    bury(600, tenant="globex")
    replay = replays.launch(ANN, query="queue:emails", reason="back", pace={"style": "careful"})
    replays.pause(ANN, replay)
    frozen = sum(batch.count for batch in replay.frozen.all())

    def lose_the_database(execute, sql, *rest):
        if sql.startswith("INSERT") and AuditEvent._meta.db_table in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *rest)

    with connection.execute_wrapper(lose_the_database), pytest.raises(OperationalError):
        replays.resume(ANN, replay, without="tenant:acme")
    replay.refresh_from_db()
    assert (replay.state, replay.planned, replay.cancelled) == ("paused", 1200, 0)
    assert (
        replay.items.filter(state="planned").count() == 1200 - frozen
        and sum(batch.count for batch in replay.frozen.all()) == frozen
    )
    assert frozen


def test_what_is_created_later_of_a_group_that_is_left_out_is_left_out_too(shop, bury):
    bad = dated_group("bad")
    ids = died_of(bury(6), bad)
    steered = Steered(ids)
    claimed = steered.replay.items.get(n=3)
    steered.replay.items.filter(pk=claimed.pk).update(claimed_at=START)
    Replay.objects.update(without_groups=[bad.pk])
    steered.passed()
    assert counts(steered.replay) == {"planned": 1, "cancelled": 5}
    steered.replay.items.filter(pk=claimed.pk).update(claimed_at=None)  # its sender could not send it
    steered.passed()
    assert counts(steered.replay) == {"cancelled": 6} and steered.replay.state == "done"


def sample(now, guarded_workers, queue="emails"):
    DepthSample.objects.create(source="shop", queue=queue, at=now, waiting=7, guarded_workers=guarded_workers)


def test_it_is_held_when_the_workers_vanish_and_reports_since_when(steered):
    steered.come_home(steered.send(10), "success")
    sample(steered.now, 2)
    steered.passed()
    steered.send(5)
    for _ in range(10):
        sample(steered.now, 0)
        steered.passed(4)
    assert steered.replay.state == "held" and steered.replay.evidence["kind"] == "workers_gone"
    assert steered.replay.held_because == (
        "No live worker has taken jobs from emails since 02:00 UTC, and 5 jobs are sent and not settled."
    )
    assert steered.replay.evidence["queues"] == [["shop", "emails"]]


def test_a_watch_that_does_not_sample_is_no_worker_that_vanished(steered):
    sample(steered.now, 2)
    steered.passed()
    steered.send(5)
    for _ in range(20):
        steered.passed(4)
    assert steered.replay.state == "canary"


def test_new_errors_hold_it_before_as_many_known_ones_would_whatever_the_workers_clocks_report(shop, bury):
    known = dated_group("known", first_seen=START + timedelta(minutes=9))
    new = dated_group("new", first_seen=START - timedelta(minutes=9))
    ids = died_of(bury(60), known)
    Attempt.objects.filter(group=known).update(received_at=START - timedelta(minutes=1))
    for group_, state in ((known, "running"), (new, "held")):
        steered = Steered(ids[:20] if group_ is known else ids[20:], {"rate": 50, "stop": {"failed": 0.5}})
        items = steered.send(20)
        steered.come_home(items[:10], "exception", group=group_)
        steered.come_home(items[10:], "success")
        Replay.objects.filter(pk=steered.replay.pk).update(total=60, planned=40)
        assert steered.passed().state == state
    assert steered.replay.evidence["kind"] == "new_groups" and steered.replay.evidence["groups"][0]["is_new"]
    assert steered.replay.held_because == (
        "10 of the last 20 jobs failed in a way not seen before with TimeoutError at shop/pay.py in charge."
    )


def test_a_queue_that_does_not_drain_holds_it(shop, bury):
    steered = Steered(bury(50), {"rate": 50, "in_flight": 20})
    steered.send(20)
    for _ in range(61):
        sample(steered.now, 2)  # workers live, and take nothing
        steered.passed(5)
    assert steered.replay.state == "held" and steered.replay.evidence["kind"] == "not_draining"
    assert "20" in steered.replay.held_because


def test_silence_holds_it(steered):
    steered.send(10)
    for _ in range(70):
        steered.passed(5)
    assert steered.replay.state == "held"
    assert steered.replay.held_because == "10 jobs were sent and no outcome was reported for 5 min."


@pytest.mark.parametrize("now", [START, START + timedelta(hours=12)])
def test_it_waits_for_its_time_window_and_goes_on_in_it(shop, bury, now):
    window = {"from": f"{now:%H}:10", "to": f"{now:%H}:20"}
    steered = Steered(bury(5), {"style": "steady", "rate": 50, "window": window}, now)
    replay = steered.passed()
    assert replay.state == "waiting"
    assert replay.held_because == f"Outside its time window: continues automatically on 21 Nov {now:%H}:10 UTC."
    assert not replays.send("one")
    assert steered.passed(600).state == "running" and steered.replay.held_because == ""
    assert steered.passed(600).state == "waiting"


def test_failures_hold_a_steady_replay_too_when_it_is_beyond_doubt(shop, bury):
    steered = Steered(bury(50), {"style": "steady", "rate": 50, "stop": {"failed": 0.3}})
    one, two = steered.send(2)
    steered.come_home([one], "success"), steered.come_home([two], "exception")
    assert steered.passed().state == "running"
    steered.come_home(steered.send(8), "exception")
    assert steered.passed().state == "held"
    assert steered.replay.held_because.startswith("9 of the last 10 jobs failed again")


def test_a_replay_at_once_is_not_judged(shop, bury):
    steered = Steered(bury(50), {"style": "at_once"})
    steered.come_home(steered.send(50), "exception")
    assert steered.passed().state == "done" and steered.replay.failed_again == 50


def test_a_held_replay_with_nothing_left_is_done(steered):
    Replay.objects.update(state="held", planned=0, cancelled=200)
    assert steered.passed().state == "done"
    event = AuditEvent.objects.get(act="replay.done")
    assert (event.actor, event.before) == ("controller", {"state": "held"})


def test_a_source_that_cannot_report_ends_jobs_as_sent(shop, bury, monkeypatch):
    monkeypatch.setattr(shop, "can", type(shop.can)(atomic_send=True, edit=True, outcomes=False), raising=False)
    steered = Steered(bury(3), {"style": "steady", "rate": 50})
    steered.send(2)
    assert steered.passed(4_000).state == "running" and counts(steered.replay) == {"planned": 1, "sent": 2}
    steered.send(1)
    assert steered.passed(4_000).state == "done" and counts(steered.replay) == {"sent": 3}


@pytest.mark.parametrize(
    "pace, field",
    [
        ({"style": "careful"}, "pace"),
        ({"rate": 5, "canary": {}}, "pace.canary"),
        ({"rate": 5, "ramp": {"from": 1}}, "pace.ramp"),
        ({"rate": 5, "in_flight": 5}, "pace.in_flight"),
        ({"rate": 5, "per_key": {"key": "tenant", "concurrency": 1}}, "pace.per_key.concurrency"),
    ],
)
def test_a_source_that_cannot_report_has_no_pace_that_waits_for_news(shop, bury, monkeypatch, pace, field):
    monkeypatch.setattr(shop, "can", type(shop.can)(atomic_send=True, edit=True), raising=False)
    ids = bury(101)
    usual = replays.draft(ANN, selection=ids, reason="fixed")  # not careful, as so many are elsewhere
    assert usual.pace["style"] == "steady" and replays.preview(ANN, selection=ids).unreported == ["shop"]
    changed = replays.draft(ANN, selection=ids, reason="fixed")
    Replay.objects.filter(pk=changed.pk).update(pace=pacing.parse(pace, 101).as_dict())  # before it reported none
    changed.refresh_from_db()
    running = replays.start(ANN, replays.draft(ANN, selection=bury(1)))
    for act in (
        lambda: replays.preview(ANN, selection=bury(1), pace=pace),
        lambda: replays.start(ANN, changed),
        lambda: replays.change_pace(ANN, usual, pace),
        lambda: replays.change_pace(ANN, running, pace),
    ):
        with pytest.raises(Refused, match="shop does not report how its jobs end") as refused:
            act()
        assert (refused.value.code, refused.value.field) == ("bad_pace", field)


def test_first_attempts_are_reported_once_and_none_is_missed(steered, monkeypatch):
    monkeypatch.setattr(observation, "_AT_ONCE", 7)
    steered.come_home(steered.send(5), "success")
    replays.settle(steered.now)
    steered.come_home(steered.send(5), "success")
    replays.settle(steered.now)
    attempts, until = observation.read_first_attempts(steered.replay, None)
    rest, end = observation.read_first_attempts(steered.replay, until)
    assert (len(attempts), len(rest)) == (5, 5) and observation.read_first_attempts(steered.replay, end) == ([], end)


def test_a_group_of_which_all_ran_well_is_offered_for_resolving(shop, bury):
    cured, half, resolved = dated_group("cured"), dated_group("half"), dated_group("resolved", state="resolved")
    ids = [died_of(bury(2), one) for one in (cured, half, resolved)]
    died_of(bury(1), half)
    dated_group("other")
    steered = Steered([pk for mine in ids for pk in mine], {"style": "at_once"})
    steered.come_home(steered.send(6), "success")
    replay = steered.passed()
    assert replay.state == "done" and replays.cured_groups(ANN, replay) == [cured]


def test_jobs_excluded_by_a_search_are_cancelled_a_part_at_a_time_each_with_its_audit(shop, bury, monkeypatch):
    """One transaction of 25,000 jobs held up all other writers for 0.6 s."""
    monkeypatch.setattr(setting_aside, "_CUT", 100)
    bury(250, tenant="acme")
    bury(5, tenant="globex")
    replay = replays.launch(ANN, query="queue:emails", reason="back", pace={"style": "careful"})
    while replays.create_items():
        pass
    replays.pause(ANN, replay)
    monkeypatch.setattr(acts, "_EXCLUDING_S", -1)
    with pytest.raises(Refused, match=r"^100 jobs are excluded, and more match") as refused:
        replays.resume(ANN, replay, without="tenant:acme")
    replay.refresh_from_db()
    assert refused.value.code == "changed" and (replay.state, replay.cancelled) == ("paused", 100)
    monkeypatch.setattr(acts, "_EXCLUDING_S", 60)
    replay = replays.resume(ANN, replay, without="tenant:acme")
    assert replay.state == "canary" and (replay.planned, replay.cancelled) == (5, 250)
    events = AuditEvent.objects.filter(act="replay.exclude").order_by("pk").values_list("after", flat=True)
    assert [row["left_out"] for row in events] == [100, 100, 50]


def test_a_replay_sets_no_more_groups_aside_than_its_row_holds(shop, bury, monkeypatch):
    monkeypatch.setattr(setting_aside, "MOST_ASIDE", 1)
    ids = [pk for name in ("one", "two", "three") for pk in died_of(bury(5), dated_group(name))]
    steered = Steered(ids)
    replays.pause(ANN, steered.replay)
    with pytest.raises(Refused, match=r"sets at most 1 groups aside\. Nothing was changed\."):
        replays.resume(ANN, steered.replay, without_groups=["v1-one", "v1-two"])
    assert replays.resume(ANN, steered.replay, without_groups=["v1-one"]).planned == 15
