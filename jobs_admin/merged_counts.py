"""What a group counts when another one takes it in, and what it gets back of that when the two part again.

A group counts attempts for longer than it has them: those of failures that were pruned are in its numbers alone. Failures
that go home take their attempts along, and this takes along the rest.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Case, Count, F, Max, Q, Value, When

from jobs_admin import statements
from jobs_admin.counting import StepOf
from jobs_admin.models import Attempt, Group, GroupCounter, GroupRule
from jobs_admin.models.counter import HOUR

_KEPT_FOR = timedelta(days=30)  # as far back as pictures go
_COLUMNS = ("group_id", "step", "at", "failed", "retried")

_ByHour = dict[int, list[int]]  # the number of the hour since 1970 -> failed and retried


def kept(group: Group, now: datetime) -> dict[str, Any]:
    """What it counts at this moment; its row stays locked until the transaction of the caller ends."""
    # What fell silent has its own last month: nothing of it would be in that of today.
    since = int((min(now, group.last_seen) - _KEPT_FOR).timestamp()) // HOUR
    return {
        "count": Group.objects.select_for_update(of=("self",)).values_list("count", flat=True).get(pk=group.pk),
        "last_attempt": Attempt.objects.filter(group=group).aggregate(last=Max("pk"))["last"] or 0,
        "hours_since": since,
        "hours": [[hour, *numbers] for hour, numbers in sorted(_of_counters(group, since).items())],
    }


def give_back(group: Group, heir: Group | None, before: dict[str, Any]) -> None:
    """It counts what it did before, and the attempts that came since; what it lacks of that, its heir counts too much.

    `before`: what `kept` answered, changed nowhere else; without its numbers (of a rule saved long ago) nothing is done.
    """
    if "count" not in before or (heir is not None and heir.pk == group.pk):
        return
    both = [group.pk, *([heir.pk] if heir else [])]
    rows = Group.objects.select_for_update(of=("self",)).filter(pk__in=both).order_by("pk")
    counts = dict(rows.values_list("pk", "count"))
    total, hours = _since(group, before)
    missing = before["count"] + total - counts[group.pk]
    Group.objects.filter(pk=group.pk).update(count=F("count") + missing)
    if heir is not None:
        left = Case(When(count__gt=missing, then=F("count") - missing), default=Value(0))
        Group.objects.filter(pk=heir.pk).update(count=left)
    since = before["hours_since"]
    should = _sum(_by_hour(before["hours"]), hours)
    apart = _sum(should, _of_counters(group, since), sign=-1)
    _shift(heir, group, {hour: [max(0, n) for n in numbers] for hour, numbers in apart.items()})
    _shift(group, heir, {hour: [max(0, -n) for n in numbers] for hour, numbers in apart.items()})
    _tell_others(group, before)


def _since(group: Group, before: dict[str, Any], until: int | None = None) -> tuple[int, _ByHour]:
    """Attempts that came after it was taken in, up to the one named: how many, and those of each hour."""
    came = Attempt.objects.filter(group=group, pk__gt=before["last_attempt"])
    if until is not None:
        came = came.filter(pk__lte=until)
    rows = came.annotate(hour=StepOf("ended_at", HOUR)).order_by().values_list("hour")
    counted = rows.annotate(n=Count("pk"), retried=Count("pk", filter=Q(kind="retry")))
    hours = {hour: [n - retried, retried] for hour, n, retried in counted}
    return sum(map(sum, hours.values())), {h: n for h, n in hours.items() if h >= before["hours_since"]}


def _of_counters(group: Group, since: int) -> _ByHour:
    rows = GroupCounter.objects.filter(group=group, step=HOUR, at__gte=datetime.fromtimestamp(since * HOUR, UTC))
    return {int(at.timestamp()) // HOUR: [f, r] for at, f, r in rows.values_list("at", "failed", "retried")}


def _by_hour(rows: list[list[int]]) -> _ByHour:
    return {hour: numbers for hour, *numbers in rows}


def _sum(one: _ByHour, other: _ByHour, sign: int = 1) -> _ByHour:
    nothing = [0, 0]
    return {
        hour: [a + sign * b for a, b in zip(one.get(hour, nothing), other.get(hour, nothing), strict=True)]
        for hour in sorted({*one, *other})
    }


def _shift(source: Group | None, target: Group | None, numbers: _ByHour) -> None:
    rows = [(datetime.fromtimestamp(hour * HOUR, UTC), *n) for hour, n in numbers.items() if any(n)]
    if target is not None:
        added = [(target.pk, HOUR, *row) for row in rows]
        statements.insert(
            GroupCounter, _COLUMNS, added, conflict=statements.add(GroupCounter, _COLUMNS, key=_COLUMNS[:3])
        )
    if source is not None and rows:
        less = ", ".join(f"{name} = CASE WHEN {name} > %s THEN {name} - %s ELSE 0 END" for name in _COLUMNS[3:])
        statement = f"UPDATE {GroupCounter._meta.db_table} SET {less} WHERE group_id = %s AND step = %s AND at = %s"
        at = connection.ops.adapt_datetimefield_value
        with connection.cursor() as cursor:
            cursor.executemany(statement, [(f, f, r, r, source.pk, HOUR, at(when)) for when, f, r in rows])


def _tell_others(group: Group, before: dict[str, Any]) -> None:
    """Groups that were taken in later, with this one in them, will come back without it."""
    pending = Q(is_withdrawn=False) | Q(is_applied=False)
    for rule in GroupRule.objects.select_for_update(of=("self",)).filter(pending, kind="merge").order_by("pk"):
        changed = False
        for held in rule.before.values():
            if group.fingerprint not in held.get("aliases", ()) or "count" not in held:
                continue
            total, hours = _since(group, before, until=held["last_attempt"])
            held["count"] -= before["count"] + total
            rest = _sum(_by_hour(held["hours"]), _sum(_by_hour(before["hours"]), hours), sign=-1)
            held["hours"] = [[hour, *(max(0, n) for n in numbers)] for hour, numbers in rest.items() if any(numbers)]
            held["aliases"] = [name for name in held["aliases"] if name != group.fingerprint]
            changed = True
        if changed:
            GroupRule.objects.filter(pk=rule.pk).update(before=rule.before)
