"""Preview of a replay: matching jobs, blocked jobs and reasons, duration, and warnings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Count
from django.utils import timezone

from jobs_admin.core import pacing
from jobs_admin.core import query as language
from jobs_admin.core.pacing.simulation import Simulation, simulate
from jobs_admin.core.refused import Refused
from jobs_admin.groups import group_numbers, group_places
from jobs_admin.models import Failure, Group
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import START
from jobs_admin.queues import rates
from jobs_admin.replays import (
    approval,
    capacity,
    outcomes,
    preview_warnings,
    prognosis,
    progress,
    setting_aside,
    target,
)
from jobs_admin.replays.options import Options
from jobs_admin.replays.readiness import Readiness
from jobs_admin.replays.target import Target
from jobs_admin.rights import group_sight

SAMPLED = 10_000  # jobs, the newest, that a breakdown is made of where no counter knows
_GLANCED = 1_000  # of these where only the queues are asked for
_ENOUGH = 2_000  # jobs of a sample that are left without the excluded groups; of fewer, another sample is read
_SHOWN = 10
_LISTED = 20  # values of a breakdown
_MOST_GROUPS = 500  # that can be excluded one by one
_MOST_ARRIVED = 10_000  # counted of what came later
_MOST_S = 10 * 365 * 86400  # an end further away than this is not displayed as a date

Breakdown = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """A group of the target, and whether its jobs are sent."""

    fingerprint: str
    title: str
    culprit: str
    count: int  # jobs that can be sent while the group is on
    is_on: bool
    code: str = ""  # why its jobs are likely to fail again (`prognosis`); "": unlikely
    reason: str = ""
    error_type: str = ""
    message: str = ""
    place: str = ""  # its tasks and its place in the code, in words
    last_failed_at: datetime | None = None
    failed_per_min: float | None = None  # in the last 5 minutes; None: it has failures of sources out of sight
    is_failing: bool = False  # failures continue, as alerts have it (`queues.rates.is_failing`)
    tenants: int = 0  # of these jobs, or of the latest of them
    is_tenants_all: bool = True
    queue: str = ""  # of most of these jobs
    queue_succeeded_per_min: float = 0.0  # jobs of that queue, in the last 5 minutes
    queue_succeeded_at: datetime | None = None  # start of the minute or hour of its latest success; None: not known


@dataclass(frozen=True, slots=True)
class Preview:
    query: str  # with absolute times; "" for a selection
    selection: tuple[int, ...]
    matched: int
    replayable: int
    blocked: list[dict[str, Any]]  # see `Readiness.blocked`
    sources: list[str]  # of the replayable
    pace: dict[str, Any]  # with a number for everything
    plan: pacing.Pace  # the same
    starts_at: datetime
    ends_at: datetime | None  # None: beyond any calendar
    duration_s: float  # this and the next are 0 in a light preview
    peak_per_second: float
    snapshot: str  # hand it to `draft`: what changed since is then noticed
    scope_max_id: int
    throughput_per_s: float | None  # jobs of these queues that succeeded in the last hour; None: none did
    last_hour: list[int]  # these jobs in each minute of the last hour, oldest first
    workers_per_s: float | None  # jobs that their live workers carry, by how long such jobs take; None: not known
    unreported: list[str]  # of the sources, those that do not report how a job ends: careful is not to be had
    needs_approval: str  # why a second person has to approve it; "" where nobody has to
    arrived_since: int  # that match and came after the snapshot; they are not in it. At most _MOST_ARRIVED are counted
    options: Options  # with the groups that are left out
    set_aside: list[dict[str, Any]]  # why each of these is, as `Replay.set_aside` has it
    ready: Readiness = field(repr=False, compare=False)  # what it was counted by
    # What follows is left out of a light preview.
    by_source: Breakdown = field(default_factory=list)  # of the replayable, most frequent first
    by_queue: Breakdown = field(default_factory=list)
    by_task: Breakdown = field(default_factory=list)
    by_group: Breakdown = field(default_factory=list)  # titles; `groups` has their fingerprints
    by_tenant: Breakdown = field(default_factory=list)
    groups: list[tuple[str, str, int]] = field(default_factory=list)  # (fingerprint, title, count)
    choices: list[GroupChoice] = field(default_factory=list)  # every group of the scope: on first, then the fullest
    choices_over: int | None = None  # of how many of the newest; None: all
    # "source", "queue", "task", "group", "tenant" -> how many of the newest were looked at; None: all.
    counted_over: dict[str, int | None] = field(default_factory=dict)
    sample: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    slowed_by: list[str] = field(default_factory=list)  # limits and states that slow or stop the replay, in sentences
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
    """Return what would happen if this were started now. Changes nothing. Raises Refused for an impossible request.

    With the snapshot of an earlier preview it covers the jobs of that one; later ones are only counted.
    """
    now = now or timezone.now()
    scope = target.build_target(query, selection, now)
    parse_pace(pace)
    seen_until = target.parse_snapshot(snapshot, scope)
    return build_preview(
        viewer, scope, pace, target.highest_failure() if seen_until is None else seen_until, now, options
    )


@dataclass(frozen=True, slots=True)
class Outlook:
    """Counts of a preview, for a button that leads to it."""

    replayable: int | None  # as `Preview.replayable`; None: more than `most` dead jobs would have to be read for it
    excluded: int  # jobs of groups that are off because they are likely to fail again
    is_failing: bool  # a group of the latest dead jobs fails at least LOUD_PER_MIN times a minute


def read_outlook(viewer: Viewer, query: str, now: datetime, most: int) -> Outlook:
    scope = target.build_target(query, (), now)
    ready = Readiness(viewer, scope, max_id=target.highest_failure(), now=now)
    latest = Failure.objects.filter(pk__in=ready.latest_dead(_GLANCED))
    is_failing = _is_failing(viewer, set(latest.values_list("group_id", flat=True)) - {None}, now)
    if ready.reads_rows and ready.count_dead(most + 1) > most:
        return Outlook(None, 0, is_failing)
    groups = _Groups(viewer, scope, _Spread(ready, _read_sample(ready, SAMPLED)), Options(), now)
    if not groups.off:
        return Outlook(ready.count, 0, is_failing)
    without = Readiness(viewer, scope, max_id=ready.max_id, options=Options(without_groups=groups.off), now=now)
    return Outlook(without.count, ready.count - without.count, is_failing)


def _is_failing(viewer: Viewer, ids: set[int], now: datetime) -> bool:
    known, per_minute = group_sight.read(viewer, ids), group_numbers.per_minute(list(ids), now)
    partial = group_sight.partial(viewer, known)
    seen = {pk: None if pk in partial else per_minute[pk] for pk in known}
    return any(
        rates.is_failing(known[pk].last_seen, rate, now)
        for pk, rate in seen.items()
        if rate is None or rate >= rates.LOUD_PER_MIN
    )


def parse_pace(pace: object, jobs: int = 0) -> pacing.Pace:
    """Return the requested pace; None is the default for that many jobs."""
    if isinstance(pace, pacing.Pace):
        return pace
    try:
        return pacing.parse(pace, jobs)
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
    """Return the preview of a target up to a failure. `light`: without what is only displayed."""
    # In one function: each figure is worked out from those before it.
    most = _GLANCED if light and options.without_groups is not None else SAMPLED
    ready = Readiness(viewer, scope, max_id=max_id, options=replace(options, without_groups=()), now=now)
    sample = _read_sample(ready, most)
    spread = _Spread(ready, sample)
    groups = _Groups(viewer, scope, spread, options, now)
    set_aside = groups.notes(ready if light else None)
    options = replace(options, without_groups=groups.off)
    if groups.off:
        ready = Readiness(viewer, scope, max_id=max_id, options=options, now=now)
        left = [row for row in sample if row["group_id"] not in groups.off]
        sample = left if len(left) >= min(ready.count, _ENOUGH) else _read_sample(ready, most)
        spread = _Spread(ready, sample)
    queues = [options.to_queue] if options.to_queue else [queue for queue, _ in spread.counts("queue")]
    last_hour = progress.succeeded_per_minute(viewer, queues, now)
    # The median over the minutes in which any of their jobs succeeded: an outage is no measure.
    throughput = median(ran) / 60 if (ran := [n for n in last_hour if n]) else None
    unreported = outcomes.unreported_sources(ready.sources)
    requested = parse_pace(pace, 0 if unreported else ready.count)  # the default of many jobs is careful
    outcomes.refuse_blind_pace(requested, unreported)
    concurrency = capacity.concurrency(ready.sources, queues, now)
    runtime_s = capacity.runtime_s(viewer, queues, [row["pk"] for row in sample], now)
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
            "sample": _read_shown([row["pk"] for row in sample[:_SHOWN]]),
            "warnings": preview_warnings.build_warnings(
                ready,
                sample,
                [pk for pk, _ in spread.counts("group_id")],
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
        needs_approval=approval.approval_reason(ready.rows(), ready.count),
        arrived_since=ready.arrived_since(_MOST_ARRIVED),
        options=options,
        set_aside=set_aside,
        ready=ready,
        **details,
    )


def _estimate(jobs: int, plan: pacing.Pace, played: Simulation) -> pacing.Estimate:
    """Return the estimate of a climbing pace from its simulation: playing it again takes as long as the rest of a
    preview.
    """
    planned = played.as_planned
    if not jobs or planned.ends_after_s is None or not (plan.ramp or plan.canary):
        return pacing.estimate(jobs, plan)
    return pacing.Estimate(planned.ends_after_s, planned.peak_per_second)


_SAMPLE_COLUMNS = ("pk", "source", "queue", "task", "tenant", "group_id", "run", "redacted")


def _read_sample(ready: Readiness, most: int) -> list[dict[str, Any]]:
    """Return some of the jobs that can go, latest first."""
    if not ready.count:
        return []
    rows = Failure.objects.filter(pk__in=ready.latest(most)).order_by("-pk").values_list(*_SAMPLE_COLUMNS)
    return [dict(zip(_SAMPLE_COLUMNS, row, strict=True)) for row in rows]


class _Spread:
    """Spread of the jobs that can go: by counters if these know, otherwise by the sampled latest."""

    def __init__(self, ready: Readiness, sample: list[dict[str, Any]]) -> None:
        self.ready, self.sample = ready, sample
        self.counted_over: dict[str, int | None] = {}
        self._found: dict[str, list[tuple[Any, int]]] = {}

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
        is_all = len(self.sample) >= self.ready.count
        if column != "tenant" and not is_all and (found := self.ready.spread(column, most)) is not None:
            return [(value, n) for value, n in found if value]
        if not is_all:
            self.counted_over[name] = len(self.sample)
        counted = Counter(row[column] for row in self.sample if row[column])
        return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:most]


class _Groups:
    """The groups of a target, and which are excluded."""

    def __init__(self, viewer: Viewer, scope: Target, spread: _Spread, options: Options, now: datetime) -> None:
        self._viewer, self._now, self._by, self._sample = viewer, now, viewer.name, spread.sample
        self._is_all = len(spread.sample) >= spread.ready.count
        self._count = dict(spread.counts("group_id", most=_MOST_GROUPS))
        self.counted_over = spread.counted_over["group"]
        requested = options.without_groups
        ids = {*self._count, *(requested or ())}
        # Of one group alone there is nothing to choose.
        self._found = prognosis.predict_groups(viewer, ids, now) if len(ids) > 1 or requested else {}
        if requested is not None:
            self.off = requested
        elif len(self._count) < 2 or scope.selection or _names_group(scope):
            self.off = ()  # a search by group, or jobs chosen by hand, include all
        else:
            self.off = tuple(sorted(self._found))

    def notes(self, ready: Readiness | None) -> list[dict[str, Any]]:
        """Return the reasons for the excluded groups. With `ready`, the jobs are counted there if only some were
        sampled.
        """
        counts: dict[int, int] | None = self._count if self.counted_over is None else None
        if counts is None and ready is not None and self.off:
            rows = ready.rows().filter(group_id__in=self.off).order_by()
            counts = dict(rows.values_list("group_id").annotate(n=Count("pk")))
        return [self._note(pk, None if counts is None else counts.get(pk, 0)) for pk in self.off]

    def _note(self, pk: int, jobs: int | None) -> dict[str, Any]:
        found = self._found.get(pk) or prognosis.Prognosis("asked", f"excluded by {self._by}")
        return setting_aside.build_note(pk, START, found.code, found.reason, self._by, self._now, jobs)

    @property
    def listed(self) -> set[int]:
        """The ids of the groups to choose from."""
        return self._count.keys() | set(self.off)

    def read_choices(self, groups: Mapping[int, Group]) -> list[GroupChoice]:
        """Return the groups with what the desk knows of each, in a number of queries that does not depend on theirs."""
        viewer, now = self._viewer, self._now
        known = {pk: group for pk, group in groups.items() if pk in self.listed}
        words = group_places.read_places(list(known.values()), viewer)
        failed, partial = group_numbers.per_minute(list(known), now), group_sight.partial(viewer, known)
        tenants: dict[int, set[str]] = defaultdict(set)
        places: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
        for row in self._sample:
            places[row["group_id"]][row["source"], row["queue"]] += 1
            if row["tenant"]:
                tenants[row["group_id"]].add(row["tenant"])
        main = {pk: counts.most_common(1)[0][0] for pk, counts in places.items() if pk in known}
        successes = progress.read_successes(viewer, set(main.values()), now)
        rows = []
        for pk, group in known.items():
            why = self._found.get(pk, prognosis.Prognosis("", ""))
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
                    tenants=len(tenants[pk]),
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
    """Return (fingerprint, title, count) of each group that is known, the largest first."""
    found = [(known[pk].name, known[pk].title, n) for pk, n in groups if pk in known]
    return sorted(found, key=lambda row: (-row[2], row[0]))


def _read_shown(ids: list[int]) -> list[Failure]:
    found = Failure.objects.filter(pk__in=ids).select_related("group").defer("args", "kwargs", "headers")
    return list(found.order_by("-pk"))
