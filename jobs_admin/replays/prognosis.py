"""Prognosis of groups before a replay: groups likely to fail again, and why. They are excluded by default.

Excluding a group by mistake costs the operator a click; including one by mistake costs the five jobs that set it aside.
So each reason was reported or observed, and a group without one is included.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from jobs_admin.core import matching, policy
from jobs_admin.core.pacing.evidence import FEWEST, surely_above
from jobs_admin.core.pacing.groups import LIMIT
from jobs_admin.core.refused import Refused
from jobs_admin.models import Failure, FailureCount, Group, GroupCounter, PolicyVersion, Replay, ReplayItem, Worker
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import FailureState
from jobs_admin.models.group import GroupState
from jobs_admin.models.replay import ItemState
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

PERMANENT, POISON, MUTED, FAILED_AGAIN, STILL_FAILING = "permanent", "poison", "muted", "failed_again", "still_failing"

# Errors of code or data: a retry fails until the code or the data is fixed.
_OF_CODE = {
    "ArithmeticError", "AssertionError", "AttributeError", "FloatingPointError", "ImportError", "IndentationError",
    "IndexError", "KeyError", "LookupError", "ModuleNotFoundError", "NameError", "NotImplementedError", "OverflowError",
    "RecursionError", "SyntaxError", "TabError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "UnicodeEncodeError", "UnicodeError", "ValueError", "ZeroDivisionError", "decimal.InvalidOperation",
}  # fmt: skip
# Matches `404 Client Error`, `HTTP Error 404`, `status code: 404`, `returned 404`.
_STATUS = re.compile(
    r"(?i)\b(4\d\d) client error|\b(?:http(?: error)?|client error|status(?: code)?|returned)\W{1,3}(4\d\d)\b"
)
_LATELY = timedelta(hours=1)  # age of replays that count
_MOST_REPLAYS = 20
_RECENT = timedelta(minutes=5)  # since the latest failure of a group: an earlier outage may be over
_JUST_NOW = timedelta(seconds=15)  # since the latest failure of a group that is still failing
_ALIVE = timedelta(minutes=1)  # since a worker's last heartbeat
_STILL = timedelta(minutes=1)
# A native retry may succeed after a failed first attempt.
_SUCCEEDED = Q(first_ok=True) | Q(state=ItemState.SUCCEEDED)
_FAILED = Q(first_ok=False) & ~Q(state=ItemState.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class Prognosis:
    """A reason why the jobs of a group are likely to fail again, or that an operator muted it."""

    code: str
    reason: str

    def sentence(self, groups: str) -> str:
        """Return `This group is likely to fail again: REASON.`, for `This group`."""
        predicted = "" if self.code == MUTED else "likely to fail again: "
        return f"{groups} is {predicted}{self.reason}."


def predict_groups(viewer: Viewer, ids: Collection[int], now: datetime) -> dict[int, Prognosis]:
    """Return group id -> prognosis of groups that are likely to fail again, based on what the viewer may see."""
    return predict(viewer, list(group_sight.read(viewer, ids).values()), now)


def predict(viewer: Viewer, groups: list[Group], now: datetime) -> dict[int, Prognosis]:
    """Return the prognoses of groups that were read with the viewer's rights."""
    found: dict[int, Prognosis] = {}
    counted = _count_jobs(viewer, groups)
    reasons = (
        _muted(groups),
        _poison(counted),
        _permanent(groups, counted, now),
        _failed_again(viewer, groups, now),
        _still_failing(groups, now),
    )
    for pk, code, reason in chain.from_iterable(reasons):
        found.setdefault(pk, Prognosis(code, reason))
    return found


_Reasons = Iterator[tuple[int, str, str]]
_Counted = list[tuple[int, str, tuple[str, str, str], int]]  # group, state, (source, queue, task), jobs


def _count_jobs(viewer: Viewer, groups: list[Group]) -> _Counted:
    """Return the dead and quarantined jobs of the groups, by place."""
    counts = FailureCount.objects.filter(
        scopes.visible(viewer, OPERATOR),
        group_id__in=[group.pk for group in groups],
        state__in=(FailureState.DEAD, FailureState.QUARANTINED),
        count__gt=0,
    )
    rows = counts.order_by().values_list("group_id", "state", "source", "queue", "task", "count")
    return [(pk, state, (source, queue, task), n) for pk, state, source, queue, task, n in rows]


def _muted(groups: list[Group]) -> _Reasons:
    for group in groups:
        if group.state == GroupState.MUTED:
            by = f" by {group.state_by}" if group.state_by else ""
            yield group.pk, MUTED, f"muted{by}"


def _poison(counted: _Counted) -> _Reasons:
    quarantined: Counter[int] = Counter()
    for pk, state, _, n in counted:
        quarantined[pk] += n if state == FailureState.QUARANTINED else 0
    for pk, n in (+quarantined).items():
        jobs = "1 of its jobs is" if n == 1 else f"{n:,} of its jobs are"
        yield pk, POISON, f"poison: {jobs} in quarantine for crashing their workers"


def _permanent(groups: list[Group], counted: _Counted, now: datetime) -> _Reasons:
    """Yield groups that are permanent by policy, or else by error class, unless workers run a newer release.

    A policy decides where an entry of its classes names the error: that errors without an entry are retried is a
    default of its author, not a statement about them.
    """
    policies = []
    for version in PolicyVersion.objects.filter(is_published=True).order_by("name"):
        with suppress(Refused):
            policies.append(version.policy)
    places: dict[int, set[tuple[str, str, str]]] = defaultdict(set)
    for pk, state, place, _ in counted:
        if state == FailureState.DEAD:
            places[pk].add(place)
    of_code: list[Group] = []
    for group in groups:
        if group.state == GroupState.RESOLVED:
            continue  # an operator marked it as fixed
        classes = {
            (one.name, class_)
            for place in places[group.pk]
            if (one := matching.chosen(policies, *place)) is not None
            and (class_ := matching.named_class_of(one, [group.error_type])) is not None
        }
        if classes and all(class_ == policy.PERMANENT for _, class_ in classes):
            yield group.pk, PERMANENT, f"permanent by policy {min(name for name, _ in classes)}"
        elif not classes and group.error_type.removeprefix("builtins.") in _OF_CODE:
            of_code.append(group)
    released = _find_released(of_code, now)
    for group in of_code:
        if group.pk not in released:
            error = group.error_type.removeprefix("builtins.")
            yield group.pk, PERMANENT, f"permanent: {error} is an error of code or data"


def _find_released(groups: list[Group], now: datetime) -> set[int]:
    """Return the groups for which workers run a release other than that of the latest failure."""
    if not groups:
        return set()
    latest = Failure.objects.filter(group=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    ids = Group.objects.filter(pk__in=[group.pk for group in groups]).values_list(Subquery(latest))
    rows = Failure.objects.filter(pk__in=ids).exclude(release="").order_by()
    failed = list(rows.values_list("group_id", "source", "release"))
    alive = Worker.objects.filter(source__in={source for _, source, _ in failed}, seen_at__gte=now - _ALIVE)
    running: dict[str, set[str]] = defaultdict(set)
    for source, release in alive.exclude(release="").order_by().values_list("source", "release").distinct():
        running[source].add(release)
    return {pk for pk, source, release in failed if running[source] and release not in running[source]}


def _failed_again(viewer: Viewer, groups: list[Group], now: datetime) -> _Reasons:
    """Yield groups that failed again in recent replays.

    A group that failed in an outage is included again after some minutes without a failure: the outage may have ended.
    The canary tests this with a few jobs, whereas an excluded group would stay dead. A group that failed on its own, or
    while others succeeded, or whose error is permanent, stays excluded for the hour.
    """
    lately = Q(ended_at__isnull=True) | Q(ended_at__gte=now - _LATELY)
    replays = Replay.objects.filter(lately, started_at__isnull=False).order_by("-pk")
    excluded = dict(replays.values_list("pk", "without_groups")[:_MOST_REPLAYS])
    if not excluded:
        return
    # The group of the final error, once it is known: native retries may fail with another error than the first attempt.
    items = ReplayItem.objects.annotate(failed_in=Coalesce("failed_group", "first_group"))
    items = items.filter(replay__in=excluded, first_at__gte=now - _LATELY).order_by()
    sources = viewer.sources(OPERATOR)
    visible = items if sources is None else items.filter(failure__source__in=sources)
    by_id = {group.pk: group for group in groups}
    since: dict[datetime | None, list[int]] = defaultdict(
        list
    )  # time of resolution -> groups: earlier failures do not count
    for group in groups:
        since[group.resolved_at if group.state == GroupState.RESOLVED else None].append(group.pk)
    outages: set[int] | None = None
    for at, pks in since.items():
        mine = visible if at is None else visible.filter(first_at__gt=at)
        failed = _counts(mine.filter(_FAILED, failed_in__in=pks), "failed_in")
        failed = {pk: n for pk, n in failed.items() if n >= FEWEST}
        if not failed:
            continue
        succeeded = _counts(mine.filter(_SUCCEEDED, failure__group__in=failed), "failure__group")
        for pk, n in failed.items():
            judged = n + succeeded.get(pk, 0)
            if surely_above(n, judged) <= LIMIT:
                continue
            group = by_id[pk]
            if now - group.last_seen > _RECENT and not _is_permanent(group):
                outages = _failed_in_outages(items, excluded) if outages is None else outages
                if pk in outages:
                    continue
            share = f"{n:,} of {judged:,} replayed in the last hour failed again"
            yield pk, FAILED_AGAIN, f"{share}; last failure {_ago(group.last_seen, now)}"


def _failed_in_outages(items: QuerySet[ReplayItem], excluded: dict[int, list[int]]) -> set[int]:
    """Return the groups that failed in outages and did not fail apart from them.

    An outage is a replay of several groups in which most of those with outcomes failed. A few failures elsewhere, as of
    single jobs that an operator tried, are no evidence against it. Items of all sources count: what an operator of one
    source learns is only whether there was an outage. `excluded`: replay -> groups that it did not send.
    """
    failed: dict[int, dict[int, int]] = defaultdict(dict)  # replay -> group -> jobs
    succeeded: dict[int, dict[int, int]] = defaultdict(dict)
    for counts, of, group in ((failed, _FAILED, "failed_in"), (succeeded, _SUCCEEDED, "failure__group")):
        rows = items.filter(of, **{f"{group}__isnull": False}).values_list("replay", group)
        for replay, pk, n in rows.annotate(n=Count("pk")):
            counts[replay][pk] = n
    together: set[int] = set()
    alone: set[int] = set()
    for replay, by_group in failed.items():
        failing = {pk for pk, n in by_group.items() if n > succeeded[replay].get(pk, 0)}
        judged = by_group.keys() | succeeded[replay].keys()
        if 2 * len(failing) > len(judged) and len(judged.union(excluded[replay])) > 1:
            together |= failing
        else:
            alone |= {pk for pk in failing if by_group[pk] >= FEWEST}
    return together - alone


def _is_permanent(group: Group) -> bool:
    """Return whether the error is one of code or data, or an HTTP status 4xx except 408 and 429."""
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
