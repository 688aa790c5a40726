"""Entries of the palette beside the pages: replays of queues, alerts, queues, views, groups, policies, replays and settings."""

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
from dashboard.web.templates import render
from dashboard.web.text import part_first
from jobs_admin import config, policies, queues
from jobs_admin.alerts import reading as alerts
from jobs_admin.failures import saved_views
from jobs_admin.groups import group_finder, group_places
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.replays import reading as replays

MOST = 20  # entries of a section
MOST_VIEWS = 30
MOST_REPLAYED = 5  # queues of which the replay is offered
MOST_READ = 1_000  # queues, the fullest ones
MOST_CHARS = 500
_NO_QUEUE = "(no queue)"  # of a report that names none

# Pages without a place in the navigation: name, URL name, and the role that their act needs.
_SETTINGS = (
    ("Alert rules", "alert-rules", VIEWER),
    ("New alert rule", "alert-rule-new", OPERATOR),
    ("Silences", "silence-list", VIEWER),
    ("Pauses", "pause-list", VIEWER),
    ("Channels", "channel-list", VIEWER),
    ("New channel", "channel-new", ADMIN),
    ("Deliveries", "delivery-list", VIEWER),
    ("Runbooks", "runbook-list", VIEWER),
    ("New policy", "policy-new", OPERATOR),
    ("Lint of retry settings", "policy-lint", VIEWER),
    ("Rescheduled retries", "reschedule-list", VIEWER),
    ("Saved views", "view-list", VIEWER),
    ("Grouping rules", "group-rules", VIEWER),
    ("Incident page", "incident", VIEWER),
    ("Search syntax", "search-help", VIEWER),
)


@dataclass(frozen=True, slots=True)
class Entry:
    key: str  # of its place in the page
    title: str
    url: str
    detail: str = ""  # to the right of the title
    place: str = ""  # below the title
    words: str = ""  # found by these too


@dataclass(frozen=True, slots=True)
class Section:
    kind: str
    name: str
    icon: str
    entries: list[Entry]


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """A part for `redrive/parts/keyboard.html`, asked for when the palette is opened, and as words are typed into it (`q`)."""
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
        Section("policy", "Policies", "policies", some(_policies(viewer))),
        Section("replay", "Replays", "replays", some(_replays(viewer))),
        Section("setting", "Settings", "table", some(_settings(viewer))),
    )
    return render(request, "redrive/parts/palette.html", {"sections": [one for one in sections if one.entries]})


def _replays_of_queues(viewer: Viewer, ranked: list[queues.Ranked]) -> Iterator[Entry]:
    if config.is_read_only():
        return
    for n, one in enumerate(ranked):
        if one.dead and one.queue and viewer.may(OPERATOR, one.source):  # a job without a queue has nowhere to be sent
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
    places = group_places.read_places([row.group for row in found], viewer) if found else {}
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
