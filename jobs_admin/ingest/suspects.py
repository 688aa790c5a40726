"""Protection from entries that end the process which reads them (out of memory, a native crash, an endless loop).

While a process reads a batch, and only then, the batch's entries are in a hash of the store, under a name unique to the
process. Entries that other processes left there ended them. A batch that did so three times is read entry by entry; an
entry that ended a process alone is excluded, and the caller stores it raw.

Reading depends on nothing else: an unreachable, slow or locked database does not make an entry suspect.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.core.envelope import ENDS_READER

T = TypeVar("T")


class Entry(Protocol):
    """An entry of a stream."""

    @property
    def name(self) -> str: ...


E = TypeVar("E", bound=Entry)

DEATHS_TOGETHER = 3
_FORGOTTEN_S = 86_400


@dataclass(slots=True)
class _Suspects:
    """Known deaths over the entries of a batch."""

    deaths: int = 0  # processes that ended while reading some of them
    alone: set[str] = field(default_factory=set)  # entries that ended a process alone
    left: dict[bytes, dict[str, Any]] = field(default_factory=dict)  # what those processes left in the hash


def read_entries(
    store: redis.Redis,
    process: str,
    entries: Sequence[E],
    read: Callable[[Sequence[E]], T],
    exclude: Callable[[E, str], T],
) -> list[T]:
    """Return the results of `read` for the entries, in one batch or individually.

    Entries that end their reader are passed to `exclude` instead.
    """
    named = {entry.name: entry for entry in entries}
    if not named:
        return []
    name = f"{process} {_process_token(os.getpid())}"
    known = _find_suspects(store, name, set(named))
    if known.deaths < DEATHS_TOGETHER:
        _mark_reading(store, name, sorted(named), known.deaths + 1)
        made = [read(entries)]
    else:
        made = list(_read_one_by_one(store, name, named, known, read, exclude))
    _unmark(store, name, set(named), known)
    return made


def _read_one_by_one(
    store: redis.Redis,
    name: str,
    named: dict[str, E],
    known: _Suspects,
    read: Callable[[Sequence[E]], T],
    exclude: Callable[[E, str], T],
) -> Iterator[T]:
    for entry_id, entry in named.items():
        if entry_id in known.alone:
            yield exclude(entry, f"{ENDS_READER}each time, {known.deaths} times so far")
        else:
            _mark_reading(store, name, [entry_id], DEATHS_TOGETHER + 1)
            yield read([entry])


@cache
def _process_token(pid: int) -> str:
    """Return a token that is unique to the process: the next container may have the same pid."""
    return uuid4().hex


def _find_suspects(store: redis.Redis, name: str, ids: set[str]) -> _Suspects:
    known = _Suspects()
    noted: Any = store.hgetall(keys.reading())
    for other, text in noted.items():
        if other.decode("utf-8", "replace") == name:
            continue  # this process is alive: the store was unreachable when the record should have been removed
        record = untrusted.read_object(text)
        at, named = untrusted.number(record.get("at")), record.get("ids")
        if at is None or not isinstance(named, list):
            continue
        theirs = {one for one in named if isinstance(one, str)}
        deaths, age_s = int(untrusted.number(record.get("deaths")) or 0), time.time() - at
        record["ids"] = sorted(theirs)
        if age_s > _FORGOTTEN_S:
            store.hdel(keys.reading(), other)
            continue
        if theirs & ids:
            known.left[other] = record
            known.deaths = max(known.deaths, deaths)
            if deaths > DEATHS_TOGETHER:
                known.alone |= theirs & ids
    return known


def _mark_reading(store: redis.Redis, name: str, ids: list[str], deaths: int) -> None:
    with store.pipeline(transaction=True) as pipe:
        pipe.hset(keys.reading(), name, json.dumps({"ids": ids, "deaths": deaths, "at": time.time()}))
        pipe.expire(keys.reading(), _FORGOTTEN_S)
        pipe.execute()


def _unmark(store: redis.Redis, name: str, ids: set[str], known: _Suspects) -> None:
    """Mark these as read. Other entries of the same earlier batches, not read yet, remain suspect."""
    with store.pipeline(transaction=True) as pipe:
        pipe.hdel(keys.reading(), name)
        for other, record in known.left.items():
            # An excluded entry stays recorded until it is removed from the stream: filing comes later, and may fail.
            rest = sorted(set(record["ids"]) - (ids - known.alone))
            if rest:
                # Renewed: the entry may stay in its stream for as long as there is no room for it.
                pipe.hset(keys.reading(), other, json.dumps({**record, "ids": rest, "at": time.time()}))
            else:
                pipe.hdel(keys.reading(), other)
        pipe.execute()
