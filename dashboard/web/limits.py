"""Database time limits of a request, per statement and in total, and the end of its work if the client disconnects.

SQLite calls back every few thousand steps, and the processor time of the page's thread counts, so that nothing ends
early on a busy machine. PostgreSQL has `statement_timeout`, and gets a cancel request. Only requests through the
gateway are limited, not commands and `watch`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.signals import connection_created
from django.db.utils import DatabaseError, OperationalError
from django.http import HttpRequest, HttpResponse

from dashboard.web.htmx import render_error

_STEPS = 5_000  # SQLite steps between two checks of the clock: well below a millisecond
_here = threading.local()


class TimeIsUp(OperationalError):
    """The request's time is over, or its client disconnected: no further statement is started."""


class Work:
    """Database time of one request, in seconds. `stop` may be called from any thread."""

    def __init__(self, statement_s: float, total_s: float) -> None:
        self.statement_s, self.total_s = statement_s, total_s
        self.is_stopped = False
        self._ends_at = self._statement_ends_at = float("inf")
        self._now: Callable[[], float] = time.monotonic
        self._connection: Any = None  # psycopg connection while a thread uses it
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self._now() > min(self._ends_at, self._statement_ends_at)

    def begin_statement(self, connection: Any) -> None:
        """Start a statement. Raises TimeIsUp if no time is left."""
        now = self._now()
        if self.is_stopped or now > self._ends_at:
            raise TimeIsUp("the request's time is over")
        self._statement_ends_at = now + self.statement_s
        if connection.vendor == "postgresql":
            self._connection = connection.connection

    def stop(self) -> None:
        """Cancel the running statement and prevent further ones. Waits for the server's answer, at most two seconds."""
        self.is_stopped = True
        with self._lock, contextlib.suppress(Exception):  # the statement has its own timeout
            if self._connection is not None:
                self._connection.cancel_safe(timeout=2)

    @contextlib.contextmanager
    def bound_thread(self) -> Iterator[None]:
        """Limit the statements of this thread."""
        # SQLite runs in the thread itself.
        self._now = time.thread_time if connections[DEFAULT_DB_ALIAS].vendor == "sqlite" else time.monotonic
        self._ends_at = self._now() + self.total_s
        for connection in connections.all(initialized_only=True):
            _bound_postgresql(connection, self.statement_s)
        _here.work = self
        try:
            yield
        finally:
            _here.work = None
            with self._lock:  # a late cancel must not hit the next request's statement
                self._connection = None


def install() -> None:
    """Install the limits on every connection that this process opens from now on."""
    connection_created.connect(_watch, dispatch_uid="dashboard.web.limits")


def _current() -> Work | None:
    return getattr(_here, "work", None)


def _watch(connection: Any, **_signal: object) -> None:
    if connection.vendor == "sqlite":
        connection.connection.set_progress_handler(_is_over, _STEPS)
    elif (work := _current()) is not None:
        _bound_postgresql(connection, work.statement_s)
    if _before_each not in connection.execute_wrappers:
        connection.execute_wrappers.append(_before_each)


def _bound_postgresql(connection: Any, seconds: float) -> None:
    if connection.vendor == "postgresql" and connection.connection is not None:
        with contextlib.suppress(Exception):  # a broken connection is opened again, and limited then
            connection.connection.execute(f"SET statement_timeout = {int(seconds * 1000)}")


def _before_each(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    if (work := _current()) is not None:
        work.begin_statement(context["connection"])
    return execute(sql, params, many, context)


def _is_over() -> bool:
    work = _current()
    return work is not None and work.is_over


def sentence(exception: BaseException) -> str:
    """Return the message for a request that ended by its limit; "" for any other exception."""
    work = _current()
    if (
        work is None
        or not isinstance(exception, DatabaseError)
        or not (work.is_over or isinstance(exception, TimeIsUp))
    ):
        return ""
    return (
        f"The request took longer than {work.statement_s:g} s and was stopped. Nothing was changed. Narrow the search: "
        "add a queue, a task or a time (since:1h), or write more letters before a wildcard."
    )


class LimitMiddleware:
    """Middleware that answers requests ended by their limit with a message. The API does so itself."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if (work := _current()) is not None and work.is_stopped:
            # The client disconnected, so no one reads this response: Django must not log it as an error of the desk.
            response._has_been_logged = True
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        text = sentence(exception)
        return render_error(request, 503, text) if text else None
