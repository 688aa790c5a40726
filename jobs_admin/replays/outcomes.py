"""Reporting of outcomes: sources that do not report how a job ends, paces that need it, and queues with refused
reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from jobs_admin.core.pacing import CAREFUL, Pace
from jobs_admin.core.refused import Refused
from jobs_admin.db import abilities
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.queues import refused_reports
from jobs_admin.replays.rights import sources_of

_MOST_ITEMS = 500  # items of each state whose queues are read


def refused_report_warnings(viewer: Viewer, replays: Sequence[Replay], now: datetime) -> dict[int, list[str]]:
    """Return replay id -> a sentence for each visible source that refuses reports on which its jobs wait.

    Those of a draft are in its preview.
    """
    waiting = [one for one in replays if one.planned or one.sent or one.running or one.uncertain]
    if not waiting:
        return {}
    refused = [one for one in refused_reports.find(now) if viewer.may(VIEWER, one.source)]
    if not refused:
        return {}
    found = {}
    for replay in waiting:
        places = _unsettled_queues(replay)
        hit = [one for one in refused if any(one.source == source and one.concerns(queue) for source, queue in places)]
        found[replay.pk] = [one.sentence for one in hit]
    return found


def _unsettled_queues(replay: Replay) -> set[tuple[str, str | None]]:
    """Return source and queue of its jobs that are not settled. None: the queue is unknown."""
    found: set[tuple[str, str]] = set()
    for state in OPEN_ITEM:
        items = ReplayItem.objects.filter(replay=replay, state=state).order_by("n")
        found |= set(items.values_list("failure__source", "failure__queue")[:_MOST_ITEMS])
    if not found:  # its jobs are frozen and have no items yet
        return {(source, replay.to_queue or None) for source in sources_of(replay)}
    return {(source, replay.to_queue or queue) for source, queue in found}


def are_reported(source: str) -> bool:
    can = abilities.capabilities(source)
    return can is None or can.outcomes  # it was required to when the job was sent


def unreported_sources(sources: Iterable[str]) -> list[str]:
    """Return those of the sources that do not report how a job ends: there it stays `sent`."""
    return [name for name in sources if not are_reported(name)]


def gone_reason(replay: Replay) -> str:
    """Return the reason of a failure that is gone because its source does not report how the sent job ends."""
    return f"sent in replay #{replay.pk}: its source does not report how a job ends"


def refuse_blind_pace(pace: Pace, sources: Iterable[str]) -> None:
    """Raise Refused if the pace would wait for outcomes that are never reported."""
    if not (names := unreported_sources(sources)):
        return
    waits = {
        "pace": pace.style == CAREFUL,
        "pace.canary": pace.canary,
        "pace.ramp": pace.ramp,
        "pace.in_flight": pace.in_flight,
        "pace.per_key.concurrency": pace.per_key and pace.per_key.concurrency,
    }
    for field, value in waits.items():
        if value:
            what = "careful pace" if field == "pace" else field.removeprefix("pace.")
            raise Refused(
                "bad_pace",
                f"{names[0]} does not report how its jobs end, so there is no {what} for them. Nothing was changed. "
                f"Choose steady with a rate, or leave them out: -source:{names[0]}.",
                field=field,
            )
