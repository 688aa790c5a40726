"""Broker access for retries: the broker's own Redis, or a confirmed publish if that Redis cannot be used directly."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import redis
from kombu.connection import Connection
from kombu.messaging import Producer
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.core import amqp, sentinel_url, service_url
from jobs_admin.core.service_url import for_redis_py
from jobs_admin.worker.redis_clients import from_url

PUBLISH_SECONDS = 5.0
# Older versions of kombu do not limit the wait for a confirmation.
_BOUNDED = {
    name: PUBLISH_SECONDS
    for name in ("timeout", "confirm_timeout")
    if name in inspect.signature(Producer.publish).parameters
}
_SCHEMES = ("redis", "rediss", "redis+socket")


class NotPublished(Exception):
    """The broker did not confirm the message: it may or may not have it."""


class BrokenConnection(NotPublished):
    """The connection broke while the message was being sent."""


class BrokerAway(NotPublished):
    """Nothing was sent: there is no connection, so other messages would fail too."""


class Unpublishable(NotPublished):
    """The broker rejects this message. Others may succeed."""


def redis_of(url: str, ssl: Any = None) -> Callable[[float], redis.Redis] | None:
    """Return a factory of clients for a broker's own Redis; its argument is the timeout in seconds. None: not usable.

    Sentinels, clusters and server lists are left to kombu, which knows the current leader. `ssl` is Celery's
    `broker_use_ssl`.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES or ";" in url or "," in rest.rpartition("@")[2].partition("/")[0]:
        return None
    options: dict[str, Any] = dict(ssl) if isinstance(ssl, dict) else {}
    if ssl and scheme == "redis":
        url = f"rediss://{rest}"

    def client(seconds: float) -> redis.Redis:
        return redis.Redis.from_url(
            for_redis_py(url),
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            socket_keepalive=True,
            # One retry for a connection that the server closed while idle; none after a timeout.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            **options,
        )

    try:
        client(1.0)  # does not connect: checks that the URL can be parsed
    except (ValueError, TypeError, service_url.Unreadable):
        return None
    return client


def redis_of_store(url: str) -> Callable[[float], redis.Redis] | None:
    """Return a factory like `redis_of`, for Redrive's store, which may be found through Sentinels."""
    if not sentinel_url.is_sentinel(url):
        return redis_of(url)

    def client(seconds: float) -> redis.Redis:
        return from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, socket_keepalive=True)

    try:
        client(1.0)
    except (ValueError, TypeError):
        return None
    return client


class Publisher:
    """Publisher of stored messages to a broker other than Redis. One thread at a time."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: Any = None
        self._producer: Any = None
        self._must_arrive: dict[str, bool] = {}

    def publish(self, queue: str, message: bytes) -> None:
        """Publish directly to the queue, whatever exchange the message first came through. Raises NotPublished."""
        try:
            if not queue:
                raise ValueError("it names no queue")
            body, options = _parts(message)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Unpublishable(f"it cannot be read ({type(error).__name__})") from error
        with self._lock:
            is_used = self._producer is not None
            try:
                self._send(queue, body, options)
            except BrokenConnection:
                if not is_used:
                    raise
                # The connection was idle and the broker has restarted since. Without this retry, the message would be
                # 30 s late.
                self._send(queue, body, options)

    def _send(self, queue: str, body: Any, options: dict[str, Any]) -> None:
        try:
            producer = self._producer or self._open()
        except Exception as error:  # each transport raises its own errors
            self._close()
            raise BrokerAway(f"the broker cannot be reached ({type(error).__name__})") from error
        connection = self._connection
        try:
            producer.publish(
                body, routing_key=queue, exchange="", retry=False, **self._must_arrive, **_BOUNDED, **options
            )
        except TimeoutError as error:
            self._close()
            raise NotPublished(f"no confirmation within {PUBLISH_SECONDS:g} s") from error
        except Exception as error:
            self._close()
            why = f"{type(error).__name__}: {error}"[:200]
            raise (BrokenConnection if _is_of_connection(connection, error) else Unpublishable)(why) from error

    def _open(self) -> Any:
        connection: Any = self._connect()
        self._connection = connection
        connection.transport_options = {**(connection.transport_options or {}), "confirm_publish": True}
        self._producer = Producer(connection.channel())  # type: ignore[no-untyped-call]
        # RabbitMQ only: a message for a deleted queue is returned as an error instead of being dropped.
        self._must_arrive = {"mandatory": True} if connection.transport.driver_type == "amqp" else {}
        return self._producer

    def _close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # already broken
                connection.release()


def _is_of_connection(connection: Any, error: Exception) -> bool:
    """Return whether the connection broke. amqp's errors about one message or queue are not connection errors."""
    return isinstance(error, tuple(connection.connection_errors))


def _parts(raw: bytes) -> tuple[Any, dict[str, Any]]:
    """Return body and options of a stored message, as arguments for kombu's publish."""
    parts = amqp.parts(raw)
    options = dict(parts.properties)
    for name in ("content_type", "content_encoding"):  # otherwise kombu would encode the body again
        options.setdefault(name, None)
    if (expiration := options.pop("expiration", None)) and str(expiration).isdecimal():
        options["expiration"] = int(expiration) / 1000  # kombu takes seconds and writes milliseconds
    return parts.body, {**options, "headers": parts.headers}
