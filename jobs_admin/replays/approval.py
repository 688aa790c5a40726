"""Approval: when a replay needs a second person, and who can be that person."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from jobs_admin import config
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.models import AuditEvent, Failure, FailureCount, Replay
from jobs_admin.models.access import ADMIN, Viewer

_NAMED = 3  # tasks


def approval_reason(ready: QuerySet[Failure], count: int) -> str:
    """Return the reason why a second person has to approve a replay of these `count` jobs; empty if none has to."""
    most = config.approve_above()
    if most is not None and count > most:
        return f"{count:,} jobs: above {most:,}, another operator must approve the replay (REDRIVE_APPROVE_ABOVE)."
    if dangerous := _dangerous_tasks(ready) if count else []:
        names = ", ".join(terminal_line(task, 60) for task in dangerous[:_NAMED])
        more = f" and {len(dangerous) - _NAMED:,} more" if len(dangerous) > _NAMED else ""
        tasks = "a task" if len(dangerous) == 1 else "tasks"
        return f"It runs {tasks} that another operator must approve (REDRIVE_DANGEROUS_TASKS): {names}{more}."[:255]
    return ""


def _dangerous_tasks(ready: QuerySet[Failure]) -> list[str]:
    if not config.names_dangerous_tasks():
        return []
    # The names that were ever seen are few; which of them are among these, the index of tasks knows.
    known = FailureCount.objects.filter(state="dead", count__gt=0).values_list("task", flat=True).distinct()
    dangerous = sorted(task for task in known if config.is_dangerous(task))
    return [task for task in dangerous if ready.filter(task=task).exists()]


def approver_refusal(viewer: Viewer, replay: Replay, sources: Sequence[str]) -> str:
    """Return why this operator of all its `sources` cannot be the second person; empty for one who can.

    A person and the tokens that belong to them are one. A token without an owner and a terminal identify no person: the
    same person may use them and a login. So they are never a second person to a known one, and being known alone does
    not make someone a second person to them.
    """
    name, person, hands = representable(viewer.name)[:150], viewer.person_id, _starters(replay)
    if any(name == actor or (person is not None and person == user) for actor, user in hands):
        return f"You started replay #{replay.pk} yourself, so another operator has to approve it."
    if person is None and any(user is not None for _, user in hands):
        return (
            f"Replay #{replay.pk} was started by {replay.actor}, who may own this token. "
            "Another operator must approve it, logged in or with their own token."
        )
    if person is not None and any(user is None for _, user in hands) and not _is_admin(viewer, sources):
        return (
            f"Replay #{replay.pk} was started by {replay.actor}, whose identity is unknown. "
            "An admin of all its sources must approve it, or another token without an owner."
        )
    return ""


def needs_admin(replay: Replay) -> bool:
    """Return whether, of those who log in, only an admin can approve it: the person who started it is unknown."""
    return any(user is None for _, user in _starters(replay))


def _starters(replay: Replay) -> set[tuple[str, int | None]]:
    """Return (name, user) of who drafted and who started it."""
    begun = AuditEvent.objects.filter(object=f"replay:{replay.pk}", act="replay.start", allowed=True)
    return {(replay.actor, replay.created_by_id), *begun.values_list("actor", "user_id")}


def _is_admin(viewer: Viewer, sources: Sequence[str]) -> bool:
    return all(viewer.may(ADMIN, source) for source in sources)
