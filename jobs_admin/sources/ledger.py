"""Ledger of what was sent to a system that cannot record it in the same step: written to Redrive's store before and
after.

A token is marked `begun` before its message leaves, `sent` once the system has confirmed it. What is still `begun` when
no sender is at work is in doubt: it may have arrived.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import redis

from jobs_admin.core import keys
from jobs_admin.sources.base import SourceRefused, SourceUnreachable

_BEGIN = (Path(__file__).parent / "ledger_begin.lua").read_text()
_LIVES_S = 7 * 86400
_BEGUN, _SENT, _WITHHELD = b"begun", str(keys.SCHEMA).encode(), b"withheld"

OURS, SENT, IN_DOUBT, WITHHELD = 1, 0, 2, 3

_EPOCH = re.compile(rb"[0-9a-f]{32}")


def epoch_of(name: bytes) -> str:
    """Return an epoch as a ledger has it; for one that is not ours, a digest of it, so that ledgers stay
    distinguishable."""
    return name.decode() if _EPOCH.fullmatch(name) else keys.short(name.decode("utf-8", "surrogateescape"))


Store = Callable[[], "redis.Redis"]


class Ledger:
    """Ledger of all replays of one source. May be used by several threads, and by several processes on one store.

    Every method raises SourceUnreachable where the store does not answer.
    """

    def __init__(self, source: str, store: Store | None, prefix: str) -> None:
        """`store` returns a client of Redrive's store, which bounds its waits."""
        self._source = source
        self._store = store
        self._prefix = prefix
        self._lock = threading.Lock()
        self._owed: dict[str, set[int]] = defaultdict(set)  # confirmed, but not written to the store yet

    def epoch(self, replay: str) -> str:
        """Return the name of one replay's ledger, and create it where there is none."""
        with self._border() as client:
            key = self._key(replay)
            pipe = client.pipeline()
            pipe.hsetnx(key, "epoch", uuid.uuid4().hex)
            pipe.hget(key, "epoch")
            pipe.expire(key, _LIVES_S)
            return epoch_of(pipe.execute()[1])

    def begin(self, replay: str, tokens: Sequence[int]) -> dict[int, int]:
        """Claim tokens: token -> OURS, to be sent now; SENT before; WITHHELD; IN_DOUBT.

        Each is claimed once, by one caller only.
        """
        self._settle(replay)
        with self._border() as client:
            answers = client.eval(_BEGIN, 1, self._key(replay), _LIVES_S, _BEGUN, _SENT, *tokens)
            return dict(zip(tokens, answers, strict=True))

    def note(self, replay: str, sent: Collection[int], unsent: Collection[int] = ()) -> None:
        """Record which of the begun tokens were sent, and which were surely not and may be begun again."""
        with self._lock:
            self._owed[replay] |= set(sent)
        self._settle(replay, unsent)

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return {token for token, mark in self._marks(replay, tokens).items() if mark == _SENT}

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return {token for token, mark in self._marks(replay, tokens).items() if mark not in (_SENT, _WITHHELD, None)}

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Let none of these be begun any more. Return those that were sent; what was begun stays in doubt."""
        if not tokens:
            return set()
        self._settle(replay)
        with self._border() as client:
            pipe = client.pipeline()
            for token in tokens:
                pipe.hsetnx(self._key(replay), str(token), _WITHHELD)
            pipe.hmget(self._key(replay), [str(token) for token in tokens])
            pipe.expire(self._key(replay), _LIVES_S)
            marks = pipe.execute()[-2]
        return {token for token, mark in zip(tokens, marks, strict=True) if mark == _SENT}

    def _marks(self, replay: str, tokens: Sequence[int]) -> dict[int, bytes | None]:
        if not tokens:
            return {}
        self._settle(replay)
        with self._border() as client:
            marks: list[Any] = client.hmget(self._key(replay), [str(n) for n in tokens])
            return dict(zip(tokens, marks, strict=True))

    def _settle(self, replay: str, unsent: Collection[int] = ()) -> None:
        with self._lock:
            owed = set(self._owed.get(replay, ()))
        if not owed and not unsent:
            return
        with self._border() as client:
            pipe = client.pipeline()
            if owed:
                pipe.hset(self._key(replay), mapping={str(token): _SENT for token in owed})
            if unsent:
                pipe.hdel(self._key(replay), *(str(token) for token in unsent))
            pipe.expire(self._key(replay), _LIVES_S)
            pipe.execute()
        with self._lock:
            self._owed[replay] -= owed
            if not self._owed[replay]:
                del self._owed[replay]

    def _key(self, replay: str) -> str:
        return keys.ledger(self._source, replay, self._prefix)

    def _border(self) -> Border:
        return Border.of_source(self._source, self._store)


class Border:
    """Access to the store: one kind of error leaves it, and no password with it."""

    @classmethod
    def of_source(cls, source: str, store: Store | None) -> Border:
        """Return access for a source. Raises SourceRefused where there is no store."""
        if store is None:
            raise SourceRefused(f"Source {source}: it has no store to note in what it sends. Nothing was sent.")
        return cls(store)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> redis.Redis:
        return self._store()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, redis.TimeoutError):
            raise SourceUnreachable("Redrive's store (REDRIVE_REDIS_URL) did not answer in time.") from error
        if isinstance(error, redis.RedisError | OSError):
            raise SourceUnreachable(f"Redrive's store (REDRIVE_REDIS_URL) failed ({type(error).__name__}).") from error
