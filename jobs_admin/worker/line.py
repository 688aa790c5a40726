"""The one connection on which a job's report travels. Dialled where nothing waits; bounded where a job does."""

from __future__ import annotations

import inspect
import select
import time
from collections.abc import Sequence
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs_admin.core.redis_url import for_redis_py

CALL_TIMEOUT = 0.1  # seconds, while a job waits
BACKGROUND_TIMEOUT = 2.0  # seconds for each command, in the heartbeat's thread, where nothing waits

# redis-py differs by version in what it says of itself at each connect; each of it is a round trip for nothing.
_SILENCE = {"protocol": 2, "driver_info": None, "lib_name": None, "lib_version": None}


def client(url: str) -> redis.Redis:
    """For the heartbeat's thread: tries once, on one connection. Connects when first used."""
    return redis.Redis.from_url(
        for_redis_py(url),
        socket_timeout=BACKGROUND_TIMEOUT,
        socket_connect_timeout=BACKGROUND_TIMEOUT,
        socket_keepalive=True,
        max_connections=1,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        health_check_interval=0,
        decode_responses=False,
        client_name="redrive-worker",
        **_understood(),
    )


def _understood() -> dict[str, Any]:
    base = getattr(redis.connection, "AbstractConnection", redis.connection.Connection)
    known = inspect.signature(base.__init__).parameters
    found = {name: value for name, value in _SILENCE.items() if name in known}
    if "driver_info" in found:  # where the older words for it only warn
        found = {name: value for name, value in found.items() if not name.startswith("lib_")}
    return found


class Line:
    """An open connection. Raises redis.RedisError or OSError where the store cannot be reached, or is too slow.

    To be made by a thread that may wait: names are resolved, and each step of the handshake may take
    BACKGROUND_TIMEOUT. A store that then takes longer than CALL_TIMEOUT for a PING gets no line: every report
    would find that out anew.
    """

    def __init__(self, url: str) -> None:
        # A pool of its own only makes the connection; nothing but this object uses it.
        self._connection = cast(Any, client(url).connection_pool.make_connection())
        self._connection.connect()
        started = time.monotonic()
        self._connection.send_command("PING")
        self._connection.read_response()
        taken = time.monotonic() - started
        if taken > CALL_TIMEOUT:
            self.close()
            raise redis.TimeoutError(f"it took {taken * 1000:.0f} ms for a PING")

    def is_stale(self) -> bool:
        """Whether the other end has hung up: it says nothing unasked, so that there is something to read tells it."""
        poll = select.poll()
        poll.register(self._connection._sock, select.POLLIN)
        return bool(poll.poll(0))

    def append(self, stream: str, entry: dict[bytes, bytes], deadline: float) -> None:
        """XADD, answered before `deadline` (monotonic seconds). After any error the line is of no more use."""
        self.ask(("XADD", stream, "*", *(part for pair in entry.items() for part in pair)), deadline)

    def ask(self, command: Sequence[str | bytes | int], deadline: float) -> Any:
        """The answer to one command, read before `deadline` (monotonic seconds): bytes, a number, a list of such, or None.

        Raises redis.ResponseError for an answer that is an error; after any other error the line is of no more use.
        By hand, since redis-py's time-outs begin anew with each read and write.
        """
        self.send(command, deadline)
        return self.read(deadline)

    def send(self, command: Sequence[str | bytes | int], deadline: float) -> None:
        """One command, whose answer is to be read before anything else is asked."""
        socket = self._connection._sock
        socket.settimeout(_left(deadline))
        socket.sendall(b"".join(self._connection.pack_command(*command)))

    def read(self, deadline: float) -> Any:
        """The answer to the command that was sent; as `ask`."""
        return _Answer(self._connection._sock, deadline).read()

    def close(self) -> None:
        self._connection.disconnect()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise redis.TimeoutError(f"no answer within {CALL_TIMEOUT * 1000:.0f} ms")
    return left


class _Answer:
    """One answer as it comes (RESP 2). Nothing comes behind it: nothing else was asked."""

    def __init__(self, socket: Any, deadline: float) -> None:
        self._socket = socket
        self._deadline = deadline
        self._got = bytearray()
        self._at = 0

    def read(self) -> Any:
        head = self._take(self._end_of_line()).decode(errors="replace")
        kind, text = head[:1], head[1:-2]
        if kind == "$":
            return None if text == "-1" else bytes(self._take(int(text) + 2)[:-2])
        if kind == "*":
            return None if text == "-1" else [self.read() for _ in range(int(text))]
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
        self._socket.settimeout(_left(self._deadline))
        got = self._socket.recv(65_536)
        if not got:
            raise redis.ConnectionError("it hung up")
        self._got += got
