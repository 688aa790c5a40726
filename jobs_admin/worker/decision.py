"""The decision over an attempt, and its way from a pool's child to the worker's main process: as text.

Only the child has the error itself, and an error may be one that cannot be pickled. So the child decides, and the main
process acts: it alone holds the message, and it acknowledges.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from celery.exceptions import Ignore, Retry

AGAIN, DEAD, WAIT, QUARANTINE = "again", "dead", "wait", "quarantine"
_ACTS = (AGAIN, DEAD, WAIT, QUARANTINE)


@dataclass(frozen=True, slots=True)
class Decision:
    act: str  # again, dead, wait (before its start, without counting an attempt), quarantine
    policy: str  # `name@version`
    reason: str = ""
    delay_s: float = 0.0  # for again and wait
    max_attempts: int | None = None
    is_observed: bool = False  # only told: Celery did what it does without us
    escalate: bool = False  # somebody is to be told that it is dead
    keeps_wait: bool = False  # the next attempt has to know this wait (a decorrelated backoff)
    records: str = ""  # of a quarantine: the crashes, as JSON

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: object) -> Decision | None:
        """None for what is no decision."""
        try:
            values: dict[str, Any] = json.loads(text) if isinstance(text, str | bytes) else {}
            found = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
            return found if found.act in _ACTS and found.delay_s >= 0 else None
        except (ValueError, TypeError, AttributeError):
            return None


class GuardRetry(Retry):  # type: ignore[misc]
    """The attempt failed and there will be another: errbacks, chords and error trackers stay quiet, as for Celery's own."""

    def __init__(self, message: str, exc: Any = None, when: float | None = None, decision: str = "") -> None:
        super().__init__(message, exc, when)
        self.decision = decision

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.exc, self.when, self.decision)


class GuardWait(Ignore):  # type: ignore[misc]
    """The job may not start yet. It gives its place back, and nothing is recorded of it."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision


class Quarantined(Exception):
    """The job was not started again: it has ended its worker too often."""

    def __init__(self, decision: str = "") -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        return "it has ended its worker too often, and waits in quarantine"


class RequestedRetry(Retry):  # type: ignore[misc]
    """`self.retry()`, where a policy comes instead of it: raised in the task, and never leaves our wrapper."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__("asked for by the task")
        self.error = error
