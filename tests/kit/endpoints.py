"""Endpoints on the loopback that behave as endpoints do: well, badly, and as if they meant harm."""

from __future__ import annotations

import gzip
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Seen:
    at: float  # monotonic
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Endpoint:
    """Takes connections and reads a request from each; then `behave` does what it likes with the socket."""

    behave: Callable[[socket.socket], None]
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._server.getsockname()[1]
        self._is_open = True
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/hook"

    def close(self) -> None:
        self._is_open = False
        for one in (self._server, *self._held):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._held.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self.tls is not None:
                client = self.tls.wrap_socket(client, server_side=True)
            self.seen.append(_read(client))
            self.behave(client)
        except (OSError, ValueError):
            client.close()  # whoever asked has gone, or never meant to
        finally:
            client.close()


def _read(client: socket.socket) -> Seen:
    file = client.makefile("rb")
    method, path, _ = file.readline().decode("latin-1").split(" ", 2)
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = file.read(int(headers.get("content-length") or 0))
    return Seen(time.monotonic(), method, path, headers, body)


def answering(status: int, body: bytes = b"", **headers: str) -> Callable[[socket.socket], None]:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    def behave(client: socket.socket) -> None:
        client.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    return behave


def hang(client: socket.socket) -> None:
    time.sleep(60)


def drip(client: socket.socket) -> None:
    """A header line that comes by a byte a second and never ends."""
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(60):
        time.sleep(1)
        client.sendall(b"a")


def slow_body(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 60\r\n\r\n")
    for _ in range(60):
        time.sleep(1)
        client.sendall(b"a")


def huge(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 1000000000\r\n\r\n")
    chunk = b"x" * 65536
    while True:
        client.sendall(chunk)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def lying(client: socket.socket) -> None:
    """Says less than it sends, and then something that is no HTTP."""
    client.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcdefgh" + b"\x00" * 100)


def bomb(client: socket.socket) -> None:
    """60 MB of noughts in 60 kB."""
    body = gzip.compress(b"0" * 60_000_000)
    answering(500, body, Content_Encoding="gzip")(client)


def many_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        client.sendall(b"X-A: " + b"b" * 1000 + b"\r\n")


def continuing(client: socket.socket) -> None:
    while True:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.001)


IN_THREE_HOURS = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)  # of when the tests began
HOSTILE: dict[str, Callable[[socket.socket], None]] = {
    "500": answering(500, b"<script>alert(1)</script>\x00\xff"),
    "429": answering(429, Retry_After="7200"),
    "503 until a date": answering(503, Retry_After=format_datetime(IN_THREE_HOURS, usegmt=True)),
    "301": answering(301, Location="http://127.0.0.1:1/"),
    "302": answering(302, Location="/elsewhere"),
    "307": answering(307, Location="http://169.254.169.254/latest/meta-data/"),
    "hangs": hang,
    "a byte a second": drip,
    "a slow body": slow_body,
    "a gigabyte": huge,
    "reset": reset,
    "lies about its length": lying,
    "gzip bomb": bomb,
    "204": answering(204),
    "410": answering(410, b"gone"),
    "headers without end": many_headers,
    "100 for ever": continuing,
}  # fmt: skip


@contextmanager
def opened(*behaviours: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[list[Endpoint]]:
    found = [Endpoint(one, tls) for one in behaviours]
    try:
        yield found
    finally:
        for one in found:
            one.close()


def certified(folder: Path, host: str = "localhost") -> tuple[ssl.SSLContext, Path]:
    """A server's certificate for the host, signed automatically, and the file to trust it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{host}.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = folder / f"{host}.key"
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, secret)
    return context, file


class Listener:
    """Counts connections on every loopback address, of IPv4 and of IPv6: each before it is closed."""

    def __init__(self) -> None:
        self.count = 0
        self._servers = [socket.create_server(("0.0.0.0", 0), backlog=128)]
        self.port = self._servers[0].getsockname()[1]
        self._servers.append(socket.create_server(("::", self.port), family=socket.AF_INET6, backlog=128))
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                reached = server.accept()[0]
            except OSError:
                return
            self.count += 1
            reached.close()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
