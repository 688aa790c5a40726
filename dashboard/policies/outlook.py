"""The preview of an edited policy beside the published one, and its backtest on stored failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dashboard.policies import pictures as policy_pictures
from dashboard.policies import words as policy_words
from dashboard.policies.words import curve
from dashboard.web.figures import duration, number
from jobs_admin.core.backoff import schedule
from jobs_admin.core.policy import Policy
from jobs_admin.core.retry_times import herd, lost_capacity_s, totals

# Seconds until a worker runs again: a pool process, a restarted worker, a container whose image is pulled.
AWAY_S = (1, 10, 60)


@dataclass(frozen=True, slots=True)
class Pill:
    crashes: str  # `3 crashes`; "" if not counted
    before: str  # the same for the published policy, if different; `not counted`
    # (time until a worker runs again, capacity lost, capacity lost under the published policy).
    rows: list[tuple[str, str, str]]


def pill_cost(policy: Policy, current: Policy | None) -> Pill:
    former = current if current is not None and _crashes(current) != _crashes(policy) else None
    rows = [(duration(away), _lost(policy, away), _lost(former, away) if former else "") for away in AWAY_S]
    counted = _crashes(policy) or (former and _crashes(former))
    return Pill(
        _crashes_text(policy), (_crashes_text(former) or "not counted") if former else "", rows if counted else []
    )


def _crashes(policy: Policy) -> int:
    return policy.poison.crashes if policy.poison else 0


def _crashes_text(policy: Policy) -> str:
    crashes = _crashes(policy)
    return f"{crashes:,} crash{'' if crashes == 1 else 'es'}" if crashes else ""


def _lost(policy: Policy, away_s: float) -> str:
    return duration(lost_capacity_s(_crashes(policy), away_s)) if _crashes(policy) else "no end"


DEFAULT_JOBS = 1_000
MOST_JOBS = 1_000_000
_TONES = {"high": "dead", "medium": "retrying", "low": "discarded"}


@dataclass(frozen=True, slots=True)
class InWords:
    """One policy as text."""

    name: str
    attempts: str
    curve: str
    gives_up: str
    outage: str


def outlook(policy: Policy, current: Policy | None, jobs: int, findings: Iterable[Any], *, name: str) -> dict[str, Any]:
    """Return the context of the preview. `current`: the published policy; `name`: its version, as text."""
    before = current if current is not None and _is_other(policy, current) else None
    steps, old = schedule(policy), schedule(before) if before else []
    crowd, former = herd(policy, jobs), herd(before, jobs) if before else None
    if former and former.step_s != crowd.step_s:
        wide = max(former.step_s, crowd.step_s)
        crowd, former = herd(policy, jobs, wide), herd(before, jobs, wide) if before else None
    return {
        "words": _in_words(policy, ""),
        "before": _in_words(before, name) if before else None,
        "delays": policy_pictures.delays(steps, old, name=name),
        "runs": policy_pictures.runs(steps, old, name=name),
        "herd": policy_pictures.herd(crowd, former, jobs, name=name),
        "pill": pill_cost(policy, current),
        "name": name,
        "budget": policy_words.budget(policy),
        "findings": [(one, _TONES.get(one.severity, "discarded")) for one in findings],
    }


def _in_words(policy: Policy, name: str) -> InWords:
    if not policy.retries:
        return InWords(
            name,
            "The task’s code decides how often a failed job is retried",
            curve(policy),
            "",
            "Changes no retries.",
        )
    found = totals(policy)
    return InWords(
        name, policy_words.attempts(policy.max_attempts), curve(policy), policy_words.gives_up(found),
        policy_words.outage(found),
    )  # fmt: skip


def _is_other(one: Policy, other: Policy) -> bool:
    """Return whether the charts of two policies differ."""
    names = ("retries", "max_attempts", "backoff", "cap_s", "jitter")
    return any(getattr(one, name) != getattr(other, name) for name in names)


_REASONS = {
    "permanent": "dead at once: permanent error",
    "exhausted": "dead: out of attempts",
    "budget": "dead: budget exhausted",
    "retry-after": "dead: Retry-After above the limit",
}


@dataclass(frozen=True, slots=True)
class Part:
    words: str
    tone: str  # state that determines colour and shape
    count: int
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class BacktestResult:
    title: str
    sentence: str
    parts: list[Part]
    words: str
    retries: str
    more_retries: str  # "Retries 1,226 → 7,465 (6×)" if there would have been more; otherwise ""
    untold: list[str]


def outcome(found: Any) -> BacktestResult:
    """Return the result of a `policies.Backtest` as text."""
    if not found.looked_at:
        return BacktestResult("No matching failures.", "", [], "", "", "", [])
    jobs = f"{number(found.looked_at)} matching job{'' if found.looked_at == 1 else 's'}"
    of = f"Latest {jobs}" if found.is_cut else jobs
    title = f"{of}, {number(found.died_then)} died."
    parts = _parts(_counts(found), found.looked_at)
    words = ", ".join(f"{number(part.count)} {part.words}" for part in parts)
    retries = f"{number(found.retries)} retries under this policy; actual: {number(found.retries_then)}."
    return BacktestResult(title, _sentence(found), parts, words, retries, _more_retries(found), found.untold)


def _more_retries(found: Any) -> str:
    if found.retries <= found.retries_then:
        return ""
    times = found.retries / found.retries_then if found.retries_then else 0
    factor = f" ({times:,.{times < 5:d}f}×)" if times >= 1.05 else ""
    return f"Retries {number(found.retries_then)} → {number(found.retries)}{factor}"


def _sentence(found: Any) -> str:
    sentences = []
    if found.outlive:
        sentences.append(
            f"{number(found.outlive)} would have had an attempt after the error ended and might have succeeded."
        )
    if found.lost:
        sentences.append(f"{number(found.lost)} that succeeded would have died.")
    return " ".join(sentences) or ("Same outcome under this policy." if not found.open else "")


def _counts(found: Any) -> list[tuple[str, str, int]]:
    return [
        ("died; this policy adds an attempt after the error ended", "recovered", found.outlive),
        ("succeeded in both cases", "recovered", found.well),
        ("would still be retrying", "retrying", found.open),
        *((_REASONS.get(reason, f"dead: {reason}"), "dead", count) for reason, count in found.dead.most_common()),
        ("not evaluated: the message could not be run", "discarded", found.unjudged),
    ]


def _parts(counts: list[tuple[str, str, int]], total: int) -> list[Part]:
    parts, at = [], 0.0
    for words, tone, count in counts:
        if count:
            wide = count / total * 100
            parts.append(Part(words, tone, count, f"{at:.2f}%", f"{wide:.2f}%"))
            at += wide
    return parts
