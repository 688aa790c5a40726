"""Replay, edit, discard and restore one failure. Every act also works as a plain form."""

from __future__ import annotations

import json
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.failures import page as failure_page
from dashboard.failures import views as pages
from dashboard.web import differences, forms, links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import replays
from jobs_admin.core.redacted_view import Piece, Plain, build_display
from jobs_admin.core.refused import Refused
from jobs_admin.failures import contents, triage
from jobs_admin.failures.triage import Acted
from jobs_admin.models import Failure, Replay
from jobs_admin.models.access import OPERATOR
from jobs_admin.models.replay import ReplayState


@require_POST
@can(OPERATOR)
def replay(request: HttpRequest, pk: int) -> HttpResponse:
    """Replay one job unchanged."""
    failure = pages.get_failure(request, pk)
    form = forms.Reason(request.POST)
    if not form.is_valid():
        return pages.page(request, failure, status=422, refused="; ".join(form.errors["reason"]))
    return _send(request, failure, reason=form.cleaned_data["reason"])


def _send(request: HttpRequest, failure: Failure, *, reason: str) -> HttpResponse:
    try:
        started = _started(request, failure, reason=reason, edit=None)
    except Refused as refused:
        now = pages.get_failure(request, failure.pk)
        return pages.page(request, now, status=409, refused=refused.message, accept_url=_accept_url(failure, refused))
    _announce_replay(request, failure, started)
    return _back_to(request, failure.pk)


def _accept_url(failure: Failure, refused: Refused) -> str:
    """Return the URL that accepts the reason of the exclusion; "" if nothing can be accepted."""
    return links.replay_of_job(failure.pk) if refused.details.get("accept") else ""


def _started(request: HttpRequest, failure: Failure, *, reason: str, edit: dict | None) -> Replay:
    return replays.launch(
        request.viewer,
        selection=[failure.pk],
        reason=reason,
        edit=edit,
        idempotency_key=request.POST.get("idempotency_key") or None,
    )


def _announce_replay(request: HttpRequest, failure: Failure, started: Replay) -> None:
    link = reverse("redrive:replay-detail", args=[started.pk])
    if started.state == ReplayState.AWAITING_APPROVAL:
        message = f"Planned in replay #{started.pk}. Another operator must approve it before the job is sent."
    else:
        message = f"Planned in replay #{started.pk}. The job is sent to {failure.queue} within seconds."
    add_toast(request, message, link=link, link_text=f"Replay #{started.pk}")


def _back_to(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the failure after the act: its part for htmx, otherwise its page."""
    if request.htmx:
        return pages.page(request, pages.get_failure(request, pk))
    return go(request, reverse("redrive:failure-detail", args=[pk]))


@require_http_methods(["GET", "HEAD", "POST"])
@can(OPERATOR)
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Edit the arguments of one job: edit, review the difference, send. Nothing is stored in between."""
    failure = pages.get_failure(request, pk)
    if why_not := failure_page.why_not_editable(failure):
        return pages.page(request, failure, status=409, refused=why_not)
    stored = contents.copy(failure)
    if request.method != "POST":
        form = forms.Edit(initial={name: _pretty(getattr(stored, name)) for name in _EDITED})
        return _edit_page(request, failure, form)
    form = forms.Edit(request.POST)
    if not form.is_valid():
        return _edit_page(request, failure, form, status=422)
    after = {name: form.cleaned_data[name] for name in _EDITED}
    changes = {name: differences.of_values(getattr(stored, name), Plain(after[name])) for name in _EDITED}
    # Unchanged arguments are not an edit: the message is then sent byte for byte.
    edited = None if all(change.is_same for change in changes.values()) else after
    if "back" in request.POST:
        return _edit_page(request, failure, form)
    try:
        if request.POST.get("step") != "send":
            if edited:
                replays.check_edit(replays.Target(selection=(pk,)), edited)
            return _edit_page(request, failure, form, changes=changes)
        started = _started(request, failure, reason=form.cleaned_data["reason"], edit=edited)
    except Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return _edit_page(request, failure, form, status=409, accept_url=_accept_url(failure, refused))
    _announce_replay(request, failure, started)
    return go(request, reverse("redrive:failure-detail", args=[pk]))


_EDITED = {"args": "Arguments", "kwargs": "Keyword arguments"}


def _pretty(piece: Piece) -> str:
    return json.dumps(build_display(piece), indent=2, ensure_ascii=False)


def _edit_page(
    request: HttpRequest, failure: Failure, form: forms.Edit, *, changes=None, status=200, accept_url=""
) -> HttpResponse:
    context = {
        "failure": failure,
        "url": reverse("redrive:failure-detail", args=[failure.pk]),
        "error": failure_page.short(failure.error_type),
        "form": form,
        "fields": replays.editable_fields(failure),
        "takes": replays.signatures().for_task(failure.source, failure.task),
        "accept_url": accept_url,
        "is_checked": changes is not None,
        "changes": [{"name": name, "difference": (changes or {}).get(field)} for field, name in _EDITED.items()],
        "changes_nothing": changes is not None and all(change.is_same for change in changes.values()),
    }
    return render_page(request, "redrive/failures/edit.html", context, part="edit", status=status)


@require_POST
@can(OPERATOR)
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    return _changed(request, pk, triage.discard, "Job discarded. It will not be replayed.", NOT_DISCARDED)


@require_POST
@can(OPERATOR)
def restore(request: HttpRequest, pk: int) -> HttpResponse:
    return _changed(request, pk, triage.restore, "Job restored. It is dead again and can be replayed.", NOT_RESTORED)


@require_POST
@can(OPERATOR)
def readmit(request: HttpRequest, pk: int) -> HttpResponse:
    """Release one failure from quarantine."""
    return _changed(request, pk, triage.readmit, "Job readmitted. It is dead and can be replayed.", NOT_READMITTED)


def done_to(request: HttpRequest, failure: Failure, act: Callable[..., Acted], not_done: str) -> Acted:
    """Apply a triage act to one failure. Raises Refused, with `not_done` if the failure was not in a state for it."""
    form = forms.Reason(request.POST)
    if not form.is_valid():
        raise Refused("reason_required", "; ".join(form.errors["reason"]), "reason")
    done = act(request.viewer, selection=[failure.pk], reason=form.cleaned_data["reason"])
    if not done.count:
        raise Refused("wrong_state", not_done)
    return done


def _changed(request: HttpRequest, pk: int, act: Callable[..., Acted], message: str, not_done: str) -> HttpResponse:
    try:
        done = done_to(request, pages.get_failure(request, pk), act, not_done)
    except Refused as refused:
        status = 422 if refused.code == "reason_required" else 409
        return pages.page(request, pages.get_failure(request, pk), status=status, refused=refused.message)
    back = [("key", done.key), ("back", reverse("redrive:failure-detail", args=[pk]))]
    add_toast(request, message, undo=reverse("redrive:failure-undo"), undo_fields=back)
    return _back_to(request, pk)


NOT_DISCARDED = (
    "The job could not be discarded: it is no longer dead, is part of a running replay, or you need the role operator "
    "on its source. Nothing was changed."
)
NOT_READMITTED = (
    "The job could not be readmitted: it is no longer in quarantine, or you need the role operator on its source. "
    "Nothing was changed."
)
NOT_RESTORED = "The job could not be restored: it is no longer discarded. Nothing was changed."
