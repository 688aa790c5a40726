"""Acts on groups: resolve, mute, assign and annotate one or many, and undo. Every act also works as a plain form."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.groups.views import get_group
from dashboard.web import links, moments
from dashboard.web.access import can
from dashboard.web.htmx import go
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.groups import group_changes
from jobs_admin.groups.group_changes import Changed
from jobs_admin.models.access import OPERATOR

_MUTED_FOR = {"mute_hour": timedelta(hours=1), "mute_day": timedelta(days=1), "mute_week": timedelta(days=7)}
_STATES = {"resolve": "resolved", "reopen": "ongoing", "mute": "muted"}


def changes_of(given: QueryDict, me: str, now: datetime | None = None) -> dict[str, Any]:
    """Return the changes of the form, for `group_changes`. Raises Refused for invalid values."""
    now = now or timezone.now()
    act = given.get("act", "")
    if act in _STATES:
        return {"state": _STATES[act]}
    if act in _MUTED_FOR:
        return {"state": "muted", "muted_until": now + _MUTED_FOR[act]}
    if act == "mute_until":
        return {"state": "muted", "muted_until": _moment(given.get("muted_until", ""))}
    if act == "mute_count":
        return {"state": "muted", "muted_until_count": _number(given.get("muted_until_count", ""))}
    if act == "assign_me":
        return {"assignee": me}
    if act == "assign":
        return {"assignee": _text(given, "assignee")}
    if act in ("note", "runbook_url", "issue_url", "dependency"):
        return {act: _text(given, act)}
    return _fields_of(given)


def _fields_of(given: QueryDict) -> dict[str, Any]:
    """Return the changes of a form without `act`: the fields with the API's names."""
    changes: dict[str, Any] = {}
    if given.get("state"):
        changes["state"] = given["state"]
    if given.get("muted_until"):
        changes["muted_until"] = _moment(given["muted_until"])
    if given.get("muted_until_count"):
        changes["muted_until_count"] = _number(given["muted_until_count"])
    return changes | {
        name: _text(given, name)
        for name in ("assignee", "note", "runbook_url", "issue_url", "dependency")
        if name in given
    }


def _text(given: QueryDict, name: str) -> str:
    return given.get(name, "").replace("\r\n", "\n").strip()[:10_000]


def _moment(text: str) -> datetime:
    try:
        return moments.from_field(text)
    except ValueError:
        message = f"“{text[:40]}” is not a time. Nothing was changed. Use the form 2026-12-01T08:00."
        raise Refused("invalid", message, "muted_until") from None


def _number(text: str) -> int:
    number = whole_number(text.strip().replace(",", ""), digits=11)
    if number is None:
        message = f"“{text[:40]}” is not a number of failed attempts. Nothing was changed."
        raise Refused("invalid", message, "muted_until_count")
    return number


_DONE = {
    "resolve": "Resolved {}.",
    "reopen": "Reopened {}.",
    "assign": "Assigned {}.",
    "assign_me": "Assigned {} to you.",
    "note": "Note {}.",
    "runbook_url": "Runbook {}.",
    "issue_url": "Issue {}.",
    "dependency": "Dependency saved.",
}


@require_POST
@can(OPERATOR)
def change(request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Change one group: state, mute, assignee, note, runbook, issue."""
    found = get_group(request, fingerprint)
    back = links.back(request, otherwise=reverse("redrive:group-detail", args=[found.fingerprint]))
    try:
        changes = changes_of(request.POST, request.user.get_username())
        done = group_changes.change(request.viewer, found, changes, reason=request.POST.get("reason", ""))
    except Refused as refused:
        add_toast(request, refused.message, level="error")
        return go(request, back)
    _announce(request, done, changes, back, words="it")
    return go(request, back)


@require_POST
@can(OPERATOR)
def bulk(request: HttpRequest) -> HttpResponse:
    """Apply one change to each selected group, or `undo` an act by its receipt."""
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
    changes = changes_of(request.POST, request.user.get_username())
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
    if act in ("note", "runbook_url", "issue_url"):
        words = "saved" if changes[act] else "removed"
    return _DONE.get(act, "Changed {}.").format(words)


def _announce_undone(request: HttpRequest, done: group_changes.Undone) -> None:
    since = f"{_groups(len(done.changed_since))} changed afterwards and not restored." if done.changed_since else ""
    if not done.fingerprints:
        add_toast(request, f"Nothing was undone: {since}", level="warning")
    else:
        add_toast(request, f"Undone: {_groups(len(done.fingerprints))} restored. {since}".strip())


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count:,} groups"
