"""Histories of Sidekiq: its real producer and processor, a real Valkey, and the desk's own steps in this process."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.histories.desk import JobKey
from tests.histories.kit import Divergence, act
from tests.histories.source import ShopWorld

_EMPTY = "empty"


@dataclass
class Job:
    """The model of one job of Sidekiq."""

    queue: str
    id: str
    most: int = 1  # attempts that Sidekiq gives it
    count: int = 0  # number of the attempt that failed last, as Sidekiq counts
    place: str = ""  # where it is in Sidekiq: queue, retry, dead, "" (it succeeded, or is gone)
    planned: str = ""  # end of its next execution
    states: tuple[str, ...] = ()  # on the desk; () where the desk has never heard of it
    run: int = 1
    attempts: int | None = 0  # of the current run
    is_new: bool = False  # its latest failure has not been read
    was_read_dead: bool = False  # a death of this run has been read
    was_brought_back: bool = False  # from its latest death, and has not been read since
    is_known: bool = False

    @property
    def key(self) -> JobKey:
        return JobKey("shop", self.queue, self.id)


class Sidekiq(ShopWorld):
    library = "sidekiq"
    most_acts = 12

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.client = redis.Redis.from_url(self.url)

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.sources import death_reading
        from jobs_admin.sources.sidekiq import retries, wire

        bound = super().choose_bounds(rng)
        self.set_bound(death_reading, "_PAGE", bound)
        self.set_bound(death_reading, "_AGAIN_MS", rng.choice([0, 600_000]))
        self.set_bound(death_reading, "_BYTES", rng.choice([1, 1_000, 16_000_000]))
        self.set_bound(death_reading, "_REMEMBERED", rng.choice([bound, 200_000]))
        self.set_bound(retries, "_TURN_MS", 0)
        self.set_bound(retries, "_TURN_JOBS", rng.choice([bound, 2_000]))
        self.set_bound(retries, "_REMEMBERED", rng.choice([0, bound, 200_000]))
        self.set_bound(retries, "APART_S", 0)
        self.set_bound(wire, "_PAGE_BYTES", rng.choice([1, 1_000, 4_000_000]))
        self.set_bound(wire, "_FOUND_BYTES", rng.choice([100_000, 4_000_000]))
        self.set_bound(wire, "_COUNTED_AT_ONCE", rng.choice([bound, 500]))
        self.set_bound(wire, "_COUNTED_BYTES_AT_ONCE", rng.choice([1, 2_000_000]))
        self.set_bound(wire, "_SEARCHED_AT_ONCE", rng.choice([20, 500]))
        self.set_bound(wire, "_SEARCHED_BYTES", rng.choice([1, 2_000_000]))
        return bound

    def empty_system(self, rng: random.Random) -> None:
        super().empty_system(rng)
        self.client.sadd("queues", _EMPTY)

    def begin(self, rng: random.Random) -> None:
        super().begin(rng)
        self.fail_and_wait(rng)
        self.die(rng)

    # Acts of producers and workers

    def add(self, rng: random.Random, queue: str, count: int, outcome: str, most: int = 1) -> None:
        jobs = []
        for _ in range(count):
            self.made += 1
            jobs.append(Job(queue, f"j{self.made}", most, place="queue", planned=outcome))
        data = [
            {"args": [{"n": job.id}], "jid": job.id, "retry": most - 1, "plan": [outcome], "backtrace": most == 1}
            for job in jobs
        ]
        self.shop.do(["add", queue, data])
        self.jobs += jobs
        self.work(queue)

    def work(self, *queues: str) -> None:
        """All jobs of these queues run."""
        self.shop.do(*(["work", queue] for queue in queues))
        for job in self.jobs:
            if job.place == "queue" and job.queue in queues:
                self.ends(job, job.planned)

    def ends(self, job: Job, outcome: str) -> None:
        """One execution ended so."""
        if outcome != "fail":
            job.place, job.states = "", ("gone",) if job.states else ()
            return
        job.count, job.is_new = job.count + 1, True
        job.place = "retry" if job.count < job.most else "dead"
        job.states = ("retrying",) if job.place == "retry" else ("dead",)

    def bring(self, jobs: list[Job], how: str, outcomes: list[str]) -> None:
        """Bring jobs to their queues."""
        acts = [["plan", job.id, [one]] for job, one in zip(jobs, outcomes, strict=True)]
        self.shop.do(*acts, *([how, job.id] for job in jobs))
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.place, job.planned = "queue", outcome

    @act(weight=3)
    def work_somewhere(self, rng: random.Random) -> None:
        self.work(*{job.queue for job in self.some(rng, lambda job: job.place == "queue")})

    @act(weight=3)
    def fail_and_wait(self, rng: random.Random) -> None:
        self.add(rng, rng.choice(self.queues), self.size(rng), "fail", most=rng.randint(2, 4))

    @act(weight=3)
    def promote(self, rng: random.Random) -> None:
        self.read()
        jobs = self.some(rng, lambda job: job.place == "retry", most=self.bound + 1)
        outcomes = [rng.choice(("ok", "fail", "fail")) for _ in jobs]
        self.bring(jobs, "promote", outcomes)
        self.work_or_wait(rng, jobs)

    def work_or_wait(self, rng: random.Random, jobs: list[Job]) -> None:
        if rng.random() < 0.6:
            self.work(*{job.queue for job in jobs})

    @act()
    def fail_unread(self, rng: random.Random) -> None:
        """The desk reads none of these attempts but the last."""
        for job in self.some(rng, lambda job: job.place == "retry"):
            for _ in range(rng.randint(1, job.most - job.count)):
                self.bring([job], "promote", ["fail"])
                self.work(job.queue)

    @act(weight=2)
    def die_at_one_moment(self, rng: random.Random) -> None:
        at = time.time() - self.clock.ahead_s - rng.randint(0, 5)
        for _ in range(self.size(rng)):
            self.made += 1
            job = Job(rng.choice(self.queues), f"j{self.made}", count=1, place="dead", states=("dead",))
            raw = {
                "class": "Send", "args": [{"n": job.id}], "queue": job.queue, "jid": job.id, "retry": 0, "retry_count": 0,
                "created_at": at - 1, "failed_at": at, "error_class": "PartnerDown", "error_message": "the partner is down",
            }  # fmt: skip
            self.client.zadd("dead", {json.dumps(raw): at})
            self.jobs.append(job)

    @act()
    def lose_with_worker(self, rng: random.Random) -> None:
        """A worker is killed while it runs a retry, which Sidekiq then no longer has."""
        self.read()
        for job in self.some(rng, lambda job: job.place == "retry", most=1):
            self.work(job.queue)
            self.client.delete("ran")
            self.shop.start(["plan", job.id, ["hang"]], ["promote", job.id], ["work", job.queue])
            while not self.client.llen("ran"):
                time.sleep(0.01)
            self.restart_workers()
            self.killed += 1
            self.ends(job, "lost")

    # Acts of other people

    @act()
    def remove_by_others(self, rng: random.Random) -> None:
        self.read()
        for job in self.some(rng, lambda job: job.place in ("dead", "retry")):
            self.shop.do(["delete", job.id])
            job.place = ""
            if job.states != ("discarded",):
                job.states = ("gone",)

    @act(weight=2)
    def kill_by_others(self, rng: random.Random) -> None:
        self.read_first(rng)
        for job in self.some(rng, lambda job: job.place == "retry"):
            self.shop.do(["kill", job.id])
            job.place, job.states = "dead", ("dead",)

    @act(weight=5)
    def retry_by_others(self, rng: random.Random) -> None:
        """Dead jobs, and retries before their time. Sidekiq does not count these attempts."""
        self.read_first(rng)
        jobs = self.some(
            rng, lambda job: job.place in ("dead", "retry") and job.states != ("discarded",), self.bound + 1
        )
        outcomes = [rng.choice(("ok", "fail")) if job.is_known else "fail" for job in jobs]
        for job in jobs:
            job.was_brought_back |= job.place == "dead"
            job.count -= 1
        self.bring(jobs, "requeue", outcomes)
        if all(job.is_known for job in jobs):
            self.work_or_wait(rng, jobs)
        else:
            self.work(*{job.queue for job in jobs})

    # The desk's part

    def read(self) -> None:
        super().read()
        for job in self.jobs:
            if job.place in ("dead", "retry"):
                if job.is_new and job.was_brought_back and job.was_read_dead:
                    job.run, job.attempts, job.was_read_dead = job.run + 1, 0, False
                job.attempts = max(job.attempts or 0, job.count)
                job.was_read_dead |= job.place == "dead"
                job.is_new = job.was_brought_back = False
            if job.place == "queue" and job.states == ("dead",):
                job.states = ("gone",)

    def read_reports(self) -> None:
        """Retries are met in turn only: that one is gone shows after some rounds, in each of which all are checked."""
        from jobs_admin import config, replays
        from jobs_admin.retries import pulling, rechecking

        super().read_reports()
        reading = config.adapter(self.source)._reading
        checks = len(self.jobs) // rechecking._AT_ONCE + 2
        for _ in range(3):
            rounds, checked = reading.retries._round + 2, 0
            while reading.retries._round < rounds or checked < checks:
                pulling.pull(self.source, "histories:1")
                checked += 1
        replays.settle()  # Sidekiq reports no success: what was sent is gone from the desk, unless it fails again

    def before_replay(self, jobs: list[Job], outcomes: list[str]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.planned = "ok" if outcome == "ok" else "fail"
        self.shop.do(*(["plan", job.id, [job.planned]] for job in jobs))

    def note_sent(self, jobs: list[Job], outcomes: list[str]) -> None:
        for job in jobs:
            job.run, job.count, job.attempts = job.run + 1, job.count - 1, None
            job.place, job.states = "queue", ("gone",)
            job.is_new = job.was_read_dead = job.was_brought_back = False
        for queue in self.queues:
            waiting = [json.loads(one)["jid"] for one in self.client.lrange(f"queue:{queue}", 0, -1)]
            must = [job.id for job in self.jobs if job.queue == queue and job.place == "queue"]
            if sorted(waiting) != sorted(must):
                raise Divergence(f"{queue} has {sorted(waiting)} after a replay, expected {sorted(must)}")
        self.work_or_wait(self.havoc, jobs)

    def settle(self, replay) -> None:
        self.read()

    def removed_by_us(self, job: Job) -> None:
        job.place = ""

    def check(self) -> None:
        super().check()
        from jobs_admin import config

        found = {one.queue: (one.source_dead, one.delayed, one.waiting) for one in config.adapter("shop").depths()}
        places = Counter((job.queue, job.place) for job in self.jobs)
        for queue in (*self.queues, _EMPTY):
            must = places[queue, "dead"], places[queue, "retry"], places[queue, "queue"]
            if (queue in found or any(must)) and found.get(queue) != must:
                raise Divergence(f"{queue}: dead, waiting for a retry, waiting: {found.get(queue)}, expected {must}")
        if _EMPTY not in found:
            raise Divergence("The empty queue is not reported.")
