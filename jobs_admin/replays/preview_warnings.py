"""Warnings of a preview: what is allowed and may still surprise, in sentences with their numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.db.models import F, Sum

from jobs_admin.fleet.signatures import signatures
from jobs_admin.models import Attempt, Failure, FailureCount, GroupCounter
from jobs_admin.models.counter import MINUTE
from jobs_admin.queues import rates, refused_reports
from jobs_admin.replays.readiness import Readiness

SAMPLED_JOBS = 1_000  # jobs, the latest, whose last attempt is read
_LATE_S = 1.0  # of work: whoever failed later has most likely done something
_FAR_ABOVE = 2  # times what the queues managed


def build_warnings(
    ready: Readiness,
    sample: Sequence[dict[str, Any]],
    groups: Sequence[int],
    queues: Sequence[str],
    throughput: float | None,
    peak: float,
    now: datetime,
) -> list[str]:
    """Return the warnings. `sample`: rows of the latest that can go. `groups`: ids. `queues`: where it sends; none:
    unknown.

    `throughput` and `peak`: jobs per second.
    """
    if not ready.count:
        return []
    return [
        *refused_reports.warnings(ready.sources, queues, now),
        *_still_failing(groups, ready.sources, now),
        *_too_fast(throughput, peak),
        *_done_before(ready, sample),
        *_accepted(ready),
        *_hidden(ready, sample),
        *_unchecked_arguments(ready, sample),
    ]


def _still_failing(groups: Sequence[int], sources: Collection[str], now: datetime) -> list[str]:
    """Count these sources only: another one's failures are not replayed, and may be hidden from the viewer."""
    elsewhere = (
        FailureCount.objects.filter(group_id__in=groups).exclude(source__in=sources).values_list("group_id", flat=True)
    )
    shared = set(elsewhere.distinct())
    since = rates.window_start(now)
    lately = GroupCounter.objects.filter(group__in=set(groups) - shared, step=MINUTE, at__gte=since, at__lte=now)
    failed = lately.aggregate(n=Sum(F("failed") + F("retried")))["n"] or 0
    if shared:  # counters of groups know no source: here each job counts once
        theirs = Failure.objects.filter(group__in=shared, source__in=sources, failed_at__gte=since, failed_at__lte=now)
        failed += theirs.count()
    if not failed:
        return []
    a_minute = failed / rates.window_minutes(now)
    often = f"{a_minute:,.0f}" if a_minute >= 10 else f"{a_minute:.1f}"
    times = "once" if failed == 1 else f"{failed:,} times"
    return [f"The error is still happening: {times} in {rates.WINDOW}, {often}/min."]


def _too_fast(throughput: float | None, peak: float) -> list[str]:
    # The peak is whole jobs of one second: of a slow pace it is up to one more than the rate.
    if throughput is None or peak < _FAR_ABOVE * throughput + 1:
        return []
    return [
        f"Sends up to {_rate(peak)} jobs/s; in the last hour these queues finished {_rate(throughput)}/s "
        "(median of its minutes)."
    ]


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def _done_before(ready: Readiness, sample: Sequence[dict[str, Any]]) -> list[str]:
    latest = sample[:SAMPLED_JOBS]
    found = []
    if again := sum(row["run"] > 1 for row in latest):
        found.append(f"{_share_with_verb(again, latest, ready)} replayed before and failed again.")
    late = Attempt.objects.filter(failure__in=[row["pk"] for row in latest], duration_s__gt=_LATE_S)
    if worked := late.exclude(kind="success").values("failure").distinct().count():
        found.append(
            f"{_share_with_verb(worked, latest, ready)} running for more than 1 s when an attempt failed: work done before the "
            "failure will be repeated."
        )
    return found


def _accepted(ready: Readiness) -> list[str]:
    if "unguarded" not in ready.options.accept:
        return []
    return [f"Accepted: {one.reason}. How a job ends there is not reported." for one in ready.unguarded]


def _hidden(ready: Readiness, sample: Sequence[dict[str, Any]]) -> list[str]:
    latest = sample[:SAMPLED_JOBS]
    hidden = sum(row["redacted"] > 0 for row in latest)
    if ready.options.patch is None or not hidden:
        return []
    have = "has" if hidden == 1 else "have"
    return [
        f"{_share(hidden, latest, ready)} {have} redacted values. The patch is merged into the real values; fields that "
        "it does not name are unchanged."
    ]


def _unchecked_arguments(ready: Readiness, sample: Sequence[dict[str, Any]]) -> list[str]:
    if ready.options.patch is None:
        return []
    return unchecked_task_warnings({(row["source"], row["task"]) for row in sample})


def unchecked_task_warnings(tasks: Collection[tuple[str, str]]) -> list[str]:
    """Return a sentence for each source about its (source, task) without a signature to check changed arguments
    against.
    """
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
    """ "12 of 45", or "12 of the latest 1,000"."""
    of_latest = "the latest " if len(latest) < ready.count else ""
    return f"{n:,} of {of_latest}{len(latest):,}"
