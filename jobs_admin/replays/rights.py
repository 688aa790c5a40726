"""Rights on a replay, and the audit of acts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import authorize, note, refuse
from jobs_admin.models import AuditEvent, Failure, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays.target import Target


def must_write(viewer: Viewer, act: str, object: str = "", sources: Sequence[str] = ()) -> None:
    message = "Replaying needs the role operator."
    authorize(viewer, OPERATOR, None, act, object, message=message, noted_at=sources)


def must_act_on_job(viewer: Viewer, scope: Target) -> None:
    """Refuse a single job that the viewer may only see; in a search, it is simply excluded."""
    if not scope.is_one_job:
        return
    source = Failure.objects.filter(pk=scope.selection[0]).values_list("source", flat=True).first()
    if source is not None and not viewer.may(OPERATOR, source):
        message = f"Replaying jobs of {source} needs the role operator on that source."
        object = f"failure:{scope.selection[0]}"
        if viewer.role_on(source):
            refuse(viewer, "replay.draft", object, Refused("forbidden", message), [source])
        # What the viewer may not even see is written down for its admin, and answered like what is not there.
        note(viewer, "replay.draft", object, message, [source])


def must_act(viewer: Viewer, replay: Replay, act: str) -> list[str]:
    """Return the sources of the replay. Raises Refused unless the viewer is operator of every one."""
    sources = sources_of(replay)
    must_write(viewer, act, f"replay:{replay.pk}", sources)
    message = f"Replay #{replay.pk} has jobs of {{seen}}, where you are not operator. Nothing was changed."
    authorize(viewer, OPERATOR, sources, act, f"replay:{replay.pk}", message=message)
    return sources


def sources_of(replay: Replay) -> list[str]:
    """Return the sources of all jobs that its start froze: the audit of the start names each, and that of its draft
    before.
    """
    acts = AuditEvent.objects.filter(object=f"replay:{replay.pk}", allowed=True).exclude(source="")
    for act in ("replay.start", "replay.draft") if replay.state == ReplayState.DRAFT else ("replay.start",):
        if named := set(acts.filter(act=act).values_list("source", flat=True)):
            return sorted(named)
    found: QuerySet[Any] = ReplayItem.objects.filter(replay=replay).order_by()
    return sorted(found.values_list("failure__source", flat=True).distinct())


# What the row of each source has of a replay of several: a reason, a search, groups and numbers may be about another's jobs.
_FIELDS_OF_EACH = ("state", "pace")
OF_SEVERAL = "Its jobs are of several sources. The entry for admins of every source has the reason; the replay's page has it too."


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
    """Write one row for each source, so that the admin of one sees what was done with its jobs.

    Of several sources, a row before these, of no source, has all: only admins of every source read it. Theirs say who did what,
    when, and to which state and pace.
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
