"""Overview: its sentence and the numbers of its charts.

It reads counters, samples and a limited number of rows, so the cost does not depend on the number of failures.
"Failures" of a rate or a chart are failed attempts, including those that will be retried.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db.models import Case, Count, Max, Q, Subquery, Sum, TextField, Value, When
from django.db.models.functions import Concat

from jobs_admin import config, groups, queues
from jobs_admin.core import figures
from jobs_admin.core import query as language
from jobs_admin.core.figures import clock
from jobs_admin.db import abilities, audit_anchor, audit_position
from jobs_admin.db.counters import StepNumber
from jobs_admin.db.policy_marks import PolicyMark, policy_marks
from jobs_admin.desk import activity, unconfigured_sources
from jobs_admin.fleet.uncaptured import Uncaptured, recent_counts
from jobs_admin.groups import GroupRow
from jobs_admin.models import (
    Channel,
    DepthSample,
    Failure,
    FailureCount,
    Group,
    QueueCounter,
    RefusedReports,
    Replay,
    Source,
    Worker,
)
from jobs_admin.models.access import AUDITOR, EVERY_SOURCE, VIEWER, Viewer
from jobs_admin.models.counter import MINUTE, STEPS_OF_QUEUES
from jobs_admin.models.replay import ReplayState
from jobs_admin.models.source import ALIVE_S
from jobs_admin.queues import coverage, depths, liveness, rates
from jobs_admin.queues.coverage import SourceCoverage
from jobs_admin.rights import group_sight, replay_sight
from jobs_admin.search import scope as scopes
from jobs_admin.sources.base import READ_ONLY
from jobs_admin.trust import admission

# Why a job in guest mode cannot be replayed.
SEEN = "Seen, not replayable: install the guard to capture such jobs."
NEW_WITHIN = timedelta(minutes=30)
SAMPLE = 1_000
MOST_SOURCES = 50
EXCEEDED_FOR = timedelta(hours=1)  # how long an exceeded limit, or a budget that could not be queried, is shown
MOST_QUEUES = 12  # of those with dead jobs
MOST_SERIES = 6  # queues drawn separately; the rest are one series
MOST_LOUD = 100  # queues that are counted as failing
NOT_RUNNING = ("draft", "done", "stopped", "cancelled")


@dataclass(frozen=True, slots=True)
class Sentence:
    """The present state in one sentence, and the search that shows it."""

    text: str
    tone: str  # calm, trouble, stale
    query: str = ""
    more: str = ""  # less urgent facts, as a separate sentence

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SourceRow:
    name: str
    backend: str
    is_configured: bool
    reachable: bool | None
    why: str
    changed_at: datetime | None
    sampled_at: datetime | None
    age_s: int | None  # of the last sample
    dead: int
    workers: int  # live guarded ones
    findings: list[dict[str, str]] = field(default_factory=list)
    keeps_dead: bool = False  # a pulled source that stores its dead jobs; otherwise guarded workers report them
    # Its failures are read from events, which cover the share of jobs in `coverage`.
    follows: bool = False
    has_guard_reports: bool = False  # a guard has reported: some failures have messages
    coverage: SourceCoverage | None = None  # None also if the store does not answer
    pulled_at: datetime | None = None  # when all its jobs were last read; None: never so far
    why_not_pulled: str = ""
    not_pulled_since: datetime | None = None
    # In the last hour: retries from workers' own shares of a budget, jobs above a limit, and when each last increased.
    shared_out: int = 0
    shared_out_at: datetime | None = None
    overrun: int = 0
    overrun_at: datetime | None = None

    @property
    def system(self) -> str:
        """Display name of its system."""
        return abilities.system_name(self.backend)

    @property
    def has_guards(self) -> bool:
        """Return whether unguarded workers matter: in a polled source only if some have a guard."""
        return bool(self.workers) or not (self.keeps_dead or self.follows)

    @property
    def counts_successes(self) -> bool:
        """Return whether successful jobs are counted: by guarded workers, or from events."""
        return self.has_guards or self.follows

    @property
    def takes_replays(self) -> bool:
        return not self.why_no_replay

    @property
    def why_no_replay(self) -> str:
        """Reason why nothing can be sent to it, and how to change that; "" if jobs can be sent."""
        if not self.is_configured:
            return f"{unconfigured_sources.reason(self.name)} {unconfigured_sources.fix(self.name)}"
        if self.follows and not self.has_guard_reports:
            return SEEN
        if closed := self.read_only:
            return f"{self.name} is read-only: {closed.get('text', '')}"
        if self.reachable is False:
            return f"{self.name} is unreachable. Its jobs can be replayed when it answers again."
        return abilities.missing_ability(self.name, "replay")

    @property
    def read_only(self) -> dict[str, str] | None:
        """The finding because of which nothing is sent to it."""
        return next((one for one in self.findings if one.get("id") == READ_ONLY), None)


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers over time, one per step; `times` are the steps' starts, in seconds since 1970."""

    step_s: int
    times: list[int]
    queues: dict[str, list[int]]  # "source/queue", or only "queue" with a single source -> one number per step
    fullest: list[tuple[str, str]] = field(default_factory=list)  # source and queue of those drawn separately


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that the overview shows of the visible sources."""

    at: datetime
    sentence: Sentence
    data_since: datetime | None  # the first sample
    sampled_since: datetime | None  # the same, if it is younger than the charts' length
    series: Series
    depth: depths.DeadDepth  # of the queues in `dead`, else of those in `series`
    policies: list[PolicyMark]  # changed in the period of the series
    sources: list[SourceRow]
    more_sources: int
    dead: list[tuple[str, str, int]]
    more_dead: int  # further queues with dead jobs
    loudest: list[GroupRow]
    replays: list[Replay]
    silent: list[Channel]  # disabled: they notify no one
    uncaptured: list[Uncaptured]
    signing: admission.State


_IN_HEADLINE = 3  # facts in the headline

# Self-refreshing pages on many screens repeat the same request. The result may be this old, in seconds; an act in this
# process clears the cache (dashboard.web.middleware.identity).
BOARD_CACHED_S = 3.0
# Cache key: the sources that are read, those that may be read, and the length of the charts.
_Key = tuple[tuple[str, ...] | None, tuple[str, ...] | None, timedelta]
_boards: dict[_Key, tuple[float, Board]] = {}
_MOST_BOARDS = 50
# Samples are taken every ten seconds, and a point covers a quarter of an hour.
_DEPTH_CACHED_S = 15.0
_depths: dict[_Key, tuple[float, depths.DeadDepth]] = {}


def forget() -> None:
    """Clear the caches after a change."""
    _boards.clear()
    _depths.clear()
    activity.forget()
    liveness.forget()


def board(viewer: Viewer, now: datetime | None = None, length: timedelta = depths.DAY) -> Board:
    """Return the overview, at most BOARD_CACHED_S old. `length`: of its charts."""
    key, clock = _key(viewer, length), time.monotonic()
    cached = _boards.get(key)
    if cached is None or clock - cached[0] > BOARD_CACHED_S:
        if len(_boards) >= _MOST_BOARDS:
            _boards.clear()
        cached = _boards[key] = clock, _board(viewer, now or datetime.now(UTC), length)
    return cached[1]


def _key(viewer: Viewer, length: timedelta) -> _Key:
    read, allowed = (
        None if names is None else tuple(names) for names in (viewer.sources(), viewer.unfocused.sources())
    )
    return read, allowed, length


def _depth(
    viewer: Viewer, wanted: list[tuple[str, str]], now: datetime, since: datetime | None, length: timedelta
) -> depths.DeadDepth:
    """Return the depth, at most _DEPTH_CACHED_S old."""
    key, clock = _key(viewer, length), time.monotonic()
    cached = _depths.get(key)
    if cached is None or clock - cached[0] > _DEPTH_CACHED_S:
        if len(_depths) >= _MOST_BOARDS:
            _depths.clear()
        cached = _depths[key] = clock, depths.dead_depth(viewer, wanted, now, since, length)
    return cached[1]


def _board(viewer: Viewer, now: datetime, length: timedelta) -> Board:
    dead, more_dead = dead_by_queue(viewer, now)
    data_since = depths.desk_sampled_since(viewer)
    since = data_since if data_since is not None and data_since > now - length else None
    series, shown = failures_over_time(viewer, now, since, length), sources(viewer, now)
    return Board(
        at=now,
        sentence=sentence(viewer, now, known_stale=(None,)),
        data_since=data_since,
        sampled_since=since,
        series=series,
        depth=_depth(viewer, [(source, queue) for source, queue, _ in dead] or series.fullest, now, since, length),
        policies=policy_marks(viewer, datetime.fromtimestamp(series.times[0], UTC), now),
        sources=shown,
        more_sources=more_sources(viewer) if len(shown) == MOST_SOURCES else 0,
        dead=dead,
        more_dead=more_dead,
        loudest=loudest_groups(viewer, now),
        replays=running_replays(viewer),
        silent=silent_channels(),
        uncaptured=recent_counts(viewer, now),
        signing=admission.state(viewer, now),
    )


def source_without_workers(rows: Sequence[SourceRow]) -> str:
    """Return the first configured source that needs a guard, if no source has a known worker or failure; else ""."""
    waiting = [row.name for row in rows if row.is_configured and not row.keeps_dead and not row.follows]
    if not waiting or len(waiting) < len(rows) or any(row.workers or row.dead for row in rows):
        return ""
    is_any_known = any(kind.objects.filter(source__in=waiting).exists() for kind in (Worker, Failure, RefusedReports))
    return "" if is_any_known else waiting[0]


def silent_channels() -> list[Channel]:
    """Return the disabled channels, latest first; there are a few hundred channels at most.

    Every viewer of a source may know their names; the reason discloses their address.
    """
    return list(Channel.objects.exclude(disabled_at=None).order_by("-disabled_at", "-pk"))


def sentence(
    viewer: Viewer, now: datetime | None = None, *, known_stale: tuple[liveness.Stale | None] | None = None
) -> Sentence:
    """Return one sentence for an on-call operator.

    `known_stale`: the result of `liveness.find_stale`, if already known.
    """
    now = now or datetime.now(UTC)
    late = known_stale[0] if known_stale else liveness.find_stale(now)
    if late is not None:
        return Sentence(late.text, "stale")
    loudest = rates.queue_rates(viewer, now, most=MOST_LOUD + 1)
    if loudest and loudest[0].failed >= rates.LOUD_PER_MIN:
        return _trouble(viewer, loudest[0], len([rate for rate in loudest if rate.failed >= rates.LOUD_PER_MIN]), now)
    return _calm(viewer, now)


def _trouble(viewer: Viewer, rate: rates.Rate, loud: int, now: datetime) -> Sentence:
    last = _last_failed_at(viewer, rate)
    is_over = rate.is_over
    if last is not None and not rates.is_failing(last, rate.failed, now):
        minutes, is_over = int((now - last) / timedelta(minutes=1)), True
        failed = f"no failed attempt for {minutes} min"
        parts = [f"{rate.queue}: {failed}, down from {figures.small(rate.failed)}/min over {rates.WINDOW}"]
    elif is_over:
        failed = f"{rate.last or 'no'} failed attempt{'' if rate.last == 1 else 's'} in the last minute"
        parts = [f"{rate.queue}: {failed}, down from {figures.small(rate.failed)}/min over {rates.WINDOW}"]
    else:
        parts = [f"{rate.queue}: {figures.small(rate.failed)} failed attempts/min, {_beside(rate)}"]
    # The worst first: a headline has at most three facts.
    if loud > 1:
        more = f"{MOST_LOUD} or more" if loud > MOST_LOUD else f"{loud - 1} more"
        noun = f"queue{'' if loud == 2 else 's'}"
        parts.append(f"{more} {noun} failed" if is_over else f"{more} failing {noun}")
    if dead := _waiting_dead(viewer, now):
        parts.append(dead)
    if began := rates.failing_since(rate, now):
        is_long = now - began >= rates.LONGEST_OUTAGE - timedelta(minutes=rates.CALM_MIN)
        since = "for a day or longer" if is_long else f"since {clock(began, now)} UTC"
        parts.append(f"{'had been failing' if is_over else 'failing'} {since}")
    new = _new_groups(viewer, rate, now)
    if new:
        noun = f"new group{'' if len(new) == 1 else 's'}"
        parts.append(f"{len(new)} {noun} in {rate.queue} since {clock(min(new), now)} UTC")
    tenants, is_all = _tenants_hit(viewer, rate, now)
    if tenants:
        parts.append(f"{'' if is_all else 'at least '}{tenants} {'tenant' if tenants == 1 else 'tenants'} affected")
    query = f"{language.qualifier('queue', rate.queue)} since:{_iso(_first_sampled_at(now))}"
    rest = "; ".join(parts[_IN_HEADLINE:])
    more = f"{rest[0].upper()}{rest[1:]}." if rest else ""
    return Sentence("; ".join(parts[:_IN_HEADLINE]), "trouble", query, more)


def _last_failed_at(viewer: Viewer, rate: rates.Rate) -> datetime | None:
    """Return the latest failure of this queue's groups, as alerts and previews define it; None without groups."""
    here = FailureCount.objects.filter(scopes.visible(viewer), source=rate.source, queue=rate.queue, count__gt=0)
    return Group.objects.filter(pk__in=here.values("group_id")).aggregate(at=Max("last_seen"))["at"]


def _beside(rate: rates.Rate) -> str:
    """Return the comparison with the rate of the preceding minutes, worded so that it cannot be read as a count."""
    if not rate.before:
        return f"none in the {rates.BEFORE_MIN} minutes before"
    if rate.failed / rate.before >= 1.5:
        return f"{figures.small(rate.failed / rate.before)} times the {figures.small(rate.before)}/min before"
    if rate.failed / rate.before <= 0.67:
        return f"down from {figures.small(rate.before)}/min"
    return f"as in the {rates.BEFORE_MIN} minutes before"


def _first_sampled_at(now: datetime) -> datetime:
    return rates.window_start(now) - timedelta(minutes=rates.BEFORE_MIN)


def _blind(viewer: Viewer, now: datetime) -> Sentence | None:
    """Return the sentence for jobs whose events do not arrive, so that failures may be unobserved."""
    read = viewer.sources()
    found = coverage.read([name for name in config.sources() if read is None or name in read], now).values()
    seen, executed = sum(one.seen for one in found), sum(one.executed for one in found)
    if seen >= 0.95 * executed:  # events arrive some seconds after the heartbeat that counts their job
        return None
    text = f"Events of {seen:,} of {executed:,} jobs arrived in the last hour: failures of the others are not seen."
    return Sentence(text, "trouble")


def _calm(viewer: Viewer, now: datetime) -> Sentence:
    hour = _counters(viewer, now - timedelta(hours=1))
    lately = hour.values("queue").annotate(n=Sum(rates.FAILED)).filter(n__gt=0).order_by("-n")
    failed, waits = list(lately[:20]), _waiting_dead(viewer, now)
    if not failed and not waits and not FailureCount.objects.filter(scopes.visible(viewer), count__gt=0).exists():
        return _blind(viewer, now) or Sentence("No job has failed yet.", "calm")
    if failed:
        total = sum(row["n"] for row in failed)
        times = f"{total:,} failed attempt{'' if total == 1 else 's'}"
        where = f"{'mostly ' if len(failed) > 1 else ''}in {failed[0]['queue']}"
        text = f"{times} in the last hour, {where}; {_now(rates.failed_per_minute(viewer, now))}."
    else:
        text = "No failures in the last hour."
    return Sentence(f"{f'{waits}.' if waits else 'No dead jobs.'} {text}", "calm", "state:dead" if waits else "")


def _now(per_minute: float) -> str:
    """Return the rate of all queues together, in the format of the list of groups."""
    if not per_minute:
        return f"none in {rates.WINDOW}"
    return f"now {figures.small(per_minute)}/min" if per_minute >= 0.1 else "now under 0.1/min"


def _waiting_dead(viewer: Viewer, now: datetime) -> str:
    """Return the number of visible dead jobs, and the time of the oldest, as text; "" if none.

    The oldest may be from another outage.
    """
    dead, queues_hit = _dead(viewer)
    if not dead:
        return ""
    oldest = _oldest_dead(viewer, now)
    where = f" in {queues_hit:,} queues" if queues_hit > 1 else ""
    since = f", {'' if dead == 1 else 'oldest '}from {clock(oldest, now)} UTC" if oldest else ""
    return f"{dead:,} dead job{'' if dead == 1 else 's'}{where}{since}"


def _dead(viewer: Viewer) -> tuple[int, int]:
    """Return the number of dead jobs, and the number of their queues."""
    counted = FailureCount.objects.filter(scopes.visible(viewer), state="dead", count__gt=0)
    # Queues of two sources may have the same name.
    place = Concat("source", Value("/"), "queue", output_field=TextField())
    found = counted.aggregate(n=Sum("count"), queues=Count(place, distinct=True))
    return found["n"] or 0, found["queues"]


def _oldest_dead(viewer: Viewer, now: datetime) -> datetime | None:
    """Return the time of the oldest dead job: from the latest samples, like the page of queues, or its arrival."""
    sampled = DepthSample.objects.filter(scopes.visible(viewer), step=10, dead__gt=0, oldest_dead_at__isnull=False)
    oldest = sampled.filter(at__gte=now - timedelta(minutes=1), at__lte=now).order_by("oldest_dead_at")
    dead = Failure.objects.filter(scopes.visible(viewer), state="dead").order_by("id")
    found = (
        dead.annotate(oldest=Subquery(oldest.values("oldest_dead_at")[:1])).values_list("failed_at", "oldest").first()
    )
    return min(at for at in found if at) if found else None


def _counters(viewer: Viewer, since: datetime, step: int = MINUTE):
    return QueueCounter.objects.filter(scopes.visible(viewer), step=step, at__gte=since)


def _new_groups(viewer: Viewer, rate: rates.Rate, now: datetime) -> list[datetime]:
    """Return when each new group with open failures in this queue was first seen."""
    seen_at = group_sight.seen_at(viewer, "first_seen")
    found = Group.objects.annotate(seen_at=seen_at).filter(
        seen_at__gte=now - NEW_WITHIN, last_seen__gte=now - NEW_WITHIN
    )
    first_seen = dict(found.values_list("pk", "seen_at")[:500])
    here = FailureCount.objects.filter(
        scopes.visible(viewer), source=rate.source, queue=rate.queue, group_id__in=list(first_seen), count__gt=0
    )
    return [first_seen[pk] for pk in here.values_list("group_id", flat=True).distinct()]


def _tenants_hit(viewer: Viewer, rate: rates.Rate, now: datetime) -> tuple[int, bool]:
    """Return the number of tenants in this queue's latest failures, and whether all of the last minutes were read."""
    tenants: set[str] = set()
    is_all = True
    for state in ("dead", "retrying"):
        latest = Failure.objects.filter(source=rate.source, queue=rate.queue, state=state).order_by("-id")
        rows = list(latest.values_list("tenant", "failed_at")[:SAMPLE])
        recent = [tenant for tenant, at in rows if at >= _first_sampled_at(now)]
        tenants.update(tenant for tenant in recent if tenant)
        is_all = is_all and len(recent) < SAMPLE
    return len(tenants), is_all


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- sources -------------------------------------------------------------------------------------------------


def source(viewer: Viewer, name: str, now: datetime | None = None) -> SourceRow | None:
    """Return the row of one source, without counts; None if it is unknown or hidden."""
    found = Source.objects.filter(name=name).first() if viewer.may(VIEWER, name) else None
    return _source_row(found, now or datetime.now(UTC)) if found else None


def sources(viewer: Viewer, now: datetime | None = None) -> list[SourceRow]:
    """Return a row per source: reachability, time of the last change, and age of its last sample.

    Limited in number; see `more_sources`.
    """
    now = now or datetime.now(UTC)
    allowed = viewer.sources()
    # A report can create a new source: configured ones come first, so that it never displaces them.
    found = Source.objects.order_by("-is_configured", "name")
    if allowed is not None:
        found = found.filter(name__in=allowed)
    found = list(found[:MOST_SOURCES])
    shown = {source.name for source in found}
    dead = dict(_counted_dead(viewer).filter(source__in=shown).values_list("source").annotate(n=Sum("count")))
    workers = _workers(shown, now)
    return [_source_row(source, now, dead.get(source.name, 0), workers.get(source.name)) for source in found]


def _workers(shown: Collection[str], now: datetime) -> dict[str, dict[str, Any]]:
    """Return source -> its live workers, and limits and budgets that its workers exceeded in the last hour."""
    numbers: dict[str, Any] = {"workers": Count("pk", filter=Q(seen_at__gte=now - timedelta(seconds=ALIVE_S)))}
    for column in ("shared_out", "overrun"):
        lately = Q(**{f"{column}_at__gte": now - EXCEEDED_FOR})
        # With names that are not columns: otherwise an aggregate would be resolved as the other column.
        numbers |= {
            f"{column}_n": Sum(column, filter=lately, default=0),
            f"{column}_last": Max(f"{column}_at", filter=lately),
        }
    return {row["source"]: row for row in Worker.objects.filter(source__in=shown).values("source").annotate(**numbers)}


def _source_row(source: Source, now: datetime, dead: int = 0, workers: Mapping[str, Any] | None = None) -> SourceRow:
    workers = workers or {}
    stall = liveness.stalled_reader(source, now) if source.is_configured else None
    return SourceRow(
        name=source.name,
        backend=source.backend,
        is_configured=source.is_configured,
        reachable=source.is_reachable,
        why=source.why_unreachable,
        changed_at=source.changed_at,
        sampled_at=source.sampled_at,
        age_s=int((now - source.sampled_at).total_seconds()) if source.sampled_at else None,
        dead=dead,
        workers=workers.get("workers", 0),
        findings=list(source.findings),
        keeps_dead=config.keeps_dead(source.name),
        follows=coverage.is_followed(source.name),
        has_guard_reports=bool(source.signed_since or source.unsigned_at),
        coverage=coverage.read([source.name], now).get(source.name),
        pulled_at=source.pulled_at,
        why_not_pulled=stall.why if stall else "",
        not_pulled_since=stall.since if stall else None,
        shared_out=workers.get("shared_out_n", 0),
        shared_out_at=workers.get("shared_out_last"),
        overrun=workers.get("overrun_n", 0),
        overrun_at=workers.get("overrun_last"),
    )


def more_sources(viewer: Viewer) -> int:
    """Return how many sources `sources` omits."""
    allowed = viewer.sources()
    found = Source.objects.all() if allowed is None else Source.objects.filter(name__in=allowed)
    return max(0, found.count() - MOST_SOURCES)


def findings(
    viewer: Viewer, rows: list[SourceRow] | None = None, of_the_store: list[dict[str, str]] | None = None
) -> list[dict[str, str]]:
    """Return findings, worst first: unsafe settings of visible sources and of the store, a missing end of the audit."""
    rank = {"high": 0, "warning": 1, "info": 2}
    found = [
        {"source": "Redrive’s store", **finding}
        for finding in (liveness.store_findings() if of_the_store is None else of_the_store)
    ]
    for row in sources(viewer) if rows is None else rows:
        found += [{"source": row.name, **finding} for finding in row.findings]
        if not row.is_configured:
            found.append(unconfigured_sources.finding(row.name))
    with suppress(redis.RedisError, config.BadConfiguration):  # reported as the state of the store
        if (end := audit_anchor.end_finding()) is not None:
            found.append({"source": "Audit", "id": "audit", "severity": "high", "text": end.text, "fix": end.fix})
    # The receiver is none of the others' business.
    if viewer.may(AUDITOR, EVERY_SOURCE) and (late := audit_position.finding()):
        found.append(
            {"source": "Audit", "id": "audit-forward", "severity": "warning", "text": late.text, "fix": late.fix}
        )
    return sorted(found, key=lambda finding: rank.get(finding.get("severity", ""), 3))


# --- pictures ---------------------------------------------------------------------------------------------------


def _counted_dead(viewer: Viewer):
    return FailureCount.objects.filter(scopes.visible(viewer), state="dead", count__gt=0)


def dead_by_queue(
    viewer: Viewer, now: datetime | None = None, limit: int = MOST_QUEUES
) -> tuple[list[tuple[str, str, int]], int]:
    """Return (source, queue, dead jobs) of the queues with the most, then how many more queues have dead jobs."""
    worst = queues.rank_queues(viewer, now or datetime.now(UTC), limit=limit, only_dead=True)
    return [(one.source, one.queue, one.dead) for one in worst], worst[0].of - len(worst) if worst else 0


def count_dead(viewer: Viewer, source: str, queue: str) -> int:
    """Return the number of dead jobs in one queue."""
    return _counted_dead(viewer).filter(source=source, queue=queue).aggregate(n=Sum("count"))["n"] or 0


def failures_over_time(
    viewer: Viewer, now: datetime | None = None, since: datetime | None = None, length: timedelta = depths.DAY
) -> Series:
    """Return the failed attempts per queue in each step of the last `length`; all but the largest queues as one series.

    `since`: start of sampling, if that is later. The chart then starts there, or with the first failure.
    """
    now = now or datetime.now(UTC)
    series = _failures_in(viewer, depths.chart_steps(now, length=length))
    if since is None:
        return series
    first = datetime.fromtimestamp(_first_failure(series, now.timestamp()), UTC)
    steps = depths.chart_steps(now, min(since, first), length)
    if steps.step != series.step_s:
        series = _failures_in(viewer, steps)
    begin = min(since.timestamp(), _first_failure(series, now.timestamp()))
    cut = next(n for n, at in enumerate(series.times) if at + series.step_s > begin)
    counts = {name: numbers[cut:] for name, numbers in series.queues.items()}
    return replace(series, times=series.times[cut:], queues=counts)


def _first_failure(series: Series, otherwise: float) -> float:
    """Return the start of the first step with a failed attempt."""
    found = (at for n, at in enumerate(series.times) if any(counts[n] for counts in series.queues.values()))
    return next(found, otherwise)


def _failures_in(viewer: Viewer, steps: range) -> Series:
    step_s, first, last = steps.step, steps[0] // steps.step, steps[-1] // steps.step
    # The longest counter step that fits, for the fewest rows.
    summed = max(step for step in STEPS_OF_QUEUES if step_s % step == 0)
    rows = _counters(viewer, datetime.fromtimestamp(first * step_s, UTC), summed).filter(
        at__lt=datetime.fromtimestamp((last + 1) * step_s, UTC)
    )
    failed = Sum(rates.FAILED)
    by_queue = rows.values_list("source", "queue").annotate(n=failed).filter(n__gt=0)
    fullest = list(by_queue.order_by("-n", "source", "queue")[: MOST_SERIES + 1])
    others = 0
    if len(fullest) > MOST_SERIES:
        fullest = fullest[: MOST_SERIES - 1]
        others = by_queue.count() - len(fullest)
    rows = rows.annotate(place=StepNumber("at", step_s))
    these = Q(source__in={s for s, _, _ in fullest}, queue__in={q for _, q, _ in fullest})
    shown_queues = {(source, queue) for source, queue, _ in fullest}
    counted = [
        row
        for row in rows.filter(these).values_list("source", "queue", "place").annotate(n=failed)
        if (row[0], row[1]) in shown_queues
    ]
    many = len({source for source, _ in shown_queues}) > 1
    found: dict[str, list[int]] = {}
    for source, queue, place, n in counted:
        if first <= place <= last and n:
            line = found.setdefault(f"{source}/{queue}" if many else queue, [0] * (last - first + 1))
            line[place - first] += n
    series = dict(sorted(found.items(), key=lambda pair: (-sum(pair[1]), pair[0])))
    if others:
        every = dict(rows.values_list("place").annotate(n=failed))
        rest = [every.get(first + n, 0) for n in range(last - first + 1)]
        series[f"{others:,} others"] = [
            n - sum(y) for n, y in zip(rest, zip(*found.values(), strict=True), strict=True)
        ]
    return Series(step_s, [n * step_s for n in range(first, last + 1)], series, [(s, q) for s, q, _ in fullest])


def loudest_groups(viewer: Viewer, now: datetime | None = None, limit: int = 10) -> list[GroupRow]:
    """Return the groups with the most dead jobs; if none is dead, those seen last."""
    now = now or datetime.now(UTC)
    dead = groups.top_groups(viewer, "dead", limit, now)
    if any(row.dead for row in dead):
        return dead
    return groups.top_groups(viewer, "last_seen", limit, now)


def running_replays(viewer: Viewer, limit: int = 10) -> list[Replay]:
    """Return the open replays of visible sources: held ones first, then latest first."""
    open_ = [state for state in ReplayState.values if state not in NOT_RUNNING]
    on_hold_first = Case(When(state=ReplayState.HELD, then=0), default=1)
    # All viewers of the same sources share the board: it does not include replays visible only to their owner.
    seen = replay_sight.visible(replace(viewer, user_id=None)).filter(state__in=open_)
    rows = list(seen.order_by(on_hold_first, "-id").defer("set_aside")[:limit])
    replay_sight.restrict(viewer, rows)
    return rows
