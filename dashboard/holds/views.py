"""Pauses: the list with its form, pausing, and resuming."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.holds import notes
from dashboard.web import links, moments
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import config, holds
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import liveness


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    sources = [name for name, one in config.sources().items() if one.backend == "celery" and viewer.may(OPERATOR, name)]
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "notes": notes.notes(viewer, holds.listing(viewer), now),
        "ended": holds.listing(viewer, ended=True),
        "lengths": notes.LENGTHS,
        "sources": sources,
        "may_pause": bool(sources) and not config.is_read_only(),
        "is_operator": viewer.may_anywhere(OPERATOR),
        "is_read_only": config.is_read_only(),
        "self_url": reverse("redrive:pause-list"),
    }
    return render_page(request, "redrive/holds/list.html", context, part="pauses")


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    given, now = request.POST, timezone.now()
    try:
        made = holds.pause(
            request.viewer,
            given.get("source", ""),
            queue=given.get("queue", ""),
            task=given.get("task", ""),
            reason=given.get("reason", ""),
            for_s=_length(given.get("for", "")),
            now=now,
        )
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        end = f"until {moments.dated(made.until, now)}" if made.until else "until resumed"
        undo = reverse("redrive:pause-resume", args=[made.pk])
        reach = holds.reach(request.viewer, [made])[made.pk]
        text = reach.sentence if reach.is_unknown_task else "Running jobs run to their end."
        add_toast(request, f"Paused {made.queue or made.task} {end}. {text}", undo=undo)
    return go(request, links.back(request, otherwise=reverse("redrive:pause-list")))


@require_POST
@can(OPERATOR)
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        ended = holds.resume(request.viewer, pk)
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        add_toast(request, f"Resumed {ended.queue or ended.task}. Waiting jobs start as workers take them.")
    return go(request, links.back(request, otherwise=reverse("redrive:pause-list")))


def _length(text: str) -> int | None:
    """Return seconds; None until resumed. Raises Refused."""
    if not text:
        return None
    seconds = whole_number(text)
    if not seconds or text not in dict(notes.LENGTHS):
        raise Refused("invalid", "Choose how long the pause lasts. Nothing was changed.", "for")
    return seconds
