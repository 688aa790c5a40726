"""Formatting of numbers for screens, notices and the terminal: counts, shares, durations, rates and times.

A time of day is in UTC or the reader's time zone: minutes ago may be another day.
"""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo

_UNITS = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def count(value: float) -> str:
    """Return a count: 12304 -> `12,304`; 3.14159 -> `3.1`."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def small(value: float) -> str:
    """Return two digits below 10, so that a low rate is not rounded to zero: 0.226667 -> `0.23`; 12.4 -> `12`."""
    if value >= 9.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.2g}" if value >= 0.0001 else "<0.0001"


def percent(share: float) -> str:
    """Return a percentage that is only 0 for zero: 0.1234 -> `12 %`; 0.001 -> `<1 %`."""
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{share * 100:.0f} %"


def exact_percent(share: float) -> str:
    """Return three digits, for values beside a threshold: 0.226667 -> `22.7 %`."""
    return f"{share * 100:.3g} %" if abs(share) < 9.995 else f"{share * 100:,.0f} %"


def duration(seconds: float) -> str:
    """Return one or two units: 0.042 -> `42 ms`; 75 -> `1 min 15 s`; 675 -> `11 min`; 90000 -> `1 d 1 h`."""
    return _duration(seconds, 10)


def exact_duration(seconds: float) -> str:
    """Return two units at any length, for values beside a limit: 601 -> `10 min 1 s`; 12.5 -> `12.5 s`."""
    if 1 <= seconds < 60 and not float(seconds).is_integer():
        return f"{seconds:.3g} s"
    return _duration(seconds, float("inf"))


def _duration(seconds: float, two_below: float) -> str:
    """Return a duration. `two_below`: amounts of the first unit below this get a second unit."""
    sign, seconds = "−" if seconds < 0 else "", abs(seconds)
    if 0 < seconds < 0.9995:
        return f"{sign}{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{sign}<1 ms"
    if seconds < 9.95 and seconds != int(seconds):
        return f"{sign}{seconds:.1f} s"
    rest = round(seconds)
    for n, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            amount, left = divmod(rest, size)
            words = f"{sign}{amount:,} {unit}"
            if n + 1 < len(_UNITS):
                smaller, small_unit = _UNITS[n + 1]
                if left // smaller and amount < two_below:
                    words += f" {left // smaller} {small_unit}"
            return words
    return "0 s"


def rate(per_s: float) -> str:
    """Return jobs per second, or per minute below 1/s: 12.3 -> `12/s`; 0.2 -> `12/min`."""
    return f"{small(per_s)}/s" if per_s >= 1 else f"{small(per_s * 60)}/min"


def per_minute(rate: float) -> str:
    """Return a rate per minute, never rounded to zero: 3.14 -> `3.1/min`."""
    return "under 0.1/min" if rate < 0.1 else f"{small(rate)}/min"


def dated(at: datetime, beside: datetime, with_seconds: bool = False, zone: tzinfo = timezone.utc) -> str:
    """Return date and time, for text that may be read another day: 20 Nov 02:07; with the year if it differs from
    `beside` (now).
    """
    at, beside = at.astimezone(zone), beside.astimezone(zone)
    day = "%-d %b" if at.year == beside.year else "%-d %b %Y"
    return at.strftime(f"{day} %H:%M:%S" if with_seconds else f"{day} %H:%M")


def clock(at: datetime, beside: datetime, with_seconds: bool = False, zone: tzinfo = timezone.utc) -> str:
    """Return 02:07 on the day of `beside` (now, or the start of the period shown), else 20 Nov 02:07."""
    at = at.astimezone(zone)
    time = "%H:%M:%S" if with_seconds else "%H:%M"
    return at.strftime(time if at.date() == beside.astimezone(zone).date() else f"%-d %b {time}")
