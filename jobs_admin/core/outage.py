"""Detection of an outage from the outcomes of attempts: a cumulative-sum test (Page 1954) with a stated false-alarm
rate.

Each outcome adds the logarithm of its likelihood ratio to the score: outage (`OUT` of all attempts fail) against usual.
The score never falls below zero. The usual share is learned from runs without an alarm. An alarm needs a score of
log(attempts in `YEARS` years at this traffic): if failures are independent and no more frequent than usual, that is
less than one false alarm in that time. Only first attempts count, each subject (task and arguments) once in `WINDOW_S`,
so one broken job raises no alarm.

If another host succeeded since, or in the last `RECENT_S`, an alarm for all needs half of its score without the host
that failed most; otherwise it is an alarm for that host. It is an alarm for one task if other tasks succeed in the
meantime, and for one tenant if nearly all failures are that tenant's. The attempts of one host or task alone raise an
alarm at a higher score, which assumes that half of them usually fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from jobs_admin.core.failure_runs import Part, Parts, Run, Step
from jobs_admin.core.outcomes import Outcome, check_values, clip, finite, host_key, subject_digest, task_key, tenant_key
from jobs_admin.core.pacing.evidence import surely_below

OUT = 0.95  # of all attempts fail in an outage
LEAST_USUAL, MOST_USUAL = 0.2, 0.8  # bounds of the usual share: a partner that is slow for an hour is not down
YEARS = 10
LEAST_ALARM, MOST_ALARM = 12.0, 30.0  # natural logarithms
WINDOW_S = 600.0
MOST_SUBJECTS = 64
MOST_TENANTS = 20  # tracked tenants with recent failures
NARROW = 0.9  # share of failures from which an outage counts as one tenant's
OWN_USUAL = 0.5  # assumed usual share of one host or task alone
LIVE_S = 600.0  # after an outcome a host counts as one that runs jobs of the dependency
RECENT_S = 120.0  # after a success a host counts as succeeding; a replaced container stops counting
LEAST_REST = 0.5  # share of an alarm's score that must remain without the worst host or task, for an alarm for all
LEAST_ELSEWHERE = 2  # successes of other tasks; an outage has so many by chance once in 400 times
PRIOR_FAILED, PRIOR = 5.0, 100.0  # attempts assumed before the first real ones
MEMORY = 1_000.0  # latest attempts that the usual share is learned from
RATE_S = 600.0  # averaging time of the traffic
MOST_KINDS = 8
MOST_ERROR = 400  # characters of the first error
OTHERS = "#"  # all tenants without failures; not a tenant key
_YEAR_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Alarm:
    part: str  # key of its only tenant or task; "" for all
    evidence: dict[str, Any]
    host: str = ""  # its only host; "" for all


@dataclass(slots=True)
class Detector:
    """Outage test of one dependency, for jobs that start without a hold."""

    usual_failed: float = 0.0
    usual_total: float = 0.0
    per_s: float = 0.0  # attempts per second
    at: float = 0.0
    run: Run = field(default_factory=Run)
    kinds: dict[str, int] = field(default_factory=dict)
    error: str = ""
    wish_s: float = 0.0
    subjects: dict[str, float] = field(default_factory=dict)  # digest -> when it counted, oldest first
    tenants: dict[str, Run] = field(default_factory=dict)
    named: float = 0.0  # share of the latest successes with a known tenant
    tasks: Parts = field(default_factory=Parts)
    hosts: Parts = field(default_factory=Parts)  # stored separately, so that older workers do not change it

    @property
    def usual(self) -> float:
        """Upper bound of the usual share of failed attempts."""
        bound = surely_below(self.usual_failed + PRIOR_FAILED, self.usual_total + PRIOR)
        return min(MOST_USUAL, max(LEAST_USUAL, bound))

    @property
    def alarm_at(self) -> float:
        """Score of an alarm: the logarithm of the attempts in `YEARS` years at this traffic."""
        return min(MOST_ALARM, max(LEAST_ALARM, math.log(max(1.0, self.per_s * YEARS * _YEAR_S))))

    def add(
        self, outcomes: Sequence[Outcome], now: float, *, lower: float = 1.0, is_known: Callable[[str], bool]
    ) -> Alarm | None:
        """Count outcomes. Return an alarm if they show an outage.

        `lower`: factor on the score of an alarm for all jobs. `is_known`: returns whether a tenant or task key already
        has an alarm.

        Failures count in the order in which they ended. The times of successes are unknown: they are spread evenly
        between failures.
        """
        failures = [one for one in outcomes if one.ok is False and self._counts(one, now)]
        failures.sort(key=lambda one: _ended_at(one, now))
        successes = self._by_part([one for one in outcomes if one.ok and one.n > 0], failures)
        self._note_rate(len(failures) + sum(successes.values()), now)
        parts, alarm = len(failures) + 1, None
        for number in range(parts):
            at = _ended_at(failures[number], now) if number < len(failures) else now
            for (tenant, task, host), count in successes.items():
                if n := count * (number + 1) // parts - count * number // parts:
                    self._succeed(n, tenant, task, host, at)
            if number < len(failures):
                alarm = self._fail(failures[number], at, lower, is_known) or alarm
        return alarm

    def _by_part(self, successes: Sequence[Outcome], failures: Sequence[Outcome]) -> dict[tuple[str, str, str], int]:
        """Return successes by tenant, task and host, with all tenants without failures as `OTHERS`."""
        failing, found = (
            {*self.tenants, *(tenant_key(one.tenant) for one in failures)},
            dict[tuple[str, str, str], int](),
        )
        for one in successes:
            name = tenant_key(one.tenant)
            name = name if name in failing else OTHERS if name else ""
            place = name, task_key(one.task), host_key(one.host)
            found[place] = found.get(place, 0) + one.n
        return found

    def restart(self) -> None:
        """Reset the run of failures, after an alarm or a forced state."""
        self.run, self.kinds, self.error, self.wish_s, self.tenants = Run(), {}, "", 0.0, {}
        self.tasks.failing = {}

    def restart_without(self, host: str) -> None:
        """Remove a host from the run of failures, after an alarm for this host alone."""
        part = self.hosts.failing.pop(host, None)
        self.hosts.succeeded_at.pop(host, None)
        rest, failed = (part.rest, max(0, self.run.failed - part.own.failed)) if part else (0.0, 0)
        run, kinds, error, wish_s = self.run, self.kinds, self.error, self.wish_s
        self.restart()
        if rest > 0:
            self.run = Run(rest, failed, run.succeeded, run.since, run.moment, rest, 0.0, run.subjects)
            self.kinds, self.error, self.wish_s = kinds, error, wish_s

    def _counts(self, one: Outcome, now: float) -> bool:
        """Return whether a failure is evidence: a first attempt of a subject that has not counted in `WINDOW_S`."""
        if one.attempt > 1:
            return False
        subject = subject_digest(one.subject)
        for known, at in list(self.subjects.items()):
            if now - at < WINDOW_S and len(self.subjects) <= MOST_SUBJECTS:
                break
            del self.subjects[known]
        if subject and subject in self.subjects:
            return False
        if subject:
            self.subjects[subject] = now
            if len(self.subjects) > MOST_SUBJECTS:
                del self.subjects[next(iter(self.subjects))]
        return True

    def _note_rate(self, n: int, now: float) -> None:
        passed_s = max(0.0, now - self.at) if self.at else 0.0
        self.at = max(self.at, now)
        self.per_s = self.per_s * math.exp(-passed_s / RATE_S) + n / RATE_S

    def _step(self) -> Step:
        usual, own = self.usual, max(OWN_USUAL, self.usual)
        most = self.alarm_at + math.log(MOST_TENANTS)
        return Step(
            math.log(OUT / usual), math.log((1 - usual) / (1 - OUT)), math.log(OUT / own), math.log((1 - own) / (1 - OUT)), most
        )  # fmt: skip

    def _succeed(self, n: int, tenant: str, task: str, host: str, now: float) -> None:
        weight = 0.98 ** min(n, 500)
        self.named = weight * self.named + (1 - weight) * bool(tenant)
        step = self._step()
        rest = self.run.succeed(n, step.down, self.alarm_at, now)
        if self.run.score <= 0:
            self._learn(self.run.failed, self.run.succeeded + rest)
            self.run, self.kinds, self.error, self.wish_s = Run(), {}, "", 0.0
        if (run := self.tenants.get(tenant)) is not None:
            run.succeed(n, step.down, step.most, now)
            if run.score <= 0:
                del self.tenants[tenant]
        self.tasks.succeed(task, n, step, now)
        self.hosts.succeed(host, n, step, now)

    def _learn(self, failed: int, succeeded: int) -> None:
        self.usual_failed += failed
        self.usual_total += failed + succeeded
        if self.usual_total > MEMORY:
            self.usual_failed, self.usual_total = MEMORY * self.usual_failed / self.usual_total, MEMORY

    def _fail(self, one: Outcome, now: float, lower: float, is_known: Callable[[str], bool]) -> Alarm | None:
        step, alarm_at, subject = self._step(), self.alarm_at, subject_digest(one.subject)
        name, task, host = tenant_key(one.tenant), task_key(one.task), host_key(one.host)
        self.tasks.fail(task, step, self.run.score, now, subject)
        self.hosts.fail(host, step, self.run.score, now, subject)
        self.run.fail(step.up, alarm_at, now, subject)
        kind = clip(one.kind, 40)
        if kind in self.kinds or len(self.kinds) < MOST_KINDS:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.error = self.error or clip(one.error, MOST_ERROR)
        self.wish_s = max(self.wish_s, finite(one.wish_s))
        run = self._tenant(name)
        if run is not None:
            run.fail(step.up, step.most, now, subject)
        if self.run.is_alarm(alarm_at * lower):
            return self._narrow(self.run, now, lower, is_known)
        # If the tenants of successes are unknown, a tenant's share is unknown too.
        if run is not None and self.named >= NARROW and run.is_alarm(step.most) and not is_known(name):
            return self._narrow(run, now, 1.0, is_known, name)
        return self._find_own_alarm(host, task, now, step.most, is_known)

    def _narrow(self, run: Run, now: float, lower: float, is_known: Callable[[str], bool], tenant: str = "") -> Alarm:
        """Return the alarm of a run, narrowed to a host, tenant or task if the evidence is only against that."""
        host, part = self.hosts.find_worst()
        if part is not None and self._is_lone_host(host, part, now, lower) and (not tenant or _has_most(part.own, run)):
            return self._alarm("", part.own, host)
        if tenant:
            return self._alarm(tenant, run)
        first = max(self.tenants, key=lambda key: self.tenants[key].failed, default="")
        if first and self.tenants[first].failed >= NARROW * run.failed and not is_known(first):
            return self._alarm(first, run)
        task, part = self.tasks.find_worst()
        if part is not None and self._is_lone_task(part, lower) and _has_most(part.own, run) and not is_known(task):
            return self._alarm(task, part.own)
        return self._alarm("", run)

    def _find_own_alarm(
        self, host: str, task: str, now: float, score: float, is_known: Callable[[str], bool]
    ) -> Alarm | None:
        """Return the alarm of a single host or task, without an alarm for all jobs; None if there is none."""
        part = self.hosts.failing.get(host)
        if part is not None and part.own.is_alarm(score) and self._is_lone_host(host, part, now, 1.0):
            return self._alarm("", part.own, host)
        part = self.tasks.failing.get(task)
        if part is not None and part.own.is_alarm(score) and self._is_lone_task(part, 1.0) and not is_known(task):
            return self._alarm(task, part.own)
        return None

    def _is_lone_host(self, host: str, part: Part, now: float, lower: float) -> bool:
        return part.rest < LEAST_REST * lower * self.alarm_at and self.succeeds_elsewhere(host, part.own.since, now)

    def succeeds_elsewhere(self, host: str, since: float, now: float) -> bool:
        """Return whether another host has succeeded since a time, limited to between `RECENT_S` and `LIVE_S` ago."""
        return self.hosts.succeeds_elsewhere(host, max(now - LIVE_S, min(since, now - RECENT_S)))

    def _is_lone_task(self, part: Part, lower: float) -> bool:
        return part.rest < LEAST_REST * lower * self.alarm_at and part.elsewhere >= LEAST_ELSEWHERE

    def _tenant(self, name: str) -> Run | None:
        if not name:
            return None
        if name not in self.tenants and len(self.tenants) >= MOST_TENANTS:
            del self.tenants[min(self.tenants, key=lambda key: self.tenants[key].score)]
        return self.tenants.setdefault(name, Run())

    def _alarm(self, part: str, run: Run, host: str = "") -> Alarm:
        judged = run.failed + run.succeeded
        known = self.usual_failed / self.usual_total if self.usual_total else 0.0
        return Alarm(part, {
            "failures": run.failed, "attempts": judged, "share": round(run.failed / judged, 4),
            "usual": round(known, 4), "usual_at_most": round(self.usual, 4), "since": round(run.since, 3),
            "p": float(f"{math.exp(-run.score):.1e}"), "kinds": dict(self.kinds), "first_error": self.error,
        }, host)  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "hosts"}
        found["run"], found["tenants"] = self.run.as_list(), {k: run.as_list() for k, run in self.tenants.items()}
        found["tasks"] = self.tasks.as_dict()
        found["subjects"] = {known: round(at) for known, at in self.subjects.items()}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Detector:
        known = {one.name: values[one.name] for one in fields(Detector) if one.name in values}
        known["run"] = Run(*values.get("run", ())).check()
        known["tenants"] = {str(name): Run(*run).check() for name, run in values.get("tenants", {}).items()}
        known["tasks"], known["hosts"] = Parts.from_dict(values.get("tasks", {})), Parts()
        made = Detector(**known)
        check_values((made.usual_failed, made.usual_total, made.per_s, made.at, made.wish_s, made.named), float)
        check_values(made.kinds.values(), int)
        check_values(made.subjects.values(), float)
        check_values((made.error, *made.kinds, *made.subjects), str)
        if (
            made.usual_failed > made.usual_total
            or len(made.subjects) > MOST_SUBJECTS
            or len(made.tenants) > MOST_TENANTS
        ):
            raise ValueError(made.usual_total)
        return made

    def set_back(self, now: float) -> None:
        """Adjust times after a clock was set back."""
        self.at = min(self.at, now)
        self.subjects = {known: min(at, now) for known, at in self.subjects.items()}
        parts: tuple[Run | Parts, ...] = (self.run, *self.tenants.values(), self.tasks, self.hosts)
        for part in parts:
            part.set_back(now)


def opening_text(evidence: dict[str, Any], which: str) -> str:
    """Return the reason of an opening in one sentence; `which` follows "attempts", such as " of tenant a"."""
    kind = max(evidence["kinds"], key=evidence["kinds"].get, default="")
    return f"{evidence['failures']:,} of {evidence['attempts']:,} attempts{which} failed{kind and f': {kind}'}"


@dataclass(slots=True)
class Return:
    """Test for the end of an outage, from outcomes of jobs that are not on hold. Five successes in a row end it."""

    score: float = 0.0

    def add(self, outcomes: Iterable[Outcome], usual: float) -> bool:
        up, down = math.log((1 - usual) / (1 - OUT)), math.log(OUT / usual)
        outcomes = list(outcomes)
        failed, succeeded = sum(one.ok is False for one in outcomes), sum(one.n for one in outcomes if one.ok)
        enough = 5 * up - 1e-9
        for number in range(failed + 1):
            n = succeeded * (number + 1) // (failed + 1) - succeeded * number // (failed + 1)
            self.score = self.score + n * up
            if self.score >= enough:
                return True
            self.score = max(0.0, self.score - down * (number < failed))
        return False


def _has_most(own: Run, run: Run) -> bool:
    """Return whether one part has nearly all failures of a run."""
    return own.failed >= NARROW * run.failed


def _ended_at(one: Outcome, now: float) -> float:
    return now if one.ended_at is None else min(one.ended_at, now)
