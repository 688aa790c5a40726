"""A job in quarantine as displayed in its row: how it ended its workers, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from dashboard.failures.timeline import short
from jobs_admin.failures import explanations
from jobs_admin.failures.quarantine import Crash, QuarantinedJob, crashes_of
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, Viewer

_HOW = {
    "killed": "process crashed",
    "hard_limit": "hard time limit exceeded",
    "memory": "out of memory",
    "lost": "worker crashed",
}


@dataclass(frozen=True, slots=True)
class CrashLine:
    at: datetime | None
    how: str
    worker: str
    message: str
    beside: str  # other jobs that may have caused the crash


@dataclass(frozen=True, slots=True)
class Row:
    failure: Failure
    url: str
    error: str
    policy: str
    crashes: list[CrashLine]
    sum: str  # "3 crashes in 40 s"
    may_act: bool


def row(quarantined: QuarantinedJob, viewer: Viewer) -> Row:
    return Row(
        quarantined.failure,
        reverse("redrive:failure-detail", args=[quarantined.failure.pk]),
        short(quarantined.failure.error_type),
        quarantined.policy,
        lines(quarantined.failure),
        _sum(quarantined),
        viewer.may(OPERATOR, quarantined.failure.source),
    )


def lines(failure: Failure) -> list[CrashLine]:
    """Return the crashes of a job, oldest first; empty if it was never in quarantine."""
    return [_line(crash) for crash in crashes_of(failure)]


def _sum(quarantined: QuarantinedJob) -> str:
    if explanations.short_unread(quarantined.failure):
        return explanations.short_unread(quarantined.failure)
    n = len(quarantined.crashes)
    if not n:
        return "no crash records"
    words = "1 crash" if n == 1 else f"{n} crashes"
    if quarantined.lasted_s is None:
        return words
    return (
        f"{words} in {max(1, round(quarantined.lasted_s)):,} s"
        if quarantined.lasted_s < 120
        else f"{words} in {_minutes(quarantined)}"
    )


def _minutes(quarantined: QuarantinedJob) -> str:
    minutes = round((quarantined.lasted_s or 0) / 60)
    return f"{minutes:,} min" if minutes < 120 else f"{round(minutes / 60):,} h"


def _line(crash: Crash) -> CrashLine:
    return CrashLine(crash.seen_at, _HOW.get(crash.how, crash.how), crash.worker, crash.text, _beside(crash))


def _beside(crash: Crash) -> str:
    if crash.how != "lost":
        return ""
    if crash.alone:
        return "no other job was running"
    if not crash.beside:
        return "other jobs may have been running"
    return "1 other job was running" if crash.beside == 1 else f"{crash.beside} other jobs were running"
