"""A desk's knowledge of a service before a replay, and when the replay has ended."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from contextlib import suppress

COLD, WARM, WARMING_S = 10.0, 60.0, 60.0  # requests/s that it carries when it is back, and so much later


def known_s(jobs: int, cold: float = COLD, warm: float = WARM) -> float:
    """Seconds until all are through where the capacity is known at every moment and used to the full."""
    growth = (warm - cold) / WARMING_S
    warmed = (cold + warm) / 2 * WARMING_S
    if jobs > warmed:
        return WARMING_S + (jobs - warmed) / warm
    return (math.sqrt(cold**2 + 2 * growth * jobs) - cold) / growth


def end(process: subprocess.Popen[bytes]) -> None:
    """In order, and then none of its group is left."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
