"""Django Tasks in a database: the library's own migrations, API and worker, on SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import json
import re
import time

import psycopg
import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused
from jobs_admin.sources.jobs_table import sql
from tests.kit import django_tasks, postgresql_server
from tests.kit.django_tasks import TABLE, TASK, Host, TasksOnPostgreSQL, TasksOnSQLite
from tests.kit.jobs_tables import build_message, pulled
from tests.kit.programs import latest_python
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import PulledContract
from tests.workers.environments import OutOfReach, locked

pytestmark = pytest.mark.server
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def host(request, tmp_path_factory):
    django_tasks.need_library()
    folder = tmp_path_factory.mktemp("django_tasks")
    if request.param == "sqlite":
        made = Host(f"sqlite:///{folder / 'template.db'}", folder)
        made.call(str(folder / "template.db"), "migrate")
        made.new_table = lambda path: TasksOnSQLite(path / "shop.db", folder / "template.db")
        yield made
    else:
        with postgresql_server.running() as server:
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute("CREATE DATABASE template_of_tasks")
            made = Host(re.sub(r"/postgres$", "/template_of_tasks", server), folder)
            made.call("template_of_tasks", "migrate")
            made.new_table = lambda path: TasksOnPostgreSQL(server, f"shop{next(_numbers)}", "template_of_tasks")
            yield made
    made.close()


@pytest.fixture
def table(host, tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "_LOCK_S", 30.0)  # who writes beside us may wait for a busy disk
    made = host.new_table(tmp_path)
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "django_tasks", table.url, (), {"discard_deletes": True})
    yield made
    made.close()


class TestContract(PulledContract):
    queue = "default"

    @pytest.fixture(autouse=True)
    def _host(self, host, table):
        self.host, self.table, self.others = host, table, []
        yield
        for other in self.others:
            other.close()

    def bury(self, count):
        self.host.call(self.table.database, "enqueue", numbers=list(range(count)))
        new = self.waiting(self.queue)
        self.host.work(self.table, fails=True)
        return [Ref(self.queue, job_id) for job_id in new]

    def waiting(self, queue):
        return [row[0] for row in self.table.execute(f"SELECT CAST(id AS TEXT) FROM {TABLE} WHERE status = 'READY'")]

    def waiting_data(self, queue):
        rows = self.table.execute(f"SELECT CAST(args_kwargs AS TEXT) FROM {TABLE} WHERE status = 'READY'")
        return [json.loads(row[0])["kwargs"] for row in rows]

    def work(self, queue):
        self.host.work(self.table, fails=False)

    def fail_again(self, queue):
        self.host.work(self.table, fails=True)

    def revive(self, ref):
        self.table.execute(f"UPDATE {TABLE} SET status = 'READY' WHERE id = ?", ref.job_id)

    def take_out(self, ref):
        self.table.execute(f"DELETE FROM {TABLE} WHERE id = ?", ref.job_id)

    def lose_everything(self):
        self.table.lose()

    def unplug(self, source):
        self.table.unplug()

    def become_unknown(self):
        self.host.call(self.table.database, "migrate", to=["django_tasks_database", "0017"])  # of an older release

    def another(self):
        self.others.append(connect("shop", "django_tasks", self.table.url, (), {"discard_deletes": True}))
        return self.others[-1]


def test_a_failed_result_is_reported_with_its_error_and_sent_again_as_a_new_one(host, table, source):
    host.call(table.database, "enqueue", numbers=[7])
    host.work(table, fails=True)
    (report,), after = pulled(source)
    assert (report.task, report.queue, report.priority, report.attempt) == (TASK, "default", 0, 1)
    assert report.error_type == "tests.rigs.django_tasks_jobs.PartnerDown"
    assert report.message == "no answer to delivery 7\nwithin 5 s" and "in deliver" in report.trace
    assert (report.args, report.kwargs) == ("[]", '{"n": 7}') and report.worker
    assert source.arguments(report.raw) == ([], {"n": 7})

    unchanged = "CAST(args_kwargs AS TEXT)", "run_after", "enqueued_at", "traceback", "priority"
    before = table.row(report.job_id, *unchanged)
    assert source.send("r", [build_message(report, 1, priority=50)]) == {1: "sent"}
    sent = table.row(report.job_id, "status", "started_at", "finished_at", "CAST(worker_ids AS TEXT)", "priority")
    assert sent == ("READY", None, None, "[]", 50) and table.row(report.job_id, *unchanged)[:-1] == before[:-1]
    host.work(table, fails=True)
    (again,), _ = pulled(source, after)
    assert (again.lineage.run, again.attempt) == (2, 1)
    # Attempts that are kept are counted on.
    assert source.send("r", [build_message(again, 2, retries=None)]) == {2: "sent"}
    host.work(table, fails=False)
    assert host.ran[-3:] == [7, 7, 7] and len(json.loads(table.row(report.job_id, "CAST(worker_ids AS TEXT)"))) == 2


def test_two_senders_and_a_running_worker_run_each_retry_once(host, table, source):
    count, before = 15, len(host.ran)
    host.partner(is_down=True)
    url = re.sub(r"/template[^/]*$", f"/{table.database.rpartition('/')[2]}", table.url)
    worker = host.run("db_worker", "--interval", "0", "--no-startup-delay", "--no-reload", DATABASE=url)
    other = connect("shop", "django_tasks", table.url)
    try:
        host.call(table.database, "enqueue", numbers=list(range(count)))
        sent, ends, after = set(), time.monotonic() + 60, ""
        while len(sent) < count:  # each once, as soon as it failed, while the worker claims others
            assert time.monotonic() < ends
            reports, after = pulled(source, after)
            messages = [build_message(one, int(json.loads(one.kwargs)["n"])) for one in reports if not one.lineage]
            answers = [one.send("r", messages) for one in (source, other)] if messages else []
            for token in {token for answer in answers for token in answer}:
                assert [answer[token] for answer in answers] == ["sent", "already"]
                sent.add(token)
        wait_until(lambda: len(host.ran) - before == 2 * count, "each ran twice")
    finally:
        worker.terminate(), worker.communicate(timeout=30), other.close()
    assert sorted(host.ran[before:]) == sorted([*range(count)] * 2)
    table.execute(f"UPDATE {TABLE} SET status = 'RUNNING' WHERE status = 'FAILED'")
    (report, *_), _ = reports, after
    with pytest.raises(SourceRefused, match="is RUNNING, so not FAILED"):
        source.send("r", [build_message(report, 999)])
    assert source.was_sent("r", [999]) == set()


def test_rows_that_are_broken_are_read_as_far_as_possible_and_the_others_completely(table, source):
    for n, broken in enumerate(["", "worker_ids = '{}'", "args_kwargs = '[1, 2]'", "traceback = '', exception_class_path = ''",
                                "traceback = 'Traceback (most recent call last):'", "finished_at = NULL"]):  # fmt: skip
        job_id = table.new_id()
        table.enqueue(job_id, {"n": n}), table.claim(job_id), table.fail(job_id)
        if broken:
            table.execute(f"UPDATE {TABLE} SET {broken} WHERE id = ?", job_id)
    reports, _ = pulled(source)
    assert len(reports) == 6 and {one.attempt for one in reports} == {1}
    (other,) = [one for one in reports if one.args == "[1, 2]"]
    with pytest.raises(SourceRefused, match="no args and kwargs"):
        source.arguments(other.raw)
    assert sum(one.error_type == "TimeoutError" for one in reports) == 5
    assert set(source.send("r", [build_message(one, n) for n, one in enumerate(reports)]).values()) == {"sent"}


def test_what_runs_later_is_delayed_and_what_runs_any_time_waits(table, source):
    for run_after in ("9999-01-01 00:00:00", "2001-01-01 00:00:00", "2999-01-01 00:00:00"):
        job_id = table.new_id()
        table.enqueue(job_id)
        table.execute(f"UPDATE {TABLE} SET run_after = ? WHERE id = ?", run_after, job_id)
    table.enqueue(lost := table.new_id(), queue="slow")
    table.claim(lost, "w9", ago_s=5_000)
    counts = {depth.queue: (depth.waiting, depth.delayed, depth.active) for depth in source.depths()}
    assert counts == {"default": (2, 1, 0), "slow": (0, 0, 1)}
    assert [(one.kind, one.worker, one.queue) for one in pulled(source)[0]] == [("lost", "w9", "slow")]
    assert source.findings()[0].id == "jobs-table-no-index"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (f"ALTER TABLE {TABLE} ADD COLUMN retries integer", "has a column 'retries', unlike that of django-tasks-db 0.12"),
        (f"UPDATE {TABLE} SET status = 'EXPIRED'", "a status that django-tasks-db 0.12 and 0.13 do not write: 'EXPIRED'"),
    ],
)  # fmt: skip
def test_a_later_version_is_read_and_nothing_is_sent(table, source, change, sentence):
    table.enqueue(job_id := table.new_id())
    table.claim(job_id), table.fail(job_id)
    (report,), _ = pulled(source)
    table.execute(change)
    finding = source.findings()[0]
    assert finding.id == READ_ONLY and sentence in finding.text
    with pytest.raises(SourceRefused, match="read-only"):
        source.send("r", [build_message(report)])


@pytest.mark.extras
def test_on_the_latest_django(tmp_path):
    try:
        python = locked(django_tasks.ROOT / "tests/latest.txt", latest_python())
    except OutOfReach as error:
        pytest.skip(str(error))
    template = tmp_path / "template.db"
    host = Host(f"sqlite:///{template}", tmp_path / "host", str(python))
    host.call(str(template), "migrate")
    table = TasksOnSQLite(tmp_path / "shop.db", template)
    source = connect("shop", "django_tasks", table.url)
    host.call(table.database, "enqueue", numbers=[3])
    host.work(table, fails=True)
    (report,), after = pulled(source)
    assert report.error_type.endswith("PartnerDown") and report.kwargs == '{"n": 3}'
    assert source.send("r", [build_message(report)]) == {1: "sent"}
    host.work(table, fails=False)
    assert [one.kind for one in pulled(source, after)[0]] == ["success"] and host.ran == [3, 3]
    assert [one.id for one in source.findings()] == ["jobs-table-no-index"]
    host.close(), source.close(), table.close()


def test_columns_and_statuses_are_those_of_the_library():
    with pytest.raises(SourceRefused, match="option 'columns' is not known; known: discard_deletes, ledger"):
        connect("shop", "django_tasks", "sqlite:////nowhere/app.db", (), {"columns": {"queue": "lane"}})
