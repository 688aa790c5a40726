"""Acts on many failures: the selected ones or all that match. Large acts continue in steps with visible progress."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.audit import words as act_words
from dashboard.failures import list_views as pages
from dashboard.groups import act_views as group_acts
from dashboard.web import forms, links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page, stay
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import triage
from jobs_admin.failures.triage import Sweep
from jobs_admin.models.access import OPERATOR

# Duration of one step of a large act: long enough to be efficient, short enough to show progress.
STEP_S = 1.5
# Acts of dashboard.groups.act_views on the groups of the selected jobs.
GROUP_ACTS = ("resolve", "mute_day", "mute_week", "assign_me")
_SALT = "jobs_admin.failures.triage.sweep"
_GOOD_FOR_S = 3600


@require_POST
@can(OPERATOR)
def bulk(request: HttpRequest) -> HttpResponse:
    """Discard, restore or release from quarantine the selected failures, or all that match the search."""
    scope, reason = forms.Scope(request.POST), forms.Reason(request.POST)
    act = request.POST.get("act", "")
    if act not in triage.ACTS and act not in GROUP_ACTS:
        return _refused(request, "Unknown action. Nothing was changed.")
    if not scope.is_valid() or not reason.is_valid():
        errors = [text for form in (scope, reason) for texts in form.errors.values() for text in texts]
        return _refused(request, " ".join(errors))
    if scope.is_empty:
        return _refused(request, "No jobs selected. Nothing was changed.", level="warning")
    what, why = scope.cleaned_data, reason.cleaned_data["reason"]
    if act in GROUP_ACTS:
        return _on_their_groups(request, what)
    try:
        if what["everything"]:
            return _step(request, triage.begin(request.viewer, act, reason=why, **_as_shown(request, what["q"])))
        done = triage.act_on(request.viewer, act, what["selection"], reason=why)
    except Refused as refused:
        return _refused(request, refused.message)
    return _list_with_result(request, act, done.count, len(what["selection"]), done.key)


def _on_their_groups(request: HttpRequest, what: dict) -> HttpResponse:
    """Apply an act to the groups of the jobs."""
    chosen = _as_shown(request, what["q"]) if what["everything"] else {"selection": what["selection"]}
    try:
        fingerprints = triage.fingerprints_of(request.viewer, **chosen)
        group_acts.change_all(request, fingerprints, _back_url(request))
    except Refused as refused:
        return _refused(request, refused.message)
    return _list_again(request)


def _as_shown(request: HttpRequest, query: str) -> dict[str, Any]:
    """Return the limits of "all matches" as shown: the page's latest failure, and the time of its relative times."""
    seen, at = _number(request, "highest"), _number(request, "shown_at")
    now = timezone.now()
    shown = datetime.fromtimestamp(at, UTC) if at is not None and at <= now.timestamp() else now
    return {"query": query, "highest": seen, "now": shown}


def _number(request: HttpRequest, name: str) -> int | None:
    return whole_number(request.POST.get(name))


@require_POST
@can(OPERATOR)
def undo(request: HttpRequest) -> HttpResponse:
    """Undo exactly what an act changed."""
    try:
        return _step(request, triage.begin_undo(request.viewer, request.POST.get("key", "")[:120]))
    except Refused as refused:
        return _refused(request, refused.message)


@require_POST
@can(OPERATOR)
def sweep(request: HttpRequest) -> HttpResponse:
    """Run the next step of a large act."""
    try:
        fields = signing.loads(request.POST.get("sweep", ""), salt=_salt(request), max_age=_GOOD_FOR_S)
    except signing.BadSignature:
        return _answer(
            request, "This action has expired or belongs to another user. Changes made so far remain.", level="error"
        )
    under_way = Sweep(**fields)
    if "stop" in request.POST:
        return _list_with_result(
            request, under_way.act, under_way.changed, under_way.looked, under_way.key, is_stopped=True
        )
    try:
        return _step(request, under_way)
    except Refused as refused:
        words = f"{refused.message.removesuffix(' Nothing was changed.')} {act_words.progress(under_way).sofar}"
        return _answer(request, words, level="error")


def _step(request: HttpRequest, under_way: Sweep) -> HttpResponse:
    before, began = under_way.looked, time.monotonic()
    under_way = triage.go_on(request.viewer, under_way, within_s=STEP_S)
    if under_way.is_done:
        return _list_with_result(request, under_way.act, under_way.changed, under_way.looked, under_way.key)
    context = {
        "q": _query(request),
        "sweep": under_way,
        "checked": min(under_way.looked, under_way.matched),
        "words": act_words.progress(under_way, (under_way.looked - before) / max(time.monotonic() - began, 0.001)),
        "token": signing.dumps(asdict(under_way), salt=_salt(request), compress=True),
    }
    return render_page(request, "redrive/failures/sweep.html", context, part="sweep")


def _salt(request: HttpRequest) -> str:
    return f"{_SALT}:{request.viewer.user_id}"


def _list_with_result(
    request: HttpRequest, act: str, changed: int, checked: int, key: str, *, is_stopped: bool = False
) -> HttpResponse:
    words, level = act_words.result(act, changed, checked, is_stopped=is_stopped)
    if not changed:
        add_toast(request, words, level=level)
        return _list_again(request, status=409)  # which preserves the selection
    if act == "undo":
        return _answer(request, words, level=level)
    fields = [("key", key), ("q", _query(request)), ("back", _back_url(request))]
    return _answer(request, words, level=level, undo=reverse("redrive:failure-undo"), undo_fields=fields)


def _refused(request: HttpRequest, words: str, level: str = "error") -> HttpResponse:
    """Return a refusal that leaves the list, its selection and the typed reason unchanged."""
    add_toast(request, words, level=level)
    return stay(request) if _is_part(request) else go(request, _back_url(request))


def _answer(request: HttpRequest, words: str, **more: object) -> HttpResponse:
    """Return the current list with the result of the act as a toast."""
    add_toast(request, words, **more)
    return _list_again(request)


def _list_again(request: HttpRequest, status: int = 200) -> HttpResponse:
    if not _is_part(request):
        return go(request, _back_url(request))
    text = _query(request)
    response = pages.page(request, text, status=status)
    response.headers["HX-Push-Url"] = links.list_url(text)
    return response


def _is_part(request: HttpRequest) -> bool:
    return bool(request.htmx) and request.htmx.target == "results"


def _query(request: HttpRequest) -> str:
    return request.POST.get("q", "").strip()


def _back_url(request: HttpRequest) -> str:
    return links.back(request, otherwise=links.list_url(_query(request)))
