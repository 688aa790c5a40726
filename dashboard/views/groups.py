"""Is it one thing or many? New or known? Whom does it hit?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from dashboard import links, tracebacks
from dashboard.access import can
from dashboard.htmx import render_page
from dashboard.templatetags.redrive import ago, number, percent, sparkline, state, visible
from jobs_admin import failures
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, VIEWER

MOST_NAMED = 5  # values shown of queues, tenants …; the rest are one row


class Line(TypedDict):
    """A group in a list, its words ready. A dictionary, because a template reads one at half the cost of an object."""

    url: str
    error: str
    message: str
    culprit: str
    state: str
    dead: str  # empty for none
    dead_url: str
    count: str
    per_minute: str  # empty for none
    trend: str
    task: str  # empty where there is no task, or several
    queues: str
    others: str  # how many queues there are beyond those named; empty for none
    first_seen: str
    last_seen: str


@dataclass(frozen=True, slots=True)
class Heading:
    """A column that can be sorted by."""

    words: str
    url: str
    is_sorted: bool
    is_number: bool


@dataclass(frozen=True, slots=True)
class Share:
    value: str
    words: str  # how many, or what part where only some were counted
    url: str
    part: float  # 0 to 100, of the longest bar


@dataclass(frozen=True, slots=True)
class Spread:
    """How a group is spread over the values of one field."""

    name: str
    shares: list[Share]
    others: int  # values that are not named
    others_words: str


@require_GET
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    text = request.GET.get("q", "")
    order = request.GET.get("order", "last_seen")
    page = failures.groups(request.viewer, text, order=order, after=request.GET.get("after"))
    here = {"q": text} if text else {}
    kept = here | ({"order": order} if order != "last_seen" else {})
    context = {
        "page": page,
        "filter": text,
        "order": order,
        "lines": [line_of(row) for row in page.rows],
        "headings": [
            _heading("Dead", "dead", here, order, is_number=True),
            _heading("Attempts failed", "count", here, order, is_number=True),
            _heading("First seen", "first_seen", here, order),
            _heading("Last seen", "last_seen", here, order),
        ],
        "self_url": request.get_full_path(),
        "next_url": f"{reverse('group-list')}?{urlencode(kept | {'after': page.next})}" if page.next else "",
        "first_url": f"{reverse('group-list')}?{urlencode(kept)}" if request.GET.get("after") else "",
    }
    return render_page(request, "groups/list.html", context, part="groups")


@require_GET
@can(VIEWER)
def detail(request: HttpRequest, fingerprint: str) -> HttpResponse:
    try:
        found = failures.group(request.viewer, fingerprint)
    except failures.NoSuchGroup as error:
        raise Http404("No group has this fingerprint, or none that you may see.") from error
    group = found.group
    name = group.fingerprint
    is_whole = found.counted_over is None
    context = {
        "found": found,
        "group": group,
        "states": _states(found.jobs_by_state, name),
        "dead_url": links.failures_of(group=name, state="dead"),
        "failures_url": links.failures_of(group=name),
        "replay_url": links.replay_of(group=name) if request.viewer.may_anywhere(OPERATOR) and found.dead else "",
        "spreads": [
            _spread("Queues", "queue", found.queues, name),
            _spread("Tasks", "task", found.tasks, name),
            _spread("Tenants", "tenant", found.tenants, name, is_whole=is_whole),
            _spread("Releases", "release", found.releases, name, is_whole=is_whole),
            _spread("Hosts", "host", found.hosts, name, is_whole=is_whole),
        ],
        "trend": _hours(found.trend),
        "trend_words": _trend_words(found.trend),
        "representative": found.representative,
        "representative_url": _failure_page(found.representative),
        "trace": _trace(found.representative),
    }
    return render_page(request, "groups/detail.html", context, part="group")


def line_of(row: failures.GroupRow) -> Line:
    """What a list shows of a group: also the overview's."""
    group, others = row.group, len(row.queues[2:])
    return Line(
        url=links.group_page(group.fingerprint),
        error=visible(group.error_type),
        message=visible(group.message),
        culprit=visible(group.culprit),
        state=state(group.state),
        dead=number(row.dead) if row.dead else "",
        dead_url=links.failures_of(group=group.fingerprint, state="dead"),
        count=f"{number(row.count)} {'job' if row.count == 1 else 'jobs'}" if row.is_partial else number(row.count),
        per_minute=number(row.per_minute) if row.per_minute else "",
        trend="" if row.is_partial else sparkline(row.trend, _trend_words(row.trend)),
        task=visible(row.tasks[0]) if len(row.tasks) == 1 else "",
        queues=visible(", ".join(row.queues[:2])),
        others=number(others) if others else "",
        first_seen=ago(group.first_seen),
        last_seen=ago(group.last_seen),
    )


def _heading(words: str, order: str, here: dict[str, str], sorted_by: str, *, is_number: bool = False) -> Heading:
    return Heading(
        words, f"{reverse('group-list')}?{urlencode(here | {'order': order})}", sorted_by == order, is_number
    )


# The most urgent first; as failures go through them.
_ORDER = ("dead", "retrying", "replaying", "quarantined", "recovered", "discarded", "gone")


def _states(by_state: dict[str, int], group: str) -> list[tuple[str, int, str]]:
    """(state, jobs in it, their list)"""
    held = [(state, by_state[state]) for state in _ORDER if by_state.get(state)]
    return [(state, n, links.failures_of(group=group, state=state)) for state, n in held]


def _spread(title: str, field: str, ranked: list[tuple[str, int]], group: str, *, is_whole: bool = True) -> Spread:
    """`is_whole`: the counts are of all jobs. Otherwise of a sample, and only the shares are true."""
    named, others = ranked[:MOST_NAMED], ranked[MOST_NAMED:]
    total = sum(n for _, n in ranked) or 1
    most = named[0][1] if named else 1

    def words(n: int) -> str:
        return number(n) if is_whole else percent(n / total)

    shares = [
        Share(value, words(n), links.failures_of(group=group, **{field: value}), round(n / most * 100, 1))
        for value, n in named
    ]
    return Spread(title, shares, len(others), words(sum(n for _, n in others)))


def _trend_words(trend: list[int]) -> str:
    return f"Failed attempts per hour, last 24 h: {sum(trend):,} in all, at most {max(trend, default=0):,}"


def _hours(trend: list[int]) -> list[tuple[int, int]]:
    """(hours ago, failed attempts), the oldest first."""
    return [(len(trend) - 1 - n, failed) for n, failed in enumerate(trend)]


def _trace(failure: Failure | None) -> tracebacks.Shown | None:
    if failure is None or failure.traceback is None:
        return None
    return tracebacks.shown(failure.traceback.text)


def _failure_page(failure: Failure | None) -> str:
    return reverse("failure-detail", args=[failure.pk]) if failure is not None else ""
