"""Automations: list, form with dry run, page with diary, and acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.automations import forms
from dashboard.automations.forms import Draft
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import alerts, automations, config, notices
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Automation, Source
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.queues import liveness
from jobs_admin.rights import people

TONES = {"dry_run": "discarded", "awaiting_approval": "retrying", "live": "recovered", "tripped": "dead"}
WORDS = {"dry_run": "dry run", "awaiting_approval": "awaiting approval", "live": "live", "tripped": "tripped"}


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    found = automations.listing(viewer)
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "lines": [_line(one) for one in found],
        "may_create": _may_create(viewer),
        "may_stop": any(one.mode != "dry_run" and automations.may_change(viewer, one) for one in found),
        "self_url": reverse("redrive:automation-list"),
    }
    return render_page(request, "redrive/automations/list.html", context, part="automations")


@require_safe
@can(VIEWER)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form with the search, source and name in a link."""
    given = {name: request.GET.get(name, "")[:2_000].strip() for name in ("name", "source", "q")}
    sources = _sources(request.viewer)
    texts = forms.DEFAULTS | {name: text for name, text in given.items() if text}
    # A search covers every source, unless it names some.
    named = [one for one in sources if f"source:{one}" in given["q"].split()]
    every = [EVERY_SOURCE] if given["q"] and EVERY_SOURCE in sources else []
    texts.setdefault("source", next(iter([*named, *every, *sources]), ""))
    return _form(request, Draft(texts))


@require_safe
@can(VIEWER)
def edit(request: HttpRequest, name: str) -> HttpResponse:
    one = _get(request, name)
    return _form(request, Draft.from_automation(one))


@require_POST
@can(VIEWER)
def preview(request: HttpRequest) -> HttpResponse:
    """Show the dry run of the typed automation, without storing anything."""
    return _form(request, Draft.from_form(request.POST, _current(request)))


@require_POST
@can(OPERATOR)
def save(request: HttpRequest) -> HttpResponse:
    current = _current(request)
    draft = Draft.from_form(request.POST, current)
    try:
        if current is None:
            made = automations.create(request.viewer, draft.texts["name"], draft.document())
        else:
            version = whole_number(request.POST.get("version")) or 0
            made = automations.change(request.viewer, current.name, draft.document(), expected_version=version)
    except Refused as refused:
        draft.refuse(refused)
        return _form(request, draft, status=refused.status)
    add_toast(request, f"{made.name} saved, in dry run. Enable the automation to let it act.")
    return go(request, reverse("redrive:automation-detail", args=[made.name]))


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, name: str) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    one = _get(request, name)
    page = automations.diary(one, after=request.GET.get("after"))
    may_change = automations.may_change(viewer, one)
    state = automations.state(one)
    context = {
        "now": now,
        "stale": liveness.find_stale(now),
        "one": one,
        "line": _line(one),
        "state": state,
        "diary": page,
        "next_url": f"?after={page.next}" if page.next else "",
        "may_change": may_change,
        "why_not_approve": automations.approver_refusal(viewer, one) if state == "awaiting_approval" else "",
        "dry_run": automations.dry_run(viewer, one, now) if state == "dry_run" else None,
        "search_url": links.list_url(one.query or "state:dead"),
        "self_url": request.get_full_path(),
    }
    return render_page(request, "redrive/automations/detail.html", context, part="automation")


@require_POST
@can(OPERATOR)
def enable(request: HttpRequest, name: str) -> HttpResponse:
    version = whole_number(request.POST.get("version"))

    def act(viewer: Viewer, reason: str) -> str:
        made = automations.enable(viewer, name, expected_version=version, reason=reason)
        if made.mode == "awaiting_approval":
            return f"{name} awaits approval: it discards jobs, so another operator must approve it."
        return f"{name} is live."

    return _act(request, name, act)


@require_POST
@can(OPERATOR)
def approve(request: HttpRequest, name: str) -> HttpResponse:
    version = whole_number(request.POST.get("version"))

    def act(viewer: Viewer, reason: str) -> str:
        automations.approve(viewer, name, expected_version=version, reason=reason)
        return f"{name} is live."

    return _act(request, name, act)


@require_POST
@can(OPERATOR)
def disable(request: HttpRequest, name: str) -> HttpResponse:
    def act(viewer: Viewer, reason: str) -> str:
        automations.disable(viewer, name, reason=reason)
        return f"{name} is in dry run. Started replays continue."

    return _act(request, name, act)


@require_POST
@can(OPERATOR)
def reset(request: HttpRequest, name: str) -> HttpResponse:
    def act(viewer: Viewer, reason: str) -> str:
        automations.reset(viewer, name, reason=reason)
        return f"{name} is live again."

    return _act(request, name, act)


@require_POST
@can(OPERATOR)
def delete(request: HttpRequest, name: str) -> HttpResponse:
    def act(viewer: Viewer, reason: str) -> str:
        automations.delete(viewer, name)
        return f"{name} deleted."

    return _act(request, name, act, after=reverse("redrive:automation-list"))


@require_POST
@can(OPERATOR)
def stop_all(request: HttpRequest) -> HttpResponse:
    stopped = automations.stop_all(request.viewer, reason=request.POST.get("reason", "")[:500])
    number = f"{len(stopped):,} automation{'' if len(stopped) == 1 else 's'}"
    add_toast(request, f"{number} stopped. Started replays continue.")
    return go(request, reverse("redrive:automation-list"))


def _act(request: HttpRequest, name: str, act: Callable[[Viewer, str], str], *, after: str = "") -> HttpResponse:
    _get(request, name)
    page = reverse("redrive:automation-detail", args=[name])
    try:
        add_toast(request, act(request.viewer, request.POST.get("reason", "")[:500]))
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, page)
    return go(request, after or page)


def _form(request: HttpRequest, draft: Draft, *, status: int = 200) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    found = None
    is_checked = request.method == "POST" and not draft.errors
    if request.method == "POST" or draft.current is not None or draft.texts.get("q"):
        try:
            found = automations.dry_run(viewer, automations.check(viewer, draft.document()), now)
        except Refused as refused:
            if is_checked:
                draft.refuse(refused)
    context: dict[str, Any] = {
        "draft": draft,
        "texts": draft.texts,
        "errors": draft.errors,
        "general": draft.errors.get("", []),
        # The preview does not check the name; only saving does.
        "slots": [
            (f"a-{place or 'general'}", draft.errors.get(place, [])) for place in ("", *forms.PLACES) if place != "name"
        ],
        "current": draft.current,
        "dry_run": found,
        "sources": _sources(viewer),
        "rules": [one.name for one in alerts.rules(viewer, with_channels=False)],
        "channels": [one.name for one in notices.channels(viewer)],
        "people": people.names(viewer),
        "acts": forms.ACTS,
        "styles": forms.STYLES,
        "ends": ((forms.KEEP, "Unchanged"), *forms.ENDS) if draft.current and draft.current.expires_at else forms.ENDS,
        "cancel_url": reverse("redrive:automation-detail", args=[draft.current.name])
        if draft.current
        else reverse("redrive:automation-list"),
        "may_save": _may_create(viewer) if draft.current is None else automations.may_change(viewer, draft.current),
    }
    return render_page(request, "redrive/automations/form.html", context, part="outlook", status=status)


def _line(one: Automation) -> dict[str, Any]:
    state = automations.state(one)
    return {
        "one": one,
        "url": reverse("redrive:automation-detail", args=[one.name]),
        "state": WORDS[state],
        "tone": TONES[state],
        "when": forms.when(one),
        "then": forms.then(one),
    }


def _current(request: HttpRequest) -> Automation | None:
    name = request.POST.get("automation", "")[:100]
    return _get(request, name) if name else None


def _get(request: HttpRequest, name: str) -> Automation:
    try:
        return automations.get(request.viewer, name)
    except NotFound as missing:
        raise Http404(str(missing)) from missing


def _sources(viewer: Viewer) -> list[str]:
    names = sorted({*config.sources(), *Source.objects.values_list("pk", flat=True)})
    every = [EVERY_SOURCE] if viewer.may(VIEWER, EVERY_SOURCE) else []
    return [*(name for name in names if viewer.may(VIEWER, name)), *every]


def _may_create(viewer: Viewer) -> bool:
    return viewer.may_anywhere(OPERATOR) and not config.is_read_only()
