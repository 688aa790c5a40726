"""The change of a group in a form, as one word (`act`) and its field."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.http import QueryDict
from django.utils import timezone

from dashboard.web import moments
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number

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
    if act in ("note", "runbook_url"):
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
    return changes | {name: _text(given, name) for name in ("assignee", "note", "runbook_url") if name in given}


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
