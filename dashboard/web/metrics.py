"""Prometheus metrics, limited to the sources that the token may see.

This process counts nothing: values are read from tables or Redis, and written in the text format as they are read.
Depths cover the 500 worst queues, because queue names come from messages; `jobs_admin.db.counters` limits counters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import redis
from prometheus_client import Metric, generate_latest

from jobs_admin import automations, config, holds, policies, queues
from jobs_admin.db import counters
from jobs_admin.desk import desk_state
from jobs_admin.fleet import uncaptured
from jobs_admin.holds import breakers
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues import liveness

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]

_STATE_NUMBERS = {"closed": 0, "half_open": 1, "open": 2}  # of breakers


@dataclass(frozen=True, slots=True)
class Scrape:
    """All metrics that a viewer may read. Unknown values are omitted: unknown is not zero."""

    viewer: Viewer
    now: datetime

    def collect(self) -> Iterator[Metric]:
        return _metrics(self.viewer, self.now)


def text(viewer: Viewer, now: datetime | None = None) -> str:
    """Return the metrics in Prometheus' text format."""
    return generate_latest(Scrape(viewer, now or datetime.now(UTC))).decode()


def _metrics(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    yield from _of_queues(viewer, now)
    yield from _totals(viewer)
    yield from _of_policies(viewer, now)
    yield from _of_replays_and_alerts(viewer, now)
    yield from _of_sources(viewer, now)
    yield from _of_the_store(viewer, now)


def _gauge(name: str, help: str, samples: Iterable[tuple[Labels, float | None]]) -> Metric:
    return _metric("gauge", name, help, (("", labels, n) for labels, n in samples if n is not None))


def _counter(name: str, help: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    return _metric("counter", name.removesuffix("_total"), help, (("_total", labels, n) for labels, n in samples))


def _metric(kind: str, name: str, help: str, samples: Iterable[tuple[str, Labels, float]]) -> Metric:
    """Return one metric. `samples`: suffix of the name, labels, value. Its header is written also without samples."""
    metric = Metric(name, help, kind)
    for suffix, labels, value in samples:
        metric.add_sample(f"{name}{suffix}", labels, value)
    return metric


def _of_queues(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    rows = [
        ({"source": row.source, "queue": row.queue}, row)
        for row in queues.queue_page(viewer, limit=queues.LARGEST_PAGE, now=now).rows
    ]
    depth = [
        ({**labels, "state": state}, count)
        for labels, row in rows
        for state, count in (("waiting", row.waiting), ("active", row.active), ("delayed", row.delayed))
    ]
    yield _gauge("job_queue_depth", "Jobs of a queue by state, as last sampled.", depth)
    yield _gauge("job_queue_dlq_depth", "Dead jobs of a queue.", [(labels, row.dead) for labels, row in rows])
    oldest = [(labels, row.oldest_dead_age_s or 0) for labels, row in rows if row.dead]
    yield _gauge("job_queue_oldest_dead_seconds", "Age of the oldest dead job of a queue.", oldest)


# Name -> description, and labels in the order of `totals.Counted` from `source` on.
_OF_QUEUE = ("source", "queue")
_COUNTERS = {
    counters.DIED: ("Job deaths: a job that dies again counts again.", ("source", "source_queue", "job_name")),
    counters.FAILURES: (
        "Failed attempts, including retried ones.",
        ("source", "queue", "task", "error"),
    ),
    counters.RETRIES: ("Failed attempts with a scheduled retry.", _OF_QUEUE),
    counters.RECOVERED: ("Successful attempts of jobs that had failed before.", _OF_QUEUE),
    counters.REFUSED: (
        "Refused reports by cause: unsigned, signature, unknown.",
        ("source", "cause"),
    ),
    counters.COMPLETED: ("Succeeded jobs, as counted by guarded workers.", _OF_QUEUE),
}
_DURATION = "job_duration_seconds"
_OF_DURATION = {counters.BUSY_S: "_sum", counters.ENDED: "_count"}


def _totals(viewer: Viewer) -> Iterator[Metric]:
    found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    durations: list[tuple[str, Labels, float]] = []
    for counted, value in counters.read_totals(viewer):
        if counted.metric in _COUNTERS:
            _, names = _COUNTERS[counted.metric]
            found[counted.metric].append((dict(zip(names, counted[1:], strict=False)), value))
        elif counted.metric in _OF_DURATION:
            labels = dict(zip(_OF_QUEUE, counted[1:], strict=False))
            durations.append((_OF_DURATION[counted.metric], labels, value))
    for name, (help, _) in _COUNTERS.items():
        yield _counter(name, help, found[name])
    help = "Duration and number of ended attempts, as counted by guarded workers; no quantiles."
    yield _metric("summary", _DURATION, help, durations)


def _of_policies(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    published = policies.published(viewer)
    left = [
        ({"policy": name, "source": source}, count)
        for name, budget in policies.budgets(viewer, published).items()
        for source, count in budget.left.items()
    ]
    on = [
        ({"policy": name, "version": "none" if version is None else str(version)}, count)
        for name, workers in policies.in_force(viewer, published, now).items()
        for version, count in sorted(workers.on.items(), key=lambda one: one[0] or 0)
    ]
    paused = [
        ({"source": one.source, "queue": one.queue, "task": one.task, one.kind: one.name}, 1)
        for one in holds.listing(viewer)
        if holds.is_open(one, now)
    ]
    yield _gauge("redrive_pauses", "Open pauses: 1 for each.", paused)
    yield from _of_breakers(viewer)
    yield _gauge("job_retry_budget_remaining", "Retries left in the budget of a policy, per source.", left)
    yield _gauge("redrive_policy_workers", "Live workers matched by a policy, by version.", on)


def _of_breakers(viewer: Viewer) -> Iterator[Metric]:
    found = breakers.listing(viewer)
    states = [
        ({"source": one.source, "dependency": one.name, "mode": one.mode}, _STATE_NUMBERS[one.state])
        for one in found.rows
    ]
    on_hold = [
        ({"source": one.source, "queue": queue, "dependency": one.name}, count)
        for one in found.rows
        if one.document
        for queue, count in (breakers.on_hold(one).by_queue or {"": one.document.on_hold}).items()
    ]
    yield _gauge(
        "redrive_held_jobs",
        "Jobs held by a breaker, as its workers last reported; without their queues where unknown.",
        on_hold,
    )
    yield _gauge("redrive_breaker_state", "State of a breaker: 0 closed, 1 releasing, 2 open.", states)


def _of_replays_and_alerts(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    def by_state(counted: Mapping[str, int]) -> list[tuple[dict[str, str], int]]:
        return [({"state": state}, n) for state, n in counted.items()]

    items = desk_state.replay_items(viewer, now)
    yield _gauge(
        "redrive_replay_items",
        "Jobs of unfinished replays and of those that ended within a day, by state.",
        by_state(items),
    )
    yield _gauge("redrive_alerts", "Open alerts by state.", by_state(desk_state.alerts(viewer)))
    states = Counter(automations.state(one) for one in automations.listing(viewer))
    counted = {state: states[state] for state in automations.STATES}
    yield _gauge("redrive_automations", "Automations by state.", by_state(counted))
    left = desk_state.deliveries(viewer)
    yield _gauge("redrive_deliveries", "Undelivered notices by state; parked notices are not retried.", by_state(left))


def _of_sources(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    rows = [({"source": one.name}, one) for one in desk_state.sources(viewer, now)]
    yield _gauge(
        "redrive_source_up",
        "Whether the source was reachable at its last sample.",
        [(labels, one.is_reachable) for labels, one in rows],
    )
    yield _gauge(
        "redrive_sample_age_seconds",
        "Time since the last sample of a source.",
        [(labels, _since(one.sampled_at, now)) for labels, one in rows if one.sampled_at],
    )
    yield _gauge(
        "redrive_source_read_age_seconds",
        "Time since the last complete read of dead jobs from a source that stores them.",
        [(labels, _since(one.pulled_at, now)) for labels, one in rows if one.pulled_at],
    )
    yield _gauge("redrive_workers", "Live guarded workers.", [(labels, one.workers) for labels, one in rows])
    yield _gauge(
        "redrive_spooled_reports",
        "Reports waiting on the disks of workers.",
        [(labels, one.spooled) for labels, one in rows],
    )
    yield _gauge(
        "redrive_dropped_reports",
        "Reports lost by live workers since they started.",
        [(labels, one.dropped) for labels, one in rows],
    )
    yield _counter(
        uncaptured.METRIC,
        "Reports lost by workers, including workers that are gone.",
        [({"source": source}, value) for source, value in uncaptured.totals_by_source(viewer)],
    )


def _of_the_store(viewer: Viewer, now: datetime) -> Iterator[Metric]:
    lags: dict[str, float | None] | None = None
    steps: dict[str, datetime] = {}
    with suppress(redis.RedisError, config.BadConfiguration):
        steps, lags = liveness.steps(), liveness.ingest_lags_s(now)
    yield _gauge(
        "redrive_ingest_lag_seconds",
        "Waiting time of the oldest report of a source that is not filed yet.",
        [
            ({"source": name}, lag and round(lag, 3))
            for name, lag in (lags or {}).items()
            if name and viewer.may(VIEWER, name)
        ],
    )
    yield _gauge(
        "redrive_store_up",
        "Whether Redrive's Redis answers. Otherwise budgets, workers, lag and steps are missing.",
        [({}, lags is not None)],
    )
    yield _gauge(
        "redrive_watch_step_age_seconds",
        "Time since the last completed round of a step of `watch`.",
        [({"step": name}, _since(at, now)) for name, at in sorted(steps.items())],
    )
    yield _gauge("redrive_unfiled_reports", "Reports that could not be filed.", [({}, desk_state.unfiled(viewer))])


def _since(at: datetime, now: datetime) -> float:
    return round(max(0.0, (now - at).total_seconds()), 3)
