"""A recovery on a simulated clock: 45,000 dead webhook jobs, and a customer who has just come back.

    python bench/recovery.py [--jobs 45000] [--seeds 3] [--curve warming]

What the customer's service can carry grows from 20 to 300 requests/s over 60 s; above that it answers 503, and more
than 1.3 times as much within 2 s knock it over for 20 s, after which it begins again. Failed jobs are retried natively:
six attempts, 1, 2, 4, 8 and 16 s apart (the shop's backoff, ±10 %). The same jobs go back in several ways, through the
Bucket and the Controller that really send; only service, workers and clock are made up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.machine import machine  # noqa: E402
from tests.rigs.recovery import ALL_CURVES, UNFAIR, WAYS, story  # noqa: E402

# How jobs are let go: told the time, how many may go now


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--jobs", type=int, default=45_000)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--curve", action="append", choices=ALL_CURVES, help="Only this one; may be repeated.")
    chosen = options.parse_args()
    curves, jobs, seeds = chosen.curve or ALL_CURVES, chosen.jobs, range(chosen.seeds)
    found = {
        "machine": machine(),
        "jobs": jobs,
        "story": {way: story("warming", way, jobs, 0) for way in WAYS},
        # The same where the service gives no sign before it falls over: nothing protects it but what the queue usually managed.
        "story_without_a_sign": {w: story("warming", w, jobs, 0, sheds=False) for w in ("careful", "oracle")},
        "careful_on_each_curve": {c: beside_the_oracle(c, "careful", jobs, seeds) for c in curves if c not in UNFAIR},
        # What it does not win, on purpose beside what it does.
        "misses": {
            "half of the capacity gone in an instant": beside_the_oracle("cliff", "careful", jobs, seeds),
            "half of the capacity gone within 5 s": beside_the_oracle("plunging", "careful", jobs, seeds),
            "no sign before it falls over, and told twice too much": beside_the_oracle(
                "warming", "careful, told twice too much", jobs, seeds, sheds=False
            ),
            "no sign before it falls over, and warming up slower than the ramp": beside_the_oracle(
                "slow", "careful", jobs, seeds, sheds=False
            ),
            "one customer of eight bears a tenth of its share": beside_the_oracle("unequal", "careful", jobs, seeds),
        },
    }
    print(json.dumps(found, indent=1))


def beside_the_oracle(curve: str, way: str, jobs: int, seeds: range, *, sheds: bool = True) -> dict[str, Any]:
    """The worst of some seeds, and its time as a multiple of the oracle's on the same curve."""
    runs = [story(curve, way, jobs, seed, sheds=sheds) for seed in seeds]
    known = story(curve, "oracle", jobs, 0, sheds=False)["through_after_s"]
    slowest = max(run["through_after_s"] for run in runs)
    return {
        "collapses": [run["collapses"] for run in runs],
        "held": [run["held"] for run in runs],
        "failed_again_percent": max(run["failed_again_percent"] for run in runs),
        "first_attempts_failed_percent": max(run["first_attempts_failed_percent"] for run in runs),
        "peak_requests_per_s": max(run["peak_requests_per_s"] for run in runs),
        "through_after_s": slowest,
        "oracle_s": known,
        "times_the_oracle": round(slowest / known, 2),
    }


if __name__ == "__main__":
    main()
