"""The one connection on which a job's report travels. Dialled where nothing waits; bounded where a job does."""

from __future__ import annotations

import inspect
import select
import time
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
        """XADD, answered before `deadline` (monotonic seconds). After any error the line is of no more use.

        By hand, since redis-py's time-outs begin anew with each read and write.
        """
        socket = self._connection._sock
        fields = [part for pair in entry.items() for part in pair]
        for chunk in self._connection.pack_command("XADD", stream, "*", *fields):
            socket.settimeout(_left(deadline))
            socket.sendall(chunk)
        answer = b""
        while not _is_whole(answer):
            socket.settimeout(_left(deadline))
            got = socket.recv(4096)
            if not got:
                raise redis.ConnectionError("it hung up")
            answer += got
        if not answer.startswith(b"$"):
            raise redis.ResponseError(answer[1:200].decode(errors="replace").strip())

    def close(self) -> None:
        self._connection.disconnect()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise redis.TimeoutError(f"no answer within {CALL_TIMEOUT * 1000:.0f} ms")
    return left


def _is_whole(answer: bytes) -> bool:
    """A bulk string (the entry's id), or one line: an error, or what no XADD answers."""
    if not answer.endswith(b"\r\n"):
        return False
    head, _, rest = answer.partition(b"\r\n")
    return not head.startswith(b"$") or head == b"$-1" or len(rest) >= int(head[1:]) + 2
