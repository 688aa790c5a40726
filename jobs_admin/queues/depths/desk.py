"""Dead jobs of several queues over a day, and what happened on the desk meanwhile: bounded, whatever there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from jobs_admin.db.light import fetched
from jobs_admin.db.policy_marks import policy_marks
from jobs_admin.models import Alert, DepthSample, Release, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.queues.depths.ladder import start_of
from jobs_admin.queues.depths.marking import ALERT, MOST_OF_A_KIND, POLICY, RELEASE, REPLAY, Mark, policy_words
from jobs_admin.queues.depths.sql import epoch, told
from jobs_admin.queues.depths.thresholds import Threshold, of_queue, thresholds
from jobs_admin.rights import alert_sight

STEP_S, SPAN = 900, timedelta(days=1)
MOST_QUEUES = 5  # told apart


@dataclass(frozen=True, slots=True)
class DeadLine:
    source: str
    queue: str
    dead: list[int | None]  # one a step; null: not known


@dataclass(frozen=True, slots=True)
class DeadDepth:
    """Dead jobs in each quarter of an hour of the last day."""

    times: list[int]  # the steps' beginnings, seconds since 1970
    lines: list[DeadLine]
    thresholds: list[Threshold]  # that one of the queues may reach
    marks: list[Mark]


def dead_depth(viewer: Viewer, queues: Sequence[tuple[str, str]], now: datetime) -> DeadDepth:
    """Of the first MOST_QUEUES of these queues, (source, name), which the viewer sees."""
    last = start_of(int(now.timestamp()), STEP_S)
    first = start_of(last - round(SPAN.total_seconds()), STEP_S) + STEP_S
    times = list(range(first, last + 1, STEP_S))
    queues = list(queues)[:MOST_QUEUES]
    read = _read(queues, first) if queues else {}
    lines = [DeadLine(*queue, [read.get((*queue, at)) for at in times]) for queue in queues]
    lines = [line for line in lines if any(line.dead)]
    levels = thresholds(viewer) if lines else []
    reached = {one for line in lines for one in of_queue(levels, line.source, line.queue)}
    since = now - SPAN
    marks = desk_marks(viewer, since, now) if lines else []
    return DeadDepth(times, lines, [one for one in levels if one in reached], marks)


def _read(queues: Sequence[tuple[str, str]], first: int) -> dict[tuple[str, str, int], int | None]:
    arms = " UNION ALL ".join(
        [
            f"SELECT source, queue, {epoch('at')}, dead FROM {DepthSample._meta.db_table} "
            "WHERE source = %s AND queue = %s AND step = %s AND at >= %s"
        ]
        * len(queues)
    )
    values = [value for source, queue in queues for value in (source, queue, STEP_S, told(first))]
    return {(source, queue, at): dead for source, queue, at, dead in fetched(arms, values)}  # type: ignore[misc]


def desk_marks(viewer: Viewer, since: datetime, until: datetime) -> list[Mark]:
    """The newest MOST_OF_A_KIND of each kind on all sources that the viewer sees, the oldest first."""
    seen = viewer.sources()
    mine = Q() if seen is None else Q(source__in=seen)
    within = {"fired_at__gte": since, "fired_at__lte": until, "opened_at__gte": since - timedelta(days=1)}
    alerts = Alert.objects.filter(alert_sight.visible(viewer), **within).order_by("-opened_at")
    replays = Replay.objects.filter(started_at__gte=since, started_at__lte=until).order_by("-pk")
    if seen is not None:
        replays = replays.filter(Exists(ReplayItem.objects.filter(replay=OuterRef("pk"), failure__source__in=seen)))
    releases = Release.objects.filter(mine, at__gte=since, at__lte=until).order_by("-at", "-pk")
    found = [
        Mark(at, ALERT, f"{name}: {subject or source}", str(pk))
        for pk, at, name, subject, source in alerts.values_list("pk", "fired_at", "rule__name", "subject", "source")[
            :MOST_OF_A_KIND
        ]
    ]
    found += [
        Mark(at, REPLAY, f"replay #{pk}", str(pk))
        for pk, at in replays.values_list("pk", "started_at")[:MOST_OF_A_KIND]
    ]
    found += [Mark(mark.at, POLICY, policy_words(mark), mark.version) for mark in policy_marks(viewer, since, until)]
    found += [
        Mark(at, RELEASE, f"release {version}", version)
        for version, at in releases.values_list("version", "at")[:MOST_OF_A_KIND]
    ]
    return sorted(found, key=lambda mark: (mark.at, mark.kind, mark.ref))
