"""What a start takes: everything that can go, by number and in the order of sending, in batches to be laid out later.

The choice is read outside of any write lock and written as a few hundred rows: a start of a million jobs holds up nobody.
"""

from __future__ import annotations

import random
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from jobs_admin.models import Failure, FrozenBatch, Replay

FIRST = 200  # jobs of the first batch, which the start itself lays out
BATCH = 1_000  # of the others: what one short transaction lays out

_PRIME = 2_147_483_647  # below it, the product of two numbers is a 64-bit one


@dataclass(frozen=True, slots=True)
class Frozen:
    first: list[int]  # ids of failures
    rest: list[tuple[int, bytes]]  # (how many, their ids packed)
    sources: list[str]
    total: int


def frozen(ready: QuerySet[Failure], shuffle: str = "") -> Frozen:
    """All of these failures in the order of sending.

    The first of each tenant, then the second of each, and so on, the oldest first; where `shuffle` names a seed, in an
    order of its own instead of by age.
    """
    first: list[int] = []
    rest: list[tuple[int, bytes]] = []
    sources: set[str] = set()
    for ids, of in _read(ready, shuffle):
        sources |= of
        if not first:
            first, ids = ids[:FIRST], ids[FIRST:]
        if ids:
            rest.append((len(ids), packed(ids)))
    return Frozen(first, rest, sorted(sources), len(first) + sum(count for count, _ in rest))


def write(replay: Replay, frozen: Frozen, *, with_first: bool) -> None:
    """Keep it, in the transaction of the caller, until it is laid out."""
    batches = [(len(frozen.first), packed(frozen.first)), *frozen.rest] if with_first else frozen.rest
    first_n = 1 if with_first else 1 + len(frozen.first)
    places = accumulate((count for count, _ in batches), initial=first_n)
    FrozenBatch.objects.bulk_create(
        FrozenBatch(replay=replay, first_n=n, count=count, ids=ids)
        for n, (count, ids) in zip(places, batches, strict=False)
    )


def packed(ids: Sequence[int]) -> bytes:
    """Each as its distance from the one before, compressed: two or three bytes."""
    distances = array("q", map(sub, ids, [0, *ids[:-1]]))
    if sys.byteorder == "big":
        distances.byteswap()
    return zlib.compress(distances.tobytes(), 1)


def unpacked(batch: FrozenBatch) -> list[int]:
    distances = array("q", zlib.decompress(bytes(batch.ids)))
    if sys.byteorder == "big":
        distances.byteswap()
    return list(accumulate(distances))


def _read(ready: QuerySet[Failure], shuffle: str) -> Iterator[tuple[list[int], set[str]]]:
    """(ids, their sources), some at a time. The database orders them: what we hold does not grow with their number."""
    try:
        chosen, values = ready.order_by().values_list("pk", "tenant", "source").query.sql_with_params()
    except EmptyResultSet:
        return
    place, mixed = _order(shuffle)
    statement = (
        f"WITH chosen(id, tenant, source) AS ({chosen}), "
        f"mixed AS (SELECT id, tenant, source, {mixed} AS h FROM chosen), "
        f"placed AS (SELECT id, tenant, source, {place} AS place FROM mixed), "
        "fair AS (SELECT id, source, place, "
        "ROW_NUMBER() OVER (PARTITION BY tenant ORDER BY place, id) AS turn FROM placed) "
        "SELECT id, source FROM fair ORDER BY turn, place, id"
    )
    # On PostgreSQL a cursor that hands them over bit by bit; SQLite's always does.
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement, values)
        while rows := cursor.fetchmany(FIRST + BATCH):
            yield [pk for pk, _ in rows], {source for _, source in rows}


def _order(shuffle: str) -> tuple[str, str]:
    """The columns `place` and `h`. Mixed by arithmetic that both databases do alike: the same seed, the same order."""
    if not shuffle:
        return "id", "0"
    seeded = random.Random(shuffle)
    a, b, c = (seeded.randrange(1, _PRIME) for _ in range(3))
    return f"(h * h %% {_PRIME} * {c} + h) %% {_PRIME}", f"(id %% {_PRIME} * {a} + {b}) %% {_PRIME}"
