"""Current values of the metrics of alert rules. A value that several rules use is read once.

The metric of a queue or source is the property of `Measured` with the name of its record (`core/alert_metrics`).
docs/alerts.md describes each value.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import redis
from django.db.models import Count, F, Q, Sum, Value

from jobs_admin import config, failures
from jobs_admin.alerts import narrowing
from jobs_admin.core import query as language
from jobs_admin.core.alert_metrics import LEAST_ENDED, METRICS, Subject
from jobs_admin.core.figures import clock
from jobs_admin.core.matching import matches
from jobs_admin.holds import in_force
from jobs_admin.holds.in_force import HoldsInForce
from jobs_admin.models import (
    DepthSample,
    Failure,
    FailureCount,
    Group,
    GroupAlias,
    QueueCounter,
    Rule,
    Source,
    Worker,
)
from jobs_admin.models.access import ENGINE, VIEWER, Viewer, viewer_of
from jobs_admin.models.counter import MINUTE
from jobs_admin.models.failure import FailureState
from jobs_admin.queues import liveness, rates
from jobs_admin.search import scope as scopes

Key = tuple[str, str]  # source and subject; the source is empty if there is no single one
Values = Mapping[Key, float | None]  # None: no data

QUIET_FOR = timedelta(hours=1)  # an open alert on a share ends after this time without an ended job
MOST_ONE_BY_ONE = 20_000  # jobs counted from rows, if there is no counter
VIEWS_S = 0.4  # time for views per round; the others are read in the next round
_FRESH = timedelta(seconds=40)  # a sample is taken every ten seconds
_GROWN = timedelta(minutes=5)
_SLACK = timedelta(seconds=35)
_SAMPLED_BY = timedelta(seconds=60)  # a source without a sample for this long
_AFTER_REPLAY = timedelta(minutes=15)
MOST_HOLDERS = 3  # number of holders named
# Waiting between two attempts of a replay (jobs_admin/queues/rates.py).
_BETWEEN_ATTEMPTS = Q(state=FailureState.RETRYING, run__gt=1)


@dataclass(frozen=True, slots=True)
class Sample:
    dead: int | None
    oldest_dead_at: datetime | None
    at: datetime


class Measured:
    """Values as of `now`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._narrowed: dict[tuple[str, ...], dict[Key, float]] = {}
        self._kinds: dict[str, narrowing.Kinds | None] = {}
        self._fitting: dict[tuple[str, str, str], Values] = {}
        self._quiet: dict[Key, tuple[int, int, int]] = {}
        self._holds: dict[str, HoldsInForce] = {}
        self._tasks: dict[str, dict[str, dict[str, int]]] = {}
        self._views_end: float | None = None

    def read(self, rule: Rule) -> Values | None:
        """Return the values of the rule's metric; None if it has to wait for a later round."""
        if rule.measure.subject is Subject.VIEW:
            return self._view(rule)
        if rule.measure.is_narrowed and rule.is_narrowed:
            return _fitting(self._narrow(rule), rule.source, rule.queue)
        place = rule.metric, rule.source, rule.queue
        if place not in self._fitting:
            self._fitting[place] = _fitting(getattr(self, rule.metric), rule.source, rule.queue)
        return self._fitting[place]

    def absent(self, rule: Rule) -> float | None:
        """Return the value of a subject that `read` does not return."""
        return rule.measure.absent

    def quiet_share(self, metric: str, key: Key) -> float | None:
        """Return the share of the last hour for a queue's open alert, if too few jobs ended in five minutes.

        The share is 0 if no job ended, so that the alert of a quiet queue does not stay open. None for other metrics.
        """
        ratio = METRICS[metric].ratio
        if ratio is None:
            return None
        if key not in self._quiet:
            counted = QueueCounter.objects.filter(
                source=key[0], queue=key[1], step=MINUTE, at__gt=self.now - QUIET_FOR, at__lte=self.now
            )
            sums = counted.aggregate(**{name: Sum(name, default=0) for name in ("failed", "retried", "succeeded")})
            self._quiet[key] = sums["failed"], sums["retried"], sums["succeeded"]
        part, total = ratio(self._quiet[key])
        return part / total if total else 0.0

    def gone_reason(self, metric: str, source: str, value: float | None) -> str:
        """Return why there will be no more data; empty if there may be."""
        measure = METRICS[metric]
        if source in self.taken_out and (measure.ends_with_source or (measure.needs_source and value is None)):
            return f"{source} was removed from the configuration."
        return ""

    def block_reason(self, rule: Rule, source: str, subject: str, value: float | None) -> str:
        """Return why the alert may neither fire nor end now; empty if it may."""
        metric = rule.metric
        if METRICS[metric].needs_source and source in self._unreachable_since:
            since = self._unreachable_since[source]
            when = f" since {clock(since, self.now)} UTC" if since else ""
            return f"{source} has been unreachable{when}: the depths of its queues are unknown."
        if METRICS[metric].moves_with_replays and (source, subject) in self._replayed:
            return "A replay to this queue is running or has just ended, which changes the depth."
        clear = rule.threshold if rule.clear is None else rule.clear
        if METRICS[metric].is_of_dead and value is not None and value > clear:
            return self._hold_reason(rule, source, subject)
        return ""

    def _hold_reason(self, rule: Rule, source: str, queue: str) -> str:
        """Return which pause or breakers hold this queue's jobs; empty if enough jobs of unheld tasks died."""
        found = self._holds_of(source)
        if found.find_pause(source, queue) is not None:
            return "This queue is paused: its jobs are held."
        if not found.pauses and not found.breakers:
            return ""
        names, others = set[str](), 0
        for task, n in self._dead_tasks(source).get(queue, {}).items():
            breaker = found.find_breaker(source, queue, task, rule.tenant)
            holders = {f"Breaker {breaker.name} is open"} if breaker is not None else set()
            pause = found.find_pause(source, queue, task, rule.tenant)
            holders |= {f"{pause.kind.title()} {pause.name} is paused"} if pause is not None else set()
            names |= holders
            others += n if matches(rule.task, task) and not holders else 0
        if not names or others > (rule.threshold if rule.measure.counts_jobs else 0):
            return ""
        return f"{', '.join(sorted(names)[:MOST_HOLDERS])}: jobs are held."

    def _holds_of(self, source: str) -> HoldsInForce:
        if source not in self._holds:
            self._holds[source] = in_force.find_obeyed(in_force.read([source], self.now), self.now)
        return self._holds[source]

    def _dead_tasks(self, source: str) -> dict[str, dict[str, int]]:
        """Return queue -> task -> dead jobs."""
        if source not in self._tasks:
            rows = FailureCount.objects.filter(source=source, state__in=METRICS["dead"].states, count__gt=0)
            self._tasks[source] = defaultdict(dict)
            for queue, task, n in rows.values_list("queue", "task").annotate(n=Sum("count")):
                self._tasks[source][queue][task] = n
        return self._tasks[source]

    # -- metrics over all queues ---------------------------------------------------------------------------------

    @cached_property
    def dead(self) -> Values:
        return {key: float(n) for key, n in rates.count_unrecovered().items()}

    @cached_property
    def quarantined(self) -> Values:
        return self._count(Q(state=FailureState.QUARANTINED))

    @cached_property
    def growth_per_minute(self) -> Values:
        found: dict[Key, float | None] = dict.fromkeys(self._then)
        sources = {source for source, _ in self._then}
        for key, sample in self._latest.items():
            then = self._then.get(key)
            if sample.dead is None or (then is None and key[0] not in sources):
                found[key] = None
                continue
            # A queue without a sample at that time had no dead jobs.
            was = then.dead if then is not None and then.dead is not None else 0
            began = then.at if then is not None else self.now - _GROWN
            found[key] = (sample.dead - was) / max(1.0, (sample.at - began).total_seconds() / 60)
        return found

    @cached_property
    def oldest_dead_s(self) -> Values:
        found: dict[Key, float | None] = dict.fromkeys(self._then)
        for key, sample in self._latest.items():
            since = sample.oldest_dead_at
            if since is not None:
                found[key] = max(0.0, (self.now - since).total_seconds())
            else:
                found[key] = None if sample.dead else 0.0
        return found

    @cached_property
    def failure_rate(self) -> Values:
        return self._shares("failure_rate")

    @cached_property
    def retry_rate(self) -> Values:
        return self._shares("retry_rate")

    def _shares(self, metric: str) -> Values:
        ratio = METRICS[metric].ratio
        assert ratio is not None
        ratios = {key: ratio(ended) for key, ended in self._ended.items() if self._reports_outcomes(key[0])}
        return {key: part / total if total >= LEAST_ENDED else None for key, (part, total) in ratios.items()}

    def _reports_outcomes(self, source: str) -> bool:
        """Return whether successful jobs are counted, as guarded workers report them.

        A polled system reports only failures, so the share of failures would always be 1.
        """
        return source in self._guarded or not config.keeps_dead(source)

    @cached_property
    def _guarded(self) -> set[str]:
        return set(Worker.objects.order_by().values_list("source", flat=True).distinct())

    @cached_property
    def unreachable(self) -> Values:
        found: dict[Key, float | None] = {}
        for one in self._sources:
            if one.is_reachable is None or not self._is_known(one):
                found[one.name, ""] = None
            elif one.is_reachable:
                found[one.name, ""] = 0.0
            else:
                found[one.name, ""] = max(0.0, (self.now - (one.changed_at or self.now)).total_seconds())
        return found

    def _is_known(self, source: Source) -> bool:
        return source.sampled_at is not None and self.now - source.sampled_at < _SAMPLED_BY

    @cached_property
    def stalled_s(self) -> Values:
        stalls = liveness.stalled_sources(self.now)
        found: dict[Key, float | None] = {(name, ""): _age(stall, self.now) for name, stall in stalls.items()}
        with contextlib.suppress(redis.RedisError, config.BadConfiguration):
            found |= {("", name): _age(stall, self.now) for name, stall in liveness.stalled_steps(self.now).items()}
            found["", "audit"] = _age(liveness.stalled_audit(), self.now)
        return found

    @cached_property
    def ingest_lag_s(self) -> Values:
        try:
            return {(name, ""): lag for name, lag in liveness.ingest_lags_s(self.now).items()}
        except (redis.RedisError, config.BadConfiguration):
            return {(one.name, ""): None for one in self._sources} | {("", ""): None}

    # -- readings ------------------------------------------------------------------------------------------------

    @cached_property
    def _sources(self) -> list[Source]:
        return list(Source.objects.filter(is_configured=True).only("name", "is_reachable", "changed_at", "sampled_at"))

    @cached_property
    def taken_out(self) -> set[str]:
        """Sources that were sampled and are no longer configured."""
        found = Source.objects.filter(is_configured=False, sampled_at__isnull=False)
        return set(found.values_list("name", flat=True))

    @cached_property
    def _unreachable_since(self) -> dict[str, datetime | None]:
        return {one.name: one.changed_at for one in self._sources if one.is_reachable is False and self._is_known(one)}

    @cached_property
    def _replayed(self) -> set[Key]:
        moving = FailureCount.objects.filter(state=FailureState.REPLAYING, count__gt=0).values_list("source", "queue")
        sent = QueueCounter.objects.filter(step=MINUTE, at__gte=self.now - _AFTER_REPLAY, at__lte=self.now, sent__gt=0)
        return {*moving, *sent.values_list("source", "queue")}

    @cached_property
    def _ended(self) -> dict[Key, tuple[int, int, int]]:
        """Return (source, queue) -> jobs that died, attempts to be retried, succeeded jobs, in the last minutes."""
        counted = QueueCounter.objects.filter(step=MINUTE, at__gte=rates.window_start(self.now), at__lte=self.now)
        rows = counted.values_list("source", "queue").annotate(Sum("failed"), Sum("retried"), Sum("succeeded"))
        return {(source, queue): (fell, again, ran) for source, queue, fell, again, ran in rows}

    @cached_property
    def _samples(self) -> tuple[dict[Key, Sample], dict[Key, Sample]]:
        """Return the latest sample of each queue, and that of five minutes ago: two short ranges of the time index."""
        then = self.now - _GROWN
        lately, before = Q(at__gt=self.now - _FRESH, at__lte=self.now), Q(at__gt=then - _SLACK, at__lte=then + _SLACK)
        columns = ("source", "queue", "at", "dead", "oldest_dead_at", "is_reachable")
        latest: dict[Key, Sample] = {}
        earlier: dict[Key, Sample] = {}
        for which, samples in ((lately, latest), (before, earlier)):
            rows = DepthSample.objects.filter(which, step=10).order_by("at").values_list(*columns)
            for source, queue, at, dead, oldest, is_reachable in rows:
                samples[source, queue] = Sample(dead if is_reachable else None, oldest if is_reachable else None, at)
        return latest, earlier

    @property
    def _latest(self) -> dict[Key, Sample]:
        return self._samples[0]

    @property
    def _then(self) -> dict[Key, Sample]:
        return self._samples[1]

    # -- rules with filters --------------------------------------------------------------------------------------

    def _narrow(self, rule: Rule) -> Values:
        """Return the values for failures of some tasks, groups or tenants."""
        place: tuple[str, ...] = rule.metric, rule.task, rule.group, rule.tenant
        if rule.tenant != "*":  # counted only within the rule's scope, up to a limit
            place += rule.source, rule.queue
        elif (kinds := self._kinds_of(rule.metric)) is not None:
            if place not in self._narrowed:
                self._narrowed[place] = kinds.count(rule.task, rule.group)
            return self._narrowed[place]
        if place not in self._narrowed:
            states = Q(state__in=rule.measure.states)
            moving = _BETWEEN_ATTEMPTS if rule.measure.retrying_replays else None
            if rule.tenant != "*":
                found = self._count_rows(rule, states if moving is None else states | moving)
            else:
                found = Counter(self._count(states & _fits("task", rule.task) & _of_group(rule.group)))
                if moving is not None:
                    found.update(self._count_rows(rule, moving))
            self._narrowed[place] = found
        return self._narrowed[place]

    def _kinds_of(self, metric: str) -> narrowing.Kinds | None:
        if metric not in self._kinds:
            self._kinds[metric] = narrowing.read(METRICS[metric])
        return self._kinds[metric]

    def _count(self, which: Q) -> dict[Key, float]:
        samples = FailureCount.objects.filter(which).values_list("source", "queue").annotate(n=Sum("count"))
        return {(source, queue): float(n) for source, queue, n in samples if n > 0}

    def _count_rows(self, rule: Rule, states: Q) -> dict[Key, float]:
        which = _fits("tenant", rule.tenant) & _fits("task", rule.task) & _of_group(rule.group)
        if rule.tenant != "*":
            which &= _fits("source", rule.source) & _fits("queue", rule.queue)
        some = Failure.objects.filter(states, which).order_by().values("pk")[:MOST_ONE_BY_ONE]
        rows = Failure.objects.filter(pk__in=some).values_list("source", "queue").annotate(n=Count("pk"))
        return {(source, queue): float(n) for source, queue, n in rows.order_by()}

    def _view(self, rule: Rule) -> Values | None:
        if rule.view is None:
            return {}
        now = time.monotonic()
        self._views_end = self._views_end or now + VIEWS_S
        if now > self._views_end:
            return None
        n = failures.count_exactly(seen_by(rule), language.parse(rule.view.query, self.now), failures.EXACT)
        return {view_key(rule): float(n)}


def _age(stall: liveness.Stall | None, now: datetime) -> float:
    return 0.0 if stall is None else max(0.0, (now - stall.since).total_seconds())


def view_key(rule: Rule) -> Key:
    assert rule.view is not None
    return ("" if "*" in rule.source else rule.source), rule.view.name[:255]


def seen_by(rule: Rule) -> Viewer:
    """Return the owner of the rule's view, restricted to the rule's source: the value is the same for every reader."""
    owner = rule.view.owner if rule.view is not None else None
    viewer = ENGINE if owner is None else viewer_of(owner)
    if rule.source == "*":
        return viewer
    named = [rule.source] if "*" not in rule.source else list(Source.objects.values_list("name", flat=True))
    roles = {one: VIEWER for one in named if matches(rule.source, one) and viewer.may(VIEWER, one)}
    return Viewer(viewer.name, roles, user_id=viewer.user_id)


def _fitting(values: Values, source: str, queue: str) -> Values:
    if source == queue == "*":
        return values
    return {
        key: value
        for key, value in values.items()
        if (source == "*" or matches(source, key[0])) and (queue == "*" or matches(queue, key[1]))
    }


def _fits(column: str, glob: str) -> Q:
    if "*" not in glob:
        return Q(**{column: glob})
    return Q() if glob == "*" else Q(scopes.Fits(F(column), Value(glob)))


def _of_group(glob: str) -> Q:
    if glob == "*":
        return Q()
    named = Group.objects.filter(_fits("fingerprint", glob)).values("pk")
    aliased = GroupAlias.objects.filter(_fits("fingerprint", glob)).values("group")
    return Q(group_id__in=named) | Q(group_id__in=aliased)
