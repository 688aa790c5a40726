"""Decision about a failed attempt by its policy: retry, with the delay, or dead, with the reason.

Computed in the child process that has the error, or in the main process if the child died.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from random import SystemRandom
from typing import Any

from jobs_admin.core.matching import BUDGET, EXHAUSTED, Again, Dead, Ended, judge
from jobs_admin.core.policy import Policy
from jobs_admin.core.policy.shape import ESCALATE
from jobs_admin.worker.at_start import Quarantine, format_records
from jobs_admin.worker.budget import GRANTED, Grant
from jobs_admin.worker.decision import AGAIN, DEAD, QUARANTINE, Decision
from jobs_admin.worker.policies import Chosen

EXPIRES = "expires"  # reason: the message would expire before the next attempt
_UTC = timezone.utc

# Spends one retry of the policy's budget, or of this worker's share of it.
Spend = Callable[[Policy], Grant]

# The system's generator, without state of ours: forked processes draw different numbers, and a task that calls
# `random.seed(1)` does not synchronise the fleet. It is read once per failed attempt, so the extra microsecond does not
# matter.
uniform = SystemRandom().random
"""A number from 0 up to, not including, 1. Safe after a fork, and in threads."""


def decide(
    chosen: Chosen,
    *,
    attempt: int,
    error_names: tuple[str, ...],
    spend: Spend,
    retry_after_s: float | None = None,
    waited_s: float | None = None,
    expires: Any = None,
) -> Decision:
    """Return the decision about a job whose attempt (counted from 1) failed.

    Called in a child, or in the main process if the child died.
    """
    policy, is_observed = chosen.policy, not chosen.is_enforced
    ended = Ended(attempt, error_names, retry_after_s, waited_s if attempt > 1 else None)
    # The budget is spent below: a job that expires before its retry spends none.
    verdict = judge(policy, ended, uniform, lambda: True)
    decision = Decision(AGAIN, chosen.label, max_attempts=policy.max_attempts, is_observed=is_observed)
    if isinstance(verdict, Dead):
        escalate = verdict.reason == EXHAUSTED and policy.exhausted == ESCALATE and not is_observed
        return replace(decision, act=DEAD, reason=verdict.reason, escalate=escalate)
    delay_s = verdict.delay_s
    if _expires_within(expires, delay_s):
        return replace(decision, act=DEAD, reason=EXPIRES)
    grant = GRANTED if policy.budget is None or is_observed else spend(policy)
    if not grant.is_granted:
        return replace(decision, act=DEAD, reason=BUDGET)
    delay_s = verdict.delay_s + grant.wait_s
    if grant.wait_s and _expires_within(expires, delay_s):
        return replace(decision, act=DEAD, reason=EXPIRES)
    keeps_wait = policy.backoff.kind == "decorrelated"
    return replace(decision, reason=_because(verdict, grant), delay_s=delay_s, keeps_wait=keeps_wait)


def _because(verdict: Again, grant: Grant) -> str:
    """Return why the delay differs from the policy's curve; "" if it does not."""
    reasons = []
    if verdict.wish_s is not None:
        reasons.append(f"asked to wait {verdict.wish_s:,.6g} s")
    if grant.is_of_share:
        turn = f", its turn came {grant.wait_s:,.3g} s later" if grant.wait_s else ""
        reasons.append(f"the budget could not be read: by this worker's share of it{turn}")
    return ", ".join(reasons)


def quarantined(chosen: Chosen, quarantine: Quarantine) -> Decision:
    most = chosen.policy.max_attempts if chosen.policy.retries else None
    return Decision(QUARANTINE, chosen.label, "poison", max_attempts=most, records=format_records(quarantine.crashes))


def _expires_within(expires: Any, seconds: float) -> bool:
    """Return whether the message's `expires` comes first: Celery would drop the job silently."""
    if not isinstance(expires, str):
        return False
    try:
        moment = datetime.fromisoformat(expires.replace("Z", "+00:00"))
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=_UTC)).timestamp() <= time.time() + seconds
