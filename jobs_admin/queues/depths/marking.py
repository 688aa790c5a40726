"""What happened to a queue that its depth may tell of: alerts, replays, changes of policies, releases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs_admin.db.light import fetched
from jobs_admin.db.policy_marks import PolicyMark, policy_marks
from jobs_admin.models import Alert, QueueCounter, Release, Replay
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.counter import HOUR
from jobs_admin.queues.depths.reading import NoSuchQueue
from jobs_admin.rights import alert_sight

MOST_OF_A_KIND = 20
_LOOKED_AT = 50  # replays
_JOBS_LOOKED_AT = 200  # of a replay: whether one of them is of the queue
_LONGEST_PENDING = timedelta(days=1)

ALERT, REPLAY, POLICY, RELEASE = "alert", "replay", "policy", "release"


@dataclass(frozen=True, slots=True)
class Mark:
    at: datetime
    kind: str  # alert, replay, policy or release
    words: str
    ref: str  # number of the alert or replay, `webhooks@7`, the release's version


def marks(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    """The newest MOST_OF_A_KIND of each kind, the oldest first. Raises NoSuchQueue where the source is out of sight."""
    if not viewer.may(VIEWER, source):
        raise NoSuchQueue
    found = [
        *_alerts(viewer, source, queue, since, until),
        *_replays(source, queue, since, until),
        *_policies(viewer, source, queue, since, until),
        *_releases(source, since, until),
    ]
    return sorted(found, key=lambda mark: (mark.at, mark.kind, mark.ref))


def _alerts(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    # The index knows when they opened; they fire up to a day later.
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
    rows = list(begun.values_list("pk", "started_at")[:_LOOKED_AT])
    held = of_queue([pk for pk, _ in rows], source, queue)
    return [Mark(at, REPLAY, f"replay #{pk}", str(pk)) for pk, at in rows if pk in held][:MOST_OF_A_KIND]


def of_queue(replays: list[int], source: str, queue: str) -> set[int]:
    """Those of the replays that have a job of the queue among their first and their last ones."""
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
        if fetched(seek.format(int(pk), _JOBS_LOOKED_AT // 2) + " LIMIT 1", [source, queue]):
            found.add(pk)
    return found


def _policies(viewer: Viewer, source: str, queue: str, since: datetime, until: datetime) -> list[Mark]:
    return [
        Mark(mark.at, POLICY, policy_words(mark), mark.version)
        for mark in policy_marks(viewer, since, until, source=source, queue=queue)
    ]


def policy_words(mark: PolicyMark) -> str:
    """`webhooks v7 in force`"""
    done = {"enforce": "in force", "observe": "observes"}.get(mark.mode, "withdrawn")
    return f"{mark.version.replace('@', ' v')} {done}"


def _releases(source: str, since: datetime, until: datetime) -> list[Mark]:
    found = Release.objects.filter(source=source, at__gte=since, at__lte=until).order_by("-at", "-pk")
    return [
        Mark(at, RELEASE, f"release {version}", version)
        for version, at in found.values_list("version", "at")[:MOST_OF_A_KIND]
    ]
