"""Entries of the command palette other than pages.

Replays of queues, alerts, queues, views, groups, policies, replays and settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.alerts import words as alert_words
from dashboard.failures.timeline import short
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import render
from dashboard.web.text import part_first
from jobs_admin import config, policies, queues
from jobs_admin.alerts import reading as alerts
from jobs_admin.desk import overview
from jobs_admin.failures import saved_views
from jobs_admin.groups import dependencies, group_finder
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.queues import coverage
from jobs_admin.replays import reading as replays

MOST = 20  # entries per section
MOST_VIEWS = 30
MOST_REPLAYED = 5  # queues whose replay is offered
MOST_READ = 1_000  # queues, largest first
MOST_CHARS = 500
_NO_QUEUE = "(no queue)"  # reports without a queue

# Pages outside the navigation: name, URL name, and the role that their act requires.
_SETTINGS = (
    ("Alert rules", "alert-rules", VIEWER),
    ("New alert rule", "alert-rule-new", OPERATOR),
    ("Silences", "silence-list", VIEWER),
    ("Pauses", "pause-list", VIEWER),
    ("Breakers", "breaker-list", VIEWER),
    ("Automations", "automation-list", VIEWER),
    ("New automation", "automation-new", OPERATOR),
    ("Channels", "channel-list", VIEWER),
    ("New channel", "channel-new", ADMIN),
    ("Deliveries", "delivery-list", VIEWER),
    ("Runbooks", "runbook-list", VIEWER),
    ("New policy", "policy-new", OPERATOR),
    ("Lint of retry settings", "policy-lint", VIEWER),
    ("Rescheduled retries", "reschedule-list", VIEWER),
    ("Saved views", "view-list", VIEWER),
    ("Grouping rules", "group-rules", VIEWER),
    ("Dependencies", "dependency-list", VIEWER),
    ("Incident page", "incident", VIEWER),
    ("Search syntax", "search-help", VIEWER),
)


@dataclass(frozen=True, slots=True)
class Entry:
    key: str  # key of its position in the page
    title: str
    url: str
    detail: str = ""  # to the right of the title
    place: str = ""  # below the title
    words: str = ""  # further search words


@dataclass(frozen=True, slots=True)
class Section:
    kind: str
    name: str
    icon: str
    entries: list[Entry]


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Return the part for `redrive/parts/keyboard.html`, loaded when the palette opens and while typing (`q`)."""
    text, viewer, now = request.GET.get("q", "")[:MOST_CHARS], request.viewer, timezone.now()
    words = text.lower().split()
    ranked = queues.rank_queues(viewer, now, limit=MOST_READ)

    def some(entries: Iterable[Entry], most: int = MOST) -> list[Entry]:
        found = (
            one for one in entries if all(word in f"{one.title} {one.place} {one.words}".lower() for word in words)
        )
        return list(islice(found, most))

    sections = (
        Section("replay-of", "Replay", "replays", some(_replays_of_queues(viewer, ranked), MOST_REPLAYED)),
        Section("alert", "Alerts", "warning", some(_alerts(viewer))),
        Section("view", "Views", "failures", some(_views(viewer), MOST_VIEWS)),
        Section("group", "Groups", "groups", list(_groups(viewer, text))),
        Section("queue", "Queues", "queues", some(_queues(ranked))),
        Section("dependency", "Dependencies", "groups", some(_dependencies(viewer))),
        Section("policy", "Policies", "policies", some(_policies(viewer))),
        Section("replay", "Replays", "replays", some(_replays(viewer))),
        Section("setting", "Settings", "table", some(_settings(viewer))),
    )
    return render(request, "redrive/parts/palette.html", {"sections": [one for one in sections if one.entries]})


def _replays_of_queues(viewer: Viewer, ranked: list[queues.Ranked]) -> Iterator[Entry]:
    if config.is_read_only():
        return
    able = {row.name for row in overview.sources(viewer) if row.takes_replays}
    for n, one in enumerate(ranked):
        # A job whose queue is unknown has no destination.
        has_queue = one.queue and not coverage.is_queue_unknown(one.source, one.queue)
        if one.dead and has_queue and one.source in able and viewer.may(OPERATOR, one.source):
            title = f"Replay {one.dead:,} dead job{'' if one.dead == 1 else 's'} of {one.queue}"
            yield Entry(str(n), title, links.replay_of(source=one.source, queue=one.queue, state="dead"), one.source)


def _alerts(viewer: Viewer) -> Iterator[Entry]:
    for one in alerts.firing(viewer, limit=MOST):
        url = reverse("redrive:alert-detail", args=[one.pk])
        yield Entry(str(one.pk), alert_words.condition(one), url, one.severity, one.rule.name)


def _views(viewer: Viewer) -> Iterator[Entry]:
    for one in saved_views.listing(viewer):
        yield Entry(str(one.pk), one.name, links.list_url(one.query), "view")


def _groups(viewer: Viewer, text: str) -> Iterator[Entry]:
    found = group_finder.find_groups(viewer, text, limit=MOST)
    places = group_finder.read_places([row.group for row in found], viewer) if found else {}
    for n, row in enumerate(found):
        group = row.group
        title = f"{short(group.error_type)} {part_first(group.message)[:120]}".strip()
        words, url = f"{group.title} {group.culprit}", links.group_page(group.fingerprint)
        yield Entry(str(n), title, url, f"{row.dead:,} dead", places[group.pk].words, words)


def _queues(ranked: list[queues.Ranked]) -> Iterator[Entry]:
    for n, one in enumerate(ranked):
        yield Entry(
            str(n), one.queue or _NO_QUEUE, links.queue_page(one.source, one.queue), f"{one.dead:,} dead", one.source
        )


def _dependencies(viewer: Viewer) -> Iterator[Entry]:
    ranked = sorted(dependencies.names(viewer).items(), key=lambda pair: (-pair[1], pair[0]))
    for n, (name, jobs) in enumerate(ranked):
        yield Entry(str(n), name, links.dependency_page(name), f"{jobs:,} open", "dependency")


def _policies(viewer: Viewer) -> Iterator[Entry]:
    for one in policies.published(viewer):
        yield Entry(one.name, one.name, reverse("redrive:policy-detail", args=[one.name]), one.mode)


def _replays(viewer: Viewer) -> Iterator[Entry]:
    for one in replays.listing(viewer, limit=MOST).rows:
        title = f"Replay #{one.pk} of {one.total:,} job{'' if one.total == 1 else 's'}"
        yield Entry(str(one.pk), title, reverse("redrive:replay-detail", args=[one.pk]), one.state, one.reason)


def _settings(viewer: Viewer) -> Iterator[Entry]:
    for name, url_name, role in _SETTINGS:
        if viewer.may(role, EVERY_SOURCE) if role == ADMIN else viewer.may_anywhere(role):
            yield Entry(url_name, name, reverse(f"redrive:{url_name}"), "settings")
