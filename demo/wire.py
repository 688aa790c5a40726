"""The shop's HTTP calls to its partner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

PATIENCE_S = 2.0


class RateLimited(Exception):
    """The partner asked us to come back later. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.args[0]}; come back in {self.retry_after:g} s"


_called: str | None = None  # in place of the partner that the environment names


@contextmanager
def calling(url: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Call another partner for the time of the block, with another patience (this process only)."""
    global _called
    was, _called = _called, url
    _client().timeout = patience_s
    try:
        yield
    finally:
        _called, _client().timeout = was, PATIENCE_S


@contextmanager
def waiting(read_s: float) -> Iterator[None]:
    """Wait no longer than that for an answer, for the time of the block; for a connection as ever."""
    was, _client().timeout = _client().timeout, httpx.Timeout(PATIENCE_S, read=read_s)
    try:
        yield
    finally:
        _client().timeout = was


def partner_url() -> str:
    if _called is not None:
        return _called
    port = os.environ.get("REDRIVE_DEMO_PARTNER_PORT")
    return os.environ.get("REDRIVE_DEMO_PARTNER_URL") or f"http://127.0.0.1:{port or 9}"


@cache
def _client() -> httpx.Client:
    # One a process: making one reads the machine's certificates. No kept connections, and no proxy from the
    # environment: the partner is on this machine.
    return httpx.Client(
        timeout=PATIENCE_S, trust_env=False, follow_redirects=True, limits=httpx.Limits(max_keepalive_connections=0)
    )


def post(path: str, body: dict[str, Any], *, base: str | None = None) -> httpx.Response:
    """The partner's answer. Raises RateLimited, and httpx's errors for refusals and broken connections."""
    answer = _client().post((base or partner_url()) + path, json=body)
    if answer.status_code == 429:
        raise RateLimited(f"{path} takes no more requests now", float(answer.headers.get("Retry-After", 1)))
    answer.raise_for_status()
    return answer
