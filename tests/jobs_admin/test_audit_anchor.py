"""The end of the audit, kept outside of the database: what is cut off there is noticed, and a restored backup explained."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from jobs_admin.core import keys
from jobs_admin.db import audit, audit_anchor
from jobs_admin.models import AuditEvent, DepthSample
from jobs_admin.models.access import ENGINE

pytestmark = pytest.mark.django_db


def act(n: int = 1) -> list[AuditEvent]:
    with transaction.atomic():
        return [audit.record(ENGINE, "failure.discard", f"failure:{i}") for i in range(n)]


def age(seconds: float) -> None:
    """As if all so far had been written so long ago: the chain is made anew."""
    rows, previous = list(AuditEvent.objects.order_by("id")), "0" * 64
    for row in rows:
        row.at -= timedelta(seconds=seconds)
        row.mac = previous = audit._mac(previous, row)
        row.save()


@pytest.fixture
def anchored(store):
    """Three old entries and two of now, the last of them anchored."""
    act(3)
    age(600)
    late = act(2)
    assert audit_anchor.advance()
    return late


def cut(rows) -> None:
    AuditEvent.objects.filter(pk__in=[row.pk for row in rows]).delete()


def texts() -> str:
    return " ".join(text for text, _ in audit_anchor.findings())


def test_a_whole_chain_is_whole_and_grows_with_the_anchor(anchored):
    assert audit_anchor.findings() == []
    act(2)
    assert audit_anchor.findings() == [] and audit_anchor.advance() and not audit_anchor.advance()
    assert audit_anchor.read() == audit_anchor.head()


@pytest.mark.parametrize("rows", [1, 2])
def test_the_latest_entries_removed_are_noticed_though_the_chain_holds(anchored, rows):
    cut(anchored[-rows:])
    assert audit.verify() is None
    assert f"but entry {anchored[-1].pk} of" in texts() and "is missing or was replaced" in texts()


def test_all_entries_removed_are_noticed(anchored):
    AuditEvent.objects.all().delete()
    assert "The audit is empty" in texts()


def test_entries_written_after_a_cut_do_not_hide_it_also_under_the_same_numbers(anchored):
    cut(anchored)
    rows = act(2)
    for row, old in zip(rows, anchored, strict=True):
        AuditEvent.objects.filter(pk=row.pk).update(id=old.pk)
    assert audit.verify() is None and "is missing or was replaced" in texts()
    assert not audit_anchor.advance() and "is missing or was replaced" in texts()


def test_a_cut_beside_other_records_is_told_from_a_restored_backup(anchored):
    cut(anchored)
    assert "as after a restored backup" in texts()
    DepthSample.objects.create(source="shop", queue="q", at=anchored[-1].at - timedelta(seconds=60), waiting=1)
    assert "entries were removed only from the audit" in texts()


def test_a_gap_of_seconds_accuses_nobody(store):
    late = act(3)
    audit_anchor.advance()
    cut(late[-1:])
    assert "A restored backup or a power cut has the same effect." in texts()


def test_a_restored_backup_is_accepted_with_a_reason_that_stays(anchored):
    cut(anchored)
    with pytest.raises(CommandError, match="State why"):
        call_command("audit", "accept", "--reason", " ")
    with pytest.raises(SystemExit):
        call_command("audit", "verify", stdout=StringIO())
    call_command("audit", "accept", "--reason", "backup of noon restored", stdout=StringIO())
    said = StringIO()
    call_command("audit", "verify", stdout=said)
    last = AuditEvent.objects.latest("id")
    assert f"The chain is intact up to entry {last.pk}, MAC {last.mac}." in said.getvalue()
    assert (last.act, last.reason, last.before["id"]) == ("audit.accept", "backup of noon restored", anchored[-1].pk)


@pytest.mark.parametrize("forge", ["id", "signature", "junk", "list"])
def test_an_anchor_that_this_desk_did_not_write_is_said_and_left_alone(anchored, store, forge):
    told = json.loads(store.get(keys.audit_head()))
    first = AuditEvent.objects.earliest("id")
    forged = {
        "id": json.dumps(told | {"id": first.pk, "mac": first.mac}),
        "signature": json.dumps(told | {"signature": "0" * 64}),
        "junk": "{",
        "list": "[1]",
    }[forge]
    store.set(keys.audit_head(), forged)
    assert "was written by another desk" in texts()
    assert not audit_anchor.advance() and "was written by another desk" in texts()


def test_an_anchor_that_is_gone_is_made_anew_and_the_log_says_so(anchored, store, caplog):
    store.delete(keys.audit_head())
    assert audit_anchor.findings() == []
    with caplog.at_level(logging.WARNING):
        audit_anchor.advance()
    assert "had no anchor of the audit" in caplog.text and audit_anchor.read() == audit_anchor.head()


def test_watch_writes_the_head_into_its_log(store, caplog, monkeypatch):
    monkeypatch.setattr(audit_anchor, "_Logged", type("_Logged", (), {"at": float("-inf"), "id": 0}))
    (row,) = act()
    with caplog.at_level(logging.INFO):
        audit_anchor.step()
        audit_anchor.step()
    assert caplog.text.count("Audit head: entry") == 1 and row.mac in caplog.text
