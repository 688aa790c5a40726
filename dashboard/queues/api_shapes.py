"""API shapes of queues. Fields may be added, and none is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin.queues import QueueRow


class Queue(Schema):
    source: str
    queue: str
    waiting: int | None
    active: int | None
    delayed: int | None
    dead: int
    retrying: int
    source_dead: int | None
    oldest_dead_age_s: int | None
    failed_per_minute: float
    succeeded_per_minute: float
    workers: int | None
    guarded_workers: int | None
    durability: str  # when jobs are acknowledged: late, early, mixed; "" where no guarded worker has told
    fetch_window: bool  # a worker that is killed may lose a message that it was just given, also under late ack
    reachable: bool | None  # null: never sampled
    why: str
    sampled_at: datetime | None


def queue(row: QueueRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Queue.model_fields}
