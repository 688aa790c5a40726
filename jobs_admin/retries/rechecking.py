"""Recheck of reported jobs at their source, where people also retry and remove jobs.

Some jobs of each state, in rotation: sent and retrying jobs in every round, dead ones every few seconds. A job
discarded here is removed there, if the system can.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef

from jobs_admin.core import untrusted
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.text import representable
from jobs_admin.db.turns import lock_writers
from jobs_admin.models import Failure, ReplayItem
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.sources.base import JobChanges, PulledSource, Ref, SourceRefused

_AT_ONCE = 500  # jobs per query
_WRITTEN_AT_ONCE = 100  # rows per transaction
_SAME_MOMENT = timedelta(seconds=1)  # due times that differ by less are equal, in different units

_ON_THE_WAY = (FailureState.REPLAYING, FailureState.RETRYING)  # rechecked in every round
_AT_REST = (
    FailureState.DEAD,
    FailureState.QUARANTINED,
)  # these, and discarded ones, are checked seldom: each check costs the source something
_BETWEEN_S = 5.0
_COLUMNS = ("queue", "job_id", "state", "run", "attempts", "due_at", "failed_at", "caveats", "made_at")

_rested: dict[str, float] = {}  # source -> when its dead jobs were last checked, by the monotonic clock
# Position of each rotation: source and state -> failure id. Per process, because a rotation may restart at any time.
_places: dict[tuple[str, FailureState], int] = {}


def recheck(source: str, adapter: PulledSource, file: Callable[[Sequence[Envelope]], object]) -> None:
    """Check some jobs and write their changes. `file` stores reports in the tables. Raises the adapter's errors."""
    is_time = time.monotonic() - _rested.get(source, float("-inf")) >= _BETWEEN_S
    for state in (*_ON_THE_WAY, *(_AT_REST if is_time else ())):
        rows = _next(source, state)
        if adapter.can.follows:  # a guard settles its own reports
            rows = {ref: row for ref, row in rows.items() if (row.caveats or 0) & Caveat.SEEN}
        if rows:
            changes = adapter.check_jobs(list(rows))
            file(changes.reports)
            _note(rows, changes)
    if not is_time:
        return
    _rested[source] = time.monotonic()
    if adapter.can.remove and (discarded := _next(source, FailureState.DISCARDED)):
        with suppress(SourceRefused):  # read-only sources report a finding; the job stays discarded here nevertheless
            if going := _mark_removed(discarded):
                adapter.remove(going)


def _mark_removed(rows: Mapping[Ref, Failure]) -> list[Ref]:
    """Return those that are still discarded and whose stored message can be sent again.

    Written before the source removes them: if this process dies in between, the removal is not attributed to someone
    else.
    """
    going = {row.pk: ref for ref, row in rows.items() if not (row.caveats or 0) & Caveat.UNSENDABLE}
    for caveats in {row.caveats for ref, row in rows.items() if row.pk in going and not ref.was_removed}:
        pks = [pk for pk, ref in going.items() if rows[ref].caveats == caveats]
        for start in range(0, len(pks), _WRITTEN_AT_ONCE):
            among = Failure.objects.filter(pk__in=pks[start : start + _WRITTEN_AT_ONCE], caveats=caveats)
            among.filter(state=FailureState.DISCARDED).update(caveats=(caveats or 0) | Caveat.REMOVED)
    now = Failure.objects.filter(pk__in=going, state=FailureState.DISCARDED, caveats__isnull=False)
    return [going[pk] for pk, caveats in now.values_list("pk", "caveats") if caveats & Caveat.REMOVED]


def _next(source: str, state: FailureState) -> dict[Ref, Failure]:
    """Return the next of these in rotation, by the source's reference."""
    place = (source, state)
    rows = Failure.objects.filter(source=source, state=state, pk__gt=_places.get(place, 0)).order_by("pk")
    found = list(rows.only(*_COLUMNS)[:_AT_ONCE])
    _places[place] = found[-1].pk if len(found) == _AT_ONCE else 0
    return {_ref(row): row for row in found}


def _ref(row: Failure) -> Ref:
    was_removed = bool((row.caveats or 0) & Caveat.REMOVED)
    made_at = row.made_at.timestamp() if row.made_at else None
    return Ref(row.queue, row.job_id, row.state, row.failed_at.timestamp(), was_removed, made_at)


def _note(rows: Mapping[Ref, Failure], changes: JobChanges) -> None:
    gone: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for job, why in changes.gone.items():
        if (row := rows.get(job)) is not None:
            gone[representable(why)[:200], row.state, row.run, row.attempts].append(row.pk)
    # Only if unchanged since the query: a replay or report that came meanwhile is newer. A job that a replay has sent
    # is settled by that replay.
    is_open = Exists(ReplayItem.objects.filter(failure=OuterRef("pk"), state__in=OPEN_ITEM))
    for (why, state, run, attempts), pks in gone.items():
        for start in range(0, len(pks), _WRITTEN_AT_ONCE):
            among = Failure.objects.filter(pk__in=pks[start : start + _WRITTEN_AT_ONCE])
            as_it_was = among.filter(~is_open, state=state, run=run, attempts=attempts)
            with transaction.atomic():
                lock_writers()
                as_it_was.update(state=FailureState.GONE, reason=why, due_at=None)
    moved = [
        (row, due_at)
        for job, seconds in changes.due.items()
        if (row := rows.get(job)) is not None
        and (due_at := untrusted.moment(seconds)) is not None
        and (row.due_at is None or abs(row.due_at - due_at) > _SAME_MOMENT)
    ]
    for start in range(0, len(moved), _WRITTEN_AT_ONCE):
        with transaction.atomic():
            lock_writers()
            for row, due_at in moved[start : start + _WRITTEN_AT_ONCE]:
                waits = Failure.objects.filter(pk=row.pk, state=FailureState.RETRYING, run=row.run)
                waits.filter(attempts=row.attempts).update(due_at=due_at)
