"""SSRF check: no request reaches an address that is not public, unless REDRIVE_WEBHOOK_ALLOW names it.

Checked when a channel is saved, and again at the socket: the name is looked up once per request, every answer is
checked, and the connection goes to a checked address. So a name that resolves to another address a moment later has no
effect.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from jobs_admin import config
from jobs_admin.core import web_address
from jobs_admin.core.web_address import Address, Allowed, WebAddress

Resolve = Callable[[str, int], list[str]]  # host and port -> every address, as numbers

_LOOKUP_S = 5.0
_CONNECT_S = 5.0  # per address, if there are several
_MOST_ANSWERS = 16
_SLICE = 4096


class Unknown(Exception):
    """The name does not resolve now. A later attempt may succeed."""


class NotPublic(Exception):
    """No connection was opened. The text names the address and how to allow it."""


class TooSlow(Exception):
    """The time limit of a request is exceeded."""


def addresses(target: WebAddress, allowed: Allowed | None = None, resolve: Resolve | None = None) -> list[Address]:
    """Return every address of the host. Raises NotPublic if one of them is not allowed, Unknown."""
    allowed = config.webhook_allow() if allowed is None else allowed
    literal = target.literal
    answers = [str(literal)] if literal is not None else (resolve or look_up)(target.host, target.port)
    found = []
    for answer in answers[:_MOST_ANSWERS]:
        address = web_address.read(answer)
        if address is None:
            raise Unknown(f"{target.host} resolves to {answer[:60]!r}, which is not an address.")
        why = web_address.why_not(address)
        if why and not allowed.names(target.host, target.port) and not allowed.holds(address, target.port):
            leads = "is" if literal is not None else f"resolves to {address}, which is"
            message = (
                f"{target.host} {leads} not a public address ({why}). To allow it, name it in REDRIVE_WEBHOOK_ALLOW "
                f"({target.host}:{target.port} for this port alone) and restart the desk."
            )
            raise NotPublic(message)
        found.append(address)
    if not found:
        raise Unknown(f"{target.host} resolves to no address.")
    return found


def look_up(host: str, port: int) -> list[str]:
    """Look up by the system's resolver, within a few seconds: its own limit applies to each server. Raises Unknown."""
    box: list[list[str] | OSError | UnicodeError] = []

    def resolve_host() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            box.append(list(dict.fromkeys(str(info[4][0]) for info in infos)))
        except (OSError, UnicodeError) as error:
            box.append(error)

    thread = threading.Thread(target=resolve_host, name="look up", daemon=True)
    thread.start()
    thread.join(_LOOKUP_S)
    if not box:
        raise Unknown(f"The lookup of {host} took longer than {_LOOKUP_S:.0f} s.")
    if isinstance(box[0], list):
        return box[0]
    raise Unknown(f"The lookup of {host} failed ({getattr(box[0], 'strerror', None) or box[0]}).")


class Time:
    """Time remaining for a request, shared by all its steps."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds. Raises TooSlow."""
        seconds = self.ends - time.monotonic()
        if seconds <= 0:
            raise TooSlow
        return seconds

    def shorten(self, seconds: float) -> None:
        """Limit the remaining time to these seconds."""
        self.ends = min(self.ends, time.monotonic() + seconds)


class Pinned(httpcore.NetworkBackend):
    """Network backend of all requests: connects only to a checked address, and only while there is time."""

    def __init__(self, target: WebAddress, time: Time, allowed: Allowed, resolve: Resolve | None = None) -> None:
        self.target, self.time, self.allowed, self.resolve = target, time, allowed, resolve

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        if (host.strip("[]"), port) != (self.target.host, self.target.port):
            raise NotPublic(f"{host}:{port} is not the address of the channel.")
        found = addresses(self.target, self.allowed, self.resolve)
        for n, address in enumerate(found, 1):
            try:
                return self._connect(address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if n == len(found):
                    raise
        raise AssertionError

    def _connect(self, address: Address, port: int) -> httpcore.NetworkStream:
        stream = httpcore.SyncBackend().connect_tcp(str(address), port, timeout=min(_CONNECT_S, self.time.remaining()))
        peer = stream.get_extra_info("server_addr")
        if web_address.read(str(peer[0]).partition("%")[0]) != address:
            stream.close()
            raise NotPublic(f"The connection to {address} ended up at {peer[0]}.")
        return _Timed(stream, self.time)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise NotPublic("A socket file is not a web address.")

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.time.remaining()))


class _Timed(httpcore.NetworkStream):
    """Stream whose reads and writes share the time limit of a request: one byte per second does not extend it."""

    def __init__(self, stream: httpcore.NetworkStream, time: Time) -> None:
        self._stream, self._time = stream, time

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._time.remaining())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _SLICE):
            self._stream.write(buffer[start : start + _SLICE], self._time.remaining())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, self._time.remaining()), self._time)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
