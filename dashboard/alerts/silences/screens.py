"""Silences on a page: the list, and the form of one, which ends after a duration, on a day or at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from dashboard.web import moments
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Silence

TOMORROW, MONDAY, UNTIL = "tomorrow", "monday", "until"
# Choices of the form; the first is the default.
CHOICES = {
    "3600": "1 h",
    "14400": "4 h",
    TOMORROW: "until tomorrow 09:00",
    MONDAY: "until Monday 09:00",
    UNTIL: "until a date and time",
}
_HOUR = 9


def ends_at(given: Mapping[str, str], now: datetime, starts_at: datetime | None = None) -> datetime:
    """Return the end from `for`: seconds, a day, or the field `until`. Raises Refused."""
    chosen, begins = given.get("for", ""), starts_at or now
    seconds = whole_number(chosen)
    if seconds and chosen in CHOICES:
        return begins + timedelta(seconds=seconds)
    if chosen in (TOMORROW, MONDAY):
        morning = moments.local(begins).replace(hour=_HOUR, minute=0, second=0, microsecond=0)
        days = 1 if chosen == TOMORROW else -morning.weekday() % 7
        found = morning + timedelta(days=days)
        return found if found > begins else found + timedelta(days=7)
    return _parse_field(given, UNTIL, "Enter an end as a day and a time.", "ends_at")


def presets(now: datetime) -> list[tuple[str, str, str]]:
    """Return the choices with a fixed end: value, label, and the end."""
    return [
        (value, words.removeprefix("until ").capitalize(), moments.dated(ends_at({"for": value}, now), now))
        for value, words in CHOICES.items()
        if value != UNTIL
    ]


def starts_at(given: Mapping[str, str]) -> datetime | None:
    """Return the start; None for now. Raises Refused."""
    if not given.get("starts", "").strip():
        return None
    return _parse_field(given, "starts", "Enter a start as a day and a time.", "starts_at")


def _parse_field(given: Mapping[str, str], name: str, message: str, field: str) -> datetime:
    found = moment(given.get(name, ""))
    if found is None:
        raise Refused("invalid", f"{message} Nothing was changed.", field)
    return found


def moment(text: str) -> datetime | None:
    """Return `moments.from_field` of the text; None for an invalid time."""
    try:
        return moments.from_field(text)
    except ValueError:
        return None


# Fields of a form, in order; only an alert's own page sets `alert`.
FIELDS = (("rule", "Rule"), ("source", "Source"), ("queue", "Queue"), ("severity", "Severity"))
NOT_BEGUN, AT_WORK, OVER = "scheduled", "active", "ended"
_TONES = {AT_WORK: "silenced", NOT_BEGUN: "waiting", OVER: "gone"}


@dataclass(frozen=True, slots=True)
class Line:
    silence: Silence
    matchers: list[tuple[str, str]]  # name, glob
    status: str
    tone: str  # for {% state %}
    end_url: str  # "" if it has ended, or the viewer may not end it


def line(silence: Silence, now: datetime, may_end: bool) -> Line:
    status = OVER if silence.ends_at <= now else NOT_BEGUN if silence.starts_at > now else AT_WORK
    url = reverse("redrive:silence-end", args=[silence.pk]) if may_end and status != OVER else ""
    return Line(silence, matchers(silence.matchers), status, _TONES[status], url)


def lines(silences: Iterable[Silence], now: datetime, may_end: bool) -> list[Line]:
    return [line(one, now, may_end) for one in silences]


def matchers(given: Any) -> list[tuple[str, str]]:
    """Return the matchers to display, `everything` if there are none."""
    values = given if isinstance(given, Mapping) else {}
    exact = values.get("exact") or ()
    named = [
        (f"{name}, exactly" if name in exact else name, str(values[name])) for name, _ in FIELDS if values.get(name)
    ]
    if values.get("alert"):
        named.append(("alert", f"#{values['alert']}"))
    return named or [("everything", "*")]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    value: str


def fields(given: Mapping[str, Any]) -> list[Field]:
    return [Field(name, label, str(given.get(name, "") or "")) for name, label in FIELDS]


def chosen_matchers(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the matchers of a form: the non-empty fields."""
    texts = {name: str(given.get(name, "")).strip()[:255] for name, _ in FIELDS}
    return {name: value for name, value in texts.items() if value}
