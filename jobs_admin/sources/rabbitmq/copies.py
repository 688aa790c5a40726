"""Redrive's record of dead letters that are, or were, in RabbitMQ's own queues.

RabbitMQ messages have no id. So equal messages are distinguished by a number, and the numbers removed from a queue are
stored here: a later message equal to a removed one is another dead letter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from jobs_admin.core import keys, untrusted
from jobs_admin.sources.ledger import Border, Store

_LIVES_S = 14 * 86400
_MOST = 200_000  # names per queue; the oldest are dropped
_UNACKNOWLEDGED_S = 60
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Owed:
    """A copy to remove once its replay is known to be sent."""

    replay: str
    token: int


def _owed(value: bytes) -> Owed | None:
    match untrusted.read(value):
        case [str(replay), int(token)] if token is not True and token is not False:
            return Owed(replay, token)
    return None


class Copies:
    """Records of all dead-letter queues of one source. Every method raises like `Ledger`'s."""

    def __init__(self, source: str, store: Store | None, prefix: str) -> None:
        self._source, self._store, self._prefix = source, store, prefix

    def find_taken(self, dlq: str, names: Collection[str]) -> set[str]:
        """Return the names removed from the queue before."""
        found: set[str] = set()
        every = list(names)
        with self._border() as client:
            for start in range(0, len(every), _AT_ONCE):
                some = every[start : start + _AT_ONCE]
                scores = client.zmscore(self._key("taken", dlq), some)
                found |= {name for name, score in zip(some, scores, strict=True) if score is not None}
        return found

    def recently_taken(self, dlq: str, within_s: float) -> set[str]:
        with self._border() as client:
            names: list[bytes] = client.zrangebyscore(self._key("taken", dlq), time.time() - within_s, "+inf")  # type: ignore[assignment]
        return {name.decode("utf-8", "replace") for name in names}

    def taking(self, dlq: str) -> set[str]:
        """Return the names whose removal was begun and not recorded as finished."""
        with self._border() as client:
            names: set[bytes] = client.smembers(self._key("taking", dlq))  # type: ignore[assignment]
        return {name.decode("utf-8", "replace") for name in names}

    def begin_taking(self, dlq: str, names: Collection[str]) -> None:
        """Record that these are about to be removed."""
        self._add("taking", dlq, names)

    def finish_taking(self, dlq: str, names: Collection[str]) -> None:
        """Record that these are removed from the queue for good."""
        if not names:
            return
        with self._border() as client:
            pipe = client.pipeline()
            pipe.zadd(self._key("taken", dlq), dict.fromkeys(names, time.time()))
            pipe.zremrangebyscore(self._key("taken", dlq), 0, time.time() - _LIVES_S)
            pipe.zremrangebyrank(self._key("taken", dlq), 0, -_MOST - 1)
            pipe.expire(self._key("taken", dlq), _LIVES_S)
            pipe.srem(self._key("taking", dlq), *names)
            pipe.hdel(self._key("owed", dlq), *names)
            pipe.execute()

    def leave(self, dlq: str, names: Collection[str]) -> None:
        """Record that these stay in the queue: no removal is pending."""
        if names:
            with self._border() as client:
                pipe = client.pipeline()
                pipe.srem(self._key("taking", dlq), *names)
                pipe.hdel(self._key("owed", dlq), *names)
                pipe.execute()

    def add_owed(self, dlq: str, owed: Mapping[str, Owed]) -> None:
        if owed:
            with self._border() as client:
                pipe = client.pipeline()
                entries = {name: json.dumps([one.replay, one.token]) for name, one in owed.items()}
                pipe.hset(self._key("owed", dlq), mapping=entries)  # type: ignore[arg-type]
                pipe.expire(self._key("owed", dlq), _LIVES_S)
                pipe.execute()

    def owed(self, dlq: str) -> dict[str, Owed]:
        with self._border() as client:
            found: dict[bytes, bytes] = client.hgetall(self._key("owed", dlq))  # type: ignore[assignment]
        return {
            name.decode("utf-8", "replace"): owed for name, value in found.items() if (owed := _owed(value)) is not None
        }

    def set_unacknowledged(self, dlq: str, count: int) -> None:
        """Record the number of messages that are fetched and about to be returned: RabbitMQ does not count them as
        in the queue.
        """
        with self._border() as client:
            if count:
                client.set(self._key("held", dlq), count, ex=_UNACKNOWLEDGED_S)
            else:
                client.delete(self._key("held", dlq))

    def unacknowledged_counts(self, dlqs: Iterable[str]) -> dict[str, int]:
        names = list(dlqs)
        if not names:
            return {}
        with self._border() as client:
            counts = client.mget([self._key("held", name) for name in names])
        return {name: untrusted.integer(count) or 0 for name, count in zip(names, counts, strict=True)}

    def _add(self, what: str, dlq: str, names: Collection[str]) -> None:
        if names:
            with self._border() as client:
                pipe = client.pipeline()
                pipe.sadd(self._key(what, dlq), *names)
                pipe.expire(self._key(what, dlq), _LIVES_S)
                pipe.execute()

    def _key(self, what: str, dlq: str) -> str:
        return keys.dead_letters(self._source, what, dlq, self._prefix)

    def _border(self) -> Border:
        return Border.of_source(self._source, self._store)
