"""Setting failures aside, and taking that back. Nothing is deleted, and nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from jobs_admin import audit, config, failures
from jobs_admin.core import query as language
from jobs_admin.core.text import representable
from jobs_admin.models import Failure, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM

MOST_SELECTED = 10_000
_AT_ONCE = 1_000  # rows of one statement: on SQLite nobody else writes meanwhile
_LISTED = 1_000  # ids in one audit row

# What may be discarded. What runs or was sent is not ours to end; what is recovered needs no discarding.
DISCARDABLE = (FailureState.DEAD, FailureState.QUARANTINED)
_DONE = {FailureState.DISCARDED: "discarded", FailureState.DEAD: "restored"}


class TriageRefused(Exception):
    """Nothing was changed. Codes: forbidden, read_only, bad_scope, too_many, reason_required."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Acted:
    """What was really changed: hand `ids` to the opposite act to undo it."""

    count: int
    ids: list[int]


def discard(viewer: Viewer, *, selection: Sequence[int] = (), query: str = "", reason: str = "") -> Acted:
    """Set dead (or quarantined) failures aside; those in an open replay stay. More than one needs a reason.

    Raises TriageRefused.
    """
    return _act(viewer, "failure.discard", selection, query, reason, DISCARDABLE, FailureState.DISCARDED)


def restore(viewer: Viewer, *, selection: Sequence[int], reason: str = "") -> Acted:
    """Discarded failures are dead again. Raises TriageRefused."""
    if not selection:
        raise TriageRefused("bad_scope", "Choose the failures to restore. Nothing was changed.", field="selection")
    return _act(viewer, "failure.restore", selection, "", reason, (FailureState.DISCARDED,), FailureState.DEAD)


def _act(
    viewer: Viewer,
    act: str,
    selection: Sequence[int],
    query: str,
    reason: str,
    before: Sequence[FailureState],
    after: FailureState,
) -> Acted:
    _allowed(viewer, act, selection)
    reason = representable(reason.strip())[:500]
    scope = _scope(viewer, act, selection, query)
    ids = list(scope.filter(state__in=before).order_by("pk").values_list("pk", flat=True))
    if after == FailureState.DISCARDED and len(ids) > 1 and not reason:
        raise TriageRefused("reason_required", "Say why: discarding more than one job needs a reason.", field="reason")
    done: list[int] = []
    for start in range(0, len(ids), _AT_ONCE):
        done += _move(viewer, act, ids[start : start + _AT_ONCE], reason, before, after)
    return Acted(len(done), done)


def _move(
    viewer: Viewer,
    act: str,
    ids: list[int],
    reason: str,
    before: Sequence[FailureState],
    after: FailureState,
) -> list[int]:
    """Those of `ids` that were still in `before` and in no open replay: each is moved once, by whoever is first."""
    free = ~Exists(ReplayItem.objects.filter(failure=OuterRef("pk"), state__in=OPEN_ITEM))
    with transaction.atomic():
        moving = Failure.objects.filter(free, pk__in=ids, state__in=before)
        # Locked where the database can, so that the ids are those of the rows that the update then changes.
        rows = list(moving.select_for_update().order_by("pk").values_list("pk", "source", "state"))
        if not rows:
            return []
        moved = [pk for pk, _, _ in rows]
        changed = Failure.objects.filter(pk__in=moved, state__in=before).update(
            state=after, reason=f"{_DONE[after]} by {representable(viewer.name)}"[:200]
        )
        if changed != len(moved):
            raise RuntimeError(
                f"{act}: {changed} of {len(moved)} locked rows changed; rolled back, nothing was changed."
            )
        # A row for each source, so that the admin of one sees what was done with its jobs.
        for name in sorted({source for _, source, _ in rows}):
            theirs = [pk for pk, source, _ in rows if source == name]
            audit.record(
                viewer,
                act,
                f"failure:{theirs[0]}" if len(theirs) == 1 else f"failures:{len(theirs)}",
                source=name,
                reason=reason,
                before={"states": sorted({state for _, source, state in rows if source == name})},
                after={"state": after, "count": len(theirs), "ids": theirs[:_LISTED]},
            )
    return moved


def _scope(viewer: Viewer, act: str, selection: Sequence[int], query: str) -> QuerySet[Failure]:
    if selection:
        chosen = _chosen(selection)
        sources = _sources(chosen)
        if sources and not any(viewer.may(OPERATOR, source) for source in sources):
            # What the viewer may not even see is written down for its admin, and answered like what is not there.
            known = [source for source in sources if viewer.role_on(source)]
            message = f"You are not operator of {', '.join(known) or 'its source'}. Nothing was changed."
            _note(viewer, act, message, sources)
            if known:
                raise TriageRefused("forbidden", message)
        allowed = viewer.sources(OPERATOR)
        return chosen if allowed is None else chosen.filter(source__in=allowed)
    now = timezone.now()
    read = language.parse(query, now)
    if read.is_cut:
        raise TriageRefused(
            "bad_scope", "The search was cut short, so it would match more than you asked.", field="query"
        )
    return failures.scope(viewer, read, role=OPERATOR)


def _chosen(selection: Sequence[int]) -> QuerySet[Failure]:
    ids = {int(pk) for pk in selection if 0 < int(pk) < 2**63}
    if len(ids) > MOST_SELECTED:
        raise TriageRefused("too_many", f"At most {MOST_SELECTED:,} failures can be chosen by hand.", field="selection")
    return Failure.objects.filter(pk__in=ids)


def _sources(chosen: QuerySet[Failure]) -> list[str]:
    return sorted(chosen.order_by().values_list("source", flat=True).distinct())


def _allowed(viewer: Viewer, act: str, selection: Sequence[int]) -> None:
    if config.is_read_only():
        why, code = "Redrive is read-only here (REDRIVE_READ_ONLY). Nothing was changed.", "read_only"
    elif not viewer.may_anywhere(OPERATOR):
        why, code = "You may look, not change: that needs the role operator.", "forbidden"
    else:
        return
    _refuse(viewer, act, why, _sources(_chosen(selection)) if selection else [], code)


def _refuse(viewer: Viewer, act: str, message: str, sources: Sequence[str], code: str = "forbidden") -> None:
    _note(viewer, act, message, sources)
    raise TriageRefused(code, message)


def _note(viewer: Viewer, act: str, message: str, sources: Sequence[str]) -> None:
    with transaction.atomic():
        for source in sources or [""]:
            audit.record(viewer, act, source=source, reason=message, allowed=False)
