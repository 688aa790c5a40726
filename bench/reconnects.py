"""The times at which the consumers of a fleet come back to a broker that was restarted, with and without `reconnect_jitter`.

    python -m bench.reconnects [--workers 50] [--away 0,20] [--jitter 10]

Real workers (solo pool, one process each, forked from one that has imported all), a real broker that is killed and is back at once,
or after the seconds of `--away`. Counted from each worker's own log: the moment of its line "Connected to", in tenths of a
second after the broker answers again. Prints JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from jobs_admin.core.child_process import die_with_parent

_CONNECTED = re.compile(r"^\[(\S+ \S+): INFO/MainProcess\] Connected to", re.M)
_PATIENCE_S = 300
_IMPORTED = (
    "celery.apps.worker", "celery.bin.celery", "celery.bin.worker", "celery.worker.consumer", "celery.concurrency.solo",
    "kombu.transport.redis", "jobs_admin.worker.celery", "jobs_admin.worker.policing", "jobs_admin.worker.heartbeat",
    "jobs_admin.worker.configuration", "jobs_admin.worker.reconnecting",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--away", default="0,20")
    parser.add_argument("--jitter", type=float, default=10.0)
    wanted = parser.parse_args()
    for name in _IMPORTED:  # once, and not by each of them
        importlib.import_module(name)
    figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "workers": wanted.workers}
    for away_s in map(float, wanted.away.split(",")):
        for name, jitter_s in (("celerys_own", 0.0), (f"jitter_{wanted.jitter:g}_s", wanted.jitter)):
            figures[f"away_{away_s:g}_s_{name}"] = came_back(wanted.workers, away_s, jitter_s)
    figures["load_at_the_end"] = round(os.getloadavg()[0], 1)
    json.dump(figures, sys.stdout, indent=2)
    print()


def came_back(workers: int, away_s: float, jitter_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker, store = Engine(folder / "broker").start(), Engine(folder / "store").start()
        pids = [_start(n, folder, broker.url, store.url, jitter_s) for n in range(workers)]
        try:
            _wait(lambda: all(_connected(folder, n, 1) for n in range(workers)))
            time.sleep(5)
            broker.kill()
            time.sleep(away_s)
            broker.start()
            back = time.time()
            _wait(lambda: all(_connected(folder, n, 2) for n in range(workers)))
            moments = sorted(_connected(folder, n, 2) - back for n in range(workers))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            broker.stop()
            store.stop()
    tenths = Counter(int(max(0.0, moment) * 10) for moment in moments)
    return {
        "most_in_100_ms": max(tenths.values()),
        "first_s": round(moments[0], 2),
        "last_s": round(moments[-1], 2),
        "histogram_100_ms": {f"{tenth / 10:.1f}": n for tenth, n in sorted(tenths.items())},
    }


def _start(number: int, folder: Path, broker: str, store: str, jitter_s: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        log = os.open(folder / f"{number}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(REDRIVE_REDIS_URL=store, REDRIVE_SPOOL=str(folder / f"spool-{number}"))
        from celery import Celery

        from jobs_admin.worker.celery import install

        app = Celery("fleet", broker=broker)
        app.conf.update(broker_connection_retry_on_startup=True)
        install(app, source="shop", reconnect_jitter=jitter_s)
        app.worker_main(
            ["worker", "-P", "solo", "-l", "INFO", "-n", f"w{number}@%h", "--without-gossip", "--without-mingle"]
        )
    finally:
        os._exit(1)


def _connected(folder: Path, number: int, times: int) -> float:
    """The time at which it connected for the `times`-th time, seconds since 1970; 0.0 while it has not."""
    log = folder / f"{number}.log"
    found = _CONNECTED.findall(log.read_text(errors="replace")) if log.exists() else []
    if len(found) < times:
        return 0.0
    return datetime.strptime(found[times - 1], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def _wait(reached: Any) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not reached():
        if time.monotonic() > ends:
            raise SystemExit("Not all workers came back in time.")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
