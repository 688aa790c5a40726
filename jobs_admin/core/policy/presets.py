"""Preset policies. The curves follow their sources, even without a cap or jitter: the findings beside the editor point
that out.

Presets for a use (emails, webhooks, payments) have the attempts and delays of
https://archon-eight.vercel.app/production-blueprints/job-queue/retry-strategies, plus a cap, jitter and quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    title: str
    purpose: str  # one sentence
    document: dict[str, Any]  # policy document without name and match


def _exponential(first_delay_s: float) -> dict[str, Any]:
    return {"kind": "exponential", "first_delay_s": first_delay_s, "factor": 2}


_NONE = {"kind": "none"}
_POISON = {"crashes": 3, "window_s": 300}
_RETRY_AFTER = {"respect": True, "jitter": 0.2, "cap_s": 86_400}

_ALL = (
    Preset(
        "emails",
        "E-mails",
        "Four attempts within 15 s, up to 50 % jitter. For brief errors of a mail service.",
        {
            "max_attempts": 4,
            "backoff": _exponential(2),
            "cap_s": 600,  # maximum allowed by the lint rule of exponential backoff
            "jitter": {"kind": "equal"},
            "retry_after": _RETRY_AFTER,
            "poison": _POISON,
        },
    ),
    Preset(
        "webhooks",
        "Webhooks",
        "Six attempts within 2.5 min, up to 50 % jitter. For customer endpoints.",
        {
            "max_attempts": 6,
            "backoff": _exponential(5),
            "cap_s": 300,
            "jitter": {"kind": "equal"},
            "retry_after": _RETRY_AFTER,
            "poison": _POISON,
        },
    ),
    Preset(
        "payments",
        "Payments",
        "Three attempts, at least a minute apart; then channels for escalated jobs are notified.",
        {
            "max_attempts": 3,
            "backoff": {"kind": "fixed", "first_delay_s": 60},
            "cap_s": 600,
            "jitter": {"kind": "additive", "seconds": 12},  # the same as added to a Retry-After
            "retry_after": _RETRY_AFTER,
            "poison": _POISON,
            "exhausted": "escalate",  # an operator decides about money
        },
    ),
    Preset(
        "standard",
        "Standard",
        "2 s, doubling. For brief HTTP and database errors. No jitter.",
        {"max_attempts": 4, "backoff": _exponential(2), "jitter": _NONE},
    ),
    Preset(
        "aggressive",
        "Aggressive",
        "5 s, doubling, six attempts. For partners that are down for minutes. No jitter.",
        {"max_attempts": 6, "backoff": _exponential(5), "jitter": _NONE},
    ),
    Preset(
        "fixed",
        "Fixed",
        "Always 1 min. For services with a limit per minute. No jitter.",
        {"max_attempts": 3, "backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": _NONE},
    ),
    Preset(
        "linear",
        "Linear",
        "30 s longer each time, five attempts within 5 min. No jitter.",
        {"max_attempts": 5, "backoff": {"kind": "linear", "first_delay_s": 30}, "jitter": _NONE},
    ),
    Preset(
        "celery",
        "Celery's own",
        "As autoretry_for with retry_backoff=True: whole seconds from 0 to 1, 2, 4; at most 600.",
        {
            "max_attempts": 4,  # max_retries=3
            "backoff": _exponential(1),
            "cap_s": 600,
            "jitter": {"kind": "celery"},
        },
    ),
    Preset(
        "bullmq",
        "BullMQ's own",
        "As BullMQ with attempts 5, exponential backoff of 1 s and jitter 0.5: up to half earlier.",
        {"max_attempts": 5, "backoff": _exponential(1), "jitter": {"kind": "down", "fraction": 0.5}},
    ),
    Preset(
        "sidekiq",
        "Sidekiq's own",
        "26 attempts over about three weeks; delays grow with the fourth power of the attempt.",
        {
            "max_attempts": 26,  # retry: 25
            "backoff": {"kind": "polynomial", "first_delay_s": 1, "power": 4, "plus_s": 15},
            "jitter": {"kind": "sidekiq"},
        },
    ),
)

PRESETS = {preset.name: preset for preset in _ALL}
"""By name, in the order to be shown."""
