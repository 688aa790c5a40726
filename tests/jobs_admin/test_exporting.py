from __future__ import annotations

import csv
import io
import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.utils import timezone

from jobs_admin.failures import exporting
from jobs_admin.models import Failure
from jobs_admin.models.access import VIEWER, Viewer
from tests.kit.failures import bury

pytestmark = pytest.mark.django_db

VERA = Viewer("vera", {"shop": VIEWER})
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)


def lines(text="", viewer=VERA):
    return [json.loads(line) for line in b"".join(exporting.stream(viewer, text, "jsonl")).decode().splitlines()]


def cells(text="", viewer=VERA):
    *rows, end = csv.DictReader(io.StringIO(b"".join(exporting.stream(viewer, text, "csv")).decode(), newline=""))
    assert (end["id"], end["source"], end["state"]) == ("end", str(len(rows)), "")
    return rows


def test_every_failure_that_matches_is_a_line_and_the_end_is_reported():
    bury(3)
    bury(2, queue="emails")
    *rows, end = lines("queue:webhooks")
    assert [row["queue"] for row in rows] == ["webhooks"] * 3 and list(rows[0]) == list(exporting.DEFAULT_COLUMNS)
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    assert end == {"end": True, "failures": 3}


def test_the_page_about_search_lists_the_columns():
    page = (Path(__file__).resolve().parents[2] / "docs/search.md").read_text()
    assert page.partition("at the end: `")[2].partition("`")[0].split() == list(exporting.COLUMNS)


def test_both_forms_report_the_same():
    bury(2, args='[1, "é"]', kwargs='{"a": null}', tenant="A, B", message='say "hi"\r\nand go')
    rows, read = lines()[:-1], cells()
    for row, cell in zip(rows, read, strict=True):
        for name in ("id", "message", "tenant", "state", "failed_at", "attempts"):
            assert str(row[name]) == cell[name], name
        assert row["args"] == json.loads(cell["args"]) == [1, "é"]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_every_time_of_a_failure_can_become_a_column(form):
    bury(failed_at=AT, expires_at=AT)
    written = b"".join(exporting.stream(VERA, "", form, columns=("id", "failed_at", "expires_at"))).decode()
    assert written.count("2026-01-02T03:04:05.678Z") == 2


def test_what_was_buried_while_it_runs_is_not_in_it_and_nothing_is_twice(monkeypatch):
    monkeypatch.setattr(exporting, "AT_ONCE", 10)
    bury(25)
    ids = []
    for piece in exporting.stream(VERA, "", "jsonl"):
        bury(1)
        ids += [row["id"] for row in map(json.loads, piece.decode().splitlines()) if "id" in row]
    assert len(ids) == len(set(ids)) == 25


def test_a_viewer_takes_out_only_what_it_may_see():
    bury(2)
    bury(3, source="bank")
    assert {row["source"] for row in lines()[:-1]} == {"shop"}
    assert lines(viewer=Viewer("nobody")) == [{"end": True, "failures": 0}]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "=cmd|' /C calc'!A0", "＝1"])
def test_no_cell_is_a_formula(text):
    bury(1, message=text, tenant=text, task=text, error_type=text, args=text)
    (row,) = cells()
    for name in ("message", "tenant", "task", "error_type", "args"):
        assert row[name] == f"'{text}", name


def test_arguments_that_are_cut_come_as_the_text_that_is_stored():
    bury(1, args='[1, "cut', kwargs="[NaN]")
    (row, _) = lines()
    assert (row["args"], row["kwargs"]) == ('[1, "cut', "[NaN]")


def test_an_empty_search_result_is_a_complete_file():
    assert lines("nothing is called this") == [{"end": True, "failures": 0}]
    assert cells("nothing is called this") == []


def test_eight_thousand_rows_are_streamed_in_little_memory():
    now = timezone.now()
    values = {"source": "shop", "queue": "q", "task": "t", "state": "dead", "kind": "exception", "message": "m" * 1000}
    values |= {"first_failed_at": now, "failed_at": now, "received_at": now, "args": json.dumps(["x" * 1000])}
    Failure.objects.bulk_create(
        (Failure(**values, first_job_id=f"k{n}", job_id=f"k{n}") for n in range(8_000)), batch_size=1000
    )
    stream, size, count = exporting.stream(VERA, "", "csv"), 0, 0
    next(stream)
    tracemalloc.start()
    for piece in stream:
        size, count = size + len(piece), count + piece.count(b"\r\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 8_001 and size > 16_000_000
    assert peak < 8_000_000


def test_an_export_is_written_down_with_what_it_requested():
    from jobs_admin.models import AuditEvent

    bury(2)
    exporting.note(VERA, "queue:webhooks", "csv")
    event = AuditEvent.objects.get()
    assert (event.act, event.after["query"], event.after["count"]) == ("failures.export", "queue:webhooks", 2)


def test_an_export_of_a_search_that_no_index_serves_reports_how_many_were_checked(monkeypatch):
    from jobs_admin.search import failure_search

    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 5)
    bury(8, message="xtimeoutx")
    *rows, end = lines("message:*me*")
    assert end == {"end": True, "failures": len(rows), "searched": 5} and len(rows) == 5
    assert b"".join(exporting.stream(VERA, "message:*me*", "csv")).splitlines()[-1].startswith(b"end,5,5,")


@pytest.mark.parametrize(
    ("form", "last"),
    [("jsonl", '{"end":false,"failures":10}'), ("csv", "cut,10" + "," * (len(exporting.DEFAULT_COLUMNS) - 2))],
)
def test_an_export_that_breaks_off_reports_it_in_its_last_line(monkeypatch, caplog, form, last):
    bury(25)
    batch, taken = exporting._batch, []

    def breaks(*which):
        if taken:
            raise OSError("the disk is gone")
        taken.append(1)
        return batch(*which)

    monkeypatch.setattr(exporting, "AT_ONCE", 10)
    monkeypatch.setattr(exporting, "_batch", breaks)
    text = b"".join(exporting.stream(VERA, "", form)).decode()
    assert text.splitlines()[-1] == last and "broke off after 10" in caplog.text
