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
from dashboard.holds import notes as pause_notes
from dashboard.overview import pictures
from dashboard.queues.sources import signing as source_signing
from dashboard.replays import page as replay_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin import alerts, config, replays
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
MOST_READ = 20_000  # dead jobs, for the number on the button
MOST_OUTLOOKS = 50  # stored


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
        "paused": pause_notes.sentence(viewer, now),
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
    """The links beside the headline: to the replay of dead jobs, and first to these jobs where a replay would fail."""

    replay: str  # label
    replay_url: str  # "" where this viewer may not
    why_not: str
    review: str = ""  # label; "" where the replay is the act
    review_url: str = ""
    note: str = ""  # why the review comes first


@dataclass(frozen=True, slots=True)
class _Dead:
    """Dead jobs of a place."""

    source: str
    queue: str
    part: str  # of the queue: ` of tenant acme`; "" for all of it
    count: int | None  # None: not counted
    query: str

    def words(self, n: int | None, kind: str = "") -> str:
        """Return `1,453 webhooks jobs`; `kind` as in `1,453 dead webhooks jobs`."""
        many = "" if n is None else f"{n:,} "
        return f"{many}{kind}{self.queue} job{'' if n == 1 else 's'}{self.part}"


def _find_primary_act(viewer: Viewer, worst_first: list[Alert], board: overview.Board) -> PrimaryAct | None:
    """Return the act on the dead jobs of the worst alert on them; without such an alert, of the fullest queue."""
    dead = _find_dead(viewer, worst_first, board)
    if dead is None:
        return None
    if config.is_read_only():
        return PrimaryAct("", "", f"The desk is read-only: {dead.words(dead.count)} cannot be replayed.")
    if not viewer.may(OPERATOR, dead.source):
        return PrimaryAct("", "", f"Replaying {dead.words(dead.count)} needs the role operator on {dead.source}.")
    url, outlook = links.new_replay(dead.query), _read_outlook(viewer, dead.query, board)
    n = outlook.replayable
    if not outlook.is_failing and n != 0:
        return PrimaryAct(f"Review and replay {dead.words(n)}", url, "")
    preview = "Preview a replay" if not n else f"Preview a replay of {n:,} job{'' if n == 1 else 's'}"
    review = f"Review {dead.words(dead.count, 'dead ')}"
    if outlook.is_failing:
        note = "These jobs still fail: a replay now would likely fail again."
    elif outlook.excluded:
        note = "These jobs would likely fail again: fix the cause first, then replay."
    else:
        note = "None of these jobs can be replayed now: the preview lists the reasons."
    return PrimaryAct(preview, url, "", review, links.list_url(dead.query), note)


def _find_dead(viewer: Viewer, worst_first: list[Alert], board: overview.Board) -> _Dead | None:
    counts = {(source, queue): n for source, queue, n in board.dead}
    for alert in worst_first:
        place = alert.source, alert.subject
        if alert.rule.metric != "dead" or not _takes_replays(board, alert.source):
            continue
        if not (n := counts.get(place) or overview.count_dead(viewer, *place)):
            continue
        if alert.rule.is_narrowed:
            return _Dead(*place, f" of {wording.narrowed(alert.rule)}", None, alerts.replay_query(alert))
        return _build_dead(*place, n)
    fullest = next((one for one in board.dead if one[1] and _takes_replays(board, one[0])), None)
    return _build_dead(*fullest) if fullest else None


def _build_dead(source: str, queue: str, n: int) -> _Dead:
    return _Dead(source, queue, "", n, links.query_for(source=source, queue=queue, state="dead"))


_outlooks: dict[tuple[object, ...], replays.Outlook] = {}  # by who may act, search and board: as old as the board


def _read_outlook(viewer: Viewer, query: str, board: overview.Board) -> replays.Outlook:
    allowed = viewer.sources(OPERATOR)
    key = None if allowed is None else tuple(allowed), query, board.at
    if key not in _outlooks:
        if len(_outlooks) >= MOST_OUTLOOKS:
            _outlooks.clear()
        _outlooks[key] = replays.read_outlook(viewer, query, board.at, MOST_READ)
    return _outlooks[key]


def _takes_replays(board: overview.Board, source: str) -> bool:
    return any(row.name == source and row.takes_replays for row in board.sources)


def _replay_url(viewer: Viewer, board: overview.Board, source: str, queue: str) -> str:
    may = viewer.may(OPERATOR, source) and not config.is_read_only() and _takes_replays(board, source)
    # A job without a queue has nowhere to be sent.
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
