"""Samples of queues' depths, and their roll-up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobs_admin.core import policy
from jobs_admin.models import Alert, DepthSample, PolicyVersion, QueueCounter, Replay, ReplayItem, Rule
from jobs_admin.queues import depths
from tests.kit.overview import bury

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)


def build_sample(at: datetime, dead: int | None = 0, queue: str = "emails", **changes) -> DepthSample:
    fields = {"waiting": dead, "dead": dead, "failed_per_min": 1.0, "succeeded_per_min": 2.0} | changes
    return DepthSample(source="shop", queue=queue, at=at, **fields)


def create_samples(since: datetime, count: int, queue: str = "emails", every_s: int = 10) -> None:
    at = [since + timedelta(seconds=n * every_s) for n in range(count)]
    DepthSample.objects.bulk_create(
        [build_sample(moment, n % 97, queue) for n, moment in enumerate(at)], ignore_conflicts=True
    )


def roll(now: datetime = NOW) -> None:
    while depths.roll_up(now):
        pass


def everything() -> set[tuple]:
    return set(
        DepthSample.objects.exclude(step=10).values_list("queue", "step", "at", "looks", "dead", "dead_min", "dead_max")
    )


def folded_by_hand() -> list[tuple]:
    """The values of all steps for the stored samples, computed in the plainest way."""
    samples = DepthSample.objects.filter(step=10).order_by("at").values_list("queue", "at", "dead")
    found: dict[tuple, list[int]] = {}
    for queue, at, dead in samples:
        for step in (60, 300, 900, 3600, 21_600, 86_400):
            begins = datetime.fromtimestamp(at.timestamp() // step * step, UTC)
            found.setdefault((queue, step, begins), []).append(dead)
    return [
        (*key, len(v), v[-1], None if min(v) == v[-1] else min(v), None if max(v) == v[-1] else max(v))
        for key, v in found.items()
    ]


HOUR = timedelta(hours=1)


def alert(subject="emails", source="shop", fired_at=NOW - HOUR / 2, **changes) -> Alert:
    rule = Rule.objects.get_or_create(name="Growing", defaults={"metric": "dead", "threshold": 1})[0]
    fields = {"state": "resolved", "severity": "warning", "value": 5, "threshold": 1, "opened_at": NOW - HOUR / 2}
    return Alert.objects.create(rule=rule, source=source, subject=subject, fired_at=fired_at, **fields | changes)


def publish(source="*", queue="*", name="p", task="*") -> None:
    match = {"source": source, "queue": queue, "task": task}
    document = policy.document(policy.parse({"name": name, "match": match, "max_attempts": 3}))
    PolicyVersion.objects.create(document=document, version=1, published_at=NOW - HOUR / 4, published_by="ann")


def replay(queue="emails", started_at=NOW - HOUR / 3) -> Replay:
    (job,) = bury(1, queue=queue)
    made = Replay.objects.create(state="done", scope_max_id=job.pk, total=1, actor="ann", started_at=started_at)
    ReplayItem.objects.create(replay=made, n=1, failure=job, run=2, state="succeeded")
    at = started_at.replace(minute=0, second=0)
    QueueCounter.objects.get_or_create(source="shop", queue=queue, step=3600, at=at, defaults={"sent": 1})
    return made
