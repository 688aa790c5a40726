"""A Celery app with jobs that end their workers in six ways, good ones, and jobs of customers. Each writes down when it begins and ends.

As a module it is the app itself: `celery -A bench.pills worker`, set up by its environment (see `worker_command`).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from celery import Celery

KINDS = ("sigkill", "segfault", "exit", "memory", "hard_limit", "worker")
VISIBILITY_S = 4


def make_app(broker: str) -> Celery:
    made = Celery("pills", broker=broker, set_as_current=False)
    made.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        task_default_queue="jobs",
        # So that the jobs of a dead worker come back in seconds, not in an hour.
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_restore_limit": 100,
        },
    )

    @made.task(name="good", shared=False)
    def good(n, seconds):
        line("begin good", n)
        time.sleep(seconds)
        line("end good", n)

    @made.task(name="turn", shared=False)
    def turn(n, customer, seconds):
        line(f"begin {customer}", n)
        time.sleep(seconds)
        line(f"end {customer}", n)

    for kind, act in _ACTS.items():
        made.task(name=f"pill.{kind}", shared=False, time_limit=1 if kind == "hard_limit" else None)(_pill(kind, act))
    return made


def line(what: str, n: object) -> None:
    """One write each, so that no kill leaves half a line."""
    place = os.open(os.environ["PILLS_LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, f"{what} {n} {os.getpid()} {time.time():.3f}\n".encode())
    finally:
        os.close(place)


def _pill(kind, act):
    def pill(n):
        line(f"begin {kind}", n)
        time.sleep(0.02)
        act()
        time.sleep(30)  # until the signal arrives

    return pill


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(3)


def _eat_memory() -> None:
    """As under `ulimit -v`: Python raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3, hard))
    try:
        bytearray(8 * 1024**3)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _hang() -> None:
    time.sleep(30)


def _kill_worker() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_ACTS = dict(zip(KINDS, (_kill, _segfault, _exit, _eat_memory, _hang, _kill_worker), strict=True))


def worker_command(name: str, concurrency: int) -> list[str]:
    return [
        sys.executable, "-m", "celery", "-A", "bench.pills:app", "worker", "-c", str(concurrency), "-Q", "jobs",
        "-l", "WARNING", "--without-gossip", "--without-mingle", "-n", f"{name}@here",
    ]  # fmt: skip


def environment(broker: str, store: str, folder: Path, *, is_stock: bool) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "CELERY_"))}
    return clean | {
        "PILLS_BROKER": broker,
        "PILLS_LINES": str(folder / "lines"),
        "PILLS_STOCK": "1" if is_stock else "",
        "REDRIVE_REDIS_URL": store,
        "REDRIVE_SPOOL": str(folder / "spool"),
        "PYTHONFAULTHANDLER": "",
    }


def _app_of_the_environment() -> Celery | None:
    if not os.environ.get("PILLS_BROKER"):
        return None
    made = make_app(os.environ["PILLS_BROKER"])
    if not os.environ.get("PILLS_STOCK"):
        from jobs_admin.worker.celery import install

        install(made, source="shop")
    return made


app = _app_of_the_environment()
