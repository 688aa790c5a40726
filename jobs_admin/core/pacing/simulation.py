"""Forecast of a pace before anything is sent: starts over time, waiting times, the end, and when it would be held.

Runs the real Bucket and Controller against simulated workers, in time steps rather than job by job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

from jobs_admin.core.figures import duration, small
from jobs_admin.core.pacing.bucket import Bucket
from jobs_admin.core.pacing.controller import CHECK_S, HELD, RUNNING, Controller, Seen, Verdict
from jobs_admin.core.pacing.evidence import FEWEST, Evidence, Judged
from jobs_admin.core.pacing.pace import Pace, settled

# Rate of at_once if unknown: that of one sender on a small host (bench/results.md).
AT_ONCE_GUESS = 3_000.0

SHARES = (0.0, 0.1, 0.5)  # simulated shares of jobs that fail again: none, a tenth, half
_SLICE_S = 0.02  # interval at which a sender polls its bucket, which holds 24 ms
_CALM = 40  # checks without a change, after which the steps become longer
_POINTS = 120
_MOST_STEPS = 4_000


@dataclass(frozen=True, slots=True)
class Outlook:
    """Course of a replay if the share `failing` of its jobs fails again. Seconds from the start."""

    failing: float
    starts: tuple[tuple[float, float], ...]  # (start of interval, jobs started per second), at most 120
    peak_per_second: float
    longest_wait_s: float  # in the queue, until a worker starts the job
    sent: int
    ends_after_s: float | None  # None if it is held
    held_after_s: float | None
    held_because: Evidence | None

    def hold_sentence(self) -> str:
        """Return when and why it is held. Which jobs fail is random, so the share at that moment is not `failing`."""
        when = f"held after ~{self.sent:,} jobs ({duration(self.held_after_s or 0.0)})"
        if self.held_because is None:
            return f"{when}."
        return f"{when}, as soon as too many have failed. In this random run: {self.held_because.sentence()}"


@dataclass(frozen=True, slots=True)
class Simulation:
    outlooks: tuple[Outlook, ...]  # as planned, then for the other SHARES that are FEWEST jobs or more
    assumptions: tuple[str, ...]  # sentences to show with it

    @property
    def as_planned(self) -> Outlook:
        return self.outlooks[0]


@dataclass(frozen=True, slots=True)
class Estimate:
    duration_s: float
    peak_per_second: float


def estimate(jobs: int, pace: Pace) -> Estimate:
    """Return the duration of sending if all jobs succeed, in seconds, and the most jobs in any one second."""
    if not jobs:
        return Estimate(0.0, 0.0)
    pace = settled(pace, jobs=jobs)
    if pace.highest is None:
        return Estimate(jobs / AT_ONCE_GUESS, min(float(jobs), AT_ONCE_GUESS))
    if pace.ramp is None and pace.canary is None:
        return Estimate((jobs - 1) / pace.highest, min(float(jobs), max(1.0, pace.highest)))
    found = outlook(jobs, pace, 0.0, runtime_s=0.0)
    return Estimate(found.ends_after_s or 0.0, found.peak_per_second)


@dataclass(frozen=True, slots=True)
class Limit:
    """Policy limit of a task: starts per second, and the task's share of all jobs."""

    task: str
    per_s: float
    share: float  # 0 to 1
    policy: str = ""  # name


def served(runtime_s: float | None, concurrency: int | None) -> float | None:
    """Return jobs/s for a runtime and a concurrency; None if either is unknown."""
    return concurrency / max(runtime_s, 1e-3) if runtime_s is not None and concurrency else None


def simulate(
    jobs: int,
    pace: Pace,
    *,
    runtime_s: float | None = None,
    concurrency: int | None = None,
    limits: Sequence[Limit] = (),
    seed: int = 0,
) -> Simulation:
    """Simulate the replay three times: with no failures, a tenth, and half of the jobs failing again.

    A share that is fewer than FEWEST jobs allows no conclusion, and is omitted.

    `pace`: from `settled`. `runtime_s`: usual runtime of such jobs. `concurrency`: total of the workers; None: unknown.
    """
    bounds = tuple(limits)
    outlooks = tuple(
        outlook(jobs, pace, share, runtime_s=runtime_s, concurrency=concurrency, limits=bounds, seed=seed)
        for share in SHARES
        if not share or share * jobs >= FEWEST
    )
    return Simulation(outlooks, _assumptions(pace, runtime_s, concurrency, limits))


@lru_cache(maxsize=48)  # a form requests the same again with each change
def outlook(
    jobs: int,
    pace: Pace,
    failing: float,
    *,
    runtime_s: float | None = None,
    concurrency: int | None = None,
    limits: tuple[Limit, ...] = (),
    seed: int = 0,
) -> Outlook:
    """Return the simulated course for one share of failures."""
    takes_s = 1.0 if runtime_s is None else runtime_s
    serves = served(takes_s, concurrency) or math.inf
    serves = min([serves, *(limit.per_s / limit.share for limit in limits if limit.share)])
    return _Run(jobs, pace, failing, takes_s, serves, Random(seed)).end()


def _assumptions(
    pace: Pace, runtime_s: float | None, concurrency: int | None, limits: Sequence[Limit]
) -> tuple[str, ...]:
    found = [
        "A job takes 1 s: the actual duration is unknown."
        if runtime_s is None
        else f"A job takes {runtime_s:.2g} s, the recent duration of such jobs.",
        "Workers start each job immediately: their concurrency is unknown."
        if not concurrency
        else f"Workers run {concurrency:,} jobs at once and no other jobs.",
        "Failures are random (fixed seed) and independent of the rate; native retries are not counted.",
    ]
    found += [f"A policy limits {limit.task} to {small(limit.per_s)} starts/s." for limit in limits]
    if pace.highest is None:
        found.append(f"Without a limit, one sender sends {AT_ONCE_GUESS:,.0f}/s.")
    if pace.ramp:
        found.append(
            "The service can handle the highest rate; otherwise the ramp ends at the rate that the service can handle."
        )
    if pace.window:
        found.append("The time window is always open.")
    if pace.per_key:
        found.append(f"No {pace.per_key.key} has enough jobs for its own limit to slow the replay.")
    return tuple(found)


@dataclass(slots=True)
class _Run:
    jobs: int
    pace: Pace
    failing: float
    runtime_s: float
    serves: float  # jobs/s that workers can start
    random: Random
    now: float = 0.0
    sent: int = 0
    home: int = 0
    owed: float = 1.0  # fraction of a job that is due, in long steps
    queued: float = 0.0
    longest_wait_s: float = 0.0
    calm: int = 0
    # time of the outcome, time of sending, number
    coming: deque[tuple[float, float, int]] = field(default_factory=deque)
    points: list[tuple[float, float, float]] = field(default_factory=list)  # start, duration, number of jobs started

    def end(self) -> Outlook:
        controller = Controller(self.pace, 0.0)
        verdict = controller.assess(self._observe())
        bucket = Bucket(verdict.rate, 0.0)
        while self.sent < self.jobs and len(self.points) < _MOST_STEPS:
            step_s = self._step_s(verdict)
            self._go(self._granted(bucket, verdict, step_s), step_s)
            before, verdict = verdict, controller.assess(self._observe())
            if verdict.state == HELD:
                return self._outlook(verdict.because)
            self.calm = self.calm + 1 if (verdict.state, verdict.rate) == (before.state, before.rate) else 0
            if verdict.rate != bucket.rate:
                bucket.change(verdict.rate, self.now)
        if self.sent < self.jobs:
            # Enough steps: the rest continues at the current rate.
            self._go(self.jobs - self.sent, (self.jobs - self.sent) / (verdict.rate or AT_ONCE_GUESS))
        return self._outlook(None)

    def _step_s(self, verdict: Verdict) -> float:
        """Return the step, longer when nothing changes: between two jobs, and once running, so that hours are not
        simulated in half-seconds.
        """
        if verdict.rate is None:
            return CHECK_S
        if self.calm < _CALM or verdict.state != RUNNING:
            return max(CHECK_S, 0.5 / verdict.rate)
        longest = (self.jobs - self.sent) / verdict.rate / 20
        if self.pace.in_flight is not None:
            longest = min(longest, self.pace.in_flight / verdict.rate / 4)
        return max(CHECK_S, longest)

    def _granted(self, bucket: Bucket, verdict: Verdict, step_s: float) -> int:
        most = self.jobs - self.sent
        if verdict.may_send is not None:
            most = min(most, max(0, verdict.may_send - self.sent))
        if self.pace.queue_cap is not None:
            most = min(most, max(0, self.pace.queue_cap - int(self.queued)))
        if verdict.rate is None:
            return min(most, math.ceil(AT_ONCE_GUESS * step_s))
        if step_s > CHECK_S:
            # The bucket keeps its rate over any long time, so it need not be polled 50 times per second.
            self.owed = min(self.owed, 1.0) + verdict.rate * step_s
            count = min(most, int(self.owed))
            self.owed -= count
            return count
        granted, passed_s = 0, 0.0
        while granted < most:
            passed_s += max(_SLICE_S, bucket.wait(self.now + passed_s))
            if passed_s > step_s:
                break
            granted += bucket.take(most - granted, self.now + passed_s)
        return granted

    def _go(self, count: int, step_s: float) -> None:
        begun, self.now = self.now, self.now + step_s
        self.sent += count
        self.queued += count
        started = min(self.queued, self.serves * step_s)
        self.queued -= started
        self.points.append((begun, step_s, started))
        wait_s = self.queued / self.serves
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        if count:
            self.coming.append((self.now + wait_s + self.runtime_s, begun + step_s / 2, count))

    def _observe(self) -> Seen:
        judged = []
        while self.coming and self.coming[0][0] <= self.now:
            at, sent_at, count = self.coming.popleft()
            failed = self._failed(count)
            self.home += count
            judged += [
                Judged(at, sent_at, ok, None if ok else 0, is_same_group=not ok, runtime_s=self.runtime_s, n=n)
                for ok, n in ((False, failed), (True, count - failed))  # failures first, which avoids a run of failures
                if n
            ]
        return Seen(self.now, self.sent, self.sent - self.home, self.jobs - self.sent, judged)

    def _failed(self, count: int) -> int:
        if not self.failing:
            return 0
        if count <= 30:
            return sum(self.random.random() < self.failing for _ in range(count))
        spread = math.sqrt(count * self.failing * (1 - self.failing))
        return min(count, max(0, round(self.random.gauss(count * self.failing, spread))))

    def _outlook(self, reason: Evidence | None) -> Outlook:
        rest_s = self.queued / self.serves
        if reason is None and self.queued:
            self.points.append((self.now, max(CHECK_S, rest_s), self.queued))
        return Outlook(
            failing=self.failing,
            starts=_merged(self.points),
            peak_per_second=self._peak(),
            longest_wait_s=self.longest_wait_s,
            sent=self.sent,
            ends_after_s=None if reason else self.now + rest_s + self.runtime_s,
            held_after_s=self.now if reason else None,
            held_because=reason,
        )

    def _peak(self) -> float:
        """Return the maximum of starts within one second: for each step it touches, the most that can be inside."""
        most = 0.0
        for n, (_, took_s, count) in enumerate(self.points):
            rest_s = max(0.0, 1 - took_s)
            if rest_s and n + 1 < len(self.points):
                _, next_s, next_count = self.points[n + 1]
                count += next_count * min(1.0, rest_s / next_s)
            most = max(most, count / max(1.0, took_s))
        return min(float(self.jobs), most)


def _merged(points: list[tuple[float, float, float]]) -> tuple[tuple[float, float], ...]:
    if not points:
        return ()
    total_s = points[-1][0] + points[-1][1]
    width = max(total_s / _POINTS, CHECK_S)
    bins = [0.0] * min(_POINTS, math.ceil(total_s / width - 1e-9))
    for begun, took_s, count in points:
        first, last = int(begun / width), min(len(bins) - 1, int((begun + took_s) / width))
        for n in range(min(first, last), last + 1):
            inside = min(begun + took_s, (n + 1) * width) - max(begun, n * width)
            bins[n] += count * max(0.0, inside) / took_s
    return tuple((n * width, count / width) for n, count in enumerate(bins))
