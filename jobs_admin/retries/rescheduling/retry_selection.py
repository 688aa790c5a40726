"""Retries that a reschedule covers: waiting ones of one source, by a search or by hand; and the right to change them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import QuerySet

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.db import abilities
from jobs_admin.db.authorizing import authorize
from jobs_admin.models import Failure, Reschedule
from jobs_admin.models.access import ENGINE, OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.search import scope as scopes

MOST_SELECTED = 10_000
ACT = "retry.reschedule"  # in the audit


# CLASSDEL  # where one of several is to be chosen


def pin_query(query: str, now: datetime) -> str:
    """The search with the times that it has at `now`. Raises Refused where it cannot be the scope of an act."""
    read = language.parse(query, now)
    if why := language.unfit_for_acts(read):
        raise Refused("bad_scope", f"{why} Nothing was changed.", field="q")
    return language.format(language.pin(read, now))


def find_waiting(viewer: Viewer, query: str, selection: Sequence[int]) -> QuerySet[Failure]:
    """Return jobs that wait for a retry, where the viewer is operator. `query` as `pin_query` returns it."""
    if selection:
        ids = {pk for pk in selection if 0 < pk < 2**63}
        if len(ids) > MOST_SELECTED:
            raise Refused("too_many", f"At most {MOST_SELECTED:,} can be chosen by hand.", field="selection")
        found = Failure.objects.filter(scopes.visible(viewer, OPERATOR), pk__in=ids)
    else:
        found = failures.find_matching(viewer, language.parse(query), role=OPERATOR)
    return found.filter(state=FailureState.RETRYING)


def remaining(planned: Reschedule) -> QuerySet[Failure]:
    """Return the jobs of a reschedule that are not done."""
    found = find_waiting(ENGINE, planned.query, planned.selection)
    return found.filter(source=planned.source, pk__lt=planned.below, pk__lte=planned.scope_max_id)


def source_of(viewer: Viewer, rows: QuerySet[Failure]) -> str:
    """Return the one source that they wait in, which must be able to reschedule. Raises Refused."""
    sources = sorted(set(rows.order_by().values_list("source", flat=True).distinct()))
    able = [name for name in sources if (can := abilities.capabilities(name)) is not None and can.reschedule]
    if len(able) == 1:
        return able[0]
    if able:
        names = ", ".join(able)
        raise Refused(
            "bad_scope",
            f"These retries are on several sources: {names}. Choose one with source:…  Nothing was changed.",
            "q",
            sources=able,
        )
    if sources:
        raise Refused("bad_scope", f"Retries of {', '.join(sources)} cannot be rescheduled. Nothing was changed.", "q")
    raise Refused(
        "bad_scope",
        "None of these jobs is waiting for a retry on a source where you are operator. Nothing was changed.",
        "q",
    )


def allow(viewer: Viewer, source: str = "") -> None:
    """Raise Refused, and write that into the audit, where the viewer may change nothing there."""
    message = "You are not operator of {where}. Nothing was changed."
    authorize(viewer, OPERATOR, source or None, ACT, message=message)
