"""The excluded groups on a replay's page: reason, number of jobs, and the act that brings each back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from dashboard.web import links
from jobs_admin.models import Replay
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.replay import ENDED, START, ReplayState
from jobs_admin.replays import GroupAside


@dataclass(frozen=True, slots=True)
class Row:
    fingerprint: str
    title: str
    culprit: str
    reason: str
    by: str
    at: datetime
    jobs: int | None  # None: not known
    group_url: str
    new_replay_url: str  # "" while the group can be brought back
    can_bring_back: bool


@dataclass(frozen=True, slots=True)
class Aside:
    during: list[Row]
    at_start: list[Row]
    jobs: int  # sum of those listed
    is_least: bool  # the number of some is not known


def aside(replay: Replay, viewer: Viewer, groups: list[GroupAside]) -> Aside | None:
    """Return the excluded groups; None where there are none."""
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
