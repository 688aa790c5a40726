"""The hold of a replay on its page: the numbers, the errors, and the possible acts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse

from dashboard.web import links
from dashboard.web.figures import duration, number, percent
from jobs_admin.core.text import class_name
from jobs_admin.models import Replay
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays import FailingGroup

_FIX = (
    "Cause fixed: resume all; the replay restarts with a few jobs. "
    "Only some groups still fail: skip those and resume the others. "
    "Otherwise cancel the rest. Skipped and cancelled jobs stay dead; nothing is lost."
)
_WORKERS = (
    "Check that workers consume from these queues, then resume: the replay restarts with a few jobs. "
    "Sent jobs wait in their queue; cancelling withdraws them where possible."
)
_TO_DO = {"canary": _FIX, "failing": _FIX, "new_groups": _FIX}


@dataclass(frozen=True, slots=True)
class Failing:
    """A group whose jobs failed in this replay: those that died of it before."""

    title: str
    culprit: str
    count: int
    group_url: str
    failures_url: str
    fingerprint: str
    what: str  # how they failed now, compared with before
    planned: int | None  # unsent jobs that died of it; None where they are too many to be counted
    can_skip: bool  # it has unsent jobs, and without it there is still something to send
    is_on: bool  # its box is ticked at first


@dataclass(frozen=True, slots=True)
class Hold:
    facts: list[tuple[str, str]]
    to_do: str
    groups: list[Failing]
    unsent: int

    @property
    def can_skip(self) -> bool:
        return any(one.can_skip for one in self.groups)

    @property
    def skipped(self) -> list[Failing]:
        return [one for one in self.groups if one.is_on]

    @property
    def skips_most(self) -> bool:
        """Return whether more than half of the unsent jobs would be skipped: the cause may be one for all groups."""
        return 2 * sum(one.planned or 0 for one in self.skipped) > self.unsent

    @property
    def skip_label(self) -> str:
        """Return the label of the button that resumes without the ticked groups."""
        some = len(self.skipped)
        which = "selected groups" if not some else "this group" if some == 1 else f"these {some:,} groups"
        return f"Skip {which} and resume"

    @property
    def skip_words(self) -> str:
        """Return how many jobs that skips; "" where nothing is ticked, or where they are not counted."""
        counts = [one.planned for one in self.skipped]
        if not counts or None in counts:
            return ""
        return f"without {number(sum(n or 0 for n in counts))} of {number(self.unsent)} unsent jobs"


def hold(replay: Replay, failing: list[FailingGroup]) -> Hold | None:
    """Return the hold; None where the replay is not held. `failing`: the groups whose jobs failed."""
    if replay.state != ReplayState.HELD:
        return None
    evidence = replay.evidence or {}
    evidence_of_group = {row["group"]: row for row in evidence.get("groups", ())}
    # Those of this hold first; the others failed before an earlier one, which was resumed.
    of_hold = {
        one.group.pk
        for one in failing
        if not evidence_of_group or evidence_of_group.keys() & {group.pk for group, _ in one.failed_in}
    }
    rows = [_failing(replay, one, evidence_of_group, is_on=one.group.pk in of_hold) for one in failing]
    rows.sort(key=lambda row: (not row.is_on, -row.count))
    if (
        evidence.get("kind", "canary") not in _TO_DO
        or sum(row.planned or 0 for row in rows if row.is_on) >= replay.planned
    ):
        # Nothing would be left to send, or another cause held it: nothing is suggested.
        rows = [replace(row, is_on=False) for row in rows]
    return Hold(
        _facts(replay, evidence), _TO_DO.get(evidence.get("kind", ""), _FIX if rows else _WORKERS), rows, replay.planned
    )


def _facts(replay: Replay, evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of the hold, and the current ones if jobs were settled since."""
    found = []
    if judged := evidence.get("judged"):
        found.append(("Failed again", f"{number(evidence.get('failed', 0))} of the last {number(judged)}"))
        found.append(("Limit", f"{percent(evidence.get('limit', 0))} (95 % confidence)"))
    if queues := evidence.get("queues"):
        found.append(("Queues without workers", ", ".join(str(queue) for _, queue in queues)))
    if evidence.get("unsettled"):
        found.append(("In flight", number(replay.sent + replay.running)))
    succeeded, failed = replay.since_hold or (0, 0)
    if succeeded or failed:
        found.append(("Since the hold", f"{number(succeeded)} succeeded, {number(failed)} failed again"))
    elif seconds := evidence.get("seconds"):
        found.append(("No outcomes for", duration(seconds)))
    return found


def _failing(replay: Replay, one: FailingGroup, evidence_of_group: dict[int, Any], *, is_on: bool) -> Failing:
    can_skip = one.planned is None or 0 < one.planned < replay.planned
    return Failing(
        str(one.group),
        one.group.culprit,
        one.count,
        reverse("redrive:group-detail", args=[one.group.name]),
        links.list_url(f"replay:{replay.pk} group:{one.group.name} state:any"),
        one.group.fingerprint,
        _compared(one, evidence_of_group),
        one.planned,
        can_skip,
        is_on and can_skip,
    )


def _compared(one: FailingGroup, evidence_of_group: dict[int, Any]) -> str:
    """Return how its jobs failed now: `2 failed as before, 1 with a new error: HTTPStatusError at demo/wire.py in post`."""
    same = sum(n for group, n in one.failed_in if group == one.group)
    words = [f"{number(same)} failed as before"] if same else []
    for group, n in one.failed_in:
        if group != one.group:
            first = " (first seen in this replay)" if evidence_of_group.get(group.pk, {}).get("is_new") else ""
            place = f" at {group.culprit}" if group.culprit else ""
            words.append(
                f"{number(n)} {'failed ' if not words else ''}with a new error: {class_name(group.error_type)}{place}{first}"
            )
    return ", ".join(words)
