"""Runbooks: one URL per pattern of tasks."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import OPERATOR, VIEWER

_LONGEST = 2_000


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    """Save a runbook; an existing pattern gets the new URL."""
    task, url = (request.POST.get(name, "")[:_LONGEST].strip() for name in ("task", "url"))
    former = next((one for one in alerts.runbooks(request.viewer) if one.task == task), None)
    try:
        saved = alerts.save_runbook(request.viewer, task, url)
    except Refused as refused:
        return _page(request, typed=(task, url), refused=refused)
    if former is None:
        undo, fields = reverse("redrive:runbook-delete", args=[saved.pk]), []
    else:
        undo, fields = reverse("redrive:runbook-save"), [("task", former.task), ("url", former.url)]
    add_toast(request, f"Runbook of {saved.task} saved.", undo=undo, undo_fields=fields)
    return go(request, reverse("redrive:runbook-list"))


@require_POST
@can(OPERATOR)
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    gone = next((one for one in alerts.runbooks(request.viewer) if one.pk == pk), None)
    if gone is None:
        raise Http404("No such runbook.")
    try:
        alerts.delete_runbook(request.viewer, pk)
    except Refused as refused:
        return _page(request, refused=refused)
    fields = [("task", gone.task), ("url", gone.url)]
    add_toast(request, f"Runbook of {gone.task} deleted.", undo=reverse("redrive:runbook-save"), undo_fields=fields)
    return go(request, reverse("redrive:runbook-list"))


def _page(
    request: HttpRequest,
    *,
    typed: tuple[str, str] = ("", ""),
    refused: Refused | None = None,
) -> HttpResponse:
    status = 200 if refused is None else 403 if refused.code == "forbidden" else 422
    context = {
        "rows": alerts.runbooks(request.viewer),
        "may_change": not config.is_read_only() and alerts.may_change_runbooks(request.viewer),
        "typed": typed,
        "errors": {refused.field if refused.field in ("task", "url") else "all": [refused.message]} if refused else {},
    }
    return render_page(request, "redrive/alerts/runbooks.html", context, part="runbooks", status=status)
