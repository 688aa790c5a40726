"""Operators' changes to one or many groups, and their undo: state, assignee, note, runbook, issue and dependency."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core.dependency import OTHER, SEVERAL, valid_name
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit, statements
from jobs_admin.db.authorizing import authorize
from jobs_admin.groups import dependencies
from jobs_admin.models import AuditEvent, FailureCount, Group
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.group import GroupState
from jobs_admin.rights import group_sight

# States that an operator can set; the engine sets `new` and `regressed`.
STATES = (GroupState.ONGOING, GroupState.RESOLVED, GroupState.MUTED)
MOST_AT_ONCE = 1_000
MOST_MUTED_COUNT = 10**9
ACT = group_sight.CHANGE
UNDONE = "Undone: as it was before."  # reason of an undo
_CHANGEABLE = (
    "state",
    "muted_until",
    "muted_until_count",
    "assignee",
    "note",
    "runbook_url",
    "issue_url",
    "dependency",
)
# Columns of a state change, which its undo restores.
_STATE = (
    "state", "state_by", "state_since", "regressed_after", "resolved_at", "muted_until", "muted_until_count", "mute_ended",
)  # fmt: skip
_TEXTS = ("note", "runbook_url", "issue_url", "dependency")
_COLUMNS = (*_STATE, "assignee_id", *_TEXTS)
_TIMES = ("state_since", "resolved_at", "muted_until")
_WORDS = ("state", "state_by", "regressed_after", "mute_ended", *_TEXTS)  # empty, never null
_MOST_UNDONE = 50_000  # audit rows: one per group and source
PER_TRANSACTION = 100  # groups: SQLite allows no other writer meanwhile
_LONGEST_URL = 500
_is_url = URLValidator(schemes=["http", "https"])  # it becomes a link: no javascript: address


@dataclass(frozen=True, slots=True)
class Changed:
    """Groups actually changed; `receipt` undoes it."""

    fingerprints: list[str] = field(default_factory=list)
    unchanged: int = 0  # groups that already had these values
    refused: list[str] = field(default_factory=list)  # groups of which the viewer is not operator of every source
    missing: int = 0  # groups that do not exist, or that the viewer may not see
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Undone:
    fingerprints: list[str]
    changed_since: list[str]  # unchanged: an operator, or the engine, changed them after the act


def change(
    viewer: Viewer, group: Group, changes: dict[str, Any], *, reason: str = "", now: datetime | None = None
) -> Changed:
    """Change one group: state, muted_until, muted_until_count, assignee, note, runbook_url, issue_url, dependency.

    `assignee`: a user's name, "" for none. `dependency`: "none" for no dependency, "" to derive it.
    `muted_until_count`: the number of failed attempts from now. Requires the role operator on every source in which the
    group has failures. Raises Refused.
    """
    now = now or timezone.now()
    _writable()
    sources = _sources([group.pk])[group.pk]
    authorize(viewer, OPERATOR, sources, ACT, f"group:{group.fingerprint}", message=_NOT_OPERATOR)
    values = _values(changes, now)
    return _write(viewer, {group.pk: sources}, values, reason)


def change_many(
    viewer: Viewer,
    fingerprints: Sequence[str],
    changes: dict[str, Any],
    *,
    reason: str = "",
    now: datetime | None = None,
) -> Changed:
    """Make the same change to each of up to MOST_AT_ONCE groups; those without the right are excluded and returned.

    Raises Refused if nothing could be changed.
    """
    now = now or timezone.now()
    _writable()
    wanted = set(map(representable, fingerprints))
    if len(wanted) > MOST_AT_ONCE:
        message = f"At most {MOST_AT_ONCE:,} groups can be changed at once. Nothing was changed."
        raise Refused("too_many", message, "groups")
    if not wanted:
        raise Refused("invalid", "Select the groups to change. Nothing was changed.", "groups")
    values = _values(changes, now)
    found = dict(Group.objects.filter(fingerprint__in=wanted).values_list("pk", "fingerprint"))
    sources = _sources(found)
    seen = {pk: by_group for pk, by_group in sources.items() if any(viewer.role_on(source) for source in by_group)}
    refused = {pk: where for pk, by_group in seen.items() if (where := _not_operator_of(viewer, by_group))}
    if refused:
        entries_refused = [
            audit.Entry(f"group:{found[pk]}", source=where, reason=_why_refused(viewer, where), allowed=False)
            for pk, where in refused.items()
        ]
        with transaction.atomic():
            audit.record_all(viewer, ACT, entries_refused)
        if len(refused) == len(seen):
            raise Refused("forbidden", _why_refused(viewer, next(iter(refused.values()))))
    done = _write(viewer, {pk: by_group for pk, by_group in seen.items() if pk not in refused}, values, reason)
    return Changed(
        done.fingerprints,
        done.unchanged,
        sorted(found[pk] for pk in refused),
        len(wanted) - len(seen),
        done.receipt,
    )


def undo(viewer: Viewer, receipt: str) -> Undone:
    """Restore the previous values of each group of this viewer's act, unless it was changed since. Raises Refused."""
    _writable()
    before, after, previous = _read_act(viewer, receipt)
    by_group = dict(Group.objects.filter(fingerprint__in=before).values_list("fingerprint", "pk"))
    sources = _sources(by_group.values())
    may = {name: pk for name, pk in by_group.items() if not _not_operator_of(viewer, sources[pk])}
    if not may:
        raise Refused("forbidden", "You no longer have the role operator on these groups. Nothing was changed.")
    users = get_user_model()._default_manager.in_bulk(
        {was["assignee"] for was in before.values() if was.get("assignee")}, field_name=get_user_model().USERNAME_FIELD
    )
    done: list[str] = []
    for part in _parts(sorted(may.values())):
        with transaction.atomic():
            back = [g for g in _locked(part) if _plain(g, after[g.fingerprint]) == after[g.fingerprint]]
            read = _read_by_source(back, sources)
            entries = []
            for group in back:
                name = group.fingerprint
                _restore(group, before[name], users)
                entries += _entries(group, sources[group.pk], after[name], before[name], UNDONE, read, previous)
            _save(back, representable(viewer.name)[:150])
            audit.record_all(viewer, ACT, entries)
        done += [group.fingerprint for group in back]
    return Undone(done, sorted(set(before) - set(done)))


def undoable(viewer: Viewer, receipt: str) -> int:
    """Return how many groups `undo` would revert; 0 if it would refuse."""
    try:
        _writable()
        _, after, _ = _read_act(viewer, receipt)
    except Refused:
        return 0
    found = Group.objects.filter(fingerprint__in=after).select_related("assignee")
    standing = [g.pk for g in found if _plain(g, after[g.fingerprint]) == after[g.fingerprint]]
    sources = _sources(standing)
    return sum(not _not_operator_of(viewer, sources[pk]) for pk in standing)


def receipt_of(events: Iterable[tuple[int, datetime]]) -> str:
    """Return the receipt of a change, from the numbers and times of its audit rows."""
    parts: dict[datetime, list[int]] = defaultdict(list)
    for pk, at in events:
        parts[at].append(pk)
    return ",".join(f"{min(pks)}-{max(pks)}" for _, pks in sorted(parts.items()))


# -- rights -----------------------------------------------------------------------------------------------------


def _writable() -> None:
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)


def _sources(groups: Iterable[int]) -> dict[int, list[str]]:
    """Return group -> the sources in which it has failures."""
    by_group = (
        FailureCount.objects.filter(group_id__in=list(groups), count__gt=0).values_list("group_id", "source").distinct()
    )
    found: dict[int, list[str]] = defaultdict(list)
    for group, source in by_group.order_by("group_id", "source"):
        found[group].append(source)
    return found


def _not_operator_of(viewer: Viewer, sources: Iterable[str]) -> str:
    """Return the first source of which the viewer is not operator; empty if there is none."""
    return next((source for source in sources if not viewer.may(OPERATOR, source)), "")


def _why_refused(viewer: Viewer, source: str) -> str:
    where = source if viewer.role_on(source) else "a source"
    return _NOT_OPERATOR.format(seen=where)


_NOT_OPERATOR = "The group has failures in {seen}, where you need the role operator. Nothing was changed."


# -- values -----------------------------------------------------------------------------------------------------


def _values(changes: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return the columns to write; `muted_until_count` still counted from now."""
    values: dict[str, Any] = {}
    state = changes.get("state")
    if state is not None:
        if state not in STATES:
            raise Refused("invalid", f"The state must be one of {', '.join(STATES)}. Nothing was changed.", "state")
        values |= dict.fromkeys(_STATE) | {
            "state": str(state),
            "state_since": now,
            "regressed_after": "",
            "mute_ended": "",
        }
        values["resolved_at"] = now if state == GroupState.RESOLVED else None
    for name in ("muted_until", "muted_until_count"):
        if changes.get(name) is not None:
            if state != GroupState.MUTED:
                raise Refused("invalid", f"{name} requires the state muted. Nothing was changed.", name)
            values[name] = _bound(name, changes[name], now)
    if "assignee" in changes:
        values["assignee"] = _user(changes["assignee"])
    if (note := changes.get("note")) is not None:
        values["note"] = representable(note)
    for name in ("runbook_url", "issue_url"):
        if (address := changes.get(name)) is not None:
            values[name] = _address(name, address)
    if (dependency := changes.get("dependency")) is not None:
        values["dependency"] = _dependency(dependency)
    if not values:
        raise Refused("invalid", f"Nothing to change: pass one of {', '.join(_CHANGEABLE)}.")
    return values


def _bound(name: str, value: Any, now: datetime) -> Any:
    if name == "muted_until":
        if timezone.is_naive(value) or value <= now:
            raise Refused("invalid", "muted_until must be a future time with a time zone. Nothing was changed.", name)
        return value.astimezone(UTC)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_MUTED_COUNT:
        message = (
            f"muted_until_count must be a number of failed attempts from 1 to {MOST_MUTED_COUNT:,}. Nothing was "
            "changed."
        )
        raise Refused("invalid", message, name)
    return value


def _user(name: str | None) -> Any:
    if not name:
        return None
    users = get_user_model()
    found = users._default_manager.filter(**{users.USERNAME_FIELD: representable(name)}, is_active=True).first()
    if found is None:
        raise Refused("invalid", f"No active user {name!r}. Nothing was changed.", "assignee")
    return found


def _address(name: str, address: str) -> str:
    if len(address) > _LONGEST_URL:
        raise Refused("invalid", f"The URL must have at most {_LONGEST_URL} characters. Nothing was changed.", name)
    try:
        if address:
            _is_url(address)
    except ValidationError as error:
        raise Refused("invalid", "The URL must start with http or https. Nothing was changed.", name) from error
    return address


def _dependency(name: str) -> str:
    if not name.strip():
        return ""
    valid = valid_name(name)
    if not valid or valid in (SEVERAL, OTHER):
        raise Refused(
            "invalid",
            "A dependency's name has up to 120 letters, digits and . : - _ @, begins with a letter or digit, and is not "
            f"{SEVERAL} or {OTHER}. Nothing was changed.",
            "dependency",
        )
    return valid


# -- writing ----------------------------------------------------------------------------------------------------


def _write(viewer: Viewer, sources: dict[int, list[str]], values: dict[str, Any], reason: str) -> Changed:
    reason, by = representable(reason.strip())[:500], representable(viewer.name)[:150]
    done: list[str] = []
    receipts: list[str] = []
    unchanged = 0
    for part in _parts(sorted(sources)):
        with transaction.atomic():
            changed: list[Group] = []
            entries: list[audit.Entry] = []
            locked = _locked(part)
            read = _read_by_source(locked, sources)
            for group in locked:
                new = _new(group, values, by)
                if not new:
                    unchanged += 1
                    continue
                was = _plain(group, new)
                for name, value in new.items():
                    setattr(group, name, value)
                changed.append(group)
                is_now = _plain(group, new)
                entries += _entries(group, sources[group.pk], was, is_now, reason, read)
            _save(changed, by)
            events = audit.record_all(viewer, ACT, entries)
        done += [group.fingerprint for group in changed]
        if events:
            receipts.append(f"{events[0].pk}-{events[-1].pk}")
    return Changed(done, unchanged, receipt=",".join(receipts))


def _new(group: Group, values: dict[str, Any], by: str) -> dict[str, Any]:
    """Return the values that differ from the group's; without a state that it already has."""
    new = dict(values)
    if "state" in new:
        new["state_by"] = by
        if new["muted_until_count"] is not None:
            new["muted_until_count"] += group.count
        unchanged_fields = ("state", "regressed_after", "muted_until", "muted_until_count", "mute_ended")
        if all(new[name] == getattr(group, name) for name in unchanged_fields):
            for name in _STATE:
                del new[name]
    if "assignee" in new and (new["assignee"].pk if new["assignee"] else None) == group.assignee_id:
        del new["assignee"]
    return {name: value for name, value in new.items() if name not in _TEXTS or value != getattr(group, name)}


def _locked(pks: Sequence[int]) -> list[Group]:
    """Return the groups, locked in the order in which ingest locks them."""
    rows = Group.objects.filter(pk__in=pks).select_related("assignee").order_by("pk")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    return list(rows)


def _save(groups: Sequence[Group], by: str) -> None:
    rows = [(*(getattr(group, name) for name in _COLUMNS), group.pk) for group in groups]
    statements.update(Group, _COLUMNS, rows)
    dependencies.apply_set(groups, by)


def _entries(
    group: Group,
    sources: Sequence[str],
    was: dict[str, Any],
    is_now: dict[str, Any],
    reason: str,
    read: dict[tuple[int, str], Group],
    restored: dict[tuple[str, str], dict[str, Any]] | None = None,
) -> list[audit.Entry]:
    """Return one entry per source, so that each admin sees what was done with the source's failures.

    The former values are in the entries of the sources whose viewers could read them (`read`), and so are the values
    that an undo restores (`restored`: from the entries of the act). Values that no single source's viewers could read
    are in every entry.
    """
    name = f"group:{group.fingerprint}"
    entries = []
    for source in sources or [""]:
        before, after = was, is_now
        if (own := read.get((group.pk, source))) is not None:
            could = _plain(own, was)
            before = {key: value for key, value in was.items() if could.get(key) == value}
        if restored is not None:
            after = {
                key: value for key, value in is_now.items() if key in restored.get((group.fingerprint, source), {})
            }
        entries.append(audit.Entry(name, source=source, reason=reason, before=before, after=after))
    for previous, full in (("before", was), ("after", is_now)):
        if set(full) - {key for entry in entries for key in getattr(entry, previous)}:
            return [*entries, audit.Entry(name, source=EVERY_SOURCE, reason=reason, before=was, after=is_now)]
    return entries


def _read_by_source(groups: Sequence[Group], sources: dict[int, list[str]]) -> dict[tuple[int, str], Group]:
    """Return (group, source) -> the group as viewers of this source alone read it; only groups of several sources."""
    found: dict[tuple[int, str], Group] = {}
    for source in sorted({source for group in groups for source in sources[group.pk]}):
        seen = group_sight.viewer_of_sources([source])
        mine = {group.pk: copy(group) for group in groups if source in sources[group.pk]}
        partial = group_sight.restrict(seen, mine.values())
        found |= {(pk, source): mine[pk] for pk in partial}
    return found


def _parts(pks: Sequence[int]) -> Iterable[Sequence[int]]:
    return (pks[start : start + PER_TRANSACTION] for start in range(0, len(pks), PER_TRANSACTION))


# -- values in the audit ----------------------------------------------------------------------------------------


def _plain(group: Group, names: Iterable[str]) -> dict[str, Any]:
    """Return these values of the group as JSON; only the non-empty ones of its state."""
    names = set(names)
    previous: dict[str, Any] = {}
    if "state" in names:
        by_group = {name: getattr(group, name) for name in _STATE}
        by_group |= {name: by_group[name].astimezone(UTC).isoformat() for name in _TIMES if by_group[name] is not None}
        previous |= {name: value for name, value in by_group.items() if value not in (None, "")}
    if "assignee" in names:
        previous["assignee"] = group.assignee.get_username() if group.assignee else None
    return previous | {name: getattr(group, name) for name in _TEXTS if name in names}


def _restore(group: Group, previous: dict[str, Any], users: dict[str, Any]) -> None:
    names = [name for name in _TEXTS if name in previous] + list(_STATE if "state" in previous else ())
    for name in names:
        value = previous.get(name, "" if name in _WORDS else None)
        setattr(group, name, datetime.fromisoformat(value) if name in _TIMES and value else value)
    if "assignee" in previous:
        group.assignee = users.get(previous["assignee"])


_RECEIPT = re.compile(r"\d{1,18}-\d{1,18}(?:,\d{1,18}-\d{1,18}){0,99}")


_ByFingerprint = dict[str, dict[str, Any]]  # by fingerprint


def _read_act(
    viewer: Viewer, receipt: str
) -> tuple[_ByFingerprint, _ByFingerprint, dict[tuple[str, str], dict[str, Any]]]:
    """Return the values of each group before and after the act of this receipt, and the former by source.

    Only the viewer's own acts can be undone.
    """
    gone = Refused("invalid", "Nothing left to undo. Nothing was changed.", "receipt")
    if not _RECEIPT.fullmatch(receipt):
        raise gone
    where = Q()
    for part in receipt.split(","):
        first, last = part.split("-")
        where |= Q(pk__gte=int(first), pk__lte=int(last))
    me = {"actor": representable(viewer.name)[:150], "user_id": viewer.person_id, "token_id": viewer.token_id}
    mine = AuditEvent.objects.filter(where, act=ACT, allowed=True, **me)
    before: _ByFingerprint = defaultdict(dict)
    after: _ByFingerprint = defaultdict(dict)
    previous: dict[tuple[str, str], dict[str, Any]] = {}
    columns = ("object", "source", "before", "after")
    for name, source, was, is_now in mine.order_by("pk").values_list(*columns)[:_MOST_UNDONE]:
        fingerprint = name.removeprefix("group:")
        before[fingerprint] |= was
        after[fingerprint] |= is_now
        previous[fingerprint, source] = was
    if not before:
        raise gone
    return before, after, previous
