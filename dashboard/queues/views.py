"""The list of queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.holds import notes as pause_notes
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin import queues
from jobs_admin.core.text import whole_number
from jobs_admin.db.priorities import level_of
from jobs_admin.desk import overview, retention
from jobs_admin.fleet.durability import EARLY, LATE, MIXED, Grade
from jobs_admin.models.access import VIEWER
from jobs_admin.queues import liveness, rates

LATE_SAMPLE_S = 60

_LATE = "Acknowledged after the job: a worker crash loses no running jobs."
_WINDOW = " Redis hands out a message before recording its worker: a worker killed in between loses the message."
_EARLY = "Acknowledged before {}: a worker crash loses {}, recorded only under a policy with file_lost."
# What can be lost where a worker dies (facts of Celery and kombu, not of ours).
DURABILITY = {
    Grade(LATE, False): ("late ack", _LATE),
    Grade(LATE, True): ("late ack, fetch window", _LATE + _WINDOW),
    Grade(EARLY, False): ("early ack", _EARLY.format("the job runs", "its jobs")),
    Grade(EARLY, True): ("early ack", _EARLY.format("the job runs", "its jobs") + _WINDOW),
    Grade(MIXED, False): ("mixed ack", _EARLY.format("some tasks run", "those")),
    Grade(MIXED, True): ("mixed ack", _EARLY.format("some tasks run", "those") + _WINDOW),
}


@dataclass(frozen=True, slots=True)
class Line:
    row: queues.QueueRow
    url: str
    dead_url: str
    retrying_url: str
    priorities: list[tuple[str, str, int]]  # the system's number, its level ("" for none), how many wait
    durability: str
    durability_words: str
    unguarded: str  # "" where all of its workers are guarded, or nobody knows
    is_paused: bool


@dataclass(slots=True)
class SourceLines:
    name: str
    state: str
    why: str
    since: datetime | None
    sampled_at: datetime | None
    is_late: bool
    is_configured: bool
    row: overview.SourceRow | None = None
    lines: list[Line] = field(default_factory=list)

    @property
    def has_guards(self) -> bool:
        return self.row is None or self.row.has_guards

    @property
    def counts_successes(self) -> bool:
        return self.row is None or self.row.counts_successes

    @property
    def columns(self) -> int:
        return 12 if self.has_guards else 10


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    after = request.GET.get("after", "")
    after = after if queues.is_cursor(after) else ""
    by_source = {row.name: _source(row) for row in overview.sources(request.viewer, now)}
    page = queues.queue_page(request.viewer, after=after, now=now)
    paused = pause_notes.paused_queues(request.viewer, now)
    for row in page.rows:
        if row.source not in by_source:
            by_source[row.source] = SourceLines(row.source, "unknown", "", None, row.sampled_at, False, False)
        by_source[row.source].lines.append(_line(row, by_source[row.source].row, paused))
    # Further pages are of queues: a source without one there was on the first.
    sources = [source for source in by_source.values() if source.lines or not after]
    context = {
        "sources": sources,
        "more_sources": 0 if after else overview.more_sources(request.viewer),
        "count": page.count,
        "self_url": _address(after),
        "first_url": _address("") if after else "",
        "next_url": _address(page.next) if page.next else "",
        "stale": liveness.find_stale(now),
        "rate_window": rates.WINDOW,
        "kept": retention.in_words(),
    }
    return render_page(request, "redrive/queues/list.html", context, part="queues")


def _address(after: str) -> str:
    return f"{reverse('redrive:queue-list')}?{urlencode({'after': after})}" if after else reverse("redrive:queue-list")


def _source(row: overview.SourceRow) -> SourceLines:
    if row.reachable:
        state = "reachable"
    else:
        state = "unknown" if row.reachable is None else "unreachable"
    is_late = row.age_s is not None and row.age_s > LATE_SAMPLE_S
    return SourceLines(row.name, state, row.why, row.changed_at, row.sampled_at, is_late, row.is_configured, row)


def _line(row: queues.QueueRow, source: overview.SourceRow | None, paused: set[tuple[str, str]]) -> Line:
    words, title = durability_words(row)
    # A single priority says nothing.
    waiting = sorted(row.by_priority.items(), key=_as_number) if len(row.by_priority) > 1 else []
    priorities = [(name, _level(row.source, name), count) for name, count in waiting]
    return Line(
        row,
        links.queue_page(row.source, row.queue),
        links.failures_of(source=row.source, queue=row.queue, state="dead"),
        links.failures_of(source=row.source, queue=row.queue, state="retrying"),
        priorities,
        words,
        title,
        unguarded(row, source),
        (row.source, row.queue) in paused,
    )


def durability_words(row: queues.QueueRow) -> tuple[str, str]:
    """Return the durability in short, and in a sentence; ("", "") if it was not reported."""
    return DURABILITY.get(Grade(row.durability, row.fetch_window), ("", ""))


def unguarded(row: queues.QueueRow, source: overview.SourceRow | None) -> str:
    """ "12 of 200 guarded: what fails in the other 188 is not seen here"; "" where that is not so, or not known."""
    if source is not None and source.keeps_dead:
        return ""  # what fails there is read from the system
    if row.workers is None or row.guarded_workers is None or row.guarded_workers >= row.workers:
        return ""
    others = row.workers - row.guarded_workers
    return f"{row.guarded_workers:,} of {row.workers:,} guarded: failures in the other {others:,} are not recorded"


def _level(source: str, name: str) -> str:
    number = whole_number(name)
    return (None if number is None else level_of(source, number)) or ""


def _as_number(priority: tuple[str, int]) -> tuple[int, str]:
    """Numbers in their order, then names."""
    name = priority[0]
    size = whole_number(name.removeprefix("-"))
    return (1_000 if size is None else -size if name[0] == "-" else size, name)
