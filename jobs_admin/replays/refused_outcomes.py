"""Replays with jobs on queues of which the workers' reports are refused: the outcome of these jobs stays unknown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.queues import refused_reports
from jobs_admin.replays.rights import sources_of

_MOST = 500  # items of each state whose queues are read


def warnings(viewer: Viewer, replays: Sequence[Replay], now: datetime) -> dict[int, list[str]]:
    """Replay id -> a sentence for each source that the viewer sees and that refuses reports on which its jobs wait.

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
        places = _places(replay)
        hit = [one for one in refused if any(one.source == source and one.concerns(queue) for source, queue in places)]
        found[replay.pk] = [one.sentence for one in hit]
    return found


def _places(replay: Replay) -> set[tuple[str, str | None]]:
    """Source and queue of its jobs that are not settled. None: the queue is not known."""
    found: set[tuple[str, str]] = set()
    for state in OPEN_ITEM:
        items = ReplayItem.objects.filter(replay=replay, state=state).order_by("n")
        found |= set(items.values_list("failure__source", "failure__queue")[:_MOST])
    if not found:  # its jobs are frozen and have no items yet
        return {(source, replay.to_queue or None) for source in sources_of(replay)}
    return {(source, replay.to_queue or queue) for source, queue in found}
