"""Spread of the jobs of a replay that waits for approval over sources, queues, tasks, groups and tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from jobs_admin.models import Failure, FrozenBatch, Replay
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.replays import freezing
from jobs_admin.replays.previewing import Breakdown, name_groups
from jobs_admin.rights import group_sight

SAMPLED = 5_000  # jobs; of more, a sample of this size is spread evenly over the order of sending
_BATCHES = 20  # sampled batches
LISTED = 20  # values of each


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of the jobs that the viewer may see; fields as in `Preview`."""

    replayable: int  # number of jobs read
    by_source: Breakdown = field(default_factory=list)
    by_queue: Breakdown = field(default_factory=list)
    by_task: Breakdown = field(default_factory=list)
    by_group: Breakdown = field(default_factory=list)
    by_tenant: Breakdown = field(default_factory=list)
    groups: list[tuple[str, str, int]] = field(default_factory=list)  # (fingerprint, title, count)
    counted_over: dict[str, int | None] = field(default_factory=dict)  # None: all


def spread_of_frozen(viewer: Viewer, replay: Replay) -> Spread:
    ids, is_all = _sample_ids(replay)
    found = Failure.objects.filter(pk__in=ids).order_by()
    if (sources := viewer.sources(VIEWER)) is not None:
        found = found.filter(source__in=sources)
    rows = list(found.values_list("source", "queue", "task", "group", "tenant"))
    counted = [_count_values(column) for column in zip(*rows, strict=True)] if rows else [[]] * 5
    by_source, queues, tasks, groups, tenants = counted
    known = name_groups(group_sight.read(viewer, [pk for pk, _ in groups]), groups)
    names = ("source", "queue", "task", "group", "tenant")
    return Spread(
        replayable=len(rows),
        by_source=by_source,
        by_queue=queues,
        by_task=tasks,
        by_group=[(title, n) for _, title, n in known],
        by_tenant=tenants,
        groups=known,
        counted_over=dict.fromkeys(names, None if is_all else len(rows)),
    )


def _count_values(column: tuple) -> list:
    counts = Counter(value for value in column if value not in (None, ""))
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:LISTED]


def _sample_ids(replay: Replay) -> tuple[list[int], bool]:
    """Return ids of the replay's frozen jobs, and whether these are all."""
    frozen = FrozenBatch.objects.filter(replay=replay).order_by("first_n")
    batches = list(frozen.values_list("pk", "count"))
    is_all = sum(count for _, count in batches) <= SAMPLED
    chosen = [pk for pk, _ in (batches if is_all else batches[:: -(-len(batches) // _BATCHES)])]
    ids: list[int] = []
    for batch in frozen.filter(pk__in=chosen):
        batch_ids = freezing.unpack_ids(batch)
        ids += batch_ids if is_all else batch_ids[:: -(-len(batch_ids) * len(chosen) // SAMPLED) or 1]
    return ids, is_all
