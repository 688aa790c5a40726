"""Connection for a job's reports. Opened where nothing waits; bounded in time where a job does."""

from __future__ import annotations

import inspect
import select
import time
from collections.abc import Sequence
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.worker.redis_clients import from_url, is_outdated

CALL_TIMEOUT = 0.1  # seconds, while a job waits
DEEPEST = 16  # nesting of lists in an answer; our scripts use three at most
BACKGROUND_TIMEOUT = 2.0  # seconds per command in the heartbeat's thread, where nothing waits

# By version, redis-py sends different details about itself at each connect, each a useless round trip.
_SILENCE = {"protocol": 2, "driver_info": None, "lib_name": None, "lib_version": None}


def client(url: str) -> redis.Redis:
    """Return a client for the heartbeat's thread: one connection, no retry. It connects at first use."""
    return from_url(
        url,
        socket_timeout=BACKGROUND_TIMEOUT,
        socket_connect_timeout=BACKGROUND_TIMEOUT,
        socket_keepalive=True,
        max_connections=1,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        health_check_interval=0,
        decode_responses=False,
        client_name="redrive-worker",
        **_supported_options(),
    )


def _supported_options() -> dict[str, Any]:
    base = getattr(redis.connection, "AbstractConnection", redis.connection.Connection)
    known = inspect.signature(base.__init__).parameters
    found = {name: value for name, value in _SILENCE.items() if name in known}
    if "driver_info" in found:  # older names only raise a warning there
        found = {name: value for name, value in found.items() if not name.startswith("lib_")}
    return found


class Line:
    """An open connection. Raises redis.RedisError or OSError if the store is unreachable or too slow.

    Create it in a thread that may wait: it resolves names, and each step of the handshake may take BACKGROUND_TIMEOUT.
    A store that takes longer than CALL_TIMEOUT for a PING is refused: otherwise every report would time out.
    """

    def __init__(self, url: str) -> None:
        # A pool only to create the connection, used by this object alone.
        self._connection = cast(Any, client(url).connection_pool.make_connection())
        self._connection.connect()
        started = time.monotonic()
        self._connection.send_command("PING")
        self._connection.read_response()
        taken = time.monotonic() - started
        if taken > CALL_TIMEOUT:
            self.close()
            raise redis.TimeoutError(f"it took {taken * 1000:.0f} ms for a PING")
        self._answers = _Answers(self._connection._sock)
        self._poll = select.poll()
        self._poll.register(self._connection._sock, select.POLLIN)

    def is_stale(self) -> bool:
        """Return whether the server closed the connection, if every answer was read: it sends nothing unasked."""
        return self.has_come()

    def is_outdated(self) -> bool:
        """Return whether the Sentinels name another primary. May wait for them."""
        return is_outdated(self._connection)

    def has_come(self) -> bool:
        """Return whether there is data to read now: an answer, a part of one, or a closed connection."""
        return self._answers.holds_some or bool(self._poll.poll(0))

    def query(self, command: Sequence[str | bytes | int], deadline: float) -> Any:
        """Return the answer to one command, read before `deadline` (monotonic seconds): bytes, a number, a list of
        these, or None.

        Raises redis.ResponseError if the answer is an error; after any other error the connection is unusable.
        Implemented here because redis-py restarts its timeout with each read and write.
        """
        self.send(command, deadline)
        return self.read(deadline)

    def send(self, command: Sequence[str | bytes | int], deadline: float) -> None:
        """Send one command. Answers come in the order of the commands."""
        socket = self._connection._sock
        socket.settimeout(_remaining(deadline))
        socket.sendall(b"".join(self._connection.pack_command(*command)))

    def read(self, deadline: float) -> Any:
        """Return the next answer, like `query`."""
        return self._answers.next(deadline)

    def close(self) -> None:
        self._connection.disconnect()


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise redis.TimeoutError(f"no answer within {CALL_TIMEOUT * 1000:.0f} ms")
    return left


def _size(text: str) -> int:
    size = int(text)
    if size < 0:
        raise redis.InvalidResponse(f"its answer is {size} long")
    return size


class _Answers:
    """Parser of the server's answers, one by one (RESP 2)."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._deadline = 0.0
        self._got = bytearray()
        self._at = 0

    @property
    def holds_some(self) -> bool:
        return bool(self._got)

    def next(self, deadline: float) -> Any:
        self._deadline = deadline
        try:
            return self._one()
        finally:
            del self._got[: self._at]
            self._at = 0

    def _one(self, depth: int = 0) -> Any:
        head = self._take(self._end_of_line()).decode(errors="replace")
        kind, text = head[:1], head[1:-2]
        if kind == "$":
            return None if text == "-1" else bytes(self._take(_size(text) + 2)[:-2])
        if kind == "*":
            if depth >= DEEPEST:
                raise redis.InvalidResponse(f"its answer is nested more than {DEEPEST} deep")
            return None if text == "-1" else [self._one(depth + 1) for _ in range(_size(text))]
        if kind == ":":
            return int(text)
        if kind == "+":
            return text.encode()
        raise redis.ResponseError(text[:200])

    def _end_of_line(self) -> int:
        while (found := self._got.find(b"\r\n", self._at)) < 0:
            self._more()
        return found + 2 - self._at

    def _take(self, size: int) -> bytearray:
        while len(self._got) < self._at + size:
            self._more()
        self._at += size
        return self._got[self._at - size : self._at]

    def _more(self) -> None:
        self._socket.settimeout(_remaining(self._deadline))
        got = self._socket.recv(65_536)
        if not got:
            raise redis.ConnectionError("it hung up")
        self._got += got
