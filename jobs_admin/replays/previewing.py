"""Preview of a replay: matching jobs, blocked jobs and reasons, duration, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Any

from django.db.models import Count
from django.utils import timezone

from jobs_admin.core import pacing
from jobs_admin.core import query as language
from jobs_admin.core.pacing.simulation import Simulation, simulate
from jobs_admin.core.refused import Refused
from jobs_admin.db import statements
from jobs_admin.groups import group_finder, group_numbers, groups_of
from jobs_admin.models import Failure, Group
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import START
from jobs_admin.queues import rates
from jobs_admin.replays import capacity, outcomes, preview_warnings, prognosis, progress, rights, setting_aside, target
from jobs_admin.replays.obstacles import TABLE, Obstacle
from jobs_admin.replays.options import Options
from jobs_admin.replays.preview_warnings import SampledJob
from jobs_admin.replays.readiness import UNBOUNDED, Readiness
from jobs_admin.replays.target import Target
from jobs_admin.rights import group_sight

SAMPLED = 10_000  # the latest jobs, for breakdowns without counters
_GLANCED = 1_000  # of these if only their queues are needed
_ENOUGH = 2_000  # sampled jobs left after excluding groups; with fewer, another sample is read
_SHOWN = 10
_LISTED = 20  # values of a breakdown
_MOST_GROUPS = 500  # that can be excluded individually
_MOST_ARRIVED = 10_000  # limit for counting jobs that arrived after the snapshot
_MOST_S = 10 * 365 * 86400  # an end further away than this is not displayed as a date

Breakdown = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """A group of the target, and whether its jobs are sent."""

    fingerprint: str
    title: str
    culprit: str
    count: int  # jobs that are sent if the group is included
    is_on: bool
    code: str = ""  # why its jobs are likely to fail again (`prognosis`); "": unlikely
    reason: str = ""
    error_type: str = ""
    message: str = ""
    place: str = ""  # its tasks and its place in the code, as text
    last_failed_at: datetime | None = None
    failed_per_min: float | None = None  # in the last 5 minutes; None: it has failures of hidden sources
    is_failing: bool = False  # still failing, by the same definition as alerts (`queues.rates.is_failing`)
    tenants: int = 0  # of these jobs, or of the latest of them
    is_tenants_all: bool = True
    queue: str = ""  # of most of these jobs
    queue_succeeded_per_min: float = 0.0  # jobs of that queue, in the last 5 minutes
    queue_succeeded_at: datetime | None = None  # start of the minute or hour of its latest success; None: unknown


@dataclass(frozen=True, slots=True)
class Preview:
    query: str  # with absolute times; "" for a selection
    selection: tuple[int, ...]
    matched: int
    replayable: int
    blocked: list[dict[str, Any]]  # see `Readiness.blocked`
    sources: list[str]  # of the replayable jobs
    pace: dict[str, Any]  # all values as numbers
    plan: pacing.Pace  # the same, parsed
    starts_at: datetime
    ends_at: datetime | None  # None: later than any calendar date
    duration_s: float  # this and the next are 0 in a light preview
    peak_per_second: float
    snapshot: str  # pass it to `draft`, which then detects changes
    scope_max_id: int
    throughput_per_s: float | None  # jobs of these queues that succeeded in the last hour; None: none succeeded
    last_hour: list[int]  # these jobs per minute of the last hour, oldest first
    workers_per_s: float | None  # jobs that live workers of the queues can run, by their runtime; None: unknown
    unreported: list[str]  # sources that do not report how a job ends: a careful pace is impossible
    needs_approval: str  # why a second person has to approve it; "" if no approval is needed
    arrived_since: int  # matching jobs that arrived after the snapshot and are not in it; counted up to _MOST_ARRIVED
    options: Options  # including the excluded groups
    set_aside: list[dict[str, Any]]  # reasons for the excluded groups, as in `Replay.set_aside`
    ready: Readiness = field(repr=False, compare=False)  # used for the counts
    # A light preview omits the following fields.
    by_source: Breakdown = field(default_factory=list)  # of the replayable jobs, most frequent first
    by_queue: Breakdown = field(default_factory=list)
    by_task: Breakdown = field(default_factory=list)
    by_group: Breakdown = field(default_factory=list)  # titles; `groups` has their fingerprints
    by_tenant: Breakdown = field(default_factory=list)
    groups: list[tuple[str, str, int]] = field(default_factory=list)  # (fingerprint, title, count)
    choices: list[GroupChoice] = field(default_factory=list)  # every group of the scope: included first, then by size
    choices_over: int | None = None  # number of latest jobs that were counted; None: all
    # "source", "queue", "task", "group", "tenant" -> number of latest jobs that were read; None: all.
    counted_over: dict[str, int | None] = field(default_factory=dict)
    sample: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    slowed_by: list[str] = field(default_factory=list)  # limits and states that slow or stop the replay, as sentences
    simulation: Simulation | None = None


def preview(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    pace: object = None,
    options: Options = Options(),  # noqa: B008 (frozen)
    snapshot: str = "",
    now: datetime | None = None,
) -> Preview:
    """Return what would happen if this replay started now. Changes nothing. Raises Refused for an impossible request.

    With the snapshot of an earlier preview it covers the jobs of that preview; later ones are only counted.
    """
    now = now or timezone.now()
    scope = target.build_target(query, selection, now)
    parse_pace(pace)
    seen_until = target.parse_snapshot(snapshot, scope)
    return build_preview(
        viewer, scope, pace, target.highest_failure() if seen_until is None else seen_until, now, options
    )


def explain_nothing(seen: Preview, reasons: str = "") -> str:
    """Return the sentence on why no job can be replayed. `reasons`: of excluded jobs; "" if they are listed beside it."""
    ready, is_one = seen.ready, seen.matched == 1
    if not seen.matched:
        is_other = ready.scope.within(ready.viewer, ready.now, VIEWER).exists()
        return "You may replay none of the matching jobs." if is_other else "No job matches."
    jobs, are = ("The job", "is") if is_one else (f"All {seen.matched:,} jobs", "are")
    if all(row["code"] == FailureState.RECOVERED for row in seen.blocked):
        return f"{jobs} recovered."
    why = f": {reasons}" if reasons else f"; see the reason{'' if is_one else 's'} listed"
    return f"{jobs} {are} excluded{why}."


@dataclass(frozen=True, slots=True)
class Outlook:
    """Counts of a preview, for a button that leads to it."""

    replayable: int | None  # as `Preview.replayable`; None: counting would read more than `most` dead jobs
    excluded: int  # jobs of groups that are off because they are likely to fail again
    is_failing: bool  # a group of the latest dead jobs fails at least LOUD_PER_MIN times per minute
    reason: str = ""  # the most frequent obstacle, if no job can be replayed
    blocked: int = 0  # matching jobs that cannot be replayed now
    is_likely_to_fail: bool = False  # all jobs that the preview would send, as those of a single group, which is on


def read_outlook(
    viewer: Viewer, query: str, now: datetime, most: int, known_obstacles: list[Obstacle] | None = None
) -> Outlook:
    scope = target.build_target(query, (), now)
    ready = Readiness(viewer, scope, max_id=UNBOUNDED, now=now, known_obstacles=known_obstacles)
    has_too_many = ready.reads_rows and ready.count_dead(most + 1) > most
    needs_sample = ready.reads_rows and not has_too_many  # otherwise counters have the groups
    latest = ready.latest_dead(SAMPLED + 1 if needs_sample else _GLANCED)[:_GLANCED]
    is_failing = _is_failing(viewer, set(groups_of(latest)), now)
    if has_too_many:
        return Outlook(None, 0, is_failing)
    groups = _Groups(
        viewer, scope, _Spread(ready, _read_sample(ready, SAMPLED) if needs_sample else []), Options(), now
    )
    if not groups.off:
        reason = ready.blocked[0]["reason"] if not ready.count and ready.blocked else ""
        blocked = ready.matched - ready.count
        return Outlook(ready.count, 0, is_failing, reason, blocked, groups.are_all_predicted)
    excluded = groups.count_excluded(ready)
    return Outlook(ready.count - excluded, excluded, is_failing, blocked=ready.matched - ready.count)


def _is_failing(viewer: Viewer, ids: set[int], now: datetime) -> bool:
    known, per_minute = group_sight.read(viewer, ids), group_numbers.per_minute(list(ids), now)
    partial = group_sight.partial(viewer, known)
    seen = {pk: None if pk in partial else per_minute[pk] for pk in known}
    return any(
        rates.is_failing(known[pk].last_seen, rate, now)
        for pk, rate in seen.items()
        if rate is None or rate >= rates.LOUD_PER_MIN
    )


def parse_pace(pace: object, jobs: int = 0, *, is_risky: bool = False) -> pacing.Pace:
    """Return the requested pace; None is the default for these jobs (`pacing.default_for`)."""
    if isinstance(pace, pacing.Pace):
        return pace
    try:
        return pacing.parse(pace, jobs, is_risky=is_risky)
    except Refused as error:
        field = "pace" if error.field == "pace" else f"pace.{error.field}"
        raise Refused("bad_pace", str(error), field=field) from error


def build_preview(
    viewer: Viewer,
    scope: Target,
    pace: object,
    max_id: int,
    now: datetime,
    options: Options = Options(),  # noqa: B008 (frozen)
    *,
    light: bool = False,
) -> Preview:
    """Return the preview of a target up to a failure. `light`: without values that are only displayed."""
    # In one function: each value is computed from earlier ones.
    most = _GLANCED if light and options.without_groups is not None else SAMPLED
    ready = Readiness(viewer, scope, max_id=max_id, options=replace(options, without_groups=()), now=now)
    sample = _read_sample(ready, most)
    spread = _Spread(ready, sample)
    groups = _Groups(viewer, scope, spread, options, now)
    set_aside = groups.notes(ready if light else None)
    options = replace(options, without_groups=groups.off)
    if groups.off:
        ready = ready.exclude_groups(groups.off)
        off = set(groups.off)
        left = [row for row in sample if row.group_id not in off]
        sample = left if len(left) >= min(ready.count, _ENOUGH) else _read_sample(ready, most)
        spread = _Spread(ready, sample)
    queues = [options.to_queue] if options.to_queue else [queue for queue, _ in spread.counts("queue")]
    last_hour = progress.succeeded_per_minute(viewer, queues, now)
    # Median over minutes in which any of their jobs succeeded, so that an outage does not count.
    throughput = median(ran) / 60 if (ran := [n for n in last_hour if n]) else None
    unreported = outcomes.unreported_sources(ready.sources)
    sent_groups = [pk for pk, _ in spread.counts("group_id")]
    still_failing = preview_warnings.still_failing(sent_groups, ready.sources, now)
    # The default for many jobs, or for jobs that the preview warns of, is careful.
    is_risky = bool(still_failing) or groups.is_any_warned
    requested = parse_pace(pace, 0 if unreported else ready.count, is_risky=is_risky)
    outcomes.refuse_blind_pace(requested, unreported)
    concurrency = capacity.concurrency(ready.sources, queues, now)
    runtime_s = capacity.runtime_s(viewer, queues, [row.id for row in sample], now)
    workers_per_s = pacing.served(runtime_s, concurrency)
    plan = pacing.settled(requested, jobs=ready.count, median_per_s=throughput, workers_per_s=workers_per_s)
    expected = pacing.Estimate(0.0, 0.0)
    details: dict[str, Any] = {}
    if not light:
        known = group_sight.read(viewer, {*groups.listed, *(pk for pk, _ in spread.counts("group_id"))})
        listed = name_groups(known, spread.counts("group_id"))
        limits = capacity.limits(spread.counts("task"), ready.sources, queues, spread.values("tenant"), runtime_s)
        played = simulate(ready.count, plan, runtime_s=runtime_s, concurrency=concurrency, limits=limits)
        expected = _estimate(ready.count, plan, played)
        details = {
            "by_source": spread.counts("source"),
            "by_queue": spread.counts("queue"),
            "by_task": spread.counts("task"),
            "by_group": [(title, n) for _, title, n in listed],
            "by_tenant": spread.counts("tenant"),
            "groups": listed,
            "choices": groups.read_choices(known),
            "choices_over": groups.counted_over,
            "counted_over": spread.counted_over,
            "simulation": played,
            "sample": _read_shown([row.id for row in sample[:_SHOWN]]),
            "warnings": preview_warnings.build_warnings(
                ready,
                sample,
                still_failing,
                queues if len(queues) < _LISTED else [],
                throughput,
                expected.peak_per_second,
                now,
            ),
            "slowed_by": preview_warnings.build_slowdowns(
                ready,
                plan,
                queues if len(queues) < _LISTED else [],
                limits,
                throughput,
                workers_per_s,
                expected.peak_per_second,
                now,
            ),
        }
    return Preview(
        query=scope.query,
        selection=scope.selection,
        matched=ready.matched,
        replayable=ready.count,
        blocked=ready.blocked,
        sources=ready.sources,
        pace=plan.as_dict(),
        plan=plan,
        starts_at=now,
        ends_at=now + timedelta(seconds=expected.duration_s) if expected.duration_s < _MOST_S else None,
        duration_s=expected.duration_s,
        peak_per_second=expected.peak_per_second,
        snapshot=f"{max_id}.{ready.matched}.{ready.count}.{scope.digest}.{options.digest}",
        scope_max_id=max_id,
        throughput_per_s=throughput,
        last_hour=last_hour,
        workers_per_s=workers_per_s,
        unreported=unreported,
        needs_approval=rights.approval_reason(ready.rows(), ready.count),
        arrived_since=ready.arrived_since(_MOST_ARRIVED),
        options=options,
        set_aside=set_aside,
        ready=ready,
        **details,
    )


def _estimate(jobs: int, plan: pacing.Pace, played: Simulation) -> pacing.Estimate:
    """Return the estimate of a ramping pace from its simulation.

    Simulating again would take as long as the rest of a preview.
    """
    planned = played.as_planned
    if not jobs or planned.ends_after_s is None or not (plan.ramp or plan.canary):
        return pacing.estimate(jobs, plan)
    return pacing.Estimate(planned.ends_after_s, planned.peak_per_second)


def _read_sample(ready: Readiness, most: int) -> list[SampledJob]:
    """Return some of the replayable jobs, latest first."""
    if not ready.has_more_than(most) and not ready.count:
        return []
    among, ids = statements.one_of("id", ready.latest(most))
    sql = f"SELECT {', '.join(SampledJob._fields)} FROM {TABLE} WHERE TRUE {among} ORDER BY id DESC"
    return list(map(SampledJob._make, statements.fetch_rows(sql, ids)))


class _Spread:
    """Spread of the replayable jobs: from counters if they have it, otherwise from the latest, sampled jobs."""

    def __init__(self, ready: Readiness, sample: list[SampledJob]) -> None:
        self.ready, self.sample = ready, sample
        self.counted_over: dict[str, int | None] = {}
        self._found: dict[str, list[tuple[Any, int]]] = {}

    @cached_property
    def is_all(self) -> bool:
        """Return whether the sample has all replayable jobs."""
        return not self.ready.has_more_than(len(self.sample))

    def counts(self, column: str, most: int = _LISTED) -> list[tuple[Any, int]]:
        if column not in self._found:
            self._found[column] = self._spread(column, max(most, _LISTED))
        return self._found[column][:most]

    def values(self, column: str) -> int | None:
        """Return the number of values; None if there are too many to count."""
        found = len(self.counts(column))
        return found if 0 < found < _LISTED else None

    def _spread(self, column: str, most: int) -> list[tuple[Any, int]]:
        name = column.removesuffix("_id")
        self.counted_over[name] = None
        if column != "tenant" and not self.is_all and (found := self.ready.spread(column, most)) is not None:
            return [(value, n) for value, n in found if value]
        if not self.is_all:
            self.counted_over[name] = len(self.sample)
        counted = Counter(map(attrgetter(column), self.sample))
        return sorted((pair for pair in counted.items() if pair[0]), key=lambda pair: (-pair[1], pair[0]))[:most]


class _Groups:
    """The groups of a target, and which of them are excluded."""

    def __init__(self, viewer: Viewer, scope: Target, spread: _Spread, options: Options, now: datetime) -> None:
        self._viewer, self._now, self._by, self._sample = viewer, now, viewer.name, spread.sample
        self._is_all = spread.is_all
        self._count = dict(spread.counts("group_id", most=_MOST_GROUPS))
        self.counted_over = spread.counted_over["group"]
        requested = options.without_groups
        self.off: tuple[int, ...] = ()  # a search by group, a manual selection, or a single group includes all
        if requested is not None:
            self.off = requested
        elif len(self._count) > 1 and not scope.selection and not _names_group(scope):
            self.off = tuple(sorted(self._prognoses))

    @cached_property
    def _prognoses(self) -> dict[int, prognosis.Prognosis]:
        return prognosis.predict_groups(self._viewer, self.listed, self._now)

    @property
    def is_any_warned(self) -> bool:
        """Return whether jobs of a group that is on are likely to fail again."""
        return not self._prognoses.keys() <= set(self.off)

    @property
    def are_all_predicted(self) -> bool:
        """Return whether each group is likely to fail again. An operator's mute predicts nothing."""
        predicted = {pk for pk, one in self._prognoses.items() if one.code != prognosis.MUTED}
        return bool(predicted) and self.listed <= predicted

    def count_excluded(self, ready: Readiness) -> int:
        """Return how many of the replayable jobs are in excluded groups."""
        if self.counted_over is None:
            return sum(self._count.get(pk, 0) for pk in self.off)
        return ready.count - ready.exclude_groups(self.off).count

    def notes(self, ready: Readiness | None) -> list[dict[str, Any]]:
        """Return the reasons for the excluded groups.

        If only some jobs were sampled, `ready` counts the excluded ones.
        """
        counts: dict[int, int] | None = self._count if self.counted_over is None else None
        if counts is None and ready is not None and self.off:
            rows = ready.rows().filter(group_id__in=self.off).order_by()
            counts = dict(rows.values_list("group_id").annotate(n=Count("pk")))
        return [self._note(pk, None if counts is None else counts.get(pk, 0)) for pk in self.off]

    def _note(self, pk: int, jobs: int | None) -> dict[str, Any]:
        found = self._prognoses.get(pk) or prognosis.Prognosis("asked", f"excluded by {self._by}")
        return setting_aside.build_note(pk, START, found.code, found.reason, self._by, self._now, jobs)

    @property
    def listed(self) -> set[int]:
        """Ids of the groups to choose from."""
        return self._count.keys() | set(self.off)

    def read_choices(self, groups: Mapping[int, Group]) -> list[GroupChoice]:
        """Return the groups with their statistics. The number of queries does not depend on the number of groups."""
        viewer, now = self._viewer, self._now
        known = {pk: group for pk, group in groups.items() if pk in self.listed}
        words = group_finder.read_places(list(known.values()), viewer)
        failed, partial = group_numbers.per_minute(list(known), now), group_sight.partial(viewer, known)
        named = set(map(attrgetter("group_id", "tenant"), self._sample))
        tenants = Counter(pk for pk, tenant in named if tenant)
        places = Counter(map(attrgetter("group_id", "source", "queue"), self._sample))
        main: dict[int, tuple[str, str]] = {}
        for (pk, source, queue), _ in places.most_common():
            if pk in known:
                main.setdefault(pk, (source, queue))
        successes = progress.read_successes(viewer, set(main.values()), now)
        rows = []
        for pk, group in known.items():
            why = self._prognoses.get(pk, prognosis.Prognosis("", ""))
            per_minute = None if pk in partial else failed[pk]
            per_min, succeeded_at = successes.get(main.get(pk, ("", "")), (0.0, None))
            rows.append(
                GroupChoice(
                    fingerprint=group.name,
                    title=group.title,
                    culprit=group.culprit,
                    count=self._count.get(pk, 0),
                    is_on=pk not in self.off,
                    code=why.code,
                    reason=why.reason,
                    error_type=group.error_type,
                    message=group.message,
                    place=words[pk].words,
                    last_failed_at=group.last_seen,
                    failed_per_min=per_minute,
                    is_failing=rates.is_failing(group.last_seen, per_minute, now),
                    tenants=tenants[pk],
                    is_tenants_all=self._is_all,
                    queue=main.get(pk, ("", ""))[1],
                    queue_succeeded_per_min=per_min,
                    queue_succeeded_at=succeeded_at,
                )
            )
        return sorted(rows, key=lambda row: (not row.is_on, -row.count, row.fingerprint))


def _names_group(scope: Target) -> bool:
    terms = language.parse(scope.query).terms
    return any(isinstance(one, language.Match) and one.field == "group" and not one.negated for one in terms)


def name_groups(known: Mapping[int, Group], groups: list[tuple[int, int]]) -> list[tuple[str, str, int]]:
    """Return (fingerprint, title, count) of each known group, largest first."""
    found = [(known[pk].name, known[pk].title, n) for pk, n in groups if pk in known]
    return sorted(found, key=lambda row: (-row[2], row[0]))


def _read_shown(ids: list[int]) -> list[Failure]:
    found = Failure.objects.filter(pk__in=ids).select_related("group").defer("args", "kwargs", "headers")
    return list(found.order_by("-pk"))
