"""Histories of Celery on Redis and on RabbitMQ: a real worker with the guard, a real broker, and the desk's own steps in this process."""

from __future__ import annotations

import logging
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import amqp
import redis
from kombu import Connection

from dashboard.setup.engine import Engine
from tests.histories.desk import JobKey
from tests.histories.kit import Divergence, act
from tests.histories.source import SourceWorld
from tests.kit import rabbitmq
from tests.kit.celery import RealWorker

QUEUES = [f"q{n}" for n in range(20)]
PARKED = "parked"
ERRORS = ("the partner is down", "no such customer", "timed out after 30 s")
_PLANS = (["fail"], ["fail"], ["retry", "fail"], ["retry", "ok"], ["retry", "retry", "fail"])
_REPLAYED = (["ok"], ["ok"], ["fail"], ["retry", "ok"], ["retry", "fail"])
_DEADLINE_S = 30.0


@dataclass
class Job:
    """The model of one job."""

    queue: str
    id: str
    place: str = ""  # parked: its retry waits where nobody consumes
    states: tuple[str, ...] = ()
    run: int | None = 1
    attempts: int | None = 0
    kind: str = "history"  # or why it never runs: expired, unknown
    is_known: bool = False
    plan: list[str] = field(default_factory=list)

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class Celery(SourceWorld):
    """A subclass says which broker."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder / "engine").start()
        self.plans_url = self.engine.url.removesuffix("/0") + "/2"
        self.plans = redis.Redis.from_url(self.plans_url)
        super().__init__(
            folder, f'[sources.shop]\nbackend = "{self.backend}"\nurl = "{self.broker_url}"\n', self.engine.url
        )
        os.environ["REAL_PATIENCE"] = "10"
        logging.getLogger("celery").setLevel(logging.ERROR)  # it warns of each job that expires before it is sent
        self.worker = self.new_worker().start()
        self.producer = self.worker.app.producer_or_acquire
        for queue in (*QUEUES, PARKED):
            self.declare(queue)

    def new_worker(self) -> RealWorker:
        return RealWorker(
            self.broker_url,
            self.engine.url,
            pool="solo",
            queues=",".join(QUEUES),
            environment={"HISTORY_PLANS": self.plans_url, "REAL_PATIENCE": "10"},
            app="tests.histories.celery_app:app",
        )

    def close(self) -> None:
        self.worker.stop()
        self.engine.stop()

    # What the broker is

    backend = ""
    broker_url = ""
    histories = 0

    def declare(self, queue: str) -> None: ...

    def empty_broker(self) -> None:
        raise NotImplementedError

    def unpark(self, job: Job) -> None:
        """Move the job's retry from the parked queue to its own, as with a shovel."""
        raise NotImplementedError

    def empty_system(self, rng: random.Random) -> None:
        self.histories += 1  # a worker remembers ids of jobs that expired
        self.queues = rng.sample(QUEUES, rng.choice([1, 1, 2, 3, 5, 20]))
        self.empty_broker()
        self.store.flushdb()
        self.plans.flushdb()
        self.executions = self.entries = 0
        self.seen: list[dict[bytes, bytes]] = []  # reports that the desk has read

    def choose_bounds(self, rng: random.Random) -> None:
        from jobs_admin import ingest

        bound = super().choose_bounds(rng)
        self.set_bound(ingest, "_BATCH", rng.choice([bound, 500]))

    # Acts of producers and workers

    def send(self, queue: str, plan: list[str], *, kind: str = "history", **options) -> Job:
        self.made += 1
        job = Job(queue, f"{self.histories}-{self.made}", kind=kind, plan=plan)
        self.jobs.append(job)
        if plan:
            self.plans.rpush(f"plan:{job.id}", *plan)
        name = "no.such.task" if kind == "unknown" else "history"
        self.worker.app.send_task(
            name,
            args=(job.id,),
            kwargs={"error": ERRORS[self.made % 3], "queue": queue},
            queue=queue,
            task_id=job.id,
            **options,
        )
        self.run(job)
        return job

    def run(self, job: Job) -> None:
        """The executions that follow now, until it ends or waits."""
        if job.kind != "history":
            self.entries += 1
            job.attempts, job.states, job.plan = (job.attempts or 0) + 1, ("dead",), []
            return
        while True:
            outcome = job.plan.pop(0) if job.plan else "ok"
            self.executions += 1
            job.attempts = (job.attempts or 0) + 1
            if outcome != "ok" or job.attempts > 1 or (job.run or 1) > 1:
                self.entries += 1
            if outcome == "ok":
                job.states = ("recovered",) if job.attempts > 1 or (job.run or 1) > 1 else ()
                return
            if outcome == "fail":
                job.states = ("dead",)
                return
            job.states = ("retrying",)
            if outcome == "wait":
                job.place = PARKED
                return

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            for _ in range(self.size(rng)):
                self.send(queue, list(rng.choice(_PLANS)))

    @act()
    def succeed(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 3)):
            self.send(rng.choice(self.queues), [])

    @act(weight=2)
    def fail_and_wait(self, rng: random.Random) -> None:
        for _ in range(self.size(rng)):
            self.send(rng.choice(self.queues), rng.choice((["wait"], ["retry", "wait"])))

    @act(weight=2)
    def try_again(self, rng: random.Random) -> None:
        self.wait_for_workers()
        self.read_first(rng)
        for job in self.some(rng, lambda job: job.place == PARKED):
            job.plan = list(rng.choice((["ok"], ["fail"], ["retry", "fail"])))
            self.plans.rpush(f"plan:{job.id}", *job.plan)
            job.place = ""
            self.unpark(job)
            self.run(job)

    @act()
    def expire(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            self.send(rng.choice(self.queues), [], kind="expired", expires=-5)

    @act()
    def send_unknown(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            self.send(rng.choice(self.queues), [], kind="unknown")

    @act()
    def repeat_reports(self, rng: random.Random) -> None:
        """Repeat earlier reports: a spool may be emptied twice, and an answer lost."""
        self.read()
        from jobs_admin.core import keys

        for fields in rng.sample(self.seen, min(len(self.seen), 3)):
            self.store.xadd(keys.failures("shop"), fields)
            self.entries += 1

    # The desk's part

    def wait_for_workers(self) -> None:
        from jobs_admin.core import keys

        ends = time.monotonic() + _DEADLINE_S
        while True:
            ran = int(self.plans.get("executions") or 0)
            reported = (
                self.store.xinfo_stream(keys.failures("shop"))["entries-added"]
                if self.store.exists(keys.failures("shop"))
                else 0
            )
            if (ran, reported) == (self.executions, self.entries):
                return
            if ran > self.executions or reported > self.entries or time.monotonic() > ends:
                raise Divergence(
                    f"{ran} executions, {self.executions} expected; {reported} reports, {self.entries} expected\n"
                    + self.worker.text()[-500:]
                )
            time.sleep(0.002)

    def restart_workers(self) -> None:
        self.worker.kill()
        self.worker.start()

    def read_reports(self) -> None:
        from jobs_admin import ingest
        from jobs_admin.core import keys

        self.seen += [fields for _, fields in self.store.xrange(keys.failures("shop"))]
        for _ in range(10_000):
            ingest.step("histories", wait_s=0.001)
            if not self.store.xlen(keys.failures("shop")):  # a step that finds nothing waits
                return
        stream = keys.failures("shop")
        groups, pending = self.store.xinfo_groups(stream), self.store.xpending_range(stream, "ingest", "-", "+", 5)
        raise Divergence(
            f"The stream never becomes empty: {self.store.xlen(stream)} entries, groups {groups}, pending {pending}, "
            f"{self.store.xinfo_stream(stream)['entries-added']} added, {self.entries} expected"
        )

    def before_replay(self, jobs: list[Job], outcomes: list[list[str]]) -> None:
        for job, plan in zip(jobs, outcomes, strict=True):
            if job.kind == "history":
                self.plans.rpush(f"plan:{job.id}", *plan)

    def choose_outcome(self, rng: random.Random) -> list[str]:
        return list(rng.choice(_REPLAYED))

    def is_replayable(self, job: Job) -> bool:
        return job.states == ("dead",) and job.kind != "expired"

    def note_sent(self, jobs: list[Job], outcomes: list[list[str]]) -> None:
        for job, plan in zip(jobs, outcomes, strict=True):
            job.run, job.attempts, job.plan = job.run + 1, 0, plan
            self.run(job)


class CeleryOnRedis(Celery):
    backend = "celery"

    @property
    def broker_url(self) -> str:
        return self.engine.url.removesuffix("/0") + "/1"

    def empty_broker(self) -> None:
        if not hasattr(self, "broker"):
            self.broker = redis.Redis.from_url(self.broker_url)
        left = [
            *self.broker.keys("q*"),
            *self.broker.keys("parked*"),
            *self.broker.keys("unacked*"),
            *self.broker.keys("redrive:*"),
        ]
        if left:
            self.broker.delete(*left)

    def wait_for_workers(self) -> None:
        """Wait also for the acknowledgements, which follow the reports: a job without one is executed again after a kill."""
        super().wait_for_workers()
        ends = time.monotonic() + _DEADLINE_S
        while self.broker.hlen("unacked"):
            if time.monotonic() > ends:
                raise Divergence(f"Not acknowledged: {self.broker.hkeys('unacked')}\n{self.worker.text()[-500:]}")
            time.sleep(0.002)

    def unpark(self, job: Job) -> None:
        messages = [one for one in self.broker.lrange(PARKED, 0, -1) if f'"id": "{job.id}"'.encode() in one]
        assert len(messages) == 1, (job, messages)
        self.broker.lrem(PARKED, 1, messages[0])
        self.broker.lpush(job.queue, messages[0])


class CeleryOnRabbitMQ(Celery):
    backend = "celery"

    def __init__(self, folder: Path) -> None:
        self.node = rabbitmq.Node(folder / "rabbitmq").start()
        self.connection = Connection(self.node.url)
        super().__init__(folder)

    @property
    def broker_url(self) -> str:
        return self.node.url

    kills_senders = False

    @act()
    def expire(self, rng: random.Random) -> None:
        """RabbitMQ itself drops what has expired."""

    def close(self) -> None:
        super().close()
        self.connection.close()
        self.node.stop()

    def declare(self, queue: str) -> None:
        self.connection.default_channel.queue_declare(
            queue, durable=True, auto_delete=False, arguments={"x-max-priority": 10}
        )

    def empty_broker(self) -> None:
        for queue in (*QUEUES, PARKED):
            self.connection.default_channel.queue_purge(queue)

    def restart_workers(self) -> None:
        """The pool `solo` acknowledges a message after its execution: RabbitMQ would deliver it again."""
        self.worker.kill()
        channel = self.connection.default_channel
        ends = time.monotonic() + _DEADLINE_S
        while any(channel.queue_declare(queue, passive=True).consumer_count for queue in QUEUES):
            if time.monotonic() > ends:
                raise Divergence("RabbitMQ does not notice that its consumer was killed")
            time.sleep(0.01)
        for queue in QUEUES:
            channel.queue_purge(queue)
        self.worker.start()

    def unpark(self, job: Job) -> None:
        channel = self.connection.default_channel
        others = []
        while message := channel.basic_get(PARKED):
            if message.properties["application_headers"]["id"] == job.id:
                properties = dict(message.properties)
                channel.basic_publish(amqp.Message(message.body, **properties), exchange="", routing_key=job.queue)
                channel.basic_ack(message.delivery_tag)
                break
            others.append(message)
        else:
            raise Divergence(f"{job} does not lie in {PARKED}")
        for message in others:
            channel.basic_reject(message.delivery_tag, requeue=True)
