"""Evidence about a row of a jobs table, and what proves nothing: each sign alone, on a real SQLite file."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, Ref, Rescheduled, SourceError
from jobs_admin.sources.jobs_table.names import read as names_of
from jobs_admin.sources.jobs_table.reading import TableState
from jobs_admin.sources.jobs_table.rows import Job, outcome
from jobs_admin.sources.jobs_table.sql import TableIdentity
from tests.kit.jobs_tables import OnSQLite

FOUND = TableIdentity("file 7", (12, 40), is_sure=True)
BEFORE = TableState("file 7", (12, 40), "ledger 1", ("a", "b"))


@pytest.fixture
def table(tmp_path):
    made = OnSQLite(tmp_path / "shop.db")
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "jobs_table", table.url)
    yield made
    made.close()


def pulled(source, after=""):
    one = source.dead_letters(after)
    source.confirm_filed(one)
    assert not one.is_more
    return one.reports, one.after


def refs(reports, state="dead"):
    return [Ref(one.queue, one.job_id, state, one.at) for one in reports]


def test_a_secret_of_the_payload_is_hidden_where_the_error_repeats_it(table, source):
    table.die("a", "LoginError: ann/hunter2hunter2 was refused", payload={"password": "hunter2hunter2"})
    (report,), _ = pulled(source)
    assert report.message == "ann/[redacted] was refused" and "hunter2" not in report.kwargs + report.trace


@pytest.mark.parametrize(("found", "ledger", "known", "was_away"), [
    (replace(FOUND, place="file 8"), "ledger 1", ["a"], False),
    (replace(FOUND, tides=(11, 40)), "ledger 1", ["a"], False),
    (replace(FOUND, tides=(12, 39)), "ledger 1", ["a"], False),
    (FOUND, "ledger 2", ["a"], False),
    (FOUND, None, ["a"], False),
    (FOUND, "ledger 1", ["a"], True),
])  # fmt: skip
def test_each_sign_alone_reports_another_table(found, ledger, known, was_away):
    stand = TableState.now(found, ledger, known, ["a"], BEFORE, 1000.0, was_away=was_away)
    assert stand.since == 1000 and not stand.is_proof and stand.is_from_another_table(999) and not stand.proves(999)


def test_without_other_evidence_all_different_rows_mean_another_table():
    found, before = replace(FOUND, is_sure=False), replace(BEFORE, ledger=None)
    assert TableState.now(found, None, [], ["x"], before, 1000.0).since == 1000
    same = TableState.now(found, None, ["b"], ["x"], before, 1000.0)
    assert same.since == 0 and same.proves(999)
    emptied = TableState.now(found, None, [], [], before, 1000.0)
    assert emptied.since == 1000 and not emptied.proves(999)  # nothing is there to say which it is
    # What fails in the empty table is its own.
    filled = TableState.now(found, None, [], ["x"], emptied, 1010.0)
    assert filled.since == 1000 and not filled.proves(1005)
    assert TableState.now(found, None, ["x"], ["y"], filled, 1020.0).proves(1005)


def test_the_same_table_that_has_gone_on_proves_that_a_row_was_taken_out():
    stand = TableState.now(replace(FOUND, tides=(13, 41)), "ledger 1", [], ["x"], BEFORE, 1000.0)
    assert stand.since == 0 and stand.proves(999) and stand.proves(None)


def test_rows_of_an_older_copy_are_as_they_were_and_no_one_did_that(table, source):
    table.die("a"), table.die("b")
    reports, _ = pulled(source)
    table.lose()
    table.enqueue("a"), table.enqueue("b"), table.claim("b")
    assert source.check_jobs(refs(reports)).gone == {}


def test_a_status_that_no_one_knows_is_no_evidence(table, source):
    table.die("a")
    reports, _ = pulled(source)
    table.execute("UPDATE jobs SET status = 'zombie'")
    assert source.check_jobs(refs(reports)).gone == {}


def test_a_row_that_is_completed_without_an_attempt_left_did_not_run_well_by_itself(table, source):
    table.enqueue("a", max_attempts=2), table.enqueue("b", max_attempts=2)
    table.fail("a"), table.fail("b")
    reports, _ = pulled(source)
    table.execute("UPDATE jobs SET status = 'completed', attempts = 2 WHERE id = 'a'")
    table.complete("b")
    checked = source.check_jobs(refs(reports, "retrying"))
    assert [(one.job_id, one.kind) for one in checked.reports] == [("b", "success")]
    assert "a" in {ref.job_id for ref in checked.gone}


def test_a_row_that_is_completed_and_that_we_never_sent_reports_nothing():
    assert outcome(Job("a", "completed", 1, 3, 1000.0), names_of("shop", {}), 2000.0) == ""


def test_a_worker_that_left_its_lock_on_what_failed_finds_none_on_what_was_sent(table, source):
    table.die("a")
    (report,), _ = pulled(source)
    table.execute("UPDATE jobs SET locked_by = 'w1', locked_at = datetime('now')")
    lineage = {"queue": "jobs", "job_id": "a", "run": 2, "item": 1, "replay": "r", "sent_as": "a"}
    assert source.send("r", [OutgoingMessage(1, report.raw, "jobs", "a", lineage)]) == {1: "sent"}
    assert table.row("a", "status", "locked_by", "locked_at") == ("pending", None, None)


def test_a_row_that_a_person_made_new_meanwhile_is_no_retry_to_be_moved(table, source):
    table.enqueue("a", max_attempts=5), table.fail("a")
    pulled(source)
    table.execute("UPDATE jobs SET attempts = 0")
    due = table.row("a", "scheduled_at")
    assert source.reschedule([Rescheduled(Ref("jobs", "a"), time.time() + 5000, 9)]) == set()
    assert table.row("a", "scheduled_at", "max_attempts") == (due, 5)


@pytest.mark.parametrize("indexed", [True, False])
def test_what_was_written_earlier_and_is_seen_later_is_reported_and_a_time_far_ahead_hides_nothing(
    table, source, indexed
):
    if indexed:
        table.execute("CREATE INDEX by_time ON jobs (updated_at)")
        table.execute("CREATE INDEX by_status ON jobs (status)")
    table.die("a"), table.die("ahead")
    table.execute("UPDATE jobs SET updated_at = '2999-01-01 00:00:00' WHERE id = 'ahead'")
    reports, after = pulled(source)
    for _ in range(3):
        _, after = pulled(source, after)
    assert "a" in {one.job_id for one in reports}
    table.die("late")
    table.execute(f"UPDATE jobs SET updated_at = {table.ago(40)} WHERE id = 'late'")
    reports, after = pulled(source, after)
    assert [one.job_id for one in reports] == ["late"]
    table.die("next")
    assert [one.job_id for one in pulled(source, after)[0]] == ["next"]


def test_between_two_transactions_their_workers_have_the_lock_to_themselves(table, source):
    for n in range(150):
        table.die(f"j{n}")
    reports, _ = pulled(source)
    source.epoch("r")
    changing, times = source._db.changing, []

    @contextlib.contextmanager
    def timed_changing():
        times.append(time.monotonic())
        with changing() as run:
            yield run
        times.append(time.monotonic())

    source._db.changing = timed_changing
    lineage = {"queue": "jobs", "run": 2, "item": 1, "replay": "r"}
    messages = [
        OutgoingMessage(n, one.raw, "jobs", one.job_id, lineage | {"job_id": one.job_id})
        for n, one in enumerate(reports)
    ]
    source.send("r", messages)
    rests = [begun - ended for ended, begun in zip(times[1::2], times[2::2], strict=False)]
    assert rests and min(rests) >= 0.003


@pytest.mark.parametrize("indexed", [True, False])
def test_of_another_table_all_is_read_also_what_failed_long_before_the_last_that_was_known(table, source, indexed):
    table.die("a")
    _, after = pulled(source)
    for _ in range(3):
        _, after = pulled(source, after)
    table.lose()
    if indexed:
        table.execute("CREATE INDEX by_time ON jobs (updated_at)")
        table.execute("CREATE INDEX by_status ON jobs (status)")
    table.die("long before")
    table.execute(f"UPDATE jobs SET updated_at = {table.ago(90_000)}")
    assert [one.job_id for one in pulled(source, after)[0]] == ["long before"]


def test_a_row_that_fails_again_in_the_moment_in_which_it_is_discarded_stays(table):
    source = connect("shop", "jobs_table", table.url, (), {"discard_deletes": True})
    table.die("a")
    table.execute(f"UPDATE jobs SET updated_at = {table.ago(60)}")
    reports, _ = pulled(source)
    failed = source._sender._failed

    def meanwhile(*given):
        found = failed(*given)
        table.fail("a", "ValueError: what nobody has seen")
        return found

    source._sender._failed = meanwhile  # between the look at the row and its deletion
    assert source.remove(refs(reports, "discarded")) == set()
    assert table.row("a", "last_error") == "ValueError: what nobody has seen"
    source.close()


def test_another_job_under_the_id_of_what_was_sent_reports_nothing_where_the_table_is_another_too(table, source):
    table.die("a")
    table.execute(f"UPDATE jobs SET created_at = {table.ago(3600)}")
    (report,), after = pulled(source)
    lineage = {"queue": "jobs", "job_id": "a", "run": 2, "item": 1, "replay": "r", "sent_as": "a"}
    source.send("r", [OutgoingMessage(1, report.raw, "jobs", "a", lineage)])
    _, after = pulled(source, after)
    table.execute("DROP TABLE jobs")
    with pytest.raises(SourceError):
        source.dead_letters(after)
    table.execute(table.create)
    table.enqueue("a")
    pulled(source, after)
    assert source.check_jobs([Ref("jobs", "a", "replaying", report.at)]).gone == {}


def test_what_is_long_over_leaves_the_ledger_and_its_name_stays(table, source):
    table.die("a")
    (report,), _ = pulled(source)
    lineage = {"queue": "jobs", "job_id": "a", "run": 2, "item": 1, "replay": "r", "sent_as": "a"}
    source.send("r", [OutgoingMessage(1, report.raw, "jobs", "a", lineage)])
    epoch = source.epoch("r")
    source._ledger.forget(time.time() + 80 * 86_400)
    assert source.was_sent("r", [1]) == {1}
    source._ledger.forget(time.time() + 100 * 86_400)
    assert source.was_sent("r", [1]) == set() and source.epoch("r") == epoch
