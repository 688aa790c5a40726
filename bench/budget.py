"""A retry budget under eight processes: whether any window of time was granted more than its rule allows.

    python -m bench.budget [--decisions 1000000] [--processes 8] [--seconds 240]

The script of `jobs_admin/worker/budget.lua` itself, through the connection that a worker's child has, on a real Valkey. Each process
asks three budgets in turn, in surges: one half as fast as it can, the other evenly until the next surge. So buckets fill up and are
emptied by all at once. Around the script a line is put that answers the server's own time beside the decision; each process writes
its decisions down, and what was granted is counted from these notes afterwards: in every window of 1, 10 and 60 s that begins at a
granted retry, and in every window of any length. `could` is what a perfect counter would have granted at most in that time, so that
refusing all is no way to pass. Every answer is waited for, however busy the machine is: a decision that was not noted would be none
that was checked.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.machine import machine, versions
from dashboard.setup.engine import Engine
from tests.rigs.budget import all_decided, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=240, help="that all of it is spread over")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        engine = Engine(Path(folder, "engine")).start()
        try:
            decided = all_decided(engine.url, Path(folder), wanted.processes, wanted.decisions, wanted.seconds)
        finally:
            engine.stop()
        json.dump({"machine": machine(), "versions": versions(), **figures(decided)}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
