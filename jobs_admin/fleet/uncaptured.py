"""Failures that no worker could capture: their number by host and start time. No other number includes them.

Only known sources are read (`trust`): these counts are unsigned, and an invented source would otherwise appear on the
desk. Workers report each episode under a name of its own and always with its total (`worker/dropped.py`), so reading it
twice, or after a restart of its worker, adds nothing. An episode is a row of `Total` with the labels source, host, name
and start.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Sum

from jobs_admin import config, trust
from jobs_admin.core import keys, untrusted
from jobs_admin.fleet import worker_store
from jobs_admin.models import Total
from jobs_admin.models.access import Viewer

METRIC = "redrive_uncaptured_reports_total"
SHOWN_FOR = timedelta(days=7)
_APART_FOR = timedelta(days=30)  # older episodes are summed up per source
_READ_AT_ONCE = 1_000
_FINISHED_AFTER = timedelta(days=1)  # an episode that has not grown for this long is read and deleted from the store


@dataclass(frozen=True, slots=True)
class Uncaptured:
    source: str
    host: str
    count: int
    since: datetime  # by the worker's clock


def record_counts(now: datetime) -> None:
    """Read the reports of workers of known sources. Raises redis.RedisError."""
    store, known = config.store(), trust.current().sources
    by_source: dict[str, dict[str, bytes]] = defaultdict(dict)
    # Deleted episodes make room for the rest.
    for (source, name), text in worker_store.fields(store, "dropped", known, _READ_AT_ONCE).items():
        by_source[source][name] = text
    for source, episodes in by_source.items():
        if over := _record_source(source, episodes, now):
            worker_store.forget_fields(store, "dropped", [(source, name) for name in over])
    shared = worker_store.shared_fields(store, "dropped", _READ_AT_ONCE)
    forget = []
    for field, text in shared.items():
        source = untrusted.text(untrusted.read_object(text).get("source"), 63)
        name = field.decode("ascii", "replace")
        if source not in known or _record_source(source, {name: text}, now):
            forget.append(field)
        by_source[source][name] = text
    if forget:
        store.hdel(keys.shared("dropped"), *forget)
    if all(len(episodes) < _READ_AT_ONCE for episodes in (*by_source.values(), shared)):
        # Otherwise there may be more episodes, which would be summed up and then read again.
        _sum_up(now, {name[:32] for episodes in by_source.values() for name in episodes})


def _record_source(source: str, episodes: dict[str, bytes], now: datetime) -> list[str]:
    """Read the episodes of a source. Return those that need not be read again."""
    over = []
    for name, text in episodes.items():
        episode = _parse_episode(text)
        if episode is not None:
            _record_episode(name[:32], source, *episode[:3])
        if episode is None or now.timestamp() - episode[3] > _FINISHED_AFTER.total_seconds():
            over.append(name)
    return over


def _record_episode(name: str, source: str, host: str, count: int, since: str) -> None:
    labels = {"metric": METRIC, "source": source, "queue": host, "task": name, "error": since}
    # The first writer creates the row; a number smaller than the stored one is an older report.
    if Total.objects.filter(**labels, value__lt=count).update(value=count):
        return
    if not Total.objects.filter(**labels).exists():
        Total.objects.bulk_create([Total(**labels, value=count)], ignore_conflicts=True)


def _sum_up(now: datetime, known: set[str]) -> None:
    """Sum up old episodes, except those still in the store, which would be read again."""
    rows = Total.objects.filter(metric=METRIC, error__gt="", error__lt=_sortable_time(now - _APART_FOR)).exclude(
        task__in=known
    )
    oldest = list(rows.order_by("pk").values_list("pk", "source", "value")[:500])
    if not oldest:
        return
    with transaction.atomic():
        sums: dict[str, float] = defaultdict(float)
        for pk, source, value in oldest:
            # Individually and counted: another process may do the same.
            if Total.objects.filter(pk=pk).delete()[0]:
                sums[source] += value
        for source, value in sums.items():
            row, _ = Total.objects.get_or_create(metric=METRIC, source=source, queue="", task="", error="")
            Total.objects.filter(pk=row.pk).update(value=F("value") + value)


def _parse_episode(text: bytes) -> tuple[str, int, str, float] | None:
    """Return host, number, start time (ISO) and last time (seconds since 1970); None if unreadable."""
    episode = untrusted.read_object(text)
    host = untrusted.text(episode.get("host"), 200)
    count, last = untrusted.number(episode.get("count")), untrusted.number(episode.get("last"))
    since = untrusted.moment(episode.get("since"))
    if count is None or not 1 <= count < 2**53 or last is None or since is None:
        return None
    return host, int(count), _sortable_time(since), last


def _sortable_time(at: datetime) -> str:
    """Return the time as text that sorts chronologically."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def recent_counts(viewer: Viewer, now: datetime, source: str = "", limit: int = 20) -> list[Uncaptured]:
    """Return counts by source and host, largest first, of the episodes that started within SHOWN_FOR."""
    rows = _rows(viewer).filter(error__gt=_sortable_time(now - SHOWN_FOR))
    if source:
        rows = rows.filter(source=source)
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for theirs, host, since, value in rows.values_list("source", "queue", "error", "value"):
        count, first = found.get((theirs, host), (0, since))
        found[theirs, host] = count + int(value), min(first, since)
    largest = sorted(found.items(), key=lambda one: (-one[1][0], one[0]))[:limit]
    return [Uncaptured(*place, count, datetime.fromisoformat(since)) for place, (count, since) in largest]


def totals_by_source(viewer: Viewer) -> list[tuple[str, int]]:
    """Return the total of all reports by source, for Prometheus."""
    rows = _rows(viewer).values("source").annotate(n=Sum("value")).order_by("source")
    return [(row["source"], int(row["n"])) for row in rows]


def _rows(viewer: Viewer) -> Any:
    sources = viewer.sources()
    rows = Total.objects.filter(metric=METRIC)
    return rows if sources is None else rows.filter(source__in=sources)
