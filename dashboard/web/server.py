"""The web server, with the same options for `up`, `web` and the benchmarks.

`python -m dashboard.web 127.0.0.1:8000 [WORKERS]` serves without the checks of `web`; `python -m dashboard.web FD`
serves on a listening socket of the caller. Granian's own command binds with port sharing (SO_REUSEPORT), so a second
server of the same user would receive some of the requests.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from typing import Any

BACKLOG = 1024
ENVIRONMENT = {
    # One heap for all threads, which returns the memory of large pages to the system: otherwise each thread would keep
    # its own. It retains the memory of an ordinary page: requesting that from the system took a fifth of each page's
    # time.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    # SQLite's page cache per connection is small; the system caches the file.
    "REDRIVE_SQLITE_CACHE_KB": "1000",
}
# The kernel disconnects a client that does not read: maximum time for which sent data may stay unacknowledged or
# unsent.
UNREAD_MS = 60_000
_OPTIONS = {
    "interface": "rsgi",
    "workers": 1,
    "http": "1",
    "websockets": False,
    "workers_kill_timeout": 2,
    "log_level": "warning",
}


def server(port: int) -> list[str]:
    """Return the arguments of `python` that start granian with the gateway, in one process."""
    return ["-m", "dashboard.web", f"127.0.0.1:{port}"]


def hold(port: int) -> socket.socket | None:
    """Return a listening socket on this loopback port that no other program can share; None if the port is in use."""
    try:
        return listen("127.0.0.1", port)
    except OSError:
        return None


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket that no other program can share; `[::]` also accepts IPv4. Raises OSError."""
    is_6 = ":" in host
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if is_6 else socket.AF_INET, backlog=BACKLOG, dualstack_ipv6=host == "::"
    )
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; inherited by every accepted connection
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    return listener


def serve(
    listener: socket.socket,
    application: str = "dashboard.gateway:application",
    workers: int = 1,
    *,
    in_this_process: bool = False,
) -> None:
    """Serve on this listening socket until SIGTERM. `in_this_process`: the caller terminates a worker that hangs."""
    from granian._granian import SocketHolder  # private, so Granian is pinned below 2.9
    from granian.server import Server

    class ServerOnSocket(Server):  # type: ignore[misc]
        def _init_shared_socket(self) -> None:
            self._ssp, self._sfd, self._sso = None, listener.fileno(), listener
            self._shd = SocketHolder(listener.fileno(), False, BACKLOG)

        def _spawn_workers(self, spawn_target: Any, target_loader: Any) -> None:
            if not in_this_process:
                super()._spawn_workers(spawn_target, target_loader)
                return
            self._spawn_worker(idx=0, target=spawn_target, callback_loader=target_loader).inner.run()
            atexit.register(_end_process)
            raise SystemExit(0)

    listener.set_inheritable(True)
    host, port = listener.getsockname()[:2]
    ServerOnSocket(application, host, port, **{**_OPTIONS, "workers": workers}).serve()


def _end_process() -> None:
    """End the process with 0 before its interpreter ends: a thread of granian that calls Python then aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(where: str, workers: str = "1") -> None:
    """Serve at `host:port`, or on the listening socket with this number."""
    if where.isdigit():
        listener = socket.socket(fileno=int(where))
    else:
        host, _, port = where.rpartition(":")
        try:
            listener = listen(host.strip("[]"), int(port))
        except OSError:
            raise SystemExit(f"{where} is in use, or is not an address of this machine. Nothing was started.") from None
    serve(listener, workers=int(workers))
