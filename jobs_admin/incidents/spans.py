"""Place and time of an incident: as requested, or the last one by alerts or counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet, Sum

from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db.counters import step_start
from jobs_admin.incidents.loudness import Loudness, outages
from jobs_admin.models import Alert, DepthSample, QueueCounter, Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK
from jobs_admin.queues.depths import LADDER, require_visible
from jobs_admin.queues.rates import FAILED
from jobs_admin.rights import alert_sight
from jobs_admin.search import scope as scopes

LONGEST = timedelta(days=31)
HOURS_BACK = timedelta(days=90)
_WITHOUT_BEGINNING = timedelta(hours=24)  # where only an end is asked for
_TOGETHER = timedelta(minutes=10)  # alerts that are no further apart are of one incident
_AFTERWARDS = timedelta(hours=24)  # so long after it, jobs that it left are looked at
_MOST_ALERTS = 50
_MOST_COUNTED = 100_000  # counters of hours that are added up to find the loudest queue, the newest of them
_CANDIDATES = 5  # queues whose minutes are added up
_LEADING = timedelta(hours=12)  # looked through for the first failures before an alert
_STEPS = (LADDER[0].step_s, LADDER[1].step_s, HOUR)  # of depths, the shortest that was kept of that time
_MARGIN = timedelta(minutes=5)  # shown before the first failure and after the end


@dataclass(frozen=True, slots=True)
class Span:
    source: str
    queue: str  # empty: every queue of the source
    since: datetime
    until: datetime
    is_going_on: bool  # it had not ended when it was looked at
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
    """Return the requested span; without times the last incident there; without a source the last of all visible.

    None if there was none. Raises NotFound, and Refused for times that no incident has.
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
    # Without an alert it is one too: what is newer, and no mere afterpain of what was told.
    calm = by_alert.until + _TOGETHER
    if calm >= now:
        return by_alert
    newer = _of_counters(viewer, now, by_alert.source, queue, calm)
    return newer if newer is not None and newer.since > calm else by_alert


def _of_alerts(viewer: Viewer, now: datetime, source: str, queue: str) -> Span | None:
    """Return the span of the latest alert that fired, with those that were open beside it."""
    fired = Alert.objects.filter(alert_sight.visible(viewer), fired_at__isnull=False).exclude(source="")
    if source:
        fired = fired.filter(source=source)
    if queue:
        fired = fired.filter(subject__in=(queue, ""))
    latest = fired.order_by("-opened_at").values_list("source", "subject").first()
    if latest is None:
        return None
    source, subject = latest
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
    """From its first failures, which came before the alert, to the moment at which nothing more failed or lay dead."""
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
    """Return when there were no more dead jobs than just before its beginning, if within a day of its end: replays of
    the incident belong to it. None if so at the end already, not yet, or without samples.
    """
    for step in _STEPS:
        samples = DepthSample.objects.filter(source=found.source, queue=found.queue, step=step, dead__isnull=False)
        meanwhile = samples.filter(at__gte=since, at__lte=until)
        # A look tells of the end of its step.
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
    """Return the latest time in which a queue failed much more than usual: the one that failed most, or that failed
    most since `after`.
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
    """Return the queue with the most failed attempts, of those that the viewer sees.

    Chosen by hours, of which no more than _MOST_COUNTED are added up: with thousands of queues the distant past does
    not count. The minutes of the leading ones decide, if stored.
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
