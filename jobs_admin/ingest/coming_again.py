"""Ids that come again: a system gives the id of a job that is no more to another one, and that fails, too.

Both are one failure here, the later one with a run more: only its message can be sent, since the id is its own now. A job is known again
by when it was made, which is compared with nothing but the like: clocks may differ as they please.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db import transaction

from jobs_admin.core.envelope import Envelope, Lineage
from jobs_admin.core.text import representable
from jobs_admin.models import Comeback, Failure

Name = tuple[str, str, str]  # source, queue, job id


@dataclass(slots=True)
class _Known:
    """A failure, and the jobs that its id belonged to one after the other."""

    failure: int
    run: int  # the latest
    made: dict[datetime, int]  # when each job was made -> the run that it began


def as_runs(reports: Sequence[Envelope]) -> list[Envelope]:
    """The reports, in their order; one of a job that was made after all that its id is known to have belonged to has a run of its own.

    Reports whose job was sent by us have their run already.
    """
    known = _known([one for one in reports if one.lineage is None and one.made_at is not None])
    return [_placed(one, known.get(_name(one))) for one in reports]


def _placed(report: Envelope, known: _Known | None) -> Envelope:
    made_at = _moment(report.made_at)
    if known is None or made_at is None or report.lineage is not None:
        return report
    run = known.made.get(made_at)
    if run is None:
        # One from before is of a job that was never told of while it had the id: there is nothing that it could be told apart by.
        run = _begin(known, made_at) if made_at > max(known.made) else 1
    return report if run == 1 else replace(report, lineage=_lineage(report, run))


def _name(report: Envelope) -> Name:
    """As it stands in the tables (`report.read`)."""
    return report.source, representable(report.queue)[:200], representable(report.job_id)[:255]


def _lineage(report: Envelope, run: int) -> Lineage:
    return Lineage(report.queue, report.job_id, run, sent_as=report.job_id)


def _begin(known: _Known, made_at: datetime) -> int:
    """Written down before it is filed: who comes again after a death finds the same run."""
    with transaction.atomic():
        later = Comeback.objects.filter(failure=known.failure)
        run = max([known.run, *later.values_list("run", flat=True)]) + 1
        begun, _ = Comeback.objects.get_or_create(failure_id=known.failure, made_at=made_at, defaults={"run": run})
    known.made[made_at], known.run = begun.run, begun.run
    return begun.run


def _known(reports: Sequence[Envelope]) -> dict[Name, _Known]:
    """Of those whose first job is known, when it was made."""
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in reports:
        source, queue, job_id = _name(one)
        places[source, queue].add(job_id)
    found: dict[Name, _Known] = {}
    for (source, queue), ids in places.items():
        rows = Failure.objects.filter(source=source, queue=queue, first_job_id__in=ids, made_at__isnull=False)
        for pk, job_id, run, made_at in rows.values_list("pk", "first_job_id", "run", "made_at"):
            found[source, queue, job_id] = _Known(pk, run, {made_at: 1})
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
