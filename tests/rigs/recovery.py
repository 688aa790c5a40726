"""A recovery on a simulated clock: dead jobs, and a partner who has just come back."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from demo.temper import Curve, Temper
from jobs_admin.core.pacing import CHECK_S, Bucket, Controller, Judged, Pace, Seen, parse, settled

TICK_S = 0.02
NEWS_S = 0.5  # from the end of an attempt until the controller may know of it
BACKOFF_S = (1, 2, 4, 8, 16)  # after each failed attempt but the last
WORKERS = 150  # jobs at once: 1,500 a second where each takes 0.1 s
RUNTIME_S = 0.1
RESUMED_S = 60.0  # a held replay waits so long for its operator
LONGEST_S = 4 * 3600.0
TO = 300.0  # what the service carries when it is warm, and what the queue usually managed


def warming(at: float) -> float:
    return TO * (20 + 280 * min(1.0, at / 60)) / 300


def step(at: float) -> float:
    return TO * (20 / 300 if at < 45 else 1.0)


def slow(at: float) -> float:
    return TO * (20 + 280 * min(1.0, at / 600)) / 300


def periodic(at: float) -> float:
    return TO * (0.75 - 0.25 * math.cos(2 * math.pi * at / 60))


def flapping(at: float) -> float:
    """A quarter of it goes within 5 s, stays away for 10 s, and is back within 5 s; then 10 s are well."""
    return TO * (1 - _away(at) / 4)


def plunging(at: float) -> float:
    """The same with half of it."""
    return TO * (1 - _away(at) / 2)


def _away(at: float) -> float:
    phase = at % 30
    return max(0.0, min(1.0, (phase - 10) / 5) if phase < 25 else (30 - phase) / 5)


def cliff(at: float) -> float:
    """Half of it goes in an instant, for 20 s of every minute."""
    return TO * (0.5 if at % 60 >= 40 else 1.0)


CURVES: dict[str, Curve] = {f.__name__: f for f in (warming, step, slow, periodic, flapping, plunging, cliff)}
UNFAIR = ("plunging", "cliff", "unequal")  # faster than any news, or what one rate for all cannot serve
ALL_CURVES = [*CURVES, "per_customer", "unequal"]
# Eight customers, each with a service of its own and the share of the jobs that this can bear.
CUSTOMERS = (0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05)


class Partner:
    """One service, or one for each customer."""

    def __init__(
        self,
        curve: Curve,
        shares: tuple[float, ...] = (1.0,),
        *,
        capacities: tuple[float, ...] = (),
        sheds: bool = True,
    ) -> None:
        """`shares` of the jobs and of the capacity; `bears`: what of its share each really does."""
        self._shares = shares
        parts = zip(shares, capacities or [1.0] * len(shares), strict=True)
        self._each = [Temper(0.0, _scaled(curve, share * part), sheds=sheds) for share, part in parts]
        for one in self._each:
            one.change("warming", 0.0)
        self.requests_while_down = self.requests = 0
        self.seconds: Counter[int] = Counter()

    def answer(self, customer: int, now: float) -> tuple[bool, float]:
        """Return whether a request succeeds, and the seconds that it waits beyond its usual time."""
        temper = self._each[customer]
        ok = temper.answer(now).status == 200
        self.requests += 1
        self.seconds[int(now)] += 1
        self.requests_while_down += temper.mode.name == "outage"
        return ok, 0.0

    def capacity(self, now: float) -> float:
        return sum(one.capacity(now) or 0.0 for one in self._each)

    @property
    def collapses(self) -> int:
        return sum(one.falls for one in self._each)

    def customers(self, jobs: int) -> list[int]:
        """The customer of each job."""
        return in_turn(self._shares, jobs)


def in_turn(shares: tuple[float, ...], jobs: int) -> list[int]:
    """The customer of each job, in the proportion of their shares, as a fair order sends them."""
    owed = [0.0] * len(shares)
    order = []
    for _ in range(jobs):
        owed = [debt + share for debt, share in zip(owed, shares, strict=True)]
        chosen = max(range(len(owed)), key=owed.__getitem__)
        owed[chosen] -= sum(shares)
        order.append(chosen)
    return order


def _scaled(curve: Curve, share: float) -> Curve:
    return lambda at: curve(at) * share


class Paced:
    """As Redrive does it: a settled pace, its bucket, its controller; a person resumes it when it was held."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.controller = Controller(pace, 0.0)
        self.verdict = self.controller.assess(Seen(0.0, 0, 0, 1))
        self.bucket = Bucket(self.verdict.rate, 0.0)
        self.holds: list[str] = []
        self.rates: list[tuple[float, str, float | None]] = []
        self._held_at: float | None = None
        self._aside: set[Any] = set()

    def may_go(self, now: float, sent: int, left: int) -> int:
        if self.verdict.state == "held":
            return 0
        if self.verdict.may_send is not None:
            left = min(left, max(0, self.verdict.may_send - sent))
        return self.bucket.take(left, now)

    def wait(self, now: float) -> float:
        """Seconds until a job may go, as far as the rate bounds it."""
        return LONGEST_S if self.verdict.state == "held" else self.bucket.wait(now)

    def sets_aside(self) -> set[Any]:
        """The groups that are set aside now."""
        return self._aside

    def assess(self, seen: Seen) -> None:
        if self._held_at is not None and seen.now - self._held_at >= RESUMED_S:
            self.controller.resumed(seen.now)
            self._held_at = None
        self.verdict = self.controller.assess(seen)
        self._aside = (self._aside | {why.group for why in self.verdict.set_aside}) - set(self.verdict.bring_back)
        self.rates.append((seen.now, self.verdict.state, self.verdict.rate))
        if self.verdict.state == "held" and self._held_at is None:
            self._held_at = seen.now
            self.holds.append(self.verdict.because.sentence() if self.verdict.because else "")
        if self.verdict.state != "held" and self.verdict.rate != self.bucket.rate:
            self.bucket.change(self.verdict.rate, seen.now)


class Planned:
    """A time for each job, decided beforehand: what retry strategies without a controller do."""

    def __init__(self, due: list[float]) -> None:
        self._due = deque(sorted(due))
        self.holds: list[str] = []

    def may_go(self, now: float, sent: int, left: int) -> int:
        count = 0
        while self._due and self._due[0] <= now:
            self._due.popleft()
            count += 1
        return count

    def wait(self, now: float) -> float:
        return self._due[0] - now if self._due else LONGEST_S

    def assess(self, seen: Seen) -> None:
        pass

    def sets_aside(self) -> set[Any]:
        return set()


class Oracle:
    """Knows at every moment what the service can carry, and leaves room for nothing else."""

    def __init__(self, partner: Partner) -> None:
        self._partner = partner
        self._owed = 0.0
        self.holds: list[str] = []

    def may_go(self, now: float, sent: int, left: int) -> int:
        self._owed += self._partner.capacity(now) * TICK_S
        count = min(left, int(self._owed))
        self._owed -= count
        return count

    def wait(self, now: float) -> float:
        return TICK_S

    def assess(self, seen: Seen) -> None:
        pass

    def sets_aside(self) -> set[Any]:
        return set()


@dataclass
class World:
    """Queue, workers, native retries and news, by ticks of 20 ms; those in which nothing happens are skipped."""

    partner: Any  # a Partner, or tests.rigs.partners.Met
    jobs: int
    random: Random
    runtime_s: float = RUNTIME_S
    news_s: float = NEWS_S
    check_s: float = CHECK_S
    attempts: int = 6
    broken: float = 0.0  # the share of jobs that fail whatever the service does
    groups: Sequence[tuple[float, float]] = ()  # (share of the jobs that died of it, share of these that is broken)
    workers: int = WORKERS
    longest_s: float = LONGEST_S
    sent: int = 0
    succeeded: int = 0
    failed_again: int = 0
    lost: int = 0  # of these, jobs that are not broken
    set_aside: int = 0  # jobs that were not sent, for their group
    set_aside_healthy: int = 0  # of these, jobs that are not broken
    first_failed: int = 0
    now: float = 0.0
    sent_at: list[float] = field(default_factory=list)
    settled: int = 0  # as far as it is known

    def run(self, way: Any, until: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Until all jobs ended, or `until` says so."""
        whose = self.partner.customers(self.jobs)
        died_of, is_broken = self._died_of()
        aside: set[int] = set()
        following = 0  # the next job that may be sent
        queue: deque[tuple[int, int]] = deque()  # job, attempt
        later: list[tuple[float, int, int]] = []  # native retries that wait
        ending: list[tuple[float, int, int, bool, float]] = []
        news: deque[tuple[float, Judged | None, bool]] = deque()  # when, of a first attempt, whether the job ended
        next_sample, ticks, idle_until = 0.0, 0, 0.0
        while (
            self.succeeded + self.failed_again + self.set_aside < self.jobs
            and self.now < self.longest_s
            and not until()
        ):
            ticks = max(ticks + 1, int(idle_until / TICK_S))
            self.now = now = ticks * TICK_S
            for _ in range(way.may_go(now, self.sent, self.jobs - self.sent - self.set_aside)):
                while following < self.jobs and died_of[following] in aside:
                    following += 1
                if following == self.jobs:
                    break
                queue.append((following, 1))
                self.sent_at[following] = now
                self.sent += 1
                following += 1
            while later and later[0][0] <= now:
                queue.append(heapq.heappop(later)[1:])
            while ending and ending[0][0] <= now:
                at, job, attempt, ok, took = heapq.heappop(ending)
                self._ended(job, attempt, ok, at, took, later, news, died_of[job])
                self.lost += not ok and attempt == self.attempts and not is_broken[job]
            while queue and len(ending) < self.workers:
                job, attempt = queue.popleft()
                ok, delay_s = self.partner.answer(whose[job], now)
                ok = ok and not is_broken[job]
                took = self.runtime_s * self.random.uniform(0.8, 1.2) + delay_s
                heapq.heappush(ending, (now + took, job, attempt, ok, took))
            if now >= next_sample:
                next_sample = now + self.check_s
                came = []
                while news and news[0][0] <= now:
                    _, judged, ended = news.popleft()
                    self.settled += ended
                    if judged:
                        came.append(judged)
                planned = self.jobs - self.sent - self.set_aside
                seen = Seen(
                    now, self.sent, self.sent - self.settled, planned, came, self.workers, len(queue), set_aside=aside,
                    has_others=lambda groups, at=following: any(died_of[n] not in groups for n in range(at, self.jobs)),
                )  # fmt: skip
                way.assess(seen)
                for group in way.sets_aside() - aside:
                    lost = [n for n in range(following, self.jobs) if died_of[n] == group]
                    self.set_aside += len(lost)
                    self.set_aside_healthy += sum(not is_broken[n] for n in lost)
                    aside.add(group)
            idle_until = now
            if not queue:
                soonest = [next_sample, *(first[0][0] for first in (ending, later) if first)]
                idle_until = min(
                    *soonest, now + (way.wait(now) if self.sent + self.set_aside < self.jobs else LONGEST_S)
                )
        return self._figures(way)

    def _died_of(self) -> tuple[list[int], list[bool]]:
        """The group of each job, and whether it is broken."""
        self.sent_at = [-1.0] * self.jobs
        if not self.groups:
            return [1] * self.jobs, [self.random.random() < self.broken for _ in range(self.jobs)]
        numbers, shares = range(1, len(self.groups) + 1), [share for share, _ in self.groups]
        died_of = self.random.choices(numbers, shares, k=self.jobs)
        return died_of, [self.random.random() < self.groups[group - 1][1] for group in died_of]

    def _ended(
        self, job: int, attempt: int, ok: bool, at: float, took: float, later: list[Any], news: deque[Any], died_of: int
    ) -> None:
        judged = None
        if attempt == 1:
            self.first_failed += not ok
            judged = Judged(
                at + self.news_s, self.sent_at[job], ok, None if ok else died_of, False, not ok, took, 1, died_of
            )
        is_last = ok or attempt == self.attempts
        news.append((at + self.news_s, judged, is_last))
        if not is_last:
            wait = BACKOFF_S[attempt - 1] * self.random.uniform(0.9, 1.1)
            heapq.heappush(later, (at + wait, job, attempt + 1))
        self.succeeded += ok
        self.failed_again += is_last and not ok

    def _figures(self, way: Any) -> dict[str, Any]:
        sent_at = [at for at in self.sent_at if at >= 0]
        sends = Counter(int(at) for at in sent_at)
        return {
            "collapses": self.partner.collapses,
            "requests": self.partner.requests,
            "requests_during_collapse": self.partner.requests_while_down,
            "failed_again": self.failed_again,
            "failed_again_percent": round(100 * self.failed_again / self.jobs, 2),
            "first_attempts_failed_percent": round(100 * self.first_failed / max(1, self.sent), 2),
            "peak_requests_per_s": max(self.partner.seconds.values(), default=0),
            "peak_sent_per_s": max(sends.values(), default=0),
            "through_after_s": round(self.now, 1),
            "all_sent_after_s": round(max(sent_at), 1) if sent_at else None,
            "held": len(way.holds),
        }


def careful(jobs: int, median: float | None) -> Paced:
    return Paced(settled(parse({"style": "careful"}), jobs=jobs, median_per_s=median))


# Name -> how so many jobs are let go towards that partner.
Way = Callable[[int, Partner, Random], Any]
WAYS: dict[str, Way] = {
    "everything at once": lambda jobs, partner, random: Planned([0.0] * jobs),
    "fixed delay of 60 s": lambda jobs, partner, random: Planned([60.0] * jobs),
    "full jitter over 60 s": lambda jobs, partner, random: Planned([random.uniform(0, 60) for _ in range(jobs)]),
    "steady, 50 a second": lambda jobs, partner, random: Paced(settled(parse({"rate": 50}), jobs=jobs)),
    "careful": lambda jobs, partner, random: careful(jobs, TO),
    "careful, told twice too much": lambda jobs, partner, random: careful(jobs, 2 * TO),
    "careful, throughput unknown": lambda jobs, partner, random: careful(jobs, None),
    "oracle": lambda jobs, partner, random: Oracle(partner),
}


def partner_of(curve: str, *, sheds: bool = True) -> Partner:
    if curve == "per_customer":
        return Partner(warming, CUSTOMERS, sheds=sheds)
    if curve == "unequal":
        return Partner(warming, CUSTOMERS, capacities=(1, 1, 1, 0.1, 1, 1, 1, 1), sheds=sheds)
    return Partner(CURVES[curve], sheds=sheds)


def story(curve: str, way: str, jobs: int, seed: int, *, sheds: bool = True, **world: Any) -> dict[str, Any]:
    """One way of sending on one curve. The same seed gives the same figures."""
    random = Random(seed)
    partner = partner_of(curve, sheds=sheds)
    return World(partner, jobs, random, **world).run(WAYS[way](jobs, partner, random))
