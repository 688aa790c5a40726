"""Moving of failures from one group to another, with their attempts, their counts, and the groups' parts per source.

Called in a transaction in which no other process regroups (`regrouping`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Case, F, Value, When

from jobs_admin.core.fingerprint import Rules
from jobs_admin.db import grouping_rules
from jobs_admin.db.counters import add_group_counts, spread_over_steps
from jobs_admin.db.grouping_rules import printed
from jobs_admin.groups import merging
from jobs_admin.ingest.group_sightings import Part, write_parts
from jobs_admin.models import Attempt, Failure, Group, GroupAlias, GroupCounter, GroupSource
from jobs_admin.models.counter import STEPS_OF_GROUPS
from jobs_admin.models.group import GroupState
from jobs_admin.rights import group_sight


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of a failure."""

    fingerprint: str
    title: str
    culprit: str
    part_text: str = ""  # for a part of a split group: the text that distinguishes it from other parts


def find_group(fingerprint: str) -> Group | None:
    """Return the group with this present or former fingerprint."""
    found = Group.objects.filter(fingerprint=fingerprint).first()
    if found is None:
        alias = GroupAlias.objects.filter(fingerprint=fingerprint).select_related("group").first()
        found = alias.group if alias else None
    return found


def move_failures(old: int, to: Destination, failures: Sequence[Failure]) -> tuple[Group, Group, int] | None:
    """Move these failures of one group to another, with their attempts and counts.

    Return (from, to, number of failures); None if none had to move.
    """
    group = Group.objects.get(pk=old)
    # They were read before this transaction: failures pruned or moved meanwhile are skipped.
    found = lock_failures(group, [failure.pk for failure in failures])
    failures = [failure for failure in failures if failure.pk in found]
    if not failures:
        return None
    target = find_group(to.fingerprint) or _create_group(group, to, failures)
    if target.pk == group.pk:
        return None
    ids = [failure.pk for failure in failures]
    attempts = Attempt.objects.filter(failure__in=ids, group=group)
    counted: dict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    times = []
    for kind, at in attempts.values_list("kind", "ended_at"):
        counted[at.replace(second=0, microsecond=0)][kind == "retry"] += 1
        times.append(at)
    attempts.update(group=target)
    Failure.objects.filter(pk__in=ids, group=group).update(group=target)
    merging.follow_exclusions(group.pk, target.pk)
    _uncount(group.pk, counted)
    add_group_counts({(target.pk, at): n for at, n in counted.items()})
    latest = max(failures, key=lambda failure: (failure.failed_at, failure.pk))
    first = min([failure.first_failed_at for failure in failures] + times)
    add_counts(target.pk, len(times), first, latest.failed_at, latest.pk)
    _write_parts(target.pk, to, failures)
    left = Case(When(count__gt=len(times), then=F("count") - len(times)), default=Value(0))
    Group.objects.filter(pk=group.pk).update(count=left)
    choose_representative(group.pk)
    return group, target, len(failures)


def _own_text(failure: Failure, to: Destination) -> tuple[str, str]:
    """Return message and culprit for a group's title from this failure alone.

    Its old group may include other sources.
    """
    rules = grouping_rules.read_rules()
    own = printed(failure, rules)
    if not to.part_text or own.title_message.endswith(to.part_text):
        return own.title_message, own.culprit
    plain = printed(failure, Rules(rules.ignored))
    return f"{plain.title_message[: 499 - len(to.part_text)]} {to.part_text}", plain.culprit


def _write_parts(group: int, to: Destination, failures: Sequence[Failure]) -> None:
    """Add these failures to the group's parts per source. The text is their own, never that of their old group."""
    first: dict[str, Failure] = {}
    for one in failures:
        first[one.source] = min(first.get(one.source, one), one, key=lambda failure: failure.first_failed_at)
    made = {source: _own_text(one, to) for source, one in first.items()}
    write_parts(
        Part(
            group, one.source, first[one.source].error_type, made[one.source][0], made[one.source][1],
            one.first_failed_at, one.failed_at, one.release,
        )
        for one in failures
    )  # fmt: skip


def renew_parts(group: int) -> None:
    """Update the group's part at each source from its latest failure there; delete a part without failures."""
    for part in GroupSource.objects.filter(group=group):
        mine = Failure.objects.filter(group=group, source=part.source).select_related("traceback").order_by("-pk")
        if (latest := mine.first()) is None:
            part.delete()
            continue
        made = printed(latest, grouping_rules.read_rules())
        part.error_type, part.message, part.culprit = latest.error_type, made.title_message, made.culprit
        part.save(update_fields=["error_type", "message", "culprit"])


def _create_group(group: Group, to: Destination, failures: Sequence[Failure]) -> Group:
    """Create a group from another one, with the same state and assignee.

    Texts by operators are copied as far as viewers of these failures' sources may read them.
    """
    group = copy(group)
    group_sight.restrict(group_sight.viewer_of_sources({failure.source for failure in failures}), [group])
    title, culprit = _own_text(failures[0], to)
    is_muted = group.state == GroupState.MUTED and group.muted_until is None
    stored = (
        "state_by",
        "state_since",
        "resolved_at",
        "muted_until",
        "assignee_id",
        "note",
        "runbook_url",
        "issue_url",
        "first_release",
    )
    values: dict[str, Any] = {name: getattr(group, name) for name in stored}
    made, _ = Group.objects.get_or_create(
        fingerprint=to.fingerprint,
        defaults=values
        | {
            "error_type": failures[0].error_type,
            "message": title[:500],
            "culprit": culprit,
            "state": GroupState.ONGOING if is_muted else group.state,
            "first_seen": group.last_seen,
            "last_seen": group.first_seen,
        },
    )
    return made


def _uncount(group: int, counted: dict[datetime, list[int]]) -> None:
    for _, step, at, (failed, retried) in spread_over_steps(
        {(group, at): n for at, n in counted.items()}, STEPS_OF_GROUPS
    ):
        GroupCounter.objects.filter(group_id=group, step=step, at=at).update(
            failed=Case(When(failed__gt=failed, then=F("failed") - failed), default=Value(0)),
            retried=Case(When(retried__gt=retried, then=F("retried") - retried), default=Value(0)),
        )


def add_counts(group: int, count: int, first: datetime, last: datetime, representative: int | None) -> None:
    rows = Group.objects.filter(pk=group)
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    row = rows.get()
    if representative is not None and (row.representative_id is None or last >= row.last_seen):
        row.representative_id = representative
    row.count += count
    row.first_seen, row.last_seen = min(row.first_seen, first), max(row.last_seen, last)
    row.save(update_fields=["representative", "count", "first_seen", "last_seen"])


def choose_representative(group: int) -> None:
    """Replace its representative by one of its own failures, if it has one."""
    row = Group.objects.filter(pk=group).values_list("representative_id", flat=True).first()
    if row is None or not Failure.objects.filter(pk=row, group_id=group).exists():
        latest = Failure.objects.filter(group_id=group).order_by("-pk").values_list("pk", flat=True).first()
        if latest is not None:
            Group.objects.filter(pk=group).update(representative=latest)


def lock_failures(group: Group, ids: Sequence[int]) -> set[int]:
    """Lock failures in the order that ingest uses. Return those that still exist in this group."""
    rows = Failure.objects.filter(pk__in=ids, group=group).order_by("pk")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    return set(rows.values_list("pk", flat=True))
