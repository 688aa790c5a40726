"""Costs of redaction for a failing job: this tree against another, by turns in one run, in processor time.

    python bench/redaction.py [OTHER_TREE] [--rounds 12]

A job's arguments, headers, message and two tracebacks, none with a secret. Prints microseconds a job, the least of the
rounds, and the ratio to the other tree (`git worktree add PLACE COMMIT`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
import urllib.request
from pathlib import Path
from time import process_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = {
    "lang": "py",
    "task": "shop.ship",
    "id": "c0ffee00-1111-4222-8333-444455556666",
    "retries": 0,
    "origin": "gen1@host",
}
LINES = [{"sku": "A1", "n": 2, "price": "12.50"}] * 5
KWARGS = {
    "order_id": 4711,
    "items": LINES,
    "note": "please ring twice",
    "url": "https://shop.example.com/orders/4711?x=1",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("other", nargs="?")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--once", action="store_true", help="measure this process's tree alone")
    chosen = options.parse_args()
    if chosen.once:
        print(microseconds(chosen.rounds))
        return
    trees = [str(ROOT), *([chosen.other] if chosen.other else [])]
    best = dict.fromkeys(trees, float("inf"))
    for _ in range(3):
        for tree in trees:
            command = [sys.executable, __file__, "--once", "--rounds", str(chosen.rounds)]
            done = subprocess.run(command, env={"PYTHONPATH": tree}, capture_output=True, text=True, check=True)
            best[tree] = min(best[tree], float(done.stdout))
    own, *other = best.values()
    print(
        json.dumps(
            {
                "us_a_job": round(own, 1),
                "other": [round(n, 1) for n in other],
                "ratio": [round(own / n, 3) for n in other],
            }
        )
    )


def microseconds(rounds: int) -> float:
    from jobs_admin.core.display import shown_json, shown_message, shown_trace

    traces = [
        trace_of(lambda: urllib.request.urlopen("http://127.0.0.1:1/v1/orders?page=2")),
        trace_of(lambda: json.loads("{")),
    ]
    least = float("inf")
    for _ in range(rounds):
        began = process_time()
        for _ in range(100):
            for value in (KWARGS, [1, "abc"], HEADERS):
                shown_json(value)
            shown_message("URLError: <urlopen error [Errno 111] Connection refused>")
            for trace in traces:
                shown_trace(trace)
        least = min(least, (process_time() - began) / 100)
    return least * 1e6


def trace_of(fails: Any) -> str:
    try:
        fails()
    except Exception:
        return traceback.format_exc()
    raise AssertionError


if __name__ == "__main__":
    main()
