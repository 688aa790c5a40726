"""Counts of a group that is merged into another, and their return when the merge is withdrawn.

A group counts attempts for longer than it has them: pruned failures are only in its numbers. Failures that return take
their attempts along, and this takes along the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Case, Count, F, Max, Q, QuerySet, Value, When
from django.utils import timezone

from jobs_admin.db import statements
from jobs_admin.db.counters import StepNumber
from jobs_admin.models import Attempt, Group, GroupCounter, GroupRule
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK

_LONGEST_BACK = timedelta(days=30)  # as far back as pictures go
_COLUMNS = ("group_id", "step", "at", "failed", "retried")

_BySteps = dict[int, list[int]]  # the number of the step since 1970 -> failed and retried
# What is kept of each step: under which name, how long it is, and as far back as it is counted in it.
_STEPS = (("hours", HOUR, _LONGEST_BACK), ("minutes", MINUTE, MINUTES_BACK))


def snapshot_counts(group: Group, moving_in: Sequence[Group], now: datetime) -> dict[str, Any]:
    """Return what the group counts at this moment, with the groups whose numbers are still being moved into it.

    Their rows stay locked until the transaction of the caller ends.
    """
    groups = [group, *moving_in]
    pks = [one.pk for one in groups]
    rows = Group.objects.select_for_update(of=("self",)).filter(pk__in=pks).order_by("pk")
    found = {
        "count": sum(rows.values_list("count", flat=True)),
        "last_attempt": Attempt.objects.filter(group__in=pks).aggregate(last=Max("pk"))["last"] or 0,
    }
    last_seen = max(one.last_seen for one in groups)
    for name, step, back in _STEPS:
        # What fell silent has its own last month: nothing of it would be in that of today.
        since = int((min(now, last_seen) - back).timestamp()) // step
        counted: _BySteps = {}
        for one in groups:
            counted = _sum(counted, _of_counters(one, since, step))
        found |= {f"{name}_since": since, name: [[n, *numbers] for n, numbers in sorted(counted.items())]}
    return found


def give_back(group: Group, heir: Group | None, before: dict[str, Any]) -> None:
    """Restore the counts of before, with the attempts since; the difference is subtracted from its heir.

    `before`: the result of `snapshot_counts`, changed nowhere else; without its numbers (of an old rule) nothing is
    done.
    """
    if "count" not in before or (heir is not None and heir.pk == group.pk):
        return
    both = [group.pk, *([heir.pk] if heir else [])]
    rows = Group.objects.select_for_update(of=("self",)).filter(pk__in=both).order_by("pk")
    counts = dict(rows.values_list("pk", "count"))
    missing = before["count"] + _came_since(group, before).count() - counts[group.pk]
    Group.objects.filter(pk=group.pk).update(count=F("count") + missing)
    if heir is not None:
        left = Case(When(count__gt=missing, then=F("count") - missing), default=Value(0))
        Group.objects.filter(pk=heir.pk).update(count=left)
    for name, step, back in _STEPS:
        if name not in before:  # of a rule saved before these were kept
            continue
        # Steps that are deleted by now are not made again.
        oldest = int((min(timezone.now(), group.last_seen) - back).timestamp()) // step
        since = max(before[f"{name}_since"], oldest)
        should = _from(since, _sum(_by_step(before[name]), _by_attempts(_came_since(group, before), step)))
        apart = _sum(should, _of_counters(group, since, step), sign=-1)
        _shift(heir, group, {n: [max(0, one) for one in numbers] for n, numbers in apart.items()}, step)
        _shift(group, heir, {n: [max(0, -one) for one in numbers] for n, numbers in apart.items()}, step)
    _correct_others(group, before)


def _came_since(group: Group, before: dict[str, Any], until: int | None = None) -> QuerySet[Attempt]:
    """Attempts that came after it was taken in, up to the one named."""
    came = Attempt.objects.filter(group=group, pk__gt=before["last_attempt"])
    return came if until is None else came.filter(pk__lte=until)


def _by_attempts(came: QuerySet[Attempt], step: int) -> _BySteps:
    rows = came.annotate(step=StepNumber("ended_at", step)).order_by().values_list("step")
    counted = rows.annotate(n=Count("pk"), retried=Count("pk", filter=Q(kind="retry")))
    return {step: [n - retried, retried] for step, n, retried in counted}


def _of_counters(group: Group, since: int, step: int) -> _BySteps:
    rows = GroupCounter.objects.filter(group=group, step=step, at__gte=datetime.fromtimestamp(since * step, UTC))
    return {int(at.timestamp()) // step: [f, r] for at, f, r in rows.values_list("at", "failed", "retried")}


def _by_step(rows: list[list[int]]) -> _BySteps:
    return {step: numbers for step, *numbers in rows}


def _from(since: int, numbers: _BySteps) -> _BySteps:
    return {step: n for step, n in numbers.items() if step >= since}


def _sum(one: _BySteps, other: _BySteps, sign: int = 1) -> _BySteps:
    nothing = [0, 0]
    return {
        step: [a + sign * b for a, b in zip(one.get(step, nothing), other.get(step, nothing), strict=True)]
        for step in sorted({*one, *other})
    }


def _shift(source: Group | None, target: Group | None, numbers: _BySteps, step: int) -> None:
    rows = [(datetime.fromtimestamp(at * step, UTC), *n) for at, n in numbers.items() if any(n)]
    if target is not None:
        added = [(target.pk, step, *row) for row in rows]
        statements.insert(
            GroupCounter, _COLUMNS, added, conflict=statements.add(GroupCounter, _COLUMNS, key=_COLUMNS[:3])
        )
    if source is not None and rows:
        less = ", ".join(f"{name} = CASE WHEN {name} > %s THEN {name} - %s ELSE 0 END" for name in _COLUMNS[3:])
        statement = f"UPDATE {GroupCounter._meta.db_table} SET {less} WHERE group_id = %s AND step = %s AND at = %s"
        at = connection.ops.adapt_datetimefield_value
        with connection.cursor() as cursor:
            cursor.executemany(statement, [(f, f, r, r, source.pk, step, at(when)) for when, f, r in rows])


def _correct_others(group: Group, before: dict[str, Any]) -> None:
    """Correct the snapshots of groups that were merged later, with this one in them: they will return without it."""
    pending = Q(is_withdrawn=False) | Q(is_applied=False)
    for rule in GroupRule.objects.select_for_update(of=("self",)).filter(pending, kind="merge").order_by("pk"):
        changed = False
        for snapshot in rule.before.values():
            if group.fingerprint not in snapshot.get("aliases", ()) or "count" not in snapshot:
                continue
            came = _came_since(group, before, until=snapshot["last_attempt"])
            snapshot["count"] -= before["count"] + came.count()
            for name, step, _ in _STEPS:
                if name not in snapshot or name not in before:
                    continue
                mine = _sum(_by_step(before[name]), _from(before[f"{name}_since"], _by_attempts(came, step)))
                rest = _sum(_by_step(snapshot[name]), mine, sign=-1)
                snapshot[name] = [[n, *(max(0, one) for one in numbers)] for n, numbers in rest.items() if any(numbers)]
            snapshot["aliases"] = [name for name in snapshot["aliases"] if name != group.fingerprint]
            changed = True
        if changed:
            GroupRule.objects.filter(pk=rule.pk).update(before=rule.before)
