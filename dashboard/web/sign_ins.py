"""Record of sign-ins: sessions in Redrive's own project, with their latest request to five minutes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.signals import user_logged_in
from django.db import Error, connection, transaction
from django.http import HttpRequest

from dashboard.web.addresses import client_address
from jobs_admin import config
from jobs_admin.rights import sign_ins

_SEEN_S = 300.0
_MOST = 1_000
_WAIT_MS = 200
_seen: dict[str, float] = {}  # session key -> when this process last recorded it, in monotonic seconds

# The first name found in a User-Agent counts, because browsers also claim to be others.
_BROWSERS = {
    "Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "FxiOS": "Firefox", "Chrome": "Chrome", "CriOS": "Chrome",
    "Safari": "Safari", "curl": "curl",
}  # fmt: skip
_SYSTEMS = {
    "Windows": "Windows", "Android": "Android", "iPhone": "iOS", "iPad": "iPadOS", "Mac OS X": "macOS", "CrOS": "ChromeOS",
    "Linux": "Linux",
}  # fmt: skip


def _is_due(key: str | None) -> bool:
    """Return whether this process did not try to record the session within five minutes, and note that it does now."""
    now = time.monotonic()
    if key is None or now - _seen.get(key, -_SEEN_S) < _SEEN_S:
        return False
    if len(_seen) >= _MOST:
        _seen.clear()
    _seen[key] = now
    return True


def _record(request: HttpRequest, user: Any) -> None:
    key = request.session.session_key
    sign_ins.record(user, key, client_address(request) or "", browser_name(request.META.get("HTTP_USER_AGENT", "")))


def record_request(request: HttpRequest) -> None:
    """Record the session of a page, if it is logged in; a read-only desk records logins only.

    A database that cannot be written to does not fail the page, and a locked SQLite delays it by _WAIT_MS at most.
    """
    if config.is_read_only():
        return
    with suppress(Error):
        is_logged_in = request.session.accessed and request.session.get(SESSION_KEY) and request.user.is_authenticated
        if is_logged_in and _is_due(request.session.session_key):
            with _brief_wait():
                _record(request, request.user)


@contextmanager
def _brief_wait() -> Iterator[None]:
    """Open a transaction that does not wait longer than _WAIT_MS for the write lock of SQLite."""
    if connection.vendor != "sqlite":
        with transaction.atomic():
            yield
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        (usual,) = cursor.fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {_WAIT_MS}")
        try:
            with transaction.atomic():
                yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {usual}")


def browser_name(agent: str) -> str:
    """Return a readable browser name: `Firefox on Linux`; for other programs their own name."""
    browser = next((name for word, name in _BROWSERS.items() if f"{word}/" in agent), "")
    system = next((name for word, name in _SYSTEMS.items() if word in agent), "")
    if not browser:
        return re.sub(r"[^\w .-]", "", agent.partition("/")[0])[:30] or "unknown"
    return f"{browser} on {system}" if system else browser


def _record_login(request: HttpRequest, user: Any, **_signal: object) -> None:
    if config.is_own_project() and _is_due(request.session.session_key):
        _record(request, user)


user_logged_in.connect(_record_login)
