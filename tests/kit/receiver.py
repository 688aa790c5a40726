"""A receiver of webhooks, as a person's own program would be."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook

from demo.pager import new_secret


class Receiver(ThreadingHTTPServer):
    """A receiver as a user would write it: verifies by the library, and answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.secret = new_secret()
        self.told: list[tuple[str, dict]] = []
        self.refused: list[str] = []


class _Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            notice = Webhook(self.server.secret).verify(body, dict(self.headers))
            self.server.told.append((self.headers["webhook-id"], notice))
        except Exception as error:  # told by the test
            self.server.refused.append(repr(error))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...
