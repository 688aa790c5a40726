"""Sending over RabbitMQ, each message once: recorded in Redrive's store before it is sent, and when it is confirmed.

RabbitMQ cannot record a message in the step that sends it. A message that was begun and not confirmed is in doubt, and
is never sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import getpid
from typing import Any

import amqp
from amqp.exceptions import AccessRefused, AMQPError, NotAllowed
from kombu.connection import Connection
from kombu.utils.url import parse_url

from jobs_admin.core import service_url
from jobs_admin.sources import ledger
from jobs_admin.sources.amqp.management import Management
from jobs_admin.sources.amqp.wire import ANSWER_S, Blocked, Published, Wire
from jobs_admin.sources.base import SourceRefused, SourceUnreachable
from jobs_admin.sources.ledger import Ledger

# Maximum in doubt if a sender or connection dies; larger batches are hardly faster (7,000/s).
_AT_ONCE = 50
_BYTES_AT_ONCE = 2_000_000
# Bytes of headers: they travel in one frame of at most 131,072 bytes; a larger one ends the connection.
LARGEST_HEADERS = 100_000
_IDLE_WIRES = 4
_PORT = 5672

Message = tuple[str, amqp.Message]  # queue, and message to publish; its `redrive` header has the token as `item`


class Sender:
    """Connections to one broker, and publishing over them. Thread-safe.

    Raises one kind of error, without a password.
    """

    def __init__(self, name: str, url: str, ssl: Any, ledger: Ledger, confirm_within_s: float) -> None:
        """Raises SourceRefused for an unusable URL."""
        self.where = _where(name, url)
        self.url = url
        self._ssl = ssl
        self._ledger = ledger
        self._confirm_within_s = confirm_within_s
        self._wires: list[Wire] = []  # idle connections
        self._lock = threading.Lock()
        self._pid = getpid()

    def epoch(self, replay: str) -> str:
        """Return the name of this replay's ledger. Creates the ledger if needed.

        Raises SourceUnreachable, also for the broker: tokens claimed while it is unavailable could not be sent.
        """
        with self.wire() as wire:
            wire.prove()
        return self._ledger.epoch(replay)

    def send(self, replay: str, ready: Mapping[int, Message]) -> dict[int, str]:
        """Send token -> message, in this order. Returns and raises like `base.Source.send`."""
        answers: dict[int, str] = {}
        with self.wire() as wire:
            for part in _parts(ready):
                answers |= self._publish(wire, replay, part)
        return answers

    def _publish(self, wire: Wire, replay: str, part: Mapping[int, Message]) -> dict[int, str]:
        # Publish a batch. The connection is checked before anything is recorded: a stale one leaves nothing in doubt.
        wire.prove()
        begun = self._ledger.begin(replay, list(part))
        ours = {token: part[token] for token, answer in begun.items() if answer == ledger.OURS}
        ended = wire.publish(ours, self._confirm_within_s)
        self._ledger.note(replay, ended.confirmed, ended.returned | ended.turned_away | ended.unwritten)
        self._raise_for(ended, part, wire)
        if doubtful := [token for token, answer in begun.items() if answer == ledger.IN_DOUBT]:
            raise SourceUnreachable(
                f"{len(doubtful)} jobs were begun by another sender, and it is not known to what end."
            )
        never = {token for token, answer in begun.items() if answer == ledger.WITHHELD}
        return {
            token: "recalled" if token in never else "sent" if token in ended.confirmed else "already" for token in part
        }

    def _raise_for(self, ended: Published, part: Mapping[int, Message], wire: Wire) -> None:
        """Raise the error for messages that were not sent, or may not have been."""
        if ended.error is not None:
            raise ended.error
        if ended.turned_away:
            queue = min(part[token][0] for token in ended.turned_away)
            raise SourceUnreachable(f"{self.where} takes no more jobs into {queue} now: it is full, or in trouble.")
        for queue in sorted({part[token][0] for token in ended.returned}):
            if wire.has(queue):
                raise SourceUnreachable(f"{self.where} cannot reach its queue {queue} now: its node is down.")
        if ended.returned:
            raise SourceRefused(
                f"RabbitMQ has no queue {part[min(ended.returned)][0][:200]!r}, so it was not sent. Start a worker that "
                "consumes it, or name another queue.",
                tokens=ended.returned,
            )

    def close(self) -> None:
        with self._lock:
            wires, self._wires = self._wires, []
        for wire in wires:
            wire.close()

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """Return a connection for this thread alone. A broken idle connection is replaced."""
        wire: Wire | None = None
        try:
            wire = self._idle() or self.dial()
            yield wire
        except BaseException as error:
            # A refused message does not mean a broken connection.
            if wire is not None and isinstance(error, SourceRefused):
                self._rest(wire)
            elif wire is not None:
                wire.close()
            if isinstance(error, AMQPError | OSError | Blocked):
                raise self.unreachable(error) from error
            raise
        self._rest(wire)

    def dial(self) -> Wire:
        """Return a new connection for the caller alone, who must close it. Raises like `Wire`."""
        return Wire(self.url, self._ssl)

    def _idle(self) -> Wire | None:
        """Return an idle connection that still answers; None if there is none."""
        while True:
            with self._lock:
                if self._pid != getpid():  # forked: the connections are the parent's
                    self._pid, self._wires = getpid(), []
                if not self._wires:
                    return None
                wire = self._wires.pop()
            try:
                wire.prove()
            except Blocked:
                wire.close()
                raise
            except (AMQPError, OSError):
                wire.close()
            else:
                return wire

    def _rest(self, wire: Wire) -> None:
        wire.rest()
        with self._lock:
            if len(self._wires) < _IDLE_WIRES:
                self._wires.append(wire)
                return
        wire.close()

    def unreachable(self, error: BaseException) -> SourceUnreachable:
        if isinstance(error, Blocked):
            why = "takes no messages now: its memory or disk has run out (an alarm)."
        elif isinstance(error, TimeoutError):
            why = f"did not answer within {ANSWER_S:g} s."
        elif isinstance(error, AccessRefused):
            why = "refused the login, or an operation that this user is not allowed to perform. Check the user and password in the URL."
        elif isinstance(error, NotAllowed):
            why = "has no such virtual host, or this user may not use it."
        else:
            why = f"cannot be reached ({type(error).__name__})."
        return SourceUnreachable(f"{self.where} {why}")


def _parts(ready: Mapping[int, Message]) -> Iterator[dict[int, Message]]:
    part: dict[int, Message] = {}
    size = 0
    for token, (queue, message) in ready.items():
        if part and (len(part) == _AT_ONCE or size + len(message.body) > _BYTES_AT_ONCE):
            yield part
            part, size = {}, 0
        part[token] = (queue, message)
        size += len(message.body)
    if part:
        yield part


def _where(name: str, url: str) -> str:
    """Return the server's display name. Raises SourceRefused for an unusable URL."""
    try:
        parts = service_url.split(url)
    except service_url.Unreadable as error:
        raise SourceRefused(f"Source {name}: its URL cannot be read: {error}.") from error
    if ";" in url or "," in parts.netloc.rpartition("@")[2]:
        raise SourceRefused(
            f"Source {name}: a list of servers cannot be used. Name one server, or the load balancer in front of them."
        )
    try:
        connection = Connection(url)  # type: ignore[no-untyped-call]
        is_read = not isinstance(connection.connect_timeout, str)  # the library would pass it on unchanged, and fail
    except (ValueError, TypeError, KeyError, AttributeError):
        is_read = False
    if not is_read:  # raised here so that it is not chained to an error that contains the URL
        raise SourceRefused(
            f"Source {name}: its URL cannot be read: a word after its ? is not known, or has a value that it cannot have."
        )
    return f"RabbitMQ at {parts.hostname or '127.0.0.1'}:{parts.port or (5671 if parts.scheme == 'amqps' else _PORT)}"


def management(name: str, url: str, management_url: str) -> Management | None:
    """Return a client of the management plugin; None without `management_url`.

    Raises SourceRefused for an invalid one.
    """
    if not management_url:
        return None
    parsed: Callable[[str], dict[str, Any]] = parse_url
    parts = parsed(url)
    try:
        service_url.split(management_url)
        return Management(
            management_url,
            str(parts.get("userid") or "guest"),
            str(parts.get("password") or "guest"),
            str(parts.get("virtual_host") or "/"),
        )
    except ValueError as error:
        why = (
            str(error)
            if isinstance(error, service_url.Unreadable)
            else "it begins with http:// or https:// and names a host"
        )
        raise SourceRefused(f"Source {name}: management_url cannot be used: {why}.") from None
