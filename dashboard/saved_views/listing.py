"""Saved views as the page and the tabs show them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.web.links import view_url
from jobs_admin.core import query as language
from jobs_admin.failures import saved_views
from jobs_admin.models import SavedView
from jobs_admin.models.access import OPERATOR, Viewer

TABS = 6  # the others are one click away


@dataclass(frozen=True, slots=True)
class Line:
    pk: int
    name: str
    query: str
    reading: str
    owner: str
    is_own: bool
    is_shared: bool
    may_change: bool
    url: str
    replay_url: str  # empty for who may not replay


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    title: str
    url: str
    count: str
    is_here: bool


def lines(viewer: Viewer, views: list[SavedView]) -> list[Line]:
    return [line(viewer, view) for view in views]


def line(viewer: Viewer, view: SavedView) -> Line:
    is_own = view.owner_id == viewer.user_id and viewer.user_id is not None
    return Line(
        pk=view.pk,
        name=view.name,
        query=view.query,
        reading=language.reading(language.parse(view.query)),
        owner="you" if is_own else view.owner.get_username() if view.owner else "a token",
        is_own=is_own,
        is_shared=view.is_shared,
        may_change=saved_views.may_change(viewer, view),
        url=view_url(view.query, view.columns),
        replay_url=_replay_url(view.query) if viewer.may_anywhere(OPERATOR) else "",
    )


def _replay_url(query: str) -> str:
    # An empty search is a scope too, where it is said.
    return f"{reverse('redrive:replay-new')}?{urlencode({'q': query})}" if query else ""


def count(viewer: Viewer, view: SavedView) -> str:
    return saved_views.count(viewer, view).text


def tabs(viewer: Viewer, views: list[SavedView], here: str) -> list[Tab]:
    """The first few, and the one that is open wherever it stands."""
    shown = views[:TABS]
    shown += [view for view in views[TABS:] if view.query == here][:1]
    return [
        Tab(
            view.name,
            view.query or "all open failures",
            view_url(view.query, view.columns),
            count(viewer, view),
            view.query == here,
        )
        for view in shown
    ]
