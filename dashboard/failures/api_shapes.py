"""API shapes of failures, their runs and attempts. Fields may be added, and none is removed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ninja import Schema

from dashboard.web.api.shapes import Count
from jobs_admin.core.signature import Signature
from jobs_admin.db.priorities import level_of
from jobs_admin.failures.nearest import Near
from jobs_admin.failures.quarantine import crashes_of
from jobs_admin.models import Attempt, Failure, ReplayItem


class FailureItem(Schema):
    id: int
    source: str
    queue: str
    task: str
    job_id: str
    run: int
    state: str
    kind: str
    reason: str
    error_type: str
    message: str
    fingerprint: str | None
    attempts: int
    max_attempts: int | None
    due_at: datetime | None
    first_failed_at: datetime
    failed_at: datetime
    worker: str
    host: str
    tenant: str
    priority: int | None  # the queue system's number
    priority_level: str | None  # critical, high, medium, low
    release: str


class AttemptItem(Schema):
    attempt: int
    kind: str
    error_type: str
    message: str
    fingerprint: str | None
    ended_at: datetime
    duration_s: float | None
    delay_s: float | None
    worker: str
    host: str
    release: str
    policy: str
    reason: str


class Run(Schema):
    run: int
    job_id: str
    replay: int | None  # the replay that sent it; null for run 1
    by: str | None  # who started that replay
    sent_at: datetime | None
    outcome: str | None  # sent, running, succeeded, failed_again, uncertain; null for run 1
    attempts: list[AttemptItem]


class Crash(Schema):
    """One start that did not end. Times are by the store's clock."""

    how: str  # killed, hard_limit, memory: its process; lost: its whole worker
    seen_at: datetime | None
    worker: str
    said: str
    alone: bool  # nothing else ran in that worker when it started
    beside: int  # counted jobs that did, where the whole worker died


class WaitsIn(Schema):
    """A replay that has a job planned and sends nothing now."""

    replay: int
    state: str  # held, paused, waiting
    reason: str  # empty where nothing is known
    url: str


class Facet(Schema):
    field: str
    counted_over: int | None  # the latest matches that were counted; null: all
    values: list[Count]  # the most frequent first


class Facets(Schema):
    facets: list[Facet]


class BulkResult(Schema):
    act: str  # discard, restore, readmit, undo
    key: str  # undoes what was changed
    matched: int  # when the act began
    checked: int
    changed: int
    next: str | None  # continues the act; null: done


class FailureDetail(FailureItem):
    first_job_id: str
    runs: list[Run]
    args: Any  # redacted; JSON, or text where it had to be cut
    kwargs: Any
    headers: Any
    redacted: int
    takes: list[
        str
    ]  # the arguments of its task, as live workers report them: a text for each version; empty: none reports them
    traceback: str | None
    crashes: list[Crash]  # why it is, or was, in quarantine: the oldest first; empty where it never was
    waits_in: WaitsIn | None  # null where the job is not planned, or is sent within its replay's pace
    url: str


def failure(row: Failure) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in FailureItem.model_fields if name not in _MADE}
    return found | {
        "fingerprint": row.group.name if row.group else None,
        "priority_level": level_of(row.source, row.priority),
    }


_MADE = ("fingerprint", "priority_level")  # from several columns


def failure_detail(
    row: Failure,
    attempts: list[Attempt],
    started: Mapping[int, ReplayItem],
    takes: Sequence[Signature],
    url: str,
    waits_in: dict[str, Any] | None,
) -> dict[str, Any]:
    return failure(row) | {
        "waits_in": waits_in,
        "first_job_id": row.first_job_id,
        "runs": _runs(row, attempts, started),
        "args": _json(row.args),
        "kwargs": _json(row.kwargs),
        "headers": _json(row.headers),
        "redacted": row.redacted,
        "takes": [one.in_parentheses for one in takes],
        "traceback": row.traceback.text if row.traceback else None,
        "crashes": [asdict(crash) | {"said": crash.text} for crash in crashes_of(row)],
        "url": url,
    }


def _runs(row: Failure, attempts: list[Attempt], started: Mapping[int, ReplayItem]) -> list[dict[str, Any]]:
    runs = {n: _run(n, item.job_id, item) for n, item in started.items()}
    for one in attempts:
        run = runs.setdefault(one.run, _run(one.run, one.job_id, one.item))
        run["attempts"].append(_attempt(one))
    runs.setdefault(row.run, _run(row.run, row.job_id, None))  # sent, and nothing has come home yet
    return [runs[n] for n in sorted(runs)]


def _run(n: int, job_id: str, item: ReplayItem | None) -> dict[str, Any]:
    return {
        "run": n,
        "job_id": job_id,
        "replay": item.replay_id if item else None,
        "by": item.replay.actor if item else None,
        "sent_at": item.sent_at if item else None,
        "outcome": item.state if item else None,
        "attempts": [],
    }


def _attempt(row: Attempt) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in AttemptItem.model_fields if name != "fingerprint"}
    return found | {"fingerprint": row.group.name if row.group else None}


def _json(text: str) -> Any:
    """The display copy as JSON; the text itself where it was cut, or is nested too deep."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def near(found: Near) -> dict[str, Any]:
    same = ("why", "count", "count_is_capped", "failure")
    return {name: getattr(found, name) for name in same} | {"q": "" if found.failure else found.text}
