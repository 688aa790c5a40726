"""A Celery app whose jobs write down what they do before anybody else can know of it: that they start, that they are about to
raise, that they are through.

As a module it is the app itself: `celery -A tests.rigs.journal_jobs worker`, set up by its environment (see `environment`). Each process
writes to a file of its own, one synchronous write a line, so that whatever a kill leaves is whole:

    start j17 1 first 4711 103.25       what, job, attempt, `first` delivery or `again`, pid, monotonic seconds
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery

QUEUE = "jobs"
START, RAISE, END = "start", "raise", "end"
# `once` has no policy: its first failure is its last. `again` fails twice and runs well at its third attempt, where a policy lets it.
ONCE, AGAIN = "once", "again"
TRIES = 3


class PartnerDown(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    job: str
    attempt: int
    is_again: bool  # the broker said that it delivered this before
    pid: int
    at: float  # monotonic seconds, of the whole machine


def make_app(broker: str, *, late_ack: bool, visibility_s: int) -> Celery:
    made = Celery("told", broker=broker, set_as_current=False)
    made.conf.update(
        task_acks_late=late_ack,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        task_default_queue=QUEUE,
    )
    if broker.startswith("redis"):
        # So that the jobs of a dead worker come back in seconds, not in an hour.
        made.conf.broker_transport_options = {
            "visibility_timeout": visibility_s,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_restore_limit": 100,
        }

    def run(self: Any, seconds: float, fails: int) -> None:
        request = self.request
        text = (
            f"{request.id} {request.retries + 1} "
            f"{'again' if (request.delivery_info or {}).get('redelivered') else 'first'} {os.getpid()}"
        )
        _write(START, text)
        time.sleep(seconds)
        if request.retries < fails:
            _write(RAISE, text)
            raise PartnerDown(f"the partner is down for {request.id}")
        _write(END, text)

    for name in (ONCE, AGAIN):
        made.task(name=name, bind=True, shared=False)(run)
    return made


def send(app: Celery, jobs: int, failing: float, seconds: float, draw: Any) -> None:
    """Jobs `j0` … in this order, of which that share fails: half of those once, half again."""
    with app.producer_pool.acquire() as producer:
        for n in range(jobs):
            fails = draw.random() < failing
            task = AGAIN if fails and draw.random() < 0.5 else ONCE
            args = [round(draw.uniform(0, 2 * seconds), 4), TRIES - 1 if fails else 0]
            app.send_task(task, args=args, queue=QUEUE, task_id=f"j{n}", producer=producer)


_descriptors: dict[int, int] = {}  # pid -> its file: what was forked opens its own


def _write(what: str, details: str) -> None:
    pid = os.getpid()
    if pid not in _descriptors:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_SYNC
        _descriptors[pid] = os.open(f"{os.environ['TOLD_LINES']}/{pid}", flags, 0o600)
    os.write(_descriptors[pid], f"{what} {details} {time.monotonic():.4f}\n".encode())


def lines(folder: Path) -> Iterator[Line]:
    for file in folder.iterdir():
        for text in file.read_text().splitlines():
            what, job, attempt, delivery, pid, at = text.split()
            yield Line(what, job, int(attempt), delivery == "again", int(pid), float(at))


def worker_command(name: str, children: int) -> list[str]:
    return [
        sys.executable, "-m", "celery", "-A", "tests.rigs.journal_jobs:app", "worker", "-c", str(children), "-Q", QUEUE,
        "-l", "WARNING", "--without-gossip", "--without-mingle", "-n", f"{name}@here",
    ]  # fmt: skip


def environment(
    broker: str, store: str, folder: Path, *, late_ack: bool, visibility_s: int, is_guarded: bool
) -> dict[str, str]:
    """The environment of a worker. Its lines and its spool are in the folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "CELERY_"))}
    (folder / "lines").mkdir(exist_ok=True)
    return clean | {
        "TOLD_BROKER": broker,
        "TOLD_LINES": str(folder / "lines"),
        "TOLD_LATE": "1" if late_ack else "",
        "TOLD_VISIBILITY": str(visibility_s),
        "TOLD_GUARDED": "1" if is_guarded else "",
        "REDRIVE_REDIS_URL": store,
        "REDRIVE_SPOOL": str(folder / "spool"),
    }


def _app_of_the_environment() -> Celery | None:
    environment = os.environ
    if not environment.get("TOLD_BROKER"):
        return None
    made = make_app(
        environment["TOLD_BROKER"],
        late_ack=bool(environment["TOLD_LATE"]),
        visibility_s=int(environment["TOLD_VISIBILITY"]),
    )
    if environment["TOLD_GUARDED"]:
        from jobs_admin.worker.celery import install

        install(made, source="shop")
    return made


app = _app_of_the_environment()
