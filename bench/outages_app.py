"""The app that `bench/outages.py` runs: `celery -A bench.outages_app:app worker`, configured by its environment.

Each failing attempt writes a line to a file of its own before it raises; each run leaves a byte. The worker's main process
notes how long its loop stood still: a timer of 10 ms in the loop itself notes each gap of more than 30 ms.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps

TICK_S, WORTH_A_LINE_S = 0.01, 0.03


class PartnerDown(Exception):
    pass


def _append(name: str, text: bytes) -> None:
    place = os.open(Path(os.environ["OUTAGES_MARKS"], name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, text)
    finally:
        os.close(place)


class LoopClock(bootsteps.StartStopStep):
    """Started with each connection of the consumer, whose loop it is in."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        last = time.monotonic()

        def tick() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > WORTH_A_LINE_S:
                _append("stalls", f"{now:.4f} {now - last:.4f}\n".encode())
            last = now

        if self._timer is not None:
            self._timer.cancel()
        self._timer = parent.hub.call_repeatedly(TICK_S, tick)


def make_app(broker: str, *, is_stock: bool) -> Celery:
    made = Celery("outages", broker=broker, set_as_current=False)
    made.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=4)
    made.steps["consumer"].add(LoopClock)

    def run(self: Any, n: int, fails: bool) -> None:
        time.sleep(0.005)
        _append("ran", b".")
        if fails:
            line = f"{n}/{self.request.retries + 1}"
            _append("failed", f"{line}\n".encode())
            raise PartnerDown(line)

    # The second is for a policy, which tries it twice.
    for name in ("work", "retried"):
        made.task(name=name, bind=True, shared=False)(run)
    if not is_stock:
        from jobs_admin.worker.celery import install

        install(made, source="shop")
    return made


app = None
if os.environ.get("OUTAGES_BROKER"):
    app = make_app(os.environ["OUTAGES_BROKER"], is_stock=bool(os.environ.get("OUTAGES_STOCK")))
