"""A stretch of network between two programs, which a test may cut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from dashboard.setup.engine import Engine


class Road:
    """Passes bytes to a server and back; `url` leads over it.

    `hears_nothing`: answers are swallowed, as when the network breaks behind what was sent. `cut()` ends all connections.
    `delay_s`: each answer comes so much later.
    `sees` is called with what goes to the server, before it goes.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self.hears_nothing = False
        self.delay_s = 0.0
        self.sees: Callable[[bytes], object] = lambda _: None
        self._port = parts.port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = server.replace(f":{parts.port}/", f":{self._listener.getsockname()[1]}/")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the server is away: so is what leads there
                near.close()
                continue
            self._open += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, are_answers: bool) -> None:
        with contextlib.suppress(OSError):
            while got := source.recv(65536):
                if not are_answers:
                    self.sees(got)
                elif self.delay_s:
                    time.sleep(self.delay_s)
                if not (are_answers and self.hears_nothing):
                    target.sendall(got)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        broken, self._open = self._open, []
        for one in broken:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@contextlib.contextmanager
def hanging(engine: Engine):
    """The server stops answering, with its connections open."""
    os.kill(engine.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine.process.pid, signal.SIGCONT)


LONGEST = 8  # seconds: the bound of 0.1, and what a busy machine adds; where nothing bounds it, a road takes thirty


class SlowRoad:
    """Passes bytes on to a server, and each of its answers `delay` seconds later, in one piece or in drops."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self.delay, self.drop_by_drop, self.connections = 0.0, False, 0
        self._open: list[socket.socket] = []
        self._server_port = parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = server.replace(f":{parts.port}/", f":{self._listener.getsockname()[1]}/")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._server_port))
            self._open += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, are_answers: bool) -> None:
        try:
            while got := source.recv(65536):
                if are_answers:
                    time.sleep(self.delay)
                if are_answers and self.drop_by_drop:
                    for byte in got:
                        target.sendall(bytes([byte]))
                        time.sleep(0.05)
                else:
                    target.sendall(got)
        except OSError:
            pass

    def break_all(self) -> None:
        """Every connection ends, as by a restart of the server."""
        broken, self._open = self._open, []
        for one in broken:
            with contextlib.suppress(OSError):  # the other end was first
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()
        self.break_all()
