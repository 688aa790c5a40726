"""Breakers that a viewer may see, with their policies, and forcing a breaker open or closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.breaker import Breaker
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import ENFORCE, OBSERVE, Policy
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize, may_write, refuse, second_person_refusal
from jobs_admin.fleet import heartbeats
from jobs_admin.holds import breaker_documents, force_requests
from jobs_admin.holds.breaker_documents import AUTO, CLOSED, FORCED, OPEN, Document, Forced, OnHold
from jobs_admin.models import AuditEvent, FailureCount, Pause, PolicyVersion, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.policies import active, published
from jobs_admin.queues import liveness
from jobs_admin.sources import SYSTEMS

OFF = "off"  # mode of a breaker that no policy in force defines
LONGEST = timedelta(days=30)
LONGEST_REASON = 500
_LONGEST_OBJECT = 120  # characters
_TRIES = 50  # of a compare-and-set: workers write at most ten times per second
_BETWEEN_TRIES_S = 0.02
_MOST_PLACES = 10_000
_UNREACHABLE = "Redrive's store does not answer. Nothing was changed."


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A breaker of one source. `document`: None if its workers have not written one yet."""

    source: str
    name: str
    policies: tuple[PolicyVersion, ...]  # those in force that define it
    document: Document | None = None
    is_known: bool = True  # False: the store does not answer
    awaits: str = ""  # why another operator must confirm a request to force it

    @property
    def mode(self) -> str:
        modes = {one.mode for one in self.policies}
        return ENFORCE if ENFORCE in modes else OBSERVE if modes else OFF

    @property
    def is_observed(self) -> bool:
        return self.mode == OBSERVE or self.is_capped

    @property
    def is_capped(self) -> bool:
        """Return whether its policies enforce it, but no worker does (`REDRIVE_MODE=observe`)."""
        return self.mode == ENFORCE and self.document is not None and self.document.is_observed

    @property
    def state(self) -> str:
        return self.document.state if self.document else CLOSED

    @property
    def is_closed(self) -> bool:
        return self.state == CLOSED

    @property
    def is_holding(self) -> bool:
        """Return whether it prevents jobs from starting."""
        return not self.is_closed and self.mode == ENFORCE and not self.is_capped

    @property
    def is_dependency(self) -> bool:
        parts = [one.document.get("breaker") for one in self.policies]
        return any(isinstance(part, dict) and bool(part.get("dependency")) for part in parts)

    def matches(self, queue: str) -> bool:
        """Return whether jobs of this queue may wait for it."""
        return any(matches(one.match_queue, queue) for one in self.policies)

    def holds_task(self, task: str, tenant: str | None) -> bool:
        """Return whether it holds jobs of a task of its policies. `tenant`: a name, `*` for all tenants, None for any."""
        tenants, tasks = (self.document.tenants, self.document.tasks) if self.document else ((), ())
        is_part = task in tasks or (bool(tenants) if tenant is None else tenant in tenants)
        return self.is_holding and (is_part or not (tenants or tasks))


@dataclass(frozen=True, slots=True)
class Listing:
    rows: list[BreakerRow]  # those that hold jobs first
    is_known: bool = True  # False: the store does not answer
    unable: tuple[str, ...] = ()  # sources with such a policy whose workers cannot hold


def breaker_name(one: PolicyVersion) -> str:
    """Return the name of the breaker that a policy defines; "" if it defines none."""
    part = one.document.get("breaker")
    if not isinstance(part, dict):
        return ""
    name = part.get("dependency")
    return name if isinstance(name, str) and name else one.name


def find_name(policies: Iterable[Policy], source: str, queue: str, task: str) -> str:
    """Return the breaker that can hold jobs of a task in a queue, from the policy that decides; "" if there is none."""
    found = chosen(policies, source, queue, task) if queue else None
    return found.breaker_name or "" if found is not None and found.mode == ENFORCE else ""


def listing(viewer: Viewer) -> Listing:
    """Return the breakers of the viewer's sources: those in the store, and those of policies in force."""
    sources = _sources(viewer)
    policies = [one for one in published(viewer) if breaker_name(one)]
    try:
        documents, is_known = breaker_documents.read_documents(sources), True
    except (redis.RedisError, config.BadConfiguration):
        documents, is_known = {}, False
    rows = _join(sources, policies, documents, is_known=is_known)
    unable = {
        source
        for source, backend in sources.items()
        if not _can_hold(backend) and any(one.match_source == source for one in policies)
    }
    return Listing(sorted(rows, key=_order), is_known, tuple(sorted(unable)))


def open_breakers(viewer: Viewer, sources: Iterable[str]) -> list[BreakerRow]:
    """Return the breakers of these sources that hold jobs now; none if the store does not answer.

    Usually without a query.
    """
    seen = {source: "" for source in sources if viewer.may(VIEWER, source)}
    try:
        documents = breaker_documents.read_documents(seen)
    except (redis.RedisError, config.BadConfiguration):
        return []
    documents = {place: one for place, one in documents.items() if one.state != CLOSED}
    # While the guard is off, workers start all jobs and do not change the documents.
    if not documents or liveness.guard_switch() != "on":
        return []
    policies = [one for one in published(viewer) if breaker_name(one)]
    return sorted((one for one in _join(seen, policies, documents, is_known=True) if one.is_holding), key=_order)


def get(viewer: Viewer, source: str, name: str) -> BreakerRow:
    """Return a breaker. Raises NotFound."""
    for one in listing(viewer).rows:
        if (one.source, one.name) == (source, name):
            return one
    raise NotFound("No such breaker, or you cannot view its source.")


def find(viewer: Viewer, name: str, source: str = "") -> BreakerRow:
    """Return the breaker with a name, which several sources may have. Raises Refused, and NotFound."""
    rows = [one for one in listing(viewer).rows if one.name == name and source in ("", one.source)]
    if len(rows) > 1:
        names = ", ".join(one.source for one in rows[:10])
        raise Refused("invalid", f"Several sources have a breaker of this name: {names}. Name the source.", "source")
    if not rows:
        raise NotFound("No such breaker, or you cannot view its source.")
    return rows[0]


def on_hold(one: BreakerRow) -> OnHold:
    """Return the jobs that a breaker holds, as last sampled; none if the store does not answer."""
    try:
        return breaker_documents.read_on_hold([one.source]).get((one.source, one.name), OnHold())
    except (redis.RedisError, config.BadConfiguration):
        return OnHold()


def older_workers(one: BreakerRow) -> list[str]:
    """Return the live workers whose guard is too old to narrow a breaker to a host or task; none if the store does not answer."""
    try:
        reports = heartbeats.worker_reports(sources={one.source})
    except (redis.RedisError, config.BadConfiguration):
        return []
    return [it.name for it in reports if it.mode == ENFORCE and one.name in it.breakers and not it.can_narrow]


def may_force(viewer: Viewer, one: BreakerRow) -> bool:
    can_change = not one.is_capped or bool(one.document and one.document.forced)
    return may_write(viewer, OPERATOR, one.source) and one.mode == ENFORCE and can_change


def force(
    viewer: Viewer,
    source: str,
    name: str,
    as_: str,
    *,
    reason: str = "",
    for_s: int | None = None,
    now: datetime | None = None,
) -> BreakerRow:
    """Force a breaker open or closed, for `for_s` seconds or until changed, or return it to `auto`.

    If that needs two people, the first call records a request. Raises Refused, and NotFound.
    """
    now = now or timezone.now()
    if not isinstance(source, str) or not viewer.may(VIEWER, source):
        raise _invalid("source", "No such source, or you cannot view it.")
    message = "Forcing a breaker needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "breaker.force", _object(source, name), message=message, field="source")
    if as_ not in FORCED:
        raise _invalid("as", f"Choose one of {', '.join(FORCED)}.")
    why = " ".join(representable(reason).split()) if isinstance(reason, str) else ""
    if len(why) > LONGEST_REASON or (as_ != AUTO and not why):
        raise _invalid("reason", f"Enter a reason of 1 to {LONGEST_REASON} characters.")
    if as_ == AUTO and for_s is not None:
        raise _invalid("for_s", "Automatic has no end: omit for_s.")
    if for_s is not None and not 1 <= for_s <= LONGEST.total_seconds():
        raise _invalid("for_s", f"The end must be within {LONGEST.days} days, or until changed.")
    known = get(viewer, source, name)
    if known.mode != ENFORCE or (known.is_capped and as_ != AUTO):
        why_not = "is only observed" if known.is_observed else "has no policy in force"
        what = "REDRIVE_MODE of its workers" if known.is_capped else "its policy"
        raise Refused("cannot", f"{name} {why_not}: no worker would obey. Set {what} to enforce. Nothing was changed.")
    forced = known.document.forced if known.document else None
    until = now + timedelta(seconds=for_s) if for_s is not None else None
    if _starts_jobs(as_, until, forced) and (awaits := _request_approval(viewer, known, as_, for_s, why, now)):
        return replace(known, awaits=awaits)
    before = {"as": forced.as_ if forced else AUTO, "state": known.state}
    end = until.timestamp() if until else None
    try:
        with transaction.atomic():
            after = {"as": as_, "until": until}
            audit.record(
                viewer, "breaker.force", _object(source, name), source=source, reason=why, before=before, after=after
            )
            document = _write(source, name, lambda one: one.force(as_, now.timestamp(), end, viewer.name[:150], why))
    except (redis.RedisError, config.BadConfiguration):
        raise Refused("unavailable", _UNREACHABLE) from None
    return BreakerRow(source, name, known.policies, document)


def _starts_jobs(as_: str, until: datetime | None, forced: Forced | None) -> bool:
    """Return whether a force starts held jobs: also if it ends or shortens a forced open state."""
    if as_ == CLOSED or forced is None or forced.as_ != OPEN:
        return as_ == CLOSED
    return as_ == AUTO or (until is not None and (forced.until is None or until < forced.until))


def _request_approval(viewer: Viewer, known: BreakerRow, as_: str, for_s: int | None, why: str, now: datetime) -> str:
    """Record the request and return why a second person must confirm; "" if no further confirmation is needed.

    None is needed if the viewer is the second person, or the act needs no approval. Raises Refused if the viewer made
    the request.
    """
    count = (known.document.on_hold if known.document else None) or 0
    object, tasks = _object(known.source, known.name), on_hold(known).by_task
    if not (reason := force_requests.approval_reason(known.source, known.policies, count, tasks)):
        return ""
    earlier = force_requests.find(object, now, **{"as": as_, "for_s": for_s})
    if earlier is not None:
        subject, hands = f"forcing {known.name} {as_}", {(earlier.actor, earlier.user_id)}
        if refusal := second_person_refusal(viewer, subject, earlier.actor, hands, [known.source]):
            refuse(
                viewer,
                force_requests.FORCE,
                object,
                Refused("forbidden", f"{refusal} Nothing was changed."),
                [known.source],
            )
        return ""
    with transaction.atomic():
        after = {"as": as_, "for_s": for_s}
        audit.record(viewer, force_requests.ACT, object, source=known.source, reason=why, after=after)
    return reason


def awaited(one: BreakerRow, now: datetime) -> AuditEvent | None:
    """Return the request to force a breaker that waits for a second person; None without one."""
    return force_requests.find(_object(one.source, one.name), now)


Place = tuple[str, str]  # queue and task


def releasing(
    rows: Iterable[BreakerRow], policies: Iterable[Policy], pause: Pause, places: Iterable[Place]
) -> list[BreakerRow]:
    """Return the breakers that can release the jobs of a pause at the careful pace; none for a tenant's pause.

    `policies`: all in force; `places`: from `find_places`.
    """
    names = {pause.dependency} if pause.dependency else {find_name(policies, pause.source, *one) for one in places}
    found = [one for one in rows if one.source == pause.source and one.name in names]
    return [one for one in found if one.mode == ENFORCE and not one.is_capped]


def find_places(policies: Sequence[Policy], pauses: Collection[Pause]) -> dict[int, set[Place]]:
    """Return pause id -> paused queues and tasks, from failed jobs, or from policies if no job failed.

    One query for all pauses.
    """
    queues, tasks = {one.queue for one in pauses if one.queue}, {one.task for one in pauses if one.task}
    known: set[tuple[str, str, str]] = set()
    if policies and (queues or tasks):
        counts = FailureCount.objects.filter(
            Q(queue__in=queues) | Q(task__in=tasks), source__in={one.source for one in pauses}
        )
        known = set(counts.order_by().values_list("source", "queue", "task").distinct()[:_MOST_PLACES])
    return {one.pk: _find_places(policies, one, known) for one in pauses}


def _find_places(policies: Iterable[Policy], pause: Pause, known: Iterable[tuple[str, str, str]]) -> set[Place]:
    queue, task = pause.queue, pause.task
    if not queue and not task:
        return set()
    of_source = {(q, t) for source, q, t in known if source == pause.source}
    if found := {(q, t) for q, t in of_source if (q == queue if queue else t == task)}:
        return found
    matched = [one.match for one in policies]
    if not queue:
        return {(match.queue, task) for match in matched}
    return {(queue, match.task) for match in matched if match.queue == queue or match.task == "*"}


def open_to_release(viewer: Viewer, pause: Pause, now: datetime) -> None:
    """Open the breakers of a pause's jobs, which are then put aside and released at the careful pace.

    Raises Refused without a breaker.
    """
    policies = active()
    rows = releasing(listing(viewer).rows, policies, pause, find_places(policies, [pause])[pause.pk])
    forced = [one.name for one in rows if one.document and one.document.forced and one.is_closed]
    if not rows or forced:
        why = (
            f"{', '.join(forced[:3])} is forced closed. Return the breaker to automatic first, or resume without a pace."
            if forced
            else "The careful pace needs a policy with a breaker, in mode enforce, for these jobs. Create one, or resume without a pace."
        )
        raise Refused("cannot", f"{why} Nothing was changed.", "pace")
    try:
        for one in rows:
            _write(one.source, one.name, lambda it: it.open_to_release(viewer.name[:60], now.timestamp()))
    except (redis.RedisError, config.BadConfiguration):
        raise Refused("unavailable", _UNREACHABLE) from None


def _write(source: str, name: str, change: Callable[[Breaker], None]) -> Document | None:
    """Change the document in the store by compare-and-set, as the workers do."""
    key, field = keys.breakers(source), name.encode()
    with config.store().pipeline() as pipe:
        for _ in range(_TRIES):
            pipe.watch(key)
            breaker = _parse_breaker(name, pipe.hget(key, field))
            change(breaker)
            text = breaker.render()
            pipe.multi()
            pipe.hset(key, field, text)
            try:
                pipe.execute()
            except redis.WatchError:
                time.sleep(_BETWEEN_TRIES_S)
                continue
            return breaker_documents.parse(text)
    raise Refused("conflict", "Workers changed the breaker at the same time. Nothing was changed: try again.")


def _parse_breaker(name: str, text: Any) -> Breaker:
    breaker = Breaker.parse(name, text)
    try:
        Breaker.parse(name, text).force(AUTO, 0.0)
    except (TypeError, ValueError, KeyError, AttributeError):  # not written by a worker
        number, breaker = breaker.number, Breaker(name)
        breaker.number = number
    return breaker


def _join(
    sources: dict[str, str],
    policies: Iterable[PolicyVersion],
    documents: dict[tuple[str, str], Document],
    *,
    is_known: bool,
) -> list[BreakerRow]:
    found: dict[tuple[str, str], list[PolicyVersion]] = {place: [] for place in documents}
    for one in policies:
        for source, backend in sources.items():
            if _can_hold(backend) and matches(one.match_source, source):
                found.setdefault((source, breaker_name(one)), []).append(one)
    for place, some in found.items():
        if not some:  # workers release its jobs and no longer count them
            documents[place] = replace(documents[place], on_hold=None)
    return [
        BreakerRow(source, name, tuple(some), documents.get((source, name)), is_known)
        for (source, name), some in found.items()
    ]


def _sources(viewer: Viewer) -> dict[str, str]:
    """Return name -> backend of the sources that the viewer may see."""
    found = dict(Source.objects.values_list("pk", "backend")) | {
        name: one.backend for name, one in config.sources().items()
    }
    return {
        name: backend
        for name, backend in sorted(found.items())
        if viewer.may(VIEWER, name) and viewer.focus in ("", name)
    }


def _can_hold(backend: str) -> bool:
    return backend not in SYSTEMS or SYSTEMS[backend].is_guarded


def _order(one: BreakerRow) -> tuple[bool, bool, str, str]:
    return not one.is_holding, one.is_closed, one.name, one.source


def _object(source: str, name: str) -> str:
    """Return the breaker's name in the audit, shortened by a digest if too long."""
    found = f"breaker:{source}/{name}"
    return found if len(found) <= _LONGEST_OBJECT else f"{found[: _LONGEST_OBJECT - 17]}#{keys.short(found)}"


def _invalid(field: str, message: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field)
