"""A job, or a queue, that cannot be read keeps nothing behind it from being read: it is set aside raw, and reported."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import redis

from jobs_admin import config
from jobs_admin.models import Failure, Source, Unfiled
from jobs_admin.queues import liveness
from jobs_admin.retries import pulling
from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq import reading as bullmq_reading
from jobs_admin.sources.jobs_table import rows as jobs_table_rows
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import reading as rabbitmq_reading
from jobs_admin.trust import Cause, admission
from tests.kit.jobs_tables import OnSQLite
from tests.kit.rabbit_bus import Queues, broken
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]


@pytest.fixture
def configured(store, settings, tmp_path):
    def configure(text):
        file = tmp_path / "sources.toml"
        file.write_text(f"[sources.shop]\n{text}")
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)

    yield configure
    config.adapter("shop").close()


@pytest.fixture
def defect(monkeypatch):
    """Plant a defect: the function `name` of `module` fails where its arguments are about the job `poison`."""

    def planted(module, name, is_poison):
        sound = getattr(module, name)

        def fails(*arguments, **more):
            if is_poison(arguments):
                raise IndexError("list index out of range")
            return sound(*arguments, **more)

        monkeypatch.setattr(module, name, fails)

    return planted


def pull():
    while pulling.pull("shop", "one"):
        pass


def bury(client, queue, *ids):
    client.hset(f"bull:{queue}:meta", "version", "bullmq:5.81.5")
    for job_id in ids:
        at = int(client.time()[0]) * 1000
        fields = {"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "finishedOn": at, "atm": 1}
        client.hset(f"bull:{queue}:{job_id}", mapping=fields)
        client.zadd(f"bull:{queue}:failed", {job_id: at})


@pytest.fixture
def client(engine, configured):
    url = engine.url.removesuffix("/0") + "/6"
    configured(f'backend = "bullmq"\nurl = "{url}"\n')
    with redis.Redis.from_url(url, decode_responses=True) as made:
        made.flushdb()
        yield made
        made.flushdb()


def test_a_job_of_bullmq_is_set_aside_once_and_those_behind_it_are_filed(client, defect):
    defect(bullmq_job_hash, "build_report", lambda given: given[2] == "5")
    bury(client, "emails", *map(str, range(1, 10)))
    bury(client, "webhooks", "5", "6")
    pull(), pull()
    assert sorted(Failure.objects.values_list("queue", "job_id")) == sorted(
        [*(("emails", str(n)) for n in range(1, 10) if n != 5), ("webhooks", "6")]
    )
    assert Unfiled.objects.count() == 2
    assert "job 5 of queue emails cannot be read: IndexError" in Unfiled.objects.order_by("why").first().why
    assert Source.objects.get().why_not_pulled == "" and Source.objects.get().pulled_at


def test_a_queue_of_bullmq_whose_failed_jobs_are_no_set_delays_no_other_and_is_reported(client):
    bury(client, "emails", "1")
    client.delete("bull:emails:failed")
    client.set("bull:emails:failed", "somebody else's")
    bury(client, "webhooks", "2", "3")
    pull()
    assert set(Failure.objects.values_list("job_id", flat=True)) == {"2", "3"}
    source = Source.objects.get()
    assert "emails: its failed jobs" in source.why_not_pulled and "WRONGTYPE" in source.why_not_pulled
    assert liveness.stalled_reader(source, source.progress_due_at).since == source.not_pulled_since
    client.delete("bull:emails:failed")
    pull()
    assert Source.objects.get().why_not_pulled == ""


@pytest.mark.parametrize("delay, score", [("nan", "inf"), ("-inf", 1), ("1e999", -5), ("x", "1e300"), ("9" * 400, 0)])
def test_a_retry_that_waits_until_an_absurd_time_keeps_no_other_from_being_read(client, delay, score):
    bury(client, "emails", "1", "2")
    client.hset("bull:emails:1", "delay", delay)
    client.zrem("bull:emails:failed", "1")
    client.zadd("bull:emails:delayed", {"1": score})
    pull()
    assert "2" in set(Failure.objects.values_list("job_id", flat=True))
    assert Source.objects.get().pulled_at and not Source.objects.get().why_not_pulled


def test_a_row_of_a_jobs_table_is_set_aside_once_and_those_behind_it_are_filed(configured, tmp_path, defect):
    defect(jobs_table_rows, "build_report", lambda given: given[1].id == "j5")
    table = OnSQLite(tmp_path / "shop.db")
    configured(f'backend = "jobs_table"\nurl = "{table.url}"\n')
    for n in range(10):
        table.die(f"j{n}")
    pull(), pull()
    assert set(Failure.objects.values_list("job_id", flat=True)) == {f"j{n}" for n in range(10) if n != 5}
    assert [one.why.partition(":")[2] for one in Unfiled.objects.all()] == [
        " job j5 of queue jobs cannot be read: IndexError: list index out of range"
    ]
    table.close()


@pytest.mark.parametrize("mode", ["mirror", "drain"])
class TestRabbitMQ(Queues):
    def test_a_dead_letter_is_set_aside_and_those_behind_it_are_filed(self, mode, configured, defect):
        configured(
            f'backend = "rabbitmq"\nurl = "{self.node.url}"\nmode = "{mode}"\nmanagement_url = "{self.node.management_url}"\n'
            f'dead_letter_queues = ["{self.dlq}"]\n'
        )
        defect(rabbitmq_death, "build_envelope", lambda given: b'"n": 2' in given[0].found.body)
        for n in range(4):
            self.bus.publish(self.queue, {"n": n}, message_id=f"m-{n}")
        self.bus.consume(self.queue, self.dlq, broken)
        pull(), pull()
        assert Failure.objects.count() == 3 and Unfiled.objects.count() == 1
        assert self.bus.depth(self.dlq) == (4 if mode == "mirror" else 0)

    def test_a_dead_letter_for_which_there_is_no_room_stays_and_is_filed_later(self, mode, configured, monkeypatch):
        configured(
            f'backend = "rabbitmq"\nurl = "{self.node.url}"\nmode = "{mode}"\nmanagement_url = "{self.node.management_url}"\n'
            f'dead_letter_queues = ["{self.dlq}"]\n'
        )
        monkeypatch.setitem(admission._BOUNDS, Cause.UNFILED, admission._Bound(0, 0))
        monkeypatch.setattr(rabbitmq_reading, "_UNFILED_AGAIN_S", 0.5)
        monkeypatch.setattr(rabbitmq_reading, "_MIRRORED_AGAIN_S", 0.5)
        for n in range(4):
            self.bus.publish(self.queue, {"n": n}, message_id=f"m-{n}")
        self.bus.consume(self.queue, self.dlq, broken)
        with monkeypatch.context() as refusing:
            build = rabbitmq_death.build_envelope

            def nameless(read, *rest):
                report = build(read, *rest)
                return replace(report, job_id="") if b'"n": 2' in read.found.body else report

            refusing.setattr(rabbitmq_death, "build_envelope", nameless)
            pull(), pull()
            assert Failure.objects.count() == 3 and not Unfiled.objects.exists()
            assert "Dead letters left here: 1" in Source.objects.get().why_not_pulled
            time.sleep(0.6)
            pull()
            assert Failure.objects.count() == 3
            if mode == "drain":  # it is still there for whoever comes next
                config.adapter("shop").close()
                wait_until(lambda: self.bus.depth(self.dlq) == 1)
        time.sleep(0.6)
        wait_until(lambda: pull() or Failure.objects.count() == 4)
        pull()
        assert self.bus.depth(self.dlq) == (4 if mode == "mirror" else 0)
        assert not Source.objects.get().why_not_pulled


@pytest.mark.parametrize("way", ["_read_events", "_read_failed", "_take_turn"])
def test_a_defect_in_one_way_of_reading_bullmq_is_reported_and_the_others_file_all_the_same(client, defect, way):
    defect(bullmq_reading.Reading, way, lambda given: True)
    bury(client, "emails", "1", "2")
    bury(client, "webhooks", "3")

    def are_filed():
        pull()
        return set(Failure.objects.values_list("job_id", flat=True)) == {"1", "2", "3"}

    wait_until(are_filed)
    source = Source.objects.get()
    assert "IndexError: list index out of range" in source.why_not_pulled and source.not_pulled_since


class TestLargeMessages(Queues):
    def test_a_queue_full_of_messages_too_large_to_be_stored_is_reported(self, configured, monkeypatch):
        monkeypatch.setattr(rabbitmq_reading, "_DRAINED_AT_ONCE", 3)
        monkeypatch.setattr(rabbitmq_death, "_LARGEST", 4096 + 1000)
        configured(
            f'backend = "rabbitmq"\nurl = "{self.node.url}"\nmode = "drain"\ndead_letter_queues = ["{self.dlq}"]\n'
        )
        for n in range(5):
            self.bus.publish(self.dlq, {"n": n, "large": "x" * 2000})
        pull()
        assert "3 dead letters are too large to be stored" in Source.objects.get().why_not_pulled
