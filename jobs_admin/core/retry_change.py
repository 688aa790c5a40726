"""Change of waiting retries: an earlier due time, another backoff curve, or another number of attempts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from jobs_admin.core import backoff
from jobs_admin.core.policy import MOST_ATTEMPTS, Policy, parse
from jobs_admin.core.refused import Refused

_CURVE = ("backoff", "cap_s", "jitter")  # of a policy, in its terms
_LATEST_S = 400 * 86_400.0  # from now


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a waiting retry. None leaves a value unchanged."""

    due_at: float | None = None  # Unix seconds
    curve: Policy | None = None  # only backoff, cap and jitter are used
    max_attempts: int | None = None
    curve_document: Mapping[str, Any] | None = None  # the curve as requested

    @property
    def moves(self) -> bool:
        return self.due_at is not None or self.curve is not None

    def due(self, job: int, attempts: int, failed_at: float, now: float) -> float | None:
        """Return the due time of attempt `attempts` + 1 in Unix seconds, never before `now`. None: unchanged.

        `job` determines its jitter, which is the same at every call, so that a preview equals the result.
        """
        if self.due_at is not None:
            return max(now, self.due_at)
        if self.curve is None:
            return None
        return max(now, failed_at + backoff.delay(self.curve, attempts, lambda: _draw(job, attempts)))

    def may_have(self, attempts: int) -> bool:
        """Return whether this change is possible for a job with `attempts` attempts: it needs one more."""
        return self.max_attempts is None or self.max_attempts > attempts

    def document(self) -> dict[str, Any]:
        """Return JSON that `read` parses to the same change."""
        at = None if self.due_at is None else datetime.fromtimestamp(self.due_at, timezone.utc).isoformat()
        return {"due_at": at, "curve": self.curve_document, "max_attempts": self.max_attempts}


def read(document: object, now: float) -> Change:
    """Parse `{"due_at": ISO 8601 or "now", "curve": {"backoff", "cap_s", "jitter"}, "max_attempts"}`; all are optional.

    Raises Refused.
    """
    if not isinstance(document, Mapping):
        raise Refused(
            "bad_change", "A change must be an object with due_at, curve or max_attempts. Nothing was changed.", ""
        )
    if unknown := sorted(str(name) for name in document if name not in ("due_at", "curve", "max_attempts")):
        raise Refused(
            "bad_change",
            f"Unknown field {unknown[0]}. Known: due_at, curve, max_attempts. Nothing was changed.",
            unknown[0],
        )
    due_at, curve, most = document.get("due_at"), document.get("curve"), document.get("max_attempts")
    if due_at is None and curve is None and most is None:
        raise Refused("bad_change", "Give at least one of due_at, curve and max_attempts. Nothing was changed.", "")
    if due_at is not None and curve is not None:
        raise Refused("bad_change", "Give due_at or curve, not both. Nothing was changed.", "due_at")
    return Change(
        due_at=None if due_at is None else _moment(due_at, now),
        curve=None if curve is None else _curve(curve),
        max_attempts=None if most is None else _attempts(most),
        curve_document=dict(curve) if isinstance(curve, Mapping) else None,
    )


def _moment(value: object, now: float) -> float:
    if value == "now":
        return now
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        seconds = math.inf
    if not now - 86_400 <= seconds <= now + _LATEST_S:
        raise Refused(
            "bad_change",
            "due_at must be `now`, or a time within a year such as 2026-11-22T15:00Z. Nothing was changed.",
            "due_at",
        )
    return seconds


def _curve(value: object) -> Policy:
    if not isinstance(value, Mapping) or set(value) - set(_CURVE):
        raise Refused(
            "bad_change",
            f"curve must be an object with {', '.join(_CURVE)}, as in a policy. Nothing was changed.",
            "curve",
        )
    try:
        return parse(dict(value))
    except Refused as refused:
        first = refused.details["problems"][0]
        raise Refused("bad_change", f"{first.message} Nothing was changed.", f"curve.{first.field}") from refused


def _attempts(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise Refused(
            "bad_change",
            f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS:,}. Nothing was changed.",
            "max_attempts",
        )
    return value


def _draw(job: int, attempts: int) -> float:
    """Return a number in [0, 1)."""
    made = hashlib.blake2b(f"{job}:{attempts}".encode(), digest_size=7).digest()
    return (int.from_bytes(made, "big") >> 3) / 2**53
