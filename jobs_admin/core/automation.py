"""Decisions of an automation: whether its conditions hold, and how many jobs it acts on.

Used live and for a dry run on stored history.

Pure: times are arguments, in Unix seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs_admin.core.figures import duration

ROUND_S = 10  # interval of rounds, which start at its multiples
HOUR_S = 3_600
DAY_S = 86_400
MOST_AT_ONCE = 10_000  # jobs of one action
MOST_PER_JOB = 3  # replays of one job by one automation, so that a job that always fails is not replayed forever


@dataclass(frozen=True, slots=True)
class Conditions:
    min_jobs: int
    quiet_s: int
    cooldown_s: int
    cap_per_hour: int | None  # jobs; None: the action changes no job
    needs_rule: bool = False  # an alert rule must have resolved


@dataclass(frozen=True, slots=True)
class Episode:
    """Alert of the rule, from firing to resolution; `resolved_at` is None while it fires."""

    fired_at: float
    resolved_at: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Number of jobs to act on. If it is 0, `why_not` has the reason."""

    jobs: int
    why_not: str = ""


def most_jobs(conditions: Conditions, spent: int) -> int:
    """Return the maximum number of jobs for an action now, after `spent` jobs in the last hour."""
    if conditions.cap_per_hour is None:
        return MOST_AT_ONCE
    return max(0, min(MOST_AT_ONCE, conditions.cap_per_hour - spent))


def waiting_reason(
    conditions: Conditions, now: float, acted_at: float | None, spent: int, episodes: Sequence[Episode] = ()
) -> str:
    """Return why nothing can happen now, whatever matches; "" if an action is possible."""
    if acted_at is not None and now < acted_at + conditions.cooldown_s:
        return f"The automation acted less than {duration(conditions.cooldown_s)} ago."
    if not most_jobs(conditions, spent):
        return f"The cap of {conditions.cap_per_hour:,} jobs per hour is reached."
    return _rule_reason(now, acted_at, episodes) if conditions.needs_rule else ""


def decide(conditions: Conditions, ready: int, spent: int, *, is_quiet: bool) -> Decision:
    """Return the decision once there is nothing to wait for. `ready`: number of matching jobs."""
    if not is_quiet:
        return Decision(0, f"A job failed within the last {duration(conditions.quiet_s)}.")
    if ready < max(1, conditions.min_jobs):
        least = "No job matches" if not ready else f"{ready:,} of at least {conditions.min_jobs:,} jobs match"
        return Decision(0, f"{least}.")
    return Decision(min(ready, most_jobs(conditions, spent)))


def _rule_reason(now: float, acted_at: float | None, episodes: Sequence[Episode]) -> str:
    begun = [one for one in episodes if one.fired_at <= now]
    if any(one.resolved_at is None or one.resolved_at > now for one in begun):
        return "The alert rule is firing."
    since = max(now - DAY_S, acted_at if acted_at is not None else now - DAY_S)
    if not any(one.resolved_at is not None and one.resolved_at > since for one in begun):
        return "The alert rule has not resolved in the last day, or not since the last action."
    return ""


# -- the dry run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dead:
    """Interval during which a job was dead. `until`: when another action took it; None: still dead."""

    job: int
    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class WouldAct:
    at: float
    jobs: tuple[int, ...]


def play(
    conditions: Conditions,
    dead: Iterable[Dead],
    failed: Iterable[float],
    since: float,
    until: float,
    *,
    takes_jobs: bool,
    episodes: Sequence[Episode] = (),
) -> list[WouldAct]:
    """Return the actions in a history, as if nothing else acted on the same jobs.

    `failed`: times of failed attempts of matching jobs. `takes_jobs`: the action ends the jobs' dead state.
    """
    history = _History(dead, failed)
    found: list[WouldAct] = []
    now = _round_at(since)
    while now <= until:
        history.go_to(now)
        acted_at = found[-1].at if found else None
        spent = _count_spent(found, now) if conditions.cap_per_hour is not None else 0
        is_quiet = history.last_failed_at <= now - conditions.quiet_s
        # Skip rounds in which nothing can change.
        if waiting_reason(conditions, now, acted_at, spent, episodes):
            possible_at = now if acted_at is None else acted_at + conditions.cooldown_s
        elif jobs := decide(conditions, len(history.ready), spent, is_quiet=is_quiet).jobs:
            found.append(WouldAct(now, history.take(jobs, now, takes_jobs=takes_jobs)))
            possible_at = now
        else:
            possible_at = history.next_death_at if is_quiet else history.last_failed_at + conditions.quiet_s
        now = max(now + ROUND_S, _round_at(min(possible_at, until + ROUND_S)))
    return found


def _round_at(time: float) -> float:
    """Return the first round at or after this time."""
    return math.ceil((time - 1e-6) / ROUND_S) * float(ROUND_S)


def _count_spent(acts: Sequence[WouldAct], now: float) -> int:
    total = 0
    for one in reversed(acts):
        if one.at <= now - HOUR_S:
            break
        total += len(one.jobs)
    return total


class _History:
    """Replay of a history: dead jobs and the latest failure at a moving time."""

    def __init__(self, dead: Iterable[Dead], failed: Iterable[float]) -> None:
        self.ready: dict[int, float | None] = {}  # job -> end of its dead state
        self.last_failed_at = float("-inf")
        self._dead = sorted(dead, key=lambda one: one.since, reverse=True)
        self._failed = sorted(failed, reverse=True)
        self._ends: list[tuple[float, int]] = []
        self._acts: Counter[int] = Counter()

    @property
    def next_death_at(self) -> float:
        return self._dead[-1].since if self._dead else math.inf

    def go_to(self, now: float) -> None:
        while self._failed and self._failed[-1] <= now:
            self.last_failed_at = self._failed.pop()
        while self._dead and self._dead[-1].since <= now:
            one = self._dead.pop()
            if self._acts[one.job] < MOST_PER_JOB:
                self.ready[one.job] = one.until
                if one.until is not None:
                    heapq.heappush(self._ends, (one.until, one.job))
        while self._ends and self._ends[0][0] <= now:
            end, job = heapq.heappop(self._ends)
            if self.ready.get(job) == end:
                del self.ready[job]

    def take(self, count: int, now: float, *, takes_jobs: bool) -> tuple[int, ...]:
        """Return the `count` jobs with the lowest ids.

        They stop being ready if the action takes them; otherwise no job is ready until it dies again.
        """
        jobs = tuple(heapq.nsmallest(count, self.ready))
        if not takes_jobs:
            self.ready.clear()
            return jobs
        for job in jobs:
            del self.ready[job]
            self._acts[job] += 1
        return jobs
