"""Effects of a merge, a split or a new name of groups on counts, and on replays in progress that exclude a group.

The counts of a merged group return when the merge is withdrawn. A group's counts outlive its attempts: pruned failures
are only in its counts. Failures that return take their attempts along; this module restores the rest.

A replay excludes a group by its id, and a job belongs to the group of its failure. So code that moves failures between
groups calls `follow_exclusions` in the same transaction: otherwise jobs of an excluded group would be sent because its
group has another id now.
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
from jobs_admin.models import Attempt, Group, GroupCounter, GroupRule, Replay
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.counter import HOUR, MINUTE, MINUTES_BACK
from jobs_admin.models.replay import ENDED, RUN, START, ReplayState

_LONGEST_BACK = timedelta(days=30)  # the longest range of charts
_COLUMNS = ("group_id", "step", "at", "failed", "retried")

_BySteps = dict[int, list[int]]  # number of the step since 1970 -> failed and retried
# What is stored of each step: its name, its length, and the range for which it is counted.
_STEPS = (("hours", HOUR, _LONGEST_BACK), ("minutes", MINUTE, MINUTES_BACK))


def snapshot_counts(group: Group, moving_in: Sequence[Group], now: datetime) -> dict[str, Any]:
    """Return the present counts of the group, with the groups whose numbers are still being moved into it.

    Their rows stay locked until the caller's transaction ends.
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
        # An inactive group has its own last month, which would be outside of today's.
        since = int((min(now, last_seen) - back).timestamp()) // step
        counted: _BySteps = {}
        for one in groups:
            counted = _sum(counted, _of_counters(one, since, step))
        found |= {f"{name}_since": since, name: [[n, *numbers] for n, numbers in sorted(counted.items())]}
    return found


def give_back_counts(group: Group, heir: Group | None, before: dict[str, Any]) -> None:
    """Restore the former counts, plus the attempts since; the difference is subtracted from its heir.

    `before`: the unchanged result of `snapshot_counts`; without its numbers (from an old rule) nothing is done.
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
        if name not in before:  # from a rule saved before these were stored
            continue
        # Steps that have been deleted since are not created again.
        oldest = int((min(timezone.now(), group.last_seen) - back).timestamp()) // step
        since = max(before[f"{name}_since"], oldest)
        should = _from(since, _sum(_by_step(before[name]), _by_attempts(_came_since(group, before), step)))
        apart = _sum(should, _of_counters(group, since, step), sign=-1)
        _shift(heir, group, {n: [max(0, one) for one in numbers] for n, numbers in apart.items()}, step)
        _shift(group, heir, {n: [max(0, -one) for one in numbers] for n, numbers in apart.items()}, step)
    _correct_others(group, before)


def _came_since(group: Group, before: dict[str, Any], until: int | None = None) -> QuerySet[Attempt]:
    """Return attempts that came after it was merged, up to `until`."""
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
    """Correct the snapshots of groups that were merged later and include this one, which will not return with them."""
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


def follow_exclusions(old: int, new: int) -> None:
    """Replace the group `old` by the group `new`, which receives failures of it, in replays.

    A replay that set `old` aside also sets `new` aside, for the same reason; it is brought back like any other. A
    replay that set `new` aside cancels the jobs that move into it. A started replay has no job of a group excluded in
    the draft, so there nothing changes.
    """
    for replay in _excluding(old, new):
        aside = _in_effect(replay)
        takes_over = old in aside and (new not in aside or _is_stronger(aside[old], aside[new]))
        ids = {*replay.without_groups}
        if takes_over:
            note = {name: value for name, value in aside[old].items() if name != "evidence"}
            note |= {"group": new, "jobs": None}
            notes = [*(row for row in replay.set_aside if row["group"] != new), note]
            _update(replay, without_groups=sorted(ids | {new}), set_aside=notes)
        elif new in ids:
            _take_in(replay, new)


def leave_exclusions(old: int, new: int) -> None:
    """Remove the group `old`, whose last failure has moved to `new`, which inherits its exclusion in drafts."""
    for replay in _excluding(old, new):
        if old not in replay.without_groups:
            _take_in(replay, new)  # the replay may have started while the failures of `old` were being moved
            continue
        notes = [row for row in replay.set_aside if row["group"] != old]
        if not any(row["group"] == new for row in notes):
            notes += [row | {"group": new} for row in replay.set_aside if row["group"] == old and row["phase"] == START]
        _update(replay, without_groups=[pk for pk in replay.without_groups if pk != old], set_aside=notes)


def _excluding(*groups: int) -> list[Replay]:
    """Return the replays in progress that exclude one of these groups, locked until the transaction ends."""
    rows = Replay.objects.exclude(state__in=ENDED).exclude(without_groups=[])
    pks = [pk for pk, ids in rows.values_list("pk", "without_groups") if not {*ids}.isdisjoint(groups)]
    if not pks:
        return []
    found = Replay.objects.select_for_update(of=("self",), no_key=True).filter(pk__in=pks).order_by("pk")
    return list(found.only("state", "without_groups", "set_aside", "controller"))


def _in_effect(replay: Replay) -> dict[int, dict[str, Any]]:
    """Return group -> why it is excluded, for groups that may have jobs in the replay."""
    return {
        row["group"]: row
        for row in replay.set_aside
        if row["group"] in replay.without_groups and (row["phase"] == RUN or replay.state == ReplayState.DRAFT)
    }


def _take_in(replay: Replay, new: int) -> None:
    """Update the exclusion of the group `new`, which receives jobs.

    If it was set aside, the jobs are cancelled; if it was excluded in the draft, it is included again.
    """
    if new in _in_effect(replay):
        _recheck_planned(replay)
    elif replay.state != ReplayState.DRAFT:
        _update(replay, without_groups=[pk for pk in replay.without_groups if pk != new])


def _is_stronger(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether an operator excluded the one and the controller the other, which is temporary."""
    return other["by"] == CONTROLLER.name != one["by"]


def _recheck_planned(replay: Replay) -> None:
    """Make the controller check planned jobs of the groups set aside again, from the first job on."""
    known = replay.controller if isinstance(replay.controller, dict) else {}
    n, left_out = known.get("n"), known.get("left_out")
    if isinstance(n, int) and isinstance(left_out, dict):
        # The result of a concurrent check is discarded.
        _update(replay, controller=known | {"n": n + 1, "left_out": left_out | {"to_n": 0}})


def _update(replay: Replay, **columns: Any) -> None:
    Replay.objects.filter(pk=replay.pk).update(**columns)
