"""Waiting for what another process or thread does: as long as something still happens, and no longer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

EVERY_S = 0.02


def wait_until(
    reached: Callable[[], Any],
    what: str = "it",
    *,
    progress: Callable[[], object] | None = None,
    within_s: float = 90,
    every_s: float = EVERY_S,
    meanwhile: Callable[[], object] | None = None,
    process: subprocess.Popen[Any] | None = None,
    text: Callable[[], object] | None = None,
) -> Any:
    """Return the first true answer of `reached`.

    `within_s` counts from the latest change of `progress()`: what goes on, however slowly, is waited for. `meanwhile` is
    called each round in place of a pause of `every_s`. Raises AssertionError, with `text()`, when nothing has changed for
    so long, and at once when `process` has ended and `reached` is still false.
    """
    seen, since = None, time.monotonic()
    while not (answer := reached()):
        ended = process is not None and process.poll() is not None
        if ended and (answer := reached()):  # what it did last
            return answer
        if progress is not None and (now := progress()) != seen:
            seen, since = now, time.monotonic()
        if ended or time.monotonic() - since > within_s:
            why = f"the process ended ({process.returncode})" if ended else f"nothing changed for {within_s:g} s"
            raise AssertionError(f"waited for {what}: {why}\n{'' if text is None else str(text())[-4000:]}")
        if meanwhile is None:
            time.sleep(every_s)
        else:
            meanwhile()
    return answer
