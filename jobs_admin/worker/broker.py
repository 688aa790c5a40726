"""The broker as retries need it: its own Redis, or, where it is none that we can use by ourselves, a confirmed publish."""

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

from jobs_admin.core import amqp, service_url
from jobs_admin.core.service_url import for_redis_py

PUBLISH_SECONDS = 5.0
# Older versions of kombu cannot bound the wait for a confirmation.
_BOUNDED = {
    name: PUBLISH_SECONDS
    for name in ("timeout", "confirm_timeout")
    if name in inspect.signature(Producer.publish).parameters
}
_SCHEMES = ("redis", "rediss", "redis+socket")


class NotPublished(Exception):
    """The broker did not confirm the message: it may or may not have it."""


class BrokenConnection(NotPublished):
    """As it says, while the message was on its way."""


class BrokerAway(NotPublished):
    """Nothing was sent: there is no connection, and no other message would go either."""


class Unpublishable(NotPublished):
    """The broker does not take this message. Others may go."""


def redis_of(url: str, ssl: Any = None) -> Callable[[float], redis.Redis] | None:
    """Makes clients of a broker's own Redis, given the seconds that each may wait. None: there is none that we can use.

    Sentinels, clusters and lists of servers are left to kombu, which knows which of them leads. `ssl` is Celery's
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
            # Once more for a connection that the server closed while it was idle; what timed out is not tried again.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            **options,
        )

    try:
        client(1.0)  # connects to nothing: whether the URL can be read
    except (ValueError, TypeError, service_url.Unreadable):
        return None
    return client


class Publisher:
    """Publishes kept messages on a broker that is not Redis. One thread at a time."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: Any = None
        self._producer: Any = None
        self._must_arrive: dict[str, bool] = {}

    def publish(self, queue: str, message: bytes) -> None:
        """On the queue itself, whatever exchange it once came through. Raises NotPublished."""
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
                # It was idle, and the broker has been restarted since: the message would be half a minute late.
                self._send(queue, body, options)

    def _send(self, queue: str, body: Any, options: dict[str, Any]) -> None:
        try:
            producer = self._producer or self._open()
        except Exception as error:  # each transport has errors of its own
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
        # RabbitMQ alone: a message for a queue that is no more comes back as an error, instead of being dropped.
        self._must_arrive = {"mandatory": True} if connection.transport.driver_type == "amqp" else {}
        return self._producer

    def _close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is broken already
                connection.release()


def _is_of_connection(connection: Any, error: Exception) -> bool:
    """Return whether the connection broke. amqp counts what it says of one message, or of its queue, among neither."""
    return isinstance(error, tuple(connection.connection_errors))


def _parts(raw: bytes) -> tuple[Any, dict[str, Any]]:
    """Body and options of a kept message, as kombu publishes them."""
    parts = amqp.parts(raw)
    options = dict(parts.properties)
    for name in ("content_type", "content_encoding"):  # else kombu would encode the body anew
        options.setdefault(name, None)
    if (expiration := options.pop("expiration", None)) and str(expiration).isdecimal():
        options["expiration"] = int(expiration) / 1000  # kombu takes seconds, and writes milliseconds
    return parts.body, {**options, "headers": parts.headers}
