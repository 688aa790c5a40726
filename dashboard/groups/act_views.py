"""Resolve, mute, assign and note: one group or many, and back again. Every act is also a plain form."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.groups import forms as group_forms
from dashboard.groups.views import get_group
from dashboard.web import links, moments
from dashboard.web.access import can
from dashboard.web.htmx import go
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.groups import group_changes
from jobs_admin.groups.group_changes import Changed
from jobs_admin.models.access import OPERATOR

_DONE = {
    "resolve": "Resolved {}.",
    "reopen": "Reopened {}.",
    "assign": "Assigned {}.",
    "assign_me": "Assigned {} to you.",
    "note": "Note saved.",
    "runbook_url": "Runbook saved.",
}


@require_POST
@can(OPERATOR)
def change(request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Change one group: state, mute, assignee, note, runbook."""
    found = get_group(request, fingerprint)
    back = links.back(request, otherwise=reverse("redrive:group-detail", args=[found.fingerprint]))
    try:
        changes = group_forms.changes_of(request.POST, request.user.get_username())
        done = group_changes.change(request.viewer, found, changes, reason=request.POST.get("reason", ""))
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    _announce(request, done, changes, back, words="it")
    return go(request, back)


@require_POST
@can(OPERATOR)
def bulk(request: HttpRequest) -> HttpResponse:
    """The same change to each selected group; or `undo`, with the receipt of an act."""
    back = links.back(request, otherwise=reverse("redrive:group-list"))
    try:
        if request.POST.get("act") == "undo":
            _announce_undone(request, group_changes.undo(request.viewer, request.POST.get("receipt", "")))
        else:
            change_all(
                request, [name for text in request.POST.getlist("groups") for name in text.split(",") if name], back
            )
    except Refused as refused:
        add_toast(request, refused.message, level="error")
    return go(request, back)


def change_all(request: HttpRequest, fingerprints: list[str], back: str) -> None:
    """Apply the change of the form to each of these groups and announce the result. Raises Refused."""
    changes = group_forms.changes_of(request.POST, request.user.get_username())
    done = group_changes.change_many(request.viewer, fingerprints, changes, reason=request.POST.get("reason", ""))
    _announce(request, done, changes, back, words=_groups(len(done.fingerprints)))


def _announce(request: HttpRequest, done: Changed, changes: dict[str, object], back: str, *, words: str) -> None:
    left = []
    if done.unchanged:
        left.append(f"{_groups(done.unchanged)} unchanged.")
    if done.refused:
        left.append(f"{_groups(len(done.refused))} not changed: you need the role operator on all their sources.")
    if done.missing:
        left.append(f"{_groups(done.missing)} not found.")
    if not done.fingerprints:
        add_toast(request, " ".join(["Nothing was changed.", *left]), level="warning")
        return
    text = " ".join([_sentence(request.POST.get("act", ""), changes, words), *left])
    fields = [("act", "undo"), ("receipt", done.receipt), ("back", back)]
    add_toast(request, text, undo=reverse("redrive:group-bulk"), undo_fields=fields)


def _sentence(act: str, changes: dict[str, object], words: str) -> str:
    if changes.get("state") == "muted":
        ends = []
        if changes.get("muted_until"):
            ends.append(f"until {moments.dated(changes['muted_until'], timezone.now())}")
        if changes.get("muted_until_count"):
            ends.append(f"until {changes['muted_until_count']:,} more failed attempts")
        return f"Muted {words} {' or '.join(ends) or 'until unmuted'}."
    if act == "assign":
        return f"Assigned {words} to {changes['assignee']}." if changes["assignee"] else f"Unassigned {words}."
    return _DONE.get(act, "Changed {}.").format(words)


def _announce_undone(request: HttpRequest, done: group_changes.Undone) -> None:
    since = f"{_groups(len(done.changed_since))} changed afterwards and not restored." if done.changed_since else ""
    if not done.fingerprints:
        add_toast(request, f"Nothing was undone: {since}", level="warning")
    else:
        add_toast(request, f"Undone: {_groups(len(done.fingerprints))} restored. {since}".strip())


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count:,} groups"
