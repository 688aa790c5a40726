"""Pauses of queues, tasks, tenants and dependencies: start, resume, and automatic end."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import pauses
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.abilities import system_name
from jobs_admin.db.authorizing import authorize, may_write
from jobs_admin.holds import breakers, pushing
from jobs_admin.models import Pause, Source, Worker
from jobs_admin.models.access import ENGINE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.hold import KINDS

LONGEST = timedelta(days=30)
LONGEST_REASON = 500
AT_ONCE, CAREFUL = "at_once", "careful"  # paces of a resume
PACES = (AT_ONCE, CAREFUL)
OPENS_WITHIN = timedelta(seconds=3)  # workers read that a breaker is open
MOST_ENDED = 200  # number listed, latest first
_CELERY = "celery"


def listing(viewer: Viewer, *, ended: bool = False) -> list[Pause]:
    """Return open pauses, latest first; with `ended`, those that ended, latest first."""
    found = _visible(viewer)
    if ended:
        return list(found.exclude(resumed_at=None).order_by("-resumed_at", "-pk")[:MOST_ENDED])
    return list(found.filter(resumed_at=None).order_by("-created_at", "-pk")[: pauses.MOST * 10])


def get(viewer: Viewer, pk: int) -> Pause:
    found = _visible(viewer).filter(pk=pk).first()
    if found is None:
        raise NotFound("No such pause, or you cannot view its source.")
    return found


def is_open(pause: Pause, now: datetime) -> bool:
    return pause.resumed_at is None and (pause.until is None or now < pause.until)


def may_resume(viewer: Viewer, pause: Pause) -> bool:
    return pause.resumed_at is None and may_write(viewer, OPERATOR, pause.source)


def why_not_pausable(source: str) -> str:
    """Return why no job of this source can be held, as a sentence; "" if some can."""
    configured = config.sources().get(source)
    row = Source.objects.filter(pk=source).first()
    backend = configured.backend if configured else row.backend if row else _CELERY
    if backend != _CELERY:
        return f"{source} cannot be paused here: pauses need guarded Celery workers, and {source} is a source of {system_name(backend)}."
    if not Worker.objects.filter(source=source).exists():
        return (
            f"{source} cannot be paused here: none of its workers has the guard. Add install() to the Celery app first."
        )
    return ""


def pause(
    viewer: Viewer,
    source: str,
    *,
    queue: str = "",
    task: str = "",
    tenant: str = "",
    dependency: str = "",
    reason: str,
    for_s: int | None = None,
    now: datetime | None = None,
) -> Pause:
    """Pause a queue, or on all queues a task, a tenant or a dependency, for `for_s` seconds or until resumed.

    Raises Refused, and NotFound.
    """
    now = now or timezone.now()
    if not isinstance(source, str) or not viewer.may(VIEWER, source):
        raise _invalid("source", "No such source, or you cannot view it.")
    message = "Pausing needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "pause.create", "pause", message=message, field="source")
    place = _place({"queue": queue, "task": task, "tenant": tenant, "dependency": dependency})
    why = " ".join(representable(reason).split()) if isinstance(reason, str) else ""
    if not 1 <= len(why) <= LONGEST_REASON:
        raise _invalid("reason", f"Enter a reason of 1 to {LONGEST_REASON} characters.")
    if for_s is not None and not 1 <= for_s <= LONGEST.total_seconds():
        raise _invalid("for_s", f"The pause must end within {LONGEST.days} days, or be until resumed.")
    if cannot := why_not_pausable(source):
        raise Refused("cannot", f"{cannot} Nothing was changed.", "source")
    try:
        with transaction.atomic():
            # A pause that has expired, but that `watch` has not ended yet, is not a conflict.
            for ended in Pause.objects.filter(source=source, resumed_at=None, until__lte=now, **place):
                _end(ended, now, None)
            if Pause.objects.filter(source=source, resumed_at=None).count() >= pauses.MOST:
                message = f"The limit of {pauses.MOST} pauses of {source} is reached. Resume one first."
                raise Refused("too_many", f"{message} Nothing was changed.")
            until = now + timedelta(seconds=for_s) if for_s is not None else None
            made = Pause.objects.create(
                source=source,
                **place,
                reason=why,
                created_at=now,
                created_by=viewer.name[:150],
                until=until,
            )
            after = {**_audited_place(place), "until": until}
            audit.record(viewer, "pause.create", f"pause:{made.pk}", source=source, reason=why, after=after)
    except IntegrityError:
        name = max(place.values())
        raise Refused(
            "conflict",
            f"{name} is paused already. Resume it first, to change the reason or the end. Nothing was changed.",
        ) from None
    pushing.push_soon()
    return made


def resume(viewer: Viewer, pk: int, *, pace: str = AT_ONCE, now: datetime | None = None) -> Pause:
    """End a pause: its jobs start in all workers, immediately or at the careful pace of their breakers.

    Raises Refused, and NotFound.
    """
    now = now or timezone.now()
    found = get(viewer, pk)
    if pace not in PACES:
        raise _invalid("pace", f"Choose one of {', '.join(PACES)}.")
    message = "Resuming needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, found.source, "pause.resume", f"pause:{pk}", message=message, field="source")
    with transaction.atomic():
        # An expired pause keeps its own end time, whoever records it. Breakers must open before the pause ends.
        delay = OPENS_WITHIN if pace == CAREFUL else timedelta()
        if not _end(found, now + delay, viewer, pace):
            raise Refused("wrong_state", "This pause has already ended. Nothing was changed.")
        if pace == CAREFUL:
            breakers.open_to_release(viewer, found, now)
    pushing.push_soon()
    found.refresh_from_db()
    return found


def step(now: datetime) -> bool:
    """Run a round of `watch`: end expired pauses, and repair the store. Return whether anything changed."""
    ended = False
    for one in Pause.objects.filter(resumed_at=None, until__lte=now).order_by("pk"):
        with transaction.atomic():
            ended |= _end(one, now, None)
    return pushing.push() or ended


def _end(one: Pause, now: datetime, viewer: Viewer | None, pace: str = AT_ONCE) -> bool:
    """End a pause in the caller's transaction. Return False if it has already ended. `viewer`: None for an expired pause."""
    is_over = one.until is not None and one.until <= now
    at = one.until if is_over else now
    by = "" if viewer is None or is_over else viewer.name[:150]
    if not Pause.objects.filter(pk=one.pk, resumed_at=None).update(resumed_at=at, resumed_by=by):
        return False
    act = "pause.resume" if by else "pause.expire"
    actor = viewer if by and viewer else ENGINE
    place = _audited_place({kind: getattr(one, kind) for kind in KINDS})
    before = {**place, "until": one.until, "created_by": one.created_by}
    after = {"pace": pace} if by and pace != AT_ONCE else None
    audit.record(actor, act, f"pause:{one.pk}", source=one.source, reason=one.reason, before=before, after=after)
    return True


def _audited_place(place: dict[str, str]) -> dict[str, str]:
    """Return the place for the audit: always queue and task, and the kind that is paused."""
    return {kind: name for kind, name in place.items() if name or kind in KINDS[:2]}


def _place(given: dict[str, object]) -> dict[str, str]:
    found = {}
    for field, value in given.items():
        name = representable(value).strip() if isinstance(value, str) else ""
        if len(name) > pauses.LONGEST_NAME:
            raise _invalid(field, f"{field} must have at most {pauses.LONGEST_NAME} characters.")
        found[field] = name
    if sum(map(bool, found.values())) != 1:
        raise _invalid("queue", "Give one of queue, task, tenant and dependency.")
    return found


def _visible(viewer: Viewer) -> QuerySet[Pause]:
    sources = viewer.sources()
    return Pause.objects.all() if sources is None else Pause.objects.filter(source__in=sources)


def _invalid(field: str, message: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field)
