"""Dependencies: causes of failures, worst first, and the page of one with its distributions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard.groups import listing as group_list
from dashboard.groups import page as group_page
from dashboard.groups.listing import trend_words
from dashboard.holds import breaker_page
from dashboard.web import links, source_switcher, time_range
from dashboard.web.access import can
from dashboard.web.figures import number, percent
from dashboard.web.htmx import render_page
from dashboard.web.pictures import sparkline
from dashboard.web.text import visible
from jobs_admin import config, failures, replays
from jobs_admin.core import query as language
from jobs_admin.core.dependency import OTHER, SEVERAL, declared_name
from jobs_admin.failures import Facets
from jobs_admin.groups import dependencies
from jobs_admin.groups.dependencies import DependencyDetail, DependencyRow
from jobs_admin.holds import breakers
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.queues import rates

MOST_GROUPS = 20


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    found, others = dependencies.listing(request.viewer, now)
    shown = breakers_by_name(request.viewer, now) if found else {}
    context = {
        "lines": [line(row, shown.get(row.name, []), request.viewer.focus) for row in found],
        "others": others,
        "self_url": source_switcher.with_focus(reverse("redrive:dependency-list"), request.viewer),
    }
    return render_page(request, "redrive/dependencies/list.html", context, part="dependencies")


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, name: str) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    over = time_range.chosen(request, group_page.RANGES)
    is_days = over == group_page.DAYS
    found = dependencies.detail(viewer, name, now, days=is_days)
    query = language.qualifier("dependency", name, exact=True)
    groups = failures.groups(viewer, query, order="dead", limit=MOST_GROUPS, now=now)
    spread = failures.facets(viewer, query if found.row.open else f"{query} state:any", now=now)
    may_replay = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    dead = links.query_for(dependency=name, state="dead")
    ready = replays.read_ready(viewer, dead, now) if may_replay and found.row.dead else None
    context = {
        "name": name,
        "row": found.row,
        "what": sentence(found),
        "reasons": found.reasons[:3],
        "of_other_reasons": sum(groups for _, groups in found.reasons[3:]),
        "ready": ready,
        "replay_url": links.replay_of(dependency=name, state="dead") if ready and ready.count else "",
        "breakers": breakers_by_name(viewer, now).get(name, []),
        "failures_url": links.failures_of(dependency=name),
        "dead_url": links.failures_of(dependency=name, state="dead"),
        "share": latest_share(found),
        "rate_window": rates.WINDOW,
        "rate_minutes": rates.OVER_MIN,
        "trend": group_page.trend(
            found.failed,
            now,
            is_days=is_days,
            shares=shares(found),
        ),
        "time_range": time_range.picker(request, group_page.RANGES, over),
        "hidden_groups": found.hidden_groups,
        "spreads": spreads(name, spread, is_open=bool(found.row.open)),
        "rows": group_list.rows(groups.rows, all_dead=groups.all_dead, now=now),
        "more_groups": max(0, groups.count - len(groups.rows)),
        "groups_url": f"{reverse('redrive:group-list')}?{urlencode({'q': query, 'state': group_list.ALL})}",
        "self_url": f"{links.dependency_page(name)}?{time_range.PARAMETER}={over}",
    }
    return render_page(request, "redrive/dependencies/detail.html", context, part="dependency")


# --- what the pages show -------------------------------------------------------------------------------------------

FIELDS = (("queue", "Queues"), ("task", "Tasks"), ("tenant", "Tenants"), ("source", "Sources"))
MOST_NAMED = 8
_SUMMARIES = {SEVERAL: "groups that name more than one", OTHER: "beyond 500 names of a source"}


class Line(TypedDict):
    name: str
    url: str
    about: str  # meaning of a name that is not a single dependency
    per_minute: str
    dead: str
    dead_url: str
    open: str
    open_url: str
    queues: str
    tasks: str
    groups: str
    trend: SafeString | str
    breakers: list[breaker_page.Shown]


def line(row: DependencyRow, shown: list[breaker_page.Shown], source: str = "") -> Line:
    """Return the line of a dependency. `shown`: its breakers. `source`: the only one that is counted; "": all."""
    counted = {"dependency": row.name} | ({"source": source} if source else {})
    return Line(
        name=visible(row.name),
        url=links.dependency_page(row.name),
        about=_SUMMARIES.get(row.name, ""),
        per_minute=number(row.per_minute) if row.per_minute else "",
        dead=number(row.dead) if row.dead else "",
        dead_url=links.failures_of(**counted, state="dead"),
        open=number(row.open) if row.open else "",
        open_url=links.failures_of(**counted),
        queues=number(row.queues),
        tasks=number(row.tasks),
        groups=number(row.groups),
        trend=sparkline(row.trend, trend_words(row.trend)) if any(row.trend) else "",
        breakers=shown,
    )


def breakers_by_name(viewer: Viewer, now: datetime) -> dict[str, list[breaker_page.Shown]]:
    """Return dependency -> breakers at visible sources; empty while the store does not answer."""
    found: dict[str, list[breaker_page.Shown]] = {}
    for one in breakers.listing(viewer).rows:
        if one.is_known:
            found.setdefault(declared_name(one.name), []).append(breaker_page.show(viewer, one, now))
    return found


def sentence(found: DependencyDetail) -> str:
    row = found.row
    parts = [_noun_phrase(row.queues, "queue"), _noun_phrase(row.tasks, "task"), _noun_phrase(row.groups, "group")]
    return f"Failed {_noun_phrase(row.jobs, 'job')} of {parts[0]}, {parts[1]} and {parts[2]}"


def _noun_phrase(n: int, noun: str) -> str:
    return f"{number(n)} {noun}{'' if n == 1 else 's'}"


def shares(found: DependencyDetail) -> list[str]:
    """Return the share of attempts in its queues that it failed, per step; empty if no attempt ended."""
    return [
        percent(min(1.0, failed / ended)) if ended else ""
        for failed, ended in zip(found.failed, found.ended, strict=True)
    ]


def latest_share(found: DependencyDetail) -> str:
    """Return the share in the latest two steps, because the current hour may have just begun."""
    failed, ended = sum(found.failed[-2:]), sum(found.ended[-2:])
    return percent(min(1.0, failed / ended)) if ended else "–"


@dataclass(frozen=True, slots=True)
class Spread:
    title: str
    lines: list[tuple[str, str, str]]  # (value, number, URL)
    others: str
    over: str


def spreads(name: str, found: Facets, *, is_open: bool) -> list[Spread]:
    """Return the affected queues, tasks, tenants and sources. `is_open`: counts only jobs in the default states."""
    given = {"dependency": name} | ({} if is_open else {"state": "*"})
    made = []
    for field, title in FIELDS:
        values = [(value, n) for value, n in found.get(field, []) if value]
        if not values or (field == "source" and len(values) == 1):
            continue
        over = found.counted_over.get(field)
        made.append(
            Spread(
                title,
                [
                    (visible(value), number(n), links.failures_of(**given, **{field: value}))
                    for value, n in values[:MOST_NAMED]
                ],
                number(len(values) - MOST_NAMED) if len(values) > MOST_NAMED else "",
                f"latest {number(over)} jobs" if over else "open jobs" if is_open else "all jobs",
            )
        )
    return made
