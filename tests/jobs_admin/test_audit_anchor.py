"""The end of the audit, kept outside of the database: what is cut off there is noticed, and a restored backup explained."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.core import keys
from jobs_admin.db import audit, audit_anchor
from jobs_admin.desk import overview
from jobs_admin.models import Alert, AuditEvent, DepthSample, Notice
from jobs_admin.models.access import ENGINE
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db


def act(n: int = 1) -> list[AuditEvent]:
    with transaction.atomic():
        return [audit.record(ENGINE, "failure.discard", f"failure:{i}") for i in range(n)]


def age(seconds: float) -> None:
    """As if all so far had been written so long ago: the chain is built again."""
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
    return " ".join(one.text for one in audit_anchor.findings())


def test_a_complete_chain_is_complete_and_grows_with_the_anchor(anchored):
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


def test_a_cut_beside_other_records_is_distinguished_from_a_restored_backup(anchored):
    cut(anchored)
    assert "as after a restored backup" in texts()
    DepthSample.objects.create(source="shop", queue="q", at=anchored[-1].at - timedelta(seconds=60), waiting=1)
    assert "entries were removed only from the audit" in texts()


def test_a_gap_of_seconds_accuses_no_one(store):
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
    output = StringIO()
    call_command("audit", "verify", stdout=output)
    last = AuditEvent.objects.latest("id")
    assert f"The chain is intact up to entry {last.pk}, MAC {last.mac}." in output.getvalue()
    assert (last.act, last.reason, last.before["id"]) == ("audit.accept", "backup of noon restored", anchored[-1].pk)


@pytest.mark.parametrize("forge", ["id", "signature", "junk", "list"])
def test_an_anchor_that_this_desk_did_not_write_is_reported_and_left_alone(anchored, store, forge):
    anchor = json.loads(store.get(keys.audit_head()))
    first = AuditEvent.objects.earliest("id")
    forged = {
        "id": json.dumps(anchor | {"id": first.pk, "mac": first.mac}),
        "signature": json.dumps(anchor | {"signature": "0" * 64}),
        "junk": "{",
        "list": "[1]",
    }[forge]
    store.set(keys.audit_head(), forged)
    assert "was written by another desk" in texts()
    assert not audit_anchor.advance() and "was written by another desk" in texts()


def test_an_anchor_that_is_gone_is_made_again_and_the_log_reports_it(anchored, store, caplog):
    store.delete(keys.audit_head())
    assert audit_anchor.findings() == []
    with caplog.at_level(logging.WARNING):
        audit_anchor.advance()
    assert "had no anchor of the audit" in caplog.text and audit_anchor.read() == audit_anchor.head()


def test_watch_writes_the_head_into_its_log(store, caplog, monkeypatch):
    monkeypatch.setattr(audit_anchor, "_Logged", type("_Logged", (), {"at": float("-inf"), "id": 0, "finding": ""}))
    (row,) = act()
    with caplog.at_level(logging.INFO):
        audit_anchor.step()
        audit_anchor.step()
    assert caplog.text.count("Audit head: entry") == 1 and row.mac in caplog.text


def test_watch_logs_a_missing_end_as_an_error_once(anchored, caplog):
    cut(anchored)
    with caplog.at_level(logging.ERROR):
        audit_anchor.step()
        audit_anchor.step()
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert f"entry {anchored[-1].pk} of" in record.getMessage() and "audit accept" in record.getMessage()


def judge_for_a_minute(now) -> None:
    for seconds in range(0, 61, 5):
        alerts.judge(now + timedelta(seconds=seconds))


def test_a_cut_is_an_alert_within_a_minute_and_a_line_on_the_overview_until_it_is_accepted(anchored, first_rules):
    now = timezone.now()
    judge_for_a_minute(now)
    assert not Alert.objects.exists() and overview.findings(ANN) == []
    cut(anchored)
    judge_for_a_minute(now)
    alert = Alert.objects.exclude(fired_at=None).get()
    assert (alert.rule.name, alert.source, alert.subject) == ("No Progress", "", "audit")
    assert "the audit (its end cannot be verified) has made no progress for" in Notice.objects.get().body["message"]
    (finding,) = overview.findings(ANN)
    assert (finding["source"], finding["severity"]) == ("Audit", "high") and "is missing or was replaced" in finding[
        "text"
    ]
    call_command("audit", "accept", "--reason", "known", stdout=StringIO())
    for minute in (2, 3, 4):  # the rule resolves after two minutes without a break
        judge_for_a_minute(now + timedelta(minutes=minute))
    alert.refresh_from_db()
    assert alert.resolved_at is not None and overview.findings(ANN) == []


def test_an_anchor_that_this_desk_did_not_write_is_an_alert_within_a_minute(anchored, store, first_rules):
    store.set(keys.audit_head(), "{")
    judge_for_a_minute(timezone.now())
    assert Alert.objects.exclude(fired_at=None).get().subject == "audit"


def verified(*arguments) -> tuple[str, bool]:
    output, is_verified = StringIO(), True
    try:
        call_command("audit", "verify", *arguments, stdout=output)
    except SystemExit:
        is_verified = False
    return output.getvalue(), is_verified


def test_the_head_of_a_notice_shows_a_cut_also_where_the_anchor_was_removed(anchored, store, first_rules):
    store.hset(keys.steps(), "settle", json.dumps({"at": timezone.now().timestamp() - 600}))
    judge_for_a_minute(timezone.now())
    head = Notice.objects.get().body["audit_head"]
    assert head == f"{anchored[-1].pk}:{anchored[-1].mac[:16]}"
    output, is_verified = verified("--head", head)
    assert is_verified and f"Entry {anchored[-1].pk} matches the given head." in output
    cut(anchored)
    store.delete(keys.audit_head())
    assert verified()[1]
    output, is_verified = verified("--head", head)
    assert (
        not is_verified
        and f"but entry {anchored[-1].pk} with MAC {anchored[-1].mac[:16]}… is missing or was replaced" in output
    )
    AuditEvent.objects.all().delete()
    assert "The audit is empty, but entry" in verified("--head", head)[0]


def test_a_head_of_the_log_is_compared_too_and_another_text_is_refused(anchored):
    assert verified("--head", f"{anchored[0].pk}:{anchored[0].mac}")[1]
    assert not verified("--head", f"{anchored[0].pk}:{anchored[1].mac}")[1]
    for text in ("", "12", "12:", "12:abc", f"x:{'0' * 16}", f"{'9' * 30}:{'0' * 16}", f"1:{'0' * 65}"):
        with pytest.raises(CommandError, match="--head must be NUMBER:MAC"):
            verified("--head", text)
