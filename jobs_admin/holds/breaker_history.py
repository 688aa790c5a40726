"""Transitions of breakers, copied from the store into a table, and their notices: a round of `watch`.

A document has its latest 50 transitions, so that a desk that was down can copy them later. The key of a notice names its opening:
each notice is sent once, even if several desks read the transition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.breaker import RESUMED
from jobs_admin.core.figures import duration
from jobs_admin.core.matching import matches
from jobs_admin.core.path_segment import escaped
from jobs_admin.holds import breaker_documents, breakers
from jobs_admin.holds.breaker_documents import CLOSED, OPEN, Document, Transition
from jobs_admin.holds.breakers import BreakerRow
from jobs_admin.models import BreakerEvent, FailureCount, Notice, QueueCounter, Source
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.counter import HOUR

OPENED, CLOSED_NOTICE, AT_BOUND = "breaker.opened", "breaker.closed", "hold.at_bound"
STILL_AFTER = timedelta(minutes=15)
HOST_AGAIN_AFTER = timedelta(hours=1)
MOST_LISTED = 200  # transitions per page
MOST_QUEUES = 10  # named in a notice
_NEWS = timedelta(hours=24)  # an older transition is recorded without a notice
_STORED = timedelta(days=90)  # and one older than that is not recorded again

_Step = TypeVar("_Step", Transition, BreakerEvent)

log = logging.getLogger(__name__)

SAMPLE_EVERY, SAMPLE_SHARE = timedelta(seconds=10), 0.02  # or this share of the time since the last transition
MOST_SAMPLES = 600  # per chart
_READ_WITHIN = timedelta(seconds=60)  # after a transition; later, the number of held jobs is not that of the transition

WITHDRAWN_EVERY = timedelta(seconds=60)  # a breaker without a policy is checked

# (source, name) -> latest transition in the table; latest sample; latest check that found no policy.
_mirrored: dict[tuple[str, str], Transition] = {}
_sampled: dict[tuple[str, str], tuple[datetime, int]] = {}
_withdrawn: dict[tuple[str, str], datetime] = {}


def step(now: datetime) -> bool:
    """Copy new transitions, write their notices, and sample held jobs. Return whether a transition is new. Raises redis.RedisError."""
    documents = breaker_documents.read_documents({*config.sources(), *Source.objects.values_list("pk", flat=True)})
    due = {place for place, one in documents.items() if one.history and _is_due(place, one, now)}
    if not due:
        return False
    is_new = False
    for one in breakers.listing(ENGINE).rows:
        place = (one.source, one.name)
        if place not in due or one.document is None or not one.document.history:
            continue
        if _mirrored.get(place) != one.document.history[-1]:
            is_new |= _mirror(one, now)
            _mirrored[place] = one.document.history[-1]
        if one.is_holding:
            _notify_while_open(one, now)
        if one.mode == "enforce" and not one.is_capped:
            _notify_of_hosts(one, now)
        _sample(one, now)
        if one.mode == breakers.OFF:
            _withdrawn[place] = now
        else:
            _withdrawn.pop(place, None)
    return is_new


def _is_due(place: tuple[str, str], one: Document, now: datetime) -> bool:
    if _mirrored.get(place) != one.history[-1]:
        return True
    if place in _withdrawn and now - _withdrawn[place] < WITHDRAWN_EVERY:
        return False
    return one.state != CLOSED or bool(one.on_hold or one.hosts) or place in _sampled


def _sample(one: BreakerRow, now: datetime) -> None:
    """Record the number of held jobs; the longer the state lasts, the less often."""
    assert one.document is not None
    # Without a policy the document is outdated: count the sampled held jobs instead.
    on_hold = breakers.on_hold(one).count if one.mode == breakers.OFF else one.document.on_hold
    place, count, since = (one.source, one.name), on_hold or 0, one.document.since or now
    at, before = _sampled.get(place, (None, 0))
    if not count and not before and not one.is_holding:
        _sampled.pop(place, None)
        return
    is_due = at is None or now - at >= max(SAMPLE_EVERY, SAMPLE_SHARE * (now - since)) or (before and not count)
    if is_due:
        state = one.document.state
        row = BreakerEvent(source=one.source, name=one.name, at=now, from_state=state, to_state=state, on_hold=count)
        BreakerEvent.objects.bulk_create([row], ignore_conflicts=True)
        _sampled[place] = now, count


def events(viewer: Viewer, source: str, name: str) -> list[BreakerEvent]:
    """Return the transitions of a breaker, latest first."""
    if viewer.role_on(source) is None:
        return []
    found = BreakerEvent.objects.filter(source=source, name=name).exclude(BreakerEvent.IS_SAMPLE)
    return list(found.order_by("-at", "-pk")[:MOST_LISTED])


def samples(viewer: Viewer, source: str, name: str) -> list[BreakerEvent]:
    """Return the latest samples and transitions of a breaker, oldest first."""
    if viewer.role_on(source) is None:
        return []
    found = BreakerEvent.objects.filter(source=source, name=name, is_observed=False).order_by("-at", "-pk")
    return list(found[:MOST_SAMPLES])[::-1]


def openings(history: Sequence[_Step]) -> list[tuple[_Step, _Step | None]]:
    """Return each opening with the transition that closed it, oldest first; None: not closed yet."""
    found: list[tuple[_Step, _Step | None]] = []
    opened: _Step | None = None
    for one in history:
        if one.is_of_host:
            continue
        if one.to_state == CLOSED:
            if opened is not None:
                found.append((opened, one))
            opened = None
        elif opened is None:
            opened = one
    return [*found, (opened, None)] if opened is not None else found


def outages(history: Sequence[Transition]) -> list[tuple[Transition, Transition | None]]:
    """Return the openings, each starting at its outage, which may come later than the opening after a careful resume."""
    found = []
    for opened, closed in openings(history):
        later = [it for it in history if it.at >= opened.at and (closed is None or it.at <= closed.at)]
        met = (it for it in later if it.to_state == OPEN and not _is_resumed(it) and not it.is_of_host)
        found.append((next(met, opened) if _is_resumed(opened) else opened, closed))
    return found


def _is_resumed(opened: Transition) -> bool:
    """Return whether the breaker opened because an operator resumed a pause carefully."""
    return opened.why.startswith(RESUMED)


def _mirror(one: BreakerRow, now: datetime) -> bool:
    assert one.document is not None
    recent = [it for it in one.document.history if now - it.at < _STORED and it.at <= now + timedelta(minutes=5)]
    known = set(
        BreakerEvent.objects.filter(source=one.source, name=one.name, at__in=[it.at for it in recent]).values_list(
            "at", "to_state"
        )
    )
    new = [it for it in recent if (it.at, it.to_state) not in known]
    if not new:
        return False
    rows = [
        BreakerEvent(
            source=one.source,
            name=one.name,
            at=it.at,
            from_state=it.from_state,
            to_state=it.to_state,
            why=it.why,
            is_observed=one.mode != "enforce" or one.is_capped,
            on_hold=one.document.on_hold if now - it.at < _READ_WITHIN else None,
        )
        for it in new
    ]
    with transaction.atomic():
        BreakerEvent.objects.bulk_create(rows, ignore_conflicts=True)
        if one.mode == "enforce" and not one.is_capped:
            _write_notices(_transition_notices(one, new, now))
    return True


def _transition_notices(one: BreakerRow, new: Sequence[Transition], now: datetime) -> list[Notice]:
    """Return a notice for a new opening that has not ended, and one for each that ended."""
    assert one.document is not None
    found, fresh = [], {(it.at, it.to_state) for it in new}
    for opened, closed in outages(one.document.history):
        if _is_resumed(opened):
            continue
        if closed is None:
            if (opened.at, opened.to_state) in fresh and now - opened.at < _NEWS:
                found.append(_opened_notice(one, opened))
        elif (closed.at, closed.to_state) in fresh and now - closed.at < _NEWS:
            lasted = duration((closed.at - opened.at).total_seconds())
            title = f"{one.name} is back: its breaker closed after {lasted}"
            found.append(_notice(one, CLOSED_NOTICE, opened, "closed", "info", title, closed.why))
    return found


def _opened_notice(one: BreakerRow, opened: Transition) -> Notice:
    assert one.document is not None
    evidence = one.document.evidence
    parts = [opened.why]
    if evidence and evidence.first_error:
        parts.append(f"First error: {evidence.first_error}")
    tenants, tasks = one.document.tenants, one.document.tasks
    whose = f" for tenant{'' if len(tenants) == 1 else 's'} {', '.join(tenants[:5])}" if tenants else ""
    if tasks:
        whose += f"{' and' if tenants else ' for'} task{'' if len(tasks) == 1 else 's'} {', '.join(tasks[:5])}"
    title = f"{one.name} is down{whose}: its jobs are held"
    return _notice(one, OPENED, opened, "opened", "warning", title, " ".join(filter(None, parts)))


def _notify_while_open(one: BreakerRow, now: datetime) -> None:
    """Write the notices of an opening that lasts. Repeated writes are ignored: the keys are unique."""
    assert one.document is not None
    current = [opened for opened, closed in outages(one.document.history) if closed is None]
    if not current or now - current[0].at > _NEWS:
        return
    opened, count, found = current[0], one.document.on_hold, []
    jobs = "jobs are" if count is None else f"{count:,} job{' is' if count == 1 else 's are'}"
    if now - opened.at >= STILL_AFTER and (count or not _is_resumed(opened)):
        minutes = int(STILL_AFTER.total_seconds() // 60)
        title = f"{one.name} is still down after {minutes} min: {jobs} held"
        found.append(_notice(one, OPENED, opened, "still", "warning", title, opened.why))
    if one.document.at_bound:
        title = f"{one.name}: no room to hold more jobs"
        text = f"{jobs[0].upper()}{jobs[1:]} held. Further jobs stay in their queues, or run and may die."
        found.append(_notice(one, AT_BOUND, opened, "bound", "critical", title, text))
    _write_new_notices(found)


def _notify_of_hosts(one: BreakerRow, now: datetime) -> None:
    """Write a notice when the hold of a host starts, and one when it ends; within an hour of the host's last, if it lasts."""
    assert one.document is not None
    found: list[Notice] = []
    started: dict[str, Transition] = {}
    ended: dict[str, datetime] = {}

    def add(opened: Transition, closed: Transition | None) -> None:
        lasted, last = (closed.at if closed else now) - opened.at, ended.get(opened.host)
        if lasted < STILL_AFTER and last and opened.at - last < HOST_AGAIN_AFTER:
            return
        if closed is None:
            title = f"{one.name} fails only on host {opened.host}: its jobs there are held"
            found.append(_notice(one, OPENED, opened, "host", "warning", title, opened.why))
        else:
            title = f"{one.name}: the hold of host {opened.host} ended after {duration(lasted.total_seconds())}"
            found.append(_notice(one, CLOSED_NOTICE, opened, "host-end", "info", title, closed.why))

    for it in (it for it in one.document.history if it.host and now - it.at < _NEWS):
        if it.is_start:
            started[it.host] = it
        elif it.host in started:
            add(started.pop(it.host), it)
            ended[it.host] = it.at
    for opened in started.values():
        add(opened, None)
    _write_new_notices(found)


def _write_new_notices(found: Iterable[Notice]) -> None:
    found = [it for it in found if it.key not in _sent]
    if found:
        _write_notices(found)
        _sent.update(it.key for it in found)
        if len(_sent) > 10_000:
            _sent.clear()


_sent: set[str] = set()  # keys of notices that this process wrote, to save a query each second


def _notice(
    one: BreakerRow, type_: str, opened: Transition, word: str, severity: str, title: str, message: str
) -> Notice:
    name = keys.short(f"{one.source}/{one.name}")
    opening = f"{int(opened.at.timestamp() * 1000)}"
    body = {
        "title": title[:300],
        "message": message[:1_000],
        "breaker": one.name,
        "queues": queues_of(one, MOST_QUEUES, timezone.now()),
        "held": one.document.on_hold if one.document else None,
        "since": opened.at.isoformat(),
        "url": config.page_at(f"breakers/{escaped(one.source)}/{escaped(one.name)}/"),
        "dedup_key": f"redrive-breaker-{name}-{opening}",
    }
    return Notice(key=f"breaker:{name}:{opening}:{word}", type=type_, severity=severity, source=one.source, body=body)


def _write_notices(found: Iterable[Notice]) -> None:
    Notice.objects.bulk_create(found, ignore_conflicts=True)


def queues_of(one: BreakerRow, most: int, now: datetime) -> list[str]:
    """Return the queues whose jobs a breaker can hold: those that its policies name, and known queues that match them."""
    names = {p.match_queue for p in one.policies if "*" not in p.match_queue}
    for policy in one.policies:
        if "*" not in policy.match_queue:
            continue
        if policy.match_task == "*":
            recent = QueueCounter.objects.filter(step=HOUR, at__gte=now - _NEWS, source=one.source)
            known = recent.values_list("queue", flat=True).distinct()
        else:
            counts = FailureCount.objects.filter(source=one.source)
            tasks = [
                t for t in counts.values_list("task", flat=True).distinct()[:1_000] if matches(policy.match_task, t)
            ]
            known = counts.filter(task__in=tasks).values_list("queue", flat=True).distinct()
        names |= {queue for queue in known.order_by()[:1_000] if matches(policy.match_queue, queue)}
    return sorted(filter(None, names))[:most]
