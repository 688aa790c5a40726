"""The end of a silence in a form: a duration, nine o'clock on a later day in the zone of the page, or a day and a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from dashboard.web import moments
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number

TOMORROW, MONDAY, UNTIL = "tomorrow", "monday", "until"
# The choices of the form, the first preselected.
CHOICES = {
    "3600": "1 h",
    "14400": "4 h",
    TOMORROW: "until tomorrow 09:00",
    MONDAY: "until Monday 09:00",
    UNTIL: "until a date and time",
}
_HOUR = 9


def ends_at(given: Mapping[str, str], now: datetime, starts_at: datetime | None = None) -> datetime:
    """Return the end of `for`: seconds, a day, or the field `until`. Raises Refused."""
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


def presets(now: datetime) -> list[tuple[str, str, datetime | None]]:
    """Return the choices with a fixed end: value, label, and the end where the label does not name it."""
    found = []
    for value, words in CHOICES.items():
        if value != UNTIL:
            end = ends_at({"for": value}, now) if value.isdigit() else None
            found.append((value, words.removeprefix("until ").capitalize(), end))
    return found


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
    """Return `moments.from_field` of the text; None for what is no time."""
    try:
        return moments.from_field(text)
    except ValueError:
        return None
