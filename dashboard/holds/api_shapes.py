"""Shapes of pauses in the API."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ninja import Schema

from jobs_admin import holds
from jobs_admin.models import Pause
from jobs_admin.models.access import Viewer


class MissingWorker(Schema):
    worker: str
    reason: str


class PauseItem(Schema):
    """`until`: null until resumed. `workers`: in how many live workers it is in force; null once it has ended."""

    id: int
    source: str
    queue: str
    task: str
    reason: str
    created_at: datetime
    created_by: str
    until: datetime | None
    resumed_at: datetime | None
    resumed_by: str
    may_resume: bool
    workers: PauseWorkers | None


class PauseWorkers(Schema):
    """Null where the store does not answer."""

    in_force: int | None
    total: int | None
    unguarded: int | None
    missing: list[MissingWorker]


PauseItem.model_rebuild()


def pauses(viewer: Viewer, found: Iterable[Pause]) -> list[dict[str, Any]]:
    found = list(found)
    known = holds.reach(viewer, [one for one in found if one.resumed_at is None])
    return [_pause(viewer, one, known.get(one.pk)) for one in found]


def pause(viewer: Viewer, one: Pause) -> dict[str, Any]:
    return pauses(viewer, [one])[0]


def _pause(viewer: Viewer, one: Pause, reach: holds.Reach | None) -> dict[str, Any]:
    names = (
        "source", "queue", "task", "reason", "created_at", "created_by", "until", "resumed_at", "resumed_by",
    )  # fmt: skip
    workers = None
    if reach is not None:
        counts = {"in_force": reach.obeying, "total": reach.workers, "unguarded": reach.unguarded}
        workers = {
            **(counts if reach.is_known else dict.fromkeys(counts)),
            "missing": [{"worker": name, "reason": why} for name, why in reach.missing],
        }
    values = {name: getattr(one, name) for name in names}
    return {"id": one.pk, **values, "may_resume": holds.may_resume(viewer, one), "workers": workers}
