"""Rights on a replay, its approval by a second person, and the audit of acts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import list_some, terminal_line
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize, note, refuse, second_person_refusal
from jobs_admin.models import AuditEvent, Failure, FailureCount, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays.target import Target


def must_write(viewer: Viewer, act: str, object: str = "", sources: Sequence[str] = ()) -> None:
    message = "Replaying needs the role operator."
    authorize(viewer, OPERATOR, None, act, object, message=message, noted_at=sources)


def must_act_on_job(viewer: Viewer, scope: Target) -> None:
    """Refuse a single job that the viewer may see but not act on; a search simply excludes such jobs."""
    if not scope.is_one_job:
        return
    source = Failure.objects.filter(pk=scope.selection[0]).values_list("source", flat=True).first()
    if source is not None and not viewer.may(OPERATOR, source):
        message = f"Replaying jobs of {source} needs the role operator on that source."
        object = f"failure:{scope.selection[0]}"
        if viewer.role_on(source):
            refuse(viewer, "replay.draft", object, Refused("forbidden", message), [source])
        # An attempt on a hidden job is recorded for the source's admin and answered as if the job did not exist.
        note(viewer, "replay.draft", object, message, [source])


def must_act(viewer: Viewer, replay: Replay, act: str) -> list[str]:
    """Return the sources of the replay. Raises Refused unless the viewer is an operator of all of them."""
    sources = sources_of(replay)
    must_write(viewer, act, f"replay:{replay.pk}", sources)
    message = f"Replay #{replay.pk} has jobs of {{seen}}, where you are not operator. Nothing was changed."
    authorize(viewer, OPERATOR, sources, act, f"replay:{replay.pk}", message=message)
    return sources


def sources_of(replay: Replay) -> list[str]:
    """Return the sources of all jobs that the start froze.

    The audit of the start names each, and so does that of the draft.
    """
    acts = AuditEvent.objects.filter(object=f"replay:{replay.pk}", allowed=True).exclude(source="")
    for act in ("replay.start", "replay.draft") if replay.state == ReplayState.DRAFT else ("replay.start",):
        if named := set(acts.filter(act=act).values_list("source", flat=True)):
            return sorted(named)
    found: QuerySet[Any] = ReplayItem.objects.filter(replay=replay).order_by()
    return sorted(found.values_list("failure__source", flat=True).distinct())


# For a replay of several sources, fields in each source's row: a reason, a search, groups or numbers may concern
# another source.
_FIELDS_OF_EACH = ("state", "pace")
OF_SEVERAL = (
    "The replay has jobs from several sources. The reason is on its page, and in the entry for admins of every source."
)


def record(
    viewer: Viewer,
    act: str,
    replay: Replay,
    sources: Sequence[str],
    *,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Write one audit row per source, so that the admin of each source sees what was done with its jobs.

    For several sources, a preceding row without a source has all fields; only admins of every source can read it. The
    others have only who did what and when, the state and the pace.
    """
    object = f"replay:{replay.pk}"
    if len(sources) < 2:
        audit.record(viewer, act, object, source="".join(sources), reason=reason, before=before, after=after)
        return
    each = [
        audit.Entry(object, source, OF_SEVERAL if reason else "", _values_of_each(before), _values_of_each(after))
        for source in sources
    ]
    audit.record_all(viewer, act, [audit.Entry(object, "", reason, before, after), *each])


def _values_of_each(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {name: value for name, value in (values or {}).items() if name in _FIELDS_OF_EACH} or None


def wrong_state(replay: Replay, done: str) -> Refused:
    """Return the refusal of an act that this state does not allow. `done`: the act as a participle: paused, started."""
    state = Replay.objects.values_list("state", flat=True).filter(pk=replay.pk).first() or "discarded"
    state = state.replace("_", " ")
    return Refused("wrong_state", f"Replay #{replay.pk} is {state}, so it cannot be {done}. Nothing was changed.")


_NAMED = 3  # tasks


def approval_reason(ready: QuerySet[Failure], count: int) -> str:
    """Return why a second person has to approve a replay of these `count` jobs; empty if no approval is needed."""
    most = config.approve_above()
    if most is not None and count > most:
        return f"{count:,} jobs: above {most:,}, another operator must approve the replay (REDRIVE_APPROVE_ABOVE)."
    if dangerous := dangerous_tasks(ready) if count else []:
        names = list_some([terminal_line(task, 60) for task in dangerous], _NAMED)
        tasks = "a task" if len(dangerous) == 1 else "tasks"
        return f"It runs {tasks} that another operator must approve (REDRIVE_DANGEROUS_TASKS): {names}."[:255]
    return ""


def dangerous_tasks(ready: QuerySet[Failure]) -> list[str]:
    """Return the tasks of these jobs that REDRIVE_DANGEROUS_TASKS names."""
    if not config.dangerous_tasks():
        return []
    # Task names are few. The index of tasks tells which of them these jobs have.
    known = FailureCount.objects.filter(state="dead", count__gt=0).values_list("task", flat=True).distinct()
    dangerous = sorted(task for task in known if config.is_dangerous(task))
    return [task for task in dangerous if ready.filter(task=task).exists()]


def must_approve(viewer: Viewer, replay: Replay) -> list[str]:
    """Return the sources of the replay. Raises Refused unless the viewer can be the second person."""
    sources = must_act(viewer, replay, "replay.approve")
    if why := approver_refusal(viewer, replay, sources):
        refused = Refused("forbidden", f"{why} Nothing was changed.")
        refuse(viewer, "replay.approve", f"replay:{replay.pk}", refused, sources)
    return sources


def approver_refusal(viewer: Viewer, replay: Replay, sources: Sequence[str]) -> str:
    """Return why this operator of all its `sources` cannot be the second person; empty if they can.

    A person and that person's tokens count as one. A token without an owner and a terminal identify no person: whoever
    uses them may also have a login. So they are never the second person for a known starter, and a known person is not
    automatically the second person for them.
    """
    return second_person_refusal(viewer, f"replay #{replay.pk}", replay.actor, _starters(replay), sources)


def needs_admin(replay: Replay) -> bool:
    """Return whether, of persons who log in, only an admin can approve it, because the starter is unknown."""
    return any(user is None for _, user in _starters(replay))


def _starters(replay: Replay) -> set[tuple[str, int | None]]:
    """Return (name, user) of the persons who drafted and started it."""
    begun = AuditEvent.objects.filter(object=f"replay:{replay.pk}", act="replay.start", allowed=True)
    return {(replay.actor, replay.created_by_id), *begun.values_list("actor", "user_id")}
