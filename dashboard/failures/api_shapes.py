"""API shapes of failures, their runs and attempts. Fields may be added, and none is removed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ninja import Schema

from dashboard.failures import comparison as compared
from dashboard.web.api.shapes import Count
from dashboard.web.differences import Words
from jobs_admin.core.fingerprint import SPLITS, explain
from jobs_admin.core.signature import Signature
from jobs_admin.core.trace_context import find_traces
from jobs_admin.db import grouping_rules
from jobs_admin.db.abilities import level_of
from jobs_admin.failures import explanations, histories
from jobs_admin.failures.links import links_of
from jobs_admin.failures.nearest import Near
from jobs_admin.failures.quarantine import crashes_of
from jobs_admin.models import Attempt, Failure, ReplayItem
from jobs_admin.models.failure import Caveat


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
    is_seen: bool  # read from its system's events: no guard stored its message, so it cannot be replayed


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
    is_edited: bool  # sent with edited arguments
    attempts: list[AttemptItem]


class Crash(Schema):
    """One start without an end. Times are by the store's clock."""

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


class Decision(Schema):
    """The end of an attempt, and what was decided then."""

    run: int
    attempt: int
    ended_at: datetime
    kind: str  # retry: another attempt follows; success; others: how it ended
    error_type: str
    policy: str  # `name@version` that decided; empty: the task itself
    reason: str
    delay_s: float | None  # until the next attempt


class Advice(Schema):
    code: str  # never_ran, outcome_unknown, policy_observes
    message: str
    fix: str


class GroupingFrame(Schema):
    place: str  # `file in function`
    line: int
    is_counted: bool
    why_not: str  # library, rule, passed; empty: repeated, or of an earlier error


class GroupingParts(Schema):
    """The parts of the error that make its group."""

    error_type: str  # empty if the class does not count
    causes: list[tuple[str, str]]  # type, message
    task: str  # empty if it does not count
    message: str  # with variable parts replaced
    frames: list[GroupingFrame]  # the innermost 100, the outermost of them first
    rules: list[str]  # grouping rules that made a difference


class FailureReasons(Schema):
    id: int
    state: str
    kind: str
    reason: str
    attempts: int
    max_attempts: int | None
    due_at: datetime | None  # of the next attempt
    decisions: list[Decision]  # the latest 64 attempts, oldest first
    advice: list[Advice]
    crashes: list[Crash]
    waits_in: WaitsIn | None
    grouping: GroupingParts


class ComparedAttempt(AttemptItem):
    id: int
    run: int
    job_id: str


class ComparedPart(Schema):
    part: str  # such as `the type`, `application frame 2`
    left: str
    right: str


class ComparedRow(Schema):
    change: str  # same, open, changed, added, removed, gap
    left: str | None
    right: str | None
    level: int  # of nesting
    count: int  # of a gap: equal lines


class ComparedSection(Schema):
    field: str  # message, traceback, args, kwargs, headers
    is_same: bool | None  # null: not compared, see why_not
    why_not: str
    is_truncated: bool
    rows: list[ComparedRow]


class Comparison(Schema):
    """Two attempts of a failure. Hidden values appear only as equal or different."""

    left: ComparedAttempt
    right: ComparedAttempt
    is_one_group: bool | None  # null: one of them did not fail
    group_parts: list[ComparedPart]
    sections: list[ComparedSection]


class LinkItem(Schema):
    name: str  # Trace, Logs, Sentry
    url: str


class FailureDetail(FailureItem):
    first_job_id: str
    runs: list[Run]
    args: Any  # redacted; JSON, or text where it had to be cut
    kwargs: Any
    headers: Any
    trace_id: str | None  # of its message's headers, `traceparent` or `sentry-trace`
    span_id: str | None  # of the span that sent the job
    event_id: str | None  # its latest attempt's event in Sentry
    links: list[LinkItem]  # to other tools; without those whose template is not set or has a field without a value
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
        "is_seen": bool((row.caveats or 0) & Caveat.SEEN),
    }


_MADE = ("fingerprint", "priority_level", "is_seen")  # from several columns


def failure_detail(
    row: Failure,
    attempts: list[Attempt],
    started: Mapping[int, ReplayItem],
    takes: Sequence[Signature],
    url: str,
    waits_in: dict[str, Any] | None,
) -> dict[str, Any]:
    traces = find_traces(row.headers)
    trace = next(iter(traces.values()), None)
    return failure(row) | {
        "trace_id": trace.trace_id if trace else None,
        "span_id": trace.span_id if trace else None,
        "event_id": row.event_id,
        "links": [asdict(link) for link in links_of(row, traces)],
        "waits_in": waits_in,
        "first_job_id": row.first_job_id,
        "runs": _runs(row, attempts, started),
        "args": _json(row.args),
        "kwargs": _json(row.kwargs),
        "headers": _json(row.headers),
        "redacted": row.redacted,
        "takes": [one.in_parentheses for one in takes],
        "traceback": row.traceback.text if row.traceback else None,
        "crashes": _crashes(row),
        "url": url,
    }


def _crashes(row: Failure) -> list[dict[str, Any]]:
    return [asdict(crash) | {"said": crash.text} for crash in crashes_of(row)]


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
        "is_edited": bool(item and (item.replay.edit or item.replay.patch)),
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


MOST_FRAMES = 100


def reasons(row: Failure, waits_in: dict[str, Any] | None) -> dict[str, Any]:
    """Return why a failure is in its state and in its group."""
    names = ("state", "kind", "reason", "attempts", "max_attempts", "due_at")
    decided = tuple(Decision.model_fields)
    advice = [
        {"code": code, "message": found.what, "fix": found.to_do}
        for code, found in (
            ("never_ran", explanations.explain_unread(row)),
            ("outcome_unknown", explanations.explain_lost(row)),
        )
        if found is not None
    ]
    ended = histories.history(row).ended
    if ended and ended[-1].policy and ended[-1].reason.startswith("would "):
        message = f"Policy {ended[-1].policy} only observes, so it was not applied: it {ended[-1].reason}."
        fix = "To apply it, set its mode to enforce and publish it (Policies)."
        advice.append({"code": "policy_observes", "message": message, "fix": fix})
    return {name: getattr(row, name) for name in names} | {
        "id": row.pk,
        "decisions": [{name: getattr(one, name) for name in decided} for one in ended],
        "advice": advice,
        "crashes": _crashes(row),
        "waits_in": waits_in,
        "grouping": _grouping(row),
    }


def _grouping(row: Failure) -> dict[str, Any]:
    trace = row.traceback.text if row.traceback else ""
    facts = {name: getattr(row, name) for name in SPLITS if name != "message"}
    found = explain(row.error_type, row.message, trace, grouping_rules.current(), facts)
    return {
        "error_type": found.type,
        "causes": found.causes,
        "task": found.task,
        "message": found.message,
        "frames": [
            {"place": one.place, "line": one.frame.line, "is_counted": one.counts, "why_not": one.why_not}
            for one in found.frames[-MOST_FRAMES:]
        ],
        "rules": found.acted,
    }


def comparison(row: Failure, pair: histories.Pair) -> dict[str, Any]:
    """Return two attempts compared, as the page shows them."""
    grouping = compared.grouping(row, pair.left, pair.right)
    return {
        "left": _compared_attempt(pair.left),
        "right": _compared_attempt(pair.right),
        "is_one_group": grouping.is_one if grouping else None,
        "group_parts": [
            {"part": part, "left": left, "right": right} for part, left, right in (grouping.parts if grouping else ())
        ],
        "sections": [_section(one) for one in compared.sections(row, pair.left, pair.right)],
    }


def _compared_attempt(one: Attempt) -> dict[str, Any]:
    return _attempt(one) | {"id": one.pk, "run": one.run, "job_id": one.job_id}


def _section(one: compared.Section) -> dict[str, Any]:
    found = one.difference
    return {
        "field": one.field,
        "is_same": None if found is None else found.is_same,
        "why_not": one.why_not,
        "is_truncated": bool(found and found.is_cut),
        "rows": [
            {
                "change": row.what, "left": _text(row.left), "right": _text(row.right), "level": row.level,
                "count": row.count,
            }
            for row in (found.rows if found else ())
        ],
    }  # fmt: skip


def _text(words: Words | None) -> str | None:
    return None if words is None else "".join(text for text, _ in words)


def near(found: Near) -> dict[str, Any]:
    same = ("why", "count", "count_is_capped", "failure")
    return {name: getattr(found, name) for name in same} | {"q": "" if found.failure else found.text}
