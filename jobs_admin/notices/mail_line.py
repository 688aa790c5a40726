"""The line to the mail server, with one time limit over all: a server that says a word now and then holds nobody up."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import threading
from types import TracebackType
from typing import Any

from django.core.mail.backends import smtp

# `EMAIL_TIMEOUT` is of each of the server's words.
WORDS = 6
LONGEST_S = 60.0  # shorter than the claim of a mail


class _Plain(smtplib.SMTP):
    """Tells `opened` of its socket as soon as there is one: before TLS, and before the server's first word."""

    opened: Any

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        found: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self.opened(found)
        return found


class _Tls(smtplib.SMTP_SSL, _Plain):
    pass


class Line(smtp.EmailBackend):
    """Django's own, that is cut when its time is over. For one mail: `with Line(timeout=10) as line`."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.is_cut = False
        self.limit_s = min(LONGEST_S, WORDS * (self.timeout or LONGEST_S))
        self._holding = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(self.limit_s, self._cut)
        self._timer.daemon = True

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return type("Bounded", (_Tls if self.use_ssl else _Plain,), {"opened": staticmethod(self._opened)})

    def __enter__(self) -> Line:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._holding:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def _opened(self, found: socket.socket) -> None:
        with self._holding:
            # A second name of it: TLS takes the first one over.
            self._sockets.append(found.dup())
        if self.is_cut:
            self._cut()

    def _cut(self) -> None:
        self.is_cut = True
        with self._holding:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # it is closed already
                    one.shutdown(socket.SHUT_RDWR)
