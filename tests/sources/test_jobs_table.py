"""A jobs table is read, and sent to, on a real SQLite file and a real PostgreSQL; its workers' statements are in `jobs_tables`."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, Ref, Rescheduled, SourceRefused, SourceUnreachable
from jobs_admin.sources.jobs_table import sql
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite, build_message, list_reports, pulled, refs
from tests.sources.pulled_contract import PulledContract

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request, tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "_LOCK_S", 30.0)  # who writes beside us may wait for a busy disk
    if request.param == "sqlite":
        made = OnSQLite(tmp_path / "shop.db")
    else:
        made = OnPostgreSQL(request.getfixturevalue("server"), f"shop{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "jobs_table", table.url, (), table.options)
    yield made
    made.close()


class TestContract(PulledContract):
    queue = "jobs"

    @pytest.fixture(autouse=True)
    def _table(self, table):
        self.table = table
        self.others = []
        self.count = 0
        yield
        for other in self.others:
            other.close()

    def bury(self, count):
        found = []
        for n in range(count):
            self.count += 1
            self.table.die(f"j{self.count}", payload={"n": n})
            moment = self.table.ago(100 - self.count)
            self.table.execute(f"UPDATE jobs SET updated_at = {moment} WHERE id = ?", f"j{self.count}")
            found.append(Ref("jobs", f"j{self.count}"))
        return found

    def waiting(self, queue):
        return [row[0] for row in self.table.execute("SELECT id FROM jobs WHERE status = 'pending'")]

    def waiting_data(self, queue):
        return [json.loads(row[0]) for row in self.table.execute("SELECT payload FROM jobs WHERE status = 'pending'")]

    def work(self, queue):
        for job_id in self.waiting(queue):
            self.table.claim(job_id), self.table.complete(job_id)

    def fail_again(self, queue):
        for job_id in self.waiting(queue):
            self.table.claim(job_id), self.table.fail(job_id)

    def revive(self, ref):
        self.table.execute(
            "UPDATE jobs SET status = 'pending', max_attempts = max_attempts + 1 WHERE id = ?", ref.job_id
        )

    def take_out(self, ref):
        self.table.execute("DELETE FROM jobs WHERE id = ?", ref.job_id)

    def lose_everything(self):
        self.table.lose()

    def unplug(self, source):
        self.table.unplug()

    def become_unknown(self):
        self.table.execute("ALTER TABLE jobs RENAME COLUMN scheduled_at TO run_at")

    def another(self):
        self.others.append(connect("shop", "jobs_table", self.table.url, (), self.table.options))
        return self.others[-1]


def test_what_failed_for_good_is_dead_and_what_waits_for_another_try_is_a_retry(table, source):
    table.enqueue("new")
    table.enqueue("twice", max_attempts=5)
    table.fail("twice"), table.fail("twice", "SMTPServerDisconnected: bye")
    table.die("dead", "TypeError: no such thing\n    at send (/app/mail.js:3:1)\n    at run (/app/queue.js:9:1)")
    reports = {one.job_id: one for one in pulled(source)[0]}
    assert reports.keys() == {"twice", "dead"}
    dead, retry = reports["dead"], reports["twice"]
    assert (dead.kind, dead.attempt, dead.max_attempts, dead.task, dead.queue) == (
        "exception",
        1,
        1,
        "send_email",
        "jobs",
    )
    assert (dead.error_type, dead.message) == ("TypeError", "no such thing") and "at run" in dead.trace
    assert dead.kwargs == '{"to": "ann@example.com"}'
    assert (retry.kind, retry.attempt, retry.message) == ("retry", 2, "SMTPServerDisconnected: bye")
    assert 55 < retry.due_at - retry.at < 65


def test_only_what_changed_since_is_reported_again(table, source):
    table.die("a")
    _, after = pulled(source)
    assert list_reports(source, after) == []
    table.die("b")
    assert list_reports(source, after) == [("b", "exception", 1)]


def test_a_process_that_comes_after_another_goes_on_where_that_was(table, source):
    table.die("a")
    _, after = pulled(source)
    table.die("b")
    other = connect("shop", "jobs_table", table.url, (), table.options)
    assert ("b", "exception", 1) in list_reports(other, after)
    other.close()


@pytest.mark.parametrize("indexed", [True, False])
def test_all_of_many_are_reported_each_once_by_time_and_without_an_index(table, source, indexed):
    if indexed:
        table.execute("CREATE INDEX by_time ON jobs (updated_at)")
        table.execute("CREATE INDEX by_status ON jobs (status)")
    table.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) "
        "INSERT INTO jobs (id, type, payload, status, attempts) "
        "SELECT CAST(i AS TEXT), 't', '{}', CASE WHEN i % 10 = 0 THEN 'failed' ELSE 'completed' END, 3 FROM n"
    )
    reports, after = pulled(source)
    assert len(reports) == 1200 == len({one.job_id for one in reports})
    table.execute(f"UPDATE jobs SET status = 'failed', updated_at = {table.ago(0)} WHERE id IN ('1', '11999')")
    assert sorted(job for job, *_ in list_reports(source, after)) == ["1", "11999"]
    assert ("jobs-table-no-index" in {one.id for one in source.findings()}) != indexed


def test_a_row_that_its_worker_holds_for_too_long_was_lost_until_it_ends_otherwise(table):
    source = connect("shop", "jobs_table", table.url, (), {"stale_after_s": 60})
    table.enqueue("held"), table.claim("held", "w7", ago_s=61)
    table.enqueue("fresh"), table.claim("fresh")
    (report,), _ = pulled(source)
    assert (report.job_id, report.kind, report.attempt, report.worker) == ("held", "lost", 1, "w7")
    assert source.check_jobs([Ref("jobs", "held", "dead", report.at)]).gone == {}
    table.complete("held")
    checked = source.check_jobs([Ref("jobs", "held", "dead", report.at)])
    assert [(one.kind, one.attempt) for one in checked.reports] == [("success", 1)]
    source.close()


def test_a_row_that_a_person_took_out_or_brought_back_is_gone_and_reports_how(table, source):
    for name in ("stays", "deleted", "reset", "taken", "done"):
        table.die(name)
    reports, _ = pulled(source)
    table.execute("DELETE FROM jobs WHERE id = 'deleted'")
    table.execute("UPDATE jobs SET status = 'pending', attempts = 0 WHERE id = 'reset'")
    table.claim("taken"), table.complete("done")
    gone = {ref.job_id: why for ref, why in source.check_jobs(refs(reports)).gone.items()}
    assert gone.keys() == {"deleted", "reset", "taken", "done"}
    assert "was removed from jobs" in gone["deleted"] and "is running now" in gone["taken"]


@pytest.mark.parametrize("how", ["lost", "emptied by a copy"])
def test_of_a_database_that_was_lost_nothing_is_gone_and_it_is_read_again(table, source, how):
    for n in range(3):
        table.die(f"j{n}")
    reports, after = pulled(source)
    table.lose()
    if how == "emptied by a copy":
        table.die("j9")
    assert source.check_jobs(refs(reports)).gone == {}
    table.die("j1", "ValueError: anew")
    again, after = pulled(source, after)
    assert "j1" in {one.job_id for one in again}
    assert source.check_jobs(refs(reports)).gone == {}


def test_a_retry_that_succeeded_or_moved_is_reported_when_queried(table, source):
    for name in ("well", "moved", "running", "reset"):
        table.enqueue(name, max_attempts=5), table.fail(name)
    reports, _ = pulled(source)
    table.complete("well"), table.claim("running")
    table.execute(f"UPDATE jobs SET scheduled_at = {table.ago(-3600)} WHERE id = 'moved'")
    table.execute("UPDATE jobs SET attempts = 0 WHERE id = 'reset'")
    checked = source.check_jobs(refs(reports, "retrying"))
    assert [(one.job_id, one.kind, one.attempt) for one in checked.reports] == [("well", "success", 2)]
    assert {ref.job_id: round((due - time.time()) / 60) for ref, due in checked.due.items()} == {"moved": 60}
    assert {ref.job_id for ref in checked.gone} == {
        "reset",
        "well",
    }  # that of `well` comes after its success, and finds it recovered


def test_waiting_rows_wait_as_instructed_and_others_are_left_alone(table, source):
    table.enqueue("waits", max_attempts=5), table.fail("waits")
    table.enqueue("taken", max_attempts=5), table.fail("taken"), table.claim("taken")
    soon = time.time() + 5000
    changes = [Rescheduled(Ref("jobs", name), soon, 9) for name in ("waits", "taken", "nowhere")]
    assert {ref.job_id for ref in source.reschedule(changes)} == {"waits"}
    assert table.row("waits", "max_attempts") == 9 and table.row("taken", "max_attempts") == 5
    (due,) = source.check_jobs([Ref("jobs", "waits", "retrying")]).due.values()
    assert abs(due - soon) <= 1


def test_depths_report_who_waits_who_waits_for_later_who_runs_and_who_is_dead(table, source):
    table.enqueue("a"), table.enqueue("b"), table.fail("b"), table.enqueue("c"), table.claim("c"), table.die("d")
    (depth,) = source.depths()
    assert (depth.queue, depth.waiting, depth.delayed, depth.active, depth.source_dead) == ("jobs", 1, 1, 1, 1)
    assert source.waiting(["jobs", "nothing"]) == {"jobs": 1, "nothing": 0}


def test_a_table_with_other_names_and_queues(table):
    table.execute(
        table.create.replace("jobs", '"odd ""table"')
        .replace("status TEXT", '"the % state" TEXT')
        .replace("type TEXT", "lane TEXT")
    )
    source = connect("shop", "jobs_table", table.url, ("mail",), {
        "table": 'odd "table', "columns": {"status": "the % state", "type": "", "queue": "lane", "locked_by": ""},
        "statuses": {"pending": "queued", "failed": "dead", "others": ["cancelled"]},
    })  # fmt: skip
    for n, (state, lane) in enumerate([("dead", "mail"), ("dead", "other"), ("cancelled", "mail"), ("queued", "mail")]):
        table.execute(
            'INSERT INTO "odd ""table" (id, lane, payload, "the % state", attempts) VALUES (?, ?, \'{}\', ?, 3)'.replace("%", "%%" if isinstance(table, OnPostgreSQL) else "%"),
            f"j{n}", lane, state,
        )  # fmt: skip
    reports, _ = pulled(source)
    assert [(one.job_id, one.queue) for one in reports] == [("j0", "mail")]
    assert source.send("r", [build_message(reports[0])]) == {1: "sent"}
    assert source.waiting(["mail"]) == {"mail": 2}
    source.close()


@pytest.mark.parametrize(("spoil", "message"), [
    ("ALTER TABLE jobs DROP COLUMN locked_at", "no column 'locked_at'"),
    ("INSERT INTO jobs (id, type, payload, status) VALUES ('x', 't', '{}', 'zombie')", "'zombie'"),
])  # fmt: skip
def test_a_table_that_is_not_what_is_known_is_read_and_never_written(table, source, spoil, message):
    table.die("a")
    reports, _ = pulled(source)
    table.execute(spoil)
    (finding,) = [one for one in source.findings() if one.id == READ_ONLY]
    assert message in finding.text and finding.severity == "high"
    with pytest.raises(SourceRefused, match="read-only"):
        source.send("r", [build_message(reports[0])])
    with pytest.raises(SourceRefused, match="read-only"):
        source.reschedule([Rescheduled(Ref("jobs", "a"), time.time())])
    assert ("a", "exception", 1) in list_reports(connect("shop", "jobs_table", table.url))
    assert table.row("a", "status") == "failed"


def test_a_database_that_is_not_there_is_unreachable_and_never_made(table, source):
    table.die("a")
    pulled(source)
    table.unplug()
    for question in (source.depths, source.findings, lambda: source.dead_letters(""), lambda: source.check_jobs([Ref("jobs", "a")]),
                     lambda: source.waiting(["jobs"]), lambda: source.epoch("r")):  # fmt: skip
        with pytest.raises(SourceUnreachable) as away:
            question()
        assert "redrive:" not in str(away.value)
    if isinstance(table, OnSQLite):
        assert not table.path.exists()


def test_their_worker_writes_while_a_large_table_is_read_and_many_are_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "_LOCK_S", 30.0)  # their worker's commits may take most of the time on a busy disk
    table = OnSQLite(tmp_path / "shop.db", wal=False)  # a reader keeps writers out
    table.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) "
        "INSERT INTO jobs (id, type, payload, status, attempts) SELECT 'j' || i, 't', '{}', CASE WHEN i > 38000 THEN 'failed' ELSE 'completed' END, 3 FROM n"
    )
    source = connect("shop", "jobs_table", table.url)
    worker = sqlite3.connect(table.path, timeout=0, isolation_level=None, check_same_thread=False)
    wrote, is_over = [], threading.Event()

    def work():
        while not is_over.is_set():
            began = time.monotonic()
            while True:  # until its own write is through: how long that took is what it waited
                try:
                    worker.execute("UPDATE jobs SET last_error = 'x' WHERE id = 'j1'")
                    break
                except sqlite3.OperationalError:
                    time.sleep(0.001)
            wrote.append(time.monotonic() - began)
            time.sleep(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    reports, _ = pulled(source)
    answers = source.send("r", [build_message(one, n) for n, one in enumerate(reports)])
    is_over.set()
    thread.join()
    assert set(answers.values()) == {"sent"} and len(answers) == 2000
    assert len(wrote) > 10
    source.close(), worker.close(), table.close()


def test_a_server_that_hangs_is_unreachable_within_seconds(server):
    import os
    import signal

    table = OnPostgreSQL(server, f"hangs{next(_numbers)}")
    source = connect("shop", "jobs_table", table.url)
    source.depths()
    (pid,) = [
        row[0]
        for row in table.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'redrive' AND datname = ?", table.name
        )
    ]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(SourceUnreachable):
            source.waiting(["jobs"])
        assert time.monotonic() - began < 30
    finally:
        os.kill(pid, signal.SIGCONT)
    source.close(), table.close()


def test_the_backoff_of_its_workers_is_inferred_from_its_rows(table, source):
    for n in range(1, 5):
        table.enqueue(f"j{n}", max_attempts=9)
        [table.fail(f"j{n}") for _ in range(n)]
    (found,) = source.found_options().options
    assert (found.queue, found.task, found.attempts, found.backoff, found.jobs) == (
        "jobs",
        "send_email",
        9,
        "linear",
        4,
    )
    assert 29 <= found.first_delay_s <= 31
