"""Subscriptions to Celery's events that leave no trace in the broker. A thread receives messages into a bounded buffer.

On Redis a plain SUBSCRIBE: kombu's consumer would write a binding key. On RabbitMQ an exclusive queue that ends with
its connection and drops its oldest messages beyond a limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import redis
from amqp.exceptions import AMQPError, NotFound
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.sources.base import SourceUnreachable
from jobs_admin.sources.one_redis import escape_glob

_MOST_WAITING = 50_000  # messages
_MOST_BYTES = 64 * 2**20
_UNREAD_S = 60.0  # without a reader for this time, the subscription ends
_TURN_S = 1.0
_CONNECT_S = 5.0
_PING_EVERY_S = 2  # on a silent connection
_HUNG_S = 10.0  # a broker that does not answer for this time counts as hanging
_HEARTBEAT_S = 10

# A message; True without one, if the broker answered; False if nothing arrived for a second.
Messages = Generator[bytes | bool, None, None]


class Listener:
    """Messages of one subscription.

    `open_messages` connects at its first step, and closes the connection when closed.
    """

    def __init__(self, name: str, open_messages: Callable[[], Messages], where: str) -> None:
        self._open, self._where = open_messages, where
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._read_at = time.monotonic()
        self._why = ""
        self._is_subscribed = threading.Event()
        self._is_closed = False
        self.dropped = 0  # messages
        self.alive_at = 0.0  # time of the broker's latest data, Unix seconds
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"events {name}")
        self._thread.start()

    def take(self, most: int) -> list[bytes]:
        """Return the messages received since the previous call, oldest first.

        Raises SourceUnreachable after the last message of a subscription that ended.
        """
        self._read_at = time.monotonic()
        self._is_subscribed.wait(_CONNECT_S)
        with self._lock:
            found = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._bytes -= sum(map(len, found))
        if not found and not self._thread.is_alive():
            raise SourceUnreachable(self._why)
        return found

    def close(self) -> None:
        """End the subscription, within a second."""
        self._is_closed = True

    @property
    def is_more(self) -> bool:
        return bool(self._waiting)

    @property
    def is_subscribed(self) -> bool:
        return self._is_subscribed.is_set() and self._thread.is_alive()

    def _run(self) -> None:
        messages = self._open()
        try:
            for message in messages:
                self._is_subscribed.set()
                if message:
                    self.alive_at = time.time()
                if isinstance(message, bytes):
                    self._append(message)
                if self._is_closed:
                    break
                if time.monotonic() - self._read_at > _UNREAD_S:
                    self._why = f"Events of {self._where} were not read for {_UNREAD_S:.0f} s."
                    break
        except NotFound:
            self._why = f"{self._where} has no events: no worker has declared the event exchange yet. Start a worker."
        except redis.AuthenticationError:
            self._why = f"{self._where} refused the login. Check the user and password in the URL."
        except redis.exceptions.NoPermissionError as error:
            self._why = f"{self._where} does not allow this user to subscribe to Celery's events: {error}"
        except (redis.RedisError, AMQPError, OSError) as error:
            self._why = f"{self._where}: the subscription to Celery's events ended ({type(error).__name__})."
        except Exception as error:  # a defect must be visible, not silent
            self._why = f"{self._where}: reading Celery's events failed: {type(error).__name__}: {error}"
        finally:
            self._is_subscribed.set()  # stop waiting for it
            try:
                messages.close()
            except Exception as error:
                self._why = self._why or type(error).__name__

    def _append(self, message: bytes) -> None:
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING or self._bytes + len(message) > _MOST_BYTES:
                self.dropped += 1
                return
            self._waiting.append(message)
            self._bytes += len(message)


def redis_messages(client: redis.Redis, channel: str) -> Messages:
    """Yield messages of a kombu fanout exchange on Redis, for every routing key."""
    pool = client.connection_pool
    # No retry: a successful one would hide missed events.
    settings = pool.connection_kwargs | {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": _PING_EVERY_S,
    }
    own = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **settings))
    subscription = own.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    try:
        subscription.subscribe(channel)
        subscription.psubscribe(escape_glob(channel) + "/*")
        answered_at = time.monotonic()
        while True:
            message = subscription.get_message(timeout=_TURN_S)
            data = message["data"] if message and message["type"] in ("message", "pmessage") else None
            is_answered = data is not None or not subscription.health_check_response_counter
            if is_answered:
                answered_at = time.monotonic()
            elif time.monotonic() - answered_at > _HUNG_S:
                raise redis.TimeoutError(f"No answer for {_HUNG_S:.0f} s")
            yield data if isinstance(data, bytes) else is_answered
    finally:
        subscription.close()
        own.close()
        own.connection_pool.disconnect()


def rabbitmq_messages(url: str, ssl: Any, exchange: str) -> Messages:
    """Yield messages of an existing exchange, through a queue that ends with this connection."""
    made: Any = Connection(url, connect_timeout=_CONNECT_S, heartbeat=_HEARTBEAT_S, ssl=ssl)  # type: ignore[no-untyped-call]
    connection = made.transport.establish_connection()
    received: list[bytes] = []

    def receive(message: Any) -> None:
        body = message.body
        received.append(body if isinstance(body, bytes) else str(body).encode("utf-8", "replace"))

    try:
        channel = connection.channel()
        bounds = {"x-max-length": _MOST_WAITING, "x-max-length-bytes": _MOST_BYTES}
        name = channel.queue_declare("", exclusive=True, auto_delete=True, durable=False, arguments=bounds).queue
        channel.queue_bind(name, exchange, "#")  # NotFound if the exchange does not exist: it is not ours to declare
        channel.basic_consume(name, no_ack=True, callback=receive)
        octets = -1
        while True:
            try:
                connection.drain_events(timeout=_TURN_S)
            except TimeoutError:
                yield connection.bytes_recv != octets
            octets = connection.bytes_recv
            connection.heartbeat_tick()
            yield from received
            received.clear()
    finally:
        connection.close()
