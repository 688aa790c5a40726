"""Costs of judging alert rules, and the promises that it keeps: `python -m bench.alerts rules | kills | flapping`.

    rules [--rules 500] [--queues 50]            one round over that many rules: nothing fires, a hundred fire, all begin at once
    kills [--watches 3] [--kills 100]            watches judge while they are killed, frozen and thawed, and queues cross the threshold
    flapping [--seconds 600] [--watches 2]       a depth that flaps by one a second, then a real breach

Each on a desk of its own (SQLite; Valkey and `manage.py watch --only sample,judge` for the last two). Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.machine import machine
from jobs_admin.core.alert_metrics import METRICS, Subject
from tests.rigs.empty_desk import desk
from tests.rigs.figures import spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    rules = modes.add_parser("rules")
    rules.add_argument("--rules", type=int, default=500)
    rules.add_argument("--queues", type=int, default=50)
    kills = modes.add_parser("kills")
    kills.add_argument("--watches", type=int, default=3)
    kills.add_argument("--kills", type=int, default=100)
    kills.add_argument("--seed", type=int, default=1)
    flapping = modes.add_parser("flapping")
    flapping.add_argument("--seconds", type=int, default=600)
    flapping.add_argument("--watches", type=int, default=2)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        measured = {"rules": _rules, "kills": _kills, "flapping": _flapping}[wanted.mode](wanted, Path(folder))
    json.dump({"machine": machine(), **measured}, sys.stdout, indent=2)
    print()


# -- what it costs ------------------------------------------------------------------------------------------------


def _rules(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    desk(folder)
    from django.utils import timezone

    from jobs_admin import alerts
    from jobs_admin.models import Alert, Notice

    now = timezone.now()
    _fill(wanted.queues, now)
    _make_rules(wanted.rules)

    def rounds(n: int, at: float) -> list[float]:
        took = []
        for turn in range(n):
            began = time.perf_counter()
            alerts.judge(now + timedelta(seconds=at + 5 * turn))
            took.append((time.perf_counter() - began) * 1000)
        return took

    found: dict[str, Any] = {"rules": wanted.rules, "queues": wanted.queues}
    found["nothing_fires_ms"] = spread(rounds(10, 0))
    _set_threshold(100, lowest=True)
    found["a_hundred_rules_begin_ms"] = round(rounds(1, 100)[0], 1)
    found["alerts_open"] = Alert.objects.count()
    found["they_go_on_ms"] = spread(rounds(10, 110))
    _set_threshold(wanted.rules, lowest=True)
    found["all_rules_begin_at_once_ms"] = round(rounds(1, 200)[0], 1)
    found["alerts_open_then"] = Alert.objects.count()
    found["all_go_on_ms"] = spread(rounds(5, 210))
    found["notices"] = Notice.objects.count()
    _narrow()
    rounds(8, 300)  # what was open ends
    found["all_are_narrowed_ms"] = spread(rounds(10, 400))
    return found


def _fill(queues: int, now: Any) -> None:
    """Make dead jobs, samples and counters of `queues` queues of two sources."""
    from jobs_admin.models import DepthSample, Failure, QueueCounter

    names = [(("shop", "bank")[n % 2], f"queue-{n:03}") for n in range(queues)]
    values = {"state": "dead", "kind": "exception", "first_failed_at": now, "failed_at": now, "received_at": now}
    jobs = [
        Failure(source=source, queue=queue, task=f"task.{i % 7}", first_job_id=f"{n}-{i}", job_id=f"{n}-{i}", **values)
        for n, (source, queue) in enumerate(names)
        for i in range(40)
    ]
    Failure.objects.bulk_create(jobs, batch_size=500)
    DepthSample.objects.bulk_create(
        DepthSample(source=source, queue=queue, at=now + timedelta(seconds=10 * step), dead=40, oldest_dead_at=now)
        for source, queue in names
        for step in range(-32, 30)
    )
    minute = now.replace(second=0, microsecond=0)
    QueueCounter.objects.bulk_create(
        QueueCounter(source=source, queue=queue, at=minute - timedelta(minutes=back), failed=3, retried=9, succeeded=90)
        for source, queue in names
        for back in range(-5, 10)
    )


_METRICS = [metric.name for metric in METRICS.values() if metric.subject is not Subject.VIEW]


def _make_rules(n: int) -> None:
    from jobs_admin.models import Rule

    Rule.objects.all().delete()
    wheres = (("*", "*"), ("shop", "*"), ("*", "queue-0*"), ("bank", "queue-*1"))
    Rule.objects.bulk_create(
        Rule(
            name=f"rule {i:04}", metric=_METRICS[i % len(_METRICS)], source=wheres[i % 4][0], queue=wheres[i % 4][1],
            task="task.1" if i % 12 == 0 else "*", threshold=1e6 + i, for_s=0, keep_firing_s=0,
        )
        for i in range(n)
    )  # fmt: skip


def _set_threshold(n: int, *, lowest: bool) -> None:
    """Set the threshold of `n` rules: one at which they fire where `lowest` is set, else one at which they do not."""
    from jobs_admin.models import Rule

    some = Rule.objects.filter(threshold__gte=1e6).order_by("pk").values_list("pk", flat=True)[:n]
    Rule.objects.filter(pk__in=list(some)).update(metric="dead", task="*", threshold=1 if lowest else 30)


def _narrow() -> None:
    """Each rule on the dead jobs of a task of its own, or of a pattern, and none fires."""
    from jobs_admin.models import Rule

    for n, rule in enumerate(Rule.objects.order_by("pk")):
        Rule.objects.filter(pk=rule.pk).update(metric="dead", task=f"task.{n}{'*' if n % 2 else ''}", threshold=1e6 + n)


# -- what it keeps to ---------------------------------------------------------------------------------------------


def _kills(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from tests.rigs.alert_havoc import Havoc

    with Havoc(folder, watches=wanted.watches, seed=wanted.seed) as havoc:
        return havoc.run(wanted.kills)


def _flapping(wanted: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from tests.rigs.alert_havoc import Havoc

    with Havoc(folder, watches=wanted.watches, seed=1, for_s=60, keep_firing_s=120, queues=1) as havoc:
        return havoc.flap(wanted.seconds)


if __name__ == "__main__":
    main()
