"""Ledgers of sent messages: in Redrive's store, written before and after sending, for systems that cannot record a
message as they send it; and in the queues' Redis, for those that can (`AtomicLedger`).

A token is marked `begun` before its message is sent, and `sent` once the system has confirmed it. A token still `begun`
without a running sender is in doubt: its message may have arrived.
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
from jobs_admin.sources.base import OutgoingMessage, SourceRefused, SourceUnreachable
from jobs_admin.worker.redis_clients import replication_id, sentinels_of

_BEGIN = (Path(__file__).parent / "ledger_begin.lua").read_text()
LEDGER_S = 7 * 86400  # lifetime of a ledger
_BEGUN, SENT_MARK, _WITHHELD = b"begun", str(keys.SCHEMA).encode(), b"withheld"

ANSWERS = {1: "sent", 0: "already", -1: "recalled"}  # answers of an `AtomicLedger`'s scripts
OURS, SENT, IN_DOUBT, WITHHELD = 1, 0, 2, 3

_EPOCH = re.compile(rb"[0-9a-f]{32}")


def epoch_of(name: bytes) -> str:
    """Return an epoch from a ledger; for one that is not ours, a digest, so that ledgers stay distinguishable."""
    return name.decode() if _EPOCH.fullmatch(name) else keys.short(name.decode("utf-8", "surrogateescape"))


def _open(client: redis.Redis, key: str) -> str:
    """Return the epoch of a ledger, which is created if needed.

    A promoted replica may lack the previous primary's last marks: through Sentinels, each primary's ledger has an epoch
    of its own.
    """
    pipe = client.pipeline()
    pipe.hsetnx(key, "epoch", uuid.uuid4().hex)
    pipe.hget(key, "epoch")
    pipe.expire(key, LEDGER_S)
    if sentinels_of(client) is None:
        return epoch_of(pipe.execute()[1])
    pipe.info("replication")
    _, name, _, info = pipe.execute()
    return keys.short(f"{epoch_of(name)} {replication_id(info)}")


class AtomicLedger:
    """Base class of sources that send and record in one step: one hash per replay in the queues' Redis.

    Their scripts write `SENT_MARK`. Every method raises SourceUnreachable.
    """

    def __init__(
        self, client: redis.Redis, call: Callable[[Callable[[], Any]], Any], key: Callable[[str], str]
    ) -> None:
        """`call` converts the client's errors; `key` returns the key of a replay's ledger."""
        self._of_ledger = client, call, key

    def epoch(self, replay: str) -> str:
        """Return the epoch of this replay's ledger. Creates the ledger if needed."""
        client, call, key = self._of_ledger

        def create() -> str:
            return _open(client, key(replay))

        return str(call(create))

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        if not tokens:
            return set()
        client, call, key = self._of_ledger
        known = call(lambda: client.hmget(key(replay), [str(token) for token in tokens]))
        return {token for token, mark in zip(tokens, known, strict=True) if mark == SENT_MARK}

    def unsent(self, replay: str, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        sent = self.was_sent(replay, [outgoing.token for outgoing in messages])
        return [outgoing for outgoing in messages if outgoing.token not in sent]

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return set()

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """See `base.Source`. The scripts treat any mark except `SENT_MARK` as "recalled"."""
        if not tokens:
            return set()
        client, call, key = self._of_ledger

        def mark() -> list[bytes]:
            pipe = client.pipeline()
            for token in tokens:
                pipe.hsetnx(key(replay), str(token), _WITHHELD)
            pipe.hmget(key(replay), [str(token) for token in tokens])
            pipe.expire(key(replay), LEDGER_S)
            return list(pipe.execute()[-2])

        return {token for token, mark in zip(tokens, call(mark), strict=True) if mark == SENT_MARK}


Store = Callable[[], "redis.Redis"]


class Ledger:
    """Ledger of all replays of one source. Safe for threads, and for processes that share a store.

    Every method raises SourceUnreachable if the store does not answer.
    """

    def __init__(self, source: str, store: Store | None, prefix: str) -> None:
        """`store` returns a client of Redrive's store with limited timeouts."""
        self._source = source
        self._store = store
        self._prefix = prefix
        self._lock = threading.Lock()
        self._owed: dict[str, set[int]] = defaultdict(set)  # confirmed, but not yet written to the store

    def epoch(self, replay: str) -> str:
        """Return the name of one replay's ledger. Creates the ledger if needed."""
        with self._border() as client:
            return _open(client, self._key(replay))

    def begin(self, replay: str, tokens: Sequence[int]) -> dict[int, int]:
        """Claim tokens. Return token -> OURS (send now), SENT before, WITHHELD or IN_DOUBT.

        Each token is claimed once, by one caller.
        """
        self._settle(replay)
        with self._border() as client:
            answers = client.eval(_BEGIN, 1, self._key(replay), LEDGER_S, _BEGUN, SENT_MARK, *tokens)
            return dict(zip(tokens, answers, strict=True))

    def note(self, replay: str, sent: Collection[int], unsent: Collection[int] = ()) -> None:
        """Record which begun tokens were sent, and which certainly were not and may be begun again."""
        with self._lock:
            self._owed[replay] |= set(sent)
        self._settle(replay, unsent)

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return {token for token, mark in self._marks(replay, tokens).items() if mark == SENT_MARK}

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return {
            token for token, mark in self._marks(replay, tokens).items() if mark not in (SENT_MARK, _WITHHELD, None)
        }

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        """Prevent these tokens from being begun. Return those that were sent; begun ones stay in doubt."""
        if not tokens:
            return set()
        self._settle(replay)
        with self._border() as client:
            pipe = client.pipeline()
            for token in tokens:
                pipe.hsetnx(self._key(replay), str(token), _WITHHELD)
            pipe.hmget(self._key(replay), [str(token) for token in tokens])
            pipe.expire(self._key(replay), LEDGER_S)
            marks = pipe.execute()[-2]
        return {token for token, mark in zip(tokens, marks, strict=True) if mark == SENT_MARK}

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
                pipe.hset(self._key(replay), mapping={str(token): SENT_MARK for token in owed})
            if unsent:
                pipe.hdel(self._key(replay), *(str(token) for token in unsent))
            pipe.expire(self._key(replay), LEDGER_S)
            pipe.execute()
        with self._lock:
            self._owed[replay] -= owed
            if not self._owed[replay]:
                del self._owed[replay]

    def _key(self, replay: str) -> str:
        return keys.ledger(self._source, replay, self._prefix)

    def _border(self) -> Border:
        return Border.of_source(self._source, self._store)


class StoreLedger:
    """Base class of a source whose ledger is in Redrive's store."""

    _ledger: Ledger

    def was_sent(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._ledger.was_sent(replay, tokens)

    def in_doubt(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._ledger.in_doubt(replay, tokens)

    def withhold(self, replay: str, tokens: Sequence[int]) -> set[int]:
        return self._ledger.withhold(replay, tokens)


class Border:
    """Access to the store that raises one kind of error, without a password."""

    @classmethod
    def of_source(cls, source: str, store: Store | None) -> Border:
        """Return the access for a source. Raises SourceRefused without a store."""
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
