"""What time alone changes: a retry that never came back is lost; a group is neither new nor muted for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from jobs_admin import config
from jobs_admin.db import audit, counters, step_progress, totals
from jobs_admin.db.totals import Counted
from jobs_admin.ingest import group_sightings
from jobs_admin.models import Attempt, Failure, Group
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import FailureState
from jobs_admin.models.group import GroupState

# Celery's default: how long Redis keeps a fetched message from others, so how late a retry may rightly come.
_VISIBILITY_TIMEOUT_S = 3600
_MARGIN_S = 60
_AT_ONCE = 500
BEGINS = "The retry did not report"  # the reason of what is filed here


# What lies in a queue or in a spool is waited for so much longer, and then no more: a busy queue is never empty.
_PATIENCE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Delays:
    """What may hold up a retry, or the word of it (`awaiting.py`)."""

    is_blind: bool = False  # reports of any source may wait to be filed, or the store is away: nothing is filed as lost
    late: frozenset[str] = frozenset()  # sources with reports that wait to be filed
    # source -> visibility timeout that its workers have, in seconds; a longer one than the desk's own configuration counts
    timeouts_s: Mapping[str, float] = field(default_factory=dict)
    spooling: frozenset[str] = frozenset()  # sources whose workers have reports that did not get through yet
    backlogged: frozenset[tuple[str, str]] = frozenset()  # (source, queue) in which it may lie


def reconcile(now: datetime, delays: Delays = Delays()) -> bool:
    """File overdue retries as lost, let new groups grow old, end mutes. True if there may be more to do at once."""
    lost = 0 if delays.is_blind else overdue(now, delays)
    Group.objects.filter(state=GroupState.NEW, first_seen__lt=now - group_sightings.NEW_FOR).update(
        state=GroupState.ONGOING, state_since=now
    )
    end_mutes(now)
    return lost >= _AT_ONCE


def end_mutes(now: datetime) -> int:
    """`muted` past its time, or its count of failed attempts -> `ongoing`. Answers how many."""
    over = Q(muted_until__lte=now) | Q(muted_until_count__lte=F("count"))
    ended = 0
    for group in Group.objects.filter(over, state=GroupState.MUTED).order_by("pk")[:_AT_ONCE]:
        is_time = group.muted_until is not None and group.muted_until <= now
        with transaction.atomic():
            # Asked again: a person may have muted it for longer meanwhile.
            still = Group.objects.filter(over, pk=group.pk, state=GroupState.MUTED)
            ended_by = "time" if is_time else "count"
            over_now = {"state": GroupState.ONGOING.value, "state_since": now, "mute_ended": ended_by}
            cleared = {"state_by": "", "muted_until": None, "muted_until_count": None}
            if not still.update(**over_now, **cleared):
                continue
            why = "The time it was muted for is over." if is_time else "It failed as often as it was muted for."
            before = {"state": GroupState.MUTED.value, "state_by": group.state_by, "muted_until": group.muted_until}
            audit.record(
                ENGINE,
                "group.change",
                f"group:{group.name}",
                reason=why,
                before=before | {"muted_until_count": group.muted_until_count},
                after=over_now,
            )
            ended += 1
        step_progress.report()
    return ended


def overdue(now: datetime, delays: Delays) -> int:
    """`retrying` past its time, the visibility timeout and a minute -> `dead`, kind `lost`. Answers how many."""
    found = 0
    late = Failure.objects.filter(state=FailureState.RETRYING, due_at__lt=now - timedelta(seconds=_MARGIN_S))
    for source in sorted(set(late.values_list("source", flat=True).distinct())):
        if config.keeps_dead(source) or source in delays.late:
            continue  # it is asked itself what became of its retries; or their reports may be among those that wait
        timeout_s = max(_visibility_timeout_s(source), delays.timeouts_s.get(source, 0.0))
        latest = now - timedelta(seconds=timeout_s + _MARGIN_S)
        rows = Failure.objects.filter(source=source, state=FailureState.RETRYING, due_at__lt=latest)
        if source in delays.spooling:
            rows = rows.filter(due_at__lt=latest - _PATIENCE)
        elif queues := [queue for of, queue in delays.backlogged if of == source]:
            rows = rows.filter(~Q(queue__in=queues) | Q(due_at__lt=latest - _PATIENCE))
        with transaction.atomic():
            found += _lose(rows, timeout_s, now)
        step_progress.report()
    return found


def _visibility_timeout_s(source: str) -> float:
    known = config.sources().get(source)
    given = known.options.get("visibility_timeout") if known else None
    return float(given) if isinstance(given, int | float) and given > 0 else _VISIBILITY_TIMEOUT_S


def _lose(overdue: QuerySet[Failure], timeout_s: float, now: datetime) -> int:
    rows = held(overdue)
    bury(rows, f"{BEGINS} within {timeout_s + _MARGIN_S:.0f} s of its due time", now)
    return len(rows)


def held(rows: QuerySet[Failure]) -> list[Failure]:
    """Some of these, with what `bury` needs of them, locked where the database locks rows. Inside a transaction."""
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True, skip_locked=True)
    only = ("pk", "source", "queue", "task", "run", "attempts", "job_id", "group_id", "due_at")
    return list(rows.order_by("pk").only(*only)[:_AT_ONCE])


def bury(held: Sequence[Failure], why: str, now: datetime) -> None:
    """The attempt that they waited for will not come: they are dead, kind `lost`. Inside a transaction."""
    if not held:
        return
    attempts = [
        Attempt(
            failure=f, run=f.run, attempt=f.attempts + 1, kind="lost", job_id=f.job_id, group_id=f.group_id,
            reason=why, ended_at=now, received_at=now,
        )
        for f in held
    ]  # fmt: skip
    Attempt.objects.bulk_create(attempts)
    for f in held:
        f.state, f.kind, f.reason, f.attempts, f.due_at = FailureState.DEAD, "lost", why, f.attempts + 1, None
    Failure.objects.bulk_update(held, ["state", "kind", "reason", "attempts", "due_at"])
    counters.count_lost([(f.group_id, f.source, f.queue) for f in held], now)
    lost = Counter((f.source, f.queue, f.task) for f in held)
    totals.add(
        {Counted(totals.FAILURES, *place, totals.error_label("", "lost")): n for place, n in lost.items()}
        | {Counted(totals.DIED, *place): n for place, n in lost.items()}
    )
