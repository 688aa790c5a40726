"""A query into the text that `parse` reads as the same query."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from jobs_admin.core.query.parsing import bare_words
from jobs_admin.core.query.tree import CONTAINED, UNITS, Age, All, Any, Match, Numbers, Query, Term, Text, Value

_SAFE_VALUE = re.compile(r"[\w.@/+%#&$~^-]+\Z")


def format(query: Query) -> str:
    """The query as text that `parse` reads as the same query."""
    return " ".join(format_term(term) for term in query.terms)


def format_term(term: Term) -> str:
    if isinstance(term, Any):
        return " OR ".join(format_term(t) for t in term.of)
    if isinstance(term, All):
        return "(" + " ".join(format_term(t) for t in term.of) + ")"
    sign = "-" if term.negated else ""
    if isinstance(term, Text):
        return sign + _format_text(term)
    if isinstance(term, Match):
        return f"{sign}{term.field}:" + ",".join(format_value(v) for v in term.values)
    if isinstance(term, Numbers):
        return f"{sign}{term.field}:" + ",".join(_format_range(*r) for r in term.ranges)
    if isinstance(term, Age):
        return f"{sign}age:{'<' if term.younger else '>'}{duration(term.seconds)}"
    return f"{sign}{term.field}:{_iso(term.at) if term.at else duration(term.ago or 0)}"


def qualifier(name: str, value: str, *, exact: bool = False) -> str:
    """`name:value` as text, quoted where it must be: how a link to a search is written."""
    return format_term(Match(name, (Value(value, exact=exact and name in CONTAINED),)))


def _format_text(term: Text) -> str:
    if term.glob:
        return term.value
    is_plain = bare_words(term.value) == [term.value] and "*" not in term.value and term.value != "OR"
    if is_plain and not term.negated:
        return term.value
    return _quoted(term.value, "")


def format_value(value: Value) -> str:
    """One value as it stands in a qualifier, quoted where it must be."""
    if value.glob:
        return value.text
    if value.exact:
        return "=" + _quoted(value.text, ",)")
    return value.text if _SAFE_VALUE.match(value.text) else _quoted(value.text, ",)")


def _quoted(text: str, stops: str) -> str:
    stop = re.escape(stops)
    escaped = re.sub(
        rf'(\\*)"(?=[\s{stop}])' if stops else r'(\\*)"(?=\s)',
        lambda found: found.group(1) * 2 + '\\"',
        text,
    )
    # At the end of the text: a quote there would close before ours, a backslash would escape ours.
    tail = re.search(r'(\\*)("?)\Z', escaped)
    assert tail is not None
    if tail.group(0) and not tail.group(2):
        escaped += tail.group(1)
    return f'"{escaped}"'


def _format_range(low: int | None, high: int | None) -> str:
    if low is None:
        return f"<={high}"
    if high is None:
        return f">={low}"
    return str(low) if low == high else f"{low}..{high}"


def duration(seconds: int) -> str:
    """Seconds in the largest unit that holds them whole: 7200 is `2h`."""
    if seconds == 0:
        return "0s"
    unit, size = next((u, n) for u, n in reversed(UNITS.items()) if seconds % n == 0)
    return f"{seconds // size}{unit}"


def _iso(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
