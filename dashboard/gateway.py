"""Asynchronous gateway between web server and pages: clients wait on one event loop and hold no thread.

The body of a request is read before a thread is taken, and the response is sent after the thread was released, each
within a deadline. A viewer has one thread at a time, so that no viewer blocks the others. `/healthz` needs no thread. A
client that disconnects ends its own request, down to the database statement.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import re
import secrets
import sys
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from dashboard.web import limits
from dashboard.web.limits import Work

# A page takes a few ms of one processor, and Python runs one page at a time: more threads would only wait for each
# other, at 4 MB each.
THREADS = 3
EXPORT_THREADS = 3  # exports of different viewers at the same time
BODY_S, ANONYMOUS_BODY_S = 30.0, 10.0  # to receive the complete body: from a viewer, from anyone else
WRITE_S = 20.0  # to send the next 64 KiB of a response
WAIT_S = 30.0  # to wait for a thread
SMALL = 64 * 1024  # bytes of a body accepted from anyone; larger ones need the session or token of a viewer …
LARGE_TOGETHER = 64 * 1024 * 1024  # … and share this much memory
MOST_WAITING = 64  # queued requests of one client
MOST_KNOWN = 10_000  # sessions and tokens whose viewer is cached …
KNOWN_S = 60.0  # … for this time, after which a revoked one is no longer accepted
MOST_SPOOLED = 4 * 2**30  # bytes of one export
_CHUNK = 64 * 1024
# Seconds for one statement, and for all statements of a request.
_READS, _ACTS, _EXPORTS = (5.0, 10.0), (60.0, 120.0), (10.0, 3600.0)
_IS_EXPORT = re.compile(r"/(api/)?(failures|audit)/export(/|\Z)")
_PLAIN = [
    ("content-type", "text/plain; charset=utf-8"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
]

log = logging.getLogger(__name__)


class HttpRefusal(Exception):
    """Response in place of the page: HTTP status and message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Turns:
    """Threads assigned to clients in turn: one per client at a time, and the longest waiting client is next."""

    def __init__(self, threads: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.free = threads
        self.served: set[str] = set()  # clients
        self.waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, client: str) -> None:
        """Wait for the client's turn. Raises HttpRefusal."""
        if self.free and client not in self.served:
            self._give(client)
            return
        line = self.waiting.setdefault(client, deque())
        if len(line) >= MOST_WAITING:
            raise HttpRefusal(429, "Too many of your requests are waiting. Nothing was changed; try again in a moment.")
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await asyncio.wait_for(asyncio.shield(turn), WAIT_S)
        except BaseException as error:
            if turn.done():
                self.free_thread()
                self.free_client(client)
            else:
                turn.cancel()
            if isinstance(error, TimeoutError):
                raise HttpRefusal(503, "The desk is busy. Nothing was changed; try again in a moment.") from None
            raise

    def free_thread(self) -> None:
        self.free += 1
        self._next()

    def free_client(self, client: str) -> None:
        self.served.discard(client)
        self._next()

    def _give(self, client: str) -> None:
        self.free -= 1
        self.served.add(client)

    def _next(self) -> None:
        for client, line in list(self.waiting.items()):
            while line and line[0].done():  # disconnected meanwhile
                line.popleft()
            if not line:
                del self.waiting[client]
            elif self.free and client not in self.served:
                self._give(client)
                self.waiting.move_to_end(client)
                line.popleft().set_result(None)


class Spool:
    """Response written to disk as fast as it is produced, and read from there as fast as the client reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._file = tempfile.TemporaryFile(dir=settings.DATA_DIR, buffering=0)  # noqa: SIM115  # closed by whoever sent it
        self._loop = loop
        self._news = asyncio.Event()
        self.written = 0
        self.is_complete = False

    def write(self, data: bytes) -> None:
        self.written += os.write(self._file.fileno(), data)
        self._loop.call_soon_threadsafe(self._news.set)

    def end(self) -> None:
        self.is_complete = True
        self._loop.call_soon_threadsafe(self._news.set)

    async def chunks(self) -> AsyncIterator[bytes]:
        at = 0
        while True:
            self._news.clear()
            is_complete = self.is_complete
            while data := os.pread(self._file.fileno(), _CHUNK, at):
                at += len(data)
                yield data
            if is_complete:
                return
            await self._news.wait()

    def close(self) -> None:
        self._file.close()


class Gateway:
    """Application that granian calls (RSGI); `pages` is Django's application (WSGI)."""

    def __init__(
        self,
        pages: Callable[..., Any],
        *,
        body_s: float = BODY_S,
        anonymous_body_s: float = ANONYMOUS_BODY_S,
        write_s: float = WRITE_S,
        known_s: float = KNOWN_S,
    ) -> None:
        from dashboard.web.addresses import counted_address  # requires loaded apps

        self.pages, self.counted_address = pages, counted_address
        self.body_s, self.anonymous_body_s, self.write_s, self.known_s = body_s, anonymous_body_s, write_s, known_s
        threads = {"pages": THREADS, "exports": EXPORT_THREADS, "probes": 1, "viewers": 1}
        self.turns = {name: Turns(n, name) for name, n in threads.items()}
        # (credential, address) -> (viewer, expiry)
        self.known: OrderedDict[tuple[str, str, str], tuple[str, float]] = OrderedDict()
        self.large = 0  # bytes of large bodies in memory
        limits.install()
        sys.setswitchinterval(0.001)  # s; the loop has frequent short work beside computing threads

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        if scope.proto != "http":
            protocol.close(403)
            return
        path = _without_prefix(scope.path)
        if (
            path == "/healthz"
        ):  # other methods are refused before their body has arrived, which `doctor` uses to recognize a proxy
            is_read = scope.method in ("GET", "HEAD")
            protocol.response_str(200 if is_read else 405, _PLAIN, "ok" if is_read else "Use GET.")
            return
        sizes: list[int] = []
        try:
            address = self._address(scope)
            # /readyz needs no viewer, so it takes no one's turn.
            viewer = "" if path == "/readyz" else await self._viewer(scope, address)
            body = await self._body(scope, protocol, sizes, is_viewer=viewer != "")
            await self._serve(scope, protocol, path, body, viewer or address)
        except HttpRefusal as refused:
            protocol.response_str(refused.status, [*_PLAIN, ("connection", "close")], refused.text)
        finally:
            self.large -= sum(sizes)

    # -- before the page ----------------------------------------------------------------------------------------

    def _address(self, scope: Any) -> str:
        return f"address {self.counted_address(_host(scope.client), _forwarded(scope))}"

    async def _viewer(self, scope: Any, address: str) -> str:
        """Return the viewer of the request's session or token; "" for an unknown one. Raises HttpRefusal.

        Queries of one address take turns: an unknown credential costs one each time, since it may become valid later. A
        known viewer's credential is checked again in the viewer's own turn, so that no address delays it.
        """
        credential = _credential(scope)
        if credential is None:
            return ""
        shown = (*credential, address)  # a token may be limited to networks
        viewer, until = self.known.get(shown, ("", 0.0))
        if time.monotonic() < until:
            return viewer
        turns, client = self.turns["viewers"], viewer or address
        await turns.take(client)
        meta = {"REMOTE_ADDR": _host(scope.client), "HTTP_X_FORWARDED_FOR": _forwarded(scope)}
        lookup = asyncio.get_running_loop().run_in_executor(turns.pool, _find_viewer, credential, meta)
        lookup.add_done_callback(lambda _: turns.free_thread())
        lookup.add_done_callback(lambda _: turns.free_client(client))
        viewer = await asyncio.shield(lookup)
        self.known.pop(shown, None)
        if viewer:
            self.known[shown] = viewer, time.monotonic() + self.known_s
            if len(self.known) > MOST_KNOWN:
                self.known.popitem(last=False)
        return viewer

    async def _body(self, scope: Any, protocol: Any, sizes: list[int], *, is_viewer: bool) -> bytes:
        if int(scope.headers.get("content-length") or 0) == 0 and "transfer-encoding" not in scope.headers:
            return b""
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE if is_viewer else SMALL
        within_s = self.body_s if is_viewer else self.anonymous_body_s
        try:
            return await asyncio.wait_for(self._read(scope, protocol, most, sizes), within_s)
        except TimeoutError:
            raise HttpRefusal(408, f"The request did not arrive within {within_s:g} s. Nothing was changed.") from None

    async def _read(self, scope: Any, protocol: Any, most: int, sizes: list[int]) -> bytes:
        parts, size = [], 0
        async for part in protocol:
            parts.append(bytes(part))
            size += len(part)
            if size > most:
                raise HttpRefusal(413, f"The request is larger than {most:,} bytes. Nothing was changed.")
            if size > SMALL:
                sizes.append(len(part))
                self.large += len(part)
                if self.large > LARGE_TOGETHER:
                    raise HttpRefusal(
                        503, "Too many large requests arrive at once. Nothing was changed; try again in a moment."
                    )
        length = scope.headers.get("content-length")
        if length is not None and int(length) != size:
            raise HttpRefusal(400, "The request was incomplete. Nothing was changed.")
        return b"".join(parts)

    # -- the page ------------------------------------------------------------------------------------------------

    async def _serve(self, scope: Any, protocol: Any, path: str, body: bytes, client: str) -> None:
        is_export, is_probe = _IS_EXPORT.match(path) is not None, path == "/readyz"
        turns = self.turns["exports" if is_export else "probes" if is_probe else "pages"]
        is_read = scope.method in ("GET", "HEAD", "OPTIONS")
        work = Work(*(_EXPORTS if is_export else _READS if is_read else _ACTS))
        if is_probe:
            client = f"probe {id(scope)}"
        send = self._send_export if is_export else self._send_page
        sending = asyncio.ensure_future(self._in_turn(turns, client, send, scope, protocol, body, work))
        leaving = asyncio.ensure_future(_disconnected(protocol))
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            sending.cancel()
        leaving.cancel()
        try:
            await sending
        except asyncio.CancelledError:
            log.debug("The client of %s left", path)

    async def _in_turn(
        self, turns: Turns, client: str, send: Any, scope: Any, protocol: Any, body: bytes, work: Work
    ) -> None:
        await turns.take(client)
        loop = asyncio.get_running_loop()
        spool = Spool(loop) if send == self._send_export else None
        head: asyncio.Future[Head] = loop.create_future()
        thread = loop.run_in_executor(turns.pool, self._make, _environ(scope, body), work, head, spool)
        thread.add_done_callback(lambda _: turns.free_thread())
        if spool is None:  # the next page may be made while the client reads this one
            thread.add_done_callback(lambda _: turns.free_client(client))
        try:
            await send(scope, protocol, head, thread, spool)
        finally:
            # A thread cannot be interrupted, but its database statement can. The client gets another thread only after
            # it has ended.
            if not thread.done():
                loop.run_in_executor(None, work.stop)
            if spool is not None:
                thread.add_done_callback(lambda _: turns.free_client(client))
                thread.add_done_callback(lambda _: spool.close())

    def _make(self, environ: dict[str, Any], work: Work, head: asyncio.Future[Head], spool: Spool | None) -> bytes:
        """Produce the response in a thread; return its body, or write it to the spool."""
        loop = head.get_loop()

        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> None:
            loop.call_soon_threadsafe(_settle, head, (int(status[:3]), headers))

        try:
            with work.bound_thread():
                response = self.pages(environ, start)
                try:
                    if spool is None:
                        return b"".join(response)
                    for part in response:
                        spool.write(part)
                        if spool.written > MOST_SPOOLED:
                            work.is_stopped = True
                    return b""
                finally:
                    if hasattr(response, "close"):
                        response.close()
        finally:
            if spool is not None:
                spool.end()

    async def _send_page(
        self, scope: Any, protocol: Any, head: asyncio.Future[Head], thread: asyncio.Future[bytes], spool: None
    ) -> None:
        try:
            body = await asyncio.shield(thread)
            status, headers = await head
        except Exception:
            log.exception("%s %s failed", scope.method, scope.path)
            raise HttpRefusal(500, "The request failed. The error was logged.") from None
        if scope.method == "HEAD" or not body:
            protocol.response_empty(status, headers)
        elif len(body) <= _CHUNK:
            protocol.response_bytes(status, headers, body)
        else:
            length = ("content-length", str(len(body)))  # lets the client detect a truncated response
            headers = [pair for pair in headers if pair[0].lower() != length[0]]
            await self._stream(protocol, (status, [*headers, length]), _chunks(body))

    async def _send_export(
        self, scope: Any, protocol: Any, head: asyncio.Future[Head], thread: asyncio.Future[bytes], spool: Spool
    ) -> None:
        await asyncio.wait({head, asyncio.shield(thread)}, return_when=asyncio.FIRST_COMPLETED)
        if not head.done():
            await self._send_page(scope, protocol, head, thread, None)  # reports that it failed
            return
        await self._stream(protocol, head.result(), spool.chunks())

    async def _stream(self, protocol: Any, head: Head, chunks: AsyncIterator[bytes]) -> None:
        """Send the response as fast as its client reads, and abort it if the client stops reading for too long.

        Sent through a named pipe: granian 2.8 buffers a complete stream in memory, read or not, but reads a file only
        as its client does (https://github.com/emmett-framework/granian/pull/887). The end of a pipe is the end of the
        file: an aborted response without a length looks complete, so a client must check the last line of an export.
        """
        path = settings.DATA_DIR / f"response-{secrets.token_hex(16)}"
        os.mkfifo(path, 0o600)
        pipe = None
        try:
            try:
                protocol.response_file(*head, str(path))
                async with asyncio.timeout(self.write_s):
                    pipe = await _open_pipe(path)
            finally:
                waker = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # for granian, if it still waits for a writer
                path.unlink()
                os.close(waker)
            async for chunk in chunks:
                async with asyncio.timeout(self.write_s):
                    await _write(pipe, chunk)
        except TimeoutError:
            log.info("A response was not read for %g s and is broken off", self.write_s)
        except BrokenPipeError:
            log.debug("The client of a response left")
        finally:
            if pipe is not None:
                os.close(pipe)


Head = tuple[int, list[tuple[str, str]]]
Credential = tuple[str, str]  # (`token` or `session`, text)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


async def _disconnected(protocol: Any) -> None:
    await protocol.client_disconnect()


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _CHUNK):
        yield body[at : at + _CHUNK]


async def _open_pipe(path: Path) -> int:
    """Open the pipe for writing once it has a reader."""
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        await asyncio.sleep(0.001)


async def _write(pipe: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(pipe, data) :]
        except BlockingIOError:
            room: asyncio.Future[None] = loop.create_future()
            loop.add_writer(pipe, _settle, room, None)
            try:
                await room
            finally:
                loop.remove_writer(pipe)


def _credential(scope: Any) -> Credential | None:
    """Return the token or session in the request, valid or not; None if there is none."""
    token = scope.headers.get("authorization", "")
    if token[:7].lower() == "bearer ":  # a proxy may use its own scheme
        return "token", token[:500]
    session = re.search(
        rf"(?:^|;)\s*{re.escape(settings.SESSION_COOKIE_NAME)}=([^;]{{1,200}})", scope.headers.get("cookie", "")
    )
    return ("session", session[1]) if session else None


def _find_viewer(credential: Credential, meta: dict[str, str]) -> str:
    """Return the viewer of a session or token; "" for an unknown one. Queries the database, in a thread."""
    from dashboard.web.middleware.identity import holder

    with Work(*_READS).bound_thread():
        try:
            return holder(*credential, meta=meta)
        except DatabaseError:  # the page reports the error
            return ""
        finally:
            close_old_connections()


def _without_prefix(path: str) -> str:
    prefix = settings.FORCE_SCRIPT_NAME or ""
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


def _forwarded(scope: Any) -> str:
    """Return all X-Forwarded-For headers joined as in `_environ`: a proxy appends the last of several."""
    return ",".join(value for name, value in scope.headers.items() if name == "x-forwarded-for")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]") or address


def _environ(scope: Any, body: bytes) -> dict[str, Any]:
    """Return the WSGI environ (PEP 3333), without headers that have an underscore: they could pass for others."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": scope.path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": _host(scope.server),
        "SERVER_PORT": scope.server.rpartition(":")[2],
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": _host(scope.client),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in scope.headers.items():
        if name == "content-type":
            environ["CONTENT_TYPE"] = value
        elif name != "content-length" and "_" not in name:
            key = f"HTTP_{name.upper().replace('-', '_')}"
            joined = "; " if name == "cookie" else ","
            environ[key] = f"{environ[key]}{joined}{value}" if key in environ else value
    if "HTTP_HOST" not in environ and scope.authority:
        environ["HTTP_HOST"] = scope.authority
    return environ


def _application() -> Gateway:
    from dashboard.wsgi import application as pages

    return Gateway(pages)


application = _application()
