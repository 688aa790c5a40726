"""Histories of Bull: those of BullMQ, without events. What is absent may have run, and is not sent again."""

from __future__ import annotations

import random
from pathlib import Path

import redis

from tests.histories.bullmq import Bullmq, Job
from tests.histories.kit import act


class Bull(Bullmq):
    backend = "bull"

    def __init__(self, folder: Path, major: str = "bull4") -> None:
        super().__init__(folder, major)

    die_unheard = None  # there are no events

    def empty_system(self, rng: random.Random) -> None:
        super().empty_system(rng)
        with redis.Redis.from_url(self.url) as client:
            client.mset({f"bull:{queue}:id": 0 for queue in self.queues})  # they are known

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place):
            self.producers.do(["job", job.queue, job.id, "remove"])
            job.place, job.has_message = "", False
            if job.states[0] == "retrying":
                job.states = ("gone",)

    @act()
    def retry_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place == "failed" and job.states == ("dead",)):
            outcome = rng.choice(("ok", "last"))
            self.producers.do(["plan", job.queue, job.id, [outcome]], ["job", job.queue, job.id, "retry"])
            self.executions += 1
            self.wait_for_workers()
            if outcome == "ok":
                job.place, job.states, job.attempts = "", ("gone",), None
            else:
                job.attempts += 1

    @act()
    def clean_by_others(self, rng: random.Random) -> None:
        super().clean_by_others(rng)
        for job in self.jobs:
            job.has_message = job.has_message and (job.place == "failed" or job.id in self.removed)

    def choose_bounds(self, rng: random.Random) -> None:
        from jobs_admin.sources.bullmq import reading

        super().choose_bounds(rng)
        self.set_bound(reading, "_ONLY_TURN_MS", 0)

    def read_reports(self) -> None:
        """Retries are found only in turn, a page at each reading."""
        from jobs_admin.retries import pulling

        super().read_reports()
        for _ in range(len([job for job in self.jobs if job.place]) + 2):
            pulling.pull(self.source, "histories:1")

    def begin(self, rng: random.Random) -> None:
        self.removed: set[str] = set()  # jobs that the desk took out, and did not send since
        super().begin(rng)

    def removed_by_us(self, job: Job) -> None:
        if job.place == "failed":
            self.removed.add(job.id)
        super().removed_by_us(job)

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        self.removed -= {job.id for job in jobs}
        super().note_sent(jobs, outcomes)
