"""A job in quarantine as its row shows it: how it ended its workers, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from dashboard.failures import unread
from dashboard.failures.timeline import short
from jobs_admin.failures.quarantine import Crash, QuarantinedJob, crashes_of
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, Viewer

_HOW = {
    "killed": "its process died",
    "hard_limit": "it ran into its hard time limit",
    "memory": "it ran out of memory",
    "lost": "its whole worker died",
}


@dataclass(frozen=True, slots=True)
class CrashLine:
    at: datetime | None
    how: str
    worker: str
    said: str
    beside: str  # who else may have been it


@dataclass(frozen=True, slots=True)
class Row:
    failure: Failure
    url: str
    error: str
    policy: str
    crashes: list[CrashLine]
    sum: str  # "3 crashes in 40 s"
    may_act: bool


def row(held: QuarantinedJob, viewer: Viewer) -> Row:
    return Row(
        held.failure,
        reverse("redrive:failure-detail", args=[held.failure.pk]),
        short(held.failure.error_type),
        held.policy,
        lines(held.failure),
        _sum(held),
        viewer.may(OPERATOR, held.failure.source),
    )


def lines(failure: Failure) -> list[CrashLine]:
    """Its crashes, the oldest first; none of a job that was never in quarantine."""
    return [_line(crash) for crash in crashes_of(failure)]


def _sum(held: QuarantinedJob) -> str:
    if unread.short(held.failure):
        return unread.short(held.failure)
    n = len(held.crashes)
    if not n:
        return "no record of its crashes"
    words = "1 crash" if n == 1 else f"{n} crashes"
    if held.lasted_s is None:
        return words
    return f"{words} in {max(1, round(held.lasted_s)):,} s" if held.lasted_s < 120 else f"{words} in {_minutes(held)}"


def _minutes(held: QuarantinedJob) -> str:
    minutes = round((held.lasted_s or 0) / 60)
    return f"{minutes:,} min" if minutes < 120 else f"{round(minutes / 60):,} h"


def _line(crash: Crash) -> CrashLine:
    return CrashLine(crash.seen_at, _HOW.get(crash.how, crash.how), crash.worker, crash.text, _beside(crash))


def _beside(crash: Crash) -> str:
    if crash.how != "lost":
        return ""
    if crash.alone:
        return "it ran there alone"
    if not crash.beside:
        return "it was not known to be alone"
    return "1 other job ran there" if crash.beside == 1 else f"{crash.beside} other jobs ran there"
