"""The web server: one set of options for `up`, for the benches and for the documentation.

`python -m dashboard.web FD` serves on a listening socket that the caller holds. Granian's own command binds the port with
port sharing (SO_REUSEPORT), so that a second server of the same user would answer some of the requests.
"""

from __future__ import annotations

import socket
import sys

# A page takes a few ms of one processor, and Python runs one page at a time: more threads only wait for each other, and
# each takes 4 MB. Three are enough that a slow page (a search of text that no index has) does not stop the others.
THREADS = 3
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
_OPTIONS = {
    "interface": "wsgi",
    "workers": 1,
    "blocking_threads": THREADS,
    "workers_kill_timeout": 2,
    "log_level": "warning",
}


def server(port: int, application: str = "dashboard.wsgi:application") -> list[str]:
    """What follows `python`: granian, one process whose threads each keep a connection to the database."""
    named = dict(_OPTIONS)
    first = ["-m", "granian", "--interface", str(named.pop("interface")), "--host", "127.0.0.1", "--port", str(port)]
    rest = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*first, *rest, application]


def hold(port: int) -> socket.socket | None:
    """A listening socket on this loopback port that no other program can share; None where the port is busy."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    except OSError:
        return None


def serve(held: socket.socket, application: str = "dashboard.wsgi:application") -> None:
    """Serve on this listening socket until SIGTERM."""
    from granian._granian import SocketHolder  # private, hence the pin below 2.9
    from granian.server import Server

    class ServerOnSocket(Server):  # type: ignore[misc]
        def _init_shared_socket(self) -> None:
            self._ssp, self._sfd, self._sso = None, held.fileno(), held
            self._shd = SocketHolder(held.fileno(), False, BACKLOG)

    held.set_inheritable(True)
    host, port = held.getsockname()
    ServerOnSocket(application, host, port, **_OPTIONS).serve()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
