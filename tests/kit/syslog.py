"""Receivers of syslog messages on the loopback: they can be away, take a part, or take everything."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

_MESSAGE = re.compile(rb"<(\d{1,3})>1 (\S+) (\S+) redrive - (\S+) - (\{.*\})", re.DOTALL)


class Receiver:
    """Receives on one port, also after it was closed and opened again. `kind`: tcp, udp or unix (`path`)."""

    def __init__(self, kind: str, path: str = "") -> None:
        self.kind, self.path = kind, path
        self.messages: list[bytes] = []
        self.breaks_after: int | None = None  # bytes, for each of the next connections: then it resets the connection
        self._socket: socket.socket | None = None
        self.port = 0
        self.open()

    @property
    def target(self) -> str:
        return f"unix:{self.path}" if self.kind == "unix" else f"{self.kind}://127.0.0.1:{self.port}"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(_MESSAGE.fullmatch(one)[5]) for one in self.messages]

    @property
    def headers(self) -> list[tuple[str, ...]]:
        return [tuple(part.decode() for part in _MESSAGE.fullmatch(one).groups()[:4]) for one in self.messages]

    def open(self) -> None:
        if self.kind == "tcp":
            self._socket = socket.create_server(("127.0.0.1", self.port))
        else:
            self._socket = socket.socket(socket.AF_UNIX if self.kind == "unix" else socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind(self.path if self.kind == "unix" else ("127.0.0.1", self.port))
        if self.kind != "unix":
            self.port = self._socket.getsockname()[1]
        run = self._accept if self.kind == "tcp" else self._read_datagrams
        self._thread = threading.Thread(target=run, args=(self._socket,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._socket is None:
            return
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self.kind != "tcp":  # a datagram wakes the thread, which shutdown does not
            with suppress(OSError), socket.socket(self._socket.family, socket.SOCK_DGRAM) as one:
                one.sendto(b"", self.path if self.kind == "unix" else ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()
        self._socket = None
        if self.kind == "unix":
            with suppress(FileNotFoundError):
                os.unlink(self.path)

    def _read_datagrams(self, opened: socket.socket) -> None:
        with suppress(OSError):
            while message := opened.recv(70_000):
                self.messages.append(message)

    def _accept(self, opened: socket.socket) -> None:
        while True:
            try:
                client, _ = opened.accept()
            except OSError:
                return
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        most, self.breaks_after = self.breaks_after, None
        text, is_broken = b"", False
        while more := client.recv(4096 if most is None else most):
            text += more
            if most is not None:
                is_broken = True
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
        while found := re.match(rb"(\d+) ", text):
            end = found.end() + int(found[1])
            if len(text) < end:
                break
            self.messages.append(text[found.end() : end])
            text = text[end:]
        assert is_broken or not text, text
        client.close()
