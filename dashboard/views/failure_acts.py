"""Replay, edit, discard and restore, from a failure or from the list. Every act is also a plain form."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import arguments, forms
from dashboard.access import can
from dashboard.htmx import go, render_page
from dashboard.screens import failure_list, failure_page
from dashboard.toasts import say
from dashboard.views import failures as pages
from jobs_admin import replays, triage
from jobs_admin.models import Failure, Replay
from jobs_admin.models.access import OPERATOR
from jobs_admin.replays import ReplayRefused
from jobs_admin.triage import TriageRefused

# As many failures as one "Undo" brings back; beyond it the search for the discarded is the way back.
MOST_UNDONE = 10_000


@require_POST
@can(OPERATOR)
def replay(request: HttpRequest, pk: int) -> HttpResponse:
    """Send one job again as it was."""
    failure = pages.found(request, pk)
    form = forms.Reason(request.POST)
    if not form.is_valid():
        return pages.page(request, failure, status=422, refused="; ".join(form.errors["reason"]))
    return _send(request, failure, reason=form.cleaned_data["reason"])


def _send(request: HttpRequest, failure: Failure, *, reason: str) -> HttpResponse:
    try:
        started = _started(request, failure, reason=reason, edit=None)
    except ReplayRefused as refused:
        return pages.page(request, pages.found(request, failure.pk), status=409, refused=refused.message)
    _say_sent(request, failure, started)
    return _back_to(request, failure.pk)


def _started(request: HttpRequest, failure: Failure, *, reason: str, edit: dict | None) -> Replay:
    draft = replays.draft(
        request.viewer,
        selection=[failure.pk],
        reason=reason,
        edit=edit,
        idempotency_key=request.POST.get("idempotency_key") or None,
    )
    return replays.start(request.viewer, draft)


def _say_sent(request: HttpRequest, failure: Failure, started: Replay) -> None:
    link = reverse("replay-detail", args=[started.pk])
    said = f"Planned in replay #{started.pk}: it is sent to {failure.queue} within seconds."
    say(request, said, link=link, link_text=f"Replay #{started.pk}")


def _back_to(request: HttpRequest, pk: int) -> HttpResponse:
    """The failure as it is now: its part for htmx, its page otherwise."""
    if request.htmx:
        return pages.page(request, pages.found(request, pk))
    return go(request, reverse("failure-detail", args=[pk]))


@require_http_methods(["GET", "HEAD", "POST"])
@can(OPERATOR)
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Edit the arguments of one job: write, look at the difference, send. Nothing is kept in between."""
    failure = pages.found(request, pk)
    if not failure_page.is_editable(failure):
        return pages.page(
            request, failure, status=409, refused="Its arguments are not kept as whole JSON, so they cannot be edited."
        )
    kept = {"args": failure.args or "[]", "kwargs": failure.kwargs or "{}"}
    if request.method != "POST":
        form = forms.Edit(initial={name: arguments.pretty(text) for name, text in kept.items()})
        return _edit_page(request, failure, form)
    form = forms.Edit(request.POST)
    if not form.is_valid():
        return _edit_page(request, failure, form, status=422)
    after = {name: form.cleaned_data[name] for name in ("args", "kwargs")}
    changes = {name: arguments.difference(arguments.read(kept[name]), after[name]) for name in kept}
    is_sending = request.POST.get("step") == "send" and "back" not in request.POST
    if not is_sending:
        is_looking = "back" not in request.POST
        return _edit_page(request, failure, form, changes=changes if is_looking else None)
    try:
        # Unchanged arguments are not an edit: the message then goes as it came, byte for byte.
        edited = after if any(changes.values()) else None
        started = _started(request, failure, reason=form.cleaned_data["reason"], edit=edited)
    except ReplayRefused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return _edit_page(request, failure, form, status=409)
    _say_sent(request, failure, started)
    return go(request, reverse("failure-detail", args=[pk]))


def _edit_page(request: HttpRequest, failure: Failure, form: forms.Edit, *, changes=None, status=200) -> HttpResponse:
    context = {
        "failure": failure,
        "error": failure_page.short(failure.error_type),
        "form": form,
        "is_checked": changes is not None,
        "changes": [
            {"name": name, "lines": (changes or {}).get(field, [])}
            for field, name in (("args", "Arguments"), ("kwargs", "Keyword arguments"))
        ],
        "changes_nothing": changes is not None and not any(changes.values()),
    }
    return render_page(request, "failures/edit.html", context, part="edit", status=status)


@require_POST
@can(OPERATOR)
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    failure = pages.found(request, pk)
    form = forms.Reason(request.POST)
    if not form.is_valid():
        return pages.page(request, failure, status=422, refused="; ".join(form.errors["reason"]))
    try:
        done = triage.discard(request.viewer, selection=[pk], reason=form.cleaned_data["reason"])
    except TriageRefused as refused:
        return pages.page(request, failure, status=409, refused=refused.message)
    if not done.count:
        return pages.page(request, pages.found(request, pk), status=409, refused=NOT_DISCARDED)
    say(request, "Discarded. It will not be replayed.", undo=reverse("failure-restore", args=[pk]))
    return _back_to(request, pk)


@require_POST
@can(OPERATOR)
def restore(request: HttpRequest, pk: int) -> HttpResponse:
    failure = pages.found(request, pk)
    try:
        done = triage.restore(request.viewer, selection=[failure.pk])
    except TriageRefused as refused:
        return pages.page(request, failure, status=409, refused=refused.message)
    if not done.count:
        return pages.page(request, pages.found(request, pk), status=409, refused=NOT_RESTORED)
    say(request, "Restored: it is dead again and can be replayed.")
    return _back_to(request, pk)


NOT_DISCARDED = (
    "It was not discarded: it is not dead any more, or it is part of a running replay, or you need the role operator "
    "on its source. Nothing was changed."
)
NOT_RESTORED = "It was not restored: it is not discarded any more. Nothing was changed."


@require_POST
@can(OPERATOR)
def bulk(request: HttpRequest) -> HttpResponse:
    """Discard, or bring back, what is selected on the list or all that matches the search."""
    back = _back_url(request)
    scope, reason = forms.Scope(request.POST), forms.Reason(request.POST)
    if not scope.is_valid() or not reason.is_valid():
        errors = [text for form in (scope, reason) for texts in form.errors.values() for text in texts]
        say(request, " ".join(errors), level="error")
        return go(request, back)
    if scope.is_empty:
        say(request, "Nothing was selected, so nothing was changed.", level="warning")
        return go(request, back)
    try:
        return _bulk(request, scope.cleaned_data, reason.cleaned_data["reason"], back)
    except TriageRefused as refused:
        say(request, refused.message, level="error")
        return go(request, back)


def _bulk(request: HttpRequest, what: dict, reason: str, back: str) -> HttpResponse:
    if request.POST.get("act") == "restore":
        done = triage.restore(request.viewer, selection=what["selection"], reason=reason)
        say(request, f"Restored {_jobs(done.count)}.", level="success" if done.count else "warning")
        return go(request, back)
    query = what["q"] if what["everything"] else ""
    done = triage.discard(request.viewer, selection=what["selection"], query=query, reason=reason)
    _say_discarded(request, done, asked=len(what["selection"]) or None, back=back)
    return go(request, back)


def _say_discarded(request: HttpRequest, done: triage.Acted, *, asked: int | None, back: str) -> None:
    left = (
        f" {_jobs(asked - done.count)} of the selection could not be discarded." if asked and asked > done.count else ""
    )
    if not done.count:
        say(request, NOT_DISCARDED, level="warning")
    elif done.count > MOST_UNDONE or len(done.ids) < done.count:
        link = failure_list.list_url("state:discarded")
        say(request, f"Discarded {_jobs(done.count)}.{left}", link=link, link_text="Show the discarded")
    else:
        fields = [("act", "restore"), ("selection", ",".join(map(str, done.ids))), ("back", back)]
        say(request, f"Discarded {_jobs(done.count)}.{left}", undo=reverse("failure-bulk"), undo_fields=fields)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _back_url(request: HttpRequest) -> str:
    back = request.POST.get("back", "")
    if back and url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        return back
    return failure_list.list_url(request.POST.get("q", ""))
