"""The progress and the result of a bulk act, in words."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_admin.failures.triage import Sweep

_DOING = {"discard": "Discarding", "restore": "Restoring", "readmit": "Readmitting", "undo": "Taking back"}
_DONE = {"discard": "Discarded", "restore": "Restored", "readmit": "Readmitted", "undo": "Took back"}
_NEEDS = {
    "discard": "They are not dead any more, or part of a running replay, or you are not operator of their source.",
    "restore": "They are not discarded any more, or you are not operator of their source.",
    "readmit": "They are not in quarantine, or you are not operator of their source.",
    "undo": "Somebody changed them since, or you are not operator of their source.",
}


@dataclass(frozen=True, slots=True)
class Words:
    doing: str
    sofar: str


def progress(sweep: Sweep) -> Words:
    return Words(_DOING[sweep.act], f"{_DONE[sweep.act]} {jobs(sweep.changed)} so far.")


def result(act: str, changed: int, checked: int, *, is_stopped: bool = False) -> tuple[str, str]:
    """The sentence and its level."""
    if not changed:
        return f"No job was {_word(act)}. {_NEEDS[act]} Nothing was changed.", "warning"
    words = f"{_DONE[act]} {jobs(changed)}."
    if is_stopped:
        return f"Stopped. {words} The others were not looked at.", "success"
    if checked > changed:
        left = checked - changed
        words += f" {jobs(left)} could not be {_word(act)}. {_NEEDS[act]}"
    return words, "success"


def _word(act: str) -> str:
    return {"discard": "discarded", "restore": "restored", "readmit": "readmitted", "undo": "taken back"}[act]


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
