"""Writing down that retries are to wait otherwise, and that this is to be taken back. Nothing is changed here yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db import audit
from jobs_admin.models import Reschedule
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.reschedule import RescheduleState
from jobs_admin.retries.rescheduling import retry_selection
from jobs_admin.retries.rescheduling.previewing import parse_change
from jobs_admin.retries.rescheduling.retry_selection import ACT

_LISTED_FOR = timedelta(days=90)
_LAST = 2**63 - 1  # also what the part that is being written now will have
_BEFORE = "This change was already undone. Nothing was changed."


def plan(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    change: dict[str, Any],
    reason: str = "",
    highest: int | None = None,
    now: datetime | None = None,
) -> Reschedule:
    """`watch` carries it out within seconds. `highest` is that of the preview: what came since is not in it.

    Raises Refused.
    """
    retry_selection.allow(viewer)
    now = now or timezone.now()
    what, pinned = parse_change(change, now), "" if selection else retry_selection.pin_query(query, now)
    rows = retry_selection.find_waiting(viewer, pinned, selection)
    source = retry_selection.source_of(viewer, rows)
    rows = rows.filter(source=source)
    if highest is not None:
        rows = rows.filter(pk__lte=highest)
    latest = rows.aggregate(highest=Max("pk"))["highest"] or 0
    matched = rows.count()
    reason = representable(reason.strip())[:500]
    if matched > 1 and not reason:
        raise Refused("reason_required", "Changing more than one job needs a reason.", field="reason")
    values = {"query": pinned, "selection": sorted(set(selection)), "scope_max_id": latest, "change": what.document()}
    with transaction.atomic():
        planned = _write(viewer, source, reason, now, below=latest + 1, matched=matched, **values)
        audit.record(
            viewer, ACT, f"reschedule:{planned.pk}", source=source, reason=reason,
            after={"query": pinned, "selection": len(values["selection"]), "matched": matched, "change": planned.change},
        )  # fmt: skip
    return planned


def undo(viewer: Viewer, planned: Reschedule, *, reason: str = "", now: datetime | None = None) -> Reschedule:
    """Restore the former waits of jobs that still wait as it left them. Raises Refused."""
    retry_selection.allow(viewer, planned.source)
    now = now or timezone.now()
    if planned.undo_of_id is not None or not planned.changed:
        raise Refused("wrong_state", "There is nothing to undo. Nothing was changed.")
    with transaction.atomic():
        # An act that is under way changes nothing more once it is to be taken back.
        Reschedule.objects.filter(pk=planned.pk, state=RescheduleState.PLANNED).update(
            state=RescheduleState.STOPPED, ended_at=now, why="The change was undone."
        )
        if Reschedule.objects.filter(undo_of=planned).exists():
            raise Refused("wrong_state", _BEFORE)
        try:
            back = _write(
                viewer, planned.source, representable(reason.strip())[:500], now, query=planned.query, selection=[],
                scope_max_id=planned.scope_max_id, change={}, undo_of=planned, below=_LAST, matched=planned.changed,
            )  # fmt: skip
        except IntegrityError as error:  # each act has one undo: another was written in this moment
            raise Refused("wrong_state", _BEFORE) from error
        audit.record(
            viewer, f"{ACT}.undo", f"reschedule:{planned.pk}", source=planned.source, reason=back.reason,
            after={"by": f"reschedule:{back.pk}", "matched": back.matched},
        )  # fmt: skip
    return back


def _write(viewer: Viewer, source: str, reason: str, now: datetime, **values: Any) -> Reschedule:
    old = Reschedule.objects.filter(created_at__lt=now - _LISTED_FOR).exclude(state=RescheduleState.PLANNED)
    Reschedule.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:20])).delete()
    name = representable(viewer.name)[:150]
    person = viewer.person_id
    return Reschedule.objects.create(
        source=source, reason=reason, actor=name, created_by_id=person, created_at=now, **values
    )


@dataclass(frozen=True, slots=True)
class Listed:
    rows: list[Reschedule]
    next: str | None  # `after` of the page that follows; None on the last
    count: int


def listing(viewer: Viewer, *, after: str | None = None, limit: int = 50) -> Listed:
    """Return a page, latest first, of the sources that the viewer sees."""
    found = _visible(viewer).order_by("-pk")
    count = found.count()
    if (below := whole_number(after)) is not None:
        found = found.filter(pk__lt=below)
    rows = list(found[: limit + 1])
    return Listed(rows[:limit], str(rows[limit - 1].pk) if len(rows) > limit else None, count)


def find(viewer: Viewer, pk: int) -> Reschedule:
    """Raises Reschedule.DoesNotExist, also for one of a source out of sight."""
    return _visible(viewer).get(pk=pk)


def _visible(viewer: Viewer) -> Any:
    sources = viewer.sources(VIEWER)
    found = Reschedule.objects.all()
    return found if sources is None else found.filter(source__in=sources)


def may_change(viewer: Viewer, planned: Reschedule) -> bool:
    return viewer.may(OPERATOR, planned.source)
