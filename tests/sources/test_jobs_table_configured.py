"""The naming of a jobs table and written: what a configuration may say, and times in the form that they have there."""

from __future__ import annotations

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref, Rescheduled, SourceRefused
from jobs_admin.sources.jobs_table.names import read as names_of
from tests.kit.jobs_tables import OnSQLite


@pytest.mark.parametrize(
    ("kind", "written", "later"),
    [
        ("INTEGER", 1_795_000_000, 1_795_000_090),
        ("INTEGER", 1_795_000_000_000, 1_795_000_090_000),
        ("TEXT", "2026-11-18T11:06:40.000Z", "2026-11-18T11:08:10.000Z"),
        ("TEXT", "2026-11-18 11:06:40", "2026-11-18 11:08:10"),
    ],
)
def test_times_are_written_back_as_they_are_written_there(tmp_path, kind, written, later):
    table = OnSQLite.__new__(OnSQLite)
    table.create = OnSQLite.create.replace("_at TEXT", f"_at {kind}").replace("(datetime('now'))", repr(written))
    table.__init__(tmp_path / "shop.db")
    table.enqueue("a", max_attempts=9)
    table.execute("UPDATE jobs SET attempts = 1")
    source = connect("shop", "jobs_table", table.url)
    (report,) = source.dead_letters("").reports
    assert (report.at, report.due_at) == (1_795_000_000, 1_795_000_000)
    source.reschedule([Rescheduled(Ref("jobs", "a"), report.at + 90)])
    assert table.row("a", "scheduled_at") == later
    source.close(), table.close()


@pytest.mark.parametrize("options", [
    {"tabel": "jobs"}, {"table": ""}, {"table": "a.b.c"}, {"columns": {"id": ""}}, {"columns": {"colour": "x"}},
    {"statuses": {"failed": "pending"}}, {"statuses": {"others": "x"}}, {"columns": []}, {"statuses": 3}, {"stale_after_s": 0},
    {"discard_deletes": "yes"}, {"columns": {"status": "a\0"}}, {"ledger": "jobs"}, {"table": "shop.jobs", "ledger": "JOBS"},
])  # fmt: skip
def test_options_that_cannot_be_used_are_refused_by_name(options):
    with pytest.raises(SourceRefused, match="Source shop"):
        names_of("shop", options)


@pytest.mark.parametrize("url", ["sqlite://shop.db", "mysql://x", "postgresql://[bad", "sqlite:///"])
def test_an_address_that_cannot_be_used_is_refused(url):
    with pytest.raises(SourceRefused, match="Source shop"):
        connect("shop", "jobs_table", url)
