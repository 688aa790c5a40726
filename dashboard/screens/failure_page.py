"""One failure as a page shows it: its runs and attempts, its message, what may be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard import arguments
from jobs_admin.models import Attempt, Failure, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM

# What a run shows at once; the older attempts of a job that was retried for days open on demand.
ATTEMPTS_SHOWN = 12
RUNS_SHOWN = 20

ENDED = {
    "exception": "failed",
    "retry": "failed, retried",
    "rejected": "rejected",
    "worker_lost": "worker lost",
    "soft_limit": "over the soft time limit",
    "hard_limit": "killed at the time limit",
    "memory": "killed for memory",
    "unknown_task": "unknown task",
    "undecodable": "could not be decoded",
    "bad_content": "bad content type",
    "unknown_format": "unknown message format",
    "lost": "lost",
    "success": "ran well",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt on the timeline."""

    attempt: Attempt
    look: str  # the state whose colour and shape it has
    words: str
    error: str  # short class name

    @property
    def title(self) -> str:
        return self.attempt.error_type


@dataclass(slots=True)
class Run:
    """One run on the timeline, attempts in their order."""

    n: int
    job_id: str
    item: ReplayItem | None = None  # what started it; None for run 1 and for runs of before we knew
    earlier: list[Ended] = field(default_factory=list)
    attempts: list[Ended] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Branch:
    """Positional or keyword arguments, or headers, as a tree or as the text they are."""

    name: str
    lines: list[arguments.Line]
    text: str = ""
    is_empty: bool = False


def short(error_type: str) -> str:
    """`smtplib.SMTPServerDisconnected` -> `SMTPServerDisconnected`."""
    return error_type.rpartition(".")[2] or error_type


def timeline(failure: Failure, attempts: Sequence[Attempt], items: Sequence[ReplayItem]) -> list[Run]:
    """The runs of a failure, first to last; at most RUNS_SHOWN, the latest."""
    started_by = {item.run: item for item in items if item.state not in {"planned", "cancelled"}}
    runs: dict[int, Run] = {}
    for n in {failure.run, *started_by, *(a.run for a in attempts)}:
        item = started_by.get(n)
        job_id = failure.first_job_id if n == 1 else failure.job_id if n == failure.run else item.job_id if item else ""
        runs[n] = Run(n, job_id, item)
    for attempt in sorted(attempts, key=lambda a: (a.run, a.attempt, a.kind == "success", a.pk)):
        runs[attempt.run].attempts.append(
            Ended(attempt, _look(attempt.kind), ENDED.get(attempt.kind, attempt.kind), short(attempt.error_type))
        )
    for run in runs.values():
        run.earlier, run.attempts = run.attempts[:-ATTEMPTS_SHOWN], run.attempts[-ATTEMPTS_SHOWN:]
    return [runs[n] for n in sorted(runs)][-RUNS_SHOWN:]


def _look(kind: str) -> str:
    return {"success": "recovered", "retry": "retrying"}.get(kind, "dead")


def branches(failure: Failure) -> list[Branch]:
    """Arguments, as far as one page should hold them."""
    return [branch("args", "Arguments", failure.args), branch("kwargs", "Keyword arguments", failure.kwargs)]


def branch(field_name: str, name: str, text: str) -> Branch:
    if not text:
        return Branch(name, [], is_empty=True)
    try:
        value = arguments.read(text)
    except arguments.NotJson:
        return Branch(name, [], text=text)
    if value in ([], {}):
        return Branch(name, [], is_empty=True)
    return Branch(name, arguments.tree(value, f"/{field_name}"))


def document(failure: Failure) -> dict[str, Any]:
    """Everything a JSON pointer of the trees can point into. What is not JSON is left out."""
    found = {}
    for name in ("args", "kwargs", "headers"):
        try:
            found[name] = arguments.read(getattr(failure, name) or "null")
        except arguments.NotJson:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Acts:
    """What the viewer may do with a failure now, and the sentence where it cannot be done."""

    replay: bool
    edit: bool
    discard: bool
    restore: bool
    why_not: str = ""


_CANNOT_REPLAY = {
    FailureState.RETRYING: "It will be retried by its worker. A replay now would run it twice.",
    FailureState.REPLAYING: "It was sent again and has not come home yet.",
    FailureState.RECOVERED: "It ran well. There is nothing to replay.",
    FailureState.DISCARDED: "It was discarded. Restore it first to replay it.",
    FailureState.GONE: "Its source no longer has it: someone else acted on it there.",
    FailureState.QUARANTINED: "It is in quarantine. It must be readmitted before it can run.",
}


def acts(viewer: Viewer, failure: Failure, *, open_item: ReplayItem | None, is_whole: bool) -> Acts:
    if not viewer.may(OPERATOR, failure.source):
        return Acts(
            False, False, False, False, f"To replay or discard it you need the role operator on {failure.source}."
        )
    is_dead = failure.state == FailureState.DEAD
    discard = failure.state in {FailureState.DEAD, FailureState.QUARANTINED} and open_item is None
    restore = failure.state == FailureState.DISCARDED
    if open_item is not None:
        return Acts(False, False, False, restore)
    if not is_dead:
        return Acts(False, False, discard, restore, _CANNOT_REPLAY.get(FailureState(failure.state), ""))
    if not is_whole:
        return Acts(
            False, False, discard, restore, "Its message was too large to keep whole, so it cannot be sent again."
        )
    return Acts(True, bool(is_editable(failure)), discard, restore)


def is_editable(failure: Failure) -> bool:
    """Whether the display copy can be edited: it must be whole JSON of the right shapes."""
    try:
        return isinstance(arguments.read(failure.args or "[]"), list) and isinstance(
            arguments.read(failure.kwargs or "{}"), dict
        )
    except arguments.NotJson:
        return False


def open_item(items: Sequence[ReplayItem]) -> ReplayItem | None:
    return next((item for item in items if item.state in OPEN_ITEM), None)
