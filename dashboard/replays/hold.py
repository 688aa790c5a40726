"""The hold of a replay on its page: the numbers, the errors, and the possible acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from dashboard.web import links
from dashboard.web.figures import duration, number, percent
from jobs_admin.models import Replay
from jobs_admin.models.replay import ReplayState

_FIX = (
    "Fix the cause of the error below, then resume: the replay restarts with a few jobs. "
    "If only some groups still fail, tick those groups and resume without them. "
    "Otherwise cancel: the remaining jobs stay dead and nothing is lost."
)
_WORKERS = (
    "Check that workers consume from these queues, then resume: the replay restarts with a few jobs. "
    "Sent jobs wait in their queue; cancelling withdraws them where possible."
)
_TO_DO = {"canary": _FIX, "failing": _FIX, "new_groups": _FIX}


@dataclass(frozen=True, slots=True)
class Failing:
    """A group that first attempts of this replay failed in."""

    title: str
    culprit: str
    count: int
    group_url: str
    failures_url: str
    fingerprint: str
    what: str  # whether they died of it before
    planned: int | None  # jobs not sent yet that died of it; None where they are too many to be counted
    leaves_some: bool  # without it there is still something to send: else it would be to cancel the rest


@dataclass(frozen=True, slots=True)
class Hold:
    facts: list[tuple[str, str]]
    to_do: str
    groups: list[Failing]
    is_all: bool  # that failed again so far

    @property
    def leaves_some(self) -> bool:
        return any(one.leaves_some for one in self.groups)


def hold(replay: Replay, groups: list[tuple[Any, int, int | None]]) -> Hold | None:
    """Return the hold. `groups`: (group, its failed first attempts, planned jobs that died of it before)."""
    if replay.state != ReplayState.HELD:
        return None
    evidence = replay.evidence or {}
    evidence_of_group = {row["group"]: row for row in evidence.get("groups", ())}
    # Groups of this hold; those of earlier, resumed holds are shown further down.
    rows = [
        _failing(replay, *one, evidence_of_group.get(one[0].pk, {}))
        for one in groups
        if one[0].pk in evidence_of_group or not evidence_of_group
    ]
    rows.sort(key=lambda row: -row.count)
    return Hold(
        _facts(replay, evidence),
        _TO_DO.get(evidence.get("kind", ""), _FIX if rows else _WORKERS),
        rows,
        len(rows) == len(groups),
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


def _failing(replay: Replay, group: Any, count: int, planned: int | None, evidence_of_group: dict[str, Any]) -> Failing:
    same = evidence_of_group.get("same", 0)
    what = (
        "new in this replay"
        if evidence_of_group.get("is_new")
        else f"{number(same)} had this error before"
        if same
        else ""
    )
    return Failing(
        str(group),
        group.culprit,
        count,
        reverse("redrive:group-detail", args=[group.name]),
        links.list_url(f"replay:{replay.pk} group:{group.name} state:any"),
        group.fingerprint,
        what,
        planned,
        planned is None or 0 < planned < replay.planned,
    )
