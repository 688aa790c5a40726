"""What was seen on the desk that lint holds configurations against: volume, outages, errors. Counters only, no rows of failures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import F, Max, Q, Sum

from jobs_admin.core.canonical_error import name_of
from jobs_admin.core.lint.case import Facts, Outage
from jobs_admin.core.lint.rules.errors import PROGRAMMING
from jobs_admin.models import Failure, FailureCount, Group, QueueCounter
from jobs_admin.models.access import Viewer
from jobs_admin.models.counter import MINUTE, QUARTER
from jobs_admin.search import scope as scopes

_DAY = timedelta(days=1)
_OUTAGES_BY_MINUTE = timedelta(days=2)  # retention keeps minutes so long, and quarters of an hour for two weeks
_OUTAGES = timedelta(days=7)
_LEAST_FAILED = 10  # a minute, for a minute of an outage
_CALM = timedelta(minutes=5)  # so much in between, and it is another one
_FAILED = F("failed") + F("retried")
_MOST_GROUPS = 5_000  # whose errors are looked at, the newest

# What says that a server was asked too often, in the class or in the message: for the database, and to the letter.
_MAYBE_LIMITED = Q(message__contains="429")
for _said in ("ratelimit", "rate limit", "toomanyrequests", "too many requests", "throttl"):
    _MAYBE_LIMITED |= Q(error_type__icontains=_said) | Q(message__icontains=_said)
_LIMITED = re.compile(r"rate ?limit|too ?many ?requests|throttl|\b429\b", re.IGNORECASE)
# What calls itself permanent: "Permanent failure: …", "550 permanent error"; not "301 Moved Permanently".
_PERMANENT = re.compile(r"\A\s*permanent\b|\bpermanent(ly)? (failure|failed|error)\b", re.IGNORECASE)
_MOST_NAMED = 500
_MOST_RETRIED = 10_000  # failures that are counted, the newest
_PROGRAMMING = Q()
for _said in PROGRAMMING:
    _PROGRAMMING |= Q(error_type=_said) | Q(error_type__endswith=f".{_said}")


def facts(viewer: Viewer, now: datetime, complete: frozenset[str], outage_s: float) -> Facts:
    """Seven queries at most, whatever there is.

    `complete`: sources of which every worker told what it has; `outage_s`: what to survive where no outage was seen.
    """
    started, failed = _busiest(viewer, now)
    errors, limited = _errors(viewer)
    return Facts(
        per_minute=started,
        failed_per_minute=failed,
        outages=tuple(_outages(viewer, now)),
        errors=errors,
        rate_limited=limited,
        permanent_retried=_permanent_retried(viewer),
        told_by_all=complete,
        outage_s=outage_s,
    )


def _busiest(viewer: Viewer, now: datetime) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Jobs started, and attempts failed, a minute: in the busiest quarter of an hour of the last day, by queue."""
    counted = QueueCounter.objects.filter(scopes.visible(viewer), step=QUARTER, at__gte=now - _DAY, at__lte=now)
    rows = counted.values_list("source", "queue").annotate(started=Max("started"), failed=Max(_FAILED))
    minutes = QUARTER / MINUTE
    started, failed = {}, {}
    for source, queue, most_started, most_failed in rows:
        started[source, queue] = most_started / minutes
        failed[source, queue] = most_failed / minutes
    return started, failed


def _outages(viewer: Viewer, now: datetime) -> list[Outage]:
    """Stretches in which no more attempts ran well than failed: by the minute for two days, by quarters before."""
    recent = now - _OUTAGES_BY_MINUTE
    minutes = _bad(viewer, MINUTE, recent, now)
    quarters = _bad(viewer, QUARTER, now - _OUTAGES, recent)
    return [*_stretches(minutes, MINUTE), *_stretches(quarters, QUARTER)]


_Bad = tuple[str, str, datetime, int, int]  # source, queue, start of the step, attempts that failed, and that ran well


def _bad(viewer: Viewer, step: int, since: datetime, until: datetime) -> Iterable[_Bad]:
    counted = QueueCounter.objects.filter(scopes.visible(viewer), step=step, at__gte=since, at__lt=until)
    counted = counted.annotate(bad=_FAILED).filter(bad__gte=_LEAST_FAILED * step // MINUTE)
    bad = counted.filter(bad__gte=F("succeeded")).order_by("source", "queue", "at")
    return bad.values_list("source", "queue", "at", "bad", "succeeded").iterator()


def _stretches(bad: Iterable[_Bad], step: int) -> list[Outage]:
    found: list[Outage] = []
    for source, queue, at, failed, succeeded in bad:
        last = found[-1] if found else None
        ended = last and last.began + timedelta(seconds=last.seconds)
        if last and ended and (last.source, last.queue) == (source, queue) and at - ended <= _CALM:
            seconds = (at - last.began).total_seconds() + step
            found[-1] = Outage(source, queue, last.began, seconds, last.failed + failed, last.succeeded + succeeded)
        else:
            found.append(Outage(source, queue, at, step, failed, succeeded))
    return found


def _errors(viewer: Viewer) -> tuple[dict[tuple[str, str], dict[str, int]], dict[tuple[str, str], int]]:
    """Programming errors by their class, and rate limits, of the failures that are kept, by task."""
    groups = Group.objects.filter(_PROGRAMMING | _MAYBE_LIMITED).order_by("-last_seen")
    named = {
        pk: (name_of(kind), _LIMITED.search(f"{kind} {message}") is not None)
        for pk, kind, message in groups.values_list("pk", "error_type", "message")[:_MOST_GROUPS]
    }
    errors: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    limits: dict[tuple[str, str], int] = defaultdict(int)
    counts = FailureCount.objects.filter(scopes.visible(viewer), group_id__in=named, count__gt=0)
    for source, task, group, count in counts.values_list("source", "task", "group_id").annotate(n=Sum("count")):
        name, is_limited = named[group]
        if is_limited:
            limits[source, task] += count
        if name in PROGRAMMING:
            errors[source, task][name] = errors[source, task].get(name, 0) + count
    return dict(errors), dict(limits)


def _permanent_retried(viewer: Viewer) -> dict[tuple[str, str], int]:
    """Failures that ran more than once in their run although their message says permanent, by task."""
    groups = Group.objects.filter(message__icontains="permanent").order_by("-last_seen")
    named = [pk for pk, message in groups.values_list("pk", "message")[:_MOST_GROUPS] if _PERMANENT.search(message)]
    if not named:
        return {}
    retried = Failure.objects.filter(scopes.visible(viewer), group_id__in=named[:_MOST_NAMED], attempts__gt=1)
    return dict(Counter(retried.order_by("-id").values_list("source", "task")[:_MOST_RETRIED]))
