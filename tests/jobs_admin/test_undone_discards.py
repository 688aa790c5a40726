"""A discard that is undone loses nothing: the job is replayed from the stored message, on the real server of each source."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from jobs_admin import config, replays
from jobs_admin.failures import triage
from jobs_admin.models import Failure, ReplayItem
from jobs_admin.models.failure import Caveat
from jobs_admin.retries import pulling, rechecking
from tests.kit import postgresql_server
from tests.kit.bullmq import Bull
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite
from tests.kit.people import ANN
from tests.kit.rabbit_bus import Queues, broken
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]
_numbers = itertools.count()


def configure(settings, tmp_path, text):
    file = tmp_path / "sources.toml"
    file.write_text(text)
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)


def pull(source="shop"):
    rechecking._rested.clear()  # dead and discarded jobs are checked every few seconds: here at each pull
    while pulling.pull(source, "one"):
        pass


def states():
    return dict(Failure.objects.values_list("job_id", "state"))


def pull_until(expected):
    def reached():
        pull(), replays.settle()
        return states() == expected

    wait_until(reached)


def ids():
    return list(Failure.objects.order_by("pk").values_list("pk", flat=True))


def discard_and_restore(between=lambda: None):
    """Return once the source has removed the jobs and both looks at it are over."""
    discarded = triage.discard(ANN, selection=ids(), reason="a test")
    assert discarded.count == len(ids())
    pull()
    between()
    assert triage.undo(ANN, discarded.key).count == discarded.count
    pull()
    assert set(states().values()) == {"dead"}


def replay(selection=None, **options):
    draft = replays.draft(ANN, selection=selection or ids(), pace={"style": "at_once"}, reason="a test", **options)
    started = replays.start(ANN, draft)
    wait_until(
        lambda: not ReplayItem.objects.filter(replay=started, state="planned").exists(),
        "it to be sent",
        meanwhile=lambda: (replays.create_items(), replays.send(f"desk {started.key}"), replays.settle()),
    )
    return sorted(ReplayItem.objects.filter(replay=started).values_list("state", "outcome"))


class TestBullmq(Bull):
    @pytest.fixture(autouse=True)
    def _desk(self, _place, store, settings, tmp_path):
        self.configure(settings, tmp_path)
        yield
        config.adapter("shop").close()

    def configure(self, settings, tmp_path, queues=()):
        names = json.dumps([self.queue, *queues])
        configure(
            settings,
            tmp_path,
            f'[sources.shop]\nbackend = "bullmq"\nurl = "{self.server.url}"\nqueues = {names}\n',
        )

    def finished(self, job_id, queue=None):
        return self.client.zscore(self.key("completed", queue), job_id) is not None

    def test_jobs_are_put_back_as_they_were_and_run_once(self):
        options = {"attempts": 2, "backoff": {"type": "fixed", "delay": 1}, "priority": 7, "keepLogs": 3}
        job_id = self.die(1, **options)
        self.let_fail()
        before = self.client.hgetall(self.key(job_id))
        pull()
        discard_and_restore(lambda: self.is_removed(job_id))
        assert Failure.objects.get().caveats == Caveat.REMOVED
        assert replay() == [("sent", "")]
        after = self.client.hgetall(self.key(job_id))
        assert [after[name] for name in ("name", "data", "timestamp", "priority")] == [
            before[name] for name in ("name", "data", "timestamp", "priority")
        ]
        assert json.loads(after["opts"]) == json.loads(before["opts"])
        assert Failure.objects.get().caveats is None
        self.bull.fix("partner")
        self.bull.work(self.queue)
        wait_until(lambda: self.finished(job_id))
        pull_until({job_id: "recovered"})

    def is_removed(self, job_id):
        assert not self.client.exists(self.key(job_id)) and not self.client.zcard(self.key("failed"))

    def test_a_page_of_jobs_is_put_back(self):
        jobs = [self.die(n) for n in range(30)]
        self.let_fail(more=30)
        pull()
        discard_and_restore(lambda: self.is_removed(jobs[0]))
        assert replay() == [("sent", "")] * 30
        assert sorted(self.client.lrange(self.key("wait"), 0, -1) + self.client.lrange(self.key("paused"), 0, -1)) == (
            sorted(jobs)
        )

    def test_a_job_that_dies_again_can_be_discarded_restored_and_replayed_again(self):
        job_id = self.die(1)
        self.let_fail()
        pull()
        for run in (2, 3):
            discard_and_restore(lambda: self.is_removed(job_id))
            assert replay() == [("sent", "")]
            self.let_fail()
            pull_until({job_id: "dead"})
            assert Failure.objects.get().run == run

    def test_what_others_did_to_a_restored_job_still_counts(self):
        """A job that was restored, died again and was removed there by a person is gone."""
        job_id = self.die(1)
        self.let_fail()
        pull()
        discard_and_restore()
        assert replay() == [("sent", "")]
        self.let_fail()
        pull_until({job_id: "dead"})
        self.bull.job(self.queue, job_id, "remove")
        pull_until({job_id: "gone"})

    def test_an_id_that_was_given_to_another_job_meanwhile_is_not_overwritten(self):
        job_id = self.die(1, jobId="invoice-1")
        self.let_fail()
        pull()
        discard_and_restore(lambda: self.die(2, jobId="invoice-1"))
        ((state, outcome),) = replay()
        assert state != "sent" and outcome
        assert json.loads(self.client.hget(self.key(job_id), "data"))["n"] == 2

    def test_a_job_too_large_to_be_stored_stays_in_its_queue(self):
        job_id = self.die(1)
        self.let_fail()
        pull()
        Failure.objects.update(caveats=Caveat.TRUNCATED)
        triage.discard(ANN, selection=ids(), reason="a test")
        pull()
        assert self.client.zscore(self.key("failed"), job_id)

    @pytest.mark.parametrize("who", ["child", "parent"])
    def test_a_job_of_a_flow_stays_so_that_its_flow_is_as_it_was(self, who, settings, tmp_path):
        parents = f"{self.queue}-parents"
        self.configure(settings, tmp_path, [parents])
        fails, runs = {"needs": "partner"}, {"n": 0}
        tree = {
            "name": "order",
            "queueName": parents,
            "data": fails if who == "parent" else runs,
            "children": [{"name": "step", "queueName": self.queue, "data": fails if who == "child" else runs}],
        }
        for name in (self.queue, parents):  # a queue object writes which version it is, a flow does not
            self.bull.queue(name, "getJobCounts")
            wait_until(lambda name=name: self.client.hget(self.key("meta", name), "version"))
        self.bull.flow(tree)
        self.bull.work(self.queue)
        if who == "parent":
            self.bull.work(parents)
        queue = parents if who == "parent" else self.queue
        wait_until(lambda: self.client.zcard(self.key("failed", queue)) == 1)
        self.bull.rest(self.queue), self.bull.rest(parents)
        (job_id,) = self.client.zrange(self.key("failed", queue), 0, -1)
        pull()
        discard_and_restore(lambda: self.client.zscore(self.key("failed", queue), job_id) or pytest.fail("removed"))
        assert replay() == [("sent", "")]
        self.bull.fix("partner")
        self.bull.work(self.queue), self.bull.work(parents)
        wait_until(lambda: self.client.zcard(self.key("completed", parents)) == 1)
        if who == "parent":  # what its child returned is still there
            assert self.client.hlen(self.key(f"{job_id}:processed", parents)) == 1


@pytest.mark.parametrize("mode", ["mirror", "drain"])
class TestRabbitMQ(Queues):
    @pytest.fixture(autouse=True)
    def _desk(self, _place, settings, tmp_path, mode):
        text = f'[sources.shop]\nbackend = "rabbitmq"\nurl = "{self.node.url}"\nmode = "{mode}"\n'
        text += f'management_url = "{self.node.management_url}"\ndead_letter_queues = ["{self.dlq}"]\n'
        configure(settings, tmp_path, text)
        yield
        config.adapter("shop").close()

    def test_dead_letters_are_published_again_from_the_stored_message(self, mode):
        for n in range(3):
            self.bus.publish(self.queue, {"n": n}, message_id=f"m-{n}", type="mail")
        self.bus.consume(self.queue, self.dlq, broken)
        pull()
        discard_and_restore(lambda: wait_until(lambda: self.bus.depth(self.dlq) == 0))
        assert replay() == [("sent", "")] * 3
        assert sorted(json.loads(one.body)["n"] for one in self.bus.bodies(self.queue)) == [0, 1, 2]
        pull()
        assert self.bus.depth(self.queue) == 3 and self.bus.depth(self.dlq) == 0
        self.bus.consume(self.queue, self.dlq, broken)
        wait_until(lambda: (pull(), set(Failure.objects.values_list("state", "run")) == {("dead", 2)})[-1])
        assert Failure.objects.count() == 3


@pytest.fixture(scope="module")
def postgresql():
    with postgresql_server.running() as url:
        yield url


EXTRA = {
    "sqlite": "ALTER TABLE jobs ADD COLUMN blob_of BLOB; ALTER TABLE jobs ADD COLUMN ratio REAL; ALTER TABLE jobs ADD COLUMN note",
    "postgresql": "ALTER TABLE jobs ADD COLUMN blob_of bytea; ALTER TABLE jobs ADD COLUMN ratio double precision; "
    "ALTER TABLE jobs ADD COLUMN note json; ALTER TABLE jobs ADD COLUMN size int GENERATED ALWAYS AS (length(payload)) STORED",
}


@pytest.mark.parametrize("engine_name", ["sqlite", "postgresql"])
class TestJobsTable:
    @pytest.fixture(autouse=True)
    def _desk(self, store, settings, tmp_path, engine_name, request):
        if engine_name == "sqlite":
            self.table = OnSQLite(tmp_path / "shop.db")
        else:
            self.table = OnPostgreSQL(request.getfixturevalue("postgresql"), f"undone{next(_numbers)}")
        for statement in EXTRA[engine_name].split("; "):
            self.table.execute(statement)
        self.configure = lambda deletes: configure(
            settings,
            tmp_path,
            f'[sources.shop]\nbackend = "jobs_table"\nurl = "{self.table.url}"\ndiscard_deletes = {deletes}\n',
        )
        yield
        config.adapter("shop").close()
        self.table.close()

    def rows(self):
        return self.table.execute("SELECT * FROM jobs ORDER BY id")

    @pytest.mark.parametrize("deletes", ["true", "false"])
    def test_a_row_is_put_back_with_all_its_columns(self, deletes):
        self.configure(deletes)
        for n in range(3):
            self.table.die(f"j{n}", payload={"n": n, "name": "Zoë \u2028 'quoted' \\ %s"})
        self.table.execute("UPDATE jobs SET blob_of = ?, ratio = ?, note = ?", b"\x00\xff\x01", 0.1 + 0.2, '{"a":  1}')
        before = self.rows()
        pull()
        discard_and_restore(lambda: self.rows() == ([] if deletes == "true" else before) or pytest.fail("kept"))
        assert replay() == [("sent", "")] * 3
        fields = "id, type, payload, max_attempts, last_error, created_at, blob_of, ratio, note"
        names = [name.strip() for name in fields.split(",")]
        columns = [row[0] for row in self.columns()]
        assert self.table.execute(f"SELECT {fields} FROM jobs ORDER BY id") == [
            tuple(row[columns.index(name)] for name in names) for row in before
        ]
        assert {self.table.row(f"j{n}", "status") for n in range(3)} == {"pending"}
        for n in range(3):
            self.table.complete(f"j{n}")
        pull_until({f"j{n}": "recovered" for n in range(3)})

    def test_a_json_null_is_put_back_as_such_and_a_missing_value_as_missing(self, engine_name):
        self.configure("true")
        types, text = ("TEXT", "TEXT", "TEXT", "TEXT"), ""
        if engine_name == "postgresql":
            self.table.execute("CREATE DOMAIN settings AS jsonb")
            types, text = ("jsonb", "json", "settings", "jsonb"), "::text"
        names = ("result", '"100%\'s"', "of_domain", "missing")
        for name, type_ in zip(names, types, strict=True):
            default = "" if name == "missing" else "NOT NULL DEFAULT 'null'"
            self.table.execute(f"ALTER TABLE jobs ADD COLUMN {name} {type_} {default}")
        self.table.die("j1", payload={"n": 1})
        rows = f"SELECT {', '.join(name + text for name in names)} FROM jobs"
        assert self.table.execute(rows) == [("null", "null", "null", None)]
        pull()
        discard_and_restore(lambda: self.rows() == [] or pytest.fail("kept"))
        assert replay() == [("sent", "")]
        assert self.table.execute(rows) == [("null", "null", "null", None)]

    def columns(self):
        if isinstance(self.table, OnSQLite):
            return self.table.execute("SELECT name FROM pragma_table_info('jobs') ORDER BY cid")
        return self.table.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'jobs' ORDER BY ordinal_position"
        )

    def test_an_id_that_another_row_has_meanwhile_is_not_overwritten(self):
        self.configure("true")
        self.table.die("j1", payload={"n": 1})
        pull()
        discarded = triage.discard(ANN, selection=ids(), reason="a test")
        pull()
        self.table.enqueue("j1", {"n": 2})
        triage.undo(ANN, discarded.key)
        pull()
        assert states() == {"j1": "gone"} and "pending" in Failure.objects.get().reason
        assert json.loads(self.table.row("j1", "payload")) == {"n": 2}

    def test_a_row_that_dies_again_can_be_discarded_restored_and_replayed_again(self):
        self.configure("true")
        self.table.die("j1", payload={"n": 1})
        pull()
        for run in (2, 3):
            discard_and_restore(lambda: self.rows() == [] or pytest.fail("kept"))
            assert replay() == [("sent", "")]
            time.sleep(1.1)  # the table's times are whole seconds: it ends in another one than it died in before
            self.table.fail("j1")
            pull_until({"j1": "dead"})
            assert Failure.objects.get().run == run
