"""Saved and shared views: named searches, as a list and as tabs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.links import view_url
from dashboard.web.toasts import add_toast
from jobs_admin import automations
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.failures import saved_views
from jobs_admin.models import SavedView
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, *, status: int = 200, **more: object) -> HttpResponse:
    context = {
        "lines": lines(request.viewer, saved_views.listing(request.viewer)),
        "may_share": request.viewer.may_anywhere(OPERATOR),
        "list_url": links.list_url(),
        **more,
    }
    return render_page(request, "redrive/views/list.html", context, part="views", status=status)


@require_safe
@can(VIEWER)
def tabs(request: HttpRequest) -> HttpResponse:
    """Show the views as tabs above the list, each with its number of jobs; loaded after the rows."""
    columns = request.GET.get("columns", "") or ",".join(saved_views.read_columns(request.viewer))
    return _tabs(request, request.GET.get("q", "").strip(), columns)


def _tabs(request: HttpRequest, query: str, columns: str, refused: Refused | None = None) -> HttpResponse:
    """Return the tabs with their menus, and after a refusal with the typed text and the reason."""
    context = {
        "tabs": view_tabs(request.viewer, saved_views.listing(request.viewer), query),
        "q": query,
        "columns": columns,
        "may_act": request.viewer.may_anywhere(OPERATOR),
        "refused": refused.message if refused else "",
        "name": request.POST.get("name", "")[:500] if refused else "",
        "is_shared": bool(refused) and "is_shared" in request.POST,
        "list_url": links.list_url(query) if refused else "",
    }
    return render_page(request, "redrive/views/tabs.html", context, part="tabs", status=422 if refused else 200)


@require_safe
@can(VIEWER)
def count(request: HttpRequest, pk: int) -> HttpResponse:
    view = _get_view(request, pk)
    context = {"line": line(request.viewer, view), "shown": saved_views.count(request.viewer, view).text}
    return render_page(request, "redrive/views/count.html", context, part="count")


@require_POST
@can(VIEWER)
def save(request: HttpRequest) -> HttpResponse:
    name, query = request.POST.get("name", ""), request.POST.get("query", "")
    columns = [one for one in request.POST.get("columns", "")[:1_000].split(",") if one]
    is_shared = "is_shared" in request.POST
    try:
        view = saved_views.save(request.viewer, name=name, query=query, columns=columns, is_shared=is_shared)
    except Refused as refused:
        return _tabs(request, query.strip(), ",".join(columns), refused)
    undo = reverse("redrive:view-delete", args=[view.pk])
    add_toast(request, f"Saved as “{view.name}”.", link=reverse("redrive:view-list"), link_text="All views", undo=undo)
    return go(request, links.view_url(view.query, view.columns))


@require_POST
@can(VIEWER)
def change(request: HttpRequest, pk: int) -> HttpResponse:
    view = _get_view(request, pk)
    former = [("name", view.name), ("query", view.query), ("shares", "1")]
    former += [("is_shared", "1")] if view.is_shared else []
    changes = {name: request.POST[name] for name in ("name", "query") if name in request.POST}
    if "shares" in request.POST:  # an unchecked box is not submitted
        changes["is_shared"] = "is_shared" in request.POST
    try:
        changed = saved_views.change(request.viewer, view, changes)
    except Refused as refused:
        return _refused(request, refused, reverse("redrive:view-list"))
    undo = reverse("redrive:view-change", args=[pk])
    add_toast(request, f"Changed “{changed.name}”.", undo=undo, undo_fields=former)
    return go(request, reverse("redrive:view-list"))


@require_POST
@can(VIEWER)
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    view = _get_view(request, pk)
    try:
        saved_views.delete(request.viewer, view)
    except Refused as refused:
        return _refused(request, refused, reverse("redrive:view-list"))
    fields = [
        ("name", view.name),
        ("query", view.query),
        ("columns", ",".join(view.columns)),
        *([("is_shared", "1")] if view.is_shared else []),
    ]
    is_own = view.owner_id == request.viewer.user_id
    undo = {"undo": reverse("redrive:view-save"), "undo_fields": fields} if is_own else {}
    add_toast(request, f"Deleted “{view.name}”.", **undo)
    return go(request, reverse("redrive:view-list"))


def _get_view(request: HttpRequest, pk: int) -> SavedView:
    try:
        return saved_views.get(request.viewer, pk)
    except (SavedView.DoesNotExist, OverflowError) as error:
        raise Http404(f"View {pk} not found, or not shared with you.") from error


def _refused(request: HttpRequest, refused: Refused, back: str) -> HttpResponse:
    add_toast(request, refused.message, level="error")
    return go(request, back)


# --- lines and tabs ------------------------------------------------------------------------------------------------

TABS = 6  # tabs; the others are in the menu


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
    replay_url: str  # "" if the viewer may not replay
    automate_url: str  # also "" for a search that an automation cannot repeat


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
    may_act = viewer.may_anywhere(OPERATOR)
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
        replay_url=_replay_url(view.query) if may_act else "",
        automate_url=_automate_url(view) if may_act else "",
    )


def _replay_url(query: str) -> str:
    # An empty search is a scope too, if `q` is given.
    return f"{reverse('redrive:replay-new')}?{urlencode({'q': query})}" if query else ""


def _automate_url(view: SavedView) -> str:
    try:
        query = automations.parse_search(view.query)
    except Refused:
        return ""
    filled = {"q": query, "name": slugify(view.name)[:63]}
    return f"{reverse('redrive:automation-new')}?{urlencode(filled)}" if query else ""


def view_tabs(viewer: Viewer, views: list[SavedView], here: str) -> list[Tab]:
    """Return the first few views, and the open one even if it is further down."""
    shown = views[:TABS]
    shown += [view for view in views[TABS:] if view.query == here][:1]
    return [
        Tab(
            view.name,
            view.query or "all open failures",
            view_url(view.query, view.columns),
            saved_views.count(viewer, view).text,
            view.query == here,
        )
        for view in shown
    ]
