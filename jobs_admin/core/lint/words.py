"""Spans and numbers in the sentences of findings."""

from __future__ import annotations

from jobs_admin.core.backoff import Range

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """0.5 s, 90 s, 5 min, 2 h 30 min."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    for n, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(round(seconds), size)
            smaller, small_unit = _UNITS[min(n + 1, len(_UNITS) - 1)]
            more = f" {rest // smaller} {small_unit}" if rest >= smaller and unit != "s" else ""
            return f"{whole:,} {unit}{more}"
    raise AssertionError(seconds)


def listed(waits: tuple[Range, ...] | tuple[float, ...], most: int = 5) -> str:
    """The first waits, and the last: 1 s, 2 s, 4 s, 8 s, 16 s … 10 min."""
    longest = [one.longest_s if isinstance(one, Range) else one for one in waits]
    shown = ", ".join(map(span, longest[:most]))
    return f"{shown} … {span(longest[-1])}" if len(longest) > most and longest[-1] != longest[most - 1] else shown


def count(number: float, what: str) -> str:
    """1 retry, 3 retries; 1,200 jobs."""
    one = round(number) == 1
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,.0f} {what if one else plural}"
