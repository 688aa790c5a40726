"""The shop's customers: publishes jobs at a set rate until it is stopped. `python -m demo.load`.

The rate is stored in the demo's broker (`control.LOAD`), where /demo/ sets it. It never floods the workers: above
`DEEPEST` waiting jobs it stops publishing until they have caught up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from random import Random

import redis
from kombu.exceptions import OperationalError

from demo import control, orders
from demo.shop import QUEUES, app
from jobs_admin.installation import COMMAND

DEEPEST = 2000  # jobs that may wait in all queues together
MISHAPS_PER_JOB = 0.01  # calm, but alive: at 5 jobs/s, three failures a minute
CHECK_EVERY_S = 0.5
PILLS_EVERY_S = 1200.0
# Until then the workers of a desk that was just started have its policies: before, nothing counts what a pill does.
FIRST_PILL_AFTER_S = 20.0


class Publisher:
    """Publisher of due jobs. Times are seconds of any clock that only goes forward."""

    def __init__(self, broker: redis.Redis, random: Random, now: float) -> None:
        self.broker = broker
        self.random = random
        self.rate = 0.0
        self.published = 0
        self._owed = 0.0
        self._checked_at = now - CHECK_EVERY_S
        self._last = now
        self._next_pill = now + FIRST_PILL_AFTER_S

    def step(self, now: float) -> int:
        """Publish what became due since the last step; how many that was."""
        if now - self._checked_at >= CHECK_EVERY_S:
            self._check_depth(now)
        # What could not be published in a second is not made up for: a stall does not end in a burst.
        self._owed = min(self._owed + (now - self._last) * self.rate, max(1.0, self.rate))
        self._last = now
        due = int(self._owed)
        self._owed -= due
        with app.producer_pool.acquire(block=True, timeout=5) as producer:
            for _ in range(due):
                publish(self._next(now), producer)
        self.published += due
        return due

    def _check_depth(self, now: float) -> None:
        with self.broker.pipeline(transaction=False) as pipe:
            for queue in QUEUES:
                pipe.llen(queue)
            depth = sum(pipe.execute())
        is_paused = depth >= DEEPEST
        self.rate = 0.0 if is_paused else control.load(self.broker).rate
        control.report(self.broker, self.rate, depth if is_paused else None)
        self._checked_at = now

    def _next(self, now: float) -> orders.Job:
        if now >= self._next_pill:
            self._next_pill = now + PILLS_EVERY_S
            return orders.pill(self.random)
        if self.random.random() < MISHAPS_PER_JOB:
            return orders.mishap(self.random).job(self.random)
        return orders.ordinary(self.random)


def publish(job: orders.Job, producer: object = None) -> str:
    """Put a job on its queue; answers with its id."""
    return app.tasks[job.task].apply_async(kwargs=job.kwargs, producer=producer).id


def main() -> None:
    url = os.environ.get("CELERY_BROKER_URL")
    if not url:
        sys.exit(f"CELERY_BROKER_URL is not set: there is no queue to publish to. `{COMMAND} up` sets it.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    app.loader.import_default_modules()
    broker = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
    publisher = Publisher(broker, Random(), time.monotonic())
    while not stop.wait(0.1):
        try:
            publisher.step(time.monotonic())
        except (OperationalError, redis.RedisError, control.DemoUnreachable) as error:
            print(f"demo.load: the broker does not answer ({error}); trying again in 2 s", file=sys.stderr, flush=True)
            stop.wait(2)


if __name__ == "__main__":
    main()
