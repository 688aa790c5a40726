"""Saved and shared views: searches that have a name."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.saved_views import listing as view_list
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.failures import list_columns, saved_views
from jobs_admin.models import SavedView
from jobs_admin.models.access import OPERATOR, VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, *, status: int = 200, **more: object) -> HttpResponse:
    context = {
        "lines": view_list.lines(request.viewer, saved_views.listing(request.viewer)),
        "may_share": request.viewer.may_anywhere(OPERATOR),
        "list_url": links.list_url(),
        **more,
    }
    return render_page(request, "redrive/views/list.html", context, part="views", status=status)


@require_safe
@can(VIEWER)
def tabs(request: HttpRequest) -> HttpResponse:
    """The views as tabs over the list, each with what it holds now: loaded after the rows."""
    here = request.GET.get("q", "").strip()
    context = {
        "tabs": view_list.tabs(request.viewer, saved_views.listing(request.viewer), here),
        "q": here,
        "columns": request.GET.get("columns", "") or ",".join(list_columns.read(request.viewer)),
        "may_act": request.viewer.may_anywhere(OPERATOR),
    }
    return render_page(request, "redrive/views/tabs.html", context, part="tabs")


@require_safe
@can(VIEWER)
def count(request: HttpRequest, pk: int) -> HttpResponse:
    view = _get_view(request, pk)
    context = {"line": view_list.line(request.viewer, view), "shown": view_list.count(request.viewer, view)}
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
        return _refused(request, refused, links.list_url(query.strip()))
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
    if "shares" in request.POST:  # an unchecked box says nothing by itself
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
