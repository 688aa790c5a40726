"""Tells that a job went into quarantine: one critical notice for each, in the transaction that files it.

Who delivers it, and to whom, is another's matter: it stands in the table until somebody does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from jobs_admin.models import Notice
from jobs_admin.report import Report

TYPE = "poison.quarantined"


def write(quarantined: Iterable[tuple[int, Report]]) -> None:
    """(id of the failure, the report that quarantines it) of each. A notice that is there already stays as it is."""
    Notice.objects.bulk_create(
        [
            Notice(key=f"poison:{failure}:{report.run}", type=TYPE, severity="critical", body=_body(failure, report))
            for failure, report in quarantined
        ],
        ignore_conflicts=True,
    )


def _body(failure: int, report: Report) -> dict[str, object]:
    crashes = json.loads(report.crashes or "[]")
    workers = sorted({crash["worker"] for crash in crashes if crash["worker"]})
    times = "once" if len(crashes) == 1 else f"{len(crashes)} times"
    return {
        "title": f"{report.task} is in quarantine",
        "message": f"A job of {report.task} on {report.queue} ended its worker {times} and does not start again.",
        "failure": failure,
        "source": report.source,
        "queue": report.queue,
        "task": report.task,
        "job_id": report.job_id,
        "run": report.run,
        "policy": report.policy,
        "workers": workers[:20],
        "crashes": crashes,
    }
