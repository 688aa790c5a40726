"""One queue: waiting, running and dead jobs, and their history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_POST, require_safe

from dashboard.holds import breaker_page
from dashboard.holds import notes as pause_notes
from dashboard.queues import depth_picture
from dashboard.queues.views import LATE_SAMPLE_S, durability_words, unguarded
from dashboard.web import links, moments, time_range
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import queues
from jobs_admin.core.refused import Refused
from jobs_admin.desk import overview
from jobs_admin.fleet import durability, stranded
from jobs_admin.fleet.durability import Grade
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.queues import coverage, depths, liveness, rates
from jobs_admin.queues.depths.marking import MOST_OF_A_KIND, thresholds, thresholds_of_queue

_LONGEST = time_range.RANGES["400d"]
_SHORTEST = timedelta(minutes=2)
_POINTS, _ROWS = 700, 24  # of a chart, and of its table
_LINES = {
    "dead": ("Dead jobs", [("dead", "dead")]),
    "depth": (
        "Waiting, active and delayed jobs",
        [("waiting", "waiting"), ("active", "active"), ("delayed", "delayed")],
    ),
    "rates": (
        "Jobs per minute (2 min avg)",
        [("succeeded_per_min", "succeeded"), ("failed_per_min", "failed for good")],
    ),
}


@dataclass(frozen=True, slots=True)
class Window:
    """Displayed time range. `name` is one of time_range.RANGES, or "" for a custom range."""

    since: datetime
    until: datetime
    name: str
    hidden: tuple[str, ...]

    def query(self, **changes: Any) -> str:
        query = (
            {time_range.PARAMETER: self.name} if self.name else {"since": _text(self.since), "until": _text(self.until)}
        )
        if changes:
            query = changes
        return "?" + urlencode({**query, **({"hide": ",".join(self.hidden)} if self.hidden else {})})

    def shifted(self, part: float) -> str:
        by = (self.until - self.since) * part
        return self.query(since=_text(self.since + by), until=_text(self.until + by))

    def wider(self, now: datetime) -> str:
        """Return a range twice as long, up to the retention of samples; "" at the maximum."""
        by = (self.until - self.since) / 2
        until = min(self.until + by, now)
        since = max(until - 4 * by, now - _LONGEST)
        return self.query(since=_text(since), until=_text(until)) if until - since > 2 * by + _SHORTEST else ""

    def narrower(self) -> str:
        """Return the later half of the range; "" at the minimum."""
        by = (self.until - self.since) / 2
        return self.query(since=_text(self.since + by), until=_text(self.until)) if by >= _SHORTEST else ""

    def toggled(self, line: str) -> str:
        hidden = tuple(one for one in self.hidden if one != line) if line in self.hidden else (*self.hidden, line)
        return Window(self.since, self.until, self.name, hidden).query()


@require_safe
@can(VIEWER)
def index(request: HttpRequest, source: str, queue: str) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    depths.require_visible(viewer, source, queue)
    offered = time_range.with_data(depths.sampled_since(source, queue), now)
    window = _window(request, now, offered)
    history = depths.history(viewer, source, queue, window.since, window.until, most=_POINTS, now=now)
    found = depths.marks(viewer, source, queue, window.since, window.until)
    address = reverse("redrive:queue-detail", args=[source, queue])
    context = {
        "source": source,
        "queue": queue,
        "now": now,
        "stale": liveness.find_stale(now),
        "is_over": window.until < now - timedelta(seconds=LATE_SAMPLE_S),
        "self_url": address + window.query(),
        **_now(viewer, source, queue, now),
        **_picture(viewer, source, queue, window, history, address),
        "marks": depth_picture.uprights(history, found),
        "is_capped": any(sum(mark.kind == kind for mark in found) >= MOST_OF_A_KIND for kind in depth_picture.LABELS),
        "most_marks": MOST_OF_A_KIND,
        "window": window,
        "time_range": time_range.picker(request, offered, window.name),
        "earlier_url": address + window.shifted(-0.5),
        "later_url": address + window.shifted(0.5) if window.until < now - _SHORTEST else "",
        "narrower_url": address + narrower if (narrower := window.narrower()) else "",
        "wider_url": address + wider if (wider := window.wider(now)) else "",
    }
    return render_page(request, "redrive/queues/detail.html", context, part="queue")


@require_POST
@can(OPERATOR)
def return_now(request: HttpRequest, source: str, boot: str) -> HttpResponse:
    """Return jobs fetched by a dead worker to their queues."""
    if not request.viewer.may(VIEWER, source):
        raise Http404
    try:
        count = stranded.return_jobs(request.viewer, source, boot)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        add_toast(
            request,
            f"{count:,} job{'' if count == 1 else 's'} returned to {'its queue' if count == 1 else 'their queues'}.",
        )
    queue = request.POST.get("queue", "")
    return go(
        request, reverse("redrive:queue-detail", args=[source, queue]) if queue else reverse("redrive:worker-list")
    )


def _stranded(known: overview.SourceRow | None, source: str, queue: str) -> list[stranded.Stranded]:
    """Return the jobs of this queue that dead workers hold. The store is read only if `sample` found some."""
    return stranded.find_for_queue(source, queue) if known is not None and stranded.has_finding(known.findings) else []


def _now(viewer: Viewer, source: str, queue: str, now: datetime) -> dict[str, Any]:
    row = queues.get_queue(viewer, source, queue, now)
    known = overview.source(viewer, source, now)
    words, title = durability_words(row)
    grade = Grade(row.durability, row.fetch_window)
    age = (now - row.sampled_at).total_seconds() if row.sampled_at else None
    pauses = pause_notes.of_queue(viewer, source, queue, now)
    is_unknown = coverage.is_queue_unknown(source, queue)
    return {
        "row": row,
        "known": known,
        "stranded": _stranded(known, source, queue),
        "may_act": viewer.may(OPERATOR, source),
        "pauses": pauses,
        "breakers": breaker_page.of_queue(viewer, source, queue, now),
        "is_unknown": is_unknown,
        "may_pause": not is_unknown and pause_notes.may_pause(viewer, source, queue, pauses),
        "lengths": pause_notes.LENGTHS,
        "is_late": age is None or age > LATE_SAMPLE_S,
        "durability": words,
        "durability_words": title,
        "at_stake": _at_stake(durability.jobs_at_stake(source, queue, grade, now)) if words else "",
        "unguarded": unguarded(row, known),
        "rate_minutes": rates.OVER_MIN,
        "dead_url": links.failures_of(source=source, queue=queue, state="dead"),
        "retrying_url": links.failures_of(source=source, queue=queue, state="retrying"),
        "replay_url": links.replay_of(source=source, queue=queue, state="dead")
        if row.dead and not is_unknown and viewer.may(OPERATOR, source) and known is not None and known.takes_replays
        else "",
    }


def _at_stake(found: durability.AtStake) -> str:
    """Return the jobs that would be lost if every guarded worker of the queue were killed now."""
    if not found.workers:
        return ""
    all_of = "the guarded worker is" if found.workers == 1 else f"all {found.workers:,} guarded workers are"
    if found.running is None:
        lost = ["all running jobs"]
    else:
        jobs = f"up to {found.running:,} running job{'' if found.running == 1 else 's'}"
        lost = [f"{jobs} (a policy can record lost jobs for replay: file_lost)"] if found.running else []
    if found.fetched:
        lost.append(f"up to {found.fetched:,} in-flight message{'' if found.fetched == 1 else 's'}")
    if not lost:
        return f"If {all_of} killed now, no jobs are lost."
    return f"If {all_of} killed now, {' and '.join(lost)} may be lost."


def _picture(
    viewer: Viewer, source: str, queue: str, window: Window, history: depths.History, address: str
) -> dict[str, Any]:
    levels = thresholds_of_queue(thresholds(viewer), source, queue)
    frame = depth_picture.Frame(history)
    pictures = [
        depth_picture.picture(
            key,
            title,
            frame,
            [(name, words, name not in window.hidden, address + window.toggled(name)) for name, words in lines],
            levels if key == "dead" else (),
        )
        for key, (title, lines) in _LINES.items()
    ]
    few = depths.history(viewer, source, queue, window.since, window.until, most=_ROWS)
    return {
        "pictures": pictures if history.points else [],
        "ticks": depth_picture.ticks(history),
        "holes": depth_picture.holes(history),
        "values": depth_picture.values(history),
        "step_s": history.step_s,
        "is_folded": history.step_s > depths.SAMPLE_S,
        "rows": depth_picture.rows(few),
        "row_step_s": few.step_s,
    }


def _window(request: HttpRequest, now: datetime, offered: list[str]) -> Window:
    """Return the time range in the URL: a custom range, or one of the picker."""
    parameters = request.GET
    known = [name for _, lines in _LINES.values() for name, _ in lines]
    hidden = tuple(name for name in dict.fromkeys(parameters.get("hide", "").split(",")) if name in known)
    since, until = _moment(parameters.get("since", "")), _moment(parameters.get("until", "")) or now
    if since is not None and since < now - _SHORTEST:
        since = max(since, now - 2 * _LONGEST)
        return Window(since, min(max(until, since + _SHORTEST), now), "", hidden)
    name = time_range.requested(request) or time_range.chosen(request, offered)
    return Window(now - time_range.RANGES[name], now, name, hidden)


def _moment(text: str) -> datetime | None:
    if text.isascii() and text.isdigit() and len(text) <= 11:  # as sent by the script
        at: datetime | None = datetime.fromtimestamp(int(text), UTC)
    else:
        try:
            at = parse_datetime(text)
        except ValueError:
            return None
    try:
        return None if at is None else moments.sane(at if at.tzinfo else at.replace(tzinfo=UTC))
    except ValueError:
        return None


def _text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
