"""Holds: the list of pauses, pausing and resuming; the list of breakers, the page of one, and forcing its state."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.holds import breaker_page, notes
from dashboard.web import links, moments, source_switcher
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import config, holds
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.holds import breaker_history, breakers, pausing, pushing
from jobs_admin.holds.breaker_documents import AUTO, CLOSED, HALF_OPEN, OPEN
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.hold import KINDS
from jobs_admin.queues import liveness

_FIELDS = ("source", *KINDS, "reason")  # fields of the form, without its buttons
_PACED = "Waiting jobs are held by their breaker, which releases them at the careful pace."


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, refused: Refused | None = None) -> HttpResponse:
    """Show the pauses and the form of a new one, which stays filled in after a refusal."""
    viewer, now = request.viewer, timezone.now()
    errors = {refused.field if refused.field in _FIELDS else "": [refused.message]} if refused else {}
    sources = [name for name, one in config.sources().items() if one.backend == "celery" and viewer.may(OPERATOR, name)]
    paused = holds.listing(viewer)
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "notes": notes.notes(viewer, paused, now),
        "overwritten": pushing.find_overwritten({one.source for one in paused}),
        "ended": holds.listing(viewer, ended=True),
        "most_ended": pausing.MOST_ENDED,
        "lengths": notes.LENGTHS,
        "sources": sources,
        "may_pause": bool(sources) and not config.is_read_only(),
        "is_operator": viewer.may_anywhere(OPERATOR),
        "is_read_only": config.is_read_only(),
        "self_url": source_switcher.with_focus(reverse("redrive:pause-list"), viewer),
        "given": {name: request.POST.get(name, "")[:500] for name in _FIELDS} if refused else {"source": viewer.focus},
        "errors": errors,
        "unplaced": errors.get(""),
    }
    return render_page(request, "redrive/holds/list.html", context, part="pauses", status=422 if refused else 200)


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    given, now = request.POST, timezone.now()
    try:
        made = holds.pause(
            request.viewer,
            given.get("source", ""),
            **{kind: given.get(kind, "") for kind in KINDS},
            reason=given.get("reason", ""),
            for_s=_length(given.get("for", "")),
            now=now,
        )
    except Refused as refused:
        if given.get("back", "").partition("?")[0] == reverse(
            "redrive:pause-list"
        ):  # the form of this page keeps its values
            return _page(request, refused)
        add_toast(request, refused.message, level="error")
    else:
        end = f"until {moments.dated(made.until, now)}" if made.until else "until resumed"
        undo = reverse("redrive:pause-resume", args=[made.pk])
        reach = holds.reach(request.viewer, [made])[made.pk]
        text = reach.sentence if reach.is_doubtful else "Running jobs finish."
        add_toast(request, f"Paused {made.name} {end}. {text}", undo=undo)
    return go(request, links.back(request, otherwise=reverse("redrive:pause-list")))


@require_POST
@can(OPERATOR)
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        ended = holds.resume(request.viewer, pk, pace=request.POST.get("pace", holds.AT_ONCE))
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        how = _PACED if request.POST.get("pace") == holds.CAREFUL else "Waiting jobs start as workers take them."
        add_toast(request, f"Resumed {ended.name}. {how}")
    return go(request, links.back(request, otherwise=reverse("redrive:pause-list")))


def _length(text: str) -> int | None:
    """Return the duration in seconds; None for until resumed. Raises Refused."""
    if not text:
        return None
    seconds = whole_number(text)
    if not seconds or text not in dict(notes.LENGTHS):
        raise Refused("invalid", "Choose how long the pause lasts. Nothing was changed.", "for")
    return seconds


# --- breakers ----------------------------------------------------------------------------------------------------

_DONE = {
    OPEN: "{} is forced open: matching jobs are held.",
    CLOSED: "{} is forced closed: held jobs start at the careful pace.",
    AUTO: "{} is automatic again.",
}


@require_safe
@can(VIEWER, by_source=True)
def breaker_list(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    found = breakers.listing(viewer)
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "breakers": [breaker_page.show(viewer, one, now) for one in found.rows],
        "is_known": found.is_known,
        "unable": found.unable,
        "is_operator": viewer.may_anywhere(OPERATOR),
        "self_url": source_switcher.with_focus(reverse("redrive:breaker-list"), viewer),
    }
    return render_page(request, "redrive/holds/breakers.html", context, part="breakers")


@require_safe
@can(VIEWER)
def breaker_detail(request: HttpRequest, source: str, name: str) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    try:
        found = breakers.get(viewer, source, name)
    except NotFound as missing:
        raise Http404(str(missing)) from missing
    document, on_hold = found.document, breakers.on_hold(found)
    shown = breaker_page.show(viewer, found, now, dead=breaker_page.count_dead(found))
    dependency = breaker_page.dependency_of(found)
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "shown": shown,
        "row": found,
        "document": document,
        "facts": breaker_page.evidence_facts(document.evidence) if document and document.evidence else [],
        "hosts": breaker_page.host_lines(document),
        "older_workers": breakers.older_workers(found),
        "awaited": breakers.awaited(found, now),
        "closing": breaker_page.closing_text(found),
        "on_hold": on_hold,
        "parts": [
            ("queue", _largest_first(on_hold.by_queue)),
            ("task", _largest_first(on_hold.by_task)),
            ("tenant", _largest_first(on_hold.by_tenant)),
        ],
        "queues": breaker_history.queues_of(found, 20, now),
        "policies": breaker_page.policies_of(found),
        "steps": breaker_page.steps(breaker_history.events(viewer, source, name)),
        "picture": breaker_page.draw(found, breaker_history.samples(viewer, source, name), now),
        "failures_url": breaker_page.failures_url(found, dependency),
        "dependency_url": links.dependency_page(dependency) if dependency else "",
        "lengths": breaker_page.LENGTHS,
        "is_releasing": document is not None and document.state == HALF_OPEN,
        "is_read_only": config.is_read_only(),
        "is_operator": viewer.may(OPERATOR, source),
        "is_moving": not found.is_closed,
        "self_url": shown.url,
    }
    return render_page(request, "redrive/holds/breaker.html", context, part="breaker")


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


@require_POST
@can(OPERATOR)
def force(request: HttpRequest, source: str, name: str) -> HttpResponse:
    given = request.POST
    as_ = given.get("as", "")
    try:
        known = breakers.get(request.viewer, source, name)
        before = known.document.forced.as_ if known.document and known.document.forced else AUTO
        forced = breakers.force(
            request.viewer,
            source,
            name,
            as_,
            reason=given.get("reason", ""),
            for_s=_forced_length(given.get("for", ""), known),
        )
    except NotFound as missing:
        raise Http404(str(missing)) from missing
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    else:
        if forced.awaits:
            act = f"return {name} to automatic" if as_ == AUTO else f"force {name} {as_}"
            add_toast(request, f"Asked to {act}. {forced.awaits}")
            return go(request, breaker_page.page_of(source, name))
        undo = request.path if as_ != AUTO and before == AUTO else ""
        add_toast(request, _DONE[as_].format(name), undo=undo, undo_fields=[("as", AUTO)] if undo else None)
    return go(request, breaker_page.page_of(source, name))


def _forced_length(text: str, known: breakers.BreakerRow) -> int | None:
    """Return the duration in seconds; None for until changed. Raises Refused."""
    if not text:
        return None
    seconds, awaited = whole_number(text), breakers.awaited(known, timezone.now())
    is_of_request = awaited is not None and awaited.after.get("for_s") == seconds
    if not seconds or (text not in dict(breaker_page.LENGTHS) and not is_of_request):
        raise Refused("invalid", "Choose how long the state is forced. Nothing was changed.", "for")
    return seconds
