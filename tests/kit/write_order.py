"""A check of the transactions of a test's own thread on PostgreSQL: what moves failures locks the writers first (`turns.lock_writers`)."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

from django.db import connection

from jobs_admin.db import turns

ENGINE = str(Path(turns.__file__).parents[1])
# The columns of the key of `FailureCount`, where a failure's row is changed, added or deleted.
MOVES = re.compile(
    r'\s*(?:UPDATE "?jobs_admin_failure"? SET (?:(?! FROM | WHERE ).)*"?\b(?:source|queue|task|group_id|state)"? = '
    r'|INSERT INTO "?jobs_admin_failure"? |DELETE FROM "?jobs_admin_failure"? )',
    re.DOTALL,
)
LOCKS_ROWS = re.compile(r"\s*(?:INSERT|UPDATE|DELETE)\b|.*\bFOR (?:NO KEY )?UPDATE\b", re.DOTALL)


class WriteOrder:
    """Records the statements of the engine that move failures in a transaction whose first lock is another."""

    def __init__(self) -> None:
        self.transaction = None
        self.first = ""  # the first statement of the transaction that locks something
        self.is_locked = False
        self.faults: list[str] = []  # not raised in the engine, which logs some exceptions

    def __call__(self, execute, sql, params, many, context):
        # The transaction of a test case is not one of the engine's.
        blocks = [block for block in connection.atomic_blocks if not block._from_testcase]
        transaction = blocks[0] if blocks else None
        if transaction is not self.transaction or transaction is None:
            self.transaction, self.first, self.is_locked = transaction, "", False
        text = sql if isinstance(sql, str) else str(sql)
        if "pg_advisory_xact_lock" in text and params and params[0] == turns._WRITE_LOCK:
            if self.first and not self.is_locked and _is_of_engine():
                self.faults.append(f"The writers are locked after other rows, which can deadlock: {self.first[:300]}")
            self.is_locked = True
        elif "pg_advisory_xact_lock" in text or LOCKS_ROWS.match(text):
            self.first = self.first or text
            if MOVES.match(text) and not self.is_locked and _is_of_engine():
                self.faults.append(f"Failures are moved without turns.lock_writers(), which can deadlock: {text[:300]}")
        return execute(sql, params, many, context)


def _is_of_engine() -> bool:
    """Return whether the engine executes the statement: the nearest file outside of Django is one of its own."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ENGINE):
            return True
        if "/tests/" in name and not name.endswith("write_order.py"):
            return False
        frame = frame.f_back
    return False


@contextlib.contextmanager
def checked_write_order():
    if connection.vendor != "postgresql":
        yield
        return
    order = WriteOrder()
    with connection.execute_wrapper(order):
        yield
    assert not order.faults, order.faults[0]
