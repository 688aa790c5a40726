"""Whether a report is of the job that a replay sent, or of one that only says so.

The header that tells of a replay may be handed on to other jobs, and anybody who publishes may write one. The workers tell
the first by the header itself; what an older one reported, and much of what is forged, is told here by the id under which
the run was sent.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed_copy
from operator import attrgetter

from jobs_admin.core import terms
from jobs_admin.db import statements
from jobs_admin.ingest.report import Report, document
from jobs_admin.models import Comeback, Failure, ReplayItem

Name = tuple[str, str, str]  # source, queue and job id of run 1

_SHOWN = ("error_type", "message", "first_job_id", "job_id", "args", "kwargs", *terms.NAMED)

log = logging.getLogger(__name__)


def believed(reports: Sequence[Report]) -> list[Report]:
    """The reports, in their order; those that claim a run which was sent under another id have no lineage any more, and
    successes of runs that the desk did not send are left out.

    A failing run of which no item tells (pruned, older than a restored database, or not marked as sent yet) is believed. The
    item that a report names is believed only where that item sent this run of this job, so it was sent to the report's own
    source.
    """
    claims = [r for r in reports if r.has_lineage]
    if not claims:
        return list(reports)
    replays = _replays({r.name for r in claims})
    for r in claims:
        if r.name in replays and r.kind != "success":
            replays[r.name].heard = max(replays[r.name].heard, r.run)
    found = [_believed(r, replays.get(r.name)) if r.has_lineage else r for r in reports]
    if ignored := found.count(None):
        log.warning("%d reports are ignored: they call runs succeeded that this desk did not send.", ignored)
    return [r for r in found if r is not None]


@dataclass(slots=True)
class _Replays:
    """The runs of a failure, as far as they are recorded."""

    run: int  # of the failure now, and
    job_id: str  # its id in that
    heard: int = 0  # the highest run that failed, of the reports being filed
    has_items: bool = False
    came_again: set[int] = field(default_factory=set)  # runs of a source that gave the job's id again, without a replay
    sent_as: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))  # run -> item -> job id

    def may_have_sent(self, report: Report) -> bool:
        """Return whether the run that a success claims was sent, or may have been.

        Items are deleted with their failure. Where it has none it may be back since, by a report of an earlier run, or the
        desk is another one: then the runs that were heard of and the next one may have been sent.
        """
        if report.run in self.sent_as or report.run in self.came_again:
            return True
        if report.run == self.run:  # it failed before
            return report.job_id == self.job_id
        return not self.has_items and report.run <= max(self.run, self.heard) + 1


def _believed(report: Report, replays: _Replays | None) -> Report | None:
    """The report as far as the desk's replays of its failure bear it out; None for a success of which they know nothing."""
    if replays is None:  # a failure that is not known: nothing is there to be changed
        return changed_copy(report, item=None)
    sent_as = replays.sent_as.get(report.run, {})
    known = set(sent_as.values())
    if known and "" not in known and report.job_id not in known:
        return _by_itself(report)
    if report.kind == "success" and not replays.may_have_sent(report):
        return None
    return report if report.item is None or report.item in sent_as else changed_copy(report, item=None)


def _replays(claimed: set[Name]) -> dict[Name, _Replays]:
    """By name, of the failures that there are."""
    by_queue: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, queue, job_id in claimed:
        by_queue[source, queue].append(job_id)
    found: dict[Name, _Replays] = {}
    of_failure: dict[int, _Replays] = {}
    for (source, queue), ids in by_queue.items():
        columns = ("id", "first_job_id", "run", "job_id")
        rows = statements.find(Failure, columns, among=("first_job_id", ids), source=source, queue=queue)
        for pk, first, run, job_id in rows:
            found[source, queue, first] = of_failure[pk] = _Replays(run, job_id)
    items = ReplayItem.objects.filter(failure__in=of_failure)
    for pk, failure, run, job_id, claimed_at, sent_at in items.values_list(
        "pk", "failure", "run", "job_id", "claimed_at", "sent_at"
    ):
        of_failure[failure].has_items = True
        if job_id or claimed_at or sent_at:  # else it is planned, or was cancelled before it was sent
            of_failure[failure].sent_as[run][pk] = job_id
    for failure, run in Comeback.objects.filter(failure__in=of_failure).values_list("failure", "run"):
        of_failure[failure].came_again.add(run)
    return found


def _by_itself(report: Report) -> Report:
    alone = changed_copy(report, queue=report.ran_on, first_job_id=report.job_id, run=1, item=None, has_lineage=False)
    values = dict(zip(_SHOWN, attrgetter(*_SHOWN)(alone), strict=True))
    return changed_copy(alone, terms=document(values) if alone.terms else "")
