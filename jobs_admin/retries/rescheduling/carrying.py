"""Execution of a reschedule in batches, each sent to the source and then recorded.

A crash in between leaves jobs that the source has rescheduled and the desk has not recorded: the batch is repeated,
with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from jobs_admin.core.retry_change import Change, read
from jobs_admin.db import audit
from jobs_admin.db.turns import lock_writers
from jobs_admin.models import Failure, Reschedule, ReschedulePart
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import FailureState
from jobs_admin.models.reschedule import RescheduleState
from jobs_admin.retries.rescheduling import planning
from jobs_admin.sources.base import PulledSource, Ref, Rescheduled, SourceRefused

_AT_ONCE = 100  # per transaction: SQLite allows no other writer meanwhile
_SLICE_S = 2.0
_SAME_S = 1.0  # due times that differ by less are equal, in whole seconds

# Failure, run, attempts, due before, max attempts before, due after, max attempts after.
_Row = list[Any]


def is_planned(source: str) -> bool:
    return Reschedule.objects.filter(source=source, state=RescheduleState.PLANNED).exists()


def carry_out(source: str, adapter: PulledSource, now: datetime | None = None) -> bool:
    """Carry out some planned changes of the source. Return True if there may be more.

    Raises the adapter's errors; the plan then remains.
    """
    ends = time.monotonic() + _SLICE_S
    while (planned := _next(source)) is not None:
        if time.monotonic() > ends:
            return True
        try:
            _part(planned, adapter, now or timezone.now())
        except SourceRefused as refused:
            _end(planned, RescheduleState.STOPPED, why=str(refused)[:500])
    return False


def _next(source: str) -> Reschedule | None:
    return Reschedule.objects.filter(source=source, state=RescheduleState.PLANNED).order_by("pk").first()


def _part(planned: Reschedule, adapter: PulledSource, now: datetime) -> None:
    if not adapter.can.reschedule:
        raise SourceRefused(f"Retries of {planned.source} cannot be rescheduled. Nothing was changed.")
    below, rows, checked = _back(planned) if planned.undo_of_id else _forth(planned, now)
    if below is None:
        _end(planned, RescheduleState.DONE)
        return
    found = {pk: (queue, job_id) for pk, queue, job_id in _names(rows)}
    refs = {pk: Ref(*name) for pk, name in found.items()}
    rescheduled = [
        Rescheduled(refs[row[0]], row[5], row[6] if row[6] != row[4] else None) for row in rows if row[0] in refs
    ]
    moved = adapter.reschedule(rescheduled) if rescheduled else set()
    _write(planned, [row for row in rows if refs.get(row[0]) in moved], checked, below)


def _forth(planned: Reschedule, now: datetime) -> tuple[int | None, list[_Row], int]:
    """Return the next position, the changes, and the number of rows read. None: the end."""
    change: Change = read(planned.change, planned.created_at.timestamp())
    columns = ("pk", "run", "attempts", "due_at", "max_attempts", "failed_at")
    found = list(planning.remaining(planned).order_by("-pk").values_list(*columns)[:_AT_ONCE])
    if not found:
        return None, [], 0
    rows: list[_Row] = []
    for pk, run, attempts, due_at, most, failed_at in found:
        due = change.due(pk, attempts, failed_at.timestamp(), now.timestamp())
        if change.may_have(attempts):
            before = due_at.timestamp() if due_at else None
            rows.append([pk, run, attempts, before, most, due, change.max_attempts or most])
    return found[-1][0], rows, len(found)


def _back(planned: Reschedule) -> tuple[int | None, list[_Row], int]:
    """Return the same for an undo: jobs that still wait as the reschedule left them are restored."""
    part = ReschedulePart.objects.filter(reschedule=planned.undo_of_id, pk__lt=planned.below).order_by("-pk").first()
    if part is None:
        return None, [], 0
    now = {
        pk: (run, attempts, due_at.timestamp() if due_at else None)
        for pk, run, attempts, due_at in Failure.objects.filter(
            pk__in=[row[0] for row in part.rows], state=FailureState.RETRYING
        ).values_list("pk", "run", "attempts", "due_at")
    }
    rows = [
        [pk, run, attempts, after, most_after, before, most]
        for pk, run, attempts, before, most, after, most_after in part.rows
        if pk in now and now[pk][:2] == (run, attempts) and _same(now[pk][2], after if after is not None else before)
    ]
    return part.pk, rows, len(part.rows)


def _same(one: float | None, other: float | None) -> bool:
    return one is other or (one is not None and other is not None and abs(one - other) <= _SAME_S)


def _names(rows: Sequence[_Row]) -> Any:
    return Failure.objects.filter(pk__in=[row[0] for row in rows]).values_list("pk", "queue", "job_id")


def _write(planned: Reschedule, rows: Sequence[_Row], checked: int, below: int) -> None:
    with transaction.atomic():
        lock_writers()
        still = Reschedule.objects.filter(pk=planned.pk, below=planned.below)
        if not still.update(below=below, changed=F("changed") + len(rows), left=F("left") + checked - len(rows)):
            return  # another process was first, with the same result
        for pk, run, attempts, _, _, due, most in rows:
            waits = Failure.objects.filter(pk=pk, state=FailureState.RETRYING, run=run, attempts=attempts)
            moved = {} if due is None else {"due_at": datetime.fromtimestamp(due, UTC)}
            waits.update(max_attempts=most, **moved)
        if rows and planned.undo_of_id is None:
            ReschedulePart.objects.create(reschedule=planned, rows=rows)


def _end(planned: Reschedule, state: RescheduleState, why: str = "") -> None:
    with transaction.atomic():
        now = timezone.now()
        going = Reschedule.objects.filter(pk=planned.pk, state=RescheduleState.PLANNED)
        if going.update(state=state, ended_at=now, why=why):
            planned.refresh_from_db()
            audit.record(
                ENGINE, f"{planning.ACT}.{state}", f"reschedule:{planned.pk}", source=planned.source, reason=why,
                after={"changed": planned.changed, "left": planned.left},
            )  # fmt: skip
