"""The overview of current failures and their trend; the bell, with events since the last visit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import get_script_prefix, reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.alerts import words as alert_words
from dashboard.alerts.channels import words as channel_words
from dashboard.groups import listing as group_list
from dashboard.holds import breaker_page
from dashboard.holds import notes as pause_notes
from dashboard.overview import pictures
from dashboard.queues.sources import signing as source_signing
from dashboard.replays import page as replay_page
from dashboard.web import links, source_switcher, time_range
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from dashboard.web.shell import FIRST_VISIT, SEEN_COOKIE, last_visit
from jobs_admin import alerts, config, holds, replays
from jobs_admin.alerts import silencing, wording
from jobs_admin.desk import activity, overview
from jobs_admin.models import Alert, Replay, Unfiled
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.queues import coverage, liveness, rates

RANGES = ["1h", "6h", "24h", "7d", "30d", "90d"]
ALERTS_SHOWN = 5
MOST_ON_HOLD = 3  # replays
MOST_ALERTS = 50  # firing alerts that are read
LATE_SAMPLE_S = 60  # an older sample of a source is reported
MOST_UNFILED = 1_000
MOST_READ = 20_000  # dead jobs read for the number on the button
MOST_OUTLOOKS = 50  # stored
MOST_TRIED = 4  # places whose dead jobs are tried for an act


@dataclass(frozen=True, slots=True)
class DeadLine:
    queue: str
    source: str
    count: int
    url: str
    replay_url: str  # "" if the viewer may not replay
    part: float  # 0 to 100, relative to the fullest
    is_unknown: bool  # jobs whose queue is unknown, because events did not name it


@dataclass(frozen=True, slots=True)
class SourceLine:
    row: overview.SourceRow
    state: str
    url: str  # URL of its dead jobs
    is_late: bool


@dataclass(frozen=True, slots=True)
class ReplayLine:
    replay: Replay
    url: str
    settled: int
    to_go: int  # sent jobs and jobs to be sent: all but the excluded
    parts: list[replay_page.Part]


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    name = time_range.chosen(request, RANGES)
    watched, board = liveness.current_state(now), overview.board(viewer, now, time_range.RANGES[name])
    sentence = board.sentence
    picture, dead_picture = pictures.failed_attempts(board, name), pictures.dead_jobs(board, name)
    offered = time_range.with_data(board.data_since, now, RANGES)
    shown = name if name in offered else offered[-1]
    here = source_switcher.with_focus(
        f"{reverse('redrive:overview')}?{urlencode({time_range.PARAMETER: name})}", viewer
    )
    may_replay = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    on_hold = [replay for replay in board.replays if replay.state == ReplayState.HELD]
    firing = alerts.firing(viewer, limit=MOST_ALERTS)
    silenced = silencing.find_ends(viewer, firing, now)
    firing_lines = alert_words.folded_lines(firing, now, alert_words.may_act(viewer, firing), silenced)
    context = {
        "act": None if watched.stale else _find_primary_act(viewer, [line.alert for line in firing_lines], board),
        "alerts": firing_lines[:ALERTS_SHOWN],
        "more_alerts": len(firing) - sum(line.count for line in firing_lines[:ALERTS_SHOWN]),
        "has_most_alerts": len(firing) == MOST_ALERTS,
        "back": here,
        "now": now,
        "sentence": sentence,
        **_list_links(sentence.query, viewer.focus),
        "rate_words": f"Rate over {rates.WINDOW}, compared with the {rates.BEFORE_MIN} minutes before. A job may fail several attempts.",
        "stale": watched.stale,
        "paused": pause_notes.sentence([one for one in holds.listing(viewer) if holds.is_open(one, now)], now),
        "breakers": breaker_page.open_lines(
            viewer, {viewer.focus} if viewer.focus else {*config.sources(), *(row.name for row in board.sources)}, now
        ),
        "silent": channel_words.disabled_channels(board.silent, sees=viewer.may(ADMIN, EVERY_SOURCE)),
        "sources": [_source_line(row) for row in board.sources],
        "more_sources": board.more_sources,
        "first_worker_of": overview.source_without_workers(board.sources),
        "findings": overview.findings(viewer, board.sources, watched.findings),
        "picture": picture,
        "dead_picture": dead_picture,
        "time_range": time_range.picker(request, offered, shown) if board.data_since or picture else None,
        "self_url": here,
        "dead": _dead(viewer, board),
        "more_dead": board.more_dead,
        "rows": group_list.rows(
            board.loudest, now=now, ready=_ready_groups(viewer, board) if may_replay else None, source=viewer.focus
        ),
        "may_replay": may_replay,
        "replays": [_replay_line(replay) for replay in board.replays],
        "on_hold": [_replay_line(replay) for replay in on_hold[:MOST_ON_HOLD]],
        "more_held": len(on_hold[MOST_ON_HOLD:]),
        "uncaptured": board.uncaptured,
        "signing": source_signing.lines(viewer, board.signing, now),
        "unfiled": Unfiled.objects.filter(cause="").order_by()[: MOST_UNFILED + 1].count(),
        "most_unfiled": MOST_UNFILED,
        # Django's admin is only for staff, and a project may not have it.
        "unfiled_url": links.url_of("admin:jobs_admin_unfiled_changelist")
        if viewer.may(ADMIN, EVERY_SOURCE) and request.user.is_staff
        else "",
    }
    return render_page(request, "redrive/overview/index.html", context, part="overview")


def _list_links(query: str, source: str) -> dict[str, Any]:
    """Return the links from the numbers of the page to lists, for one source or for all."""
    names = {f"{name}s": f"{name}-list" for name in ("alert", "group", "pause", "queue", "replay")}
    return {
        "source": source,
        "sentence_url": links.list_url(source_switcher.with_source(query, source) if source else query)
        if query
        else "",
        "list_urls": {
            name: source_switcher.address(page, reverse(f"redrive:{page}"), source) for name, page in names.items()
        },
    }


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
            coverage.is_queue_unknown(source, queue),
        )
        for source, queue, n in board.dead
    ]


@dataclass(frozen=True, slots=True)
class PrimaryAct:
    """Links beside the headline: to the replay of dead jobs, and before it to these jobs if a replay would fail."""

    replay: str  # label
    replay_url: str  # "" if the viewer may not replay
    why_not: str
    review: str = ""  # label; "" if the act is the replay
    review_url: str = ""
    note: str = ""  # why the review comes first


@dataclass(frozen=True, slots=True)
class _Dead:
    """Dead jobs of a place."""

    source: str
    queue: str
    part: str  # part of the queue: ` of tenant acme`; "" for all of it
    count: int | None  # None: not counted
    query: str

    def words(self, n: int | None, kind: str = "") -> str:
        """Return `1,453 webhooks jobs`; `kind` as in `1,453 dead webhooks jobs`."""
        many = "" if n is None else f"{n:,} "
        return f"{many}{kind}{self.queue} job{'' if n == 1 else 's'}{self.part}"


def _find_primary_act(viewer: Viewer, worst_first: list[Alert], board: overview.Board) -> PrimaryAct | None:
    """Return the act on the dead jobs of the worst alert about them; without such an alert, of the fullest queue.

    Jobs that can be replayed have priority; otherwise the first that cannot are named with the reason.
    """
    found = list(islice(_find_dead(viewer, worst_first, board), MOST_TRIED))
    if not found:
        return _build_blocked_act(board)
    if config.is_read_only():
        dead = found[0]
        return PrimaryAct("", "", f"The desk is read-only: {dead.words(dead.count)} cannot be replayed.")
    allowed = [dead for dead in found if viewer.may(OPERATOR, dead.source)]
    if not allowed:
        dead = found[0]
        return PrimaryAct("", "", f"Replaying {dead.words(dead.count)} needs the role operator on {dead.source}.")
    outlooks = ((dead, _read_outlook(viewer, dead.query, board)) for dead in allowed)
    able = next((one for one in outlooks if one[1].replayable != 0 or one[1].excluded), None)
    if able is None:
        dead, outlook = allowed[0], _read_outlook(viewer, allowed[0].query, board)
        return PrimaryAct(
            "", "", f"{dead.words(dead.count)} cannot be replayed: {outlook.reason or 'see the preview'}."
        )
    return _build_act(*able)


def _build_act(dead: _Dead, outlook: replays.Outlook) -> PrimaryAct:
    url, n = links.new_replay(dead.query), outlook.replayable
    if not outlook.is_failing and not outlook.is_likely_to_fail and n != 0:
        return PrimaryAct(f"Review and replay {dead.words(n)}", url, "")
    preview = "Preview a replay" if not n else f"Preview a replay of {n:,} job{'' if n == 1 else 's'}"
    review = f"Review {dead.words(dead.count, 'dead ')}"
    if outlook.is_failing:
        note = "These jobs still fail: a replay now would likely fail again."
    else:
        note = "These jobs would likely fail again: fix the cause first, then replay."
    return PrimaryAct(preview, url, "", review, links.list_url(dead.query), note)


def _build_blocked_act(board: overview.Board) -> PrimaryAct | None:
    """Return why the dead jobs of the fullest queue cannot be replayed.

    None if there are none, or only their queue is unknown.
    """
    blocked = {row.name: row.why_no_replay for row in board.sources if row.why_no_replay}
    source, queue, n = next((one for one in board.dead if one[0] in blocked), ("", "", 0))
    if not n:
        return None
    why = blocked[source].split(": ")[0] if source not in config.sources() else blocked[source]
    return PrimaryAct("", "", f"{_build_dead(source, queue, n).words(n)} cannot be replayed: {why.rstrip('.')}.")


def _find_dead(viewer: Viewer, worst_first: list[Alert], board: overview.Board) -> Iterator[_Dead]:
    """Yield the dead jobs of sources that accept replays: those of alerts first, then by queue."""
    counts = {(source, queue): n for source, queue, n in board.dead}
    for alert in worst_first:
        place = alert.source, alert.subject
        if alert.rule.metric != "dead" or not _takes_replays(board, alert.source):
            continue
        if not (n := counts.get(place) or overview.count_dead(viewer, *place)):
            continue
        if alert.rule.is_narrowed:
            yield _Dead(*place, f" of {wording.narrowed(alert.rule)}", None, alerts.replay_query(alert))
        else:
            yield _build_dead(*place, n)
    for source, queue, n in board.dead:
        if queue and _takes_replays(board, source) and not coverage.is_queue_unknown(source, queue):
            yield _build_dead(source, queue, n)


def _build_dead(source: str, queue: str, n: int) -> _Dead:
    return _Dead(source, queue, "", n, links.query_for(source=source, queue=queue, state="dead"))


_outlooks: dict[tuple[object, ...], replays.Outlook] = {}  # by viewer, search and board; recomputed with the board


def _read_outlook(viewer: Viewer, query: str, board: overview.Board) -> replays.Outlook:
    allowed = viewer.sources(OPERATOR)
    key = None if allowed is None else tuple(allowed), query, board.at
    if key not in _outlooks:
        if len(_outlooks) >= MOST_OUTLOOKS:
            _outlooks.clear()
        _outlooks[key] = replays.read_outlook(viewer, query, board.at, MOST_READ, _find_obstacles(board))
    return _outlooks[key]


def _ready_groups(viewer: Viewer, board: overview.Board) -> dict[int, replays.ReadyJobs]:
    """Return the jobs of each group that can be replayed, cached with the board."""
    allowed = viewer.sources(OPERATOR)
    key = None if allowed is None else tuple(allowed), board.at
    if key not in _ready:
        if len(_ready) >= MOST_OUTLOOKS:
            _ready.clear()
        groups = [row.group.pk for row in board.loudest if row.dead]
        _ready[key] = replays.count_by_group(viewer, groups, _find_obstacles(board)) if groups else {}
    return _ready[key]


def _find_obstacles(board: overview.Board) -> list[replays.Obstacle]:
    """Return the obstacles to a replay, cached with the board."""
    global _obstacles
    if _obstacles[0] != board.at:
        _obstacles = board.at, replays.find_obstacles(replays.Options(), board.at)
    return _obstacles[1]


_obstacles: tuple[datetime | None, list[replays.Obstacle]] = None, []
_ready: dict[tuple[object, ...], dict[int, replays.ReadyJobs]] = {}  # by viewer and board


def _takes_replays(board: overview.Board, source: str) -> bool:
    return any(row.name == source and row.takes_replays for row in board.sources)


def _replay_url(viewer: Viewer, board: overview.Board, source: str, queue: str) -> str:
    may = viewer.may(OPERATOR, source) and not config.is_read_only() and _takes_replays(board, source)
    # A job whose queue is unknown has no destination.
    has_queue = bool(queue) and not coverage.is_queue_unknown(source, queue)
    return links.replay_of(source=source, queue=queue, state="dead") if may and has_queue else ""


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


# --- the bell ----------------------------------------------------------------------------------------------------

_STORED_S = 365 * 86_400


@dataclass(frozen=True, slots=True)
class ActivityLine:
    event: activity.Event
    url: str


@require_safe
@can(VIEWER)
def activity_page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    visit = last_visit(request, now)
    seen = visit or now - FIRST_VISIT
    lines = [ActivityLine(one, _url(one)) for one in activity.recent(request.viewer, now)]
    context = {
        "seen": seen,
        "is_first_visit": visit is None,
        "new": [line for line in lines if line.event.at > seen],
        "earlier": [line for line in lines if line.event.at <= seen],
        "days": activity.BACK.days,
        "most": activity.MOST_OF_A_KIND,
    }
    response = render_page(request, "redrive/overview/activity.html", context, part="activity")
    if not request.htmx:
        response.set_cookie(
            SEEN_COOKIE, f"{math.ceil(now.timestamp() * 1000)}-{request.user.pk}", max_age=_STORED_S, path=get_script_prefix(),
            secure=request.is_secure(), httponly=True, samesite="Lax",
        )  # fmt: skip
    return response


def _url(event: activity.Event) -> str:
    return links.group_page(event.ref) if event.kind == "group" else links.mark_url(event.kind, event.ref)
