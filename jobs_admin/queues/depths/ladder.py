"""In which steps of time depths are kept, and for how long: each rung is folded from the one below it.

Between 10 s, a minute and an hour there are further rungs, each three to six times as long as the one before: with them a
picture of any span reads at most as many rows as it has points. They cost a sixth of the disk.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs_admin import config


@dataclass(frozen=True, slots=True)
class Rung:
    step_s: int
    longest: timedelta | None  # None: as long as `depths` of REDRIVE_KEEP


LOOK_S = 10
LADDER = (
    Rung(LOOK_S, timedelta(days=1)),
    Rung(60, timedelta(days=14)),
    Rung(300, timedelta(days=14)),
    Rung(900, timedelta(days=14)),
    Rung(3_600, None),
    Rung(21_600, None),
    Rung(86_400, None),
)
FOLDS = tuple((low.step_s, high.step_s) for low, high in itertools.pairwise(LADDER))

# A look may be written so long after its moment: what was folded of that time is folded again until then.
LATE_S = 120


def kept() -> dict[int, timedelta | None]:
    """How long the rows of each step stay; None is for ever."""
    longest = config.keep()["depths"]
    return {
        rung.step_s: longest if rung.longest is None else min(rung.longest, longest or rung.longest) for rung in LADDER
    }


def start_of(seconds: int, step_s: int) -> int:
    return seconds - seconds % step_s


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
