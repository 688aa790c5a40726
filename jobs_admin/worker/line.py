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

from jobs_admin.core.service_url import for_redis_py

CALL_TIMEOUT = 0.1  # seconds, while a job waits
DEEPEST = 16  # lists within lists, of an answer; no script of ours answers more than three
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
        **_supported_options(),
    )


def _supported_options() -> dict[str, Any]:
    base = getattr(redis.connection, "AbstractConnection", redis.connection.Connection)
    known = inspect.signature(base.__init__).parameters
    found = {name: value for name, value in _SILENCE.items() if name in known}
    if "driver_info" in found:  # where the older words for it only warn
        found = {name: value for name, value in found.items() if not name.startswith("lib_")}
    return found


class Line:
    """An open connection. Raises redis.RedisError or OSError where the store cannot be reached, or is too slow.

    To be made by a thread that may wait: names are resolved, and each step of the handshake may take
    BACKGROUND_TIMEOUT. A store that then takes longer than CALL_TIMEOUT for a PING gets no line: else every report
    would find that out.
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
        self._answers = _Answers(self._connection._sock)
        self._poll = select.poll()
        self._poll.register(self._connection._sock, select.POLLIN)

    def is_stale(self) -> bool:
        """Return whether the other end has hung up, where every answer was read: it says nothing unasked."""
        return self.has_come()

    def has_come(self) -> bool:
        """Return whether there is something to read now: an answer, the beginning of one, or that the other end has hung up."""
        return self._answers.holds_some or bool(self._poll.poll(0))

    def query(self, command: Sequence[str | bytes | int], deadline: float) -> Any:
        """The answer to one command, read before `deadline` (monotonic seconds): bytes, a number, a list of such, or
        None.

        Raises redis.ResponseError for an answer that is an error; after any other error the line is of no more use. By
        hand, since redis-py's time-outs start again with each read and write.
        """
        self.send(command, deadline)
        return self.read(deadline)

    def send(self, command: Sequence[str | bytes | int], deadline: float) -> None:
        """One command. Answers come in the order of what was asked."""
        socket = self._connection._sock
        socket.settimeout(_remaining(deadline))
        socket.sendall(b"".join(self._connection.pack_command(*command)))

    def read(self, deadline: float) -> Any:
        """The next answer; as `query`."""
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
    """The answers of the other end, one by one (RESP 2)."""

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
