"""Open breakers in the pool's children, read from the board, and the hold headers of a job's message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from jobs_admin.core.breaker import HALF_OPEN
from jobs_admin.core.outcomes import task_key, tenant_key
from jobs_admin.core.policy import Policy
from jobs_admin.worker.next_message import HOLD, HOLD_FAILED, HOLD_SINCE, TICKET
from jobs_admin.worker.policies import Board, Chosen

OVERDUE_FAILURES = 5  # failures of a released job while others succeed; further failures spend attempts


class OpenBreakers:
    """Breakers that have opened at least once, read from the board. For any process and thread."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._page: tuple[int, dict[str, Any]] = (0, {})

    def find(self, name: str) -> Mapping[str, Any]:
        """Return a breaker's page; empty if it never opened.

        `state`, `openings`, `holds`, `tenants` (with tasks; empty: all) and `here` (this host is on hold).
        """
        if self._board.number != self._page[0]:
            number, text = self._board.read()
            self._page = number, json.loads(text) if text else {}
        found: dict[str, Any] = self._page[1].get(name, {})
        return found

    def puts_aside(self, chosen: Chosen, headers: Mapping[str, Any], task: str, tenant: Callable[[], str]) -> bool:
        """Return whether a job that failed with evidence is put on hold, so that it spends no attempt."""
        name = chosen.policy.breaker_name or ""
        found, ticket = self.find(name), ticket_of(headers, name)
        if not found or is_overdue(chosen.policy, headers):
            return False
        if found.get("here"):
            return True
        if opening_of(ticket) > found["openings"] and time.time() < expiry_of(ticket):
            return True  # released by a worker with a later state
        parts = found["tenants"]
        if not found["holds"] or (parts and task_key(task) not in parts and tenant_key(tenant()) not in parts):
            return False
        return found["state"] != HALF_OPEN or count_of(headers.get(HOLD_FAILED)) < OVERDUE_FAILURES


def is_overdue(policy: Policy, headers: Mapping[str, Any]) -> bool:
    """Return whether a job has been on hold for longer than its policy allows."""
    left = left_s(policy, headers, time.time())
    return left is not None and left <= 0


def left_s(policy: Policy, headers: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds until the end of the policy's longest hold; None without a limit."""
    if policy.breaker is None or policy.breaker.max_hold_s is None:
        return None
    since_ms = headers.get(HOLD_SINCE) if headers.get(HOLD) == policy.breaker_name else None
    return policy.breaker.max_hold_s - (now - since_ms / 1000 if isinstance(since_ms, int | float) else 0.0)


def ticket_of(headers: Mapping[str, Any], name: str) -> str:
    """Return the ticket with which this breaker released a job; "" without one."""
    ticket = headers.get(TICKET)
    return ticket if isinstance(ticket, str) and headers.get(HOLD) == name else ""


def expiry_of(ticket: str) -> float:
    """Return the end of a ticket's validity, in Unix seconds."""
    until_ms = ticket.split(":")[1] if ticket.count(":") else ""
    return int(until_ms) / 1000 if until_ms.isdecimal() and len(until_ms) < 16 else 0.0


def opening_of(ticket: object) -> int:
    opening = ticket.partition(":")[0] if isinstance(ticket, str) else ""
    return int(opening) if opening.isdecimal() and len(opening) < 10 else 0


def count_of(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
