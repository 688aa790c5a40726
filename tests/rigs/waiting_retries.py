"""Delayed retries that wait in the store: made, moved to their due time, and their lines read."""

from __future__ import annotations

import time
from typing import Any

import redis

from jobs_admin.core import keys
from tests.kit.celery import RealWorker

HOUR_S = 3600
AHEAD_S = 2.0  # from the setting of due times to the first of them, where nothing else is asked


def send(worker: RealWorker, count: int, task: str, **options: Any) -> list[str]:
    # The first attempt fails, the second runs well.
    with worker.app.producer_pool.acquire() as producer:
        return [worker.send(task, "down", 2, producer=producer, **options) for _ in range(count)]


def pass_the_hour(client: redis.Redis, per_second: int, ahead_s: float = AHEAD_S) -> dict[str, float]:
    """`n` are due in each second from `ahead_s` on. Answers when each is, seconds since 1970."""
    members: Any = client.zrange(keys.due("shop"), 0, -1)
    first = time.time() + ahead_s
    due = {member: first + n / per_second for n, member in enumerate(members)}
    pipe = client.pipeline(transaction=True)
    for member, at in due.items():
        pipe.zadd(keys.due("shop"), {member: round(at * 1000)}, xx=True)
    pipe.execute()
    return {member.decode().split(":")[0]: at for member, at in due.items()}


def lines(workers: list[RealWorker]) -> list[tuple[str, int, float]]:
    """(job, attempt, when it began) of every attempt of all workers."""
    attempts = (line.split() for worker in workers for line in worker.marks("attempts"))
    return [(job, int(attempt), float(at)) for job, attempt, at in attempts]


def until(reached: Any, within_s: float, what: str) -> None:
    ends = time.monotonic() + within_s
    while not reached():
        if time.monotonic() > ends:
            raise SystemExit(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.2)
