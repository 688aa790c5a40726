"""History of a group, and similar groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db.models import Exists, OuterRef, Q

from jobs_admin.models import AuditEvent, Failure, FailureCount, Group, GroupAlias, GroupRule, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.group import IS_TAKEN_IN
from jobs_admin.rights import group_sight, replay_sight
from jobs_admin.search import scope as scopes

MOST_EVENTS = 30
MOST_ALIKE = 8
MOST_PARTS = 50  # latest parts of a group that was split
MOST_RULES = 500  # latest rules that are searched
SAMPLE = 200  # latest failures of each state, whose replays are read
_ACTED_ON = ("dead", "replaying", "recovered", "retrying", "quarantined")


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    kind: str  # seen, state, assignee, note, runbook_url, issue_url, dependency, regressed, replay, rule
    who: str = ""  # empty for the engine
    what: str = ""  # the new state, assignee … ; for a rule: rule.save, rule.withdraw
    why: str = ""
    replay: Replay | None = None
    details: dict[str, Any] | None = None  # of the new state, from the audit; for a rule: its content


def read_history(viewer: Viewer, group: Group) -> tuple[list[Event], bool]:
    """Return its events, latest first, and whether there are more."""
    is_partial = bool(group_sight.restrict(viewer, [group]))
    events = [*_changes(viewer, group), *rules(viewer, group), *_replays(viewer, group)]
    if group.state == "regressed" and group.state_since:
        events.append(Event(group.state_since, "regressed", what=group.regressed_after))
    events.append(Event(group.first_seen, "seen", what=group.first_release))
    if is_partial:  # an earlier regression may concern a hidden source
        events = [
            replace(one, what="") if one.kind == "regressed" and one.what != group.regressed_after else one
            for one in events
        ]
    events.sort(key=lambda event: event.at, reverse=True)
    return events[:MOST_EVENTS], len(events) > MOST_EVENTS


def parts_of(viewer: Viewer, fingerprint: str) -> tuple[str, list[str]] | None:
    """Return how a group that is now empty was split, and the groups that its failures moved to, as far as known."""
    if "\0" in fingerprint:
        return None
    named = Q(group__fingerprint=fingerprint) | Q(group__aliases__fingerprint=fingerprint)
    split = GroupRule.objects.filter(named, kind="split", is_withdrawn=False).select_related("group").first()
    if split is None or split.group is None:
        return None
    own = split.group.fingerprint
    names = {*split.before.get("moved", {}), *split.before.get("into", {}).get(own, {})} - {own}
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    parts = Group.objects.filter(Exists(seen), fingerprint__in=names).order_by(
        group_sight.seen_at(viewer, "last_seen").desc()
    )[:MOST_PARTS]
    found = list(parts.values_list("fingerprint", flat=True))
    return (split.by, found) if found else None


def find_similar(viewer: Viewer, group: Group) -> list[tuple[Group, str]]:
    """Return other groups of the same place or type, latest first, with the common property: `place`, `type`."""
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    same = Q(error_type=group.error_type)
    if group.culprit:
        same |= Q(culprit=group.culprit)
    alike = Group.objects.filter(group_sight.reads(viewer, same), Exists(seen)).exclude(IS_TAKEN_IN | Q(pk=group.pk))
    found = list(alike.order_by(group_sight.seen_at(viewer, "last_seen").desc())[:MOST_ALIKE])
    group_sight.restrict(viewer, found)
    return [(one, "place" if group.culprit and one.culprit == group.culprit else "type") for one in found]


def _changes(viewer: Viewer, group: Group) -> list[Event]:
    """Return the audited changes, of the sources that the viewer sees.

    An act has a row per source, and is one event.
    """
    rows = AuditEvent.objects.filter(object__in=[f"group:{name}" for name in _names(group)], allowed=True)
    rows = rows.filter(scopes.visible(viewer))
    found: list[Event] = []
    for (at, who, act), same in groupby(
        rows.order_by("-id")[: MOST_EVENTS * 2], key=lambda row: (row.at, row.actor, row.act)
    ):
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        for row in same:  # each source's row has what its viewers may read
            before |= row.before or {}
            after |= row.after or {}
        name = "" if who == "redrive" else who
        if act != "group.change":
            continue
        for topic in ("state", "assignee", "note", "runbook_url", "issue_url", "dependency"):
            if topic in after:
                found.append(Event(at, topic, name, str(after[topic] or ""), row.reason, details=after))
        came_back = before.get("state_since") if before.get("state") == "regressed" else None
        if came_back and "state" in after:
            moment = _moment(came_back)
            if moment not in (None, group.state_since):
                found.append(Event(moment, "regressed", what=before.get("regressed_after", "")))
    return found


def _names(group: Group) -> set[str]:
    """Return all its names, including those of merged groups: audit rows have the name at their time."""
    return {group.fingerprint, *GroupAlias.objects.filter(group=group).values_list("fingerprint", flat=True)}


def rules(viewer: Viewer, group: Group) -> list[Event]:
    """Return the grouping rules that affected it: who put them in force and who withdrew them."""
    names = _names(group)
    concerned = {}
    columns = ("pk", "kind", "group_id", "others", "by", "frame", "before__moved")
    for rule in GroupRule.objects.order_by("-pk").values(*columns)[:MOST_RULES]:
        is_about_it = rule["group_id"] == group.pk
        if is_about_it or not names.isdisjoint([*rule["others"], *(rule["before__moved"] or ())]):
            details = {"kind": rule["kind"], "by": rule["by"], "frame": rule["frame"], "groups": len(rule["others"])}
            concerned[f"rule:{rule['pk']}"] = details | {"is_about_it": is_about_it}
    rows = AuditEvent.objects.filter(object__in=concerned, allowed=True, act__in=("rule.save", "rule.withdraw"))
    rows = rows.filter(scopes.visible(viewer))
    found: dict[tuple[str, str], Event] = {}
    for row in rows.order_by("-id")[: MOST_EVENTS * 4] if concerned else ():  # an act has a row per source
        event = Event(row.at, "rule", row.actor, row.act, row.reason, details=concerned[row.object])
        found.setdefault((row.object, row.act), event)
    return list(found.values())


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def _replays(viewer: Viewer, group: Group) -> list[Event]:
    """Return the replays of its latest failures."""
    ids: list[int] = []
    for state in _ACTED_ON:
        latest = Failure.objects.filter(scopes.visible(viewer), group=group, state=state).order_by("-pk")
        ids += latest.values_list("pk", flat=True)[:SAMPLE]
    replays = ReplayItem.objects.filter(failure_id__in=ids).order_by().values("replay_id").distinct()
    found = list(Replay.objects.filter(pk__in=replays).order_by("-pk")[:MOST_EVENTS])
    replay_sight.restrict(viewer, found)
    return [Event(one.started_at or one.created_at, "replay", one.actor, one.state, one.reason, one) for one in found]
