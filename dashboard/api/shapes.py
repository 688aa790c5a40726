"""What the API answers with. Fields may be added, and none is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Generic, TypeVar

from ninja import Schema

from jobs_admin.core.signature import Signature
from jobs_admin.db.priorities import level_of
from jobs_admin.failures.nearest import Near
from jobs_admin.failures.quarantine import crashes_of
from jobs_admin.groups import GroupRow
from jobs_admin.groups.group_detail import GroupDetail
from jobs_admin.groups.group_rules import Preview as RulePreviewed
from jobs_admin.groups.group_rules import Row as RuleRow
from jobs_admin.models import Attempt, AuditEvent, Failure, ReplayItem
from jobs_admin.queues import QueueRow

T = TypeVar("T")


class NearItem(Schema):
    q: str  # a search that finds something
    why: str  # what it is, in words
    count: int
    count_is_capped: bool
    failure: int | None  # it is this one job


class Listed(Schema, Generic[T]):
    items: list[T]
    next: str | None = None  # hand it over as `after`; null on the last page
    count: int
    count_is_capped: bool = False
    reading: str | None = None  # how `q` was read
    hints: list[str] = []
    searched: int | None = None  # only so many, the newest in scope, were looked at; null: all of them
    near: list[NearItem] = []  # where a search of failures found nothing: what it may have meant


class ErrorBody(Schema):
    code: str
    message: str
    field: str | None = None


class Error(Schema):
    error: ErrorBody


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


class ViewItem(Schema):
    id: int
    name: str
    q: str  # as it was written: relative times stay relative
    owner: str | None  # null: made by a token
    is_shared: bool
    count: int  # what it holds now, for who asks
    count_is_capped: bool
    url: str


class GroupItem(Schema):
    fingerprint: str
    title: str
    error_type: str
    culprit: str
    count: int  # failed attempts; jobs where `is_partial`
    is_partial: bool  # it has failures of sources that the token may not see: per_minute and trend are not told
    dead: int
    per_minute: float | None
    first_seen: datetime
    last_seen: datetime
    state: str
    state_since: datetime | None  # null where it is as it was found
    state_by: str  # empty for the engine
    regressed_after: str  # `replay:12`, `release:2026.11.2`; empty where it is not regressed, or that is not known
    first_release: str
    muted_until: datetime | None
    muted_until_count: int | None  # failed attempts from now that end the mute
    assignee: str | None
    note: str
    runbook_url: str
    queues: list[str]
    tasks: list[str]
    sources: list[str]
    trend: list[int]  # failed attempts in each of the last 24 hours, the oldest first


class Count(Schema):
    value: str
    count: int


class GroupDetailItem(GroupItem):
    jobs_by_state: dict[str, int]
    share_of_dead: float
    by_queue: list[Count]
    by_task: list[Count]
    by_tenant: list[Count]
    by_release: list[Count]
    by_host: list[Count]
    counted_over: int | None
    representative: int | None
    url: str


class ChangedGroups(Schema):
    changed: list[str]  # fingerprints
    unchanged: int  # that were so already
    refused: list[str]  # of sources where the token is not operator
    missing: int  # that are not there, or that the token may not see
    receipt: str  # hand it to `undo`


class UndoneGroups(Schema):
    undone: list[str]
    changed_since: list[str]  # left as they are


class RuleItem(Schema):
    id: int
    kind: str
    says: str
    group: str | None  # fingerprint; null for a frame
    others: list[str]
    by: str
    frame: str
    note: str
    author: str
    created_at: datetime
    progress: float  # 0 to 1, of the failures that are known
    is_withdrawn: bool


class Becoming(Schema):
    fingerprint: str
    title: str
    becomes: str
    becomes_title: str
    is_new: bool
    failures: int
    sample: list[int]


class RulePreview(Schema):
    kind: str
    sentence: str
    rows: list[Becoming]
    more: int  # rows that are not listed
    looked_at: int  # failures, of a frame groups
    of: int
    is_partial: bool


class AuditItem(Schema):
    id: int
    who: str
    when: datetime
    act: str
    source: str
    object: str
    reason: str
    before: Any
    after: Any
    allowed: bool


def listed(
    rows: Iterable[T], shape: Callable[[T], Any], *, next: str | None, count: int, **more: Any
) -> dict[str, Any]:
    return {"items": [shape(row) for row in rows], "next": next, "count": count, **more}


def queue(row: QueueRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Queue.model_fields}


def near(found: Near) -> dict[str, Any]:
    same = ("why", "count", "count_is_capped", "failure")
    return {name: getattr(found, name) for name in same} | {"q": "" if found.failure else found.text}


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
        "takes": [one.shown for one in takes],
        "traceback": row.traceback.text if row.traceback else None,
        "crashes": [asdict(crash) for crash in crashes_of(row)],
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


def group(row: GroupRow | GroupDetail) -> dict[str, Any]:
    found = row.group
    return {
        **{name: getattr(found, name) for name in (
            "fingerprint", "title", "error_type", "culprit", "first_seen", "last_seen", "state", "state_since", "state_by",
            "regressed_after", "first_release", "muted_until", "note", "runbook_url",
        )},
        "muted_until_count": None if (end := found.muted_until_count) is None else max(0, end - found.count),
        "count": row.count,
        "dead": row.dead,
        "is_partial": row.is_partial,
        "per_minute": None if row.per_minute is None else round(row.per_minute, 2),
        "assignee": found.assignee.get_username() if found.assignee else None,
        "queues": _names(row.queues),
        "tasks": _names(row.tasks),
        "sources": _names(row.sources),
        "trend": row.trend,
    }  # fmt: skip


def _names(values: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else value[0] for value in values]


def group_detail(row: GroupDetail, url: str) -> dict[str, Any]:
    return group(row) | {
        "jobs_by_state": row.jobs_by_state,
        "share_of_dead": round(row.share_of_dead, 4),
        "by_queue": counts(row.queues),
        "by_task": counts(row.tasks),
        "by_tenant": counts(row.tenants),
        "by_release": counts(row.releases),
        "by_host": counts(row.hosts),
        "counted_over": row.counted_over,
        "representative": row.representative.pk if row.representative else None,
        "url": url,
    }


def rule(row: RuleRow) -> dict[str, Any]:
    same = ("id", "kind", "others", "by", "frame", "note", "author", "created_at", "is_withdrawn")
    return {name: getattr(row.rule, name) for name in same} | {
        "says": row.says,
        "progress": round(row.progress, 4),
        "group": row.rule.group.name if row.rule.group else None,
    }


def rule_preview(row: RulePreviewed) -> dict[str, Any]:
    same = ("kind", "sentence", "more", "looked_at", "of", "is_partial")
    rows = [{name: getattr(one, name) for name in Becoming.model_fields} for one in row.rows]
    return {name: getattr(row, name) for name in same} | {"rows": rows}


def counts(pairs: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"value": value, "count": n} for value, n in pairs]


def audit(row: AuditEvent) -> dict[str, Any]:
    same = ("id", "act", "source", "object", "reason", "before", "after", "allowed")
    return {name: getattr(row, name) for name in same} | {"who": row.actor, "when": row.at}
