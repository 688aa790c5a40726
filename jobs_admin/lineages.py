"""Whether a report is of the job that a replay sent, or of one that only says so.

The header that tells of a replay may be handed on to other jobs, and anybody who publishes may write one. The workers tell
the first by the header itself; what an older one reported, and much of what is forged, is told here by the id under which
the run was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace as changed_copy
from operator import attrgetter

from jobs_admin import statements
from jobs_admin.core import terms
from jobs_admin.models import Failure, ReplayItem
from jobs_admin.report import Report, document

Name = tuple[str, str, str]  # source, queue and job id of run 1
Run = tuple[Name, int]

_SHOWN = ("error_type", "message", "first_job_id", "job_id", "args", "kwargs", *terms.NAMED)


def believed(reports: Sequence[Report]) -> list[Report]:
    """The reports, in their order; those that claim a run which was sent under another id have no lineage any more.

    A run of which no item tells (pruned, older than a restored database, or not marked as sent yet) is believed.
    """
    claims = [r for r in reports if r.has_lineage]
    if not claims:
        return list(reports)
    sent_as: dict[Run, set[str]] = defaultdict(set)
    names = _names({r.name for r in claims})
    for pk, run, job_id in ReplayItem.objects.filter(failure__in=names).values_list("failure", "run", "job_id"):
        sent_as[names[pk], run].add(job_id)
    return [r if not r.has_lineage or _is_its_own(r, sent_as.get((r.name, r.run))) else _by_itself(r) for r in reports]


def _names(claimed: set[Name]) -> dict[int, Name]:
    """Of the failures that there are: id -> name."""
    by_queue: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, queue, job_id in claimed:
        by_queue[source, queue].append(job_id)
    return {
        pk: (source, queue, first)
        for (source, queue), ids in by_queue.items()
        for pk, first in statements.find(
            Failure, ("id", "first_job_id"), among=("first_job_id", ids), source=source, queue=queue
        )
    }


def _is_its_own(report: Report, known: set[str] | None) -> bool:
    return not known or "" in known or report.job_id in known


def _by_itself(report: Report) -> Report:
    alone = changed_copy(report, queue=report.ran_on, first_job_id=report.job_id, run=1, item=None, has_lineage=False)
    values = dict(zip(_SHOWN, attrgetter(*_SHOWN)(alone), strict=True))
    return changed_copy(alone, terms=document(values) if alone.terms else "")
