"""Retries that wait are to wait otherwise: what it would do, doing it, what became of it, and taking it back."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.retries import page as retry_page
from dashboard.retries.forms import JITTERS, KINDS, Change
from dashboard.web import forms, links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Reschedule
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.retries import rescheduling


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    found = rescheduling.listing(request.viewer, after=request.GET.get("after"))
    lines = [(one, retry_page.summary(one, may_act=False, undone=False)) for one in found.rows]
    context = {"lines": lines, "next": found.next, "is_first": "after" not in request.GET}
    return render_page(request, "redrive/retries/list.html", context, part="retries")


@require_http_methods(["GET", "HEAD", "POST"])
@can(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Preview a rescheduling (GET or POST), which changes nothing; `step=start` plans it."""
    given = request.POST if request.method == "POST" else request.GET
    scope, change = forms.Scope(given), Change(given)
    if not scope.is_valid():
        add_toast(request, " ".join(text for texts in scope.errors.values() for text in texts), level="error")
        return go(request, reverse("redrive:failure-list"))
    what = scope.cleaned_data
    selection, query = what["selection"], "" if what["selection"] else what["q"]
    # No search at all is not "everything": that needs an empty `q`.
    if not selection and "q" not in given:
        return render_page(request, "redrive/retries/new.html", {"is_unscoped": True}, part="preview")
    if request.method == "POST" and given.get("step") == "start" and change.is_valid():
        try:
            planned = rescheduling.plan(
                request.viewer,
                query=query,
                selection=selection,
                change=change.document,
                reason=change.cleaned_data["reason"],
                highest=whole_number(given.get("highest")),
            )
        except Refused as refused:
            status = 422 if refused.code in {"bad_change", "reason_required"} else 409
            return _page(request, query, selection, change, refused=refused, status=status)
        return go(request, reverse("redrive:reschedule-detail", args=[planned.pk]))
    return _page(request, query, selection, change, status=200 if change.is_valid() else 422)


def _page(
    request: HttpRequest,
    query: str,
    selection: list[int],
    change: Change,
    *,
    refused: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    preview = None
    if refused is not None:
        change.refuse(refused.field, refused.message)
    try:
        preview = rescheduling.preview(
            request.viewer, query=query, selection=selection, change=change.document, now=timezone.now()
        )
    except Refused as why:
        if refused is None:
            change.refuse(why.field, why.message)
        # That none waits is an answer to a look, and no fault of it.
        is_answer = request.method != "POST" and why.code == "bad_scope"
        refused, status = refused or why, status if is_answer else max(status, 422)
    many = refused.details.get("sources", ()) if refused is not None else ()
    context = {
        "form": change,
        "kinds": KINDS,
        "jitters": JITTERS,
        "values": {name: change.value(name) for name in change.fields},
        "errors": {name: " ".join(texts) for name, texts in change.errors.items()},
        "refused": " ".join(change.non_field_errors()),
        "q": preview.query if preview else query,
        "selection": ",".join(map(str, selection)),
        "selected": len(selection),
        "preview": preview,
        "sources": [(name, links.retries_url(f"{query} source:{name}".strip())) for name in many],
        "back_url": links.list_url(query or "state:retrying"),
        "all_url": links.retries_url(f"source:{preview.source}") if preview and selection else "",
    }
    if preview is not None:
        before, after = retry_page.herds(preview)
        context |= {
            "rows": retry_page.rows(preview),
            "picture": retry_page.picture(preview),
            "herd_before": before,
            "herd_after": after,
            "fitting": preview.matched - preview.beyond,
        }
    return render_page(request, "redrive/retries/new.html", context, part="preview", status=status)


def get_reschedule(request: HttpRequest, pk: int) -> Reschedule:
    try:
        return rescheduling.find(request.viewer, pk)
    except Reschedule.DoesNotExist as error:
        raise Http404(f"No change {pk} of retries, or you have no role on its source.") from error


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return _detail(request, get_reschedule(request, pk))


def _detail(request: HttpRequest, planned: Reschedule, *, refused: str = "", status: int = 200) -> HttpResponse:
    undone = planned.undone_by.first()
    context = {
        "planned": planned,
        "undone": undone,
        "refused": refused,
        "shown": retry_page.summary(
            planned, may_act=request.viewer.may(OPERATOR, planned.source), undone=undone is not None
        ),
        "here": reverse("redrive:reschedule-detail", args=[planned.pk]),
    }
    return render_page(request, "redrive/retries/detail.html", context, part="reschedule", status=status)


@require_POST
@can(OPERATOR)
def undo(request: HttpRequest, pk: int) -> HttpResponse:
    """Undo a rescheduling: retries that still wait as it left them get their former time back."""
    planned, form = get_reschedule(request, pk), forms.Reason(request.POST)
    if not form.is_valid():
        return _detail(request, planned, refused="; ".join(form.errors["reason"]), status=422)
    try:
        back = rescheduling.undo(request.viewer, planned, reason=form.cleaned_data["reason"])
    except Refused as refused:
        return _detail(request, planned, refused=refused.message, status=403 if refused.code == "forbidden" else 409)
    return go(request, reverse("redrive:reschedule-detail", args=[back.pk]))
