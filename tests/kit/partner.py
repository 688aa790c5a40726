"""A partner that jobs call over HTTP: it can be down for all, or for one tenant, and counts what reaches it."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Partner(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.is_down = False
        self.delay_s = 0.0  # until it answers
        self.refused: set[str] = set()  # tenants
        self.lock = threading.Lock()
        self.requests: list[tuple[float, str, int, bool]] = []  # monotonic time, tenant, number, answered well
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def count_failed(self) -> int:
        return sum(not ok for _, _, _, ok in self.requests)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    server: Partner

    def do_GET(self) -> None:
        _, tenant, number = self.path.split("/")
        with self.server.lock:
            ok = not self.server.is_down and tenant not in self.server.refused
            self.server.requests.append((time.monotonic(), tenant, int(number), ok))
        time.sleep(self.server.delay_s)
        self.send_response(200 if ok else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass
