"""Numbers, spans and times as people read them."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone
from django.utils.safestring import SafeString

from dashboard.web import moments


def number(value) -> str:
    """12304 -> 12,304; 3.14159 -> 3.1; None -> –."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
    try:
        return f"{int(value):,}"
    except (TypeError, ValueError):
        return str(value)


def percent(value) -> str:
    """0.1234 -> 12 %; a little is never nothing: 0.001 -> <1 %."""
    if value is None:
        return "–"
    if 0 < value < 0.01:
        return "<1 %"
    if 0.99 < value < 1:
        return ">99 %"
    return f"{value * 100:.0f} %"


_SAME_YEAR = 330  # days
_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(value) -> str:
    """Seconds (or a timedelta) in words: 0.042 -> 42 ms; 75 -> 1 min 15 s; 90000 -> 1 d 1 h."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else float(value)
    sign = "−" if seconds < 0 else ""
    seconds = abs(seconds)
    if 0 < seconds < 0.9995:
        return f"{sign}{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{sign}<1 ms"
    if seconds < 9.95 and seconds != int(seconds):
        return f"{sign}{seconds:.1f} s"
    rest = round(seconds)
    for n, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            count, left = divmod(rest, size)
            words = f"{sign}{count:,} {unit}"
            if n + 1 < len(_UNITS):
                smaller, small_unit = _UNITS[n + 1]
                if left // smaller and count < 10:
                    words += f" {left // smaller} {small_unit}"
            return words
    return "0 s"


def ago(value, now=None):
    """A time as it feels, with the exact one on hover and for machines."""
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
    """A time as the clock showed it, in the zone of the page: 02:07 today, else 20 Nov 02:07.

    `to`: or seconds, 02:07:31; or year, 20 Nov 2024 where a day and month alone might be of either year.
    """
    if value is None or value == "":
        return "–"
    value, now = moments.local(value), moments.local(now or timezone.now())
    if to == "year" and abs((now.date() - value.date()).days) >= _SAME_YEAR:
        return _time(value, value.strftime("%-d %b %Y"))
    return _time(value, moments.clock(value, now, with_seconds=to == "seconds"))


def _time(value: dt.datetime, words: str):
    exact = value.astimezone(dt.UTC).isoformat(timespec="seconds")[:19]
    here = moments.local(value).isoformat(sep=" ", timespec="seconds")[:19]
    # Digits and words of ours: there is nothing to escape, and a list has a hundred of them.
    return SafeString(f'<time datetime="{exact}Z" title="{here} {moments.zone_name(value)}">{words}</time>')
