"""Frozen jobs, in the order of sending, and the step of `watch` that creates items from them.

The jobs are chosen outside any write lock and stored as a few hundred rows, so that the start of a million jobs blocks
no other writer. One short transaction deletes a batch and creates its items: a crash changes nothing, and of two
processes that read the same batch only one can delete it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import sys
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q

from jobs_admin.core.arguments import value_at
from jobs_admin.core.redaction import PLACEHOLDER, TOO_DEEP
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.db import turns
from jobs_admin.models import Failure, FrozenBatch, Replay, ReplayItem
from jobs_admin.models.replay import OPEN_ITEM, SENDING, ItemState, ReplayState

FIRST = 200  # jobs of the first batch, whose items the start itself creates
_SAMPLED = 4_000  # jobs whose groups are looked up: each costs reading its row
BATCH = 1_000  # jobs of each other batch, whose items one short transaction creates


@dataclass(frozen=True, slots=True)
class Frozen:
    first: list[int]  # failure ids
    rest: list[tuple[int, bytes]]  # (number, packed ids)
    by_source: dict[str, int]
    total: int

    @property
    def sources(self) -> list[str]:
        return sorted(self.by_source)


GroupsOf = Callable[[Sequence[int]], Mapping[int, int | None]]


def freeze(ready: Iterable[tuple[int, str, str]], shuffle: str = "", groups_of: GroupsOf | None = None) -> Frozen:
    """Freeze all these failures, (id, tenant, source) each, lowest id first, in the order of sending.

    The order is: the first job of each tenant, then the second of each, and so on, oldest first, or in random order
    with a seed in `shuffle`. The `FIRST` jobs come before all others and represent the groups (`groups_of`): one job of
    each group, largest group first, then in proportion to their sizes. Takes some 50 bytes of memory per job.
    """
    ids, tenants, by_source = array("q"), array("l"), Counter[str]()
    numbers: dict[str, int] = {}
    for pk, tenant, source in ready:
        ids.append(pk)
        tenants.append(numbers.setdefault(tenant, len(numbers)))
        by_source[source] += 1
    order = _order_fairly(ids, tenants, len(numbers), shuffle)
    if groups_of is not None:
        order = _draw_first(order, groups_of)
    batches = (order[at : at + BATCH] for at in range(FIRST, len(order), BATCH))
    rest = [(len(batch), pack_ids(batch)) for batch in batches]
    return Frozen(order[:FIRST], rest, dict(by_source), len(order))


def _draw_first(order: list[int], groups_of: GroupsOf) -> list[int]:
    """Look up the groups of a sample of jobs spread evenly over all, which suffices to estimate their shares."""
    step = max(1, len(order) // _SAMPLED)
    sample = order[::step]
    group_of = groups_of(sample)
    members: dict[int | None, list[int]] = {}
    for pk in sample:
        members.setdefault(group_of.get(pk), []).append(pk)
    if len(members) < 2:
        return order
    largest = sorted(members.values(), key=len, reverse=True)
    drawn = [mine[0] for mine in largest[:FIRST]]
    # The jobs of each group are spread evenly over the rest: of two, the second comes after half of it.
    rest = sorted(((n + 0.5) / len(mine), pk) for mine in largest for n, pk in enumerate(mine[1:]))
    drawn += [pk for _, pk in rest[: FIRST - len(drawn)]]
    gone = set(drawn)
    return drawn + [pk for pk in order if pk not in gone]


def _order_fairly(ids: array[int], tenants: array[int], most: int, shuffle: str) -> list[int]:
    places: Sequence[int] = range(len(ids))
    if shuffle:
        places = list(places)
        random.Random(shuffle).shuffle(places)
    turns = [0] * most
    keys = []
    for n, place in enumerate(places):
        tenant = tenants[place]
        turns[tenant] += 1
        keys.append(turns[tenant] << 40 | n)  # one number rather than a pair: half the time, a third of the memory
    keys.sort()
    return [ids[places[key & (1 << 40) - 1]] for key in keys]


def write_batches(replay: Replay, frozen: Frozen, *, with_first: bool) -> None:
    """Store the frozen jobs, in the caller's transaction, until their items are created."""
    batches = [(len(frozen.first), pack_ids(frozen.first)), *frozen.rest] if with_first else frozen.rest
    first_n = 1 if with_first else 1 + len(frozen.first)
    places = accumulate((count for count, _ in batches), initial=first_n)
    FrozenBatch.objects.bulk_create(
        FrozenBatch(replay=replay, first_n=n, count=count, ids=ids)
        for n, (count, ids) in zip(places, batches, strict=False)
    )


def pack_ids(ids: Sequence[int]) -> bytes:
    """Pack each id as its difference from the previous one, compressed: two or three bytes."""
    distances = array("q", map(sub, ids, [0, *ids[:-1]]))
    if sys.byteorder == "big":
        distances.byteswap()
    return zlib.compress(distances.tobytes(), 1)


def unpack_ids(batch: FrozenBatch) -> list[int]:
    distances = array("q", zlib.decompress(bytes(batch.ids)))
    if sys.byteorder == "big":
        distances.byteswap()
    return list(accumulate(distances))


log = logging.getLogger(__name__)

# States in which frozen jobs belong to the replay. One that awaits approval has none.
BEGUN = (*SENDING, ReplayState.WAITING, ReplayState.HELD, ReplayState.PAUSED)
TAKEN = "taken"  # code of the rows that creating items adds to `Replay.blocked`

_CANNOT = "Items of some of its jobs cannot be created"

_LONGEST_KEY = 64
# Placeholders for a value: jobs that show one may belong to different customers.
_NO_KEYS = (PLACEHOLDER, TOO_DEEP, "… (cut")


def is_due() -> bool:
    """Return whether there are items to create."""
    return FrozenBatch.objects.filter(replay__state__in=BEGUN).exists()


def create_items() -> bool:
    """Create the items of one batch of each replay that has batches. Return True if there was one."""
    frozen = FrozenBatch.objects.filter(replay__state__in=BEGUN).order_by()
    busy = False
    for pk in sorted(frozen.values_list("replay", flat=True).distinct()):
        batch = frozen.filter(replay=pk).select_related("replay").order_by("first_n").first()
        if batch is not None:
            began = time.monotonic()
            busy |= _create_or_report(batch)
            turns.rest(began)
    return busy


def _create_or_report(batch: FrozenBatch) -> bool:
    """Return whether the items were created.

    A replay that fails does not stop the others: its page shows the reason.
    """
    replay = batch.replay
    try:
        _create_batch_items(batch)
    except (OperationalError, InterfaceError):
        raise  # a database failure, not a fault of this replay
    except Exception as error:
        log.exception(
            "replay #%s: items of jobs %d to %d cannot be created",
            replay.pk,
            batch.first_n,
            batch.first_n + batch.count,
        )
        why = f"{_CANNOT}: {type(error).__name__}: {terminal_line(str(error), 200)} It is tried again; the log of watch tells more."
        _write_reason(replay, why)
        return False
    if replay.held_because.startswith(_CANNOT):
        _write_reason(replay, "")
    return True


def _write_reason(replay: Replay, why: str) -> None:
    """Write the reason unless the controller holds the replay."""
    Replay.objects.filter(pk=replay.pk, state__in=BEGUN, held_because=replay.held_because).exclude(
        state=ReplayState.HELD
    ).update(held_because=why)


def create_first_items(replay: Replay) -> None:
    """Create the items of this replay's next batch, so that its first job is sent immediately."""
    batch = FrozenBatch.objects.filter(replay=replay).select_related("replay").order_by("first_n").first()
    if batch is not None:
        _create_batch_items(batch)


def _create_batch_items(batch: FrozenBatch) -> None:
    created = build_places(batch.replay, unpack_ids(batch), batch.first_n)
    this = Replay.objects.filter(pk=batch.replay_id)
    try:
        with turns.turn(), transaction.atomic():
            # Locked first: an earlier cancel is seen here, a later one sees the created items.
            if not this.select_for_update().filter(state__in=BEGUN).only("pk"):
                return
            # Only if unchanged since it was read: jobs may have been excluded meanwhile. The next round then reads it
            # again.
            if not FrozenBatch.objects.filter(pk=batch.pk, count=batch.count).delete()[0]:
                return
            insert_items(batch.replay, created)
    except IntegrityError:
        # PostgreSQL checks foreign keys at commit: a failure was pruned meanwhile. The next round no longer includes
        # it.
        return


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an item to be created."""

    n: int
    failure: int
    key: str  # key that `per_key` of the pace counts


def build_places(replay: Replay, ids: Sequence[int], first_n: int) -> list[Place]:
    keys = dict(_read_keys(replay, ids))
    return [Place(n, pk, keys.get(pk, "")) for n, pk in enumerate(ids, first_n)]


def insert_items(replay: Replay, wanted: Sequence[Place]) -> int:
    """Create items at these places and return how many jobs were free. The caller's transaction locks the replay.

    A job that another replay has taken since this start is excluded: that replay still has it, or has sent it. `taken`
    counts those jobs, and `blocked` names the replay that took them.
    """
    created = _insert_rows(replay, wanted)
    if missing := [one.failure for one in wanted if one.failure not in created]:
        _record_missing(replay, missing)
    return len(created)


def _insert_rows(replay: Replay, wanted: Sequence[Place]) -> set[int]:
    table, failures = ReplayItem._meta.db_table, Failure._meta.db_table
    rows = ", ".join([f"({one.n}, {one.failure}, %s)" for one in wanted])
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (replay_id, n, failure_id, run, state, job_id, key, claim_epoch, outcome) "
            f"SELECT {replay.pk}, v.column1, f.id, f.run + 1, 'planned', '', v.column3, '', '' "
            # CROSS JOIN makes SQLite scan the few places, not all failures.
            f"FROM (VALUES {rows}) AS v CROSS JOIN {failures} AS f "
            f"WHERE f.id = v.column2 AND NOT EXISTS (SELECT 1 FROM {table} AS o "
            f"WHERE o.failure_id = f.id AND o.id > {replay.highest_item} AND o.replay_id <> {replay.pk} "
            "AND o.sent_at IS NOT NULL AND o.state <> 'cancelled') "  # a recalled job has not run
            # The same order in every transaction: otherwise concurrent inserts could deadlock.
            "ORDER BY f.id ON CONFLICT DO NOTHING RETURNING failure_id",
            [one.key for one in wanted],
        )
        return {pk for (pk,) in cursor.fetchall()}


def _record_missing(replay: Replay, missing: Sequence[int]) -> None:
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
        blocked=merge_blocked(before, taken_rows(Counter(by.values()))),
    )


def taken_rows(counts: Mapping[tuple[int, str], int]) -> list[dict[str, Any]]:
    """Return rows of `Replay.blocked` from the number of jobs that each (replay, its actor) has taken."""
    return [
        {"code": TAKEN, "reason": f"claimed by replay #{pk} of {actor} in the meantime", "count": count, "replay": pk}
        for (pk, actor), count in counts.items()
    ]


def merge_blocked(before: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `before` and `added`, merged to one row per reason."""
    rows = {(row.get("code"), row["reason"]): dict(row) for row in before}
    for row in added:
        known = rows.setdefault((row["code"], row["reason"]), row | {"count": 0})
        known["count"] += row["count"]
    return list(rows.values())


def _read_keys(replay: Replay, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (failure, key) for each failure that has a key."""
    path = (replay.pace.get("per_key") or {}).get("key", "")
    if not path:
        return
    is_argument = path.startswith(("args.", "kwargs."))
    columns = ("args", "kwargs") if is_argument else (path,)
    for pk, *values in Failure.objects.filter(pk__in=ids).values_list("pk", *columns):
        value = value_at(path, *(_parse_arguments(text) for text in values)) if is_argument else values[0]
        if key := _key_of_value(value):
            yield pk, key


def _parse_arguments(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _key_of_value(value: Any) -> str:
    """Return the key under which a value is counted; empty for null, a list, an object or a hidden value."""
    if not isinstance(value, str | int | float) or value == "":
        return ""
    # Text columns accept neither NUL nor lone surrogates: one such job would stop the creation of all items.
    text = representable(value) if isinstance(value, str) else json.dumps(value)
    if any(mark in text for mark in _NO_KEYS):
        return ""
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()
