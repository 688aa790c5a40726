"""The cost of each test: seconds of processor, of it and of all it started. Recorded in tests/durations.json, by file and for each long test.

    REDRIVE_DURATIONS=/tmp/costs python3 manage.py test --endurance
    python -m tests.kit.durations /tmp/costs

How long a test takes says how busy the machine is; seconds of processor say it of the test. tests/conftest.py begins with the
files that cost most, so that no process is left alone with one at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
LONG_S = 5.0  # a test that costs more carries the mark `long`, with the reason
_TICK = os.sysconf("SC_CLK_TCK")


class Recorder:
    """A plugin of pytest: a line a phase, in a file a process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self._then = _spent()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._record("collection", "collect")  # or the first test of each process would seem to cost it

    def pytest_runtest_logreport(self, report) -> None:
        if hasattr(report, "node"):  # told to the process that only shares out the work
            return
        self._record(report.nodeid, report.when)

    def _record(self, test: str, when: str) -> None:
        now = _spent()
        cost = [round(after - before, 3) for after, before in zip(now, self._then, strict=True)]
        self._file.write(json.dumps([test, when, *cost]) + "\n")
        self._then = now


def _spent() -> tuple[float, float, float]:
    """Seconds of processor until now, of the clock, and of those in which this process waited for a processor."""
    own = os.times()
    ticks = sum(_ticks_of(child) for child in _children(os.getpid()))
    spent = own.user + own.system + own.children_user + own.children_system + ticks / _TICK
    try:
        delay = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        delay = 0.0
    return spent, time.monotonic(), delay


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        own = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []
    return own + [grandchild for child in own for grandchild in _children(child)]


def _ticks_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])  # its own, and of those of its children that ended


def recorded() -> dict[str, dict[str, float]]:
    """Seconds by `files`, and by `tests` of those over a second."""
    return json.loads(FILE.read_text()) if FILE.exists() else {"files": {}, "tests": {}}


def write(folder: Path) -> None:
    """Take over what the run measured: files that were not part of it keep what is recorded of them."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = defaultdict(float)
    for part in folder.glob("*.jsonl"):
        for line in part.read_text().splitlines():
            test, when, spent, _, _ = json.loads(line)
            files[test.partition("::")[0]] += spent
            tests[test] += spent if when == "call" else 0
    before = recorded()
    others = {test: spent for test, spent in before["tests"].items() if test.partition("::")[0] not in files}
    files, tests = before["files"] | files, others | tests
    there = {file: round(spent, 1) for file, spent in sorted(files.items()) if (FILE.parents[1] / file).exists()}
    long = {test: round(spent, 1) for test, spent in sorted(tests.items()) if spent >= 1}
    FILE.write_text(json.dumps({"files": there, "tests": long}, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
