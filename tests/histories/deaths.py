"""The death of a process, played in this one: it stops before a statement or a call to Redis, and forgets all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Died(BaseException):
    """The process ended here. Nothing of the desk may catch it."""


@contextlib.contextmanager
def dying_after(calls: int | None) -> Iterator[None]:
    """Die before the statement or Redis call that follows `calls` others of this thread; None: not at all.

    What a real death loses is lost: the transaction that was open, and all that modules remember.
    """
    if calls is None:
        yield
        return
    import redis
    from django.db import connection

    left, thread = calls, threading.get_ident()

    def count() -> None:
        nonlocal left
        if threading.get_ident() == thread:
            left -= 1
            if left < 0:
                raise Died

    def statement(execute, sql, *rest):
        count()
        return execute(sql, *rest)

    called = redis.Redis.execute_command

    def call(self, *args, **options):
        count()
        return called(self, *args, **options)

    redis.Redis.execute_command = call
    try:
        with connection.execute_wrapper(statement):
            yield
    except Died:
        redis.Redis.execute_command = called
        forget_process()
    finally:
        redis.Redis.execute_command = called


def forget_process() -> None:
    """The memory of a process of `watch` is gone; what it had claimed stays claimed."""
    from jobs_admin.db import grouping_rules
    from jobs_admin.notices import delivering
    from jobs_admin.replays import observation, sending, settling, stopping
    from tests.histories.desk import forget_all

    for sender in sending._senders.values():
        sender.close()
        for ending in sender._ending.values():
            ending.line.join(5)
    forget_all()
    stopping._recalls.clear()
    observation._queues.clear()
    settling._settled_until = settling._SettledUntil()
    grouping_rules.forget()
    delivering._lanes.clear()
