"""API shapes of replays. Fields may be added, and none is removed."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from ninja import Schema

from dashboard.failures import api_shapes as failure_shapes
from dashboard.web.api import shapes
from jobs_admin.core.pacing import Simulation
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.replays import GroupAside, Options, Preview


class Blocked(Schema):
    reason: str
    count: int
    code: str = ""
    accept: str | None = None  # the option that lets them go: name it in `accept`
    replay: int | None = None  # the one that holds them


class OutlookItem(Schema):
    """Course of the replay if this share of jobs fails again. Seconds from the start."""

    failing: float
    starts: list[tuple[float, float]]  # from when, jobs started per second
    peak_per_second: float
    longest_wait_s: float  # in the queue, before a worker starts it
    sent: int
    ends_after_s: float | None  # null where it is held, or never ends
    held_after_s: float | None
    held_because: str


class SimulationItem(Schema):
    outlooks: list[OutlookItem]  # as planned, then with a tenth and with half failing again, if that is 5 jobs or more
    assumptions: list[str]


class GroupChoiceItem(Schema):
    """A group of the scope, and whether its jobs are sent."""

    fingerprint: str
    title: str
    culprit: str
    count: int  # jobs that can be sent while the group is on
    is_on: bool  # to change, name the groups to exclude in `without_groups`; an empty list sends all
    code: str  # why its jobs are likely to fail again: permanent, poison, muted, failed_again, still_failing; or empty
    reason: str
    last_failed_at: datetime | None
    failed_per_min: float | None  # in the last 5 minutes; null: it has failures of sources that the token may not see
    is_failing: bool  # failures continue: the last one is a minute old at most, or three of the usual gaps
    tenants: int  # that its jobs belong to
    is_tenants_all: bool  # false: of the latest jobs only
    queue: str  # of most of its jobs
    queue_succeeded_per_min: float  # jobs of that queue, in the last 5 minutes
    queue_succeeded_at: datetime | None  # minute or hour of its latest success; null: not known


class AsideItem(Schema):
    """A group that a replay excludes."""

    group: str  # its fingerprint
    title: str
    culprit: str
    phase: str  # start: excluded in the draft; run: set aside during the replay, can be brought back
    code: str
    reason: str
    by: str
    at: datetime
    jobs: int | None  # not sent because of the exclusion; null: not known


class PreviewItem(Schema):
    q: str  # with absolute times
    matched: int
    replayable: int
    blocked: list[Blocked]
    by_source: list[shapes.Count]
    by_queue: list[shapes.Count]
    by_task: list[shapes.Count]
    by_group: list[shapes.Count]
    groups: list[GroupChoiceItem]
    by_tenant: list[shapes.Count]
    pace: dict[str, Any]
    starts_at: datetime
    ends_at: datetime | None
    duration_s: float
    peak_per_second: float
    sample: list[failure_shapes.FailureItem]
    warnings: list[str]
    slowed_by: list[str]  # limits and states that slow or stop the replay, in sentences
    counted_over: dict[
        str, int | None
    ]  # source, queue, task, group, tenant: how many of the newest were looked at; null: all
    throughput_per_s: float | None  # the last hour's median of jobs of these queues that ran well; null: none did
    needs_approval: str  # why another operator has to approve it; empty where nobody has to
    arrived_since: int  # that match and came after the snapshot that was handed in; they are not in it
    simulation: SimulationItem
    snapshot: str


class Counts(Schema):
    total: int
    planned: int
    sent: int
    running: int
    succeeded: int
    failed_again: int
    uncertain: int
    cancelled: int


class ReplayRow(Counts):
    id: int
    state: str
    q: str
    selected: int  # failures chosen by hand; 0 for a search
    counts: Counts
    matched: int
    blocked: list[Blocked]
    pace: dict[str, Any]
    rate_now: (
        float  # jobs per second really sent over the last 10 s; 0 sends nothing now. The requested rate is in pace
    )
    rate: float | None  # what it goes at now, jobs per second, as its pace or its controller says; null: without bound
    held_because: str
    evidence: (
        dict[str, Any] | None
    )  # the numbers that it was held for, of that moment; held_because adds what came since
    state_since: datetime | None
    taken: int  # of what was frozen, what another replay had when its turn came; not in the total
    options: dict[str, Any]  # attempts, to_queue, same_job_id, patch, accept: those that are not as usual
    without_groups: list[str]  # fingerprints of groups whose jobs are not sent
    approval_because: str  # why another operator has to approve it; empty where nobody has to
    approver: str
    approved_at: datetime | None
    reason: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    warnings: list[
        str
    ]  # why outcomes stay unknown; after the call that started it, arguments that could not be checked
    url: str


class ReplayDetail(ReplayRow):
    set_aside: list[AsideItem]  # the groups of without_groups, with reasons


class ItemDetail(Schema):
    n: int
    failure: int
    state: str
    due_at: datetime | None  # when it will go at the pace of now; null where it went, is paused, or has no rate
    sent_at: datetime | None
    settled_at: datetime | None
    job_id: str
    run: int
    outcome: str


def preview(row: Preview) -> dict[str, Any]:
    same = (
        "matched",
        "replayable",
        "blocked",
        "pace",
        "starts_at",
        "ends_at",
        "duration_s",
        "peak_per_second",
        "warnings",
        "slowed_by",
        "counted_over",
        "throughput_per_s",
        "needs_approval",
        "arrived_since",
    )
    return {name: getattr(row, name) for name in (*same, "snapshot")} | {
        "q": row.query,
        "simulation": _simulation(row.simulation),
        "by_source": shapes.counts(row.by_source),
        "by_queue": shapes.counts(row.by_queue),
        "by_task": shapes.counts(row.by_task),
        "by_group": shapes.counts(row.by_group),
        "by_tenant": shapes.counts(row.by_tenant),
        "groups": [asdict(one) for one in row.choices],
        "sample": [failure_shapes.failure(one) for one in row.sample],
    }


def _simulation(found: Simulation) -> dict[str, Any]:
    same = [name for name in OutlookItem.model_fields if name != "held_because"]
    outlooks = [
        {name: getattr(one, name) for name in same}
        | {"held_because": one.held_because.sentence() if one.held_because else ""}
        for one in found.outlooks
    ]
    return {"outlooks": outlooks, "assumptions": list(found.assumptions)}


def replay_detail(row: dict[str, Any], set_aside: list[GroupAside]) -> dict[str, Any]:
    return row | {"set_aside": [_aside(one) for one in set_aside]}


def replay(row: Replay, url: str, rate_now: float, without_groups: list[str], warnings: list[str]) -> dict[str, Any]:
    counts = {name: getattr(row, name) for name in Counts.model_fields}
    same = (
        "id",
        "state",
        "matched",
        "blocked",
        "pace",
        "evidence",
        "state_since",
        "taken",
        "approval_because",
        "approver",
        "approved_at",
        "reason",
        "actor",
        "created_at",
        "started_at",
        "ended_at",
    )
    rate = None if row.rate is None else round(row.rate, 4)  # what a controller makes of it has digits that say nothing
    return counts | {name: getattr(row, name) for name in same} | {
        "rate": rate,
        "held_because": row.current_hold_reason,
        "options": Options.from_replay(row, with_groups=False).as_dict(),
        "without_groups": without_groups,
        "q": row.query,
        "selected": len(row.selection),
        "counts": counts,
        "rate_now": rate_now,
        "warnings": warnings,
        "url": url,
    }  # fmt: skip


def _aside(one: GroupAside) -> dict[str, Any]:
    same = {name: getattr(one, name) for name in ("phase", "code", "reason", "by", "at", "jobs")}
    return same | {"group": one.group.name, "title": one.group.title, "culprit": one.group.culprit}


def item(row: ReplayItem, due_at: datetime | None = None) -> dict[str, Any]:
    same = ("n", "state", "sent_at", "settled_at", "job_id", "run", "outcome")
    return {name: getattr(row, name) for name in same} | {"failure": row.failure_id, "due_at": due_at}
