"""A policy before it is in force: its numbers, and a backtest, which applies a worker's decisions to stored failures.

A backtest assumes that an error lasts for its episode: the time in which attempts of its group failed, without a gap of
more than a few minutes. Episodes come from counters, by minute for two days and by hour before: if a group fails again
tomorrow, that is another episode. A group's counters have no source. If a group failed in several, a minute is part of
a source's episode only if, by its queues' counters, something also failed in that source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate, islice
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone

from jobs_admin.core.backoff import schedule
from jobs_admin.core.matching import EXHAUSTED, Dead, Ended, chosen, judge
from jobs_admin.core.policy import Policy, Problem
from jobs_admin.core.refused import Refused
from jobs_admin.core.retry_times import collisions, herd, survives, totals
from jobs_admin.lint import linting
from jobs_admin.models import Attempt, Failure, FailureCount, GroupCounter, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK
from jobs_admin.policies.reading import active
from jobs_admin.search import scope as scopes

JOBS, MOST_JOBS = 1_000, 1_000_000
DRAFT = "draft"  # name of an unnamed policy in findings

# An error has ended if it did not occur for this long.
QUIET = timedelta(minutes=5)
MOST_JUDGED = 2_000  # latest failures that are evaluated
SAMPLED_FAILURES = 20_000  # failures searched for them
_AT_ONCE = 500
# Kinds of ends that a policy decides about. The others mean that the message itself cannot be run.
_JUDGED = frozenset({"exception", "retry", "soft_limit", "hard_limit", "worker_lost", "memory"})


def preview(viewer: Viewer, policy: Policy, current: Policy | None = None, jobs: int = JOBS) -> dict[str, Any]:
    """Return the waits of `policy`, their sum, the effect on `jobs` that fail together, and lint findings.

    Includes the numbers of `current` for comparison. Raises Refused if `jobs` is out of range.
    """
    if not 1 <= jobs <= MOST_JOBS:
        bound = f"1 to {MOST_JOBS:,}"
        message = f"jobs must be {bound}."
        raise Refused("invalid", message, "jobs", problems=[Problem("jobs", message, bound)])
    named = policy if policy.name else replace(policy, name=DRAFT)
    findings = [asdict(one) | {"where": str(one.where)} for one in linting.findings_of(viewer, named)]
    return _numbers(policy, jobs) | {
        "jobs": jobs,
        "current": current and _numbers(current, jobs),
        "warnings": linting.attempts_given(viewer, named),
        "findings": findings,
    }


def _numbers(policy: Policy, jobs: int) -> dict[str, Any]:
    crowd = herd(policy, jobs)
    return {
        "schedule": [asdict(step) for step in schedule(policy)],
        "totals": asdict(totals(policy)),
        "survives": asdict(survives(policy)),
        "herd": [list(point) for point in crowd.points],
        "herd_step_s": crowd.step_s,
        "peak": {"per_second": crowd.peak_per_s, "at_s": crowd.peak_at_s},
        # Pairs of jobs that restart within the same millisecond.
        "collisions": collisions(policy, jobs) if policy.max_attempts > 1 else 0.0,
    }


class Episodes:
    """Episodes of these groups in these sources, starting at `since`."""

    def __init__(self, wanted: Iterable[tuple[str, int]], since: datetime, now: datetime) -> None:
        self._spans: dict[tuple[str, int], list[tuple[datetime, datetime]]] = defaultdict(list)
        sources: dict[int, set[str]] = defaultdict(set)
        for source, group in wanted:
            sources[group].add(source)
        fine = now - MINUTES_BACK
        steps = Q(step=MINUTE, at__gte=max(since, fine)) | Q(step=HOUR, at__gte=since, at__lt=fine)
        shared = _in_several_sources(sources)
        failed = _failed_steps({source for group in shared for source in sources[group]}, steps)
        counted = GroupCounter.objects.filter(steps, group_id__in=list(sources)).exclude(failed=0, retried=0)
        for group, step, at in counted.order_by("group_id", "at").values_list("group_id", "step", "at"):
            for source in sources[group]:
                if group not in shared or (source, step, at) in failed:
                    self._add((source, group), at, at + timedelta(seconds=step))

    def _add(self, place: tuple[str, int], at: datetime, until: datetime) -> None:
        spans = self._spans[place]
        if spans and at - spans[-1][1] <= QUIET:
            spans[-1] = (spans[-1][0], until)
        else:
            spans.append((at, until))

    def over(self, source: str, group: int | None, at: datetime) -> datetime:
        """Return the end of the episode of a failure at this time; the time itself if none is known."""
        spans = self._spans.get((source, group or 0), [])
        place = bisect_right(spans, at, key=lambda span: span[0]) - 1
        return max(at, spans[place][1]) if place >= 0 and spans[place][1] >= at else at


def _in_several_sources(groups: Iterable[int]) -> set[int]:
    counted = FailureCount.objects.filter(group_id__in=list(groups)).values("group_id")
    found = counted.annotate(sources=Count("source", distinct=True)).filter(sources__gt=1)
    return set(found.values_list("group_id", flat=True))


def _failed_steps(sources: set[str], steps: Q) -> set[tuple[str, int, datetime]]:
    """Return source, step and start of the steps in which attempts failed in these sources."""
    if not sources:
        return set()
    counted = QueueCounter.objects.filter(steps, source__in=sources).exclude(failed=0, retried=0)
    return set(counted.values_list("source", "step", "at").distinct())


@dataclass(slots=True)
class Backtest:
    """Counts of jobs, except `retries`. `dead`, `well`, `outlive`, `open` and `unjudged` add up to `looked_at`.

    The error is assumed to last until its last occurrence: of the job itself if it succeeded in the end, otherwise of
    its group, without a gap of five minutes.
    """

    since: datetime
    looked_at: int = 0
    is_cut: bool = False  # there are more
    died_then: int = 0  # of these, jobs that actually died or were lost by their own retries
    retries_then: int = 0  # actual number of retries of all
    retries: int = 0  # number of retries under the policy, until now
    dead: Counter[str] = field(default_factory=Counter)  # reason -> jobs that die while the error still occurs
    lost: int = 0  # of `dead`: jobs that actually succeeded in the end
    well: int = 0  # succeeded, and would succeed
    outlive: int = 0  # died, and would be retried after the error's last occurrence
    open: int = 0  # would still be retried while the error still occurs: outcome unknown
    unjudged: int = 0  # no policy decides about how they ended
    # What the stored failures do not include, as sentences.
    untold: list[str] = field(default_factory=list)

    def give_up(self, reason: str, ran_well: bool) -> None:
        self.dead[reason] += 1
        self.lost += ran_well


_Row = tuple[int, str, int | None]  # number, source and group of a failure


@dataclass(frozen=True, slots=True)
class _Job:
    pk: int
    source: str
    group: int | None
    attempts: Sequence[tuple[str, str, datetime]]  # kind, error, end; of run 1, in order


def backtest(viewer: Viewer, policy: Policy, since: datetime, now: datetime | None = None) -> Backtest:
    """Evaluate the latest MOST_JUDGED visible failures since then that this policy would decide about."""
    now = now or timezone.now()
    found = Backtest(since, untold=_unsupported(policy))
    others = [one for one in active() if one.name != policy.name]
    rows, found.is_cut = _rows(viewer, policy, others, since)
    episodes = Episodes({(source, group) for _, source, group in rows if group}, since, now)
    # waits[n]: mean time from the first failed attempt to its retry n, assuming that runs take no time.
    waits = [0.0, *accumulate(step.mean_s for step in schedule(policy))]
    for job in _jobs(rows):
        _judge(found, policy, waits, job, episodes, now)
    return found


def _rows(viewer: Viewer, policy: Policy, others: Sequence[Policy], since: datetime) -> tuple[list[_Row], bool]:
    """Return number, source and group of failures that the policy would decide about, and whether there may be more."""
    visible = Failure.objects.filter(scopes.visible(viewer), failed_at__gte=since).order_by("-failed_at", "-pk")
    rows = visible.values_list("pk", "group_id", "source", "queue", "task")[: SAMPLED_FAILURES + 1]
    choices: dict[tuple[str, str, str], bool] = {}
    found: list[_Row] = []
    for n, (pk, group, *place) in enumerate(rows.iterator(chunk_size=2_000)):
        if n == SAMPLED_FAILURES:
            return found, True
        where = (place[0], place[1], place[2])
        if where not in choices:
            choices[where] = chosen([policy, *others], *where) is policy
        if choices[where]:
            if len(found) == MOST_JUDGED:
                return found, True
            found.append((pk, place[0], group))
    return found, False


def _jobs(rows: Sequence[_Row]) -> Iterable[_Job]:
    remaining = iter(rows)
    while some := list(islice(remaining, _AT_ONCE)):
        ended: dict[int, list[tuple[str, str, datetime]]] = defaultdict(list)
        attempts = Attempt.objects.filter(failure__in=[pk for pk, _, _ in some], run=1).order_by("attempt", "pk")
        for pk, kind, error, at in attempts.values_list("failure_id", "kind", "error_type", "ended_at"):
            ended[pk].append((kind, error, at))
        for pk, source, group in some:
            yield _Job(pk, source, group, ended[pk])


def _judge(
    found: Backtest, policy: Policy, waits: Sequence[float], job: _Job, episodes: Episodes, now: datetime
) -> None:
    failed = [one for one in job.attempts if one[0] != "success"]
    ran_well = len(failed) < len(job.attempts)
    found.looked_at += 1
    found.died_then += not ran_well
    found.retries_then += max(0, len(job.attempts) - 1)
    if not policy.retries or not failed or any(kind not in _JUDGED for kind, _, _ in failed):
        found.unjudged += 1
        return
    first = failed[0][2]
    for _, error, at in failed:
        attempt = bisect_right(waits, (at - first).total_seconds())  # the policy's latest attempt by then
        verdict = judge(policy, Ended(attempt, (error,) if error else ()), lambda: 0.5, lambda: True)
        if isinstance(verdict, Dead):
            found.give_up(verdict.reason, ran_well)
            found.retries += attempt - 1
            return
    over = failed[-1][2] if ran_well else episodes.over(job.source, job.group, failed[-1][2])
    needed = bisect_right(waits, (over - first).total_seconds())  # retries until one comes after the error
    found.retries += min(needed, len(waits) - 1)
    if needed == len(waits):
        found.give_up(EXHAUSTED, ran_well)
    elif ran_well:
        found.well += 1
    elif now - over < QUIET:
        found.open += 1
    else:
        found.outlive += 1


def _unsupported(policy: Policy) -> list[str]:
    if not policy.retries:
        return ["This policy leaves retries to the task, so it would not have decided any of these failures."]
    found = [
        "Delays use their average, and Retry-After values are not stored with failures.",
        "A faulty job looks like one hit by an outage that ended: classify such errors as permanent.",
    ]
    if policy.classes:
        found.append("Only the error's own class is stored, so rules that name a base class match nothing here.")
    if policy.budget is not None:
        found.append("The budget is assumed to be sufficient.")
    return found
