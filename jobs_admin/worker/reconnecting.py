"""Jitter for a fleet's reconnects to a broker, if the app's author requests it.

Celery's consumers lose a restarting broker at the same moment and retry at once, then after 2 s, 4 s, 6 s and so on up
to 30 s, all at the same times (`Connection.ensure_connection`, kombu 5.3 to 5.7). A broker that has just started is
then hit by all of them: they declare queues, set their prefetch and request messages.
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
MOST_S = 30.0  # between two attempts, as in Celery
_SLICE_S = 0.2  # delay until a worker ordered to shut down does so


def is_jitter(seconds: Any) -> bool:
    """Return whether the value is valid: seconds from 0 (Celery's own way) to LONGEST_S."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    return is_number and 0 <= seconds <= LONGEST_S


def spread_reconnects(
    consumer: Any,
    jitter_s: float,
    is_silenced: Callable[[], bool],
    draw: Callable[[], float] = random.random,
    wait: Callable[[float, Callable[[], Any]], None] | None = None,
) -> None:
    """Randomise the times of this consumer's reconnects.

    The first comes within `jitter_s` seconds after the loss; the limit doubles each time, up to MOST_S. The first
    connection does not wait, and while the guard is silenced Celery's own times apply. `broker_connection_max_retries`
    still limits the attempts.

    `draw`: returns a number in [0, 1). `wait`: waits for seconds and calls its second argument repeatedly.
    """
    wait = wait or _wait
    ensure_connected = consumer.ensure_connected

    def spread(connection: Any) -> Any:
        if is_silenced():
            return ensure_connected(connection)
        pauses = ReconnectDelay(jitter_s, max(MOST_S, jitter_s), draw=draw)
        # Otherwise no connection was lost: a second one for events, or a starting worker.
        if consumer.connection is None and not _begins(consumer):
            wait(pauses.failed(), maybe_shutdown)
        connection.ensure_connection = _Patient(connection, pauses, wait)
        try:
            return ensure_connected(connection)
        finally:
            del connection.ensure_connection

    consumer.ensure_connected = spread


def _begins(consumer: Any) -> bool:
    """Return whether the consumer never had a connection."""
    begins = getattr(consumer, "first_connection_attempt", None)
    return consumer.restart_count < 1 if begins is None else bool(begins)  # missing in Celery 5.3.0


class _Patient:
    """Replacement of a connection's `ensure_connection`: each call tries once, and the waiting is ours."""

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
                # With several brokers, each of them once.
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
    """Wait. `callback` raises if the worker is ordered to shut down."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        callback()
        time.sleep(min(left, _SLICE_S))
