"""The real starts of the jobs of a replay, by the lines that their tasks write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ENDED = """
r = Replay.objects.get()
say(r.planned + r.sent + r.running)
"""
_BEGIN = """
replay = replays.start(ANN, replays.draft(ANN, query="queue:emails", pace={pace!r}, reason="bench"))
say(replay.total)
"""


class Starts:
    """A desk, its `watch` and a worker, for one replay."""

    def __init__(self, folder: Path, broker_url: str, *, concurrency: int, pool: str) -> None:
        from tests.kit.celery import RealWorker
        from tests.kit.desks import Desk

        folder.mkdir()
        self.folder = folder
        self.desk = Desk(folder, broker_url)
        self.desk.environment["REDRIVE_DATA"] = str(folder)
        self.worker = RealWorker(broker_url, broker_url, pool=pool, concurrency=concurrency, queues="emails")
        self.watch: subprocess.Popen[bytes] | None = None

    def run(
        self, jobs: int, pace: dict, *, seconds: float = 0.0, tenant: str = "lambda n: ''", deadline_s: float = 120
    ) -> list[list[str]]:
        """The tasks' own lines, once all jobs have ended."""
        key = tenant.partition(":")[2]
        self.desk.run(f"bury({jobs}, 'noted', lambda n: [n, {seconds},{key}], {tenant})", 300)
        self.worker.start()
        self.desk.run(_BEGIN.format(pace=pace))
        with (self.folder / "watch.log").open("ab") as log:
            self.watch = subprocess.Popen(
                [sys.executable, "manage.py", "watch", "--only", "ingest,settle,lay,send"],
                cwd=ROOT, env=self.desk.environment, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        ends = time.monotonic() + deadline_s
        while self.desk.run(_ENDED):
            assert time.monotonic() < ends, f"{self.desk.run(_ENDED)} jobs have not ended\n{self.worker.text()[-2000:]}"
            time.sleep(0.3)
        return [line.split() for line in self.worker.marks("noted")]

    def stop(self) -> None:
        self.worker.stop()
        if self.watch:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.watch.pid, signal.SIGKILL)
            self.watch.wait()


def most_at_once(lines: list[list[str]]) -> dict[str, int]:
    """Customer -> the most of its jobs that ran at the same moment."""
    # At the same moment an end counts before a start.
    moments = sorted((float(at), what == "start", key) for what, at, _, key, _ in lines)
    now, most = Counter(), Counter()
    for _, starts, key in moments:
        now[key] += 1 if starts else -1
        most[key] = max(most[key], now[key])
    return dict(most)
