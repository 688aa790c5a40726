"""The wait of other writers while an operator excludes 25,000 jobs of a paused replay by a search, on SQLite.

    python -m bench.exclusion [--jobs 25000]

Prints how long the act took, and the longest that a writer beside it waited for its turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("SECRET_KEY", "bench-only-" + "x" * 40)

SOURCES = '[sources.shop]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\n'  # nothing is sent
EVERY_S = 0.005


class OtherWriter(threading.Thread):
    """Writes a row again and again until `is_done`; notes the longest wait."""

    def __init__(self, database: Path) -> None:
        super().__init__()
        self.database, self.is_done, self.longest_s, self.writes = database, threading.Event(), 0.0, 0

    def run(self) -> None:
        connection = sqlite3.connect(self.database, timeout=30, isolation_level=None)
        connection.execute("CREATE TABLE other_writer (n INTEGER)")
        while not self.is_done.wait(EVERY_S):
            began = time.perf_counter()
            connection.execute("INSERT INTO other_writer VALUES (1)")
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            self.writes += 1
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=25_000)
    jobs = parser.parse_args().jobs
    folder = Path(tempfile.mkdtemp(prefix="redrive-exclusion-"))
    try:
        _measure(folder, jobs)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, jobs: int) -> None:
    from tests.kit import migrated
    from tests.rigs.empty_desk import desk

    (folder / "sources.toml").write_text(SOURCES)
    database = folder / "redrive.sqlite3"
    shutil.copyfile(migrated.database(), database)
    desk(folder, REDRIVE_SOURCES=str(folder / "sources.toml"))
    from jobs_admin import replays
    from jobs_admin.models import Failure
    from jobs_admin.models.access import OPERATOR, Viewer
    from tests.kit.replays import buried

    ann = Viewer("ann", {"*": OPERATOR})
    for start in range(0, jobs, 5_000):
        buried(min(5_000, jobs - start), payload=False, tenant="acme")
    buried(50, payload=False, tenant="globex")
    Failure.objects.update(caveats=None)
    replay = replays.launch(ann, query="queue:emails", reason="bench", pace={"style": "careful"})
    while replays.create_items():
        pass
    replays.pause(ann, replay)
    other = OtherWriter(database)
    other.start()
    began = time.perf_counter()
    replays.resume(ann, replay, without="tenant:acme")
    took_s = time.perf_counter() - began
    other.is_done.set()
    other.join()
    replay.refresh_from_db()
    print(f"{replay.cancelled:,} jobs excluded in {took_s:.2f} s; {other.writes} other writes meanwhile,", end=" ")
    print(f"the longest waited {other.longest_s * 1000:.0f} ms")


if __name__ == "__main__":
    main()
