"""Calls that wait for their answer: what a busy machine does not answer in a tenth of a second is no part of most tests."""

from __future__ import annotations

import time

from jobs_admin.worker.calls import Calls, Script

_ASKS = Script("return 1")


def patient(url: str, kind: type[Calls] = Calls) -> Calls:
    """With a connection to a Redis that is there."""
    calls = kind(url, "a test", timeout_s=10)
    ends = time.monotonic() + 30
    while calls.run(_ASKS, [], []) is None:
        assert time.monotonic() < ends, "no connection"
        time.sleep(0.02)
    return calls
