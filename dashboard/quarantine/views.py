"""Quarantine: its jobs with their crashes, and other jobs that ran in a worker that crashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.failures import quarantine as screen
from dashboard.failures.act_views import NOT_DISCARDED, NOT_READMITTED, done_to
from dashboard.failures.views import get_failure
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import quarantine, triage
from jobs_admin.failures.triage import Acted
from jobs_admin.models.access import OPERATOR, VIEWER


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request, request.GET.get("after", ""))


@require_POST
@can(OPERATOR)
def readmit(request: HttpRequest, pk: int) -> HttpResponse:
    """Release a job from quarantine: it becomes dead, and can be replayed."""
    return _changed(request, pk, triage.readmit, "Readmitted. The job is dead and can be replayed.", NOT_READMITTED)


@require_POST
@can(OPERATOR)
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    return _changed(request, pk, triage.discard, "Discarded. The job will not be replayed.", NOT_DISCARDED)


def _changed(request: HttpRequest, pk: int, act: Callable[..., Acted], message: str, not_done: str) -> HttpResponse:
    try:
        done = done_to(request, get_failure(request, pk), act, not_done)
    except Refused as refused:
        status = 422 if refused.code == "reason_required" else 409
        return _answer(request, refused.message, level="error", status=status)
    fields = [("key", done.key), ("back", _back_url(request))]
    link = reverse("redrive:failure-detail", args=[pk])
    return _answer(
        request, message, link=link, link_text="The job", undo=reverse("redrive:failure-undo"), undo_fields=fields
    )


def _answer(request: HttpRequest, words: str, *, status: int = 200, **more: Any) -> HttpResponse:
    add_toast(request, words, **more)
    return _page(request, request.POST.get("after", ""), status) if request.htmx else go(request, _back_url(request))


def _back_url(request: HttpRequest) -> str:
    return _address(request.POST.get("after", ""))


def _page(request: HttpRequest, after: str, status: int = 200) -> HttpResponse:
    after = after if whole_number(after) is not None else ""
    page = quarantine.listing(request.viewer, after=after or None)
    suspects = quarantine.suspects(request.viewer)
    context = {
        "page": page,
        "rows": [screen.row(one, request.viewer) for one in page.rows],
        "tasks": [(task, n, links.failures_of(task=task, state="quarantined")) for task, n in page.by_task],
        "all_url": links.failures_of(state="quarantined"),
        "suspects": suspects,
        "are_suspects_known": suspects is not None,
        "after": after,
        "self_url": _address(after),
        "first_url": _address("") if after else "",
        "next_url": _address(page.next) if page.next else "",
    }
    return render_page(request, "redrive/quarantine/list.html", context, part="quarantine", status=status)


def _address(after: str) -> str:
    where = reverse("redrive:quarantine-list")
    return f"{where}?{urlencode({'after': after})}" if whole_number(after) is not None else where
