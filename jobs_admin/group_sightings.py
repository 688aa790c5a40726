"""Groups that are seen again: how often, since when and when last, and what that means for their state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from jobs_admin import statements
from jobs_admin.models import Group, ReplayItem
from jobs_admin.models.group import GroupState
from jobs_admin.report import Report

NEW_FOR = timedelta(hours=1)  # then a group is no longer new


@dataclass(frozen=True, slots=True)
class Sighting:
    """An attempt that was not there before."""

    failure: int
    report: Report


def fold(seen: dict[int, list[Sighting]]) -> None:
    """Group -> what was seen of it."""
    rows = Group.objects.filter(pk__in=seen).order_by("pk")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    changed = []
    for group in rows:
        mine = seen[group.pk]
        latest = max(mine, key=lambda it: (it.report.ended_at, it.failure))
        if group.count == 0 or latest.report.ended_at >= group.last_seen:
            group.representative_id = latest.failure
        group.count += len(mine)
        group.first_seen = min(group.first_seen, *(it.report.ended_at for it in mine))
        group.last_seen = max(group.last_seen, latest.report.ended_at)
        if group.state == GroupState.NEW and group.last_seen - group.first_seen >= NEW_FOR:
            group.state, group.state_since = GroupState.ONGOING, group.first_seen + NEW_FOR
        elif group.state == GroupState.RESOLVED:
            _regress(group, mine)
        changed.append(
            (group.count, group.first_seen, group.last_seen, group.state, group.state_by, group.state_since,
             group.regressed_after, group.representative_id, group.pk)
        )  # fmt: skip
    columns = (
        "count", "first_seen", "last_seen", "state", "state_by", "state_since", "regressed_after", "representative_id",
    )  # fmt: skip
    statements.update(Group, columns, changed)


def _regress(group: Group, seen: list[Sighting]) -> None:
    """A resolved group came back, unless these failed before it was resolved and only arrived late."""
    replayed = _replayed(seen)
    later = [it for it in seen if group.resolved_at is None or _failed_after(group.resolved_at, it, replayed)]
    if not later:
        return
    first = min(later, key=lambda it: it.report.ended_at)
    group.state, group.state_by, group.state_since = GroupState.REGRESSED, "", first.report.ended_at
    item, release = replayed.get(first.failure), first.report.release
    group.regressed_after = f"replay:{item.replay_id}" if item else f"release:{release}" if release else ""


def _replayed(seen: list[Sighting]) -> dict[int, ReplayItem]:
    """failure -> the item of the replay that started the run it failed in."""
    runs = {it.failure: it.report for it in seen if it.report.item}
    # By failure and run too: an item's number may be that of another desk, where a database was put back.
    items = ReplayItem.objects.filter(pk__in=[report.item for report in runs.values()], failure__in=runs)
    rows = items.only("replay_id", "failure_id", "run", "sent_at", "claimed_at")
    return {item.failure_id: item for item in rows if item.run == runs[item.failure_id].run}


def _failed_after(resolved_at: datetime, it: Sighting, replayed: Mapping[int, ReplayItem]) -> bool:
    """By the worker's clock; what we sent since it was resolved failed after that, whatever that clock says."""
    item = replayed.get(it.failure)
    sent_at = (item.sent_at or item.claimed_at) if item else None
    return it.report.ended_at > resolved_at or (sent_at is not None and sent_at > resolved_at)
