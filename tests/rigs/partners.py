"""Partners drawn at random, met on a simulated clock."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from jobs_admin.core.pacing import Seen, parse, settled
from tests.rigs.recovery import Paced, World, in_turn

STRAIN, STRAIN_S, BURST = 1.3, 2.0, 2  # more than this times what it carries within so long, and 2, and it falls over
REFUSES_ABOVE_S = 0.1  # of work that waits: then one that refuses does so
SLOW_TIMEOUT_S, SLOW_FALLS_S = 10.0, 8.0  # a client gives up; one that only becomes slow falls over
OUTAGE_S = 30.0
OF_EACH = 4
LONGEST_S = 40 * 3600.0
Curve = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A partner, as it was drawn."""

    kind: str
    name: str
    curve: Curve  # seconds since it is back -> requests/s that it carries
    usual: float  # jobs/s that its queue managed in the hour before
    sign: str = "refuses"  # what it does above what it carries: refuses, slow, or none
    fall_s: float = 20.0
    attempts: int = 6
    runtime_s: float = 0.2
    workers: int = 150
    groups: tuple[tuple[float, float], ...] = ()  # (share of the jobs, share of these that fail whatever it does)
    shares: tuple[float, ...] = (1.0,)  # of the jobs, by tenant
    parts: tuple[float, ...] = (1.0,)  # of the curve that each tenant's service carries
    restarts: bool = False  # its curve begins again when it gets up


class Service:
    """The service as a tenant's requests meet it. Pure: takes the time in seconds since it is back."""

    def __init__(self, drawn: Drawn, part: float) -> None:
        self._drawn, self._part = drawn, part
        self._since = 0.0
        self._waiting, self._at = 0.0, 0.0  # requests that wait in it
        self._arrived: deque[float] = deque()
        self.down_until = float("-inf")
        self.falls = 0

    def carries(self, now: float) -> float:
        return self._drawn.curve(now - self._since) * self._part

    def answer(self, now: float) -> tuple[bool, float]:
        """Return whether it answers well, and the seconds that the request waits."""
        if now < self.down_until:
            return False, 0.0
        carries = self.carries(now)
        self._arrived.append(now)
        while self._arrived[0] <= now - STRAIN_S:
            self._arrived.popleft()
        self._waiting = max(0.0, self._waiting - (now - self._at) * carries)
        self._at = now
        if self._falls(carries):
            self._fall(now)
            return False, 0.0
        if self._drawn.sign == "refuses" and self._waiting + 1 > max(3.0, carries * REFUSES_ABOVE_S):
            return False, 0.0
        self._waiting += 1
        if self._drawn.sign != "slow":
            return True, 0.0
        wait_s = (self._waiting - 1) / carries
        return wait_s < SLOW_TIMEOUT_S, min(wait_s, SLOW_TIMEOUT_S)

    def _falls(self, carries: float) -> bool:
        if self._drawn.sign == "slow":
            return self._waiting > SLOW_FALLS_S * carries + BURST
        return len(self._arrived) > STRAIN * carries * STRAIN_S + BURST

    def _fall(self, now: float) -> None:
        self.falls += 1
        self.down_until = now + self._drawn.fall_s
        self._waiting = 0.0
        self._arrived.clear()
        if self._drawn.restarts:
            self._since = self.down_until


class Met:
    """A drawn partner while its jobs come back; all that `tests.rigs.recovery.World` asks of one."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.services = [Service(drawn, part) for part in drawn.parts]
        self.requests = self.requests_while_down = 0
        self.seconds: Counter[int] = Counter()

    def answer(self, tenant: int, now: float) -> tuple[bool, float]:
        service = self.services[tenant]
        self.requests += 1
        self.seconds[int(now)] += 1
        self.requests_while_down += now < service.down_until
        return service.answer(now)

    def out(self, now: float) -> None:
        """An outage that no one's load caused."""
        for service in self.services:
            service.down_until = max(service.down_until, now + OUTAGE_S)

    @property
    def collapses(self) -> int:
        return sum(service.falls for service in self.services)

    def customers(self, jobs: int) -> list[int]:
        """The customer of each job: in turn, in the proportion of the shares, as a fair order sends them."""
        return in_turn(self.drawn.shares, jobs)


def partners(seed: int, of_each: int = OF_EACH) -> list[Drawn]:
    """The same for the same seed."""
    return [_draw(kind, n, Random(f"{seed}/{kind}/{n}")) for kind in KINDS for n in range(of_each)]


def _draw(kind: str, n: int, random: Random) -> Drawn:
    top = _log_uniform(random, 12, 300)
    plain = Drawn(
        kind, f"{kind} {n + 1}", lambda at: top, top,
        fall_s=random.uniform(10, 60), attempts=random.choice((1, 3, 6)), runtime_s=_log_uniform(random, 0.05, 1.0),
    )  # fmt: skip
    drawn = KINDS[kind](plain, top, random)
    # What it managed in the hour before: some of what it carries in the long run.
    return replace(drawn, usual=drawn.usual * random.uniform(0.6, 1.0))


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def _step(plain: Drawn, top: float, random: Random) -> Drawn:
    low, at = random.uniform(0.1, 0.6), random.uniform(20, 120)
    if random.random() < 0.5:
        return replace(plain, curve=lambda now: top * (low if now < at else 1.0))
    low = random.uniform(0.5, 0.8)
    return replace(plain, curve=lambda now: top * (1.0 if now < at else low), usual=top * low)


def _drift(plain: Drawn, top: float, random: Random) -> Drawn:
    first, last, over = random.uniform(0.4, 1.0), random.uniform(0.4, 1.0), random.uniform(120, 900)
    return replace(plain, curve=lambda now: top * (first + (last - first) * min(1.0, now / over)), usual=top * last)


def _warm_up(plain: Drawn, top: float, random: Random) -> Drawn:
    cold, over = random.uniform(0.05, 0.3), random.uniform(30, 240)
    return replace(plain, curve=lambda now: top * (cold + (1 - cold) * min(1.0, max(0.0, now) / over)), restarts=True)


def _periodic(plain: Drawn, top: float, random: Random) -> Drawn:
    depth, period = random.uniform(0.1, 0.25), random.uniform(40, 400)
    return replace(
        plain,
        curve=lambda now: top * (1 - depth + depth * math.cos(2 * math.pi * now / period)),
        usual=top * (1 - depth),
    )


def _per_tenant(plain: Drawn, top: float, random: Random) -> Drawn:
    raw = [random.uniform(0.5, 2.0) for _ in range(random.randint(3, 6))]
    shares = tuple(share / sum(raw) for share in raw)
    parts = tuple(share * random.uniform(0.7, 1.3) for share in shares)
    # One rate for all: what the weakest carries of its share bounds it.
    bound = min(part / share for part, share in zip(parts, shares, strict=True))
    return replace(plain, shares=shares, parts=parts, usual=top * min(1.0, bound))


def _half_broken(plain: Drawn, top: float, random: Random) -> Drawn:
    """Some groups fail whatever the partner does, one fails by half, and the largest is whole."""
    broken = tuple((random.uniform(0.03, 0.15), 1.0) for _ in range(random.randint(1, 3)))
    half = (random.uniform(0.05, 0.15), random.uniform(0.4, 0.6))
    return replace(plain, groups=((1 - half[0] - sum(share for share, _ in broken), 0.0), half, *broken))


def _slow(plain: Drawn, top: float, random: Random) -> Drawn:
    return replace(plain, sign="slow")


def _below_start(plain: Drawn, top: float, random: Random) -> Drawn:
    low = random.uniform(0.5, 4.0)
    return replace(plain, curve=lambda now: low, usual=low)


def _flapping(plain: Drawn, top: float, random: Random) -> Drawn:
    depth, period, edge = random.uniform(0.1, 0.3), random.uniform(25, 90), random.uniform(4, 8)

    def curve(now: float) -> float:
        phase = now % period
        away = min(1.0, phase / edge) if phase < period / 2 else max(0.0, 1 - (phase - period / 2) / edge)
        return top * (1 - depth * away)

    return replace(plain, curve=curve, usual=top * (1 - depth))


def _no_sign(plain: Drawn, top: float, random: Random) -> Drawn:
    return replace(plain, sign="none")


KINDS: dict[str, Callable[[Drawn, float, Random], Drawn]] = {
    "step": _step, "drift": _drift, "warm-up": _warm_up, "periodic": _periodic, "per tenant": _per_tenant,
    "half-broken": _half_broken, "slow": _slow, "below the start": _below_start, "flapping": _flapping,
    "no sign": _no_sign,
}  # fmt: skip


class Operated(Paced):
    """Redrive, an operator who resumes it, and maybe an outage in the middle."""

    def __init__(self, pace: Any, met: Met, out_after: int | None = None) -> None:
        super().__init__(pace)
        self._met, self._out_after = met, out_after
        self.held_s, self._at = 0.0, 0.0

    def assess(self, seen: Seen) -> None:
        if self._out_after is not None and seen.sent >= self._out_after:
            self._met.out(seen.now)
            self._out_after = None
        if self.verdict.state == "held":
            self.held_s += seen.now - self._at
        self._at = seen.now
        super().assess(seen)


def oracle_s(drawn: Drawn, jobs: int) -> float:
    """Seconds until all are through where what the partner carries is known at every moment and used to the full."""
    bound = min(part / share for part, share in zip(drawn.parts, drawn.shares, strict=True))
    most = drawn.workers / drawn.runtime_s
    done, now, step_s = 0.0, 0.0, 0.25
    while done < jobs:
        done += min(drawn.curve(now) * bound, most) * step_s
        now += step_s
    return now + drawn.runtime_s


def meet(drawn: Drawn, way: str, jobs: int, seed: int = 0) -> dict[str, Any]:
    """One replay. `way`: fresh, busy, resumed (an outage when half is sent), steady, or steady resumed (the same outage)."""
    met = Met(drawn)
    pace: dict[str, Any] = {"style": "steady", "rate": 50} if way in STEADY else {"style": "careful"}
    most = drawn.workers / drawn.runtime_s
    plan = settled(parse(pace), jobs=jobs, median_per_s=drawn.usual if way == "busy" else None, workers_per_s=most)
    operated = Operated(plan, met, jobs // 2 if way.endswith("resumed") else None)
    world = World(
        met, jobs, Random(f"{seed}/{drawn.name}/{way}"), runtime_s=drawn.runtime_s, attempts=drawn.attempts,
        groups=drawn.groups, workers=drawn.workers, longest_s=LONGEST_S,
    )  # fmt: skip
    began = time.process_time()
    world.run(operated)
    known_s = oracle_s(drawn, jobs)
    sound = jobs * (1 - sum(share * broken for share, broken in drawn.groups))
    return {
        "partner": drawn.name,
        "way": way,
        "attempts": drawn.attempts,
        "usual": round(drawn.usual, 1),
        "collapses": met.collapses,
        "held": len(operated.holds),
        "dead": world.lost,
        "dead_percent": round(100 * world.lost / sound, 2),
        "set_aside": world.set_aside,
        "set_aside_whole_percent": round(100 * world.set_aside_healthy / sound, 2),
        "through_s": round(world.now - operated.held_s),
        "waited_for_operator_s": round(operated.held_s),
        "times_the_oracle": round((world.now - operated.held_s) / known_s, 2),
        "processor_s": round(time.process_time() - began, 1),
    }


STEADY = ("steady", "steady resumed")
