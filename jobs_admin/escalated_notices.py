"""Tells that a job used up its attempts under a policy which says `exhausted: escalate`: one notice for each run of it.

In the transaction that files it; who delivers it, and to whom, is another's matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobs_admin.models import Notice
from jobs_admin.report import Report

TYPE = "job.escalated"


def write(escalated: Iterable[tuple[int, Report]]) -> None:
    """(id of the failure, the report of its last attempt) of each. A notice that is there already stays as it is."""
    Notice.objects.bulk_create(
        [
            Notice(key=f"escalated:{failure}:{report.run}", type=TYPE, severity="warning", body=_body(failure, report))
            for failure, report in escalated
        ],
        ignore_conflicts=True,
    )


def _body(failure: int, report: Report) -> dict[str, object]:
    tries = "its only attempt" if report.attempt == 1 else f"all {report.attempt} attempts"
    return {
        "title": f"{report.task} needs a person",
        "message": f"A job of {report.task} on {report.queue} failed {tries}; its policy asks that somebody looks at it.",
        "failure": failure,
        "source": report.source,
        "queue": report.queue,
        "task": report.task,
        "job_id": report.job_id,
        "run": report.run,
        "policy": report.policy,
        "error_type": report.error_type,
    }
