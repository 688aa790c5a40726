"""A jobs table that gives an id again: what we sent is the row that we sent, and no other of its id."""

from __future__ import annotations

import itertools

import pytest

from jobs_admin.core.envelope import Lineage
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, Ref
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request, tmp_path):
    if request.param == "sqlite":
        made = OnSQLite(tmp_path / "shop.db")
    else:
        made = OnPostgreSQL(request.getfixturevalue("server"), f"ids{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "jobs_table", table.url, (), {"discard_deletes": True})
    yield made
    made.close()


def is_sent(table, source):
    """A job of an hour ago that died, and was sent again."""
    table.die("7")
    table.execute(f"UPDATE jobs SET created_at = {table.ago(3600)}")
    pulled = source.dead_letters("")
    source.confirm_filed(pulled)
    (report,) = pulled.reports
    lineage = Lineage(queue="jobs", job_id="7", run=2, item=1, replay="r1", sent_as="7").as_header()
    source.send("r1", [OutgoingMessage(token=1, queue="jobs", job_id="7", raw=report.raw, lineage=lineage)])
    source.dead_letters(pulled.after)  # the ledger is new
    return Ref("jobs", "7", state="replaying", at=report.at), pulled.after


def test_the_end_of_another_job_is_not_that_of_the_one_that_was_sent(table, source):
    ref, after = is_sent(table, source)
    table.execute("DELETE FROM jobs")
    table.enqueue("7")
    table.complete("7")
    assert source.check_jobs([ref]).reports == []
    assert "another job has its id" in source.check_jobs([ref]).gone[ref]
    assert source.dead_letters(after).reports == []


def test_the_failure_of_another_job_is_its_own(table, source):
    _, after = is_sent(table, source)
    table.execute("DELETE FROM jobs")
    table.die("7", "OtherError: new")
    (report,) = source.dead_letters(after).reports
    assert report.lineage is None and report.error_type == "OtherError"


def test_the_end_of_the_very_row_comes_home(table, source):
    ref, _ = is_sent(table, source)
    table.complete("7")
    (report,) = source.check_jobs([ref]).reports
    assert report.kind == "success" and report.lineage.replay == "r1"
    assert not source.check_jobs([ref]).gone
