"""Silences on a page: the list, and the form of one, which ends after a duration, on a day or at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from dashboard.alerts import words as alert_words
from dashboard.web import moments
from dashboard.web.figures import number
from jobs_admin.alerts import silencing
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Alert, Silence
from jobs_admin.models.access import Viewer

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
MOST_NAMED = 6  # alerts of a silence listed by name
NOT_BEGUN, AT_WORK, OVER = "scheduled", "active", "ended"
_TONES = {AT_WORK: "silenced", NOT_BEGUN: "waiting", OVER: "gone"}


@dataclass(frozen=True, slots=True)
class Line:
    silence: Silence
    matchers: list[tuple[str, str]]  # name, glob
    status: str
    tone: str  # for {% state %}
    end_url: str  # "" if it has ended, or the viewer may not end it
    covers: str  # of a silence of one notification: that a new alert notifies; otherwise ""


def lines(viewer: Viewer, silences: Sequence[Silence], now: datetime, *, may_act: bool) -> list[Line]:
    """Return one line per silence. `may_act`: whether the viewer may end those of their sources."""
    named = silencing.find_named_alerts(viewer, silences)
    return [_line(one, now, named.get(one.pk, ()), may_act and silencing.may_end(viewer, one)) for one in silences]


def _line(silence: Silence, now: datetime, alerts: Sequence[Alert], may_end: bool) -> Line:
    status = OVER if silence.ends_at <= now else NOT_BEGUN if silence.starts_at > now else AT_WORK
    url = reverse("redrive:silence-end", args=[silence.pk]) if may_end and status != OVER else ""
    covers = coverage_sentence(alerts) if "alert" in silence.matchers and status != OVER else ""
    return Line(silence, matchers(silence.matchers, alerts), status, _TONES[status], url, covers)


def coverage_sentence(alerts: Sequence[Alert]) -> str:
    """Return what a silence of one notification covers. `alerts`: its alerts; empty if the viewer may see none."""
    these = f"these {number(len(alerts))} alerts" if len(alerts) > 1 else "this alert" if alerts else "its alerts"
    nouns = {one.rule.measure.subject.value for one in alerts}
    again = f", even about the same {nouns.pop()}," if len(nouns) == 1 else ""
    return f"Covers {these} only. A new alert{again} sends notifications."


def matchers(given: Any, alerts: Sequence[Alert] = ()) -> list[tuple[str, str]]:
    """Return the matchers to display, `everything` if there are none. `alerts`: those that `alert` names."""
    values = given if isinstance(given, Mapping) else {}
    exact = values.get("exact") or ()
    named = [
        (f"{name}, exactly" if name in exact else name, str(values[name])) for name, _ in FIELDS if values.get(name)
    ]
    if values.get("alert"):
        names = [alert_words.where(one) for one in alerts[:MOST_NAMED]]
        names += [f"{number(len(alerts) - MOST_NAMED)} more"] if len(alerts) > MOST_NAMED else []
        many = f"{number(len(alerts))} alerts" if len(alerts) > 1 else "alert"
        named.append((many, ", ".join(names) or f"#{values['alert']}"))
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
