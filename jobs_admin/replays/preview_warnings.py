"""Warnings of a preview, in sentences with numbers, about what is allowed but may surprise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import F, Sum

from jobs_admin.core import figures, pacing
from jobs_admin.core.figures import clock, dated
from jobs_admin.db import statements
from jobs_admin.fleet.signatures import signatures
from jobs_admin.models import Attempt, AuditEvent, DepthSample, Failure, FailureCount, GroupCounter, Source
from jobs_admin.models.counter import MINUTE
from jobs_admin.queues import rates, refused_reports
from jobs_admin.replays.obstacles import TABLE
from jobs_admin.replays.readiness import Readiness

SAMPLED_JOBS = 1_000  # the latest jobs, whose last attempt is read
RESTORE_ACT = "desk.restore"
_RESTORED_WITHIN = timedelta(days=30)
_LATE_S = 1.0  # runtime after which a failed job has probably had side effects
_FAR_ABOVE = 2  # times the throughput of the queues
_MOST_SLOWDOWNS = 6
_SAMPLED_WITHIN = timedelta(seconds=40)
_LONG_S = 10.0  # seconds that the workers need for the waiting jobs
_MANY_WAITING = 100  # jobs, if the workers' rate is unknown


class SampledJob(NamedTuple):
    """Columns of a replayable job: a preview reads thousands."""

    id: int
    source: str
    queue: str
    task: str
    tenant: str
    group_id: int | None
    run: int
    redacted: Any


def build_warnings(
    ready: Readiness,
    sample: Sequence[SampledJob],
    failing: Sequence[str],
    queues: Sequence[str],
    throughput: float | None,
    peak: float,
    now: datetime,
) -> list[str]:
    """Return the warnings.

    `sample`: rows of the latest replayable jobs. `failing`: `still_failing`. `queues`: where the jobs are sent; empty if unknown.
    `throughput` and `peak`: jobs per second.
    """
    if not ready.count:
        return []
    return [
        *refused_reports.warnings(ready.sources, queues, now),
        *failing,
        *_too_fast(throughput, peak),
        *_done_before(ready, sample),
        *_restored(sample, now),
        *_accepted(ready),
        *_hidden(ready, sample),
        *_unchecked_arguments(ready, sample),
    ]


def build_slowdowns(
    ready: Readiness,
    plan: pacing.Pace,
    queues: Sequence[str],
    limits: Sequence[pacing.Limit],
    throughput: float | None,
    workers_per_s: float | None,
    peak: float,
    now: datetime,
) -> list[str]:
    """Return sentences about what stops or slows the replay, in that order.

    `queues`: where the jobs are sent; empty if unknown. In jobs per second: `throughput` of the last hour,
    `workers_per_s` that the workers can handle, the `peak` of the replay.
    """
    if not ready.count:
        return []
    found = []
    if plan.window and (opens := plan.window.opens_at(now)) > now:
        found.append(f"Outside its sending hours: starts at {clock(opens, now)} UTC.")
    found += _paused_queues(ready.sources, queues)
    found += _queue_states(ready.sources, queues, workers_per_s or throughput, now)
    for limit in limits:
        if limit.per_s < peak * limit.share:
            found.append(
                f"Policy {limit.policy} limits {limit.task or 'these jobs'} to {figures.small(limit.per_s)} starts/s, fewer than this "
                "replay sends: the others wait in the queue."
            )
    # If the throughput of the last hour is known, a warning covers this.
    if throughput is None and workers_per_s is not None and peak >= _FAR_ABOVE * workers_per_s + 1:
        found.append(
            f"The workers handle about {figures.small(workers_per_s)} jobs/s: jobs that are sent faster wait in the queue."
        )
    return found[:_MOST_SLOWDOWNS]


def _paused_queues(sources: Collection[str], queues: Sequence[str]) -> list[str]:
    """Return the sources' findings about paused queues that are, or may be, among these."""
    rows = Source.objects.filter(name__in=list(sources)).order_by("name").values_list("name", "findings")
    texts = [(name, one.get("text", "")) for name, findings in rows for one in findings if one.get("id") == "paused"]
    return [f"{name}: {text}" for name, text in texts if not queues or any(queue in text for queue in queues)]


def _queue_states(sources: Collection[str], queues: Sequence[str], served: float | None, now: datetime) -> list[str]:
    """Return the queues without workers, and those with many waiting jobs, according to their latest samples."""
    samples = DepthSample.objects.filter(
        source__in=list(sources),
        queue__in=list(queues),
        step=10,
        is_reachable=True,
        at__gt=now - _SAMPLED_WITHIN,
        at__lte=now,
    )
    names = ("source", "queue", "workers", "waiting")
    latest = {(row.source, row.queue): row for row in samples.order_by("at").values_list(*names, named=True)}
    found = []
    for (source, queue), row in sorted(latest.items()):
        where = f"{queue} of {source}" if len(sources) > 1 else queue
        waiting = row.waiting or 0
        jobs = "1 job is" if waiting == 1 else f"{waiting:,} jobs are"
        if row.workers == 0:
            already = f"; {jobs} waiting there already" if waiting else ""
            found.append(f"No worker consumes from {where}: jobs wait there until a worker starts{already}.")
        elif waiting > (_LONG_S * served if served else _MANY_WAITING):
            found.append(f"{jobs[:1].upper()}{jobs[1:]} already waiting in {where}: replayed jobs run after them.")
    return found


def still_failing(groups: Sequence[int], sources: Collection[str], now: datetime) -> list[str]:
    """Return the warning about groups (ids) that still fail.

    Counts these sources only: others are not replayed and may be hidden from the viewer.
    """
    elsewhere = (
        FailureCount.objects.filter(group_id__in=groups).exclude(source__in=sources).values_list("group_id", flat=True)
    )
    shared = set(elsewhere.distinct())
    since = rates.window_start(now)
    lately = GroupCounter.objects.filter(group__in=set(groups) - shared, step=MINUTE, at__gte=since, at__lte=now)
    failed = lately.aggregate(n=Sum(F("failed") + F("retried")))["n"] or 0
    if shared:  # counters of groups have no source: each job counts once
        theirs = Failure.objects.filter(group__in=shared, source__in=sources, failed_at__gte=since, failed_at__lte=now)
        failed += theirs.count()
    if not failed:
        return []
    a_minute = failed / rates.window_minutes(now)
    times = "once" if failed == 1 else f"{failed:,} times"
    errors = "The error is" if len(groups) == 1 else "Some of these errors are"
    return [f"{errors} still happening: {times} in {rates.WINDOW}, {figures.per_minute(a_minute)}."]


def _too_fast(throughput: float | None, peak: float) -> list[str]:
    # The peak is a whole number of jobs in one second: for a slow pace up to one more than the rate.
    if throughput is None or peak < _FAR_ABOVE * throughput + 1:
        return []
    times = f", {peak / throughput:,.0f} times as many" if throughput else ""
    usual = f"In the last hour these queues finished {figures.rate(throughput)} (median)"
    return [f"{usual}; this replay sends up to {figures.small(peak)}/s{times}."]


def _done_before(ready: Readiness, sample: Sequence[SampledJob]) -> list[str]:
    latest = sample[:SAMPLED_JOBS]
    found = []
    if again := sum(row.run > 1 for row in latest):
        found.append(f"{_share_with_verb(again, latest, ready)} replayed before and failed again.")
    among, ids = statements.one_of("failure_id", [row.id for row in latest])
    late = (
        f"SELECT COUNT(DISTINCT failure_id) FROM {Attempt._meta.db_table} WHERE duration_s > %s AND kind <> 'success'"
    )
    if worked := statements.fetch_number(f"{late} {among}", [_LATE_S, *ids]):
        found.append(
            f"{_share_with_verb(worked, latest, ready)} running for more than 1 s when an attempt failed: work done before the "
            "failure will be repeated."
        )
    return found


def _restored(sample: Sequence[SampledJob], now: datetime) -> list[str]:
    """Return the warning that jobs may have been replayed between a backup and its restore, which lost the record."""
    event = AuditEvent.objects.filter(act=RESTORE_ACT, at__gte=now - _RESTORED_WITHIN).order_by("-id").first()
    if event is None:
        return []
    among, ids = statements.one_of("id", [row.id for row in sample[:SAMPLED_JOBS]])
    before = connection.ops.adapt_datetimefield_value(event.at)
    if not statements.fetch_rows(f"SELECT 1 FROM {TABLE} WHERE failed_at < %s {among} LIMIT 1", [before, *ids]):
        return []
    made_at = datetime.fromisoformat(event.after["made_at"])
    return [
        f"The desk was restored at {dated(event.at, now)} UTC from a backup of {dated(made_at, now)} UTC. Jobs that were "
        "replayed in between are shown as dead: check the logs of their workers."
    ]


def _accepted(ready: Readiness) -> list[str]:
    if "unguarded" not in ready.options.accept:
        return []
    return [f"Accepted: {one.reason}. How a job ends there is not reported." for one in ready.unguarded]


def _hidden(ready: Readiness, sample: Sequence[SampledJob]) -> list[str]:
    latest = sample[:SAMPLED_JOBS]
    hidden = sum(row.redacted > 0 for row in latest)
    if ready.options.patch is None or not hidden:
        return []
    have = "has" if hidden == 1 else "have"
    return [
        f"{_share(hidden, latest, ready)} {have} redacted values. The patch is merged into the real values; fields that "
        "it does not name are unchanged."
    ]


def _unchecked_arguments(ready: Readiness, sample: Sequence[SampledJob]) -> list[str]:
    if ready.options.patch is None:
        return []
    return unchecked_task_warnings({(row.source, row.task) for row in sample})


def unchecked_task_warnings(tasks: Collection[tuple[str, str]]) -> list[str]:
    """Return a sentence per source about tasks, (source, task), without a signature to check changed arguments."""
    reported = signatures()
    without: dict[str, list[str]] = {}
    for source, task in sorted(tasks):
        if not reported.for_task(source, task):
            without.setdefault(source, []).append(task)
    return [
        f"Live workers of {source} report no signature of {names[0] or 'these jobs'}"
        f"{_and_more(len(names) - 1)}: the changed arguments are checked only when the job runs."
        for source, names in without.items()
    ]


def _and_more(count: int) -> str:
    return f" and {count:,} more task{'' if count == 1 else 's'}" if count else ""


def _share_with_verb(n: int, latest: Sequence[object], ready: Readiness) -> str:
    return f"{_share(n, latest, ready)} {'was' if n == 1 else 'were'}"


def _share(n: int, latest: Sequence[object], ready: Readiness) -> str:
    """Return "12 of 45", or "12 of the latest 1,000"."""
    of_latest = "the latest " if len(latest) < ready.count else ""
    return f"{n:,} of {of_latest}{len(latest):,}"
