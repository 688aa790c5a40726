"""Histories of Dramatiq: its real producer and worker, a real Valkey, and the desk's own steps in this process."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.histories.desk import JobKey
from tests.histories.kit import act
from tests.histories.source import ShopWorld

_NEVER_MS = 10**9


@dataclass
class Job:
    """The model of one message of Dramatiq."""

    queue: str
    id: str
    most: int = 1  # attempts that Dramatiq gives it
    is_dead: bool = False  # in Dramatiq
    waits: bool = False  # there, for a retry
    has_waited: bool = False
    states: tuple[str, ...] = ()  # on the desk; () where the desk has never heard of it
    run: int = 1
    attempts: int | None = None  # of the current run; None: unknown
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class Dramatiq(ShopWorld):
    library = "dramatiq"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.client = redis.Redis.from_url(self.url)

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.sources import death_reading
        from jobs_admin.sources.dramatiq import absences, delayed, source, wire

        bound = super().choose_bounds(rng)
        self.set_bound(death_reading, "_PAGE", bound)
        self.set_bound(death_reading, "_AGAIN_MS", rng.choice([0, 600_000]))
        self.set_bound(delayed, "_TURN_MS", 0)
        self.set_bound(absences, "_APART_S", 0)
        self.set_bound(absences, "_PAGES", 1_000)
        self.set_bound(delayed, "_TURN_MESSAGES", rng.choice([50, 5_000]))
        self.set_bound(wire, "_QUEUES_FOR_S", 0.0)
        self.set_bound(wire, "_SEARCH_SHARE", 0)
        self.set_bound(wire, "_AT_ONCE", rng.choice([bound, 200]))
        self.set_bound(wire, "_PAGE_OF_SCAN", rng.choice([1, bound, 300]))
        self.set_bound(source, "_MESSAGES_PER_CALL", rng.choice([1, bound, 100]))
        return bound

    # Acts of producers and workers

    def add(self, rng: random.Random, queue: str, count: int, outcome: str, first: str = "") -> None:
        """Add jobs, which run. `first`: an execution before the attempts that Dramatiq counts."""
        most, jobs = rng.randint(1, 2), []
        for _ in range(count):
            self.made += 1
            jobs.append(Job(queue, f"j{self.made}", most))
        options = {"max_retries": most - 1, "min_backoff": 1, "max_backoff": 1}
        data = [
            {
                "args": [{"n": job.id}],
                "id": job.id,
                "options": options,
                "plan": [first] * bool(first) + self.plan(job, outcome),
            }
            for job in jobs
        ]
        if first:
            self.die_with_worker(queue, data)
        else:
            self.shop.do(["add", queue, data], ["work", queue])
        self.jobs += jobs
        for job in jobs:
            self.ends(job, outcome)

    def plan(self, job: Job, outcome: str) -> list[str]:
        """Ends of the attempts of a run."""
        return ["fail"] * (job.most - 1) + [outcome]

    def ends(self, job: Job, outcome: str) -> None:
        """One run ended so."""
        job.is_dead, job.waits = outcome != "ok", False
        if job.is_dead:
            job.attempts, job.states = job.most, ("dead",)
        else:
            job.attempts, job.states = None, ("recovered",) if job.is_known else ()

    def die_with_worker(self, queue: str, data: list[dict[str, object]]) -> None:
        """The worker is killed while it runs one of these; another one gets them all."""
        self.client.delete("ran")
        self.shop.start(["add", queue, data], ["work", queue])
        while not self.client.llen("ran"):
            time.sleep(0.01)
        self.restart_workers()
        plans = [["plan", one["id"], one["plan"][1:]] for one in data]  # type: ignore[index]
        self.shop.do(*plans, ["maintain", queue, 0, 10**10], ["work", queue])

    @act()
    def kill_worker(self, rng: random.Random) -> None:
        self.add(rng, rng.choice(self.queues), rng.randint(1, 3), rng.choice(("ok", "fail")), first="hang")

    @act(weight=2)
    def fail_and_wait(self, rng: random.Random) -> None:
        queue = rng.choice(self.queues)
        options = {"max_retries": 1, "min_backoff": _NEVER_MS}
        for _ in range(self.size(rng)):
            self.made += 1
            job = Job(queue, f"j{self.made}", 2, waits=True, has_waited=True, states=("retrying",), attempts=1)
            data = {"args": [{"n": job.id}], "id": job.id, "options": options, "plan": ["fail"]}
            self.shop.do(["add", queue, [data]])
            self.jobs.append(job)
        self.shop.do(["work", queue])

    @act(weight=2)
    def retry(self, rng: random.Random) -> None:
        """The time of retries has come."""
        for job in self.some(rng, lambda job: job.waits):
            outcome = rng.choice(("ok", "fail"))
            self.read()
            self.shop.do(["plan", job.id, [outcome]], ["due", job.queue, job.id], ["work", job.queue])
            self.ends(job, outcome)

    # Acts of other people

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.is_dead):
            self.shop.do(["delete", job.queue, job.id])
            job.is_dead = False
            if job.states == ("dead",):
                job.states = ("gone",)

    @act()
    def retry_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.is_dead and job.states == ("dead",)):
            outcome = rng.choice(("ok", "fail"))
            self.shop.do(["plan", job.id, [outcome]], ["bring_back", job.queue, job.id], ["work", job.queue])
            if outcome == "ok":
                job.is_dead, job.states, job.attempts = False, ("gone",), None
            else:
                job.run += 1

    # The desk's part

    def read_reports(self) -> None:
        """Retries are met in turn only: that one is over shows when two rounds did not meet it."""
        from jobs_admin.retries import pulling

        super().read_reports()
        for _ in range(3 * (len(self.queues) + 8) if any(job.has_waited for job in self.jobs) else 0):
            pulling.pull(self.source, "histories:1")

    def before_replay(self, jobs: list[Job], outcomes: list[str]) -> None:
        plans = [self.plan(job, "ok" if one == "ok" else "fail") for job, one in zip(jobs, outcomes, strict=True)]
        self.shop.do(*(["plan", job.id, plan] for job, plan in zip(jobs, plans, strict=True)))

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.shop.do(["work", *{job.queue for job in jobs}])
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.run += 1
            self.ends(job, "ok" if outcome == "ok" else "fail")

    def removed_by_us(self, job: Job) -> None:
        job.is_dead = False
