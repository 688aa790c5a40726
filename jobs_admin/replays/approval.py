"""When a replay needs a second person, and who that can be."""

from __future__ import annotations

from django.db.models import QuerySet

from jobs_admin import config
from jobs_admin.core.text import representable, shown
from jobs_admin.models import AuditEvent, Failure, FailureCount, Replay
from jobs_admin.models.access import Viewer

_NAMED = 3  # tasks


def why_needed(ready: QuerySet[Failure], count: int) -> str:
    """Why somebody else has to approve a replay of these `count` jobs; empty where nobody has to."""
    most = config.approve_above()
    if most is not None and count > most:
        return f"It has {count:,} jobs; above {most:,} a second person approves (REDRIVE_APPROVE_ABOVE)."
    if dangerous := _dangerous_tasks(ready) if count else []:
        names = ", ".join(shown(task, 60) for task in dangerous[:_NAMED])
        more = f" and {len(dangerous) - _NAMED:,} more" if len(dangerous) > _NAMED else ""
        tasks = "a task" if len(dangerous) == 1 else "tasks"
        return f"It runs {tasks} that a second person approves (REDRIVE_DANGEROUS_TASKS): {names}{more}."[:255]
    return ""


def _dangerous_tasks(ready: QuerySet[Failure]) -> list[str]:
    if not config.names_dangerous_tasks():
        return []
    # The names that were ever seen are few; which of them are among these, the index of tasks knows.
    known = FailureCount.objects.filter(state="dead", count__gt=0).values_list("task", flat=True).distinct()
    dangerous = sorted(task for task in known if config.is_dangerous(task))
    return [task for task in dangerous if ready.filter(task=task).exists()]


def has_hand_in(viewer: Viewer, replay: Replay) -> bool:
    """Whether the viewer drafted or started it, and so cannot be the second person.

    A token is nobody in particular: it is another than every user, and than every other token.
    """
    name = representable(viewer.name)[:150]
    hands = {(replay.actor, replay.created_by_id)}
    begun = AuditEvent.objects.filter(object=f"replay:{replay.pk}", act="replay.start", allowed=True)
    hands |= set(begun.values_list("actor", "user_id"))
    return any(name == actor or (viewer.user_id is not None and viewer.user_id == user) for actor, user in hands)
