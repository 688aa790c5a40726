"""Pauses and open breakers in force, by the jobs that they hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from jobs_admin import policies
from jobs_admin.core import query as language
from jobs_admin.core.matching import chosen, matches
from jobs_admin.core.policy import Policy
from jobs_admin.holds import breakers
from jobs_admin.holds.breakers import BreakerRow
from jobs_admin.holds.pausing import is_open, listing
from jobs_admin.holds.reach import reach
from jobs_admin.models import Failure, FailureCount, Pause
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.hold import KINDS

_MOST_PLACES = 10_000
CONFIRMED_WITHIN = timedelta(seconds=10)  # workers confirm a new pause


@dataclass(frozen=True, slots=True)
class HoldsInForce:
    """Holds of some sources. `policies`: all in force; one of them decides about a job."""

    pauses: Sequence[Pause] = ()
    breakers: Sequence[BreakerRow] = ()
    policies: Sequence[Policy] = ()
    _names: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def find_pause(self, source: str, queue: str, task: str = "", tenant: str | None = None) -> Pause | None:
        """Return the pause of a queue, or else of a task, its dependency or a tenant; None if there is none.

        Without a task, only the queue's pause is considered.
        """
        found = [one for one in self.pauses if one.source == source]
        names = {"queue": queue, "task": task, "tenant": tenant}
        if task and any(one.dependency for one in found):
            policy = chosen(self.policies, source, queue, task)
            names["dependency"] = policy.breaker_name if policy is not None else ""
        ordered = sorted(found, key=lambda one: one.kind != "queue")
        return next((one for one in ordered if names.get(one.kind) == one.name), None)

    def find_breaker(self, source: str, queue: str, task: str, tenant: str | None = None) -> BreakerRow | None:
        """Return the open breaker that holds jobs of a task in a queue; None if there is none.

        `tenant`: a name, `*` for all tenants, or None for any.
        """
        if not self.breakers:
            return None
        place = source, queue, task
        if place not in self._names:
            self._names[place] = breakers.find_name(self.policies, *place)
        named = (one for one in self.breakers if (one.source, one.name) == (source, self._names[place]))
        return next((one for one in named if one.holds_task(task, tenant)), None)


Place = tuple[str, str]  # source and queue


def pauses_of(viewer: Viewer, places: Collection[Place], now: datetime) -> dict[Place, list[Pause]]:
    """Return the pauses in force that hold jobs of these queues, a queue's own first.

    A task is counted where its jobs failed, a dependency where a policy in force names it, a tenant in all queues.
    """
    sources = {source for source, _ in places}
    found = [one for one in listing(viewer) if one.source in sources and is_open(one, now)]
    tasks = {one.task for one in found if one.task}
    failed = FailureCount.objects.filter(source__in=sources, task__in=tasks).order_by().distinct()
    known = set(failed.values_list("source", "queue", "task")[:_MOST_PLACES]) if tasks else set()
    active = policies.active() if any(one.dependency for one in found) else []
    found.sort(key=lambda one: (KINDS.index(one.kind), one.name))
    by_place = {}
    for source, queue in places:
        dependencies = _find_dependencies(active, source, queue)
        by_place[source, queue] = [
            one
            for one in found
            if one.source == source
            and (
                one.tenant
                or one.queue == queue != ""
                or one.dependency in dependencies
                or (source, queue, one.task) in known
            )
        ]
    return by_place


def _find_dependencies(active: Sequence[Policy], source: str, queue: str) -> set[str | None]:
    """Return the breakers of the policies that decide about some task of a queue."""
    fitting = [one for one in active if matches(one.match.queue, queue) and matches(one.match.source, source)]
    return {one.breaker_name for one in fitting if chosen(fitting, source, queue, one.match.task) is one}


def find_searched(viewer: Viewer, query: language.Query) -> dict[tuple[str, str], int]:
    """Return (source, name) of each holding breaker -> held jobs, if the query has `state:held`; else empty."""
    wanted = language.Value(language.HELD)
    terms = (one for one in language.leaves(query.terms) if isinstance(one, language.Match))
    if not any(one.field == "state" and wanted in one.values for one in terms):
        return {}
    rows = breakers.listing(viewer).rows
    return {(one.source, one.name): count for one in rows if one.document and (count := one.document.on_hold)}


def read(sources: Collection[str], now: datetime) -> HoldsInForce:
    """Return the holds of these sources."""
    pauses = [one for one in Pause.objects.filter(source__in=sources, resumed_at=None) if is_open(one, now)]
    open_ = breakers.open_breakers(ENGINE, sources)
    is_by_policy = open_ or any(one.dependency for one in pauses)
    return HoldsInForce(pauses, open_, policies.active() if is_by_policy else ())


def find_obeyed(found: HoldsInForce, now: datetime) -> HoldsInForce:
    """Return the effective holds: without pauses and breakers whose jobs die.

    A pause counts as ineffective only if a worker does not obey it, or may not obey it.
    """
    known = reach(ENGINE, found.pauses, now)
    doubtful = [one for one in found.pauses if known[one.pk].missing or known[one.pk].unguarded != 0]
    leaky = [one for one in doubtful if _has_died(found, one.source, one.created_at, one)]
    pauses = [one for one in found.pauses if one not in leaky]
    return replace(found, pauses=pauses, breakers=[one for one in found.breakers if not _has_died_open(found, one)])


def _has_died_open(found: HoldsInForce, breaker: BreakerRow) -> bool:
    opened_at = breaker.document.opened_at if breaker.document else None
    return opened_at is not None and _has_died(found, breaker.source, opened_at, breaker)


def _has_died(found: HoldsInForce, source: str, since: datetime, hold: Pause | BreakerRow) -> bool:
    """Return whether a job that should be held has died since workers confirmed the hold."""
    died = Failure.objects.filter(source=source, state=FailureState.DEAD, failed_at__gt=since + CONFIRMED_WITHIN)
    places = died.order_by().values_list("source", "queue", "task", "tenant").distinct()[:_MOST_PLACES]
    return any(hold in (found.find_breaker(*place), found.find_pause(*place)) for place in places)
