"""A longer way to a server: a process that passes bytes on, each of them so much later, in both directions.

with Road(url, one_way_s=0.0005) as road:
    … road.url …        # the same server, a millisecond further away
"""

from __future__ import annotations

import ctypes
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ROOT = Path(__file__).resolve().parent.parent
_SET_TIMERSLACK = 29  # prctl


class Road:
    def __init__(self, url: str, one_way_s: float) -> None:
        self._url, self._one_way_s = url, one_way_s
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Road:
        port = urlsplit(self._url).port
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.road", str(port), str(self._one_way_s)],
            cwd=_ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._url.replace(f":{port}/", f":{int(self._process.stdout.readline())}/")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()


@dataclass(slots=True)
class _End:
    """One end of a connection; what waits for its time to be written to it."""

    socket: socket.socket
    other: Any = None
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)


def _serve(port: int, one_way_s: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    # `select` waits for microseconds; epoll's time-outs are whole milliseconds.
    ready = selectors.SelectSelector()
    ready.register(listener, selectors.EVENT_READ)
    ends: list[_End] = []
    while True:
        dues = [end.waiting[0][0] for end in ends if end.waiting]
        found = ready.select(max(0.0, min(dues) - time.monotonic()) if dues else None)
        now = time.monotonic()
        for key, _ in found:
            if key.data is None:
                ends += _connected(listener, port, ready)
                continue
            try:
                got = key.data.socket.recv(1 << 18)
            except OSError:
                got = b""
            if not got:
                for one in (key.data, key.data.other):
                    if one in ends:
                        ends.remove(one)
                        ready.unregister(one.socket)
                        one.socket.close()
                break  # what else was found may be of the pair that is no more
            key.data.other.waiting.append((now + one_way_s, got))
        for end in ends:
            while end.waiting and end.waiting[0][0] <= time.monotonic():
                end.socket.sendall(end.waiting.popleft()[1])


def _connected(listener: socket.socket, port: int, ready: selectors.BaseSelector) -> list[_End]:
    near = _End(listener.accept()[0])
    far = _End(socket.create_connection(("127.0.0.1", port)))
    near.other, far.other = far, near
    for end in (near, far):
        end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ready.register(end.socket, selectors.EVENT_READ, end)
    return [near, far]


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_SET_TIMERSLACK, 1_000, 0, 0, 0)  # else Linux wakes us up to 50 µs late
    _serve(int(sys.argv[1]), float(sys.argv[2]))
