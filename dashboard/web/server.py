"""The web server: one set of options for `up`, for `web` and for the benches.

`python -m dashboard.web 127.0.0.1:8000 [WORKERS]` serves without the checks of `web`, `python -m dashboard.web FD` on a
listening socket that the caller holds. Granian's own command binds the port with port sharing (SO_REUSEPORT), so that a second
server of the same user would answer some of the requests.
"""

from __future__ import annotations

import socket
from typing import Any

BACKLOG = 1024
ENVIRONMENT = {
    # One heap for all threads, which gives back what a large page needed: each thread would keep its own. It keeps what an
    # ordinary one needs: to ask the system for that anew took a fifth of each page.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    # Of SQLite's file a connection keeps little; the system keeps the rest.
    "REDRIVE_SQLITE_CACHE_KB": "1000",
}
# A client that does not read is cut off by the kernel: so long may what was sent to it stay unacknowledged or unsent.
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
    """A listening socket on this loopback port that no other program can share; None where the port is busy."""
    try:
        return listen("127.0.0.1", port)
    except OSError:
        return None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that no other program can share. Raises OSError. `[::]` takes IPv4 connections too."""
    is_6 = ":" in host
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if is_6 else socket.AF_INET, backlog=BACKLOG, dualstack_ipv6=host == "::"
    )
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; every accepted connection inherits it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    return listener


def serve(
    listener: socket.socket,
    application: str = "dashboard.gateway:application",
    workers: int = 1,
    *,
    in_this_process: bool = False,
) -> None:
    """Serve on this listening socket until SIGTERM. `in_this_process`: the caller ends a worker that does not end itself."""
    from granian._granian import SocketHolder  # private, hence the pin below 2.9
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
            raise SystemExit(0)

    listener.set_inheritable(True)
    host, port = listener.getsockname()[:2]
    ServerOnSocket(application, host, port, **{**_OPTIONS, "workers": workers}).serve()


def main(where: str, workers: str = "1") -> None:
    """Serve at `host:port`, or on the listening socket of this number."""
    if where.isdigit():
        listener = socket.socket(fileno=int(where))
    else:
        host, _, port = where.rpartition(":")
        try:
            listener = listen(host.strip("[]"), int(port))
        except OSError:
            raise SystemExit(f"{where} is in use, or is not an address of this machine. Nothing was started.") from None
    serve(listener, workers=int(workers))
