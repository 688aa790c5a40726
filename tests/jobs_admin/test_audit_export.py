"""The audit as a file: every event that the viewer may read, once, oldest first, with a marked end."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from jobs_admin.db import audit, audit_export
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import AUDITOR, ENGINE, EVERY_SOURCE, OPERATOR, Viewer
from tests.kit.people import log_in

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
AUD = Viewer("aud", {EVERY_SOURCE: AUDITOR})


@transaction.atomic
def acted(n=1, act="replay.start", **fields):
    entry = audit.Entry(**{"object": "replay:12", "source": "shop", **fields})
    return audit.record_all(ENGINE, act, [entry] * n)


def lines(viewer=AUD, **chosen):
    return [json.loads(line) for line in b"".join(audit_export.stream(viewer, "jsonl", **chosen)).splitlines()]


def test_every_event_is_a_line_oldest_first_and_the_end_is_marked(monkeypatch):
    monkeypatch.setattr(audit_export, "_AT_ONCE", 10)
    made = acted(25, reason="ä <x>", before={"rate": 5}, after={"rate": 50.5, "ids": [1, 2]})
    *rows, end = lines()
    assert [row["id"] for row in rows] == [event.pk for event in made] and end == {"end": True, "events": 25}
    assert list(rows[0]) == list(audit_export.COLUMNS) and rows[0]["reason"] == "ä <x>"
    assert (rows[0]["before"], rows[0]["after"]) == ({"rate": 5}, {"rate": 50.5, "ids": [1, 2]})
    assert rows[-1]["mac"] == made[-1].mac and rows[0]["when"].endswith("Z")


def test_csv_has_the_same_and_no_formula():
    acted(reason='=HYPERLINK("x")', after={"rate": 50})
    acted(allowed=False, object="replay:13")
    text = b"".join(audit_export.stream(AUD, "csv")).decode()
    first, second, end = csv.DictReader(io.StringIO(text, newline=""))
    assert first["reason"] == '\'=HYPERLINK("x")' and json.loads(first["after"]) == {"rate": 50}
    assert (first["allowed"], second["allowed"], second["object"]) == ("true", "false", "replay:13")
    assert (end["id"], end["when"], end["mac"]) == ("end", "2", "")


def test_an_export_continues_after_an_id_and_takes_the_filters_of_the_page():
    old, new = acted()[0], acted()[0]
    acted(act="failure.discard", object="failure:7")
    assert [row["id"] for row in lines(after=old.pk, act="replay")[:-1]] == [new.pk]
    assert [row["object"] for row in lines(object="failure:7")[:-1]] == ["failure:7"]


def test_only_events_of_sources_whose_audit_may_be_read():
    acted(source="shop"), acted(source="bank"), acted(source="")
    assert [row["source"] for row in lines(Viewer("una", {"shop": AUDITOR}))[:-1]] == ["shop"]
    assert lines(Viewer("otto", {EVERY_SOURCE: OPERATOR})) == [{"end": True, "events": 0}]


def test_an_export_that_fails_ends_with_false_and_a_later_event_is_not_in_it(monkeypatch):
    monkeypatch.setattr(audit_export, "_AT_ONCE", 2)
    acted(4)
    pieces = audit_export.stream(AUD, "jsonl")
    assert next(pieces).count(b"\n") == 2
    acted()
    assert b"".join(pieces).count(b"\n") == 3  # two events, and the end
    pieces = audit_export.stream(AUD, "jsonl")
    next(pieces)
    monkeypatch.setattr(audit_export, "document", None)
    assert json.loads(b"".join(pieces)) == {"end": False, "events": 2}


def test_the_page_exports_what_it_shows_and_records_that(django_user_model):
    acted(), acted(act="failure.discard")
    client = log_in(django_user_model, "aud", every="auditor")
    page = client.get("/audit/", {"act": "replay"}).content.decode()
    assert 'action="/audit/export/jsonl/"' in page and 'type="hidden" name="act" value="replay">' in page
    answer = client.post("/audit/export/jsonl/", {"act": "replay", "object": ""})
    *rows, end = b"".join(answer.streaming_content).splitlines()
    assert len(rows) == 1 and json.loads(end)["end"] is True and ".jsonl" in answer["Content-Disposition"]
    event = AuditEvent.objects.latest("pk")
    assert (event.act, event.actor, event.after["act"], event.after["form"]) == (
        "audit.export",
        "aud",
        "replay",
        "jsonl",
    )
    # The button learns that the file has begun, and a NUL, which PostgreSQL takes in no text, finds nothing.
    assert "data-download" in page
    answer = client.post("/audit/export/csv/", {"act": "a\x00b", "download": "17"})
    assert answer.cookies["redrive-download"].value == "17"
    assert b"".join(answer.streaming_content).splitlines()[-1].startswith(b"end,0,")
    assert client.get("/audit/", {"act": "a\x00b"}).status_code == 200
    assert client.get("/audit/export/csv/").status_code == 405
    assert log_in(django_user_model, "otto", every="operator").post("/audit/export/csv/").status_code == 403


def test_the_command_prints_the_same(capsys):
    acted(2), acted(act="failure.discard")
    call_command("audit", "export", "--act", "replay")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines(act="replay")
    call_command("audit", "export", "--form", "csv", "--after", "999999")
    assert capsys.readouterr().out.splitlines()[0] == ",".join(audit_export.COLUMNS)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_command_fails_if_the_file_is_incomplete(form, capsys, monkeypatch):
    acted()
    monkeypatch.setattr(audit_export, "document", None)
    with pytest.raises(CommandError, match="The export stopped early, and the file is incomplete"):
        call_command("audit", "export", "--form", form)
    assert capsys.readouterr().out.splitlines()[-1].startswith(("cut,0", '{"end":false'))
