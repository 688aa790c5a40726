"""The overview: what fails now, and the trend."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.alerts import listing as alert_list
from dashboard.alerts.channels import silent as silent_channels
from dashboard.groups import listing as group_list
from dashboard.overview import pictures
from dashboard.queues.sources import signing as source_signing
from dashboard.replays import page as replay_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin import alerts, config
from jobs_admin.alerts import wording
from jobs_admin.desk import overview
from jobs_admin.models import Alert, Replay, Unfiled
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.queues import liveness, rates

ALERTS_SHOWN = 5
MOST_ON_HOLD = 3  # replays
MOST_ALERTS = 50  # looked at, of those that fire
LATE_SAMPLE_S = 60  # an older look at a source is said
MOST_UNFILED = 1_000


@dataclass(frozen=True, slots=True)
class DeadLine:
    queue: str
    source: str
    count: int
    url: str
    replay_url: str  # "" where this viewer may not
    part: float  # 0 to 100, of the fullest


@dataclass(frozen=True, slots=True)
class SourceLine:
    row: overview.SourceRow
    state: str
    url: str  # of its dead jobs
    is_late: bool


@dataclass(frozen=True, slots=True)
class ReplayLine:
    replay: Replay
    url: str
    settled: int
    to_go: int  # jobs that were or will be sent: all but the excluded
    parts: list[replay_page.Part]


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    watched, board = liveness.current_state(now), overview.board(viewer, now)
    sentence, series = board.sentence, board.series
    may_replay = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    on_hold = [replay for replay in board.replays if replay.state == ReplayState.HELD]
    firing = alerts.firing(viewer, limit=MOST_ALERTS)
    firing_lines = alert_list.folded_lines(firing, now, alert_list.may_act(viewer, firing))
    context = {
        "act": None if watched.stale else _find_primary_act(viewer, [line.alert for line in firing_lines], board),
        "alerts": firing_lines[:ALERTS_SHOWN],
        "more_alerts": len(firing) - sum(line.count for line in firing_lines[:ALERTS_SHOWN]),
        "has_most_alerts": len(firing) == MOST_ALERTS,
        "back": reverse("redrive:overview"),
        "now": now,
        "sentence": sentence,
        "sentence_url": f"{reverse('redrive:failure-list')}?{urlencode({'q': sentence.query})}"
        if sentence.query
        else "",
        "rate_words": f"Rate over {rates.WINDOW}, compared with the {rates.BEFORE_MIN} minutes before. A job may fail several attempts.",
        "stale": watched.stale,
        "silent": silent_channels.silent(board.silent, sees=viewer.may(ADMIN, EVERY_SOURCE)),
        "sources": [_source_line(row) for row in board.sources],
        "more_sources": board.more_sources,
        "first_worker_of": overview.source_without_workers(board.sources),
        "findings": overview.findings(viewer, board.sources, watched.findings),
        "picture": pictures.failed_attempts(series, board.policies, board.sampled_since),
        "dead_picture": pictures.dead_jobs(board),
        "dead": _dead(viewer, board),
        "more_dead": board.more_dead,
        "rows": group_list.rows(board.loudest, now=now, may_replay=may_replay),
        "may_replay": may_replay,
        "replays": [_replay_line(replay) for replay in board.replays],
        "on_hold": [_replay_line(replay) for replay in on_hold[:MOST_ON_HOLD]],
        "more_held": len(on_hold[MOST_ON_HOLD:]),
        "uncaptured": board.uncaptured,
        "signing": source_signing.lines(viewer, board.signing, now),
        "unfiled": Unfiled.objects.filter(cause="").order_by()[: MOST_UNFILED + 1].count(),
        "most_unfiled": MOST_UNFILED,
        # Django's admin lets in members of staff only, and a project may do without it.
        "unfiled_url": links.url_of("admin:jobs_admin_unfiled_changelist")
        if viewer.may(ADMIN, EVERY_SOURCE) and request.user.is_staff
        else "",
    }
    return render_page(request, "redrive/overview/index.html", context, part="overview")


def _dead(viewer: Viewer, board: overview.Board) -> list[DeadLine]:
    most = max((n for *_, n in board.dead), default=1)
    return [
        DeadLine(
            queue,
            source,
            n,
            links.failures_of(source=source, queue=queue, state="dead"),
            _replay_url(viewer, board, source, queue),
            round(n / most * 100, 1),
        )
        for source, queue, n in board.dead
    ]


@dataclass(frozen=True, slots=True)
class PrimaryAct:
    words: str
    url: str  # "" where this viewer may not
    why_not: str


def _find_primary_act(viewer: Viewer, worst_first: list[Alert], board: overview.Board) -> PrimaryAct | None:
    """Return the replay of the dead jobs of the worst alert on them; without such an alert, of the fullest queue."""
    counts = {(source, queue): n for source, queue, n in board.dead}
    for alert in worst_first:
        place = alert.source, alert.subject
        if alert.rule.metric != "dead" or not _takes_replays(board, alert.source):
            continue
        if not (n := counts.get(place) or overview.count_dead(viewer, *place)):
            continue
        if alert.rule.is_narrowed:
            url = links.new_replay(alerts.replay_query(alert))
            return _act(viewer, alert.source, f"{alert.subject} jobs of {wording.narrowed(alert.rule)}", url)
        return _act_on_queue(viewer, *place, n)
    fullest = next((one for one in board.dead if one[1] and _takes_replays(board, one[0])), None)
    return _act_on_queue(viewer, *fullest) if fullest else None


def _act_on_queue(viewer: Viewer, source: str, queue: str, n: int) -> PrimaryAct:
    url = links.replay_of(source=source, queue=queue, state="dead")
    return _act(viewer, source, f"{n:,} {queue} job{'' if n == 1 else 's'}", url)


def _act(viewer: Viewer, source: str, jobs: str, url: str) -> PrimaryAct:
    if config.is_read_only():
        return PrimaryAct("", "", f"The desk is read-only: {jobs} cannot be replayed.")
    if not viewer.may(OPERATOR, source):
        return PrimaryAct("", "", f"Replaying {jobs} needs the role operator on {source}.")
    return PrimaryAct(f"Review and replay {jobs}", url, "")


def _takes_replays(board: overview.Board, source: str) -> bool:
    return any(row.name == source and row.takes_replays for row in board.sources)


def _replay_url(viewer: Viewer, board: overview.Board, source: str, queue: str) -> str:
    may = viewer.may(OPERATOR, source) and not config.is_read_only() and _takes_replays(board, source)
    # No search names a queue without a name.
    return links.replay_of(source=source, queue=queue, state="dead") if may and queue else ""


def _source_line(row: overview.SourceRow) -> SourceLine:
    if row.reachable:
        state = "reachable"
    else:
        state = "unknown" if row.reachable is None else "unreachable"
    is_late = row.age_s is not None and row.age_s > LATE_SAMPLE_S
    return SourceLine(row, state, links.failures_of(source=row.name, state="dead"), is_late)


def _replay_line(replay: Replay) -> ReplayLine:
    to_go = replay.total - replay.cancelled
    url = reverse("redrive:replay-detail", args=[replay.pk])
    return ReplayLine(replay, url, replay.settled, to_go, replay_page.parts(replay))
