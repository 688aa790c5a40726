"""The calls for pauses and breakers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Schema, Status
from pydantic import Field, StrictInt

from dashboard.holds import breaker_page
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, Body, Number, Text, api
from jobs_admin import holds
from jobs_admin.holds import breaker_history, breakers
from jobs_admin.holds.breakers import BreakerRow
from jobs_admin.models import Pause
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.hold import KINDS


class MissingWorker(Schema):
    worker: str
    reason: str


class PauseItem(Schema):
    """`until`: null until resumed. `workers`: live workers in which the pause is in force; null once it has ended."""

    id: int
    source: str
    queue: str
    task: str
    tenant: str
    dependency: str
    reason: str
    created_at: datetime
    created_by: str
    until: datetime | None
    resumed_at: datetime | None
    resumed_by: str
    may_resume: bool
    workers: PauseWorkers | None


class PauseWorkers(Schema):
    """Null where the store does not answer."""

    in_force: int | None
    total: int | None
    unguarded: int | None
    missing: list[MissingWorker]


PauseItem.model_rebuild()


def pauses(viewer: Viewer, found: Iterable[Pause]) -> list[dict[str, Any]]:
    found = list(found)
    known = holds.reach(viewer, [one for one in found if one.resumed_at is None])
    return [_pause(viewer, one, known.get(one.pk)) for one in found]


def pause(viewer: Viewer, one: Pause) -> dict[str, Any]:
    return pauses(viewer, [one])[0]


def _pause(viewer: Viewer, one: Pause, reach: holds.Reach | None) -> dict[str, Any]:
    names = (
        "source", *KINDS, "reason", "created_at", "created_by", "until", "resumed_at", "resumed_by",
    )  # fmt: skip
    workers = None
    if reach is not None:
        counts = {"in_force": reach.obeying, "total": reach.workers, "unguarded": reach.unguarded}
        workers = {
            **(counts if reach.is_known else dict.fromkeys(counts)),
            "missing": [{"worker": name, "reason": why} for name, why in reach.missing],
        }
    values = {name: getattr(one, name) for name in names}
    return {"id": one.pk, **values, "may_resume": holds.may_resume(viewer, one), "workers": workers}


class NewPause(Body):
    """Set one of `queue`, `task`, `tenant` and `dependency` (the name of its breaker). `for_s`: seconds; null until resumed."""

    source: Text = Field(max_length=63)
    queue: Text = Field("", max_length=255)
    task: Text = Field("", max_length=255)
    tenant: Text = Field("", max_length=255)
    dependency: Text = Field("", max_length=255)
    reason: Text = Field(max_length=500)
    for_s: StrictInt | None = Field(None, ge=1, le=30 * 86_400)


class ResumePause(Body):
    """`careful`: the breakers of these jobs hold and release them."""

    pace: Literal["at_once", "careful"] = "at_once"


@api.get("/pauses", response={200: shapes.Listed[PauseItem], **REFUSALS}, tags=["pauses"])
@needs(VIEWER)
def list_pauses(request: HttpRequest, ended: bool = False) -> Any:
    """List open pauses, latest first; with `ended`, the latest 200 that ended."""
    found = pauses(request.auth, holds.listing(request.auth, ended=ended))
    return shapes.listed(found, lambda one: one, next=None, count=len(found))


@api.post("/pauses", response={201: PauseItem, **REFUSALS}, tags=["pauses"])
@needs(OPERATOR)
def create_pause(request: HttpRequest, body: NewPause) -> Any:
    """Pause a queue, task, tenant or dependency: guarded workers stop starting its jobs within two seconds. 409 if it is already paused."""
    made = holds.pause(
        request.auth,
        body.source,
        queue=body.queue,
        task=body.task,
        tenant=body.tenant,
        dependency=body.dependency,
        reason=body.reason,
        for_s=body.for_s,
    )
    return Status(201, pause(request.auth, made))


@api.post("/pauses/{pause_id}/resume", response={200: PauseItem, **REFUSALS}, tags=["pauses"])
@needs(OPERATOR)
def resume_pause(request: HttpRequest, pause_id: Number, body: ResumePause | None = None) -> Any:
    """End the pause. Waiting jobs start as fast as workers take them, or at the careful pace of its breakers."""
    pace = body.pace if body else holds.AT_ONCE
    return pause(request.auth, holds.resume(request.auth, pause_id, pace=pace))


class BreakerEvidence(Schema):
    """Attempts that opened the breaker. Shares are 0 to 1."""

    failures: int
    attempts: int
    share: float | None
    usual_share: float | None
    kinds: dict[str, int]
    first_error: str


class BreakerHost(Schema):
    """A host that starts no jobs of the breaker, because only attempts on this host fail."""

    host: str
    since: datetime | None
    failures: int
    attempts: int
    kinds: dict[str, int]
    first_error: str


class BreakerForced(Schema):
    """`until`: null until changed."""

    state: str
    until: datetime | None
    by: str
    reason: str


class BreakerItem(Schema):
    """`mode`: enforce, observe, or off where no policy in force has it. `state`: closed, open, half_open. `held`: null while
    no worker has reported it. `would_hold`: starts since it opened, in mode observe. `tenants`, `tasks`: those that it is open for;
    both empty: all. `awaits_approval`: in the answer to a force, why another operator must confirm it."""

    source: str
    name: str
    dependency: str | None
    policies: list[str]
    mode: str
    state: str
    since: datetime | None
    held: int | None
    would_hold: int | None
    tenants: list[str]
    tasks: list[str]
    hosts: list[BreakerHost]
    rate: float | None
    next_probe_at: datetime | None
    forced: BreakerForced | None
    evidence: BreakerEvidence | None
    sentence: str
    may_force: bool
    awaits_approval: str


class BreakerTransition(Schema):
    at: datetime
    from_state: str
    to_state: str
    why: str
    held: int | None


class BreakerDetail(BreakerItem):
    """`history`: the latest 200 transitions, latest first."""

    history: list[BreakerTransition]


def breaker(viewer: Viewer, one: BreakerRow, now: datetime) -> dict[str, Any]:
    document = one.document
    evidence = document.evidence if document else None
    forced = document.forced if document else None
    return {
        "source": one.source,
        "name": one.name,
        "dependency": one.name if one.is_dependency else None,
        "policies": [policy.name for policy in one.policies],
        "mode": one.mode,
        "state": one.state,
        "since": document.since if document else None,
        "held": document.on_hold if document else None,
        "would_hold": document.would_hold if document and one.is_observed else None,
        "tenants": list(document.tenants) if document else [],
        "tasks": list(document.tasks) if document else [],
        "hosts": [
            {
                "host": it.host,
                "since": it.since,
                "failures": it.evidence.failures,
                "attempts": it.evidence.attempts,
                "kinds": dict(it.evidence.kinds),
                "first_error": it.evidence.first_error,
            }
            for it in (document.hosts if document else ())
        ],
        "rate": document.rate if document else None,
        "next_probe_at": document.next_probe_at if document and not one.is_closed else None,
        "forced": forced and {"state": forced.as_, "until": forced.until, "by": forced.by, "reason": forced.reason},
        "evidence": evidence
        and {
            "failures": evidence.failures,
            "attempts": evidence.attempts,
            "share": evidence.share,
            "usual_share": evidence.usual,
            "kinds": dict(evidence.kinds),
            "first_error": evidence.first_error,
        },
        "sentence": breaker_page.sentence(one, now),
        "may_force": breakers.may_force(viewer, one),
        "awaits_approval": one.awaits,
    }


def detail(viewer: Viewer, one: BreakerRow, now: datetime) -> dict[str, Any]:
    names = ("at", "from_state", "to_state", "why")
    history = breaker_history.events(viewer, one.source, one.name)
    return breaker(viewer, one, now) | {
        "history": [{name: getattr(event, name) for name in names} | {"held": event.on_hold} for event in history]
    }


class ForcedState(Body):
    """`as`: open, closed or auto. `for_s`: seconds; null until changed. Automatic needs neither reason nor end."""

    as_: Text = Field(alias="as", max_length=10)
    reason: Text = Field("", max_length=500)
    for_s: StrictInt | None = Field(None, ge=1, le=30 * 86_400)
    source: Text = Field("", max_length=63)


@api.get("/breakers", response={200: shapes.Listed[BreakerItem], **REFUSALS}, tags=["breakers"])
@needs(VIEWER)
def list_breakers(request: HttpRequest) -> Any:
    """Return the breakers of policies in force and those in the store, the ones that hold jobs first."""
    now = timezone.now()
    found = [breaker(request.auth, one, now) for one in breakers.listing(request.auth).rows]
    return shapes.listed(found, lambda one: one, next=None, count=len(found))


@api.get("/breakers/{name}", response={200: BreakerDetail, **REFUSALS}, tags=["breakers"])
@needs(VIEWER)
def get_breaker(request: HttpRequest, name: Text, source: Text = "") -> Any:
    """Return a breaker with its history. `source` where several sources have one of this name."""
    return detail(request.auth, breakers.find(request.auth, name, source), timezone.now())


@api.post("/breakers/{name}/force", response={200: BreakerItem, **REFUSALS}, tags=["breakers"])
@needs(OPERATOR)
def force_breaker(request: HttpRequest, name: Text, body: ForcedState) -> Any:
    """Force a breaker open (jobs are held) or closed (jobs start), or return it to automatic."""
    viewer, now = request.auth, timezone.now()
    found = breakers.find(viewer, name, body.source)
    forced = breakers.force(viewer, found.source, name, body.as_, reason=body.reason, for_s=body.for_s, now=now)
    return breaker(viewer, forced, now)
