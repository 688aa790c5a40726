"""A group that a replay excludes is merged, split, or given back."""

from __future__ import annotations

import importlib
from datetime import timedelta

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import F
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.core.fingerprint import NO_RULES
from jobs_admin.core.refused import Refused
from jobs_admin.groups import group_rules, regrouping
from jobs_admin.models import Failure, Group, GroupRule, Replay
from jobs_admin.models.access import ADMIN, Viewer
from jobs_admin.replays import acts, claiming, controlling, freezing, rights, setting_aside
from jobs_admin.replays.options import Options
from tests.kit.people import ANN
from tests.kit.replays import START, Steered, died_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh")]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    """Moving a group's failures takes many transactions."""
    monkeypatch.setattr(regrouping, "_FEWEST", 1)
    monkeypatch.setattr(regrouping, "_MOST", 7)
    regrouping._paces.clear()


def regrouped(slices=500):
    GroupRule.objects.update(since=timezone.now() - timedelta(hours=1))
    for _ in range(slices):
        if not regrouping.regroup(timezone.now()):
            return


def merge(target, *others):
    return group_rules.save(ANN, "merge", groups=[one.fingerprint for one in (target, *others)])


def dead_of(bury, error_type, count):
    """`count` dead jobs, and the group that such failures have."""
    ids = bury(count, error_type=error_type, message="no")
    made = group_rules.printed(Failure.objects.get(pk=ids[0]), NO_RULES)
    at = START - timedelta(days=1)
    values = {"error_type": error_type, "message": made.title_message, "first_seen": at, "last_seen": at}
    found, _ = Group.objects.get_or_create(fingerprint=made.value, defaults=values)
    return found, died_of(ids, found)


def going():
    """The failures that the sender may send next."""
    return {one.failure for one in claiming.find_planned(Replay.objects.get(), 0, 500)}


def aside():
    return [(one.group, one.jobs) for one in replays.groups_aside(ANN, Replay.objects.get())]


@pytest.fixture
def steered(shop, bury):
    """A careful replay of 60 jobs of the group `bad`, set aside by the controller, 40 of `good`, which succeed, and 5 others."""
    (bad, of_bad), (good, of_good) = dead_of(bury, "Bad", 5), dead_of(bury, "Good", 5)
    of_bad, of_good = of_bad + dead_of(bury, "Bad", 55)[1], of_good + dead_of(bury, "Good", 35)[1]
    others = set(dead_of(bury, "Other", 5)[1])
    steered = Steered([*of_bad, *of_good, *others])
    steered.bad, steered.good, steered.of_bad, steered.of_good, steered.others = bad, good, of_bad, of_good, others
    for item in steered.send(10):
        is_bad = item.failure.group_id == bad.pk
        steered.come_home([item], "exception" if is_bad else "success", **({"group": bad} if is_bad else {}))
    steered.passed(), steered.passed()
    assert aside() == [(bad, 55)] and going() == {*of_good[5:], *others}
    return steered


def test_the_group_that_takes_in_a_group_set_aside_takes_its_place_and_is_brought_back(steered):
    reason = steered.replay.set_aside[0]["reason"]
    merge(steered.good, steered.bad)
    assert going() == steered.others, "no job of it goes from the moment of the merge"
    regrouped()
    steered.passed()
    assert aside() == [(steered.good, 90)] and steered.replay.cancelled == 90
    set_aside = [(row["group"], row["reason"], row["by"]) for row in steered.replay.set_aside]
    assert set_aside == [(steered.good.pk, reason, "controller")]
    replays.bring_back(ANN, steered.replay, [steered.bad.fingerprint])
    steered.passed()
    assert not aside() and len(going()) == 95


def test_no_job_of_a_group_set_aside_goes_while_its_failures_are_moved(steered):
    merge(steered.good, steered.bad)
    while regrouping.regroup(timezone.now()):
        assert going() == steered.others and [one for one, _ in aside()] == [steered.good], (
            "never by the name that it has meanwhile"
        )
    assert not Group.objects.filter(pk=steered.bad.pk).exists()


def test_a_group_that_a_group_set_aside_takes_in_is_set_aside_with_it_and_free(steered):
    merge(steered.bad, steered.good)
    regrouped()
    steered.passed()
    assert aside() == [(steered.bad, 90)]
    assert (steered.replay.planned, going()) == (5, steered.others), "nothing stays planned that never goes"


def test_both_are_brought_back_while_the_one_is_still_being_taken_in(steered):
    merge(steered.good, steered.bad)
    regrouped(3)
    replays.bring_back(ANN, steered.replay, [steered.good.fingerprint])
    regrouped()
    steered.passed()
    assert not aside() and len(going()) == 95


@pytest.mark.parametrize("slices", [0, 3, 500])
def test_after_a_merge_that_is_withdrawn_the_group_is_set_aside_still(steered, slices):
    rule = merge(steered.good, steered.bad)
    regrouped(slices)
    group_rules.withdraw(ANN, rule)
    regrouped()
    steered.passed()
    names = [one.fingerprint for one, _ in aside()]
    assert steered.bad.fingerprint in names and going().isdisjoint(steered.of_bad)
    replays.bring_back(ANN, steered.replay, names)
    steered.passed()
    assert not aside() and len(going()) == 95


def test_what_an_operator_excluded_stays_so_in_a_merged_group(steered):
    """The controller brings back in an outage what it set aside, and nothing else."""
    Replay.objects.update(state="held")
    replays.resume(ANN, Replay.objects.get(), without_groups=[steered.good.fingerprint])
    merge(steered.bad, steered.good)
    notes = {row["group"]: row["by"] for row in Replay.objects.get().set_aside}
    assert notes == {steered.bad.pk: "ann", steered.good.pk: "ann"}


def test_the_parts_of_a_group_set_aside_are_set_aside_and_each_is_brought_back(steered):
    Failure.objects.filter(pk__in=steered.of_bad[30:]).update(task="shop.other")
    rule = group_rules.save(ANN, "split", groups=[steered.bad.fingerprint], by="task")
    while regrouping.regroup(timezone.now() + timedelta(minutes=1)):
        assert going() == {*steered.of_good[5:], *steered.others}
    steered.passed()
    parts = dict(Failure.objects.filter(pk__in=steered.of_bad).values_list("task", "group__fingerprint"))
    assert {one.fingerprint: jobs for one, jobs in aside()} == {parts["shop.send"]: 25, parts["shop.other"]: 30}
    replays.bring_back(ANN, steered.replay, [parts["shop.other"]])
    assert going() == {*steered.of_good[5:], *steered.of_bad[30:], *steered.others}
    group_rules.withdraw(ANN, rule)
    regrouped()
    steered.passed()
    assert aside() == [(steered.bad, 55)], "of two of which one is excluded the whole is"


# -- excluded in the draft ------------------------------------------------------------------------------------------


@pytest.fixture
def draft(shop, bury):
    """A draft without the group `bad`: 10 jobs of `good`."""
    bad, _ = dead_of(bury, "Bad", 6)
    good, of_good = dead_of(bury, "Good", 10)
    options = Options.parse({"without_groups": [bad.fingerprint]})
    draft = replays.draft(ANN, query="queue:emails", reason="x", options=options, pace={"style": "at_once"})
    draft.bad, draft.good, draft.of_good = bad, good, of_good
    return draft


@pytest.mark.parametrize("is_target", [True, False])
def test_what_is_seen_is_what_runs_also_where_an_excluded_group_is_merged_after_the_start(draft, is_target):
    replays.start(ANN, draft)
    groups = (draft.bad, draft.good) if is_target else (draft.good, draft.bad)
    merge(*groups)
    regrouped()
    assert going() == set(draft.of_good)
    (aside,) = replays.groups_aside(ANN, Replay.objects.get())
    assert (aside.phase, aside.jobs, aside.group) == ("start", 6, groups[0])


def test_a_draft_excludes_the_group_that_takes_in_one_that_it_excluded(draft):
    merge(draft.good, draft.bad)
    draft = Replay.objects.get()
    with pytest.raises(Refused) as refused:
        replays.start(ANN, draft)
    assert refused.value.code == "nothing_to_replay"


def test_jobs_on_their_way_into_an_excluded_group_when_the_replay_starts_are_sent(shop, bury):
    good, _ = dead_of(bury, "Good", 6)
    bad, of_bad = dead_of(bury, "Bad", 10)
    merge(good, bad)
    on_their_way = set(Failure.objects.filter(pk__in=of_bad, group=bad).values_list("pk", flat=True))
    assert len(on_their_way) > 1
    draft = replays.draft(
        ANN, selection=on_their_way, reason="x", pace={"style": "at_once"}, options=Options(without_groups=())
    )
    replays.start(ANN, draft)
    # As the start itself excludes a group that fails still: the one that takes in, and not the one that it takes in.
    note = setting_aside.build_note(good.pk, "start", "still_failing", "still failing", "ann", timezone.now())
    Replay.objects.update(without_groups=[good.pk], set_aside=[note])
    regrouped()
    assert going() == on_their_way, "a job that the start counted does not wait for ever"


def test_a_group_that_is_excluded_and_brought_back_at_once_is_sent(shop, bury):
    """No outcome steers a replay that sends at once: its controller looks because a limit stands that only a look lifts."""
    bad, of_bad = dead_of(bury, "Bad", 10)
    replay = replays.start(
        ANN,
        replays.draft(
            ANN, query="queue:emails", reason="x", pace={"style": "at_once"}, options=Options(without_groups=())
        ),
    )
    replays.pause(ANN, replay, "wait")
    replays.resume(ANN, Replay.objects.get(), "go on", without_groups=[bad.fingerprint])
    assert Replay.objects.get().may_send == 0
    replays.bring_back(ANN, Replay.objects.get(), [bad.fingerprint])
    controlling.control(timezone.now() + timedelta(minutes=1))
    assert (Replay.objects.get().may_send, going()) == (None, set(of_bad))


def test_all_jobs_of_a_group_that_is_brought_back_are_planned_also_where_no_outcome_steers(shop, bury, monkeypatch):
    bad, of_bad = dead_of(bury, "Bad", 10)
    options = Options(without_groups=())
    draft = replays.draft(ANN, query="queue:emails", reason="x", pace={"style": "at_once"}, options=options)
    replays.pause(ANN, replays.start(ANN, draft), "wait")
    replays.resume(ANN, Replay.objects.get(), "go on", without_groups=[bad.fingerprint])
    controlling.control(timezone.now() + timedelta(minutes=1))
    assert Replay.objects.get().cancelled == 10
    monkeypatch.setattr(acts, "_BROUGHT_BACK_AT_ONCE", 2)
    replays.bring_back(ANN, Replay.objects.get(), [bad.fingerprint])
    assert len(going()) == 2
    controlling.control(timezone.now() + timedelta(minutes=2))
    assert going() == set(of_bad)


# -- jobs that two replays have ---------------------------------------------------------------------------------------


def awaits_approval(ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(rights, "approval_reason", lambda *_: "large")
        return replays.start(ANN, replays.draft(ANN, selection=ids, reason="x", options=Options(without_groups=())))


def approved(replay):
    replay = replays.approve(Viewer("bob", {"*": ADMIN}), replay)
    freezing.create_first_items(replay)
    replay.refresh_from_db()
    return replay


def test_a_job_that_was_brought_back_and_failed_again_is_not_sent_by_a_replay_started_before_that(steered, monkeypatch):
    ids = steered.of_bad[5:15]
    other = awaits_approval(ids, monkeypatch)
    replays.bring_back(ANN, steered.replay, [steered.bad.fingerprint])
    mine = list(steered.replay.items.filter(state="planned", failure__in=ids))
    steered.replay.items.filter(pk__in=[item.pk for item in mine]).update(state="sent", sent_at=steered.now)
    Replay.objects.filter(pk=steered.replay.pk).update(sent=F("sent") + 10, planned=F("planned") - 10)
    steered.come_home(mine, "exception", group=steered.bad)
    replays.settle(steered.now)
    other = approved(other)
    assert (other.planned, other.taken) == (0, 10)


def test_a_job_that_was_taken_back_unrun_is_sent_by_the_replay_that_had_it_frozen(shop, bury, monkeypatch):
    ids = bury(3)
    other = awaits_approval(ids, monkeypatch)
    quick = replays.start(ANN, replays.draft(ANN, selection=ids, reason="y"))
    replays.cancel(ANN, quick)
    quick.items.update(sent_at=timezone.now(), outcome="withdrawn from its queue before it ran")
    other = approved(other)
    assert (other.planned, other.taken) == (3, 0)


def test_the_migration_of_a_replay_that_awaits_approval_knows_what_was_sent_since(shop, bury, monkeypatch):
    ids = bury(10)
    other = awaits_approval(ids, monkeypatch)
    quick = replays.start(ANN, replays.draft(ANN, selection=ids, reason="y"))
    quick.items.update(state="failed_again", sent_at=timezone.now())
    Failure.objects.filter(pk__in=ids).update(state="dead", run=2)
    importlib.import_module("jobs_admin.migrations.0020_highest_item").fill(apps, connection.schema_editor())
    other.refresh_from_db()
    other = approved(other)
    assert (other.planned, other.taken) == (0, 10)
