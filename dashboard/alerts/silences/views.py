"""Silences: the list, a new one with its preview, and ending one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.alerts import words as alert_words
from dashboard.alerts.silences import screens as silence_screens
from dashboard.web import links, moments
from dashboard.web.access import can
from dashboard.web.figures import duration
from dashboard.web.htmx import go, render, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, config
from jobs_admin.alerts import silencing
from jobs_admin.core.refused import Refused
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.alert import Severity
from jobs_admin.queues import liveness

MOST_FITTING = 10


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request, request.GET.dict() if "for" in request.GET else {})


def _page(request: HttpRequest, given: dict[str, str], *, refused: Any = None, status: int = 200) -> HttpResponse:
    """Show the silences and the form of a new one, which stays filled in after a refusal."""
    viewer, now = request.viewer, timezone.now()
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    current = silence_screens.lines(viewer, alerts.silences(viewer, now), now, may_act=may_act)
    over = alerts.silences(viewer, now, over=True)
    chosen = silence_screens.chosen_matchers(given or request.GET)
    context = {
        "stale": liveness.find_stale(now),
        "at_work": [line for line in current if line.status == silence_screens.AT_WORK],
        "coming": [line for line in current if line.status == silence_screens.NOT_BEGUN],
        "over": silence_screens.lines(viewer, over, now, may_act=False),
        "most_ended": silencing.MOST_OVER,
        "may_act": may_act,
        "is_read_only": config.is_read_only(),
        "fields": silence_screens.fields(chosen),
        "comment": given.get("comment", ""),
        "until": given.get("until") or moments.as_field(now + timedelta(hours=8)),
        "starts": given.get("starts", ""),
        "choices": silence_screens.CHOICES.items(),
        "chosen_end": given.get("for") or next(iter(silence_screens.CHOICES)),
        "severities": Severity.values,
        **_checked(given or {"for": next(iter(silence_screens.CHOICES))}, now, refused),
        **_fitting(request, chosen),
    }
    return render_page(request, "redrive/alerts/silences.html", context, part="silences", status=status)


def _fitting(request: HttpRequest, chosen: dict[str, str]) -> dict[str, Any]:
    """Return the open alerts that these matchers would silence now."""
    found, count = silencing.find_covered(request.viewer, chosen, limit=MOST_FITTING) if chosen else ([], 0)
    now = timezone.now()
    return {
        "fitting": [alert_words.line(one, now) for one in found],
        "fitting_count": count,
        "fitting_more": count - len(found),
        "has_matchers": bool(chosen),
    }


_SLOTS = {"starts_at": "starts", "ends_at": "until", "comment": "comment", "source": "matchers", "matchers": "matchers"}


def _checked(given: Mapping[str, str], now: datetime, refused: Refused | None = None) -> dict[str, Any]:
    """Return the refusals by input, and the end of the silence as text if its times are valid."""
    end, errors = "", dict.fromkeys(("matchers", "starts", "until", "comment"), "")
    if refused:
        errors[_SLOTS.get(refused.field or "", "")] = str(refused)
    try:
        starts = silence_screens.starts_at(given)
        ends = silence_screens.ends_at(given, now, starts)
        begins = silencing.check_times(starts, ends, now)
        end = f"Ends {moments.local(ends):%a} {moments.dated(ends, now)}, after {duration(ends - begins)}."
    except Refused as wrong:
        errors[_SLOTS[wrong.field or "ends_at"]] = str(wrong)
    slots = {name: [text] if text else [] for name, text in errors.items() if name}
    return {"errors": errors, "unplaced": errors.get("", ""), "slots": slots, "end": end}


@require_safe
@can(VIEWER)
def fitting(request: HttpRequest) -> HttpResponse:
    """Check the form while it is filled in: open alerts that match, the end, and invalid times."""
    chosen = silence_screens.chosen_matchers(request.GET)
    checked = _checked(request.GET, timezone.now()) if "for" in request.GET else {}
    return render(request, "redrive/alerts/fitting.html", {**_fitting(request, chosen), **checked, "is_apart": True})


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    try:
        starts_at = silence_screens.starts_at(request.POST)
        made = alerts.silence(
            request.viewer, silence_screens.chosen_matchers(request.POST),
            ends_at=silence_screens.ends_at(request.POST, now, starts_at), comment=request.POST.get("comment", ""),
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
