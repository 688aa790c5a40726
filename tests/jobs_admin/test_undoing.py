from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.db import audit
from jobs_admin.failures import triage
from jobs_admin.failures.undoing import Done, Undoable, latest, undoable_by_event
from jobs_admin.groups import group_changes, group_rules
from jobs_admin.models import Alert, AuditEvent, Failure, Group
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from tests.kit.alerts import episode
from tests.kit.searching import bury, make_group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture
def otto():
    user = get_user_model().objects.create_user("otto")
    return Viewer("otto", {EVERY_SOURCE: "operator"}, user_id=user.pk)


def dead(n):
    return [failure.pk for failure in bury(n)]


def test_the_latest_act_is_found_again_and_then_the_one_before_it(otto):
    one, two = dead(1), dead(3)
    triage.act_on(otto, "discard", one, reason="a")
    triage.act_on(otto, "discard", two, reason="b")
    found = latest(otto)
    assert (found.count, found.reason, found.act) == (3, "b", "failure.discard")
    triage.undo(otto, found.handle)
    found = latest(otto)
    assert (found.count, found.reason) == (1, "a")
    triage.undo(otto, found.handle)
    assert latest(otto) is None and Failure.objects.filter(state="dead").count() == 4


def test_a_sweep_over_many_steps_is_one_act(otto, monkeypatch):
    monkeypatch.setattr(triage, "_AT_ONCE", 10)
    dead(35)
    triage.discard(otto, query="queue:emails", reason="old")
    found = latest(otto)
    assert found.count == 35 and len(undoable_by_event(otto, AuditEvent.objects.all())) == 4
    assert triage.undo(otto, found.handle).count == 35


def test_a_change_of_many_groups_is_one_act_and_two_changes_are_two(otto, monkeypatch):
    monkeypatch.setattr(group_changes, "PER_TRANSACTION", 10)
    names = [make_group(str(n)).fingerprint for n in range(25)]
    for group in Group.objects.all():
        bury(group=group)
    group_changes.change_many(otto, names, {"state": "resolved"}, reason="fixed")
    group_changes.change_many(otto, names[:3], {"note": "see runbook"})
    found = latest(otto)
    assert found.count == 3 and found.is_of_groups
    group_changes.undo(otto, found.handle)
    found = latest(otto)
    assert found.count == 25
    assert len(group_changes.undo(otto, found.handle).fingerprints) == 25 and latest(otto) is None


def test_what_a_person_changed_since_is_no_longer_offered(otto):
    ids = dead(2)
    triage.act_on(otto, "discard", ids, reason="x")
    triage.act_on(Viewer("ann", {EVERY_SOURCE: "operator"}), "restore", ids)
    assert isinstance(latest(otto), Done) and undoable_by_event(otto, AuditEvent.objects.all()) == {}


def test_an_act_of_another_person_or_that_was_refused_or_without_a_right_is_not_mine_to_take_back(otto):
    ids = dead(2)
    triage.act_on(Viewer("ann", {EVERY_SOURCE: "operator"}), "discard", ids, reason="x")
    with transaction.atomic():
        audit.record(otto, "failure.discard", "failures:1", source="shop", allowed=False)
    assert latest(otto) is None
    triage.act_on(otto, "restore", ids)
    assert latest(otto).count == 2
    assert isinstance(latest(Viewer("otto", {"shop": "viewer"}, user_id=otto.user_id)), Done)


def test_a_desk_that_is_read_only_offers_nothing(otto, settings):
    triage.act_on(otto, "discard", dead(1), reason="x")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert isinstance(latest(otto), Done)


def test_a_rule_is_the_latest_act_and_is_taken_back_before_what_was_done_earlier(otto):
    triage.act_on(otto, "discard", dead(1), reason="earlier")
    one, other = make_group("1"), make_group("2")
    for group in (one, other):
        bury(group=group)
    rule = group_rules.save(otto, "merge", groups=[one.fingerprint, other.fingerprint])
    found = latest(otto)
    assert found.is_rule and found.handle == str(rule.pk) and found.summary.startswith("merge 1 group into")
    group_rules.withdraw(otto, rule)
    assert latest(otto).reason == "earlier"


@pytest.mark.parametrize("act", ["replay.start", "view.save", "role.change"])
def test_behind_an_act_that_cannot_be_taken_back_nothing_older_is_offered(otto, act):
    triage.act_on(otto, "discard", dead(1), reason="earlier")
    with transaction.atomic():
        audit.record(otto, act, "replay:7")
    assert latest(otto) == Done(act, "replay:7", AuditEvent.objects.latest("pk").at, "")
    assert len(undoable_by_event(otto, AuditEvent.objects.all())) == 1


def test_an_acknowledgement_is_an_act_until_it_is_undone_or_over(otto):
    triage.act_on(otto, "discard", dead(1), reason="earlier")
    leader = episode("emails")
    episode("sms", told_with=leader)
    for _ in range(2):
        alerts.acknowledge(otto, leader.pk, "looking")
        found = latest(otto)
        assert (found.is_of_alerts, found.handle, found.count, found.reason) == (True, str(leader.pk), 2, "looking")
        alerts.unacknowledge(otto, leader.pk)
        assert latest(otto).reason == "earlier"
    alerts.acknowledge(otto, leader.pk)
    Alert.objects.update(state="resolved", resolved_at=timezone.now())
    assert latest(otto).act == "alert.acknowledge" and isinstance(latest(otto), Done)


def test_what_changes_nothing_is_no_act(otto):
    triage.act_on(otto, "discard", dead(1), reason="earlier")
    with transaction.atomic():
        audit.record(otto, "failures.export", "failures")
    assert latest(otto).reason == "earlier"


@pytest.mark.parametrize("reason", ["undo of the deploy broke it", "undo of failures:0123456789abcdef", "undo:x"])
def test_a_reason_that_reads_like_an_undoing_is_still_an_act(otto, reason):
    triage.act_on(otto, "discard", dead(1), reason=reason)
    found = latest(otto)
    assert isinstance(found, Undoable) and found.reason == reason


def test_an_undoing_that_was_written_before_it_had_a_key_of_its_own_is_known(otto):
    done = triage.act_on(otto, "discard", dead(3), reason="x")
    with transaction.atomic():
        audit.record(otto, "failure.restore", "failures:0123456789abcdef", source="shop", reason=f"undo of {done.key}")
    assert latest(otto) is None
