"""What a start takes: everything that can go, by number and in the order of sending, in batches to be laid out later.

The choice is read outside of any write lock and written as a few hundred rows: a start of a million jobs holds up nobody.
"""

from __future__ import annotations

import random
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

from jobs_admin.models import FrozenBatch, Replay

FIRST = 200  # jobs of the first batch, which the start itself lays out
_SAMPLED = 4_000  # jobs whose groups are looked up: reading one of each row is what it costs
BATCH = 1_000  # of the others: what one short transaction lays out


@dataclass(frozen=True, slots=True)
class Frozen:
    first: list[int]  # ids of failures
    rest: list[tuple[int, bytes]]  # (how many, their ids packed)
    by_source: dict[str, int]
    total: int

    @property
    def sources(self) -> list[str]:
        return sorted(self.by_source)


GroupsOf = Callable[[Sequence[int]], Mapping[int, int | None]]


def frozen(ready: Iterable[tuple[int, str, str]], shuffle: str = "", groups_of: GroupsOf | None = None) -> Frozen:
    """All of these failures, (id, tenant, source) each, the lowest id first, in the order of sending.

    The first of each tenant, then the second of each, and so on, the oldest first; where `shuffle` names a seed, in an
    order of its own instead of by age. Takes some 50 bytes of memory a job. Before all others go `FIRST` jobs that are
    drawn over the groups, which `groups_of` tells: one of each, those of the largest first, then by their shares.
    """
    ids, tenants, by_source = array("q"), array("l"), Counter[str]()
    numbers: dict[str, int] = {}
    for pk, tenant, source in ready:
        ids.append(pk)
        tenants.append(numbers.setdefault(tenant, len(numbers)))
        by_source[source] += 1
    order = _fair(ids, tenants, len(numbers), shuffle)
    if groups_of is not None:
        order = _drawn_first(order, groups_of)
    batches = (order[at : at + BATCH] for at in range(FIRST, len(order), BATCH))
    rest = [(len(batch), packed(batch)) for batch in batches]
    return Frozen(order[:FIRST], rest, dict(by_source), len(order))


def _drawn_first(order: list[int], groups_of: GroupsOf) -> list[int]:
    """Look up groups only for a sample of jobs spread evenly over all, which suffices for their shares."""
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
    # Of each group evenly over the rest: the second of two after half of it.
    rest = sorted(((n + 0.5) / len(mine), pk) for mine in largest for n, pk in enumerate(mine[1:]))
    drawn += [pk for _, pk in rest[: FIRST - len(drawn)]]
    gone = set(drawn)
    return drawn + [pk for pk in order if pk not in gone]


def _fair(ids: array[int], tenants: array[int], most: int, shuffle: str) -> list[int]:
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
