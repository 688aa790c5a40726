"""People change groups, one or many, and take it back; the engine says what brought a group back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.groups import group_changes
from jobs_admin.ingest import lost_jobs
from jobs_admin.models import AuditEvent, Group
from jobs_admin.models.access import Viewer
from tests.kit.failures import bury
from tests.kit.groups import group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
OTTO = Viewer("otto", {"shop": "operator"})
ANN = Viewer("ann", {"*": "admin"})


def some(n: int, **changes) -> list[str]:
    names = []
    for i in range(n):
        where = group(f"Error{i}", **changes)
        bury(group=where)
        names.append(where.fingerprint)
    return names


def states() -> list[str]:
    return list(Group.objects.order_by("pk").values_list("state", flat=True))


def everything() -> list[dict]:
    return list(Group.objects.order_by("pk").values())


def test_a_group_reports_who_resolved_it_and_when():
    some(1)
    group_changes.change(OTTO, Group.objects.get(), {"state": "resolved"}, now=NOW)
    row = Group.objects.get()
    assert (row.state, row.state_by, row.state_since, row.resolved_at) == ("resolved", "otto", NOW, NOW)


def test_many_groups_are_changed_at_once_and_each_is_audited():
    names = some(250)
    done = group_changes.change_many(OTTO, names, {"state": "resolved"}, reason="fixed", now=NOW)
    assert set(states()) == {"resolved"} and sorted(done.fingerprints) == sorted(names)
    events = AuditEvent.objects.filter(act="group.change", allowed=True, source="shop", reason="fixed")
    assert events.count() == 250 and audit.verify() is None


@pytest.mark.parametrize("batch", [1, 3, 250])
def test_undo_gives_each_group_exactly_what_it_was(batch, django_user_model):
    django_user_model.objects.create_user("otto"), django_user_model.objects.create_user("vera")
    names = some(batch)
    group_changes.change_many(OTTO, names[:2], {"state": "muted", "muted_until": NOW + timedelta(days=1)}, now=NOW)
    group_changes.change_many(OTTO, names[-1:], {"assignee": "vera"}, now=NOW)
    Group.objects.filter(fingerprint=names[-1]).update(state="regressed", regressed_after="replay:12", state_since=NOW)
    before = everything()
    done = group_changes.change_many(
        OTTO, names, {"state": "resolved", "assignee": "otto"}, now=NOW + timedelta(hours=1)
    )
    assert everything() != before
    undone = group_changes.undo(OTTO, done.receipt)
    assert everything() == before and len(undone.fingerprints) == batch and not undone.changed_since


def test_what_was_changed_since_is_left_and_reported():
    names = some(3)
    done = group_changes.change_many(OTTO, names, {"state": "resolved"}, now=NOW)
    group_changes.change_many(ANN, names[:1], {"state": "muted"}, now=NOW)
    undone = group_changes.undo(OTTO, done.receipt)
    assert undone.changed_since == names[:1] and states() == ["muted", "new", "new"]


def test_undo_is_audited_and_done_once():
    names = some(2)
    done = group_changes.change_many(OTTO, names, {"state": "resolved"}, now=NOW)
    group_changes.undo(OTTO, done.receipt)
    assert AuditEvent.objects.filter(reason__startswith="Undone").count() == 2
    assert group_changes.undo(OTTO, done.receipt).fingerprints == []


def test_no_one_undoes_what_another_did():
    done = group_changes.change_many(ANN, some(1), {"state": "resolved"}, now=NOW)
    with pytest.raises(Refused, match="Nothing left to undo"):
        group_changes.undo(OTTO, done.receipt)
    assert states() == ["resolved"]


@pytest.mark.parametrize("receipt", ["", "1", "x-y", "1-2,", "-", "1-2;drop", "9" * 40])
def test_a_receipt_that_is_none_is_refused(receipt):
    with pytest.raises(Refused):
        group_changes.undo(OTTO, receipt)


def test_groups_of_a_source_where_one_is_not_operator_are_left_out_and_reported():
    names = some(2)
    bury(group=Group.objects.get(fingerprint=names[0]), source="bank")
    done = group_changes.change_many(OTTO, names, {"state": "resolved"}, now=NOW)
    assert (done.fingerprints, done.refused) == ([names[1]], [names[0]])
    assert AuditEvent.objects.get(allowed=False).source == "bank"


def test_groups_out_of_sight_are_as_if_they_were_not_there():
    where = group("Hidden")
    bury(group=where, source="bank")
    done = group_changes.change_many(OTTO, [where.fingerprint, *some(1)], {"state": "resolved"}, now=NOW)
    assert (done.missing, done.refused, len(done.fingerprints)) == (1, [], 1)


def test_a_viewer_changes_nothing_and_the_try_is_written_down():
    vera = Viewer("vera", {"shop": "viewer"})
    with pytest.raises(Refused) as refused:
        group_changes.change_many(vera, some(2), {"state": "resolved"})
    assert refused.value.code == "forbidden" and states() == ["new", "new"]
    assert AuditEvent.objects.filter(allowed=False).count() == 2


def test_a_read_only_desk_changes_no_group(settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    for act in (
        lambda: group_changes.change_many(ANN, some(1), {"state": "resolved"}),
        lambda: group_changes.undo(ANN, "1-2"),
    ):
        with pytest.raises(Refused, match="read-only"):
            act()


def test_more_than_a_thousand_at_once_are_refused():
    with pytest.raises(Refused) as refused:
        group_changes.change_many(OTTO, [f"v1-{n}" for n in range(1_001)], {"state": "resolved"})
    assert refused.value.code == "too_many"


def test_what_is_so_already_is_not_written_again():
    names = some(2)
    group_changes.change_many(OTTO, names[:1], {"state": "resolved"}, now=NOW)
    done = group_changes.change_many(ANN, names, {"state": "resolved"}, now=NOW + timedelta(hours=1))
    assert (done.unchanged, done.fingerprints) == (1, names[1:])
    assert Group.objects.get(fingerprint=names[0]).state_by == "otto"


def test_a_mute_counts_from_each_groups_own_count_and_ends_with_the_last_of_them():
    names = some(2)
    Group.objects.filter(fingerprint=names[0]).update(count=100)
    group_changes.change_many(OTTO, names, {"state": "muted", "muted_until_count": 10}, now=NOW)
    assert list(Group.objects.order_by("pk").values_list("muted_until_count", flat=True)) == [110, 10]
    Group.objects.filter(fingerprint=names[0]).update(count=109)
    assert lost_jobs.end_mutes(NOW) == 0
    Group.objects.filter(fingerprint=names[0]).update(count=110)
    assert lost_jobs.end_mutes(NOW) == 1
    row = Group.objects.get(fingerprint=names[0])
    assert (row.state, row.mute_ended, row.state_since) == ("ongoing", "count", NOW)
    event = AuditEvent.objects.latest("pk")
    assert (event.object, event.reason) == (f"group:{row.name}", "The mute limit was reached.")
    assert (event.before["state_by"], event.before["muted_until_count"]) == ("otto", 110)


@pytest.mark.parametrize("count", [0, -1, 10**10, True, 1.5, "7"])
def test_a_mute_until_no_number_is_refused(count):
    some(1)
    with pytest.raises(Refused) as refused:
        group_changes.change(OTTO, Group.objects.get(), {"state": "muted", "muted_until_count": count}, now=NOW)
    assert refused.value.field == "muted_until_count" and states() == ["new"]


def test_a_note_is_stored_without_what_no_database_holds():
    some(1)
    group_changes.change(OTTO, Group.objects.get(), {"note": "a\0b"}, now=NOW)
    assert Group.objects.get().note == "a␀b"
