"""The page of a failure: its arguments, and the possible acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from dashboard.failures import tree
from dashboard.failures.timeline import short
from dashboard.web import links
from jobs_admin.core import search_terms
from jobs_admin.core.redacted_view import Piece, Plain
from jobs_admin.db import abilities
from jobs_admin.desk.overview import SEEN, SourceRow
from jobs_admin.failures import contents
from jobs_admin.models import Failure, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.replay import OPEN_ITEM, ItemState, ReplayState

__all__ = [
    "Acts",
    "Branch",
    "acts",
    "addresses",
    "branch",
    "branches",
    "document",
    "open_item",
    "sent_for_good",
    "short",
    "why_not_editable",
]


_NO_FORM = "The message does not have its queue system's format, so it cannot be given a new ID and replayed."


@dataclass(frozen=True, slots=True)
class Branch:
    """Positional or keyword arguments, or headers, as a tree or as raw text."""

    name: str
    tree: SafeString | str = ""
    text: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.tree and not self.text


def addresses(failure: Failure, *, is_complete: bool = False) -> tree.Addresses:
    return tree.Addresses(
        reverse("redrive:failure-opened", args=[failure.pk]),
        reverse("redrive:failure-list"),
        "&whole=1" if is_complete else "",
        search_terms.indexed_paths("args", failure.args) | search_terms.indexed_paths("kwargs", failure.kwargs),
    )


def branches(failure: Failure) -> list[Branch]:
    """Return the arguments, as much as one page should contain."""
    return [branch(failure, "args", "Arguments"), branch(failure, "kwargs", "Keyword arguments")]


def branch(failure: Failure, field_name: str, name: str) -> Branch:
    text = getattr(failure, field_name)
    try:
        value = contents.json_of(text, None)
    except contents.Unreadable:
        return Branch(name, text=text)
    if value in (None, [], {}):
        return Branch(name)
    return branch_of(Plain(value), field_name, name, addresses(failure))


def branch_of(piece: Piece, field_name: str, name: str, to: tree.Addresses) -> Branch:
    if piece.kind in {"list", "object"} and not piece.size:
        return Branch(name)
    return Branch(name, tree.as_html(tree.lines(piece, field_name), to))


def document(failure: Failure) -> dict[str, Any]:
    """Return arguments and headers as values; what is not JSON is omitted."""
    found = {}
    for name in ("args", "kwargs", "headers"):
        try:
            found[name] = contents.json_of(getattr(failure, name), None)
        except contents.Unreadable:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Acts:
    """Acts that the viewer may do on a failure now, and why the others are not possible."""

    replay: bool
    edit: bool
    discard: bool
    restore: bool
    why_not: str = ""
    readmit: bool = False
    settle: ReplayItem | None = None  # sent without a reported outcome, which a person may know
    no_edit: str = ""  # why its arguments cannot be edited although it can be replayed
    reschedule_url: str = ""  # URL that reschedules its retry; "" if no one can


_CANNOT_REPLAY = {
    FailureState.RETRYING: "The worker will retry this job. A replay now would run the job twice.",
    FailureState.REPLAYING: "Replay in progress; no result yet.",
    FailureState.RECOVERED: "The job succeeded. Nothing to replay.",
    FailureState.DISCARDED: "Discarded. Restore the job before replaying.",
    FailureState.GONE: "The source no longer has this job: it was changed there by someone else.",
    FailureState.QUARANTINED: "In quarantine. Readmit the job before replaying.",
}


_SENT_FOR_GOOD = (
    "The job was sent again, and its source does not report results. Check whether it ran, then mark it as run or lost."
)


def acts(
    viewer: Viewer,
    failure: Failure,
    *,
    open_item: ReplayItem | None,
    is_complete: bool,
    sent: ReplayItem | None = None,
    source: SourceRow | None = None,
) -> Acts:
    """Return the acts. `sent`: the item returned by `sent_for_good`."""
    if not viewer.may(OPERATOR, failure.source):
        return Acts(False, False, False, False, f"Replay and discard need the role operator on {failure.source}.")
    is_dead = failure.state == FailureState.DEAD
    discard = failure.state in {FailureState.DEAD, FailureState.QUARANTINED} and open_item is None
    restore = failure.state == FailureState.DISCARDED
    if open_item is not None:
        return Acts(False, False, False, restore)
    if sent is not None:
        return Acts(False, False, False, False, _SENT_FOR_GOOD, settle=sent)
    if not is_dead:
        why_not = _CANNOT_REPLAY.get(FailureState(failure.state), "")
        is_quarantined = failure.state == FailureState.QUARANTINED
        return Acts(
            False, False, discard, restore, why_not, readmit=is_quarantined, reschedule_url=_reschedule_url(failure)
        )
    if (failure.caveats or 0) & Caveat.SEEN:
        return Acts(False, False, discard, restore, SEEN)
    if not is_complete:
        what = "too large to store" if (failure.caveats or 0) & Caveat.TRUNCATED else "not stored"
        return Acts(False, False, discard, restore, f"The message was {what}, so the job cannot be replayed.")
    if (failure.caveats or 0) & Caveat.NO_FORM:
        return Acts(False, False, discard, restore, _NO_FORM)
    why_not = source.why_no_replay if source else abilities.missing_ability(failure.source, "replay")
    if why_not:
        return Acts(False, False, discard, restore, why_not)
    no_edit = why_not_editable(failure)
    return Acts(True, not no_edit, discard, restore, no_edit=no_edit)


def _reschedule_url(failure: Failure) -> str:
    can = abilities.capabilities(failure.source) if failure.state == FailureState.RETRYING else None
    return links.retry_of_job(failure.pk) if can is not None and can.reschedule else ""


def why_not_editable(failure: Failure) -> str:
    """Return why the arguments cannot be edited; "" if they can.

    The source does not support edits, or the stored copy is not complete JSON of the right shapes.
    """
    if why_not := abilities.missing_ability(failure.source, "edit"):
        return why_not
    try:
        stored = contents.copy(failure)
    except contents.Unreadable:
        return _INCOMPLETE
    return "" if stored.args.kind == "list" and stored.kwargs.kind == "object" else _INCOMPLETE


_INCOMPLETE = "The arguments are not stored as complete JSON, so they cannot be edited."


def same_error(failure: Failure, items: Sequence[ReplayItem]) -> str:
    """Return a warning if the last replay of the job ended with the error that it has now. `items`: latest first."""
    last = items[0] if items else None
    if last is None or last.state != ItemState.FAILED_AGAIN or not failure.group_id:
        return ""
    is_same = (last.failed_group_id or last.first_group_id) == failure.group_id
    return "Its last replay failed with the same error." if is_same else ""


def open_item(failure: Failure, items: Sequence[ReplayItem]) -> ReplayItem | None:
    """Return the item of a replay that still expects reports."""
    if failure.state == FailureState.GONE:
        return None
    return next((item for item in items if item.state in OPEN_ITEM), None)


@dataclass(frozen=True, slots=True)
class Waits:
    """The reason why a planned job is not being sent, and how to free it."""

    state: str
    why: str
    to_do: str


_TO_DO = {
    ReplayState.HELD: "Resume that replay, resume without this job or its group, or cancel the remaining jobs. You can "
    "then replay, edit or discard this job here.",
    ReplayState.PAUSED: "Resume that replay, or cancel its remaining jobs to free this job.",
    ReplayState.WAITING: "The job is sent when the time window opens. To free the job, cancel that replay's remaining jobs.",
}


def waits(item: ReplayItem | None) -> Waits | None:
    """Return why this item is waiting; None if its replay is sending."""
    if item is None or item.state != ItemState.PLANNED or item.replay.state not in _TO_DO:
        return None
    return Waits(item.replay.state, item.replay.current_hold_reason, _TO_DO[ReplayState(item.replay.state)])


def sent_for_good(failure: Failure, items: Sequence[ReplayItem]) -> ReplayItem | None:
    """Return the item that sent the job to a system without outcomes.

    None if the job is not gone, or left automatically.
    """
    if failure.state != FailureState.GONE:
        return None
    return next((item for item in items if (item.run, item.state) == (failure.run, ItemState.SENT)), None)
