"""Careful against partners drawn at random, on a simulated clock: `python -m bench.partners --seed 1 [--jobs 45000]`.

Ten kinds of partner, four of each: what it carries, whether it refuses what is more, how it falls over and for how
long, how often the jobs are tried natively and how long they take are all drawn from the seed. Each is met three times:
from a fresh desk, from one that knows what the queue managed in the last hour, and with an outage of its own when half
of the jobs are sent. A held replay is resumed after a minute. Beside it stand *steady* at its default rate, and who
knows at every moment what the partner carries (the oracle). The Bucket and the Controller are the real ones. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.machine import machine  # noqa: E402
from tests.rigs.partners import KINDS, STEADY, meet, partners  # noqa: E402

JOBS = 45_000


# How it goes


# Way of careful -> that of steady which meets the same.
CAREFUL = {"fresh": "steady", "busy": "steady", "resumed": "steady resumed"}


def _meet(meeting: tuple[int, str, int, int]) -> dict[str, Any]:
    n, way, jobs, seed = meeting
    return meet(partners(seed)[n], way, jobs, seed)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of each way over all partners. `more_dead_than_steady`: partner -> additional dead jobs, where any."""
    found = {}
    for way in (*CAREFUL, *STEADY):
        mine = [row for row in rows if row["way"] == way]
        if mine:
            times, dead = [row["times_the_oracle"] for row in mine], [row["dead_percent"] for row in mine]
            aside = [row["set_aside_whole_percent"] for row in mine]
            found[way] = {
                "partners": len(mine),
                "most_collapses": max(row["collapses"] for row in mine),
                "collapsed": sum(row["collapses"] > 0 for row in mine),
                "collapsed_again": {row["partner"]: row["collapses"] for row in mine if row["collapses"] > 1},
                "dead": sum(row["dead"] for row in mine),
                "dead_percent": {"median": round(median(dead), 2), "worst": max(dead)},
                "set_aside_whole_percent": {"of": sum(share > 0 for share in aside), "worst": max(aside)},
                "times_the_oracle": {"median": round(median(times), 2), "worst": max(times)},
            }
        if mine and way in CAREFUL:
            beside = {row["partner"]: row["dead"] for row in rows if row["way"] == CAREFUL[way]}
            more = {row["partner"]: row["dead"] - beside.get(row["partner"], row["dead"]) for row in mine}
            found[way]["more_dead_than_steady"] = {name: jobs for name, jobs in more.items() if jobs > 0}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, help=f"{JOBS:,} unless said; 1,500 with --real.")
    options.add_argument("--kind", action="append", choices=list(KINDS), help="Only this one; may be repeated.")
    options.add_argument("--way", action="append", choices=[*CAREFUL, *STEADY], help="Only this one; may be repeated.")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--lines", action="store_true", help="A line for each, rather than JSON.")
    options.add_argument("--real", action="store_true", help="Six of the kinds with real workers, from a fresh desk.")
    chosen = options.parse_args()
    if chosen.real:
        from bench import partners_real

        jobs = chosen.jobs or partners_real.JOBS
        rows = partners_real.real(chosen.seed, jobs, chosen.kind or partners_real.KINDS)
        print(json.dumps({"machine": machine(), "seed": chosen.seed, "jobs": jobs, "met": rows}, indent=1))
        return
    chosen.jobs = chosen.jobs or JOBS
    wanted = [
        (n, way, chosen.jobs, chosen.seed)
        for way in chosen.way or (*CAREFUL, *STEADY)
        for n, drawn in enumerate(partners(chosen.seed))
        if not chosen.kind or drawn.kind in chosen.kind
    ]
    with get_context("fork").Pool(chosen.processes) as pool:
        rows = []
        for row in pool.imap(_meet, wanted):
            rows.append(row)
            if chosen.lines:
                print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    if chosen.lines:
        print(json.dumps(summary(rows), indent=1))
        return
    print(
        json.dumps(
            {"machine": machine(), "seed": chosen.seed, "jobs": chosen.jobs, **summary(rows), "met": rows}, indent=1
        )
    )


if __name__ == "__main__":
    main()
