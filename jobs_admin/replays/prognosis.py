"""Prognosis of groups before a replay: groups likely to fail again, and why. They are off unless requested.

A group that is off by mistake costs a tick, one that is on by mistake the five jobs that set it aside. So each reason
was reported or observed, and an unknown group is on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from django.db.models import Count, Q, QuerySet, Sum

from jobs_admin.core import matching, policy
from jobs_admin.core.pacing.evidence import FEWEST, surely_above
from jobs_admin.core.pacing.groups import LIMIT
from jobs_admin.core.refused import Refused
from jobs_admin.models import Failure, FailureCount, Group, GroupCounter, PolicyVersion, Replay, ReplayItem, Worker
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import FailureState
from jobs_admin.models.group import GroupState
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

PERMANENT, POISON, MUTED, FAILED_AGAIN, STILL_FAILING = "permanent", "poison", "muted", "failed_again", "still_failing"

# Errors of code or of data: trying again changes nothing before one of them is fixed.
_OF_CODE = {
    "ArithmeticError", "AssertionError", "AttributeError", "FloatingPointError", "ImportError", "IndentationError",
    "IndexError", "KeyError", "LookupError", "ModuleNotFoundError", "NameError", "NotImplementedError", "OverflowError",
    "RecursionError", "SyntaxError", "TabError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "UnicodeEncodeError", "UnicodeError", "ValueError", "ZeroDivisionError",
}  # fmt: skip
# `404 Client Error`, `HTTP Error 404`, `status code: 404`, `returned 404`.
_STATUS = re.compile(
    r"(?i)\b(4\d\d) client error|\b(?:http(?: error)?|client error|status(?: code)?|returned)\W{1,3}(4\d\d)\b"
)
_LATELY = timedelta(hours=1)  # of replays
_MOST_REPLAYS = 20
_RECENT = timedelta(minutes=5)  # since the latest failure of a group: an outage before that may be over
_JUST_NOW = timedelta(seconds=15)  # since the latest failure of a group that is still failing
_ALIVE = timedelta(minutes=1)  # since a worker's last heartbeat
_STILL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Prognosis:
    """A reason why the jobs of a group are likely to fail again."""

    code: str
    reason: str


def predict_groups(viewer: Viewer, ids: Collection[int], now: datetime) -> dict[int, Prognosis]:
    """Return group id -> prognosis, for groups that are likely to fail again, from what the viewer may see."""
    return predict(viewer, list(group_sight.read(viewer, ids).values()), now)


def predict(viewer: Viewer, groups: list[Group], now: datetime) -> dict[int, Prognosis]:
    """Return the prognoses of groups that were read as the viewer may see them."""
    found: dict[int, Prognosis] = {}
    reasons = (
        _muted(groups),
        _poison(viewer, groups),
        _permanent(viewer, groups, now),
        _failed_again(viewer, groups, now),
        _still_failing(groups, now),
    )
    for pk, code, reason in chain.from_iterable(reasons):
        found.setdefault(pk, Prognosis(code, reason))
    return found


def _group_ids(groups: list[Group]) -> list[int]:
    return [group.pk for group in groups]


_Reasons = Iterator[tuple[int, str, str]]


def _muted(groups: list[Group]) -> _Reasons:
    for group in groups:
        if group.state == GroupState.MUTED:
            by = f" by {group.state_by}" if group.state_by else ""
            yield group.pk, MUTED, f"muted{by}"


def _poison(viewer: Viewer, groups: list[Group]) -> _Reasons:
    quarantined = FailureCount.objects.filter(
        scopes.visible(viewer, OPERATOR), group_id__in=_group_ids(groups), state=FailureState.QUARANTINED, count__gt=0
    )
    for pk, n in quarantined.order_by().values_list("group_id").annotate(n=Sum("count")):
        jobs = "1 of its jobs is" if n == 1 else f"{n:,} of its jobs are"
        yield pk, POISON, f"poison: {jobs} in quarantine for crashing their workers"


def _permanent(viewer: Viewer, groups: list[Group], now: datetime) -> _Reasons:
    """Yield groups permanent by the policies in force, otherwise by error class, unless a newer release runs."""
    policies = []
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        with suppress(Refused):
            policies.append(version.policy)
    dead = FailureCount.objects.filter(
        scopes.visible(viewer, OPERATOR), group_id__in=_group_ids(groups), state=FailureState.DEAD, count__gt=0
    )
    places: dict[int, set[tuple[str, str, str]]] = defaultdict(set)
    for pk, *place in dead.order_by().values_list("group_id", "source", "queue", "task").distinct():
        places[pk].add((place[0], place[1], place[2]))
    for group in groups:
        if group.state == GroupState.RESOLVED:
            continue  # an operator marked it as fixed
        classes = {
            (one.name, matching.class_of(one, [group.error_type]))
            for place in places[group.pk]
            if (one := matching.chosen(policies, *place)) is not None and one.classes
        }
        if classes and all(class_ == policy.PERMANENT for _, class_ in classes):
            yield group.pk, PERMANENT, f"permanent by policy {min(name for name, _ in classes)}"
        elif (
            not classes
            and group.error_type.removeprefix("builtins.") in _OF_CODE
            and not _is_released_since(group, now)
        ):
            yield (
                group.pk,
                PERMANENT,
                f"permanent: {group.error_type.removeprefix('builtins.')} is an error of code or data",
            )


def _is_released_since(group: Group, now: datetime) -> bool:
    """Return whether workers run another release than that of the group's latest failure."""
    latest = Failure.objects.filter(group=group).order_by("-pk").values_list("source", "release").first()
    if latest is None or not latest[1]:
        return False
    alive = Worker.objects.filter(source=latest[0], seen_at__gte=now - _ALIVE)
    running = set(alive.values_list("release", flat=True)) - {""}
    return bool(running) and latest[1] not in running


def _failed_again(viewer: Viewer, groups: list[Group], now: datetime) -> _Reasons:
    """Yield groups that failed again in recent replays where other jobs succeeded.

    A group that failed together with most groups of its replay is on again once it has not failed for minutes: that may
    have been an outage that has ended. The canary then finds out with a few jobs, while a group that is off would stay
    dead. A group that failed while others succeeded, or whose error is permanent, is off for the hour.
    """
    lately = Q(ended_at__isnull=True) | Q(ended_at__gte=now - _LATELY)
    replays = Replay.objects.filter(lately, started_at__isnull=False, succeeded__gt=0).order_by("-pk")
    ids = list(replays.values_list("pk", flat=True)[:_MOST_REPLAYS])
    if not ids:
        return
    items = ReplayItem.objects.filter(replay__in=ids, first_at__gte=now - _LATELY).order_by()
    if (sources := viewer.sources(OPERATOR)) is not None:
        items = items.filter(failure__source__in=sources)
    by_id = {group.pk: group for group in groups}
    since: dict[datetime | None, list[int]] = defaultdict(
        list
    )  # resolved then -> groups: earlier failures do not count
    for group in groups:
        since[group.resolved_at if group.state == GroupState.RESOLVED else None].append(group.pk)
    outages: set[int] | None = None
    for at, pks in since.items():
        mine = items if at is None else items.filter(first_at__gt=at)
        failed = _counts(mine.filter(first_ok=False, first_group__in=pks), "first_group")
        failed = {pk: n for pk, n in failed.items() if n >= FEWEST}
        if not failed:
            continue
        succeeded = _counts(mine.filter(first_ok=True, failure__group__in=failed), "failure__group")
        for pk, n in failed.items():
            judged = n + succeeded.get(pk, 0)
            if surely_above(n, judged) <= LIMIT:
                continue
            group = by_id[pk]
            if now - group.last_seen > _RECENT and not _is_permanent(group):
                outages = _failed_in_outages(items) if outages is None else outages
                if pk in outages:
                    continue
            share = f"{n:,} of {judged:,} replayed in the last hour failed again"
            yield pk, FAILED_AGAIN, f"{share}; last failure {_ago(group.last_seen, now)}"


def _failed_in_outages(items: QuerySet[ReplayItem]) -> set[int]:
    """Return the groups that failed only in replays where most groups failed."""
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))  # replay -> group -> failed - succeeded
    failed = items.filter(first_ok=False, first_group__isnull=False).values_list("replay", "first_group")
    succeeded = items.filter(first_ok=True, failure__group__isnull=False).values_list("replay", "failure__group")
    for sign, rows in ((1, failed), (-1, succeeded)):
        for replay, group, n in rows.annotate(n=Count("pk")):
            counts[replay][group] += sign * n
    together: set[int] = set()
    alone: set[int] = set()
    for by_group in counts.values():
        failing = {group for group, n in by_group.items() if n > 0}
        (together if 2 * len(failing) > len(by_group) else alone).update(failing)
    return together - alone


def _is_permanent(group: Group) -> bool:
    """Return whether its error is of code or data, or a refusal by status: 4xx except 408 and 429."""
    if group.error_type.removeprefix("builtins.") in _OF_CODE:
        return True
    found = _STATUS.search(group.message)
    return found is not None and found[found.lastindex or 0] not in ("408", "429")


def _counts(items: QuerySet[ReplayItem], by: str) -> dict[int, int]:
    return dict(items.values_list(by).annotate(n=Count("pk")))


def _still_failing(groups: list[Group], now: datetime) -> _Reasons:
    fresh = {group.pk: group for group in groups if group.last_seen >= now - _JUST_NOW}
    if not fresh:
        return
    since = (now - _STILL).replace(second=0, microsecond=0)
    counted = GroupCounter.objects.filter(group__in=fresh, step=MINUTE, at__gte=since).order_by()
    for pk, failed, retried in counted.values_list("group").annotate(f=Sum("failed"), r=Sum("retried")):
        if (failed or 0) + (retried or 0) >= FEWEST:
            yield pk, STILL_FAILING, f"still failing: last failure {_ago(fresh[pk].last_seen, now)}"


def _ago(at: datetime, now: datetime) -> str:
    seconds = max(0, round((now - at).total_seconds()))
    return f"{seconds} s ago" if seconds < 60 else f"{seconds // 60} min ago"
