"""Verification of lineages: whether a report belongs to the job that a replay sent, or only claims to.

The header of a replay may be passed on to other jobs, and anyone who can publish may write one. Workers recognize the
first case by the header itself. Reports of older workers, and many forged ones, are recognized here by the id under
which the run was sent.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from dataclasses import replace as changed_copy
from datetime import UTC, datetime
from operator import attrgetter

from django.db import transaction

from jobs_admin.core import search_terms
from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.text import representable
from jobs_admin.db import statements
from jobs_admin.ingest.report import Report, document_without_stack
from jobs_admin.models import Comeback, Failure, ReplayItem

_JobName = tuple[str, str, str]  # source, queue, job id


@dataclass(slots=True)
class _ReusedId:
    """A failure, and the successive jobs that had its id."""

    failure: int
    run: int  # the latest
    made: dict[datetime, int]  # time when each job was made -> the run that it started


def assign_runs(reports: Sequence[Envelope]) -> list[Envelope]:
    """Return the reports, in their order. A job made after all known jobs with its id gets a run of its own.

    Reports of jobs that a replay sent already have their run.
    """
    known = _find_reused_ids([one for one in reports if one.lineage is None and one.made_at is not None])
    return [_with_run(one, known.get(_job_name(one))) for one in reports]


def _with_run(report: Envelope, known: _ReusedId | None) -> Envelope:
    made_at = _moment(report.made_at)
    if known is None or made_at is None or report.lineage is not None:
        return report
    run = known.made.get(made_at)
    if run is None:
        # A job made before a known one was never reported while it had the id, and cannot be distinguished.
        run = _begin_run(known, made_at) if made_at > max(known.made) else 1
    return report if run == 1 else replace(report, lineage=_lineage(report, run))


def _job_name(report: Envelope) -> _JobName:
    """Return the name of the job as in the tables (`report.parse_report`)."""
    return report.source, representable(report.queue)[:200], representable(report.job_id)[:255]


def _lineage(report: Envelope, run: int) -> Lineage:
    return Lineage(report.queue, report.job_id, run, sent_as=report.job_id)


def _begin_run(known: _ReusedId, made_at: datetime) -> int:
    """Record a run before it is filed: a process that repeats this after a crash finds the same run."""
    with transaction.atomic():
        later = Comeback.objects.filter(failure=known.failure)
        run = max([known.run, *later.values_list("run", flat=True)]) + 1
        begun, _ = Comeback.objects.get_or_create(failure_id=known.failure, made_at=made_at, defaults={"run": run})
    known.made[made_at], known.run = begun.run, begun.run
    return begun.run


def _find_reused_ids(reports: Sequence[Envelope]) -> dict[_JobName, _ReusedId]:
    """Return the known first jobs of these reports, with the time when each was made."""
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in reports:
        source, queue, job_id = _job_name(one)
        places[source, queue].add(job_id)
    found: dict[_JobName, _ReusedId] = {}
    for (source, queue), ids in places.items():
        rows = Failure.objects.filter(source=source, queue=queue, first_job_id__in=ids, made_at__isnull=False)
        for pk, job_id, run, made_at in rows.values_list("pk", "first_job_id", "run", "made_at"):
            found[source, queue, job_id] = _ReusedId(pk, run, {made_at: 1})
    by_failure = {one.failure: one for one in found.values()}
    for failure, made_at, run in Comeback.objects.filter(failure__in=by_failure).values_list(
        "failure", "made_at", "run"
    ):
        by_failure[failure].made[made_at] = run
    return found


def _moment(seconds: float | None) -> datetime | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


Name = tuple[str, str, str]  # source, queue and job id of run 1

_SHOWN = (
    "error_type",
    "message",
    "first_job_id",
    "job_id",
    "args",
    "kwargs",
    "headers",
    "event_id",
    *search_terms.NAMED,
)

log = logging.getLogger(__name__)


def verify_lineages(reports: Sequence[Report]) -> list[Report]:
    """Return the reports, in their order; those that claim a run sent under another id lose their lineage.

    Successes of runs that the desk did not send are dropped. A failed run without an item (pruned, later than a
    restored backup, or not marked as sent yet) is accepted. The item that a report names is accepted only if that item
    sent this run of this job, and therefore to the report's own source.
    """
    claims = [r for r in reports if r.has_lineage]
    if not claims:
        return list(reports)
    replays = _find_recorded_runs({r.name for r in claims})
    for r in claims:
        if r.name in replays and r.kind != "success":
            replays[r.name].heard = max(replays[r.name].heard, r.run)
    found = [_verified_report(r, replays.get(r.name)) if r.has_lineage else r for r in reports]
    if ignored := found.count(None):
        log.warning("%d reports are ignored: they call runs succeeded that this desk did not send.", ignored)
    return [r for r in found if r is not None]


@dataclass(slots=True)
class _RecordedRuns:
    """The recorded runs of a failure."""

    run: int  # the failure's current run
    job_id: str  # its job id in that run
    heard: int = 0  # the highest failed run among the reports being filed
    has_items: bool = False
    came_again: set[int] = field(default_factory=set)  # runs in which a source reused the job's id, without a replay
    sent_as: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))  # run -> item -> job id

    def may_have_sent(self, report: Report) -> bool:
        """Return whether the run of a reported success was sent, or may have been.

        Items are deleted with their failure. A failure without items may have been recreated from a report of an
        earlier run, or the desk may be another one: then all reported runs and the next one may have been sent.
        """
        if report.run in self.sent_as or report.run in self.came_again:
            return True
        if report.run == self.run:  # the run failed before
            return report.job_id == self.job_id
        return not self.has_items and report.run <= max(self.run, self.heard) + 1


def _verified_report(report: Report, replays: _RecordedRuns | None) -> Report | None:
    """Return the report with the lineage that recorded replays confirm; None for a success that they do not confirm."""
    if replays is None:  # unknown failure: nothing can be overwritten
        return changed_copy(report, item=None)
    sent_as = replays.sent_as.get(report.run, {})
    known = set(sent_as.values())
    if known and "" not in known and report.job_id not in known:
        return _without_lineage(report)
    if report.kind == "success" and not replays.may_have_sent(report):
        return None
    return report if report.item is None or report.item in sent_as else changed_copy(report, item=None)


def _find_recorded_runs(claimed: set[Name]) -> dict[Name, _RecordedRuns]:
    """Return the recorded runs of existing failures, by name."""
    by_queue: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, queue, job_id in claimed:
        by_queue[source, queue].append(job_id)
    found: dict[Name, _RecordedRuns] = {}
    of_failure: dict[int, _RecordedRuns] = {}
    for (source, queue), ids in by_queue.items():
        columns = ("id", "first_job_id", "run", "job_id")
        rows = statements.find(Failure, columns, among=("first_job_id", ids), source=source, queue=queue)
        for pk, first, run, job_id in rows:
            found[source, queue, first] = of_failure[pk] = _RecordedRuns(run, job_id)
    items = ReplayItem.objects.filter(failure__in=of_failure)
    for pk, failure, run, job_id, claimed_at, sent_at in items.values_list(
        "pk", "failure", "run", "job_id", "claimed_at", "sent_at"
    ):
        of_failure[failure].has_items = True
        if job_id or claimed_at or sent_at:  # otherwise it is planned, or was cancelled before it was sent
            of_failure[failure].sent_as[run][pk] = job_id
    for failure, run in Comeback.objects.filter(failure__in=of_failure).values_list("failure", "run"):
        of_failure[failure].came_again.add(run)
    return found


def _without_lineage(report: Report) -> Report:
    alone = changed_copy(report, queue=report.ran_on, first_job_id=report.job_id, run=1, item=None, has_lineage=False)
    values = dict(zip(_SHOWN, attrgetter(*_SHOWN)(alone), strict=True))
    return changed_copy(alone, terms=document_without_stack(values) if alone.terms else "")
