"""Pauses of queues and tasks: pause, resume, and the end at a time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import pauses
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.abilities import system_name
from jobs_admin.db.authorizing import authorize, may_write
from jobs_admin.holds import pushing
from jobs_admin.models import Pause, Source, Worker
from jobs_admin.models.access import ENGINE, OPERATOR, VIEWER, Viewer

LONGEST = timedelta(days=30)
LONGEST_REASON = 500
MOST_ENDED = 200  # the latest, that are listed
_CELERY = "celery"


def listing(viewer: Viewer, *, ended: bool = False) -> list[Pause]:
    """Return open pauses, latest first; with `ended` those that ended, latest first."""
    found = _visible(viewer)
    if ended:
        return list(found.exclude(resumed_at=None).order_by("-resumed_at", "-pk")[:MOST_ENDED])
    return list(found.filter(resumed_at=None).order_by("-created_at", "-pk")[: pauses.MOST * 10])


def pauses_of(viewer: Viewer, source: str, queue: str, tasks: Iterable[str] = ()) -> list[Pause]:
    """Return the open pauses of a queue, and of these tasks."""
    which = Q(queue=queue) & ~Q(queue="") | Q(task__in=list(tasks)) & ~Q(task="")
    return list(_visible(viewer).filter(which, source=source, resumed_at=None).order_by("-queue", "task"))


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
    reason: str,
    for_s: int | None = None,
    now: datetime | None = None,
) -> Pause:
    """Pause a queue, or a task on all queues, for `for_s` seconds or until resumed. Raises Refused, and NotFound."""
    now = now or timezone.now()
    if not isinstance(source, str) or not viewer.may(VIEWER, source):
        raise _invalid("source", "No such source, or you cannot view it.")
    message = "Pausing needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source, "pause.create", "pause", message=message, field="source")
    queue, task = _place(queue, task)
    why = " ".join(representable(reason).split()) if isinstance(reason, str) else ""
    if not 1 <= len(why) <= LONGEST_REASON:
        raise _invalid("reason", f"Enter a reason of 1 to {LONGEST_REASON} characters.")
    if for_s is not None and not 1 <= for_s <= LONGEST.total_seconds():
        raise _invalid("for_s", f"The pause must end within {LONGEST.days} days, or be until resumed.")
    if cannot := why_not_pausable(source):
        raise Refused("cannot", f"{cannot} Nothing was changed.", "source")
    try:
        with transaction.atomic():
            # One that has ended by its time, which `watch` has not recorded yet, is no conflict.
            for ended in Pause.objects.filter(source=source, queue=queue, task=task, resumed_at=None, until__lte=now):
                _end(ended, now, None)
            if Pause.objects.filter(source=source, resumed_at=None).count() >= pauses.MOST:
                message = f"The limit of {pauses.MOST} pauses of {source} is reached. Resume one first."
                raise Refused("too_many", f"{message} Nothing was changed.")
            until = now + timedelta(seconds=for_s) if for_s is not None else None
            made = Pause.objects.create(
                source=source,
                queue=queue,
                task=task,
                reason=why,
                created_at=now,
                created_by=viewer.name[:150],
                until=until,
            )
            after = {"queue": queue, "task": task, "until": until}
            audit.record(viewer, "pause.create", f"pause:{made.pk}", source=source, reason=why, after=after)
    except IntegrityError:
        name = queue or task
        raise Refused(
            "conflict",
            f"{name} is paused already. Resume it first, to change the reason or the end. Nothing was changed.",
        ) from None
    pushing.push_soon()
    return made


def resume(viewer: Viewer, pk: int, *, now: datetime | None = None) -> Pause:
    """End a pause: its jobs start again, in all workers at once. Raises Refused, and NotFound."""
    now = now or timezone.now()
    found = get(viewer, pk)
    message = "Resuming needs the role {role} on {where}. Nothing was changed."
    authorize(viewer, OPERATOR, found.source, "pause.resume", f"pause:{pk}", message=message, field="source")
    with transaction.atomic():
        # One that has run out meanwhile has ended at its time, whoever writes that down.
        if not _end(found, now, viewer):
            raise Refused("wrong_state", "This pause has already ended. Nothing was changed.")
    pushing.push_soon()
    found.refresh_from_db()
    return found


def step(now: datetime) -> bool:
    """One round of `watch`: end each pause whose time has come, and repair the store. Return whether there was something to do."""
    ended = False
    for one in Pause.objects.filter(resumed_at=None, until__lte=now).order_by("pk"):
        with transaction.atomic():
            ended |= _end(one, now, None)
    return pushing.push() or ended


def _end(one: Pause, now: datetime, viewer: Viewer | None) -> bool:
    """In the caller's transaction. `viewer`: None for the time that has come."""
    is_over = one.until is not None and one.until <= now
    at = one.until if is_over else now
    by = "" if viewer is None or is_over else viewer.name[:150]
    if not Pause.objects.filter(pk=one.pk, resumed_at=None).update(resumed_at=at, resumed_by=by):
        return False
    act = "pause.resume" if by else "pause.expire"
    actor = viewer if by and viewer else ENGINE
    before = {"queue": one.queue, "task": one.task, "until": one.until, "created_by": one.created_by}
    audit.record(actor, act, f"pause:{one.pk}", source=one.source, reason=one.reason, before=before)
    return True


def _place(queue: object, task: object) -> tuple[str, str]:
    names = []
    for field, value in (("queue", queue), ("task", task)):
        name = representable(value).strip() if isinstance(value, str) else ""
        if len(name) > pauses.LONGEST_NAME:
            raise _invalid(field, f"{field} must have at most {pauses.LONGEST_NAME} characters.")
        names.append(name)
    if bool(names[0]) == bool(names[1]):
        raise _invalid("queue", "Give either a queue or a task.")
    return names[0], names[1]


def _visible(viewer: Viewer) -> QuerySet[Pause]:
    sources = viewer.sources()
    return Pause.objects.all() if sources is None else Pause.objects.filter(source__in=sources)


def _invalid(field: str, message: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field)
