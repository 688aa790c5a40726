"""Random histories of two workers that are paused, resumed, killed and replaced: nothing starts while a pause is in force, no job is
lost, and none runs twice but for a worker's death.

`PAUSE_HISTORIES=50` runs as many.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from jobs_admin.core import keys
from jobs_admin.core.pauses import UNTIL_RESUMED
from tests.kit.pausing import Shop, unique

pytestmark = pytest.mark.server
SEEDS = int(os.environ.get("PAUSE_HISTORIES", "1"))
STEPS = 14
GRACE_S = 0.3  # from the process of a pool being handed a job to its first line
OPTIONS = {"late_ack": True, "environment": {"REAL_VISIBILITY": "3"}}


class History:
    def __init__(self, shop: Shop, seed: int) -> None:
        self.shop, self.draw = shop, random.Random(seed)
        self.queues = [unique("a"), unique("b")]
        self.paused: dict[str, float] = {}  # queue, or `task` -> the time from which on nothing may start
        self.pauses: list[tuple[str, float, float]] = []
        self.sent: dict[int, str] = {}
        self.killed: list = []
        for _ in range(2):
            shop.work(queues=",".join(self.queues), **OPTIONS)

    def run(self) -> None:
        for _ in range(STEPS):
            self.draw.choice([self.send, self.send, self.send, self.toggle, self.toggle, self.kill, self.sleep])()
        for place in list(self.paused):
            self._end(place)
        self._publish()
        self.shop.settle(lambda: {n for _, n in self.shop.read_notes("end")} >= set(self.sent), "all jobs")

    def send(self) -> None:
        queue = self.draw.choice(self.queues)
        options = {"countdown": self.draw.uniform(0.5, 3)} if self.draw.random() < 0.3 else {}
        jobs = self.shop.send(self.draw.randint(1, 25), queue, self.draw.choice([0.0, 0.05, 0.4]), **options)
        self.sent |= dict.fromkeys(jobs, queue)

    def toggle(self) -> None:
        place = self.draw.choice([*self.queues, "task"])
        if place in self.paused:
            self._end(place)
            self._publish()
            return
        self.paused[place] = float("inf")
        self._publish()
        self.shop.wait_for(queues=self._paused_queues(), tasks=self._paused_tasks())
        self.paused[place] = time.monotonic() + GRACE_S

    def kill(self) -> None:
        # A worker that dies while it fetches from Redis may lose a message: kombu's own window, in docs/failure-modes.md.
        if self.shop.broker_url is None:
            consumed = [queue for queue in self.queues if queue not in self.paused]
            self.shop.settle(lambda: not any(map(self.shop.queued, consumed)), "nothing is left to be fetched")
        victim = next(one for one in self.shop.workers if one not in self.killed)
        self.killed.append(victim)
        victim.kill()
        self.shop.store.delete(keys.workers("shop"))
        self.shop.work(queues=",".join(self.queues), **OPTIONS)
        self.shop.wait_for(queues=self._paused_queues(), tasks=self._paused_tasks())

    def sleep(self) -> None:
        time.sleep(self.draw.uniform(0.2, 2))

    def check(self) -> None:
        for at, n in self.shop.read_notes():
            for place, since, until in self.pauses:
                assert not (since < at < until and place in ("task", self.sent[n])), (
                    f"job {n} started in a pause of {place}"
                )
        runs = Counter(self.shop.ran())
        assert set(runs) == set(self.sent)
        died = Counter(int(line.split()[2]) for one in self.killed for line in one.marks("noted") if line[0] == "s")
        assert not {n: count for n, count in runs.items() if count > 1 + died[n]}

    def _end(self, place: str) -> None:
        self.pauses.append((place, self.paused.pop(place), time.monotonic()))

    def _publish(self) -> None:
        self.shop.publish(
            queues=dict.fromkeys(self._paused_queues(), UNTIL_RESUMED),
            tasks=dict.fromkeys(self._paused_tasks(), UNTIL_RESUMED),
        )

    def _paused_queues(self) -> list[str]:
        return [place for place in self.paused if place != "task"]

    def _paused_tasks(self) -> list[str]:
        return ["noted"] if "task" in self.paused else []


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_random_history_starts_nothing_in_a_pause_and_loses_nothing(shop, seed):
    history = History(shop, seed)
    history.run()
    history.check()
