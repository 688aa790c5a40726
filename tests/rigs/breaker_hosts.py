"""A breaker whose jobs run on several hosts, or are of several tasks, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from jobs_admin.core.breaker import CLOSED, Breaker, Outcome

START = 1_764_000_000.0
SINCE_S = 60.0  # from then on something fails
USUAL = 0.05


@dataclass
class Found:
    breaker: Breaker
    opened_at: float | None = None  # seconds since something fails
    narrowed_to: list[str] = field(default_factory=list)
    hosts: dict[str, float] = field(default_factory=dict)  # host -> when first, likewise
    failed: dict[str, int] = field(default_factory=dict)  # host -> since something fails


def run(
    fails: Callable[[str, str, float], bool],
    *,
    hosts: Sequence[str] = ("a", "b"),
    weights: Sequence[float] = (),
    tasks: Sequence[str] = ("x",),
    per_s: float = 5.0,
    until_s: float = 300.0,
    usual: float = USUAL,
    seed: int = 1,
) -> Found:
    """`fails`: whether jobs of a host and task fail at a second; else the share `usual` does. A host on hold only probes, and its jobs
    come again as others."""
    random, breaker = Random(seed), Breaker("partner", Random(seed).random)
    found, at, number, probed = Found(breaker), 0.0, 0, dict[str, float]()
    while at < until_s and breaker.state == CLOSED:
        at, number = at + random.expovariate(per_s), number + 1
        host, task = random.choices(hosts, weights or [1] * len(hosts))[0], random.choice(tasks)
        if breaker.covers_host(host):
            if at - probed.setdefault(host, at) < breaker.hosts.probe_s(host, START + at):
                continue
            probed[host] = at
        failed = fails(host, task, at) or random.random() < usual
        found.failed[host] = found.failed.get(host, 0) + (failed and at >= SINCE_S)
        one = Outcome(
            not failed, host=host, task=task, subject=f"job {number}", kind="connection", started_at=START + at - 0.1
        )
        breaker.note([one], START + at)
        if number % 50 == 0:
            breaker = Breaker.parse("partner", breaker.render(), breaker._random)
        for name in breaker.hosts.current:
            found.hosts.setdefault(name, at - SINCE_S)
    found.breaker = breaker
    if breaker.state != CLOSED:
        found.opened_at, found.narrowed_to = at - SINCE_S, list(breaker.tenants)
    return found
