"""The controls of /demo/: the load, through the demo's broker, and the partner, through its own address."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import redis

from demo.temper import MODES

LOAD = "demo:load"  # a hash: `rate` jobs/s; what is not there has its default
REPORT = "demo:load:report"  # a hash that the publisher writes as it looks, and that forgets itself
DEPTHS = (
    "demo:history:depths"  # in Redrive's store: when jobs of the history failed and died, by queue, until it is read
)
DEFAULT_RATE = 5.0
HIGHEST_RATE = 100.0


class DemoUnreachable(Exception):
    """The part asked for does not answer. Nothing was changed."""


class BadWish(ValueError):
    """A number or mode that cannot be. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Load:
    rate: float  # jobs/s wished for
    published_per_s: float | None = None  # None: nothing publishes now
    pause_depth: int | None = None  # the depth at which publishing waits for the workers; None: it does not wait


@cache
def broker(url: str) -> redis.Redis:
    """The demo's broker. A call that hangs ends after two seconds."""
    return redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)


def load(broker: redis.Redis) -> Load:
    try:
        stored, report = broker.hgetall(LOAD), broker.hgetall(REPORT)
    except redis.RedisError as error:
        raise DemoUnreachable(f"The demo's broker does not answer ({type(error).__name__}).") from error
    return Load(
        rate=float(stored.get(b"rate", DEFAULT_RATE)),
        published_per_s=float(report[b"rate"]) if b"rate" in report else None,
        pause_depth=int(report[b"held_at"]) if report.get(b"held_at") else None,
    )


def set_rate(broker: redis.Redis, rate: float) -> None:
    """Ask the publisher for `rate` jobs/s; it looks every half second."""
    if not 0 <= rate <= HIGHEST_RATE:
        raise BadWish(f"The load must be 0 to {HIGHEST_RATE:.0f} jobs a second. Nothing was changed.")
    try:
        broker.hset(LOAD, "rate", rate)
    except redis.RedisError as error:
        raise DemoUnreachable(
            f"The demo's broker does not answer ({type(error).__name__}). Nothing was changed."
        ) from error


def report(broker: redis.Redis, published_per_s: float, pause_depth: int | None) -> None:
    with broker.pipeline(transaction=True) as pipe:
        pipe.hset(REPORT, mapping={"rate": published_per_s, "held_at": pause_depth or ""})
        pipe.expire(REPORT, 5)
        pipe.execute()


def partner(url: str) -> dict[str, Any]:
    """Return the state of the partner (see `temper.Temper.state`)."""
    return _request("GET", url + "/state")


def pages(url: str) -> dict[str, Any]:
    """Return the pages that reached the on-call pager (see `pager.Pager.state`)."""
    return _request("GET", url + "/pager")


def set_mode(url: str, mode: str, **numbers: float) -> dict[str, Any]:
    """Break or fix the partner, and return its state."""
    if mode not in MODES:
        raise BadWish(f"{mode!r} is not one of {', '.join(MODES)}. Nothing was changed.")
    return _request("PUT", url + "/mode", {"mode": mode, **numbers})


@cache
def _client() -> Any:
    """One a process: making one reads the machine's certificates, and the player asks twice a second."""
    import httpx

    return httpx.Client(timeout=2, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def _request(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    import httpx  # with what it brings along 5 MB, for one page of the demo

    try:
        answer = _client().request(method, url, json=body)
    except httpx.HTTPError as error:
        raise DemoUnreachable(f"The demo's partner does not answer ({type(error).__name__}).") from error
    if answer.status_code == 422:
        raise BadWish(answer.json()["error"])
    if answer.status_code != 200:
        raise DemoUnreachable(f"The demo's partner answered {answer.status_code}.")
    return answer.json()
