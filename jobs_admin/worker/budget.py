"""How many retries a minute may be made: one bucket for all workers of a source, and for all policies that name it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from jobs_admin.core import keys
from jobs_admin.worker.calls import Calls, Script

SCRIPT = Script((Path(__file__).parent / "budget.lua").read_text())
KEPT_MS = 8 * 86_400_000  # at least, and until it is full again


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of one source. In any window of W seconds at most burst + per_minute × W / 60 are granted."""

    calls: Calls
    source: str

    def spend(self, name: str, per_minute: float, burst: int) -> bool | None:
        """Whether one retry may be made, which is then spent. None: the store did not answer, and nothing is known."""
        answer = self.calls.run(SCRIPT, [keys.budget(self.source)], arguments(name, per_minute, burst, spent=1))
        return None if answer is None else bool(answer[0])


def arguments(name: str, per_minute: float, burst: int, *, spent: int = 0) -> list[str | int]:
    """What the script is given, also by those who only look (`spent` 0); it answers [granted, left]."""
    # Rounded up: whole microseconds that are a little too long never grant one too many.
    interval = math.ceil(60_000_000 / per_minute) if per_minute > 0 else 0
    return [name, interval, burst, spent, KEPT_MS]
