"""Calls that wait for their answer: what a busy machine does not answer in a tenth of a second is no part of most tests."""

from __future__ import annotations

import contextlib
import time

import redis

from jobs_admin.worker.calls import Calls, Script
from jobs_admin.worker.store import Store
from tests.kit.waiting import wait_until

_PROBE = Script("return 1")


def patient(url: str, kind: type[Calls] = Calls) -> Calls:
    """With a connection to a Redis that is there."""
    calls = kind(url, "a test", timeout_s=10)
    wait_until(lambda: calls.run(_PROBE, [], []) is not None, "a connection")
    return calls


def dialled(store: Store) -> Store:
    """With a line to a store that is there."""
    ends = time.monotonic() + 30
    while store._line is None:
        with contextlib.suppress(redis.RedisError):
            store.dial()
        assert time.monotonic() < ends, "no line"
        time.sleep(0.02)
    return store
