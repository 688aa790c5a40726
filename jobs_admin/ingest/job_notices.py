"""Tells of a job that somebody should know of: one notice for each run of it, in the transaction that files its report.

Who delivers it, and to whom, is another's matter: it stands in the table until somebody does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from jobs_admin.ingest.report import Report
from jobs_admin.models import Notice


def write(filed: Iterable[tuple[int, Report]]) -> None:
    """For each (id of the failure, report) that asks for one. A notice that is there already stays as it is."""
    told = [notice for failure, report in filed for notice in _of(failure, report)]
    Notice.objects.bulk_create(told, ignore_conflicts=True)


def _of(failure: int, report: Report) -> Iterable[Notice]:
    about = {
        "failure": failure,
        "source": report.source,
        "queue": report.queue,
        "task": report.task,
        "job_id": report.job_id,
        "run": report.run,
        "policy": report.policy,
    }
    if report.escalate:
        key = f"escalated:{failure}:{report.run}"
        yield Notice(
            key=key, type="job.escalated", severity="warning", source=report.source, body=_escalated(report) | about
        )
    if report.crashes is not None:
        key = f"poison:{failure}:{report.run}"
        yield Notice(
            key=key,
            type="poison.quarantined",
            severity="critical",
            source=report.source,
            body=_quarantined(report) | about,
        )


def _escalated(report: Report) -> dict[str, Any]:
    """It used up its attempts under a policy that says `exhausted: escalate`."""
    tries = "its only attempt" if report.attempt == 1 else f"all {report.attempt} attempts"
    return {
        "title": f"{report.task} needs a person",
        "message": f"A job of {report.task} on {report.queue} failed {tries}; its policy asks that somebody looks at it.",
        "error_type": report.error_type,
    }


def _quarantined(report: Report) -> dict[str, Any]:
    crashes = json.loads(report.crashes or "[]")
    workers = sorted({crash["worker"] for crash in crashes if crash["worker"]})
    times = "once" if len(crashes) == 1 else f"{len(crashes)} times"
    return {
        "title": f"{report.task} is in quarantine",
        "message": f"A job of {report.task} on {report.queue} ended its worker {times} and does not start again.",
        "workers": workers[:20],
        "crashes": crashes,
    }
