"""Which sources tell how a replayed job ended; where one does not, what becomes of a job, and which pace cannot be."""

from __future__ import annotations

from collections.abc import Iterable

from jobs_admin.core.pacing import CAREFUL, Pace
from jobs_admin.core.refused import Refused
from jobs_admin.db import abilities
from jobs_admin.models import Replay


def are_reported(source: str) -> bool:
    can = abilities.capabilities(source)
    return can is None or can.outcomes  # it was asked to when it was sent there


def untold(sources: Iterable[str]) -> list[str]:
    """Those of the sources that cannot tell how a job ended: there it stays `sent`."""
    return [name for name in sources if not are_reported(name)]


def sent_for_good(replay: Replay) -> str:
    """Why a failure is gone that was sent where nobody tells how a job ends."""
    return f"sent in replay #{replay.pk}: its source does not report how a job ends"


def refuse_blind(pace: Pace, sources: Iterable[str]) -> None:
    """Raises Refused where a pace would wait for news that never come."""
    if not (names := untold(sources)):
        return
    waits = {
        "pace": pace.style == CAREFUL,
        "pace.canary": pace.canary,
        "pace.ramp": pace.ramp,
        "pace.in_flight": pace.in_flight,
        "pace.per_key.concurrency": pace.per_key and pace.per_key.concurrency,
    }
    for field, asked in waits.items():
        if asked:
            what = "careful pace" if field == "pace" else field.removeprefix("pace.")
            raise Refused(
                "bad_pace",
                f"{names[0]} does not report how its jobs end, so there is no {what} for them. Nothing was changed. "
                f"Choose steady with a rate, or leave them out: -source:{names[0]}.",
                field=field,
            )
