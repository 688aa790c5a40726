"""Clients of a Redis by its URL: of one server, or of the primary that Sentinels name.

Through Sentinels, each connection asks them for the primary and then asks the server for its role. A server that was
replaced takes writes for some seconds, which are then lost: while connections are used, the Sentinels are asked each
second, and a connection to an earlier primary is closed at its next use. No command is repeated: one whose answer was
lost may have been carried out by the earlier primary.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, parse_url
from redis.retry import Retry

from jobs_admin.core import sentinel_url
from jobs_admin.core.sentinel_url import SentinelUrl
from jobs_admin.core.service_url import for_redis_py

try:
    from redis.maint_notifications import MaintNotificationsConfig

    # With these notifications, a pool of redis-py hands out connections that the server has closed.
    _CHECKED: dict[str, Any] = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
except ImportError:  # an older redis-py
    _CHECKED = {}

SENTINEL_TIMEOUT_S = 1.0
REFRESH_S = 1.0
_SILENT_S = 10.0  # a Sentinel that did not answer is asked last for this time


class NoPrimary(redis.ConnectionError):
    """The Sentinels name no usable primary. The message may be shown."""


@dataclass(frozen=True, slots=True)
class SentinelView:
    """Answer of one Sentinel. `why_not`: why it names no primary; "" if it names one."""

    sentinel: str
    primary: tuple[str, int] | None = None
    config_epoch: int = 0
    quorum: int = 0
    sentinels: int = 0
    replicas: int = 0
    why_not: str = ""
    is_silent: bool = False


class Sentinels:
    """The Sentinels of one set of servers. Thread-safe."""

    def __init__(self, found: SentinelUrl) -> None:
        self.url = found
        self.primary: tuple[str, int] | None = None  # as last found
        self._asked_at = 0.0  # monotonic
        self._silent: dict[tuple[str, int], float] = {}  # until when, monotonic
        _, options = _server_options(found)
        self._tls = {"ssl": True} | {k: v for k, v in options.items() if k.startswith("ssl_")} if found.is_tls else {}

    def find_primary(self) -> tuple[str, int]:
        """Return host and port of the primary. Raises NoPrimary.

        A Sentinel that was away may name an earlier primary: of the answers of a majority, the one of the latest
        fail-over counts.
        """
        now = time.monotonic()
        most = len(self.url.sentinels) // 2 + 1
        views: list[SentinelView] = []
        for address in sorted(self.url.sentinels, key=lambda one: self._silent.get(one, 0.0) > now):
            views.append(view := self._query(address))
            if sum(one.primary is not None for one in views) >= most:
                break
            self._silent[address] = now + _SILENT_S if view.is_silent else 0.0
        # Silent Sentinels cost a second each: commands must not wait for them again and again.
        self._asked_at = time.monotonic() + (_SILENT_S if any(view.is_silent for view in views) else 0.0)
        named = [view for view in views if view.primary is not None]
        if not named:
            raise NoPrimary(self._explain(views))
        best = max(named, key=lambda view: view.config_epoch).primary
        assert best is not None
        self.primary = best
        return best

    def is_primary(self, address: tuple[str, int]) -> bool:
        """Return whether this is the primary, as far as is known. Asks the Sentinels if the last answer is old."""
        if time.monotonic() - self._asked_at > REFRESH_S:
            with suppress(NoPrimary):
                self.find_primary()
        return self.primary in (None, address)

    def views(self) -> list[SentinelView]:
        """Return the answer of every Sentinel."""
        return [self._query(address) for address in self.url.sentinels]

    def _explain(self, views: list[SentinelView]) -> str:
        return f"no primary of the set {self.url.set_name} is known: " + "; ".join(
            f"{view.sentinel} {view.why_not}" for view in views
        )

    def _query(self, address: tuple[str, int]) -> SentinelView:
        host, port = address
        name = f"{host}:{port}"
        client = redis.Redis(
            host=host,
            port=port,
            username=self.url.username or None,
            password=self.url.password or None,
            socket_timeout=SENTINEL_TIMEOUT_S,
            socket_connect_timeout=SENTINEL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **self._tls,
        )
        try:
            answer: Any = cast(Any, client).execute_command("SENTINEL", "MASTER", self.url.set_name)
            state = _state(answer)
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
            return SentinelView(name, why_not="refuses the login (sentinel_username, sentinel_password)")
        except redis.ResponseError as error:
            if "No such master" in str(error):
                return SentinelView(name, why_not="does not know this set")
            if "NOAUTH" in str(error):
                return SentinelView(name, why_not="refuses the login (sentinel_username, sentinel_password)")
            return SentinelView(name, why_not="is not a Sentinel")
        except (redis.RedisError, OSError) as error:
            return SentinelView(name, why_not=f"does not answer ({type(error).__name__})", is_silent=True)
        finally:
            with suppress(redis.RedisError, OSError):
                client.connection_pool.disconnect()
        flags = set(state.get("flags", "").split(","))

        def number(key: str) -> int:
            return int(state[key]) if state.get(key, "").isdecimal() else 0

        config_epoch, quorum, replicas = number("config-epoch"), number("quorum"), number("num-slaves")
        view = SentinelView(name, None, config_epoch, quorum, 1 + number("num-other-sentinels"), replicas)
        if flags & {"s_down", "o_down"} or not state.get("port", "").isdecimal():
            why = f"finds the primary {state.get('ip', '')}:{state.get('port', '')} down"
            return replace(view, why_not=why)
        return replace(view, primary=(state["ip"], int(state["port"])))


def _state(answer: Any) -> dict[str, str]:
    pairs: Iterator[tuple[Any, Any]]
    if isinstance(answer, Mapping):
        pairs = iter(answer.items())
    else:
        pairs = zip(answer[::2], answer[1::2], strict=False) if isinstance(answer, list) else iter(())
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def from_url(url: str, **options: Any) -> redis.Redis:
    """Return a client; it connects at first use. The URL's own options precede `options`.

    Through Sentinels a command is never repeated automatically. Raises ValueError for an unusable URL (its subclass
    `service_url.Unreadable` if the message may be shown).
    """
    found = sentinel_url.parse(url)
    if found is None:
        return redis.Redis.from_url(for_redis_py(url), **options)
    kind, given = _server_options(found)
    options |= given
    options |= {"retry": Retry(NoBackoff(), 0), "retry_on_timeout": False, "redis_connect_func": _greet, **_CHECKED}
    pool = ConnectionPool(connection_class=_class_to_primary(kind), sentinels=_sentinels_at(found), **options)
    client = redis.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


@functools.cache
def _sentinels_at(found: SentinelUrl) -> Sentinels:
    return Sentinels(found)


def is_outdated(connection: Any) -> bool:
    """Return whether an open connection leads to a server that is no longer the primary."""
    return isinstance(connection, _ToPrimary) and not connection.is_to_primary()


def sentinels_of(client: redis.Redis) -> Sentinels | None:
    """Return the Sentinels through which a client finds its server; None for a client of one server."""
    found = client.connection_pool.connection_kwargs.get("sentinels")
    return found if isinstance(found, Sentinels) else None


def replication_id(info: Mapping[str, Any]) -> str:
    """Return what `INFO replication` calls the history of a primary. A promoted replica begins a new one."""
    return str(info.get("master_replid", ""))


def _server_options(found: SentinelUrl) -> tuple[type[Any], dict[str, Any]]:
    given = dict(cast(Any, parse_url)(for_redis_py(found.server_url)))
    kind = given.pop("connection_class", Connection)
    del given["host"]
    return kind, given


def _class_to_primary(kind: type[Any]) -> type[Any]:
    return type("ToPrimary", (_ToPrimary, kind), {})


class _ToPrimary:
    """A connection to the current primary."""

    host: str
    port: int

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        super().__init__(**options)

    def _connect(self) -> Any:
        self.host, self.port = self._sentinels.find_primary()
        return super()._connect()  # type: ignore[misc]

    def is_to_primary(self) -> bool:
        return self._sentinels.is_primary((self.host, self.port))

    def can_read(self, timeout: float = 0) -> Any:
        """Raise redis.ConnectionError if another connection found a new primary. Pools check this before each use."""
        if not self.is_to_primary():
            raise redis.ConnectionError(f"{self.host}:{self.port} is no longer the primary")
        return super().can_read(timeout)  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            # In a script of Redis 6.2, READONLY is part of the message.
            if not isinstance(error, redis.exceptions.ReadOnlyError) and "READONLY" not in str(error):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise NoPrimary(f"{self.host}:{self.port} is no longer the primary; nothing was written") from error


def _greet(connection: Any) -> None:
    """Log in, and check that the server is a primary: one that returns takes writes until it is made a replica."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()
    except redis.exceptions.NoPermissionError:
        return  # this user may not ask; the Sentinels' answer counts
    if isinstance(role, list) and role and _text(role[0]) != "master":
        raise NoPrimary(f"{connection.host}:{connection.port} is a replica; the fail-over has not ended")
