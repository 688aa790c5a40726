"""Figures and times for templates: `core.figures` with `–` for None, and times in the zone of the page."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

from django.utils import timezone
from django.utils.safestring import SafeString

from dashboard.web import moments
from jobs_admin.core import figures


def number(value) -> str:
    """Return a count, `–` for None; anything that is not a number is unchanged."""
    if value is None or value == "":
        return "–"
    try:
        return figures.count(value)
    except (TypeError, ValueError):
        return str(value)


def percent(value) -> str:
    return "–" if value is None else figures.percent(value)


def duration(value) -> str:
    """Return seconds, or a timedelta, in words; `–` for None."""
    if value is None:
        return "–"
    return figures.duration(value.total_seconds() if isinstance(value, dt.timedelta) else float(value))


_SAME_YEAR = 330  # days
_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(value, now=None):
    """Return a relative time, with the exact one as title and for programs."""
    if value is None or value == "":
        return "–"
    now = now or timezone.now()
    seconds = (now - value).total_seconds()
    if abs(seconds) < 1:
        words = "now"
    else:
        rest = abs(seconds)
        size, unit = next(((s, u) for s, u in _UNITS if rest >= s), (1, "s"))
        words = f"{int(rest // size)} {unit} ago" if seconds > 0 else f"in {int(rest // size)} {unit}"
    return _time(value, words)


def clock(value, to="minutes", now=None):
    """Return a time in the zone of the page: 02:07 today, otherwise 20 Nov 02:07.

    `to`: `seconds` for 02:07:31; `year` for 20 Nov 2024 if day and month alone are ambiguous.
    """
    if value is None or value == "":
        return "–"
    value, now = moments.local(value), moments.local(now or timezone.now())
    if to == "year" and abs((now.date() - value.date()).days) >= _SAME_YEAR:
        return _time(value, value.strftime("%-d %b %Y"))
    return _time(value, moments.clock(value, now, with_seconds=to == "seconds"))


def _time(value: dt.datetime, words: str):
    # Only digits and fixed words: there is nothing to escape, and a list has a hundred of them.
    return SafeString(f"{_exact(value, timezone.get_current_timezone())}{words}</time>")


@lru_cache(maxsize=2048)  # an open page shows the same times again and again
def _exact(value: dt.datetime, zone: dt.tzinfo) -> str:
    """Return the start of the element, with the exact time."""
    exact, here = value.astimezone(dt.UTC), value.astimezone(zone)
    return (
        f'<time datetime="{exact.isoformat(timespec="seconds")[:19]}Z" '
        f'title="{here.isoformat(sep=" ", timespec="seconds")[:19]} {moments.zone_name(value, zone)}">'
    )
