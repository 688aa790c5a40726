"""Histories of BullMQ: real producers and workers on Node, a real Valkey, and the desk's own steps in this process."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from dashboard.setup.engine import Engine
from tests.histories.desk import JobKey
from tests.histories.kit import act
from tests.histories.source import QUEUES, PulledWorld
from tests.kit import node

_NEVER_MS = 10**9
ERRORS = ("the partner is down", "no such customer", "timed out after 30 s")


@dataclass
class Job:
    """The model of one job of BullMQ."""

    queue: str
    id: str
    place: str = ""  # where it is in BullMQ: failed, delayed, "" (it succeeded, or is gone)
    states: tuple[str, ...] = ()  # on the desk; () where the desk has never heard of it
    run: int | None = 1
    attempts: int | None = 0  # of the current run
    most: int = 1  # attempts that BullMQ gives it
    has_message: bool = True
    is_known: bool = False  # the desk has read of it

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class Producers:
    """The Node process, and how many executions it has to have ended."""

    def __init__(self, major: int | str, url: str) -> None:
        self.script = node.Script(
            node.packages() / "history.mjs", json.dumps({"bullmq": major, "url": url, "queues": QUEUES})
        ).start()
        self.script.wait_for('"ready"')
        self._asked = 0

    def do(self, *acts: list) -> list:
        self._asked += 1
        after = len(self.script.lines)
        self.script.write(json.dumps({"n": self._asked, "acts": acts}))
        line = self.script.wait_for(lambda line: f'"n":{self._asked},' in line, after)
        data = json.loads(line)
        assert data["say"] == "done", data["message"]
        del self.script.lines[: after + 1]
        return data["answers"]

    def stop(self) -> None:
        self.script.stop()


class Bullmq(PulledWorld):
    source = "shop"

    backend = "bullmq"

    def __init__(self, folder: Path, major: int | str = 6) -> None:
        self.engine = Engine(folder / "engine").start()
        self.url = self.engine.url.removesuffix("/0") + "/1"
        self.major = major
        self.producers = Producers(major, self.url)
        super().__init__(folder, f'[sources.shop]\nbackend = "{self.backend}"\nurl = "{self.url}"\n', self.engine.url)

    def close(self) -> None:
        self.producers.stop()
        self.engine.stop()

    def empty_system(self, rng: random.Random) -> None:
        self.store.flushdb()
        self.queues = rng.sample(QUEUES, rng.choice([1, 1, 2, 3, 5, 20]))
        self.executions = 0
        self.producers.do(["empty", self.queues])

    def choose_bounds(self, rng: random.Random) -> None:
        from jobs_admin.sources.bullmq import jobs, reading

        bound = super().choose_bounds(rng)
        self.set_bound(reading, "_PAGE", bound)
        self.set_bound(reading, "_TURN_PAGE", rng.choice([bound, 300]))
        self.set_bound(reading, "_EVENTS", rng.choice([bound, 2_000, 2_000]))
        self.set_bound(reading, "_TURN_MS", rng.choice([0, 3_000]))
        self.set_bound(jobs, "_SAVED_AT_ONCE", rng.choice([1, bound, 100]))

    # Acts of producers and workers

    def add(self, rng: random.Random, queue: str, plans: list[list[str]], **options) -> list[Job]:
        jobs = []
        for _ in plans:
            self.made += 1
            jobs.append(Job(queue, f"j{self.made}", most=options.get("attempts", 1)))
        self.producers.do(
            *(["plan", queue, job.id, plan] for job, plan in zip(jobs, plans, strict=True)),
            [
                "add",
                queue,
                [
                    {"name": rng.choice(("welcome", "invoice")), "data": {"n": job.id, "error": rng.choice(ERRORS)},
                     "opts": {"jobId": job.id, "backoff": {"type": "fixed", "delay": _NEVER_MS}, **options}}
                    for job in jobs
                ],
            ],
        )  # fmt: skip
        self.executions += len(jobs)
        for job, plan in zip(jobs, plans, strict=True):
            self.ends(job, plan[0] if plan else "ok")
        self.jobs += jobs
        return jobs

    def ends(self, job: Job, outcome: str) -> None:
        """One execution ended so."""
        job.attempts = (job.attempts or 0) + 1
        if outcome == "ok":
            job.place, job.attempts = "", None
            job.states = ("recovered",) if job.is_known else ()
        elif outcome == "fail" and job.attempts < job.most:
            job.place, job.states = "delayed", ("retrying",)
        else:
            job.place, job.states = "failed", ("dead",)

    @act(weight=4)
    def die(self, rng: random.Random) -> None:
        for queue in rng.sample(self.queues, rng.randint(1, min(3, len(self.queues)))):
            if count := self.size(rng):
                self.add(rng, queue, [["fail"]] * count)

    @act()
    def die_unheard(self, rng: random.Random) -> None:
        """The events of these deaths are trimmed before they are read, so that only the sets show them."""
        self.read()
        self.die(rng)
        self.wait_for_workers()
        self.producers.do(*(["queue", queue, "trimEvents", 0] for queue in self.queues))

    @act()
    def succeed(self, rng: random.Random) -> None:
        self.add(rng, rng.choice(self.queues), [[]] * rng.randint(1, 3))

    @act(weight=2)
    def fail_and_wait(self, rng: random.Random) -> None:
        if count := self.size(rng):
            self.add(rng, rng.choice(self.queues), [["fail"]] * count, attempts=rng.randint(2, 3))

    @act(weight=2)
    def promote(self, rng: random.Random) -> None:
        for job in self.some(rng, lambda job: job.place == "delayed"):
            outcome = rng.choice(("ok", "fail", "last"))
            self.wait_for_workers()
            self.read_first(rng)
            self.producers.do(["plan", job.queue, job.id, [outcome]], ["job", job.queue, job.id, "promote"])
            self.executions += 1
            self.ends(job, outcome)
            self.wait_for_workers()

    # Acts of other people

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place):
            self.producers.do(["job", job.queue, job.id, "remove"])
            job.place = ""
            if job.states[0] in ("dead", "retrying"):
                job.states = ("gone",)

    @act()
    def retry_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place == "failed" and job.states == ("dead",)):
            outcome = rng.choice(("ok", "last"))
            self.producers.do(["plan", job.queue, job.id, [outcome]], ["job", job.queue, job.id, "retry", "failed"])
            self.executions += 1
            self.wait_for_workers()
            if outcome == "ok":  # how a job ended that the desk once sent is told
                job.place, job.states, job.attempts = "", ("gone" if job.run == 1 else "recovered",), None
            else:
                job.attempts += 1

    @act()
    def clean_by_others(self, rng: random.Random) -> None:
        """As BullMQ's own trimming: no event names the jobs, so that the desk keeps them."""
        self.read()
        queue = rng.choice(self.queues)
        self.producers.do(["queue", queue, "clean", 0, 10_000, "failed"])
        for job in self.jobs:
            if job.queue == queue and job.place == "failed":
                job.place = ""

    # The desk's part

    def restart_workers(self) -> None:
        self.producers.script.kill()
        self.producers = Producers(self.major, self.url)
        self.executions = 0

    def wait_for_workers(self) -> None:
        self.producers.do(["ended", self.executions])

    def before_replay(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.producers.do(
            *(["plan", job.queue, job.id, [outcome]] for job, outcome in zip(jobs, outcomes, strict=True))
        )

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.executions += len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.run, job.attempts, job.states = job.run + 1, 0, ("replaying",)
            self.ends(job, outcome)

    def is_replayable(self, job: Job) -> bool:
        return job.states == ("dead",) and job.has_message

    def removed_by_us(self, job: Job) -> None:
        job.place = ""
