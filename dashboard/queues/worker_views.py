"""The list of guarded workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.core import query as language
from jobs_admin.core.query import Query, Text
from jobs_admin.desk import overview
from jobs_admin.fleet import listing
from jobs_admin.fleet.listing import WorkerRow
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import liveness

QUEUES_SHOWN, POLICIES_SHOWN = 3, 20
_STATES = {"": None, "live": False, "gone": True}


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    count: int
    url: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class Line:
    row: WorkerRow
    queues: list[tuple[str, str]]  # (name, URL)
    more_queues: int
    policies: list[tuple[str, int, str]]  # (name, version, URL)
    more_policies: int
    problems: list[str]
    jobs: list[tuple[listing.FetchedJob, str]]  # with the search for each
    more_jobs: int
    failures_url: str
    may_act: bool

    @property
    def jobs_taken(self) -> int:
        """Return the number of jobs stranded by a worker that is gone."""
        return len(self.row.left.tags) + self.row.left.lost if self.row.left else 0

    @property
    def has_details(self) -> bool:
        return bool(self.problems or self.row.left or self.jobs or self.policies)


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    now, source = timezone.now(), request.viewer.focus
    after, state = request.GET.get("after", ""), request.GET.get("state", "")
    after = after if listing.is_cursor(after) else ""
    state = state if state in _STATES else ""
    page = listing.worker_page(request.viewer, now, after=after, is_gone=_STATES[state])
    counts = {"": page.live + page.gone, "live": page.live, "gone": page.gone}
    context: dict[str, Any] = {
        "lines": [_line(row, request.viewer.may(OPERATOR, row.source)) for row in page.rows],
        "page": page,
        "tabs": [
            Tab((of or "all").capitalize(), n, _address(source=source, state=of), of == state)
            for of, n in counts.items()
        ],
        "state": state,
        "self_url": _address(source=source, state=state, after=after),
        "first_url": _address(source=source, state=state) if after else "",
        "next_url": _address(source=source, state=state, after=page.next) if page.next else "",
        "waiting_source": "" if counts[""] else overview.source_without_workers(overview.sources(request.viewer, now)),
        "stale": liveness.find_stale(now),
    }
    return render_page(request, "redrive/workers/list.html", context, part="workers")


def _address(**fields: str) -> str:
    given = {name: value for name, value in fields.items() if value}
    return f"{reverse('redrive:worker-list')}?{urlencode(given)}" if given else reverse("redrive:worker-list")


def _line(row: WorkerRow, may_act: bool) -> Line:
    return Line(
        row,
        [(queue, links.queue_page(row.source, queue)) for queue in row.queues[:QUEUES_SHOWN]],
        max(0, len(row.queues) - QUEUES_SHOWN),
        [
            (name, version, reverse("redrive:policy-detail", args=[name]))
            for name, version in sorted(row.policies.items())[:POLICIES_SHOWN]
        ],
        max(0, len(row.policies) - POLICIES_SHOWN),
        list(_problems(row)),
        [(job, links.list_url(language.format(Query((Text(job.job_id),))))) for job in row.jobs],
        (row.in_hand or 0) - len(row.jobs),
        links.failures_of(source=row.source, worker=row.worker),
        may_act,
    )


def _problems(row: WorkerRow) -> Iterator[str]:
    """Yield a sentence for each problem of a worker."""
    for name, why in sorted(row.refused.items()):
        yield f"Policy {name}: the version in force is not used: {why}"
    if row.spooled:
        reports = f"{row.spooled:,} report{'' if row.spooled == 1 else 's'}"
        yield f"{reports} waiting on its disk: the store did not answer or was full."
    if row.dropped:
        yield f"{row.dropped:,} report{'' if row.dropped == 1 else 's'} lost: its disk was full or could not be written to."
    if row.is_alive and row.mode == "off":
        yield "The guard is off: failures of this worker are not recorded."
