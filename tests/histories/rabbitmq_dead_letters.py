"""Histories of RabbitMQ's dead-letter queues: a real broker, consumers in this process, and the desk's own steps beside them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from dashboard.setup.engine import Engine
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from tests.histories.desk import JobKey
from tests.histories.kit import Divergence, act
from tests.histories.source import PulledWorld
from tests.kit import rabbitmq
from tests.kit.rabbit_bus import Bus

QUEUES = [f"q{n}" for n in range(20)]
SOURCES = {
    "shop": ("mirror", QUEUES),
    "store": ("drain", QUEUES),
    "corner": ("mirror", QUEUES[:4]),
    "kiosk": ("drain", QUEUES[:4]),
}
ERRORS = ("the partner is down", "no such customer", "timed out after 30 s")


@dataclass
class Job:
    """The model of one message."""

    source: str
    queue: str
    id: str
    body: dict
    place: str = ""  # dlq, or "" (drained, sent, taken out)
    states: tuple[str, ...] = ()
    run: int | None = 1
    attempts: int | None = None
    is_one_of_equals: bool = False
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey(self.source, self.queue, self.id)


class RabbitMQDeadLetters(PulledWorld):
    """The source `shop` reads dead letters where they lie, `store` drains them; `corner` and `kiosk` do so with few queues, so
    that most histories are cheap.
    """

    kills_senders = False
    sources, suffix = SOURCES, ".dlq"

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder / "engine").start()
        self.node = rabbitmq.Node(folder / "rabbitmq").start()
        self.bus = Bus(self.node.url)
        for queue in QUEUES:
            self.bus.declare(f"{queue}{self.suffix}")
            self.bus.declare(queue, dead_letter_exchange="", dead_letter_routing_key=f"{queue}{self.suffix}")
        self.used = QUEUES
        tables = [
            f'[sources.{source}]\nurl = "{self.node.url}"\n{self.settings(mode, queues)}\n'
            for source, (mode, queues) in self.sources.items()
        ]
        super().__init__(folder, "".join(tables), self.engine.url)

    def settings(self, mode: str, queues: list[str]) -> str:
        dead = ", ".join(f'{{name = "{queue}.dlq", of = "{queue}"}}' for queue in queues)
        return f'backend = "rabbitmq"\ndead_letter_queues = [{dead}]\nmode = "{mode}"'

    def read_body(self, octets: str | bytes) -> dict:
        return json.loads(octets)

    def close(self) -> None:
        self.bus.close()
        self.node.stop()
        self.engine.stop()

    def empty_system(self, rng: random.Random) -> None:
        for queue in self.used:
            for name in (queue, f"{queue}{self.suffix}"):
                self.bus.channel.queue_purge(name)
        self.source = rng.choice([*(("corner",) * 2 if "corner" in self.sources else ()), *self.sources])
        self.mode, self.used = self.sources[self.source]
        self.queues = rng.sample(self.used, rng.choice([1, 1, 2, 3, 5, 20][: len(self.used)]))
        self.store.flushdb()

    def choose_bounds(self, rng: random.Random) -> None:
        from jobs_admin.sources.rabbitmq import reading, source

        bound = super().choose_bounds(rng)
        self.set_bound(source, "_PAGE", bound)
        self.set_bound(reading, "_DRAINED_AT_ONCE", rng.choice([bound, 200]))
        self.set_bound(reading, "_MOST_NEW", rng.choice([bound, 20_000, 20_000]))
        # A queue is looked at in each round, however busy the machine is, and in some histories read whole.
        self.set_bound(source, "_HEAD_EVERY_S", 0.0)
        self.set_bound(reading, "AGAIN_S", rng.choice([0.0, 600.0]))
        self.set_bound(reading, "_SHORT_S", 1e9)

    # Acts of producers and consumers

    def publish(self, queue: str, body: dict, message_id: str | None) -> Job:
        octets = json.dumps(body).encode()
        digest = rabbitmq_death._digest(queue.encode(), *([message_id.encode()] if message_id else []), octets)
        job = Job(self.source, queue, f"{message_id}.{digest[:16]}", body)
        self.bus.publish(queue, body, **({"message_id": message_id} if message_id else {}))
        self.jobs.append(job)
        return job

    def consume(self, queue: str, outcomes: list[str], error: str = ERRORS[0]) -> None:
        """The waiting messages, in order: ok, forward (to the dead-letter queue, as the event bus does) or reject."""
        for outcome in outcomes:
            message = self.bus.channel.basic_get(queue)
            if message is None:
                raise Divergence(f"{queue} has fewer messages than were sent to it")
            if outcome == "reject":
                self.bus.channel.basic_reject(message.delivery_tag, requeue=False)
                continue
            if outcome == "forward":
                fields = {"x-exception-message": error, "x-exception-type": "PartnerDown", "x-attempts": 5}
                headers = {**message.properties.get("application_headers", {}), **fields}
                message.properties["application_headers"] = headers
                self.bus.channel.basic_publish(message, exchange="", routing_key=f"{queue}{self.suffix}")
            self.bus.channel.basic_ack(message.delivery_tag)
        if self.bus.channel.basic_get(queue) is not None:
            raise Divergence(f"{queue} has more messages than were sent to it")

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            count = self.size(rng)
            for _ in range(count):
                self.made += 1
                job = self.publish(queue, {"n": self.made}, f"m-{self.made}")
                job.place, job.states = "dlq", ("dead",)
            self.consume(queue, [rng.choice(("forward", "reject")) for _ in range(count)], rng.choice(ERRORS))

    @act()
    def succeed(self, rng: random.Random) -> None:
        queue = rng.choice(self.queues)
        self.made += 1
        self.publish(queue, {"n": self.made}, f"m-{self.made}")
        self.consume(queue, ["ok"])

    # Acts of other people

    @act()
    def take_out_by_others(self, rng: random.Random) -> None:
        """Without its management RabbitMQ does not report who took a message: the desk keeps it."""
        from jobs_admin.sources.rabbitmq import reading

        self.read()
        self.set_bound(reading, "AGAIN_S", 0.0)  # one taken out and one that dies are as many as before
        for job in self.some(rng, lambda job: job.place == "dlq"):
            others = []
            while message := self.bus.channel.basic_get(f"{job.queue}{self.suffix}"):
                if self.read_body(message.body) == job.body:
                    self.bus.channel.basic_ack(message.delivery_tag)
                    break
                others.append(message)
            for message in reversed(others):
                self.bus.channel.basic_reject(message.delivery_tag, requeue=True)
            job.place = ""

    # The desk's part

    def is_replayable(self, job: Job) -> bool:
        return job.states == ("dead",)

    def choose_outcome(self, rng: random.Random) -> str:
        return rng.choice(("ok", "forward", "reject"))

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        """The order in which they were sent is the desk's: by their bodies it is known whose turn it is."""
        left = {json.dumps(job.body): (job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)}
        for queue in {job.queue for job in jobs}:
            turns = []
            messages = []
            while message := self.bus.channel.basic_get(queue):
                messages.append(message)
                job, outcome = left.pop(json.dumps(self.read_body(message.body)), (None, "ok"))
                if job is None or job.queue != queue:
                    raise Divergence(f"{queue} got {message.body!r}, which was not sent there now, or twice")
                turns.append(outcome)
                job.run, job.place = job.run + 1, "" if outcome == "ok" else "dlq"
                job.states = ("gone",) if outcome == "ok" else ("dead",)
            for message in reversed(messages):
                self.bus.channel.basic_reject(message.delivery_tag, requeue=True)
            self.consume(queue, turns)
        if left:
            raise Divergence(f"{sorted(left)} were said to be sent and are in no queue")

    def settle(self, replay) -> None:
        """RabbitMQ reports no success: what was sent is gone from the desk, unless it dies again."""
        from jobs_admin import replays

        for _ in range(2):
            self.read()
            self.run_desk(replays.settle)

    def removed_by_us(self, job: Job) -> None:
        if self.mode == "mirror":
            job.place = ""

    def check(self) -> None:
        super().check()
        for queue in self.queues:
            there = sum(job.place == "dlq" for job in self.jobs if job.queue == queue)
            depth = self.bus.depth(f"{queue}{self.suffix}")
            # What is drained lies with us; what was sent or discarded leaves a mirrored queue within some rounds.
            if depth != (0 if self.mode == "drain" else there):
                raise Divergence(f"{queue}{self.suffix} holds {depth}, the model {there}")
