"""Two attempts of a failure side by side: their facts in words, and the attempts to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.failures.timeline import ENDED, short
from dashboard.web.figures import duration
from jobs_admin.failures.histories import Ended
from jobs_admin.models import Attempt


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    left: str
    right: str

    @property
    def is_same(self) -> bool:
        return self.left == self.right


def facts(left: Attempt, right: Attempt) -> list[Fact]:
    """Return the facts of both attempts that at least one of them has."""
    found = [Fact(name, *(_fact(one, name) for one in (left, right))) for name in _FACTS]
    return [fact for fact in found if fact.left or fact.right]


_FACTS = ("Ended", "Error", "Took", "Worker", "Host", "Release", "Policy", "Reason")


def _fact(one: Attempt, name: str) -> str:
    return {
        "Ended": ENDED.get(one.kind, one.kind),
        "Error": one.error_type,
        "Took": "" if one.duration_s is None else duration(one.duration_s),
        "Worker": one.worker,
        "Host": one.host,
        "Release": one.release,
        "Policy": one.policy,
        "Reason": one.reason,
    }[name]


@dataclass(frozen=True, slots=True)
class Choice:
    pk: int
    words: str


def choices(ended: Sequence[Ended | Attempt]) -> list[Choice]:
    """Attempts to choose from, the latest first."""
    known = {one.pk: one for one in ended}
    order = sorted(known.values(), key=lambda one: (one.run, one.attempt, one.pk), reverse=True)
    return [
        Choice(
            one.pk, f"run {one.run}, attempt {one.attempt}: {short(one.error_type) or ENDED.get(one.kind, one.kind)}"
        )
        for one in order
    ]
