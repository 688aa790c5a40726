"""Waiting for what another process or thread does: as long as something still happens, and no longer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

_LONGEST_PAUSE_S = 0.05
_LONGEST_REST_S = 0.5


def wait_until(
    reached: Callable[[], Any],
    what: str = "it",
    *,
    progress: Callable[[], object] | None = None,
    within_s: float = 90,
    every_s: float | None = None,
    meanwhile: Callable[[], object] | None = None,
    process: subprocess.Popen[Any] | None = None,
    text: Callable[[], object] | None = None,
) -> Any:
    """Return the first true answer of `reached`.

    `within_s` counts from the latest change of `progress()`: what goes on, however slowly, is waited for. The pauses are of
    `every_s`, or grow with the wait: what comes at once is seen at once, and what takes long is not held up by looks, which
    have a third of the time at most.
    `meanwhile` is called each round in place of a pause. Raises AssertionError, with `text()`, when nothing has changed
    for so long, and at once when `process` has ended and `reached` is still false.
    """
    began = since = time.monotonic()
    seen = None
    last = time.monotonic()
    while not (answer := reached()):
        took = time.monotonic() - last
        ended = process is not None and process.poll() is not None
        if ended and (answer := reached()):  # what it did last
            return answer
        if progress is not None and (now := progress()) != seen:
            seen, since = now, time.monotonic()
        if ended or time.monotonic() - since > within_s:
            why = f"the process ended ({process.returncode})" if ended else f"nothing changed for {within_s:g} s"
            raise AssertionError(f"waited for {what}: {why}\n{'' if text is None else str(text())[-4000:]}")
        if meanwhile is None:
            usual = min(_LONGEST_PAUSE_S, max(0.005, (time.monotonic() - began) / 10))
            time.sleep(every_s or max(usual, min(_LONGEST_REST_S, 2 * took)))
        else:
            meanwhile()
        last = time.monotonic()
    return answer
