"""The progress and the result of a bulk act, in words."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.web import figures
from jobs_admin.failures.triage import Sweep

_DOING = {"discard": "Discarding", "restore": "Restoring", "readmit": "Readmitting", "undo": "Undoing"}
_DONE = {"discard": "Discarded", "restore": "Restored", "readmit": "Readmitted", "undo": "Undid"}
_NEEDS = {
    "discard": "They are no longer dead, are part of a running replay, or you need the role operator on their source.",
    "restore": "They are no longer discarded, or you need the role operator on their source.",
    "readmit": "They are not in quarantine, or you need the role operator on their source.",
    "undo": "They were changed afterwards, or you need the role operator on their source.",
}


@dataclass(frozen=True, slots=True)
class Words:
    doing: str
    sofar: str
    left: str  # the time that the rest takes at the present rate; "" where no rate is known


def progress(sweep: Sweep, per_s: float = 0.0) -> Words:
    """The progress, and the time left when `per_s` jobs are checked in a second."""
    left = ""
    if per_s > 0:
        left = f"About {figures.duration(max(1, round((sweep.matched - sweep.looked) / per_s)))} left."
    return Words(_DOING[sweep.act], f"{_DONE[sweep.act]} {jobs(sweep.changed)} so far.", left)


def result(act: str, changed: int, checked: int, *, is_stopped: bool = False) -> tuple[str, str]:
    """The sentence and its level."""
    if not changed:
        return f"No job was {_word(act)}. {_NEEDS[act]} Nothing was changed.", "warning"
    words = f"{_DONE[act]} {jobs(changed)}."
    if is_stopped:
        return f"Stopped. {words} The others were not checked.", "success"
    if checked > changed:
        left = checked - changed
        words += f" {jobs(left)} could not be {_word(act)}. {_NEEDS[act]}"
    return words, "success"


def _word(act: str) -> str:
    return {"discard": "discarded", "restore": "restored", "readmit": "readmitted", "undo": "undone"}[act]


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
