"""The gateway with the deadlines of `GATEWAY_BOUNDS` (JSON), and pages beside the desk's own that are as large and as slow as a test needs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.db.backends.signals import connection_created

from dashboard.gateway import Gateway
from dashboard.wsgi import application as desk

LARGE = 32 * 2**20  # bytes of /large/: more than the buffers of server, kernel and client hold
EXPORTS = {"/failures/export/endless/": 2**18, "/failures/export/slow/": 100}  # bytes each 20 ms
SLOW_LOOKUP_S = 0.5  # of a session whose name begins with `slow`


def pages(environ: dict[str, Any], start: Any) -> Any:
    path = environ["PATH_INFO"]
    if path not in ("/large/", "/length/", *EXPORTS):
        return desk(environ, start)
    start("200 OK", [("Content-Type", "text/plain")])
    if path in EXPORTS:
        return _export(EXPORTS[path])
    body = environ["wsgi.input"].read()
    return [b"x" * LARGE if path == "/large/" else str(len(body)).encode()]


def _export(size: int) -> Iterator[bytes]:
    """Rows without end, each from the database."""
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        yield b"x" * size
        time.sleep(0.02)


def _delay_lookup(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    if "django_session" in sql and any(str(value).startswith("slow") for value in params or ()):
        time.sleep(SLOW_LOOKUP_S)
    return execute(sql, params, many, context)


def _watch(connection: Any, **_signal: object) -> None:
    connection.execute_wrappers.append(_delay_lookup)


connection_created.connect(_watch, weak=False)
application = Gateway(pages, **json.loads(os.environ["GATEWAY_BOUNDS"]))
