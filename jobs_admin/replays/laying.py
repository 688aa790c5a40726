"""The step of `watch` that lays frozen batches out as items, each in one short transaction.

A batch goes and its items come in the same transaction: who dies in between has done nothing, and of two that take the
same batch one finds it gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q

from jobs_admin.core.arguments import value_at
from jobs_admin.core.redaction import PLACEHOLDER, TOO_DEEP
from jobs_admin.core.text import representable, shown
from jobs_admin.db import turns
from jobs_admin.models import Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.replay import OPEN_ITEM, SENDING, ItemState, ReplayState
from jobs_admin.replays.freezing import unpacked

log = logging.getLogger(__name__)

# Those whose frozen jobs are theirs. One that waits for a second person holds nobody's.
BEGUN = (*SENDING, ReplayState.WAITING, ReplayState.HELD, ReplayState.PAUSED)
TAKEN = "taken"  # the code of the rows that laying out adds to `Replay.blocked`

_CANNOT = "Some of its jobs cannot be laid out"

_LONGEST_KEY = 64
# What stands for something else than the value: jobs that have it are not known to be of one customer.
_NO_KEYS = (PLACEHOLDER, TOO_DEEP, "… (cut")


def lay() -> bool:
    """Lay out a batch of each replay that has some. True when there was one."""
    frozen = FrozenBatch.objects.filter(replay__state__in=BEGUN).order_by()
    busy = False
    for pk in sorted(frozen.values_list("replay", flat=True).distinct()):
        batch = frozen.filter(replay=pk).select_related("replay").order_by("first_n").first()
        if batch is not None:
            began = time.monotonic()
            busy |= _lay_or_tell(batch)
            turns.rest(began)
    return busy


def _lay_or_tell(batch: FrozenBatch) -> bool:
    """Whether it went. One replay whose jobs cannot be laid out does not stop the others: its page says why it stands."""
    replay = batch.replay
    try:
        _lay_batch(batch)
    except (OperationalError, InterfaceError):
        raise  # the database, and no one's fault
    except Exception as error:
        log.exception(
            "replay #%s: jobs %d to %d cannot be laid out", replay.pk, batch.first_n, batch.first_n + batch.count
        )
        why = f"{_CANNOT}: {type(error).__name__}: {shown(str(error), 200)} It is tried again; the log of watch tells more."
        _say(replay, why)
        return False
    if replay.held_because.startswith(_CANNOT):
        _say(replay, "")
    return True


def _say(replay: Replay, why: str) -> None:
    """Never over what the controller holds it for."""
    Replay.objects.filter(pk=replay.pk, state__in=BEGUN, held_because=replay.held_because).exclude(
        state=ReplayState.HELD
    ).update(held_because=why)


def lay_first(replay: Replay) -> None:
    """Lay out the next batch of this replay, so that its first job goes at once."""
    batch = FrozenBatch.objects.filter(replay=replay).select_related("replay").order_by("first_n").first()
    if batch is not None:
        _lay_batch(batch)


def _lay_batch(batch: FrozenBatch) -> None:
    laid = places(batch.replay, unpacked(batch), batch.first_n)
    this = Replay.objects.filter(pk=batch.replay_id)
    try:
        with turns.turn(), transaction.atomic():
            # Locked first: a cancel either came before, and is seen here, or finds what was laid out.
            if not this.select_for_update().filter(state__in=BEGUN).only("pk"):
                return
            # As it was read: jobs may have been left out of it meanwhile, and then the next round reads it again.
            if not FrozenBatch.objects.filter(pk=batch.pk, count=batch.count).delete()[0]:
                return
            lay_out(batch.replay, laid)
    except IntegrityError:
        # PostgreSQL looks at the end whether each is still there: a prune was in between. The next round knows.
        return


@dataclass(frozen=True, slots=True)
class Place:
    """An item to be."""

    n: int
    failure: int
    key: str  # what `per_key` of the pace counts it under


def places(replay: Replay, ids: Sequence[int], first_n: int) -> list[Place]:
    keys = dict(_keys(replay, ids))
    return [Place(n, pk, keys.get(pk, "")) for n, pk in enumerate(ids, first_n)]


def lay_out(replay: Replay, wanted: Sequence[Place]) -> int:
    """Make these the items of a replay; how many were free. In the caller's transaction, which holds the replay.

    Left out is what another replay took since this one was started: it holds it still, or has sent it. That is told
    in `taken` and, with whose it is, in `blocked`.
    """
    laid = _insert(replay, wanted)
    if missing := [one.failure for one in wanted if one.failure not in laid]:
        _tell_missing(replay, missing)
    return len(laid)


def _insert(replay: Replay, wanted: Sequence[Place]) -> set[int]:
    table, failures = ReplayItem._meta.db_table, Failure._meta.db_table
    rows = ", ".join([f"({one.n}, {one.failure}, %s)" for one in wanted])
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (replay_id, n, failure_id, run, state, job_id, key, claim_epoch, outcome) "
            f"SELECT {replay.pk}, v.column1, f.id, f.run + 1, 'planned', '', v.column3, '', '' "
            # CROSS JOIN: SQLite goes through the few places, not through all failures.
            f"FROM (VALUES {rows}) AS v CROSS JOIN {failures} AS f "
            f"WHERE f.id = v.column2 AND NOT EXISTS (SELECT 1 FROM {table} AS o "
            f"WHERE o.failure_id = f.id AND o.id > {replay.highest_item} AND o.replay_id <> {replay.pk} "
            "AND o.sent_at IS NOT NULL AND o.state <> 'cancelled') "  # what was taken back has not run
            # The same order in every transaction: two that insert crosswise would wait for each other for ever.
            "ORDER BY f.id ON CONFLICT DO NOTHING RETURNING failure_id",
            [one.key for one in wanted],
        )
        return {pk for (pk,) in cursor.fetchall()}


def _tell_missing(replay: Replay, missing: Sequence[int]) -> None:
    sent = Q(pk__gt=replay.highest_item, sent_at__isnull=False) & ~Q(state=ItemState.CANCELLED)
    items = ReplayItem.objects.filter(Q(state__in=OPEN_ITEM) | sent, failure__in=missing)
    theirs = items.exclude(replay=replay).order_by("pk").values_list("failure", "replay", "replay__actor")
    by = {failure: (pk, actor) for failure, pk, actor in theirs}
    pruned = len(missing) - len(by)
    before = Replay.objects.values_list("blocked", flat=True).get(pk=replay.pk)
    Replay.objects.filter(pk=replay.pk).update(
        total=F("total") - len(by),
        taken=F("taken") + len(by),
        planned=F("planned") - len(missing),
        cancelled=F("cancelled") + pruned,
        blocked=joined(before, taken_by(Counter(by.values()))),
    )


def taken_by(counts: Mapping[tuple[int, str], int]) -> list[dict[str, Any]]:
    """Rows of `Replay.blocked`, from how many each (replay, its actor) has taken."""
    return [
        {"code": TAKEN, "reason": f"taken by replay #{pk} of {actor} meanwhile", "count": count, "replay": pk}
        for (pk, actor), count in counts.items()
    ]


def joined(before: Sequence[dict[str, Any]], told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was told before, and this: once for each reason."""
    rows = {(row.get("code"), row["reason"]): dict(row) for row in before}
    for row in told:
        known = rows.setdefault((row["code"], row["reason"]), row | {"count": 0})
        known["count"] += row["count"]
    return list(rows.values())


def _keys(replay: Replay, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
    """(failure, its key), of those that have one."""
    path = (replay.pace.get("per_key") or {}).get("key", "")
    if not path:
        return
    is_argument = path.startswith(("args.", "kwargs."))
    columns = ("args", "kwargs") if is_argument else (path,)
    for pk, *values in Failure.objects.filter(pk__in=ids).values_list("pk", *columns):
        value = value_at(path, *(_read(text) for text in values)) if is_argument else values[0]
        if key := _key(value):
            yield pk, key


def _read(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _key(value: Any) -> str:
    """What a value is counted under; empty for none, for a list or object, and for what is not shown."""
    if not isinstance(value, str | int | float) or value == "":
        return ""
    # No column takes a NUL or half a character: one such job would stop all laying out.
    text = representable(value) if isinstance(value, str) else json.dumps(value)
    if any(mark in text for mark in _NO_KEYS):
        return ""
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()
