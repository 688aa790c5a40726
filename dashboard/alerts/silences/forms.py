"""The end of a silence in a form: a number of seconds, or a day and a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from dashboard.web import moments
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number

# Its shortest names; the longest is the service's to say.
CHOICES = {"3600": "1 h", "14400": "4 h", "86400": "1 day"}


def ends_at(given: Mapping[str, str], now: datetime, starts_at: datetime | None = None) -> datetime:
    """`for` in seconds, or `until` and the field of that name. Raises Refused."""
    chosen = given.get("for", "")
    seconds = whole_number(chosen)
    if seconds and str(seconds) in CHOICES:
        return (starts_at or now) + timedelta(seconds=seconds)
    found = moment(given.get("until", ""))
    if found is None:
        raise Refused("invalid", "Enter an end as a day and a time. Nothing was changed.")
    return found


def moment(text: str) -> datetime | None:
    """Return `moments.from_field` of the text; None for what is no time."""
    try:
        return moments.from_field(text)
    except ValueError:
        return None
