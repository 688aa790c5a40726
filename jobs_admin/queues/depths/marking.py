"""Dead jobs of several queues over a day, and the events on the desk in that time, limited in number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q

from jobs_admin.core.matching import matches
from jobs_admin.core.refused import NotFound
from jobs_admin.db.policy_marks import PolicyMark, policy_marks
from jobs_admin.db.statements import fetch_rows
from jobs_admin.models import Alert, DepthSample, QueueCounter, Release, Replay, ReplayItem, Rule
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.counter import HOUR
from jobs_admin.queues.depths.steps import DAY, chart_steps, epoch, moment, to_database_time
from jobs_admin.rights import alert_sight

MOST_OF_A_KIND = 20
_MOST_REPLAYS = 50  # replays
_MOST_JOBS = 200  # of a replay, checked for the queue
_LONGEST_PENDING = timedelta(days=1)

ALERT, REPLAY, POLICY, RELEASE = "alert", "replay", "policy", "release"


@dataclass(frozen=True, slots=True)
class Mark:
    at: datetime
    kind: str  # alert, replay, policy or release
    words: str
    ref: str  # number of the alert or replay, `webhooks@7`, the release's version


def marks(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    """Return the latest MOST_OF_A_KIND marks of each kind, oldest first. Raises NotFound if the source is hidden."""
    if not viewer.may(VIEWER, source):
        raise NotFound("Queue not found.")
    found = [
        *_alerts(viewer, source, queue, since, until),
        *_replays(source, queue, since, until),
        *_policies(viewer, source, queue, since, until),
        *_releases(source, since, until),
    ]
    return sorted(found, key=lambda mark: (mark.at, mark.kind, mark.ref))


def _alerts(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    # The index is on the opening time; alerts fire up to a day later.
    found = Alert.objects.filter(
        alert_sight.visible(viewer),
        source=source,
        subject__in=(queue, ""),
        opened_at__gte=since - _LONGEST_PENDING,
        opened_at__lte=until,
        fired_at__gte=since,
        fired_at__lte=until,
    ).order_by("-opened_at")
    columns = ("pk", "fired_at", "rule__name", "severity")
    return [
        Mark(at, ALERT, f"{name} ({severity})", str(pk))
        for pk, at, name, severity in found.values_list(*columns)[:MOST_OF_A_KIND]
    ]


def _replays(source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    sent = QueueCounter.objects.filter(source=source, queue=queue, step=HOUR, sent__gt=0)
    if not sent.filter(at__gt=since - timedelta(seconds=HOUR), at__lte=until).exists():
        return []
    begun = Replay.objects.filter(started_at__gte=since, started_at__lte=until).order_by("-pk")
    rows = list(begun.values_list("pk", "started_at")[:_MOST_REPLAYS])
    of_queue = replays_of_queue([pk for pk, _ in rows], source, queue)
    return [Mark(at, REPLAY, f"replay #{pk}", str(pk)) for pk, at in rows if pk in of_queue][:MOST_OF_A_KIND]


def replays_of_queue(replays: list[int], source: str, queue: str) -> set[int]:
    """Return the replays that have a job of the queue among their first and last jobs."""
    if not replays:
        return set()
    seek = (
        "SELECT {0} AS replay FROM (SELECT * FROM (SELECT failure_id FROM jobs_admin_replayitem WHERE replay_id = {0} "
        "ORDER BY n LIMIT {1}) AS one UNION SELECT * FROM (SELECT failure_id FROM jobs_admin_replayitem "
        "WHERE replay_id = {0} ORDER BY n DESC LIMIT {1}) AS other) AS few "
        "JOIN jobs_admin_failure ON jobs_admin_failure.id = few.failure_id WHERE source = %s AND queue = %s"
    )
    found: set[int] = set()
    for pk in replays:
        if fetch_rows(seek.format(int(pk), _MOST_JOBS // 2) + " LIMIT 1", [source, queue]):
            found.add(pk)
    return found


def _policies(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    return [
        Mark(mark.at, POLICY, policy_words(mark), mark.version)
        for mark in policy_marks(viewer, since, until, source=source, queue=queue)
    ]


def policy_words(mark: PolicyMark) -> str:
    """Return the text of a policy mark: `webhooks v7 in force`."""
    done = {"enforce": "in force", "observe": "observes"}.get(mark.mode, "withdrawn")
    return f"{mark.version.replace('@', ' v')} {done}"


def _releases(source: str, since: datetime, until: datetime) -> list[Mark]:
    found = Release.objects.filter(source=source, at__gte=since, at__lte=until).order_by("-at", "-pk")
    return [
        Mark(at, RELEASE, f"release {version}", version)
        for version, at in found.values_list("version", "at")[:MOST_OF_A_KIND]
    ]


_MOST_RULES = 500


@dataclass(frozen=True, slots=True)
class Threshold:
    rule: str
    source: str  # a glob
    queue: str  # a glob
    value: float
    severity: str


def thresholds(viewer: Viewer) -> list[Threshold]:
    """Return the thresholds of enabled, visible alert rules on dead jobs of entire queues, lowest first."""
    of_all = dict.fromkeys(("task", "group", "tenant"), "*")
    found = Rule.objects.filter(metric="dead", enabled=True, **of_all).order_by("threshold", "name")
    rows = found.values_list("name", "source", "queue", "threshold", "severity")[:_MOST_RULES]
    return [Threshold(*row) for row in rows if viewer.sees_any_of(row[1])]


def thresholds_of_queue(found: Sequence[Threshold], source: str, queue: str) -> list[Threshold]:
    return [one for one in found if matches(one.source, source) and matches(one.queue, queue)]


MOST_QUEUES = 5  # drawn as separate lines


@dataclass(frozen=True, slots=True)
class DeadLine:
    source: str
    queue: str
    dead: list[int | None]  # one value per step; null: unknown


@dataclass(frozen=True, slots=True)
class DeadDepth:
    """Dead jobs in each step of a period, or since the first sample if that is later."""

    step_s: int
    times: list[int]  # starts of the steps, seconds since 1970
    lines: list[DeadLine]
    thresholds: list[Threshold]  # those that one of the queues may reach
    marks: list[Mark]


def dead_depth(
    viewer: Viewer,
    queues: Sequence[tuple[str, str]],
    now: datetime,
    since: datetime | None = None,
    length: timedelta = DAY,
) -> DeadDepth:
    """Return the dead jobs of the first MOST_QUEUES of these visible queues, (source, name).

    `since`: the first sample, if it is younger than `length`.
    """
    steps = chart_steps(now, since, length)
    queues = list(queues)[:MOST_QUEUES]
    read = _read_dead(queues, steps) if queues else {}
    lines = [DeadLine(*queue, [read.get((*queue, at)) for at in steps]) for queue in queues]
    # A queue that is never sampled keeps its line, for its current number.
    lines = [line for line in lines if any(line.dead) or all(dead is None for dead in line.dead)]
    levels = thresholds(viewer) if lines else []
    reached = {one for line in lines for one in thresholds_of_queue(levels, line.source, line.queue)}
    marks = desk_marks(viewer, moment(steps[0]), now) if lines else []
    return DeadDepth(steps.step, list(steps), lines, [one for one in levels if one in reached], marks)


def _read_dead(queues: Sequence[tuple[str, str]], steps: range) -> dict[tuple[str, str, int], int | None]:
    arms = " UNION ALL ".join(
        [
            f"SELECT source, queue, {epoch('at')}, dead FROM {DepthSample._meta.db_table} "
            "WHERE source = %s AND queue = %s AND step = %s AND at >= %s"
        ]
        * len(queues)
    )
    values = [value for source, queue in queues for value in (source, queue, steps.step, to_database_time(steps[0]))]
    return {(source, queue, at): dead for source, queue, at, dead in fetch_rows(arms, values)}  # type: ignore[misc]


def desk_marks(viewer: Viewer, since: datetime, until: datetime) -> list[Mark]:
    """Return the latest MOST_OF_A_KIND marks of each kind on all visible sources, oldest first."""
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
