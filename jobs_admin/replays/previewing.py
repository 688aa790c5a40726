"""What a replay would do: what matches, what is left out and why, how long it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Count, Exists, QuerySet
from django.utils import timezone

from jobs_admin.core import pacing
from jobs_admin.models import Failure, Group, Payload, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.replays import scoping
from jobs_admin.replays.refusals import ReplayRefused
from jobs_admin.replays.scoping import Scope

_SAMPLED = 10
_LISTED = 20  # values of a breakdown
_MOST_S = 10 * 365 * 86400  # an end further away than this is not told as a date

_WHY_NOT = {
    FailureState.RETRYING: "retrying by themselves: Celery will run them again",
    FailureState.REPLAYING: "already sent by a replay, outcome awaited",
    FailureState.QUARANTINED: "in quarantine",
    FailureState.RECOVERED: "recovered already",
    FailureState.DISCARDED: "discarded",
    FailureState.GONE: "no longer in their source",
}

Breakdown = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Preview:
    query: str  # with absolute times; "" for a selection
    selection: tuple[int, ...]
    matched: int
    replayable: int
    blocked: list[dict[str, Any]]  # [{"reason", "count"}], most frequent first; with "replay" where one holds them
    sources: list[str]  # of the replayable
    by_queue: Breakdown  # of the replayable, most frequent first
    by_task: Breakdown
    by_group: Breakdown  # titles; `groups` has their fingerprints
    by_tenant: Breakdown
    groups: list[tuple[str, str, int]]  # (fingerprint, title, count)
    pace: dict[str, Any]
    starts_at: datetime
    ends_at: datetime | None  # None: beyond any calendar
    duration_s: float
    peak_per_second: float
    sample: list[Failure]
    snapshot: str  # hand it to `draft`: what changed since is then noticed
    scope_max_id: int
    warnings: list[str]


def preview(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    pace: object = None,
    now: datetime | None = None,
) -> Preview:
    """What would happen if this were started now. Changes nothing. Raises ReplayRefused for a pace that cannot be."""
    now = now or timezone.now()
    scope = scoping.scope_of(query, selection, now)
    return previewed(viewer, scope, read_pace(pace), scoping.highest_failure(), now)


def read_pace(pace: object) -> pacing.Pace:
    try:
        return pacing.parse(pace)
    except pacing.PaceRefused as error:
        field = "pace" if error.field == "pace" else f"pace.{error.field}"
        raise ReplayRefused("bad_pace", str(error), field=field) from error


def previewed(viewer: Viewer, scope: Scope, pace: pacing.Pace, max_id: int, now: datetime) -> Preview:
    inside = scope.within(viewer, now).filter(pk__lte=max_id).order_by()
    unreachable = scoping.unreachable_sources()
    found = _count(inside, unreachable)
    matched, blocked = _blocked(inside, unreachable, found.standings)
    ready = scoping.replayable(inside, unreachable)
    count = matched - sum(row["count"] for row in blocked)
    expected = pacing.estimate(count, pace)
    groups = _named(found.groups)
    return Preview(
        query=scope.query,
        selection=scope.selection,
        matched=matched,
        replayable=count,
        blocked=blocked,
        sources=_ready_sources(found.standings, unreachable),
        by_queue=found.queues,
        by_task=found.tasks,
        by_group=[(title, n) for _, title, n in groups],
        by_tenant=found.tenants,
        groups=groups,
        pace=pace.as_dict(),
        starts_at=now,
        ends_at=now + timedelta(seconds=expected.duration_s) if expected.duration_s < _MOST_S else None,
        duration_s=expected.duration_s,
        peak_per_second=expected.peak_per_second,
        sample=list(ready.select_related("group").defer("args", "kwargs", "headers").order_by("-pk")[:_SAMPLED]),
        snapshot=f"{max_id}.{matched}.{count}.{scope.digest}",
        scope_max_id=max_id,
        warnings=_warnings(ready, count),
    )


@dataclass(slots=True)
class _Counted:
    standings: list[dict[str, Any]] = field(default_factory=list)  # source, state, what holds it, and how many stand so
    queues: Breakdown = field(default_factory=list)  # these, of the replayable only
    tasks: Breakdown = field(default_factory=list)
    tenants: Breakdown = field(default_factory=list)
    groups: Breakdown = field(default_factory=list)  # by id


def _count(inside: QuerySet[Failure], unreachable: dict[str, str]) -> _Counted:
    """All that is counted, in one statement: it reads each failure once, where five read them all."""
    found = _Counted()
    jobs = inside.annotate(
        is_open=Exists(scoping.open_items()),
        is_whole=Exists(scoping.whole_payloads()),
        has_payload=Exists(Payload.objects.filter(failure=scoping.OuterRef("pk"))),
    ).values("source", "queue", "task", "tenant", "group_id", "state", "is_open", "is_whole", "has_payload")
    try:
        sql, values = jobs.query.sql_with_params()
    except EmptyResultSet:
        return found
    reachable = f"AND source NOT IN ({', '.join(['%s'] * len(unreachable))})" if unreachable else ""
    head = (
        f"WITH jobs AS ({sql}), "
        f"ready AS (SELECT * FROM jobs WHERE state = 'dead' AND is_whole AND NOT is_open {reachable}) "
    )
    arms = ["SELECT 'all', source, state, is_open, is_whole, has_payload, COUNT(*) FROM jobs GROUP BY 2, 3, 4, 5, 6"]
    spread = {"queues": "queue", "tasks": "task", "tenants": "tenant", "groups": "CAST(group_id AS TEXT)"}
    arms += [
        f"SELECT * FROM (SELECT '{name}', {column}, '', FALSE, FALSE, FALSE, COUNT(*) FROM ready "
        f"WHERE {column} <> '' GROUP BY 2 ORDER BY 7 DESC, 2 LIMIT {_LISTED}) AS by_{name}"
        for name, column in spread.items()
    ]
    with connection.cursor() as cursor:
        cursor.execute(head + " UNION ALL ".join(arms), [*values, *unreachable])
        for name, value, state, is_open, is_whole, has_payload, n in cursor.fetchall():
            if name == "all":
                held = {"is_open": is_open, "is_whole": is_whole, "has_payload": has_payload}
                found.standings.append({"source": value, "state": state, "n": n, **held})
            else:
                getattr(found, name).append((value, n))
    for name in spread:
        getattr(found, name).sort(key=lambda pair: (-pair[1], pair[0]))
    return found


def _blocked(
    inside: QuerySet[Failure], unreachable: dict[str, str], standings: list[dict[str, Any]]
) -> tuple[int, list[dict[str, Any]]]:
    """How many match, and those left out by reason."""
    matched, held, reasons = 0, False, Counter[str]()
    for row in standings:
        matched += row["n"]
        if row["is_open"]:
            held = True
        elif row["state"] != FailureState.DEAD:
            reasons[_WHY_NOT[row["state"]]] += row["n"]
        elif row["source"] in unreachable:
            reasons[f"source {row['source']} {unreachable[row['source']]}"] += row["n"]
        elif not row["has_payload"]:
            reasons["no message was kept"] += row["n"]
        elif not row["is_whole"]:
            reasons["truncated: the message was too large to be kept whole"] += row["n"]
    blocked: list[dict[str, Any]] = [{"reason": reason, "count": n} for reason, n in reasons.items()]
    if held:
        blocked += _held(inside)
    return matched, sorted(blocked, key=lambda row: -row["count"])


def _ready_sources(standings: list[dict[str, Any]], unreachable: dict[str, str]) -> list[str]:
    return sorted(
        {
            row["source"]
            for row in standings
            if row["state"] == FailureState.DEAD and row["is_whole"] and not row["is_open"]
        }
        - unreachable.keys()
    )


def _held(inside: QuerySet[Failure]) -> list[dict[str, Any]]:
    found = (
        ReplayItem.objects.filter(failure__in=inside.values("pk"), state__in=OPEN_ITEM)
        .order_by()
        .values("replay", "replay__actor")
        .annotate(n=Count("pk"))
    )
    return [
        {"reason": f"already in replay #{r['replay']} of {r['replay__actor']}", "count": r["n"], "replay": r["replay"]}
        for r in found
    ]


def _named(groups: Breakdown) -> list[tuple[str, str, int]]:
    """(fingerprint, title, count) of each group, the fullest first."""
    held = Group.objects.in_bulk([int(pk) for pk, _ in groups])
    found = [(held[int(pk)].name, held[int(pk)].title, n) for pk, n in groups]
    return sorted(found, key=lambda row: (-row[2], row[0]))


def _warnings(ready: QuerySet[Failure], count: int) -> list[str]:
    """What is allowed and may still surprise."""
    if not count:
        return []
    found = []
    chords = ready.filter(headers__contains='"group_index": ').exclude(headers__contains='"group_index": null').count()
    if chords:
        found.append(
            f"{chords:,} {'belongs' if chords == 1 else 'belong'} to a Celery group. If it is the header of a chord, "
            "the chord has ended already: the job runs again, the chord's body does not."
        )
    return found
