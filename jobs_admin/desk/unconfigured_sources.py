"""Sources that report but are not configured: usually, install() in their workers has another name than the desk.

An unconfigured source is merged into a configured one, which makes its workers' failures replayable.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from jobs_admin import config, trust
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit, statements
from jobs_admin.db.authorizing import authorize
from jobs_admin.db.turns import lock_writers
from jobs_admin.fleet import worker_store
from jobs_admin.models import (
    DepthSample,
    Failure,
    FailureCount,
    GroupSource,
    QueueCounter,
    Release,
    ReplayItem,
    Source,
    Worker,
)
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.models.source import ALIVE_S

MOST_MOVED = 50_000  # failures, in one transaction
_NUMBERS = ("started", "succeeded", "failed", "retried", "recovered", "sent", "busy_s")


def targets() -> list[str]:
    """Return the configured sources to which such workers may belong: those whose workers have a guard."""
    found = [one for one in config.sources().values() if one.system.is_guarded]
    return [one.name for one in found if not one.is_demo] or [one.name for one in found]


def finding(source: str) -> dict[str, str]:
    """Return the overview's finding: `reason`, preceded by the name."""
    text = reason(source).removeprefix(f"{source} is ")
    return {"source": source, "id": "not-configured", "severity": "high", "text": text, "fix": fix(source)}


def reason(source: str) -> str:
    """Return why nothing can be sent to the source."""
    return f"{source} is not configured on this desk: its jobs cannot be replayed."


def fix(source: str) -> str:
    """Return the two possible fixes: another name in the workers, or its broker on the desk."""
    known = targets()
    setting = "REDRIVE_SOURCES" if config.setting("SOURCES") else "CELERY_BROKER_URL or REDRIVE_SOURCES"
    if not known:
        return f"Set {setting} to the broker of {source}."
    one, call = (
        (known[0], f'"{known[0]}"')
        if len(known) == 1
        else (f"a configured source ({', '.join(known[:5])})", "its name")
    )
    return (
        f"If its workers belong to {one}, set source={call} in their install(), restart them, and merge {source} "
        f"under Sources. Otherwise add its broker to {setting}."
    )


@dataclass(frozen=True, slots=True)
class Merged:
    moved: int  # failures
    left: int  # reported under both names: they stay, and so does the source

    def confirmation(self, source: str, into: str) -> str:
        text = f"{self.moved:,} failure{'' if self.moved == 1 else 's'} of {source} moved to {into}."
        if not self.left:
            return f"{text} The source {source} is removed."
        are = "failure was" if self.left == 1 else "failures were"
        return f"{text} {self.left:,} {are} reported under both names and stay: discard them under {source}."


def merge(viewer: Viewer, source: str, into: str, now: datetime | None = None) -> Merged:
    """Move the failures and counts of a source into another, and delete it. Raises Refused."""
    now = now or timezone.now()
    message = "This needs an admin of {where}. Nothing was changed."
    authorize(viewer, ADMIN, EVERY_SOURCE, "source.merge", f"source:{source}", message=message, noted_at=[source])
    with transaction.atomic():
        lock_writers()
        row = Source.objects.select_for_update().filter(name=source).first()
        if why := _find_reason(row, source, into, now):
            raise Refused("wrong_state", f"{why} Nothing was changed.")
        failures = Failure.objects.filter(source=source)
        both = Failure.objects.filter(source=into, queue=OuterRef("queue"), first_job_id=OuterRef("first_job_id"))
        moved = failures.exclude(Exists(both)).update(source=into)
        left = failures.count()
        _move_counts(source, into)
        _move_groups(GroupSource.objects.filter(source=source), into)
        known = Release.objects.filter(source=into).values("version")
        Release.objects.filter(source=source).exclude(version__in=known).update(source=into)
        workers = list(Worker.objects.filter(source=source).values_list("source", "name"))
        if not left:
            for kind in (Release, Worker, DepthSample, FailureCount):
                kind.objects.filter(source=source).delete()
            Source.objects.filter(name=source).delete()
        after = {"into": into, "failures": moved, "left": left}
        audit.record(viewer, "source.merge", f"source:{source}", source=into, after=after)
    # Otherwise the last heartbeats of its workers would register the source again.
    with suppress(redis.RedisError, config.BadConfiguration):
        worker_store.forget_fields(config.store(), "workers", workers)
    trust.forget()
    return Merged(moved, left)


def _find_reason(row: Source | None, source: str, into: str, now: datetime) -> str:
    """Return why the source cannot be merged; "" if it can."""
    if row is None:
        return f"The desk has no source {source}."
    if source in config.sources():
        return f"{source} is configured here."
    if into not in targets():
        return f"{into} is not a configured source whose workers have the guard."
    alive = Worker.objects.filter(source=source, seen_at__gte=now - timedelta(seconds=ALIVE_S))
    if names := list(alive.order_by("name").values_list("name", flat=True)[:3]):
        return f"Workers still report as {source}: {', '.join(names)}. Set source={into!r} in their install() and restart them."
    if ReplayItem.objects.filter(failure__source=source, state__in=OPEN_ITEM).exists():
        return f"A replay has jobs of {source}: cancel the replay first."
    if Failure.objects.filter(source=source).order_by()[: MOST_MOVED + 1].count() > MOST_MOVED:
        return f"{source} has more than {MOST_MOVED:,} failures, too many to move at once: configure {source} instead."
    return ""


def _move_counts(source: str, into: str) -> None:
    columns = ("source", "queue", "step", "at", *_NUMBERS)
    old = QueueCounter.objects.filter(source=source)
    rows = [(into, *row) for row in old.order_by("queue", "step", "at").values_list(*columns[1:])]
    statements.insert(QueueCounter, columns, rows, conflict=statements.add(QueueCounter, columns, key=columns[:4]))
    old.delete()


def _move_groups(parts: QuerySet[GroupSource], into: str) -> None:
    for part in parts:
        there = GroupSource.objects.filter(group=part.group_id, source=into).first()
        if there is None:
            GroupSource.objects.filter(pk=part.pk).update(source=into)
            continue
        if part.first_seen < there.first_seen:
            there.first_seen, there.first_release = part.first_seen, part.first_release
        there.last_seen = max(there.last_seen, part.last_seen)
        there.save(update_fields=["first_seen", "first_release", "last_seen"])
        part.delete()
