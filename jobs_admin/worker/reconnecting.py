"""Lets the consumers of a fleet come back to a broker that was away one by one, where the app's author asks for it.

Celery's consumers lose a broker that restarts at the same moment, try again at once, then after 2 s, 4 s, 6 s and so on
up to 30 s, each at the same moment as the others (`Connection.ensure_connection`, kombu 5.3 to 5.7). A broker that just
came up is then met by all of them, who declare queues, set their prefetch and ask for messages.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError

from jobs_admin.core.reconnect_delay import ReconnectDelay

LONGEST_S = 300.0
MOST_S = 30.0  # between two tries, as Celery has it
_SLICE_S = 0.2  # so soon a worker that is told to end does


def is_jitter(seconds: Any) -> bool:
    """Return whether it may be asked for: a number of seconds from 0 (Celery's own way) to LONGEST_S."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    return is_number and 0 <= seconds <= LONGEST_S


def spread_reconnects(
    consumer: Any,
    jitter_s: float,
    is_silenced: Callable[[], bool],
    draw: Callable[[], float] = random.random,
    wait: Callable[[float, Callable[[], Any]], None] | None = None,
) -> None:
    """Draw the times of this consumer's tries to come back: the first from `jitter_s` seconds after the loss, the next
    ones from twice as many each time, up to MOST_S. When it connects for the first time nothing is waited for, and
    while the guard is silenced all is as Celery has it. The number of tries stays that of
    `broker_connection_max_retries`.

    `draw`: from 0 up to, not including, 1. `wait`, for a number of seconds, calls what it is given again and again.
    """
    wait = wait or _wait
    ensure_connected = consumer.ensure_connected

    def spread(connection: Any) -> Any:
        if is_silenced():
            return ensure_connected(connection)
        pauses = ReconnectDelay(jitter_s, max(MOST_S, jitter_s), draw=draw)
        # Else it is not lost: one more connection, of the events; or a worker that starts.
        if consumer.connection is None and not _begins(consumer):
            wait(pauses.failed(), maybe_shutdown)
        connection.ensure_connection = _Patient(connection, pauses, wait)
        try:
            return ensure_connected(connection)
        finally:
            del connection.ensure_connection

    consumer.ensure_connected = spread


def _begins(consumer: Any) -> bool:
    """Return whether it never had a connection yet."""
    begins = getattr(consumer, "first_connection_attempt", None)
    return consumer.restart_count < 1 if begins is None else bool(begins)  # Celery 5.3.0 does not say


class _Patient:
    """In the place of a connection's `ensure_connection`: that tries once, and we wait."""

    def __init__(
        self, connection: Any, pauses: ReconnectDelay, wait: Callable[[float, Callable[[], Any]], None]
    ) -> None:
        self._wait = wait
        self._connection = connection
        self._once = connection.ensure_connection
        self._pauses = pauses

    def __call__(
        self,
        errback: Callable[[BaseException, float], Any] | None = None,
        max_retries: int | None = None,
        callback: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Any:
        hosts = len(self._connection.alt or ()) or 1
        for failed in count():
            try:
                # Where there are several brokers, each of them once.
                return self._once(errback, hosts - 1, callback=callback, **options)
            except OperationalError as error:
                if max_retries is not None and failed >= max_retries:
                    raise
                pause_s = self._pauses.failed()
                if errback is not None:
                    errback(error.__cause__ or error, pause_s)
            self._connection.maybe_switch_next()
            self._wait(pause_s, callback or maybe_shutdown)


def _wait(seconds: float, callback: Callable[[], Any]) -> None:
    """`callback` raises where the worker is ordered to end."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        callback()
        time.sleep(min(left, _SLICE_S))
