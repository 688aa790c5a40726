"""Runs of a failure and their attempts, prepared for the page. A long history is folded, not truncated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.web import links
from dashboard.web.figures import clock, duration
from dashboard.web.pictures import state
from dashboard.web.text import visible, visible_text
from jobs_admin.core.text import class_name
from jobs_admin.failures.histories import MESSAGE_SHOWN, Ended, History
from jobs_admin.models import Failure, ReplayItem

# Attempts of a run shown at once; earlier attempts of a job retried for days are loaded on demand.
ATTEMPTS_SHOWN = 8
RUNS_SHOWN = 8  # latest runs shown with their attempts; earlier ones take one line each

ENDED = {
    "exception": "failed",
    "retry": "failed, retried",
    "rejected": "rejected",
    "worker_lost": "worker lost",
    "soft_limit": "soft time limit exceeded",
    "hard_limit": "killed at the time limit",
    "memory": "killed for memory",
    "unknown_task": "unknown task",
    "undecodable": "could not be decoded",
    "bad_content": "bad content type",
    "unknown_format": "unknown message format",
    "expired": "expired before it ran",
    "lost": "lost",
    "success": "succeeded",
}


class Row(TypedDict):
    """One attempt, prepared for display."""

    n: int
    tone: str  # state that determines colour and shape
    state: str
    url: str  # error and traceback of this attempt; "" if it succeeded
    is_chosen: bool
    error: str
    error_title: str
    message: str
    at: str
    took: str
    worker: str
    host: str
    release: str
    policy: str
    policy_url: str  # URL of that policy version
    reason: str
    waited: str


@dataclass(slots=True)
class Run:
    """One run on the timeline, with its attempts in order."""

    n: int
    job_id: str
    # The replay item that started it; None for run 1 and for runs older than the records.
    item: ReplayItem | None = None
    rows: list[Row] = field(default_factory=list)
    hidden: int = 0  # number of earlier attempts that are not among the rows
    hidden_url: str = ""
    is_folded: bool = False  # an old run: one line without its attempts
    diff_url: str = ""  # difference from the previous run


def short(error_type: str) -> str:
    """`smtplib.SMTPServerDisconnected` as `SMTPServerDisconnected`, `_csv.Error` as itself."""
    return class_name(error_type)


def runs(failure: Failure, history: History, items: Sequence[ReplayItem], chosen: int | None = None) -> list[Run]:
    """Return all runs of a failure, first to last; the traceback of `chosen` is shown on the page."""
    base = f"{reverse('redrive:failure-detail', args=[failure.pk])}attempts/"
    started_by = {item.run: item for item in items if item.state not in {"planned", "cancelled"}}
    by_run: dict[int, list[Ended]] = {}
    for ended in history.ended:
        by_run.setdefault(ended.run, []).append(ended)
    numbers = sorted({failure.run, *started_by, *history.counts})
    found = []
    last = None  # the previous run, and one of its attempts
    for n in numbers:
        item = started_by.get(n)
        run = Run(n, _job_id(failure, n, item, by_run.get(n)), item, is_folded=n in numbers[:-RUNS_SHOWN])
        mine = by_run.get(n, [])
        shown = [] if run.is_folded else _latest(mine)
        run.rows = rows(shown, base, chosen)
        run.hidden = history.counts.get(n, 0) - len(shown)
        run.hidden_url = f"{base}?{urlencode({'run': n, **({'before': shown[0].attempt} if shown else {})})}"
        latest = mine[-1].pk if mine else None
        if last and latest:
            run.diff_url = f"{reverse('redrive:failure-diff', args=[failure.pk])}?left={last}&right={latest}"
        last = latest or last
        found.append(run)
    return found


def _latest(ended: list[Ended]) -> list[Ended]:
    """Return the last ATTEMPTS_SHOWN, never splitting attempts of one number: the others are loaded by number."""
    if len(ended) <= ATTEMPTS_SHOWN:
        return ended
    cut = ended[-ATTEMPTS_SHOWN - 1].attempt
    return [one for one in ended[-ATTEMPTS_SHOWN:] if one.attempt != cut]


def _job_id(failure: Failure, n: int, item: ReplayItem | None, ended: list[Ended] | None) -> str:
    if n == 1:
        return failure.first_job_id
    if n == failure.run:
        return failure.job_id
    return item.job_id if item else ended[-1].job_id if ended else ""


def rows(ended: Iterable[Ended], base: str, chosen: int | None = None) -> list[Row]:
    return [_row(one, base, chosen) for one in ended]


def _row(one: Ended, base: str, chosen: int | None) -> Row:
    tone = {"success": "recovered", "retry": "retrying"}.get(one.kind, "dead")
    message = one.message if len(one.message) <= MESSAGE_SHOWN else f"{one.message[:MESSAGE_SHOWN]}…"
    return Row(
        n=one.attempt,
        tone=tone,
        state=state(tone, ENDED.get(one.kind, one.kind)),
        url="" if one.kind == "success" else f"{base}{one.pk}/",
        is_chosen=one.pk == chosen,
        error=visible(short(one.error_type)),
        error_title=visible_text(one.error_type),
        message=visible(message),
        at=clock(one.ended_at),
        took="" if one.duration_s is None else duration(one.duration_s),
        worker=visible(one.worker),
        # A worker such as `emails@worker-3` already contains its host.
        host="" if one.worker.endswith(f"@{one.host}") else visible(one.host),
        release=visible(one.release),
        policy=visible(one.policy),
        policy_url=links.policy_version(one.policy) if one.policy else "",
        reason=visible(one.reason),
        waited="" if one.delay_s is None else duration(one.delay_s),
    )
