"""A breaker on a simulated clock: traffic that must not open it, outages that must, and the release of what it put aside."""

from __future__ import annotations

import copy
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from demo.temper import Curve, Temper
from jobs_admin.core.breaker import CLOSED, Breaker, Outcome
from tests.rigs.recovery import TO, warming

START = 1_764_000_000.0
DAY = 86_400.0
STEP_S, TICK_S, QUIET_TICK_S = 0.02, 0.1, 1.0
BACKOFF_S = (2, 4, 8, 16)  # after each failed attempt but the last, ± 10 %
WORKERS = 150
TENANTS = 10


# Traffic that must not open


@dataclass(frozen=True, slots=True)
class Mix:
    """Days of traffic in which no dependency is away. `share`: failing attempts that look like an outage, by the second of the day."""

    name: str
    days: float
    per_s: Callable[[float], float]
    share: Callable[[float], float]
    attempts: int = 1  # of each failing job: the later ones fail, too
    bad_tenant: bool = False  # the failures are all of one of TENANTS
    one_subject: bool = False  # the failures are all of one job and its arguments
    stale: int = 0  # connections that fail at one moment, at each deploy


def flat(number: float) -> Callable[[float], float]:
    return lambda at: number


def within(period_s: float, length_s: float, inside: float, outside: float) -> Callable[[float], float]:
    """One value for the first `length_s` of each period, another for the rest."""
    return lambda at: inside if at % period_s < length_s else outside


MIXES = (
    Mix("15 % always broken", 40, flat(1.0), flat(0.15), attempts=3),
    Mix("one bad tenant of ten", 30, flat(0.5), flat(0.1), bad_tenant=True),
    Mix("one bad argument", 20, flat(0.4), flat(0.5), one_subject=True),
    Mix("slow partner, 25 % time out for two hours a day", 40, flat(1.0), within(DAY, 7_200, 0.25, 0.03)),
    Mix("deploys, 40 % fail for 10 s six times a day", 20, flat(5.0), within(DAY / 6, 10, 0.4, 0.02), stale=16),
    Mix("bursts, ten times as much and 30 % refused for 5 min an hour", 20, within(3_600, 300, 20, 2), within(3_600, 300, 0.3, 0.02)),
    Mix("low traffic, one job a minute, 15 % always broken", 30, flat(1 / 60), flat(0.15), attempts=3),
)  # fmt: skip


def false_holds(mix: Mix, seed: int, days: float | None = None) -> dict[str, Any]:
    """Openings of a breaker under a mix. A narrow one is expected under one bad tenant, and none else."""
    random, breaker = Random(f"{seed}/{mix.name}"), Breaker("partner", Random(seed).random)
    end, at, attempts, number = (days or mix.days) * DAY, 0.0, 0, 0
    openings: list[str] = []
    narrow = 0
    later: list[tuple[float, int, int]] = []  # of broken jobs: when, attempt, number
    deploys = DAY / 6
    while at < end:
        per_s, share = max(1e-9, mix.per_s(at)), mix.share(at)
        # Until the next failure, so many succeed; a piece of at most ten seconds, as shares change.
        gap_s = min(random.expovariate(per_s * share) if share else 10.0, max(10.0, 3 / per_s))
        well = _poisson(random, per_s * (1 - share) * gap_s)
        is_failure = gap_s < max(10.0, 3 / per_s)
        if mix.stale and int((at + gap_s) / deploys) > int(at / deploys):
            stale = [_failure(number + n, random, mix) for n in range(mix.stale)]
            breaker.note(stale, START + at + gap_s)
            number += mix.stale
        at += gap_s
        attempts += well + is_failure
        outcomes = [_well(n, mix) for n in _split(well, mix)]
        while later and later[0][0] <= at:
            _, attempt, job = heapq.heappop(later)
            outcomes.append(Outcome(False, subject=f"job {job}", kind="http 503", attempt=attempt))
            if attempt < mix.attempts:
                heapq.heappush(later, (at + 2**attempt, attempt + 1, job))
        if is_failure:
            number += 1
            outcomes.append(_failure(number, random, mix))
            if mix.attempts > 1:
                heapq.heappush(later, (at + 2, 2, number))
        breaker.note(outcomes, START + at)
        if breaker.state != CLOSED:
            if breaker.tenants and mix.bad_tenant:
                narrow += 1
            else:
                openings.append(f"{at / DAY:.2f} d: {breaker.history[-1]['why']}")
            breaker.force("closed", START + at)
            breaker.force("auto", START + at)
    return {"attempts": attempts, "false_openings": len(openings), "narrow_openings": narrow, "first": openings[:3]}


def _well(n: tuple[str, int], mix: Mix) -> Outcome:
    return Outcome(True, n=n[1], tenant=n[0])


def _split(well: int, mix: Mix) -> Iterator[tuple[str, int]]:
    if not mix.bad_tenant:
        if well:
            yield "", well
        return
    for tenant in range(TENANTS - 1):
        if n := well * (tenant + 1) // (TENANTS - 1) - well * tenant // (TENANTS - 1):
            yield f"t{tenant}", n


def _failure(number: int, random: Random, mix: Mix) -> Outcome:
    subject = "job" if mix.one_subject else f"job {number}"
    return Outcome(False, subject=subject, kind="http 503", tenant="bad" if mix.bad_tenant else "")


def _poisson(random: Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    limit, n, product = math.exp(-mean), 0, random.random()
    while product > limit:
        n, product = n + 1, product * random.random()
    return n


# Outages that must open


def time_to_open(per_s: float, seed: int, *, out: float = 1.0, usual: float = 0.05) -> tuple[float, int]:
    """Return the seconds from the beginning of an outage until the breaker opens, and the failed attempts.

    `out`: the share that fails in it. Before, the share `usual` fails for 2,000 attempts.
    """
    random, breaker = Random(f"{seed}/{per_s}/{out}"), Breaker("partner", Random(seed).random)
    at, number, since = 0.0, 0, 0
    while breaker.state == CLOSED:
        number += 1
        at += random.expovariate(per_s)
        share = usual if number <= 2_000 else out
        if number == 2_001:
            begun = at
        failed = random.random() < share
        since += failed and number > 2_000
        breaker.note([Outcome(not failed, subject=f"job {number}" if failed else "", kind="timeout")], START + at)
        if number > 20_000:
            raise AssertionError("never opened")
    if number <= 2_000:
        raise AssertionError("opened before the outage")
    return at - begun, since


# Jobs, workers and a partner


@dataclass(frozen=True, slots=True)
class Answer:
    ok: bool
    took_s: float = 0.1
    kind: str = "http 503"
    wish_s: float | None = None


class Down:
    """A partner that is away until a time, and then as a `Temper` that warms up: one that falls over under too much."""

    def __init__(self, until_s: float, curve: Curve = warming, *, sheds: bool = True) -> None:
        self.until_s, self.curve = until_s, curve
        self.requests_while_down = 0
        self._temper = Temper(until_s, curve, sheds=sheds)
        self._temper.change("warming", until_s)

    def answer(self, at: float, random: Random) -> Answer:
        if at < self.until_s:
            self.requests_while_down += 1
            return Answer(False, kind="connection")
        status = self._temper.answer(at).status
        return Answer(status == 200, kind="http 503" if status else "connection")

    @property
    def collapses(self) -> int:
        return self._temper.falls

    def ideal_s(self, backlog: float, per_s: float) -> float:
        """Seconds from the return of the partner in which one who knows its capacity releases a backlog, with jobs arriving."""
        at = 0.0
        while backlog > 0:
            backlog -= (self.curve(at) - per_s) * 0.1
            at += 0.1
        return at


@dataclass(slots=True)
class By:
    """A partner whose answers a function decides."""

    decide: Callable[[float, Random], Answer]
    requests_while_down: int = 0
    collapses: int = 0

    def answer(self, at: float, random: Random) -> Answer:
        found = self.decide(at, random)
        self.requests_while_down += found.kind == "down"
        return found


@dataclass
class World:
    """Jobs that arrive, workers, retries, and the process that ticks the breaker, by steps of 20 ms."""

    partner: Any
    per_s: Callable[[float], float]
    until_s: float  # jobs arrive until then; the run ends with the last job
    seed: int = 0
    enabled: bool = True
    attempts: int = 5
    longest_s: float = 4 * 3600.0
    dead: int = 0
    done: int = 0
    arrived: int = 0
    put_aside: int = 0
    most_bytes: int = 0
    most_probes: int = 0
    drained_at: float | None = None
    wait_s: list[float] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        random = Random(self.seed)
        breaker = Breaker("partner", Random(self.seed).random)
        board = Breaker("partner")
        board.number = -1
        queue: deque[tuple[int, int, str, float]] = deque()  # job, attempt, ticket, when it arrived
        aside: deque[tuple[int, int, str, float]] = deque()
        later: list[tuple[float, int, int, str, float]] = []
        running: list[tuple[float, int, int, str, float, Answer]] = []
        outcomes: list[Outcome] = []
        owed, at, step, next_tick, hasty_until = 0.0, 0.0, 0, 0.0, 0.0
        seen_open = False
        while at < self.longest_s:
            step += 1
            at = step * STEP_S
            if at < self.until_s:
                owed += self.per_s(at) * STEP_S
                while owed >= 1:
                    owed -= 1
                    queue.append((self.arrived, 1, "", at))
                    self.arrived += 1
            elif not (queue or aside or later or running):
                break
            while later and later[0][0] <= at:
                queue.append(heapq.heappop(later)[1:])
            failed_now = False
            while running and running[0][0] <= at:
                _, job, attempt, ticket, since, answer = heapq.heappop(running)
                if answer.ok:
                    self.done += 1
                    self.wait_s.append(at - since)
                    outcomes.append(
                        Outcome(True, ticket=ticket, runtime_s=answer.took_s, started_at=START + at - answer.took_s)
                    )
                    continue
                failed_now = True
                outcomes.append(
                    Outcome(
                        False, subject=f"job {job}", kind=answer.kind, wish_s=answer.wish_s, ticket=ticket, attempt=attempt,
                        started_at=START + at - answer.took_s,
                    )
                )  # fmt: skip
                if self.enabled and (board.state != CLOSED or ticket):
                    aside.append((job, attempt, "", since))
                elif attempt == self.attempts:
                    self.dead += 1
                else:
                    wait_s = BACKOFF_S[attempt - 1] * random.uniform(0.9, 1.1)
                    heapq.heappush(later, (at + wait_s, job, attempt + 1, "", since))
            while queue and len(running) < WORKERS:
                job, attempt, ticket, since = queue.popleft()
                if self.enabled and not board.admits(ticket, START + at):
                    aside.append((job, attempt, "", since))
                    self.put_aside += 1
                    continue
                answer = self.partner.answer(at, random)
                heapq.heappush(
                    running, (at + answer.took_s * random.uniform(0.8, 1.2), job, attempt, ticket, since, answer)
                )
            if not self.enabled:
                continue
            if failed_now:
                hasty_until = at + 10
            if not (failed_now or at >= next_tick):
                continue
            breaker.note(_merged(outcomes), START + at)
            outcomes = []
            if at >= next_tick:
                next_tick = at + (TICK_S if at < hasty_until or breaker.state != CLOSED or aside else QUIET_TICK_S)
                n = breaker.tick(START + at, len(aside))
                ticket = breaker.ticket(START + at)
                breaker.released(n, START + at, ticket)
                for _ in range(n):
                    job, attempt, _, since = aside.popleft()
                    queue.append((job, attempt, ticket, since))
                if breaker.state == "open":
                    probes = sum(one[2] == ticket for one in queue) + sum(one[3] == ticket for one in running)
                    self.most_probes = max(self.most_probes, probes)
            seen_open = seen_open or breaker.state != CLOSED
            if seen_open and breaker.state == CLOSED and not aside and self.drained_at is None:
                self.drained_at = at
            if breaker.number != board.number:
                text = breaker.render()
                self.most_bytes = max(self.most_bytes, len(text))
                breaker = Breaker.parse("partner", text, breaker._random)
                # What is read is a copy of it: `admits` changes neither.
                board = copy.copy(breaker)
        return self._figures(breaker, at)

    def _figures(self, breaker: Breaker, at: float) -> dict[str, Any]:
        self.wait_s.sort()
        return {
            "jobs": self.arrived, "dead": self.dead, "left": self.arrived - self.done - self.dead,
            "openings": breaker.openings, "put_aside": self.put_aside, "collapses": self.partner.collapses,
            "requests_while_down": self.partner.requests_while_down, "drained_at_s": self.drained_at, "ended_after_s": round(at, 1),
            "wait_p50_s": round(self.wait_s[len(self.wait_s) // 2], 1) if self.wait_s else None,
            "wait_p99_s": round(self.wait_s[len(self.wait_s) * 99 // 100], 1) if self.wait_s else None,
            "most_bytes": self.most_bytes, "most_probes": self.most_probes,
        }  # fmt: skip


def _merged(outcomes: list[Outcome]) -> list[Outcome]:
    """Successes of the same ticket in one batch, as a worker reports them."""
    counts: dict[str, list[float]] = {}
    found = [one for one in outcomes if not one.ok]
    for one in outcomes:
        if one.ok:
            part = counts.setdefault(one.ticket, [0, 0.0])
            part[0] += 1
            part[1] += one.runtime_s or 0.0
    return [
        Outcome(True, n=int(n), ticket=ticket, runtime_s=total / n) for ticket, (n, total) in counts.items()
    ] + found


def down_for(seconds: float, after_s: float = 0.0) -> Callable[[float, Random], Answer]:
    return lambda at, random: Answer(False, kind="down") if after_s <= at < after_s + seconds else Answer(True)


def flapping(at: float, random: Random) -> Answer:
    """Away for 40 of each 60 s, for half an hour."""
    return Answer(False, kind="down") if at < 1_800 and at % 60 >= 20 else Answer(True)


def half_broken(at: float, random: Random) -> Answer:
    """Half of all requests fail for ten minutes."""
    return Answer(False) if at < 600 and random.random() < 0.5 else Answer(True)


def slow(at: float, random: Random) -> Answer:
    """Answers take 3 s for ten minutes, and a fifth takes longer than the client waits."""
    if 60 <= at < 660:
        return Answer(False, 10.0, "timeout") if random.random() < 0.2 else Answer(True, 3.0)
    return Answer(True)


class Limited:
    """A partner that answers 429 beyond `per_s` requests, with Retry-After 1."""

    def __init__(self, per_s: float) -> None:
        self.per_s, self.room, self.at = per_s, per_s, 0.0
        self.requests_while_down = self.collapses = 0

    def answer(self, at: float, random: Random) -> Answer:
        self.room = min(self.per_s, self.room + (at - self.at) * self.per_s)
        self.at = at
        if self.room < 1:
            self.requests_while_down += 1
            return Answer(False, 0.02, "http 429", 1.0)
        self.room -= 1
        return Answer(True)


def story(jobs: int, away_s: float, seed: int = 0, *, sheds: bool = True, enabled: bool = True) -> dict[str, Any]:
    """Jobs that arrive while a partner is away, which then warms up to `TO` requests a second."""
    per_s = jobs / away_s
    partner = Down(away_s, sheds=sheds)
    world = World(partner, flat(per_s), away_s * 1.5 + 60, seed, enabled)
    found = world.run()
    ideal_s = partner.ideal_s(jobs, per_s) if per_s < TO else math.inf
    if world.drained_at is not None:
        found["ideal_s"] = round(ideal_s, 1)
        found["times_ideal"] = round((world.drained_at - away_s) / ideal_s, 2)
    return found
