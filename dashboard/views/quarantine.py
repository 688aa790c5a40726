"""What kills my workers? Jobs in quarantine with their crashes, and who ran in a worker that died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import forms, links
from dashboard.access import can
from dashboard.htmx import go, render_page
from dashboard.screens import quarantine as screen
from dashboard.toasts import say
from dashboard.views.failure_acts import NOT_DISCARDED, NOT_READMITTED
from jobs_admin import failures, quarantine, triage
from jobs_admin.core.text import whole_number
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.triage import Acted, TriageRefused


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request, request.GET.get("after", ""))


@require_POST
@can(OPERATOR)
def readmit(request: HttpRequest, pk: int) -> HttpResponse:
    """Out of quarantine: it is dead, and can be replayed."""
    return _changed(request, pk, triage.readmit, "Readmitted: it is dead and can be replayed.", NOT_READMITTED)


@require_POST
@can(OPERATOR)
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    return _changed(request, pk, triage.discard, "Discarded. It will not be replayed.", NOT_DISCARDED)


def _changed(request: HttpRequest, pk: int, act: Callable[..., Acted], said: str, not_done: str) -> HttpResponse:
    try:
        failure = failures.get(request.viewer, pk)
    except Failure.DoesNotExist:
        raise Http404("No failure has this number, or it belongs to a source you may not see.")
    form = forms.Reason(request.POST)
    if not form.is_valid():
        return _answer(request, "; ".join(form.errors["reason"]), level="error", status=422)
    try:
        done = act(request.viewer, selection=[failure.pk], reason=form.cleaned_data["reason"])
    except TriageRefused as refused:
        return _answer(request, refused.message, level="error", status=409)
    if not done.count:
        return _answer(request, not_done, level="error", status=409)
    fields = [("key", done.key), ("back", _back_url(request))]
    link = reverse("failure-detail", args=[pk])
    return _answer(request, said, link=link, link_text="The job", undo=reverse("failure-undo"), undo_fields=fields)


def _answer(request: HttpRequest, words: str, *, status: int = 200, **more: Any) -> HttpResponse:
    say(request, words, **more)
    return _page(request, request.POST.get("after", ""), status) if request.htmx else go(request, _back_url(request))


def _back_url(request: HttpRequest) -> str:
    return _address(request.POST.get("after", ""))


def _page(request: HttpRequest, after: str, status: int = 200) -> HttpResponse:
    after = after if whole_number(after) is not None else ""
    page = quarantine.listing(request.viewer, after=after or None)
    suspects = quarantine.suspects(request.viewer)
    context = {
        "page": page,
        "rows": [screen.row(held, request.viewer) for held in page.rows],
        "tasks": [(task, n, links.failures_of(task=task, state="quarantined")) for task, n in page.by_task],
        "all_url": links.failures_of(state="quarantined"),
        "suspects": suspects,
        "are_suspects_known": suspects is not None,
        "after": after,
        "self_url": _address(after),
        "first_url": _address("") if after else "",
        "next_url": _address(page.next) if page.next else "",
    }
    return render_page(request, "quarantine/list.html", context, part="quarantine", status=status)


def _address(after: str) -> str:
    where = reverse("quarantine-list")
    return f"{where}?{urlencode({'after': after})}" if whole_number(after) is not None else where
