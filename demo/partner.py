"""The shop's partner: a small HTTP service that can be broken and fixed. `python -m demo.partner --port P`.

POST /hook, /charge and /mail are what the shop calls; the mode (see `temper`) decides how well that goes, and
what the shop sends decides the rest: a declined card, an endpoint that is gone. GET /state returns the state of the
partner, PUT /mode with JSON such as {"mode": "slow", "delay_s": 4} changes it.

The same again under /played: a warehouse with a temper of its own, which the played incident breaks and fixes, so
that it neither disturbs the acts of people on /demo/ nor is disturbed by them.

And /pager, which takes the desk's notifications for on-call (see `pager`), whatever the partner's temper.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from demo.pager import Pager
from demo.temper import Temper

LARGEST_BODY = 1_000_000
PLAYED = "/played"
PAGER = "/pager"


class Partner(ThreadingHTTPServer):
    """The service, listening. `serve_in_thread` for tests and the played history; port 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, *, pager_secret: str = "") -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.pager = Pager(pager_secret) if pager_secret else None
        self.temper = Temper(time.monotonic())
        self.played = Temper(time.monotonic())
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def serve_in_thread(self) -> Partner:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def change(self, mode: str, **numbers: float) -> None:
        with self.lock:
            self.temper.change(mode, time.monotonic(), **numbers)


class _Request(BaseHTTPRequestHandler):
    server: Partner
    timeout = 10  # a client that says nothing does not hold a thread for ever

    def do_POST(self) -> None:
        body = self.rfile.read(self._length())
        temper, path = self._temper_and_path()
        if path == PAGER and self.server.pager is not None:
            self._answer(self.server.pager.take(dict(self.headers), body), b"")
            return
        with self.server.lock:
            answer = temper.answer(time.monotonic())
        if answer.delay_s:
            time.sleep(answer.delay_s)
        if answer.status == 0:
            self._cut()
        elif answer.status == 429:
            self._answer(429, {"error": "too many requests"}, {"Retry-After": str(answer.retry_after_s)})
        elif answer.status != 200:
            self._answer(answer.status, {"error": "service unavailable"})
        else:
            self._serve(path, body)

    def _serve(self, path: str, body: bytes) -> None:
        if path == "/hook/gone":
            self._answer(410, {"error": "this endpoint was deleted"})
        elif path == "/hook/moved":
            self._answer(308, {}, {"Location": "/hook/moved"})
        elif path == "/hook/late":
            time.sleep(4)
            self._answer(200, {"accepted": True})
        elif path == "/hook/verbose":
            self._answer(200, b'{"accepted": true, "events": [{"id": 1')  # cut off by the partner's proxy
        elif path == "/charge":
            self._charge(body)
        elif path in {"/hook", "/mail"}:
            self._answer(200, {"accepted": True})
        else:
            self._answer(404, {"error": "no such endpoint"})

    def _charge(self, body: bytes) -> None:
        try:
            card = json.loads(body)["card"]
        except (ValueError, KeyError, TypeError):
            self._answer(422, {"error": "a charge needs a card"})
            return
        if card == "card_declined":
            self._answer(402, {"error": "card declined", "code": "insufficient_funds"})
        elif card == "card_sandbox":
            self._answer(200, {"status": "ok"})  # the sandbox forgets the receipt
        elif card == "card_gateway":
            self._answer(200, b"<html><body>502 Bad Gateway</body></html>")
        else:
            self._answer(200, {"status": "ok", "receipt_id": f"rc_{time.monotonic_ns() % 10**8:08d}"})

    def _temper_and_path(self) -> tuple[Temper, str]:
        """Return the temper of the request's path, and the path without its prefix."""
        path = urlsplit(self.path).path
        if path.startswith(PLAYED + "/"):
            return self.server.played, path.removeprefix(PLAYED)
        return self.server.temper, path

    def do_GET(self) -> None:
        temper, path = self._temper_and_path()
        if path == PAGER and self.server.pager is not None:
            self._answer(200, self.server.pager.state())
            return
        if path != "/state":
            self._answer(404, {"error": "no such page"})
            return
        self._answer_state(temper)

    def do_PUT(self) -> None:
        # PUT, because no form on another site can send one without the browser asking us first.
        temper, path = self._temper_and_path()
        if path != "/mode":
            self._answer(404, {"error": "no such page"})
            return
        try:
            wish = json.loads(self.rfile.read(self._length()))
            numbers = {name: float(wish[name]) for name in ("delay_s", "limit", "scale") if wish.get(name) is not None}
            with self.server.lock:
                temper.change(str(wish["mode"]), time.monotonic(), **numbers)
        except (ValueError, KeyError, TypeError) as error:
            self._answer(422, {"error": str(error)})
            return
        self._answer_state(temper)

    def _answer_state(self, temper: Temper) -> None:
        with self.server.lock:
            seen = temper.state(time.monotonic())
        self._answer(200, seen)

    def _length(self) -> int:
        try:
            return min(int(self.headers.get("Content-Length") or 0), LARGEST_BODY)
        except ValueError:
            return 0

    def _answer(self, status: int, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> None:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the shop did not wait

    def _cut(self) -> None:
        """Reset the connection, as a crashed process behind a load balancer does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None:
        """Silent: an outage would fill the terminal of `up`."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.partner", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    partner = Partner(parser.parse_args().port, pager_secret=os.environ.get("REDRIVE_DEMO_PAGER_SECRET", ""))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=partner.shutdown).start())
    try:
        partner.serve_forever(0.1)
    except KeyboardInterrupt:
        pass
    finally:
        partner.server_close()


if __name__ == "__main__":
    main()
