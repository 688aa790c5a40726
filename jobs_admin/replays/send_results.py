"""Recording of send results in short transactions: items, their failures, the counts of the replay and of queues."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from django.db import connection, transaction
from django.db.models import F

from jobs_admin.db import counters
from jobs_admin.db.turns import lock_writers
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.replay import ItemState, ReplayState
from jobs_admin.replays import outcomes
from jobs_admin.replays.claiming import Claimed
from jobs_admin.sources.base import Source, SourceUnreachable

_IN_DOUBT = "It was being sent when its sender or the broker's answer was lost: whether it was sent is unknown."
_LEDGER_LOST = "The ledger was lost while it was being sent: whether it was sent is unknown."

_ENDED = (ReplayState.CANCELLED, ReplayState.STOPPED)

# Items per write transaction: as many as take some 40 ms on this machine, because SQLite allows no other writer
# meanwhile.
_FEWEST, _MOST = 100, 1_000
_SHORT_S, _LONG_S = 0.02, 0.06


class Batches:
    """Splitter of work into transactions long enough to be cheap and short enough to let others write."""

    def __init__(self) -> None:
        self.size = 250  # of the next transaction

    def split(self, items: Sequence[Claimed]) -> Iterator[list[Claimed]]:
        rest = iter(items)
        while batch := list(islice(rest, self.size)):
            begun = time.monotonic()
            yield batch
            took = time.monotonic() - begun
            if took > _LONG_S:
                self.size = max(_FEWEST, self.size // 2)
            elif took < _SHORT_S and len(batch) == self.size:
                self.size = min(_MOST, self.size * 2)


def mark_sent(replay: Replay, items: Sequence[Claimed], now: datetime, batches: Batches | None = None) -> None:
    """Mark items as sent. Their failures are in the new run, unless ingest already has the outcome of that run."""
    for batch in (batches or Batches()).split(items):
        with transaction.atomic():
            lock_writers()
            # Items that the next sender has already marked are counted there.
            gone = _leave_planned(batch, ItemState.SENT, "", now)
            queues = Counter((item.source, item.queue) for item in gone)
            _renew_failures(replay, gone)
            _move(replay, sent=len(gone))
            counters.add_queue_counts({(*queue, now): {"sent": n} for queue, n in sorted(queues.items())})


def mark_uncertain(replay: Replay, items: Sequence[Claimed], why: str, now: datetime) -> None:
    """Mark items that may or may not have been sent. An operator settles them; no process sends them again."""
    for batch in Batches().split(items):
        with transaction.atomic():
            lock_writers()
            gone = _leave_planned(batch, ItemState.UNCERTAIN, why, now)
            _renew(gone, FailureState.REPLAYING)
            _move(replay, uncertain=len(gone))


def mark_refused(replay: Replay, why: Mapping[int, str], now: datetime) -> None:
    """Cancel items that no sender may be about to send: item id -> reason. Their failures stay unchanged and free."""
    by_reason: dict[str, list[int]] = {}
    for pk, reason in why.items():
        by_reason.setdefault(reason[:255], []).append(pk)
    for reason, pks in by_reason.items():
        for start in range(0, len(pks), 500):
            with transaction.atomic():
                mine = ReplayItem.objects.filter(
                    replay=replay, state=ItemState.PLANNED, pk__in=pks[start : start + 500]
                )
                _move(
                    replay,
                    cancelled=mine.update(
                        state=ItemState.CANCELLED, settled_at=now, outcome=reason, claimed_at=None, claim_epoch=""
                    ),
                )


def mark_unsent(replay: Replay, pks: Sequence[int], now: datetime, may_go: bool = False) -> None:
    """Release items that were claimed and not sent: to be claimed again, or cancelled if the replay has ended.

    `may_go`: the sender that claimed them may be about to send them. If the replay has ended, they keep their claim
    until the source withholds them; otherwise they keep its epoch, so that the source is queried before they are
    cancelled (`stopping.drop_planned`, `setting_aside`).
    """
    for start in range(0, len(pks), 500):
        with transaction.atomic():
            back = ReplayItem.objects.filter(replay=replay, state=ItemState.PLANNED, pk__in=pks[start : start + 500])
            if not Replay.objects.filter(pk=replay.pk, state__in=_ENDED).exists():
                back.update(claimed_at=None, **({} if may_go else {"claim_epoch": ""}))
            elif not may_go:
                ended = back.update(state=ItemState.CANCELLED, settled_at=now, claimed_at=None, claim_epoch="")
                _move(replay, cancelled=ended)


def settle_claims(
    replay: Replay, source: Source, epoch: str, items: Sequence[Claimed], now: datetime, *, withhold: bool
) -> None:
    """Record the source's answer about claims with an unknown result. `withhold`: forbid unsent ones permanently.

    A sender that stalled longer than its lease may be about to send, and a job sent after its item has ended would go
    unnoticed. `epoch` is the current epoch of the source's ledger. Raises SourceError, with nothing written.
    """
    known = [item for item in items if item.claim_epoch == epoch]
    went = (source.withhold if withhold else source.was_sent)(replay.key, [item.pk for item in known])
    in_doubt = source.in_doubt(replay.key, [item.pk for item in known if item.pk not in went])
    if known and source.epoch(replay.key) != epoch:
        raise SourceUnreachable("The ledger changed while it was queried.")
    mark_sent(replay, [item for item in known if item.pk in went], now)
    unsent = [item.pk for item in known if item.pk not in went | in_doubt]
    mark_unsent(replay, unsent, now, may_go=not withhold)
    mark_uncertain(replay, [item for item in known if item.pk in in_doubt], _IN_DOUBT, now)
    mark_uncertain(replay, [item for item in items if item.claim_epoch != epoch], _LEDGER_LOST, now)


def _move(replay: Replay, **to: int) -> None:
    """Move items out of planned in the replay's counts."""
    if count := sum(to.values()):
        changes = {name: F(name) + n for name, n in to.items()}
        Replay.objects.filter(pk=replay.pk).update(planned=F("planned") - count, **changes)


def _leave_planned(items: Sequence[Claimed], state: str, why: str, now: datetime) -> list[Claimed]:
    """Return the items that were still planned."""
    rows, given = _build_went_table([(item.pk, 0, item.job_id) for item in items])
    table = ReplayItem._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET state = %s, outcome = %s, sent_at = %s, job_id = went.job_id FROM {rows} "
            f"WHERE {table}.id = went.id AND {table}.state = %s RETURNING {table}.id",
            [state, why[:255], connection.ops.adapt_datetimefield_value(now), *given, ItemState.PLANNED],
        )
        gone = {pk for (pk,) in cursor.fetchall()}
    return [item for item in items if item.pk in gone]


def _renew_failures(replay: Replay, items: Sequence[Claimed]) -> None:
    """Set failures to the new run: replaying, or gone if their source does not report how a job ends."""
    silent = set(outcomes.unreported_sources({item.source for item in items}))
    _renew([item for item in items if item.source not in silent], FailureState.REPLAYING)
    _renew([item for item in items if item.source in silent], FailureState.GONE, outcomes.gone_reason(replay))


def _renew(items: Sequence[Claimed], state: str, why: str | None = None) -> None:
    """Set failures to their new run. `why`: the new reason; None leaves it unchanged."""
    if not items:
        return
    rows, given = _build_went_table([(item.failure, item.run, item.job_id) for item in items])
    table = Failure._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET state = %s, reason = COALESCE(%s, reason), run = went.run, job_id = went.job_id, "
            # In the new run, the job is in its source again.
            f"due_at = NULL, caveats = NULLIF({table}.caveats & ~{Caveat.REMOVED}, 0) FROM {rows} "
            # The double negation keeps SQLite from starting with all dead failures.
            f"WHERE {table}.id = went.id AND NOT ({table}.state <> %s) AND {table}.run = went.run - 1",
            [state, why, *given, FailureState.DEAD],
        )


def _build_went_table(values: list[tuple[int, int, str]]) -> tuple[str, list[object]]:
    """Return a table `went` of (id, run, job_id), and its parameters.

    Binding values one by one costs more than the rows.
    """
    if connection.vendor == "sqlite":
        parts = "json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS run, json_extract(value, '$[2]') AS job_id"
        return f"(SELECT {parts} FROM json_each(%s)) AS went", [json.dumps(values)]
    columns: list[object] = [list(column) for column in zip(*values, strict=True)] or [[], [], []]
    return "unnest(%s::bigint[], %s::bigint[], %s::text[]) AS went(id, run, job_id)", columns
