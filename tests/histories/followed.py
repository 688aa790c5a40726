"""Histories of Celery in guest mode: events and results as its workers write them, on a real Redis, some lost, late or doubled.

The model of a job is its real attempts and what of them reached the reader. Where all did, the desk must say the same; where
some were lost, its state must follow from what arrived, and it may not say more attempts than there were.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from dashboard.setup.engine import Engine
from tests.histories import desk
from tests.histories.desk import Expected, JobKey
from tests.histories.kit import Divergence, act
from tests.histories.source import PulledWorld

QUEUE = "celery"
ERRORS = ("ValueError('no such order')", "PartnerDown('timed out')")
_DAY_S = 90_000.0
_SETTLED_S = 12.0
_MARKER = "marker@h"


@dataclass(eq=False)
class Job:
    """The model of one job, of `most` attempts, of which the last one ends so. Numbers of attempts count from 1."""

    id: str
    most: int
    end: str  # failed, succeeded
    done: int = 0  # attempts that ended
    retried: bool = False  # the reader got an end by a retry
    ended: bool = False  # the reader got its last end
    lost: bool = False  # some of its events did not arrive, or the reader began again between them
    is_swapped: bool = False  # an attempt was received before the end of the one before it arrived
    began_in: int = -1  # the subscription that got the beginning of its last attempt
    is_exact: bool = False  # the same one got its end
    result: str = ""  # FAILURE or SUCCESS, while the result backend has it
    may_have_been_read: bool = False  # its result, by a look that nobody waited for
    was_read: bool = False
    is_late: bool = False  # a day passed while it waited for a retry
    states: tuple[str, ...] = ()
    attempts: int | None = None
    run: int | None = 1
    is_known: bool = False
    queue: str = QUEUE

    @property
    def key(self) -> JobKey:
        return JobKey("shop", QUEUE, self.id)

    @property
    def is_over(self) -> bool:
        return self.done == self.most


@dataclass(eq=False)
class Message:
    """Events that one worker publishes together, about one job or none."""

    events: list[dict[str, Any]]
    job: Job | None = None
    ends: str = ""  # retried, failed, succeeded
    begins: int = 0  # the number of the attempt that begins
    body: str = ""


class FollowedCelery(PulledWorld):
    """The source `shop`, with results that say all, little or nothing. Not for `kills`: a reader that dies loses its events."""

    most_acts = 9
    replay = None  # type: ignore[assignment]  # nothing that was seen can be sent

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder / "engine").start()
        self.url = self.engine.url.removesuffix("/0") + "/3"
        self.broker = redis.Redis.from_url(self.url)
        settings = f'[sources.shop]\nbackend = "celery"\nurl = "{self.url}"\nguard = false\nqueues = ["{QUEUE}"]\n'
        super().__init__(folder, settings, self.engine.url)
        self.markers = 0

    def close(self) -> None:
        desk.close_adapters()
        self.engine.stop()

    def empty_system(self, rng: random.Random) -> None:
        desk.close_adapters()
        self.broker.flushall()
        self.results = rng.choice(("none", "plain", "extended"))
        self.loss = rng.choice((0.0, 0.0, 0.1, 0.3))
        self.doubles = rng.choice((0.0, 0.2))
        self.is_read_now = False  # a reader is subscribed
        self.unread: list[Message] = []
        self.late: list[Message] = []  # whose time has not come
        self.subscription = 0
        self.succeeded = 0
        self.executed = 0
        self.workers = {f"w{n}@h": [n + 1, 0] for n in range(rng.randint(1, 3))}  # pid, jobs run

    def choose_bounds(self, rng: random.Random) -> int:
        from jobs_admin.sources.celery import followed

        bound = super().choose_bounds(rng)
        for name in ("_CHECK_EVERY_S", "_SEARCH_EVERY_S"):
            self.set_bound(followed, name, 0.0)
        self.set_bound(followed, "_MESSAGES_AT_ONCE", rng.choice([1, self.bound, 1_000]))
        return bound

    # Workers

    def publish(self, message: Message, rng: random.Random) -> None:
        """Publish it, unless it is lost."""
        job = message.job
        if job is not None and rng.random() < self.loss:
            job.lost = True
            return
        message.body = json.dumps(message.events)
        for _ in range(2 if rng.random() < self.doubles else 1):
            outer = {"body": message.body, "content-type": "application/json", "n": uuid.uuid4().hex}
            self.broker.publish("/3.celeryev", json.dumps(outer))
        if self.is_read_now:
            self.unread.append(message)
        elif job is not None:
            job.lost = True

    def event(self, kind: str, worker: str, **fields: Any) -> dict[str, Any]:
        self.made += 1
        return {"type": kind, "hostname": worker, "timestamp": time.time(), "clock": self.made, **fields}

    def beat(self, rng: random.Random) -> None:
        for worker, (pid, ran) in self.workers.items():
            self.publish(Message([self.event("worker-heartbeat", worker, pid=pid, processed=ran, freq=2)]), rng)

    def run_attempt(self, job: Job, rng: random.Random) -> list[Message]:
        """The messages of its next attempt."""
        worker = rng.choice(list(self.workers))
        self.workers[worker][1] += 1
        self.executed += 1
        job.done += 1
        end = job.end if job.is_over else "retried"
        about = {"uuid": job.id}
        failed = {"exception": rng.choice(ERRORS), "traceback": ""}
        begins = [
            self.event(
                "task-received",
                worker,
                **about,
                name="shop.pay",
                args="(1,)",
                kwargs="{}",
                retries=job.done - 1,
                eta=None,
            ),
            self.event("task-started", worker, **about, pid=1),
        ]
        ended = self.event(f"task-{end}", worker, **about, **({"runtime": 0.1} if end == "succeeded" else failed))
        if job.is_over and self.results != "none":
            self.store_result(job)
        if rng.random() < 0.25:
            return [Message([*begins, ended], job, end, job.done)]
        return [Message(begins, job, begins=job.done), Message([ended], job, end)]

    def store_result(self, job: Job) -> None:
        job.result = "FAILURE" if job.end == "failed" else "SUCCESS"
        error = {"exc_type": "ValueError", "exc_message": ["no such order"], "exc_module": "builtins"}
        meta: dict[str, Any] = {
            "status": job.result,
            "result": error if job.end == "failed" else 1,
            "traceback": None,
            "task_id": job.id,
            "date_done": datetime.fromtimestamp(time.time(), UTC).isoformat(),
        }
        if self.results == "extended":
            meta |= {
                "name": "shop.pay",
                "queue": QUEUE,
                "worker": "w@h",
                "args": [1],
                "kwargs": {},
                "retries": job.done - 1,
            }
        self.broker.set(f"celery-task-meta-{job.id}", json.dumps(meta), ex=86_400)

    def go_on(self, jobs: list[Job], rng: random.Random, most: int) -> None:
        self.publish_late(rng)
        messages: list[Message] = []
        for job in jobs:
            for _ in range(rng.randint(1, most)):
                if not job.is_over:
                    messages += self.run_attempt(job, rng)
        if len(self.workers) > 1 and rng.random() < 0.8:
            # Two workers send at their own pace: an attempt may be received before the end of the one before arrives.
            for n in range(len(messages) - 1):
                first, second = messages[n : n + 2]
                is_next = first.job is second.job and first.ends == "retried" and not first.begins and not second.ends
                if is_next and rng.random() < 0.7:
                    messages[n : n + 2] = [second, first]
                    first.job.is_swapped = True
        ends = {id(message.job): message for message in messages}.values()  # the last message of each job
        self.late = [message for message in ends if rng.random() < 0.5]
        for message in messages:
            if message not in self.late:
                self.publish(message, rng)
        if rng.random() < 0.7:
            self.beat(rng)

    def publish_late(self, rng: random.Random) -> None:
        late, self.late = self.late, []
        for message in late:
            self.publish(message, rng)

    @act(weight=6)
    def run_jobs(self, rng: random.Random) -> None:
        new = []
        for _ in range(self.size(rng) + rng.randint(0, 8)):
            new.append(
                Job(
                    uuid.UUID(int=rng.getrandbits(128)).hex,
                    rng.choice((1, 2, 2, 3)),
                    rng.choice(("failed", "succeeded")),
                )
            )
        self.jobs += new
        self.go_on(new, rng, 3)
        if rng.random() < 0.5:
            self.read()

    @act(weight=5)
    def go_on_with_jobs(self, rng: random.Random) -> None:
        self.go_on(self.some(rng, lambda job: not job.is_over), rng, 2)
        if rng.random() < 0.5:
            self.read()

    @act()
    def restart_worker(self, rng: random.Random) -> None:
        worker = self.workers[rng.choice(list(self.workers))]
        worker[:] = [worker[0] + 10 if rng.random() < 0.5 else worker[0], 0]
        self.beat(rng)

    # What happens to reader, broker and results

    def forget_unread(self) -> None:
        """The reader ends: what it has not read is lost, and it has no memory of the jobs under way."""
        for message in self.unread:
            if message.job is not None:
                message.job.lost = True
        self.unread.clear()
        late = [message.job for message in self.late]
        for job in self.jobs:
            job.lost |= not job.is_over or job in late
        self.is_read_now = False
        self.subscription += 1

    @act(weight=3)
    def restart_watch(self, rng: random.Random) -> None:
        desk.forget_all()
        self.forget_unread()
        self.read_first(rng)

    @act(weight=3)
    def end_subscription(self, rng: random.Random) -> None:
        """The broker closes the connection; what came before is still read."""
        self.read()
        self.broker.client_kill_filter(_type="pubsub")
        self.forget_unread()
        self.read_first(rng)

    @act()
    def restart_broker(self, rng: random.Random) -> None:
        """Kill the Redis of broker and store under the reader, and start it again."""
        self.read()
        with redis.Redis.from_url(self.engine.url) as client:
            while client.info("persistence")["aof_buffer_length"]:
                time.sleep(0.01)
        self.engine.process.kill()
        self.engine.process.wait()
        self.engine.start()
        self.forget_unread()
        self.read_first(rng)

    @act()
    def let_results_expire(self, rng: random.Random) -> None:
        for job in self.some(rng, lambda job: job.result):
            self.broker.delete(f"celery-task-meta-{job.id}")
            job.result = ""

    @act()
    def step_clock(self, rng: random.Random) -> None:
        seconds = rng.choice([5, 600, 600, _DAY_S])
        self.read()
        self.clock.step(seconds)
        if seconds == _DAY_S:
            for job in self.jobs:
                job.is_late = True

    # The desk

    def is_replayable(self, job: Job) -> bool:
        return False

    def read_reports(self) -> None:
        """Read until a heartbeat that was published last has been read."""
        from jobs_admin import config
        from jobs_admin.core import keys
        from jobs_admin.core.coverage import parse
        from jobs_admin.retries import pulling
        from jobs_admin.sources.base import SourceError

        for _ in range(300):
            self.markers += 1
            body = json.dumps([self.event("worker-heartbeat", _MARKER, pid=1, processed=self.markers)])
            self.broker.publish("/3.celeryev", json.dumps({"body": body, "content-type": "application/json"}))
            try:
                pulling.pull(self.source, "histories:1")
            except (SourceError, redis.ConnectionError):
                continue  # its subscription ended; the next round subscribes
            found = parse(config.store().get(keys.coverage("shop")))
            marker = found.workers.get(_MARKER) if found else None
            if marker is not None and marker.processed == self.markers:
                break
            time.sleep(0.005)
        else:
            raise Divergence("Events are published and not read.")
        for _ in range(len(self.jobs) // 100 + 2):
            pulling.pull(self.source, "histories:1")

    def read(self) -> None:
        self.wait_for_workers()
        self.run_desk(self.read_reports)
        self.is_read_now = True
        for message in self.unread:
            job = message.job
            if job is None:
                continue
            job.retried |= message.ends == "retried"
            if message.begins == job.most:
                job.began_in = self.subscription
            if message.ends in ("failed", "succeeded"):
                job.ended = True
                job.is_exact = job.began_in == self.subscription and not self.loss and not job.is_swapped
                self.succeeded += message.ends == "succeeded"
        self.unread.clear()
        for job in self.jobs:
            job.may_have_been_read |= bool(job.result)
            self.expect(job)

    def catch_up(self) -> None:
        """Results are read when they are settled."""
        self.publish_late(random.Random(self.made))
        self.read()
        self.clock.step(_SETTLED_S)
        for _ in range(2):
            self.read()
        for job in self.jobs:
            job.was_read |= bool(job.result)
            self.expect(job)

    def expect(self, job: Job) -> None:
        """Set the states in which the desk may have this job; "" is that it does not have it."""
        is_discarded = "discarded" in job.states
        job.is_known = True
        failed_seen = job.retried or (job.ended and job.end == "failed")
        if job.is_over and job.end == "failed" and (job.ended or job.was_read):
            states: tuple[str, ...] = ("dead",)
        elif job.is_over and job.end == "failed" and job.may_have_been_read:
            states = ("dead", "retrying", "gone") if failed_seen else ("dead", "")
        elif not failed_seen:
            states = ("",)
        elif job.is_over and job.end == "succeeded" and (job.ended or job.was_read):
            states = ("recovered", "retrying", "gone") if job.lost and job.is_swapped else ("recovered",)
            states += ("gone",) if job.is_late else ()
        elif job.is_over and job.end == "succeeded" and job.may_have_been_read:
            states = ("recovered", "retrying", "gone")
        else:
            states = ("retrying", "gone") if job.is_late else ("retrying",)
        if job.retried and job.lost and job.is_swapped and not job.ended:
            # A retry that was counted as the next attempt hides a result of the same number: a known limit.
            states += ("retrying",)
        job.states = ("discarded",) if is_discarded else states
        # A success of which only its result is seen has no end that names its attempt.
        job.attempts = job.done if not job.is_late and (job.is_exact or not job.lost) else None

    def check(self) -> None:
        from jobs_admin.models import Failure, QueueCounter
        from jobs_admin.models.counter import MINUTE

        found = {row.first_job_id: row for row in Failure.objects.all()}
        expected = {}
        for job in self.jobs:
            if job.id not in found and ("" in job.states):
                continue
            states = [state for state in job.states if state]
            if not states:
                if job.id in found:
                    raise Divergence(f"{job} is on the desk, and nothing of a failure of it was sent.")
                continue
            expected[job.key] = Expected.in_states(*states, run=1, attempts=job.attempts)
            # One that was first seen when its next attempt was received, before its end, counts that end as the next one's.
            most = job.done + (job.lost and job.is_swapped)
            if job.id in found and not 1 <= found[job.id].attempts <= most:
                raise Divergence(f"{job} has {found[job.id].attempts} attempts on the desk.")
        desk.compare(expected)
        counted = sum(QueueCounter.objects.filter(step=MINUTE).values_list("succeeded", flat=True))
        if counted != self.succeeded:
            raise Divergence(f"{counted} successes are counted, {self.succeeded} were read.")
        self.check_coverage()

    def check_coverage(self) -> None:
        from jobs_admin import config
        from jobs_admin.core import keys
        from jobs_admin.core.coverage import parse

        found = parse(config.store().get(keys.coverage("shop")))
        if found is None:
            raise Divergence("There is no coverage.")
        hour, markers = found.last_hour(time.time()), self.markers
        if hour.started > self.executed or hour.executed + hour.missed > self.executed + markers:
            raise Divergence(f"{hour} of {self.executed} executions")
        if any(gap.end < gap.start for gap in found.gaps):
            raise Divergence(f"{found.gaps}")
