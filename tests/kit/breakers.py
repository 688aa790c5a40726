"""Breakers of tests: policies that have one, and documents in the store as workers write them."""

from __future__ import annotations

import time
from typing import Any

import redis
from django.utils import timezone

from jobs_admin.core import keys
from jobs_admin.core.breaker import Breaker, Outcome
from jobs_admin.models import PolicyVersion


def create_policy(name: str = "partner", *, mode: str = "enforce", dependency: str = "", **match: str) -> PolicyVersion:
    """A policy in force with nothing but a breaker."""
    document = {
        "name": name,
        "match": {"source": "shop", "queue": "*", "task": "*", **match},
        "mode": mode,
        "retries": False,
        "breaker": {"dependency": dependency} if dependency else {},
        "note": "",
    }
    return PolicyVersion.objects.create(
        document=document, version=1, published_at=timezone.now(), published_by="ann", reason="outages"
    )


def failures(count: int, kind: str = "timeout", error: str = "TimeoutError: partner.example") -> list[Outcome]:
    return [Outcome(False, subject=f"s{n}-{time.monotonic_ns()}", kind=kind, error=error) for n in range(count)]


def opened(name: str = "partner", *, at: float | None = None, on_hold: int = 0, observe: bool = False) -> Breaker:
    """A breaker that twenty timeouts opened."""
    at = time.time() - 60 if at is None else at
    breaker = Breaker(name)
    breaker.set_observe(observe, at)
    breaker.note([Outcome(True, n=500)], at - 600)
    outcomes = failures(20)
    for n, one in enumerate(outcomes):
        breaker.note([one], at - 2 + n / 10)
    assert breaker.state == "open", breaker.as_dict()
    breaker.tick(at + 1, on_hold)
    return breaker


def store(client: redis.Redis, breaker: Breaker, source: str = "shop", **extra: Any) -> Breaker:
    """Write a document as its workers do."""
    breaker.extra |= extra
    client.hset(keys.breakers(source), breaker.name, breaker.render())
    return breaker


def stored(client: redis.Redis, name: str = "partner", source: str = "shop") -> Breaker:
    return Breaker.parse(name, client.hget(keys.breakers(source), name))
