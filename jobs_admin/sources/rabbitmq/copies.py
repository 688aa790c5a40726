"""What Redrive's store remembers of dead letters that lay, or lie, in RabbitMQ's own queues.

RabbitMQ gives a message no name. So equal messages are told apart by their number among equals, and which numbers were taken
out of a queue is kept here: what comes later and is equal to one of them is another dead letter, not the same once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from jobs_admin.core import keys, untrusted
from jobs_admin.sources.ledger import Border, Store

_LIVES_S = 14 * 86400
_MOST = 200_000  # names of a queue; the oldest go
_HELD_S = 60
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Owed:
    """A copy that is to go once its replay is known to be sent."""

    replay: str
    token: int


def _owed(said: bytes) -> Owed | None:
    match untrusted.read(said):
        case [str(replay), int(token)] if token is not True and token is not False:
            return Owed(replay, token)
    return None


class Copies:
    """Of all dead-letter queues of one source. Every method raises as `Ledger`'s do."""

    def __init__(self, source: str, store: Store | None, prefix: str) -> None:
        self._source, self._store, self._prefix = source, store, prefix

    def taken(self, dlq: str, names: Collection[str]) -> set[str]:
        """Those of the names that were taken out of the queue before."""
        found: set[str] = set()
        every = list(names)
        with self._asked() as client:
            for start in range(0, len(every), _AT_ONCE):
                some = every[start : start + _AT_ONCE]
                scores = client.zmscore(self._key("taken", dlq), some)
                found |= {name for name, score in zip(some, scores, strict=True) if score is not None}
        return found

    def taken_lately(self, dlq: str, within_s: float) -> set[str]:
        with self._asked() as client:
            names: list[bytes] = client.zrangebyscore(self._key("taken", dlq), time.time() - within_s, "+inf")  # type: ignore[assignment]
        return {name.decode("utf-8", "replace") for name in names}

    def taking(self, dlq: str) -> set[str]:
        """Names that somebody was about to take out, and was not told whether they are."""
        with self._asked() as client:
            names: set[bytes] = client.smembers(self._key("taking", dlq))  # type: ignore[assignment]
        return {name.decode("utf-8", "replace") for name in names}

    def take(self, dlq: str, names: Collection[str]) -> None:
        """Before they are taken out."""
        self._add("taking", dlq, names)

    def took(self, dlq: str, names: Collection[str]) -> None:
        """They are out of the queue for good."""
        if not names:
            return
        with self._asked() as client:
            pipe = client.pipeline()
            pipe.zadd(self._key("taken", dlq), dict.fromkeys(names, time.time()))
            pipe.zremrangebyscore(self._key("taken", dlq), 0, time.time() - _LIVES_S)
            pipe.zremrangebyrank(self._key("taken", dlq), 0, -_MOST - 1)
            pipe.expire(self._key("taken", dlq), _LIVES_S)
            pipe.srem(self._key("taking", dlq), *names)
            pipe.hdel(self._key("owed", dlq), *names)
            pipe.execute()

    def leave(self, dlq: str, names: Collection[str]) -> None:
        """They stay in the queue, whatever was meant to become of them."""
        if names:
            with self._asked() as client:
                pipe = client.pipeline()
                pipe.srem(self._key("taking", dlq), *names)
                pipe.hdel(self._key("owed", dlq), *names)
                pipe.execute()

    def owe(self, dlq: str, owed: Mapping[str, Owed]) -> None:
        if owed:
            with self._asked() as client:
                pipe = client.pipeline()
                said = {name: json.dumps([one.replay, one.token]) for name, one in owed.items()}
                pipe.hset(self._key("owed", dlq), mapping=said)  # type: ignore[arg-type]
                pipe.expire(self._key("owed", dlq), _LIVES_S)
                pipe.execute()

    def owed(self, dlq: str) -> dict[str, Owed]:
        with self._asked() as client:
            found: dict[bytes, bytes] = client.hgetall(self._key("owed", dlq))  # type: ignore[assignment]
        return {
            name.decode("utf-8", "replace"): owed for name, said in found.items() if (owed := _owed(said)) is not None
        }

    def holding(self, dlq: str, count: int) -> None:
        """So many are looked at just now, and given back: they lie there, though RabbitMQ does not count them."""
        with self._asked() as client:
            if count:
                client.set(self._key("held", dlq), count, ex=_HELD_S)
            else:
                client.delete(self._key("held", dlq))

    def held(self, dlqs: Iterable[str]) -> dict[str, int]:
        names = list(dlqs)
        if not names:
            return {}
        with self._asked() as client:
            counts = client.mget([self._key("held", name) for name in names])
        return {name: untrusted.whole(count) or 0 for name, count in zip(names, counts, strict=True)}

    def _add(self, what: str, dlq: str, names: Collection[str]) -> None:
        if names:
            with self._asked() as client:
                pipe = client.pipeline()
                pipe.sadd(self._key(what, dlq), *names)
                pipe.expire(self._key(what, dlq), _LIVES_S)
                pipe.execute()

    def _key(self, what: str, dlq: str) -> str:
        return keys.dead_letters(self._source, what, dlq, self._prefix)

    def _asked(self) -> Border:
        return Border.of(self._source, self._store)
