"""Histories of RQ: its real producer, worker and scheduler, a real Valkey, and the desk's own steps in this process."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.histories.desk import JobKey
from tests.histories.kit import act
from tests.histories.source import ShopWorld

_NEVER_S = 10**7


@dataclass
class Job:
    """The model of one job of RQ."""

    queue: str
    id: str
    most: int = 1  # attempts that RQ gives it
    place: str = ""  # where it is in RQ: failed, scheduled, "" (it succeeded, or is gone)
    states: tuple[str, ...] = ()  # on the desk; () where the desk has never heard of it
    run: int | None = 1
    attempts: int | None = 0  # of the current run
    was_sent: bool = False  # by the desk
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class Rq(ShopWorld):
    library = "rq"

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.sources.rq import reading, source, wire

        bound = super().choose_bounds(rng)
        self.set_bound(reading, "_PAGE", bound)
        self.set_bound(reading, "_TURN_MS", 0)
        self.set_bound(wire, "_QUEUES_FOR_S", 0.0)
        self.set_bound(wire, "_JOBS_AT_ONCE", rng.choice([bound, 200]))
        self.set_bound(source, "_MESSAGES_PER_CALL", rng.choice([1, bound, 100]))
        return bound

    # Acts of producers and workers

    def add(self, rng: random.Random, queue: str, count: int, outcome: str, most: int = 1) -> None:
        jobs = []
        for _ in range(count):
            self.made += 1
            jobs.append(Job(queue, f"j{self.made}", most))
        retry = {"retry": {"max": most - 1, "interval": [_NEVER_S] * (most - 1)}} if most > 1 else {}
        data = [{"args": [{"n": job.id}], "job_id": job.id, "plan": [outcome], **retry} for job in jobs]
        self.shop.do(["add", queue, data], ["work", queue])
        self.jobs += jobs
        for job in jobs:
            self.ends(job, outcome)

    def ends(self, job: Job, outcome: str) -> None:
        """One execution ended so."""
        job.attempts = (job.attempts or 0) + 1
        if outcome == "ok":
            job.place, job.attempts = "", None
            job.states = ("recovered",) if job.is_known else ()
        elif job.attempts < job.most:
            job.place, job.states = "scheduled", ("retrying",)
        else:
            job.place, job.states = "failed", ("dead",)

    @act(weight=2)
    def fail_and_wait(self, rng: random.Random) -> None:
        self.add(rng, rng.choice(self.queues), self.size(rng), "fail", most=rng.randint(2, 3))

    @act(weight=2)
    def promote(self, rng: random.Random) -> None:
        for job in self.some(rng, lambda job: job.place == "scheduled"):
            outcome = rng.choice(("ok", "fail"))
            self.read_first(rng)
            self.shop.do(["plan", job.id, [outcome]], ["promote", job.queue, job.id], ["work", job.queue])
            self.ends(job, outcome)

    # Acts of other people

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place):
            self.shop.do(["delete", job.id])
            job.place = ""
            if job.states[0] in ("dead", "retrying"):
                job.states = ("gone",)

    @act()
    def retry_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place == "failed" and job.states == ("dead",)):
            outcome = rng.choice(("ok", "fail"))
            self.shop.do(["plan", job.id, [outcome]], ["requeue", job.id], ["work", job.queue])
            if outcome == "ok":
                job.place, job.states, job.attempts = "", ("gone",), None
            elif job.was_sent:
                job.attempts += 1
            else:
                job.run, job.attempts = job.run + 1, 1

    # The desk's part

    def read_reports(self) -> None:
        """Retries are met in turn only: as many readings as pages."""
        from jobs_admin.retries import pulling
        from jobs_admin.sources.rq import reading

        super().read_reports()
        for _ in range(len(self.jobs) // reading._PAGE + 1):
            pulling.pull(self.source, "histories:1")

    def before_replay(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.shop.do(
            *(["plan", job.id, ["ok" if one == "ok" else "fail"]] for job, one in zip(jobs, outcomes, strict=True))
        )

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.shop.do(["work", *{job.queue for job in jobs}])
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.run, job.attempts, job.most, job.was_sent = job.run + 1, 0, 1, True
            job.states = ("replaying",)
            self.ends(job, outcome)

    def removed_by_us(self, job: Job) -> None:
        job.place = ""
