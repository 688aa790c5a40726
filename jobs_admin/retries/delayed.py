"""Store of a source's delayed jobs, and their way to its queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from kombu.connection import Connection

from jobs_admin import config
from jobs_admin.config import SourceConfig
from jobs_admin.core import sentinel_url
from jobs_admin.worker.broker import Publisher, redis_of
from jobs_admin.worker.delays import Delays, Promoted
from jobs_admin.worker.later import promote

_TIMEOUT_S = 2.0
_WHERE_LISTS_ARE = ("global_keyprefix", "sep", "priority_steps")  # options of kombu, for a broker on Redis


@dataclass(frozen=True, slots=True)
class Place:
    """A Redis with delayed jobs. Calls raise redis.RedisError or OSError."""

    delays: Delays
    publisher: Publisher | None  # if the jobs are not in the broker itself

    def promote(self, late_by_s: float = 0.0) -> Promoted:
        return promote(self.delays, self.publisher, late_by_s)


def places(source: SourceConfig) -> list[Place]:
    """Return the places where the source's workers may delay jobs (`worker/policing.py`), if the guard delays them.

    It is the broker's own Redis if workers can connect to it themselves, else the store. Which one is used depends on
    *their* settings (several servers, credentials from a program), so both are checked. Raises config.BadConfiguration,
    redis.RedisError.
    """
    if not source.system.is_guarded:
        return []
    store = config.store()
    options = {name: source.options[name] for name in _WHERE_LISTS_ARE if name in source.options}
    url, of_sentinels, tls = sentinel_url.for_kombu(source.url)
    options |= of_sentinels
    in_store = Place(
        Delays(store, source.name),
        Publisher(lambda: Connection(url, transport_options=options, ssl=False if tls is None else tls)),
    )
    dial = redis_of(source.url, source.options.get("ssl"))
    if dial is None:
        return [in_store]
    broker = dial(_TIMEOUT_S)
    own = Place(Delays(broker, source.name), None)
    return [own] if _are_one(broker, store) else [own, in_store]


def _are_one(broker: redis.Redis, store: redis.Redis) -> bool:
    """Return whether they are one database: a server may have several names.

    Counted as two, a delivery that its worker still has could be promoted again through the other.
    """
    if _database(broker) != _database(store):
        return False
    try:
        return _run_id(broker) == _run_id(store)
    except redis.ResponseError:  # the server does not allow INFO
        return _address(broker) == _address(store)


def _run_id(client: redis.Redis) -> object:
    return client.info("server")["run_id"]


def _database(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


def _address(client: redis.Redis) -> tuple[Any, ...]:
    options = client.connection_pool.connection_kwargs
    return options.get("path"), options.get("host"), options.get("port")
