"""The list of queues."""

from __future__ import annotations

from collections.abc import Sequence
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
from jobs_admin import holds, queues
from jobs_admin.core.text import whole_number
from jobs_admin.db.abilities import level_of
from jobs_admin.desk import overview, retention
from jobs_admin.fleet.durability import EARLY, LATE, MIXED, Grade
from jobs_admin.models import Pause
from jobs_admin.models.access import VIEWER
from jobs_admin.queues import coverage, liveness, rates

LATE_SAMPLE_S = 60

_LATE = "Acknowledged after the job: a worker crash loses no running jobs."
_WINDOW = " Redis hands out a message before recording its worker: a worker killed in between loses the message."
_EARLY = "Acknowledged before {}: a worker crash loses {}, recorded only under a policy with file_lost."
# What can be lost when a worker dies (properties of Celery and kombu).
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
    priorities: list[tuple[str, str, int]]  # (number in the system, level or "", waiting jobs)
    durability: str
    durability_words: str
    unguarded: str  # "" if all of its workers are guarded, or unknown
    is_paused: bool
    partly_paused: str  # sentence about paused tasks and dependencies; "" for none
    is_unknown: bool  # jobs whose queue is unknown, because events did not name it


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
    paused_tenants: str = ""  # sentence

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
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    now, focus = timezone.now(), request.viewer.focus
    after = request.GET.get("after", "")
    after = after if queues.is_cursor(after) else ""
    by_source = {row.name: _source(row) for row in overview.sources(request.viewer, now)}
    page = queues.queue_page(request.viewer, after=after, now=now)
    paused = holds.pauses_of(request.viewer, [(row.source, row.queue) for row in page.rows], now)
    for row in page.rows:
        if row.source not in by_source:
            by_source[row.source] = SourceLines(row.source, "unknown", "", None, row.sampled_at, False, False)
        source, pauses = by_source[row.source], paused.get((row.source, row.queue), [])
        source.lines.append(_line(row, source.row, pauses, now))
        source.paused_tenants = source.paused_tenants or pause_notes.sentence(
            [one for one in pauses if one.tenant], now
        )
    # Later pages only continue queues: a source without any was on the first page.
    sources = [source for source in by_source.values() if source.lines or not after]
    context = {
        "sources": sources,
        "more_sources": 0 if after else overview.more_sources(request.viewer),
        "count": page.count,
        "self_url": _address(after, focus),
        "first_url": _address("", focus) if after else "",
        "next_url": _address(page.next, focus) if page.next else "",
        "stale": liveness.find_stale(now),
        "rate_window": rates.WINDOW,
        "kept": retention.in_words(),
    }
    return render_page(request, "redrive/queues/list.html", context, part="queues")


def _address(after: str, source: str) -> str:
    given = {name: value for name, value in (("source", source), ("after", after)) if value}
    return f"{reverse('redrive:queue-list')}?{urlencode(given)}" if given else reverse("redrive:queue-list")


def _source(row: overview.SourceRow) -> SourceLines:
    if row.reachable:
        state = "reachable"
    else:
        state = "unknown" if row.reachable is None else "unreachable"
    is_late = row.age_s is not None and row.age_s > LATE_SAMPLE_S
    return SourceLines(row.name, state, row.why, row.changed_at, row.sampled_at, is_late, row.is_configured, row)


def _line(row: queues.QueueRow, source: overview.SourceRow | None, pauses: Sequence[Pause], now: datetime) -> Line:
    words, title = durability_words(row)
    # A single priority is not informative.
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
        any(one.queue for one in pauses),
        pause_notes.sentence([one for one in pauses if one.task or one.dependency], now),
        coverage.is_queue_unknown(row.source, row.queue),
    )


def durability_words(row: queues.QueueRow) -> tuple[str, str]:
    """Return the durability as a word and as a sentence; ("", "") if it was not reported."""
    return DURABILITY.get(Grade(row.durability, row.fetch_window), ("", ""))


def unguarded(row: queues.QueueRow, source: overview.SourceRow | None) -> str:
    """Return "12 of 200 guarded: what fails in the other 188 is not seen here"; "" if all are, or unknown."""
    if source is not None and source.keeps_dead:
        return ""  # failures are read from the system itself
    if row.workers is None or row.guarded_workers is None or row.guarded_workers >= row.workers:
        return ""
    others = row.workers - row.guarded_workers
    return f"{row.guarded_workers:,} of {row.workers:,} guarded: failures in the other {others:,} are not recorded"


def _level(source: str, name: str) -> str:
    number = whole_number(name)
    return (None if number is None else level_of(source, number)) or ""


def _as_number(priority: tuple[str, int]) -> tuple[int, str]:
    """Return a sort key: numbers in numeric order, then names."""
    name = priority[0]
    size = whole_number(name.removeprefix("-"))
    return (1_000 if size is None else -size if name[0] == "-" else size, name)
