"""Silences: the list, a new one with its preview, and ending one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts import listing as alert_list
from dashboard.alerts.silences import forms as silence_forms
from dashboard.alerts.silences import listing as silence_list
from dashboard.web import links, moments
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config
from jobs_admin.alerts import showing
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.alert import Severity
from jobs_admin.queues import liveness

MOST_FITTING = 10


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request, {})


def _page(request: HttpRequest, given: dict[str, str], *, refused: Any = None, status: int = 200) -> HttpResponse:
    """The silences, and the form of a new one: as it was filled in, where it was refused."""
    viewer, now = request.viewer, timezone.now()
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()

    def lines(found: list) -> list[silence_list.Line]:
        return [silence_list.line(one, now, may_act and alerts.may_end(viewer, one)) for one in found]

    current = lines(alerts.silences(viewer, now))
    chosen = silence_list.chosen_matchers(given or request.GET)
    context = {
        "stale": liveness.find_stale(now),
        "at_work": [line for line in current if line.status == silence_list.AT_WORK],
        "coming": [line for line in current if line.status == silence_list.NOT_BEGUN],
        "over": lines(alerts.silences(viewer, now, over=True)),
        "may_act": may_act,
        "is_read_only": config.is_read_only(),
        "fields": silence_list.fields(chosen),
        "comment": given.get("comment", ""),
        "until": given.get("until") or moments.as_field(now + timedelta(hours=8)),
        "until_min": moments.as_field(now),
        "starts": given.get("starts", ""),
        "choices": silence_forms.CHOICES.items(),
        "severities": Severity.values,
        "refused": refused,
        "refused_field": getattr(refused, "field", None) or "",
        "has_matchers": bool(chosen),
        **_fitting(request, chosen),
    }
    return render_page(request, "redrive/alerts/silences.html", context, part="silences", status=status)


def _fitting(request: HttpRequest, chosen: dict[str, str]) -> dict[str, Any]:
    """Return the open alerts that these matchers would silence now."""
    found, count = showing.fitting(request.viewer, chosen, limit=MOST_FITTING) if chosen else ([], 0)
    now = timezone.now()
    return {
        "fitting": [alert_list.line(one, now) for one in found],
        "fitting_count": count,
        "fitting_more": count - len(found),
        "chosen": chosen,
    }


@require_safe
@can(VIEWER)
def fitting(request: HttpRequest) -> HttpResponse:
    """A part of the form: the open alerts that its matchers fit."""
    chosen = silence_list.chosen_matchers(request.GET)
    return render(request, "redrive/alerts/fitting.html", {**_fitting(request, chosen), "has_matchers": bool(chosen)})


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    try:
        starts_at = silence_forms.moment(request.POST.get("starts", ""))
        made = alerts.silence(
            request.viewer, silence_list.chosen_matchers(request.POST),
            ends_at=silence_forms.ends_at(request.POST, now, starts_at), comment=request.POST.get("comment", ""),
            starts_at=starts_at, now=now,
        )  # fmt: skip
    except Refused as refused:
        return _page(request, request.POST.dict(), refused=refused, status=422)
    add_toast(
        request,
        f"Silenced until {moments.dated(made.ends_at, now)}.",
        undo=reverse("redrive:silence-end", args=[made.pk]),
    )
    return go(request, reverse("redrive:silence-list"))


@require_POST
@can(OPERATOR)
def end(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        alerts.end_silence(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        add_toast(request, "Silence ended. Matching alerts send notifications again.")
    return go(request, links.back(request, otherwise=reverse("redrive:silence-list")))
