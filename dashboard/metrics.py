"""What a Prometheus scrape is told: only what the token behind it may see.

Written by hand: prometheus-client keeps counts of its own process, and everything here stands in tables or in Redis already.
Depths are of the 500 worst queues, since queues' names come from messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from jobs_admin import config, liveness, policies, queues
from jobs_admin.models.access import Viewer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Gauge:
    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]  # labels, value

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.samples:
            said = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
            number = f"{value:.15g}"  # to the last job: with six digits a million and one would be a million
            yield f"{self.name}{{{said}}} {number}" if said else f"{self.name} {number}"


def text(viewer: Viewer, now: datetime | None = None) -> str:
    """All gauges in Prometheus' text format. What nobody knows just now is left out: it is not zero."""
    now = now or datetime.now(UTC)
    gauges = [*_of_queues(viewer, now), *_of_policies(viewer, now), *_of_the_store(now)]
    return "".join(f"{line}\n" for gauge in gauges for line in gauge.lines())


def _of_queues(viewer: Viewer, now: datetime) -> list[Gauge]:
    rows = queues.listing(viewer, limit=queues.LARGEST_PAGE, now=now).rows
    depth = [
        ({"source": row.source, "queue": row.queue, "state": state}, float(count))
        for row in rows
        for state, count in (("waiting", row.waiting), ("active", row.active), ("delayed", row.delayed))
        if count is not None
    ]
    dead = [({"source": row.source, "queue": row.queue}, float(row.dead)) for row in rows]
    oldest = [
        ({"source": row.source, "queue": row.queue}, float(row.oldest_dead_age_s or 0)) for row in rows if row.dead
    ]
    return [
        Gauge("job_queue_depth", "Jobs of a queue, as it was last sampled.", depth),
        Gauge("job_queue_dlq_depth", "Dead letters of a queue.", dead),
        Gauge("job_queue_oldest_dead_seconds", "Age of a queue's oldest dead letter.", oldest),
    ]


def _of_policies(viewer: Viewer, now: datetime) -> list[Gauge]:
    published = policies.published(viewer)
    left = [
        ({"policy": name, "source": source}, float(count))
        for name, budget in policies.budgets(viewer, published).items()
        for source, count in budget.left.items()
    ]
    on = [
        ({"policy": name, "version": "none" if version is None else str(version)}, float(count))
        for name, told in policies.in_force(viewer, published, now).items()
        for version, count in sorted(told.on.items(), key=lambda one: one[0] or 0)
    ]
    return [
        Gauge("job_retry_budget_remaining", "Retries that a policy could make at once, now, at a source.", left),
        Gauge("redrive_policy_workers", "Live workers that a policy is for, by the version that they run.", on),
    ]


def _of_the_store(now: datetime) -> list[Gauge]:
    try:
        lag: list[tuple[dict[str, str], float]] = [({}, round(liveness.ingest_lag_s(now), 3))]
    except (redis.RedisError, config.BadConfiguration):
        lag = []
    return [
        Gauge("redrive_ingest_lag_seconds", "How long the oldest report has waited to be filed.", lag),
        Gauge("redrive_store_up", "Whether Redrive's Redis answers: without it budgets and workers are not told.",
              [({}, float(bool(lag)))]),
    ]  # fmt: skip
