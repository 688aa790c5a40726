"""Place and time range of an incident, as requested or that of the last incident.

The last incident is found by alerts, or by counters that show when failed attempts far exceeded the usual number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet, Sum

from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db.counters import step_start
from jobs_admin.models import Alert, DepthSample, QueueCounter, Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.alert import find_firing
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK, QUARTER, QUARTERS_BACK
from jobs_admin.queues.depths import LADDER, require_visible
from jobs_admin.queues.rates import CALM_MIN, FAILED
from jobs_admin.rights import alert_sight
from jobs_admin.search import scope as scopes

LONGEST = timedelta(days=31)
HOURS_BACK = timedelta(days=90)
_WITHOUT_BEGINNING = timedelta(hours=24)  # if only an end is requested
_TOGETHER = timedelta(minutes=10)  # alerts at most this far apart belong to one incident
_AFTERWARDS = timedelta(hours=24)  # after the end, how long dead jobs of the incident are tracked
_MOST_ALERTS = 50
_MOST_COUNTED = 100_000  # hourly counters, the latest, summed to find the queue with the most failures
_CANDIDATES = 5  # queues whose counters per minute are summed
_LEADING = timedelta(hours=12)  # searched for the first failures before an alert
_STEPS = (LADDER[0].step_s, LADDER[1].step_s, HOUR)  # steps of depth samples; the shortest that is still stored is used
_MARGIN = timedelta(minutes=5)  # added before the first failure and after the end

_TIMES_USUAL = 3
_OF_PEAK = 20  # a step with less than this fraction of the peak does not belong to the incident
_STEPS_AFTER = 10  # minimum number of steps after the peak that determine the background …
_BACKGROUND = 6  # … which is at most this fraction of the peak


@dataclass(frozen=True, slots=True)
class Span:
    source: str
    queue: str  # empty: every queue of the source
    since: datetime
    until: datetime
    is_going_on: bool  # not ended when read
    found_by: str  # asked, alert, counters


def span(
    viewer: Viewer,
    now: datetime,
    *,
    source: str = "",
    queue: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Span | None:
    """Return the requested span; without times that of the last incident there.

    Without a source, the incident of the worst firing alert, or else the last visible one.

    Return None if there was no incident. Raises NotFound, and Refused for invalid times.
    """
    if queue and not source:
        raise Refused("invalid", "A queue requires a source.", "source")
    if source:
        _must_be_there(viewer, source, queue)
    if since is None and until is None:
        return _last(viewer, now, source, queue)
    end = min(until or now, now).replace(microsecond=0)
    begin = (since or end - _WITHOUT_BEGINNING).replace(microsecond=0)
    if begin >= end:
        raise Refused("invalid", "The start must be before the end and not in the future.", "since")
    if end - begin > LONGEST:
        raise Refused("invalid", f"The period is limited to {LONGEST.days} days.", "since")
    if not source:
        last = _loudest(viewer, now, begin, end)
        if last is None:
            return None
        source, queue = last
    return Span(source, queue, begin, end, until is None or until >= now, "asked")


def _must_be_there(viewer: Viewer, source: str, queue: str) -> None:
    if not viewer.may(VIEWER, source) or not Source.objects.filter(name=source).exists():
        raise NotFound
    if queue:
        require_visible(viewer, source, queue)


def _last(viewer: Viewer, now: datetime, source: str, queue: str) -> Span | None:
    by_alert = _of_alerts(viewer, now, source, queue)
    if by_alert is None:
        return _of_counters(viewer, now, source, queue)
    # A later outage without an alert also counts, unless it is an aftermath of the incident with the alert.
    calm = by_alert.until + _TOGETHER
    if calm >= now:
        return by_alert
    newer = _of_counters(viewer, now, by_alert.source, queue, calm)
    return newer if newer is not None and newer.since > calm else by_alert


def _of_alerts(viewer: Viewer, now: datetime, source: str, queue: str) -> Span | None:
    """Return the span of the latest alert that fired, including alerts open at the same time.

    Without a source, the worst firing alert has priority over the latest.
    """
    fired = Alert.objects.filter(alert_sight.visible(viewer), fired_at__isnull=False).exclude(source="")
    if source:
        fired = fired.filter(source=source)
    if queue:
        fired = fired.filter(subject__in=(queue, ""))
    names = ("source", "subject")
    worst = None if source else find_firing(fired).values_list(*names).first()
    chosen = worst or fired.order_by("-opened_at").values_list(*names).first()
    if chosen is None:
        return None
    source, subject = chosen
    queue = queue or (subject if _is_queue(source, subject) else "")
    same = fired.filter(source=source)
    if queue:
        same = same.filter(subject__in=(queue, ""))
    rows = list(same.order_by("-opened_at").values_list("opened_at", "resolved_at")[:_MOST_ALERTS])
    begin, end = rows[0][0], rows[0][1] or now
    is_open = any(resolved is None for _, resolved in rows)
    for opened, resolved in rows[1:]:
        if (resolved or now) < begin - _TOGETHER:
            break
        begin, end = min(begin, opened), max(end, resolved or now)
    found = Span(source, queue, begin, end, is_open and end >= now, "alert")
    return _widened(found, now)


def _is_queue(source: str, name: str) -> bool:
    return bool(name) and QueueCounter.objects.filter(source=source, queue=name).exists()


def _widened(found: Span, now: datetime) -> Span:
    """Extend the span from its first failures, before the alert, until nothing failed and no job was dead any more."""
    leading = max(_LEADING, found.until - found.since)
    loud = Loudness.read(found.source, found.queue, found.since - leading, found.until, now)
    begin, end = loud.around(found.since, found.until)
    begin = min(begin, found.since)
    since = max(begin - _MARGIN, found.until - LONGEST)
    until = max(end, found.until)
    if not found.is_going_on:
        until = min(now, max(until, _brought_back(found, since, begin, until, now) or until) + _MARGIN)
    return replace(found, since=since.replace(second=0, microsecond=0), until=min(now, until).replace(microsecond=0))


def _brought_back(found: Span, since: datetime, begin: datetime, until: datetime, now: datetime) -> datetime | None:
    """Return when the dead jobs fell to their number before the incident, at most a day after its end.

    Replays of the incident belong to it. None if the number was reached by the end already, not yet, or without
    samples.
    """
    for step in _STEPS:
        samples = DepthSample.objects.filter(source=found.source, queue=found.queue, step=step, dead__isnull=False)
        meanwhile = samples.filter(at__gte=since, at__lte=until)
        # A sample describes the end of its step.
        quiet = meanwhile.filter(at__lte=begin - timedelta(seconds=step)).order_by("-at")
        before = quiet.values_list("dead", flat=True).first()
        if before is None:
            before = meanwhile.order_by("at").values_list("dead", flat=True).first()
        if before is None:
            continue
        there = meanwhile.order_by("-at").values_list("dead", flat=True).first()
        if there <= before:
            return None
        later = samples.filter(at__gt=until, at__lte=min(now, until + _AFTERWARDS), dead__lte=before)
        return later.order_by("at").values_list("at", flat=True).first()
    return None


def _of_counters(viewer: Viewer, now: datetime, source: str, queue: str, after: datetime | None = None) -> Span | None:
    """Return the latest time range in which the queue with the most failures failed much more than usual.

    With `after`, the queue is that with the most failures since then.
    """
    for back in (MINUTES_BACK, HOURS_BACK):
        since = now - back
        if back > MINUTES_BACK and after is not None and after >= now - MINUTES_BACK:
            break
        place = (source, queue) if queue else _loudest(viewer, now, max(since, after or since), now, source)
        if place is None:
            continue
        loud = Loudness.read(*place, since, now, now)
        found = outages(loud)
        if found:
            begin, end = found[-1]
            is_open = end >= now - timedelta(seconds=2 * loud.step_s)
            complete = Span(*place, begin, min(end, now), is_open, "counters")
            return _widened(complete, now)
    return None


def _loudest(
    viewer: Viewer, now: datetime, since: datetime, until: datetime, source: str = ""
) -> tuple[str, str] | None:
    """Return the queue with the most failed attempts among the visible ones.

    Candidates are found by hourly counters, at most _MOST_COUNTED of them: with thousands of queues the distant past is
    ignored. Their counters per minute decide, if stored.
    """
    within = scopes.visible(viewer) & (Q(source=source) if source else Q())
    hours = QueueCounter.objects.filter(step=HOUR, at__gte=step_start(since, HOUR), at__lte=until).order_by("-at")
    counted = hours.filter(within)
    if earliest := hours.values_list("at", flat=True)[_MOST_COUNTED : _MOST_COUNTED + 1]:
        counted = counted.filter(at__gt=earliest[0])
    leading = _ranked(counted)
    if leading and since >= now - MINUTES_BACK:
        these = Q()
        for one in leading:
            these |= Q(source=one[0], queue=one[1])
        exactly = QueueCounter.objects.filter(these, step=MINUTE, at__gte=since, at__lte=until)
        leading = _ranked(exactly)
    return leading[0] if leading else None


def _ranked(counted: QuerySet[QueueCounter]) -> list[tuple[str, str]]:
    worst = counted.order_by().values("source", "queue").annotate(n=Sum(FAILED)).filter(n__gt=0)
    return [(one["source"], one["queue"]) for one in worst.order_by("-n", "source", "queue")[:_CANDIDATES]]


@dataclass(frozen=True, slots=True)
class Loudness:
    step_s: int
    since: datetime  # start of the first step
    failed: list[int]  # attempts per step, oldest first
    least: int  # failed attempts from which a step counts as loud

    @classmethod
    def read(cls, source: str, queue: str, since: datetime, until: datetime, now: datetime) -> Loudness:
        """Read one queue, or the complete source if `queue` is empty, in the shortest step that is still stored."""
        back = now - since
        step = MINUTE if back <= MINUTES_BACK else QUARTER if back <= QUARTERS_BACK else HOUR
        first = step_start(since, step)
        counted = QueueCounter.objects.filter(source=source, step=step, at__gte=first, at__lte=until)
        if queue:
            counted = counted.filter(queue=queue)
        found = dict(counted.order_by().values_list("at").annotate(n=Sum(FAILED)))
        count = max(1, int((until - first).total_seconds() // step) + 1)
        failed = [int(found.get(first + timedelta(seconds=n * step), 0)) for n in range(count)]
        # A quartile, because the mean would include the outage. Callers read at least as much time before the outage as
        # it lasted.
        usual = max(sorted(failed)[len(failed) // 4], _background(failed))
        return cls(step, first, failed, max(1, _TIMES_USUAL * usual, max(failed) // _OF_PEAK))

    def at(self, n: int) -> datetime:
        return self.since + timedelta(seconds=n * self.step_s)

    def around(self, begin: datetime, end: datetime) -> tuple[datetime, datetime]:
        """Extend the time range by the loud ones that overlap or shortly precede it."""
        for first, last in reversed(outages(self)):
            if first <= end and last >= begin - timedelta(minutes=CALM_MIN):
                begin, end = min(begin, first), max(end, last)
        return begin, end


def _background(failed: Sequence[int]) -> int:
    """Return the number of attempts that keep failing per step since the peak; 0 if that may be the outage itself.

    A new desk has no time before the outage to compare with.
    """
    peak = max(range(len(failed)), key=failed.__getitem__)
    after = sorted(failed[peak + 1 : -1])  # the last step may be incomplete
    level = after[len(after) // 2] if len(after) >= _STEPS_AFTER else 0
    return level if level * _BACKGROUND <= failed[peak] else 0


def outages(loud: Loudness) -> list[tuple[datetime, datetime]]:
    """Return the loud time ranges, from the start of the first step to the end of the last, oldest first."""
    calm = max(1, CALM_MIN * 60 // loud.step_s)
    found: list[list[int]] = []
    for n, failed in enumerate(loud.failed):
        if failed >= loud.least:
            if found and n - found[-1][1] <= calm + 1:
                found[-1][1] = n
            else:
                found.append([n, n])
    return [(loud.at(first), loud.at(last + 1)) for first, last in found]
