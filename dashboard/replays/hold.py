"""Hold of a replay on its page: numbers, errors, possible acts, and excluded groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.urls import reverse

from dashboard.web import links
from dashboard.web.figures import duration, number, percent
from jobs_admin.core.text import class_name
from jobs_admin.models import Replay
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.replay import ENDED, START, ReplayState
from jobs_admin.replays import FailingGroup, GroupAside

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
    """Group whose jobs failed in this replay: the group of their previous error."""

    title: str
    culprit: str
    count: int
    group_url: str
    failures_url: str
    fingerprint: str
    what: str  # how they failed now, compared with before
    planned: int | None  # unsent jobs of the group; None if there are too many to count
    can_skip: bool  # it has unsent jobs, and others remain without it
    is_on: bool  # its box is initially ticked


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
        """Return whether over half of the unsent jobs would be skipped, so that one cause may affect all groups."""
        return 2 * sum(one.planned or 0 for one in self.skipped) > self.unsent

    @property
    def skip_label(self) -> str:
        """Return the label of the button that resumes without the ticked groups."""
        some = len(self.skipped)
        which = "selected groups" if not some else "this group" if some == 1 else f"these {some:,} groups"
        return f"Skip {which} and resume"

    @property
    def skip_words(self) -> str:
        """Return how many jobs are skipped; "" if nothing is ticked, or they are not counted."""
        counts = [one.planned for one in self.skipped]
        if not counts or None in counts:
            return ""
        return f"without {number(sum(n or 0 for n in counts))} of {number(self.unsent)} unsent jobs"


def hold(replay: Replay, failing: list[FailingGroup]) -> Hold | None:
    """Return the hold; None if the replay is not held. `failing`: groups whose jobs failed."""
    if replay.state != ReplayState.HELD:
        return None
    evidence = replay.evidence or {}
    of_evidence = {row["group"] for row in evidence.get("groups", ())}
    # Failures of this hold come first; the others preceded an earlier hold, which was resumed.
    of_hold = {one.group.pk for one in failing if not of_evidence or of_evidence & one.first_failed_in}
    rows = [_failing(replay, one, is_on=one.group.pk in of_hold) for one in failing]
    rows.sort(key=lambda row: (not row.is_on, -row.count))
    if (
        evidence.get("kind", "canary") not in _TO_DO
        or sum(row.planned or 0 for row in rows if row.is_on) >= replay.planned
    ):
        # Nothing would remain to send, or the hold had another cause: no group is suggested.
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
    if replay.has_settled_since_hold:
        outcomes = f"{number(replay.succeeded)} succeeded, {number(replay.failed_again)} failed again"
        if replay.uncertain:
            outcomes += f", {number(replay.uncertain)} uncertain"
        found.append((f"Of {number(replay.sent_in_all)} sent", outcomes))
    elif seconds := evidence.get("seconds"):
        found.append(("No outcomes for", duration(seconds)))
    return found


def _failing(replay: Replay, one: FailingGroup, *, is_on: bool) -> Failing:
    can_skip = one.planned is None or 0 < one.planned < replay.planned
    return Failing(
        str(one.group),
        one.group.culprit,
        one.count,
        reverse("redrive:group-detail", args=[one.group.name]),
        links.list_url(f"replay:{replay.pk} group:{one.group.name} state:any"),
        one.group.fingerprint,
        _compared(replay, one),
        one.planned,
        can_skip,
        is_on and can_skip,
    )


def _compared(replay: Replay, one: FailingGroup) -> str:
    """Return how jobs failed now: `2 failed as before, 1 with a new error: HTTPStatusError at demo/wire.py in post`."""
    same = sum(n for group, n in one.failed_in if group == one.group)
    words = [f"{number(same)} failed as before"] if same else []
    for group, n in one.failed_in:
        if group != one.group:
            first = " (first seen in this replay)" if group.first_seen >= replay.started_at else ""
            place = f" at {group.culprit}" if group.culprit else ""
            words.append(
                f"{number(n)} {'failed ' if not words else ''}with a new error: {class_name(group.error_type)}{place}{first}"
            )
    return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Row:
    fingerprint: str
    title: str
    culprit: str
    reason: str
    by: str
    at: datetime
    jobs: int | None  # None: unknown
    group_url: str
    new_replay_url: str  # "" while the group can be brought back
    can_bring_back: bool


@dataclass(frozen=True, slots=True)
class Aside:
    during: list[Row]
    at_start: list[Row]
    jobs: int  # sum over the listed groups
    is_least: bool  # the number of some is unknown


def aside(replay: Replay, viewer: Viewer, groups: list[GroupAside]) -> Aside | None:
    """Return the excluded groups; None if there are none."""
    if not groups:
        return None
    is_open, may_act = replay.state not in ENDED, viewer.may_anywhere(OPERATOR)
    rows = [(_row(replay, one, is_open=is_open, may_act=may_act), one.phase == START) for one in groups]
    during, at_start = [row for row, at in rows if not at], [row for row, at in rows if at]
    return Aside(during, at_start, sum(row.jobs or 0 for row, _ in rows), any(row.jobs is None for row, _ in rows))


def _row(replay: Replay, one: GroupAside, *, is_open: bool, may_act: bool) -> Row:
    can = is_open and may_act and one.phase != START and replay.state != ReplayState.DRAFT
    new_replay_url = "" if can or not may_act else links.new_replay(f"group:{one.group.name} state:dead")
    return Row(
        one.group.name,
        str(one.group),
        one.group.culprit,
        one.reason,
        one.by,
        one.at,
        one.jobs,
        reverse("redrive:group-detail", args=[one.group.name]),
        new_replay_url,
        can,
    )
