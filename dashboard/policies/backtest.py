"""The backtest of a policy on stored failures, in words and as shares of a bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.web.figures import number

_REASONS = {
    "permanent": "dead at once: permanent error",
    "exhausted": "dead: out of attempts",
    "budget": "dead: budget exhausted",
    "retry-after": "dead: Retry-After above the limit",
}


@dataclass(frozen=True, slots=True)
class Part:
    words: str
    tone: str  # the state whose colour and shape it has
    count: int
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class Result:
    title: str
    sentence: str
    parts: list[Part]
    words: str
    retries: str
    untold: list[str]


def result(found: Any) -> Result:
    """Return the result of a `policies.Backtest` in words."""
    if not found.looked_at:
        return Result("No matching failures.", "", [], "", "", [])
    jobs = f"{number(found.looked_at)} matching job{'' if found.looked_at == 1 else 's'}"
    of = f"Latest {jobs}" if found.is_cut else jobs
    title = f"{of}, {number(found.died_then)} died."
    parts = _parts(_counts(found), found.looked_at)
    words = ", ".join(f"{number(part.count)} {part.words}" for part in parts)
    retries = f"{number(found.retries)} retries under this policy; actual: {number(found.retries_then)}."
    return Result(title, _sentence(found), parts, words, retries, found.untold)


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
        ("still retrying", "retrying", found.open),
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
