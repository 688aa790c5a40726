"""Verdict on an answer: delivered, tried again later, or parked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from jobs_admin.core import backoff, retry_after
from jobs_admin.core.policy import parse
from jobs_admin.notices.posting import Answer

# Standard Webhooks 1.0: at once, then after each of these.
WAITS_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
MOST_TRIES = len(WAITS_S) + 1
LONGEST_RETRY_AFTER_S = 86_400.0
_POLICY = parse(
    {
        "name": "deliveries",
        "max_attempts": MOST_TRIES,
        "backoff": {"kind": "table", "delays_s": list(WAITS_S)},
        "cap_s": WAITS_S[-1],
        "jitter": {"kind": "down", "fraction": 0.1},
        "retry_after": {"respect": True, "jitter": 0.1, "cap_s": LONGEST_RETRY_AFTER_S},
    }
)
_GONE = {
    "webhook": {410: "the endpoint answered 410 (gone)"},
    "slack": {
        403: "Slack permanently refuses the address (403)",
        404: "Slack no longer has this address (404)",
        410: "The Slack channel was archived or deleted (410)",
    },
    "pagerduty": {410: "the endpoint answered 410 (gone)"},
}
# What would be answered to the same request for ever, and is no fault of the channel.
_NEVER = {"slack": {400}, "pagerduty": {400}}
_WITH_RETRY_AFTER = (429, 503)


class Fate(Enum):
    DELIVERED = "delivered"
    AGAIN = "again"
    PARKED = "parked"
    DISABLED = "disabled"  # and the channel with it


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    error: str = ""
    next_try_at: datetime | None = None


def judge(
    kind: str, answer: Answer, tries: int, now: datetime, random: Callable[[], float], *, only_once: bool = False
) -> Verdict:
    """Return the verdict. `tries` counts this one, from 1. `only_once`: a test is not repeated."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Verdict(Fate.DELIVERED)
    message = _error_text(answer)
    if why := _GONE.get(kind, {}).get(answer.status or 0):
        return Verdict(Fate.DISABLED, f"{why[0].upper()}{why[1:]}.")
    if answer.has_no_recipient:
        return Verdict(Fate.DISABLED, f"The mail server permanently refused all addresses ({answer.status}).")
    if answer.is_for_good or answer.status in _NEVER.get(kind, ()):
        return Verdict(Fate.PARKED, f"{message} No further tries.")
    if only_once or tries >= MOST_TRIES:
        return Verdict(Fate.PARKED, message if only_once else f"{message} All {MOST_TRIES} tries are used.")
    wait_s = (
        retry_after.seconds(answer.retry_after, now.timestamp())
        if answer.status in _WITH_RETRY_AFTER and answer.retry_after
        else None
    )
    if wait_s is not None:
        wait_s = min(wait_s, LONGEST_RETRY_AFTER_S)
    wait = backoff.delay(_POLICY, tries, random, wish_s=wait_s)
    return Verdict(Fate.AGAIN, message, now + timedelta(seconds=wait))


def _error_text(answer: Answer) -> str:
    if answer.status is None:
        return answer.error or "The endpoint did not answer."
    if 300 <= answer.status < 400:
        return f"The endpoint answered {answer.status}: redirects are not followed."
    return f"The endpoint answered {answer.status}."
