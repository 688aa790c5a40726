"""What a poison pill costs under a policy: so many crashes, each of which takes a worker away until it runs again."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.web.figures import duration
from jobs_admin.core.policy import Policy
from jobs_admin.core.retry_herd import lost_capacity_s

# Seconds until a worker runs again: a process of the pool, a worker that is started anew, a container that is pulled.
AWAY_S = (1, 10, 60)


@dataclass(frozen=True, slots=True)
class Pill:
    crashes: str  # `3 crashes`; "" where they are not counted
    before: str  # the same of the policy in force, where that differs; `not counted`
    rows: list[tuple[str, str, str]]  # a worker is away so long, then so much is lost, and under the policy in force


def cost(policy: Policy, current: Policy | None) -> Pill:
    former = current if current is not None and _crashes(current) != _crashes(policy) else None
    rows = [(duration(away), _lost(policy, away), _lost(former, away) if former else "") for away in AWAY_S]
    counted = _crashes(policy) or (former and _crashes(former))
    return Pill(_words(policy), (_words(former) or "not counted") if former else "", rows if counted else [])


def _crashes(policy: Policy) -> int:
    return policy.poison.crashes if policy.poison else 0


def _words(policy: Policy) -> str:
    crashes = _crashes(policy)
    return f"{crashes:,} crash{'' if crashes == 1 else 'es'}" if crashes else ""


def _lost(policy: Policy, away_s: float) -> str:
    return duration(lost_capacity_s(_crashes(policy), away_s)) if _crashes(policy) else "no end"
