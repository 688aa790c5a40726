"""Histories of SQS's dead-letter queues: its protocol on a real port, consumers in this process, and the desk's own steps."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

from dashboard.setup.engine import Engine
from tests.histories.desk import JobKey
from tests.histories.kit import Divergence, act
from tests.histories.source import PulledWorld
from tests.kit.sqs import REGION, Shop, start_server

QUEUES = [f"q{n}" for n in range(6)]
_MOST_READERS = 50


@dataclass
class Job:
    """The model of one message."""

    queue: str
    id: str
    n: int  # its body
    states: tuple[str, ...] = ("dead",)
    run: int | None = 1
    attempts: int | None = 1
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class SqsDeadLetters(PulledWorld):
    kills_senders = False

    def __init__(self, folder: Path) -> None:
        import boto3

        os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        self.engine = Engine(folder / "engine").start()
        self.server, url = start_server()
        self.shop = Shop()
        self.shop.client = boto3.session.Session().client("sqs", region_name=REGION, endpoint_url=url)
        for queue in QUEUES:
            self.shop.declare(queue, f"{queue}-dlq")
        table = f'[sources.shop]\nbackend = "sqs"\nurl = "sqs://{REGION}"\nendpoint_url = "{url}"\n'
        super().__init__(folder, f"{table}queues = {json.dumps(QUEUES)}\n", self.engine.url)

    def close(self) -> None:
        self.server.stop()
        self.engine.stop()

    def empty_system(self, rng: random.Random) -> None:
        self.store.flushall()
        for queue in QUEUES:
            self.shop.work(queue)
            self.become_visible(queue)
            self.shop.work(f"{queue}-dlq")
        self.queues = rng.sample(QUEUES, rng.choice([1, 1, 2, 6]))

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.sources.sqs import sender, source

        bound = super().choose_bounds(rng)
        self.set_bound(source, "_PAGE", bound)
        self.set_bound(source, "_RECEIVED_AT_ONCE", rng.choice([bound, 10]))
        self.set_bound(sender, "_AT_ONCE", rng.choice([bound, 10]))
        return bound

    def become_visible(self, queue: str) -> None:
        """The time is over for which a reader that died had hidden its messages."""
        for message in self.shop.in_memory(f"{queue}-dlq")._messages:
            message.visible_at = 0.0

    # Acts of producers and consumers

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            numbers = range(self.made, self.made + self.size(rng))
            self.made += len(numbers)
            ids = self.shop.send_all(queue, [{"n": n} for n in numbers])
            self.shop.fail_again(queue)
            self.jobs += [Job(queue, *one) for one in zip(ids, numbers, strict=True)]

    @act()
    def succeed(self, rng: random.Random) -> None:
        queue = rng.choice(self.queues)
        self.shop.send_all(queue, [{"n": -1}])
        self.shop.work(queue)

    # The desk's part

    def read(self) -> None:
        """The desk reads until all dead letters are filed and deleted; what a killed reader had received comes back."""
        for _ in range(_MOST_READERS):
            super().read()
            if not any(self.shop.count_in(f"{queue}-dlq") for queue in self.queues):
                return
            for queue in self.queues:
                self.become_visible(queue)
        raise Divergence("Some dead letters are never deleted.")

    def choose_outcome(self, rng: random.Random) -> str:
        return rng.choice(("ok", "dead"))

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        left = {job.n: (job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)}
        for queue in {job.queue for job in jobs}:
            succeeds = []
            for data in self.shop.waiting_data(queue):
                job, outcome = left.pop(data["n"], (None, ""))
                if job is None or job.queue != queue:
                    raise Divergence(f"{queue} got {data}, which was not sent there now, or twice")
                job.run, job.states = job.run + 1, ("gone",) if outcome == "ok" else ("dead",)
                succeeds += [data["n"]] if outcome == "ok" else []
            self.shop.work(queue, lambda data, ok=tuple(succeeds): data["n"] in ok)
        if left:
            raise Divergence(f"{sorted(left)} are sent and in no queue")

    def settle(self, replay) -> None:
        """SQS reports no success: what was sent is gone from the desk, unless it dies again."""
        from jobs_admin import replays

        for _ in range(2):
            self.read()
            self.run_desk(replays.settle)
