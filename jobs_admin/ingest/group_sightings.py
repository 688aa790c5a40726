"""Sightings of groups: their number, first and last time, and the resulting state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from jobs_admin.db import statements
from jobs_admin.ingest.dependencies import write_dependencies
from jobs_admin.ingest.report import Report
from jobs_admin.models import Group, GroupSource, ReplayItem
from jobs_admin.models.group import GroupState

NEW_FOR = timedelta(hours=1)  # after that a group is no longer new


@dataclass(frozen=True, slots=True)
class Sighting:
    """A new attempt."""

    failure: int
    report: Report


class Part(NamedTuple):
    """Errors of a group at one source in a period; the text is that of the first."""

    group: int
    source: str
    error_type: str
    message: str  # normalized, as in the title
    culprit: str
    since: datetime
    until: datetime
    release: str = ""  # of the first error


def update_groups(seen: dict[int, list[Sighting]]) -> None:
    """Add sightings to their groups, by group id."""
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
    write_parts(
        Part(pk, r.source, r.error_type, r.fingerprint.title_message, r.fingerprint.culprit, r.ended_at, r.ended_at, r.release)
        for pk, mine in seen.items()
        for r in (it.report for it in mine)
        if r.fingerprint
    )  # fmt: skip
    write_dependencies((pk, it.report) for pk, mine in seen.items() for it in mine)


def write_parts(parts: Iterable[Part]) -> None:
    """Add to the numbers of each source and group (`GroupSource`), in the caller's transaction."""
    first: dict[tuple[int, str], Part] = {}
    last: dict[tuple[int, str], Part] = {}
    for part in parts:
        key = part[:2]
        first[key] = min(first.get(key, part), part, key=lambda one: one.since)
        last[key] = max(part, last.get(key, part), key=lambda one: one.until)
    rows = [(*key, *first[key][2:5], first[key].since, first[key].release, last[key].until) for key in sorted(first)]
    statements.insert(GroupSource, _SOURCE_COLUMNS, rows, conflict=_CONFLICT)


_SOURCE_COLUMNS = ("group_id", "source", "error_type", "message", "culprit", "first_seen", "first_release", "last_seen")


def _conflict_clause() -> str:
    table = f'"{GroupSource._meta.db_table}"'
    is_later = f'excluded."last_seen" >= {table}."last_seen"'
    is_earlier = f'excluded."first_seen" < {table}."first_seen"'
    # As in a group, the text of the first error stays.
    when = {"last_seen": is_later, "first_seen": is_earlier, "first_release": is_earlier}
    changed = [
        f'"{name}" = CASE WHEN {is_so} THEN excluded."{name}" ELSE {table}."{name}" END' for name, is_so in when.items()
    ]
    return f"(group_id, source) DO UPDATE SET {', '.join(changed)}"


_CONFLICT = _conflict_clause()


def _regress(group: Group, seen: list[Sighting]) -> None:
    """Mark a resolved group as regressed, unless these attempts failed before it was resolved and only arrived late."""
    replayed = _find_replay_items(seen)
    later = [it for it in seen if group.resolved_at is None or _failed_after(group.resolved_at, it, replayed)]
    if not later:
        return
    first = min(later, key=lambda it: it.report.ended_at)
    group.state, group.state_by, group.state_since = GroupState.REGRESSED, "", first.report.ended_at
    item, release = replayed.get(first.failure), first.report.release
    group.regressed_after = f"replay:{item.replay_id}" if item else f"release:{release}" if release else ""


def _find_replay_items(seen: list[Sighting]) -> dict[int, ReplayItem]:
    """Return failure -> the replay item that started the run in which it failed."""
    runs = {it.failure: it.report for it in seen if it.report.item}
    # Also by failure and run: after a restore of the database, an item's number may be that of another desk.
    items = ReplayItem.objects.filter(pk__in=[report.item for report in runs.values()], failure__in=runs)
    rows = items.only("replay_id", "failure_id", "run", "sent_at", "claimed_at")
    return {item.failure_id: item for item in rows if item.run == runs[item.failure_id].run}


def _failed_after(resolved_at: datetime, it: Sighting, replayed: Mapping[int, ReplayItem]) -> bool:
    """Return whether the attempt failed after the resolution, by the worker's clock.

    A job sent by a replay since then failed after it, whatever that clock shows.
    """
    item = replayed.get(it.failure)
    sent_at = (item.sent_at or item.claimed_at) if item else None
    return it.report.ended_at > resolved_at or (sent_at is not None and sent_at > resolved_at)
