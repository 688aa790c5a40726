"""Processes of an idle desk: role, memory and share of a processor of each, and the seconds to the first page.

    python3 bench/tree.py [--demo] [--idle 30] [--settle 15] [--json]

Starts `up` in an empty data folder twice, by the code of this checkout (which needs a `.venv` of its own), and samples the
second start when it is idle. USS: memory that only this process has. PSS: shared memory counts in parts. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN_S = 300
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--demo", action="store_true", help="with the demo shop")
    options.add_argument("--idle", type=float, default=30.0, help="seconds over which the processor is measured")
    options.add_argument("--settle", type=float, default=15.0, help="seconds from the first page until then")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-tree-") as folder:
        first, second = Desk(Path(folder), chosen.demo), Desk(Path(folder), chosen.demo)
        with first:
            first_s = first.first_page_s()
            first_cpu_s = first.processor_s()
        with second:
            second_s = second.first_page_s()
            second_cpu_s = second.processor_s()
            for _ in range(20):
                second.request("/login/")
            time.sleep(chosen.settle)
            rows = sample(second.process.pid, chosen.idle)
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 1),
        "first_start_s": round(first_s, 1),
        "second_start_s": round(second_s, 1),
        "first_start_cpu_s": round(first_cpu_s, 1),
        "second_start_cpu_s": round(second_cpu_s, 1),
        "processes": rows,
        "sum": {
            "processes": len(rows),
            **{name: round(sum(row[name] for row in rows), 1) for name in ("uss_mb", "pss_mb", "cpu_percent")},
        },
    }
    if chosen.json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return
    print(f"{found['machine']}, load {found['load_average']}")
    for name, took_s, cpu_s in (("first", first_s, first_cpu_s), ("second", second_s, second_cpu_s)):
        print(f"{name} start: first page after {took_s:.1f} s, by then {cpu_s:.1f} s of a processor")
    line = "{:<22}{:>8}{:>9}{:>9}{:>8}{:>9}"
    print(line.format("process", "pid", "USS MB", "PSS MB", "CPU %", "threads"))
    for row in [*rows, {"role": f"sum of {len(rows)}", "pid": "", "threads": "", **found["sum"]}]:
        cpu = f"{row['cpu_percent']:.2f}"
        print(line.format(row["role"], row["pid"], row["uss_mb"], row["pss_mb"], cpu, row["threads"]))


class Desk:
    """`up` on a data folder, from its start to its end."""

    def __init__(self, folder: Path, has_demo: bool) -> None:
        self.folder, self.has_demo = folder, has_demo

    def __enter__(self) -> Desk:
        self.port = free_port()
        self.log = (self.folder / "tree.log").open("ab")
        self.started_at = time.monotonic()
        command = [sys.executable, "manage.py", "up", "--data", str(self.folder), "--port", str(self.port)]
        command += [] if self.has_demo else ["--no-demo"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.log.close()

    def request(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def processor_s(self) -> float:
        """Seconds of a processor that its processes have used, and those of them that have ended."""
        fields = [stat(pid) for pid in family(self.process.pid)]
        return sum(int(one[n]) for one in fields for n in (11, 12, 13, 14)) / TICKS

    def first_page_s(self) -> float:
        """Seconds from the start of the command until the login page answers."""
        while time.monotonic() - self.started_at < READY_WITHIN_S and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("/login/") == 200:
                    return time.monotonic() - self.started_at
            time.sleep(0.02)
        raise SystemExit("up did not become ready:\n" + (self.folder / "tree.log").read_text()[-2000:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def sample(parent: int, seconds: float) -> list[dict]:
    """Return the processes below and including `parent`: memory now, the share of a processor over these seconds."""
    pids = family(parent)
    before = {pid: ticks(pid) for pid in pids}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    rows = []
    for pid in family(parent):
        with contextlib.suppress(OSError):
            used = (ticks(pid) - before.get(pid, 0)) / TICKS
            memory = rollup(pid)
            rows.append(
                {
                    "role": role(pid, parent),
                    "pid": pid,
                    "uss_mb": round((memory["Private_Clean"] + memory["Private_Dirty"]) / 1024, 1),
                    "pss_mb": round(memory["Pss"] / 1024, 1),
                    "cpu_percent": round(100 * used / elapsed, 2),
                    "threads": len(os.listdir(f"/proc/{pid}/task")),
                }
            )
    return rows


def family(parent: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(stat(int(entry))[1]), []).append(int(entry))
    found = [parent]
    for pid in found:
        found.extend(sorted(children.get(pid, [])))
    return found


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third, the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def ticks(pid: int) -> int:
    fields = stat(pid)
    return int(fields[11]) + int(fields[12])


def rollup(pid: int) -> dict[str, int]:
    """Return the sums of /proc/PID/smaps_rollup in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def role(pid: int, parent: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    title = Path(f"/proc/{pid}/comm").read_text().strip()
    if pid == parent:
        return "up"
    above = int(stat(pid)[1])
    for word, name in (("reaper.py", "reaper"), ("valkey", "store"), ("redis", "store")):
        if word in command:
            return name
    return title if above == parent else f"  {title}"


if __name__ == "__main__":
    main()
