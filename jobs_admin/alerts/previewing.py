"""Preview of an alert rule: how often it would have fired on the stored history, by the same evaluation as now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Max, Q
from django.db.models.functions import Coalesce

from jobs_admin.alerts import notices
from jobs_admin.alerts.rules import check_rule
from jobs_admin.core import alert_state
from jobs_admin.core.alert_metrics import Row, Subject
from jobs_admin.core.alert_state import QUIET, Act, Numbers, Phase
from jobs_admin.core.matching import matches
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import DepthSample, Rule
from jobs_admin.models.access import Viewer
from jobs_admin.queues.depths.steps import epoch, to_database_time
from jobs_admin.search import scope as scopes

MOST_DAYS = 14  # retention of minute steps
MOST_ROWS = 100_000  # rows of minutes that are read: half a second
MOST_SERIES = 8
MOST_POINTS = 1_000
MOST_EPISODES = 500  # listed; all are counted
_FINEST_STEP, _MINUTE, _HOUR = 10, 60, 3600
_STEPS = (_MINUTE, 300, 900, _HOUR)

Key = tuple[str, str]
Point = tuple[float, float | None, bool]  # at, value, held


@dataclass(frozen=True, slots=True)
class Episode:
    source: str
    subject: str
    opened_at: datetime
    fired_at: datetime
    resolved_at: datetime | None  # None: it would still fire
    peak: float


@dataclass(frozen=True, slots=True)
class PreviewSeries:
    source: str
    subject: str
    times: list[int]  # seconds since 1970
    values: list[float | None]


@dataclass(slots=True)
class Preview:
    since: datetime
    until: datetime
    step_s: int = _MINUTE
    fired: int = 0  # episodes
    notices: int = 0  # assuming that none was acknowledged
    episodes: list[Episode] = field(default_factory=list)  # latest first, at most MOST_EPISODES
    series: list[PreviewSeries] = field(default_factory=list)  # of the queues with the highest values
    untold: list[str] = field(default_factory=list)  # what the history does not include, as sentences

    @property
    def is_possible(self) -> bool:
        return self.step_s > 0


def preview(viewer: Viewer, document: object, now: datetime, *, days: int = 7) -> Preview:
    """Return what the rule in this document would have done, for the sources that the viewer sees. Changes nothing.

    If the history is not sufficient, `step_s` is 0 and `untold` has the reason. Raises Refused for an invalid rule.
    """
    rule = check_rule(viewer, document)
    days = max(1, min(int(days), MOST_DAYS))
    found = Preview(now - timedelta(days=days), now)
    if why := _why_not(rule):
        found.step_s, found.untold = 0, [why]
        return found
    peaks = _peaks(viewer, rule, found.since, now)
    if not peaks:
        found.untold = ["No samples match this rule."]
        return found
    plan = _plan(peaks, days)
    found.step_s = max((step for _, step in plan), default=_MINUTE)
    if found.step_s > _MINUTE:
        by_the_minute = sum(step == _MINUTE for _, step in plan)
        found.untold.append(
            f"{by_the_minute:,} of {len(peaks):,} queues are evaluated per minute, those with lower values in steps of "
            f"{found.step_s // 60} min."
        )
    if len(plan) < len(peaks):
        found.untold.append(f"Of {len(peaks):,} queues, the {len(plan):,} with the highest values are evaluated.")
    if rule.measure.history_note:
        found.untold.append(rule.measure.history_note)
    by_source: dict[str, list[Episode]] = defaultdict(list)
    for key, step in plan:
        points = _evaluate(rule, _rows(key, step, found.since, now))
        if points and len(found.series) < MOST_SERIES:
            found.series.append(_build_series(rule, key, points))
        by_source[key[0]] += _find_episodes(rule, key, points)
    for episodes in by_source.values():
        found.notices += _notices(rule, episodes, now)
    every = sorted((one for some in by_source.values() for one in some), key=lambda one: one.fired_at, reverse=True)
    found.fired, found.episodes = len(every), every[:MOST_EPISODES]
    return found


def _why_not(rule: Rule) -> str:
    if rule.measure.history is None:
        return f"{rule.measure.no_history} Evaluation starts when you save the rule."
    if rule.is_narrowed:
        return "History is stored per queue, not per task, group or tenant."
    return ""


# -- selection of data -------------------------------------------------------------------------------------------


def _peaks(viewer: Viewer, rule: Rule, since: datetime, now: datetime) -> dict[Key, float]:
    """Return every queue that the rule covers, highest first, with its maximum over the hours: few rows for any span.

    For a rule on reachability, return one queue per source.
    """
    minutes = Q(step=_MINUTE, at__gte=max(since, now - timedelta(hours=2)))  # not yet folded into hours
    points = Q(step=_FINEST_STEP, at__gte=max(since, now - timedelta(minutes=5)))
    hours = Q(step=_HOUR, at__gte=since - timedelta(hours=1))
    rows = DepthSample.objects.filter(hours | minutes | points, scopes.visible(viewer)).values_list("source", "queue")
    peak = rule.measure.peak_of
    column = Coalesce("dead_max", "dead") if peak == "dead" else peak
    peaks = {
        (source, queue): float(peak or 0)
        for source, queue, peak in rows.annotate(peak=Max(column)).order_by()
        if matches(rule.source, source) and matches(rule.queue, queue)
    }
    ranked = dict(sorted(peaks.items(), key=lambda pair: (-pair[1], pair[0])))
    if rule.measure.subject is not Subject.SOURCE:
        return ranked
    return dict.fromkeys({source: (source, queue) for source, queue in ranked}.values(), 0.0)


def _plan(peaks: Sequence[Key] | dict[Key, float], days: int) -> list[tuple[Key, int]]:
    """Return the step in which each queue is read, so that all have at most MOST_ROWS rows."""
    found: list[tuple[Key, int]] = []
    left, waiting = MOST_ROWS, len(peaks)
    for key in peaks:
        for step in _STEPS:
            cost, of_others = days * 86_400 // step, days * 24 * (waiting - 1)
            if cost + of_others <= left or step == _HOUR:
                break
        if cost > left:
            break
        found.append((key, step))
        left, waiting = left - cost, waiting - 1
    return found


def _rows(key: Key, step: int, since: datetime, now: datetime) -> list[Row]:
    """Return the folded steps, dated to their end, and the samples after the last of them."""
    found = _read(key, step, since, now)
    last = datetime.fromtimestamp(found[-1][0], UTC) if found else since
    return found + _read(key, _FINEST_STEP, max(last, now - timedelta(days=1)), now)


def _read(key: Key, step: int, since: datetime, until: datetime) -> list[Row]:
    ends = 0 if step == _FINEST_STEP else step
    sql = (
        f"SELECT {epoch('at')} + {ends}, dead, {epoch('oldest_dead_at')}, failed_per_min, succeeded_per_min, is_reachable "
        f"FROM {DepthSample._meta.db_table} "
        "WHERE source = %s AND queue = %s AND step = %s AND at >= %s AND at <= %s ORDER BY at"
    )
    return list(fetch_rows(sql, [*key, step, to_database_time(since), to_database_time(until)]))


def _evaluate(rule: Rule, rows: Sequence[Row]) -> list[Point]:
    """Return the rule's metric at each row."""
    measure = rule.measure
    assert measure.history is not None
    return [
        (row[0], value, measure.needs_source and not row[5])
        for row, value in zip(rows, measure.history(rows), strict=True)
    ]


# -- results -----------------------------------------------------------------------------------------------------


def _find_episodes(rule: Rule, key: Key, points: Sequence[Point]) -> list[Episode]:
    """Return the episodes that fired, oldest first."""
    law = Numbers(rule.threshold, rule.clear, rule.for_s, rule.keep_firing_s, rule.no_data)
    subject = "" if rule.measure.subject is Subject.SOURCE else key[1]
    found: list[Episode] = []
    stand, fired, opened = QUIET, 0.0, 0.0
    quiet_on_nothing = rule.no_data != alert_state.FIRE
    for at, value, is_blocked_now in points:
        if stand.phase is Phase.QUIET and (quiet_on_nothing if value is None else value <= rule.threshold):
            continue  # nearly all of them
        peak = stand.peak
        stand, act = alert_state.step(stand, value, at, law, is_blocked=is_blocked_now)
        if act is Act.FIRE:
            fired, opened = at, stand.opened_at if stand.opened_at is not None else at
        elif act is Act.RESOLVE:
            found.append(Episode(key[0], subject, _moment(opened), _moment(fired), _moment(at), peak))
    if stand.phase is Phase.FIRING:
        found.append(Episode(key[0], subject, _moment(opened), _moment(fired), None, stand.peak))
    return found


def _notices(rule: Rule, episodes: Sequence[Episode], now: datetime) -> int:
    """Return the number of notices of one source, assuming no acknowledgement.

    Alerts that fire close together share one.
    """
    total, ends, joined = 0, None, 0
    last = began = before = None
    for one in sorted(episodes, key=lambda one: one.fired_at):
        is_late = before is not None and one.fired_at - before >= notices.TOGETHER
        before = one.fired_at
        if began is None or is_late or (ends is not None and one.fired_at > ends):
            total += 0 if began is None else _count_later_notices(rule, began, ends, now)
            began, ends, joined, last = one.fired_at, one.resolved_at, 1, one.fired_at
            total += 1
            continue
        at_once = joined < notices.AT_ONCE or one.fired_at - last >= notices.JOINED_EVERY
        if one.fired_at > last and at_once:
            total, joined, last = total + 1, joined + 1, one.fired_at
        ends = None if ends is None or one.resolved_at is None else max(ends, one.resolved_at)
    return total + (0 if began is None else _count_later_notices(rule, began, ends, now))


def _count_later_notices(rule: Rule, began: datetime, ends: datetime | None, now: datetime) -> int:
    """Return the number of notices of a bundle after its first: end, reminders and escalation."""
    lasted = ((ends or now) - began).total_seconds()
    reminders = int(lasted // rule.renotify_s) if rule.renotify_s else 0
    escalated = 1 if rule.escalate_s and lasted >= rule.escalate_s else 0
    return reminders + escalated + (ends is not None)


def _build_series(rule: Rule, key: Key, points: Sequence[Point]) -> PreviewSeries:
    """Return at most MOST_POINTS points, each the maximum of the points that it replaces."""
    at_once = -(-len(points) // MOST_POINTS)
    times, values = [], []
    for start in range(0, len(points), at_once):
        some = points[start : start + at_once]
        at, value, _ = max(some, key=lambda point: -1.0 if point[1] is None else point[1])
        times.append(int(at))
        values.append(value)
    return PreviewSeries(key[0], "" if rule.measure.subject is Subject.SOURCE else key[1], times, values)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
