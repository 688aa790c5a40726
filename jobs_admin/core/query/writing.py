"""Queries as text: the form that `parse` reads back, and a description in words for every result."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from jobs_admin.core.query.parsing import bare_words
from jobs_admin.core.query.tree import (
    CONTAINED,
    DEFAULT_STATES,
    UNITS,
    Age,
    All,
    Any,
    Match,
    Numbers,
    Query,
    Term,
    Text,
    Time,
    Value,
    is_scanned,
    leaves,
    may_be_job_id,
)

_SAFE_VALUE = re.compile(r"[\w.@/+%#&$~^-]+\Z")


def format(query: Query) -> str:
    """Return the query as text that `parse` reads as the same query."""
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
    """Return `name:value` as text, quoted if needed, for a link to a search."""
    return format_term(Match(name, (Value(value, exact=exact and name in CONTAINED),)))


def _format_text(term: Text) -> str:
    if term.glob:
        return term.value
    is_plain = bare_words(term.value) == [term.value] and "*" not in term.value and term.value != "OR"
    if is_plain and not term.negated:
        return term.value
    return _quoted(term.value, "")


def format_value(value: Value) -> str:
    """Return a value as in a qualifier, quoted if needed."""
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
    """Return seconds in the largest unit with a whole number: 7200 is `2h`."""
    if seconds == 0:
        return "0s"
    unit, size = next((u, n) for u, n in reversed(UNITS.items()) if seconds % n == 0)
    return f"{seconds // size}{unit}"


def _iso(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


_VERBS = {"kind": "ended as", "replay": "in replay", "since": "failed since", "until": "failed until"}


def reading(query: Query) -> str:
    """Return how the query was understood: `type or message has "errno" and "-2" · state dead, retrying, replaying
    or quarantined`.
    """
    words = [t for t in query.terms if isinstance(t, Text) and not t.negated]
    parts = []
    if words:
        or_id = " (or is the job's id)" if any(may_be_job_id(t) for t in words) else ""
        parts.append("type or message has " + _listed([_in_quotes(t.value) for t in words], "and") + or_id)
    rest = [t for t in query.terms if t not in words]
    is_alone = len(rest) == 1 and not words and query.names_state
    # OR binds more tightly than the blank between terms: its terms are in parentheses.
    parts += [in_words(t) if is_alone or not isinstance(t, Any) else f"({in_words(t)})" for t in rest]
    if not query.names_state:
        parts.append("state " + _listed(list(DEFAULT_STATES), "or"))
    return " · ".join(parts)


def in_words(term: Term, *, jobs: bool = True) -> str:
    """Return how a term was understood. `jobs`: words may be job ids; not when groups are searched."""
    if isinstance(term, Any):
        return " or ".join(in_words(t, jobs=jobs) for t in term.of)
    if isinstance(term, All):
        return "(" + " and ".join(in_words(t, jobs=jobs) for t in term.of) + ")"
    no = "not " if term.negated else ""
    if isinstance(term, Text):
        or_id = (
            (" (nor is it" if term.negated else " (or is") + " the job's id)" if jobs and may_be_job_id(term) else ""
        )
        return f"type or message has {no}{_in_quotes(term.value)}{or_id}"
    if isinstance(term, Age):
        return f"{no}failed {'less' if term.younger else 'more'} than {duration(term.seconds)} ago"
    if isinstance(term, Time):
        when = f"{term.at:%Y-%m-%d %H:%M:%S} UTC" if term.at else f"{duration(term.ago or 0)} ago"
        return f"{no}{_VERBS[term.field]} {when}"
    if isinstance(term, Numbers):
        if term.field == "replay" and term.ranges == ((1, None),):
            return f"in {'no' if term.negated else 'any'} replay"
        return f"{_VERBS.get(term.field, term.field)} {no}" + _listed([_range_in_words(*r) for r in term.ranges], "or")
    if term.field in (*CONTAINED, "trace"):
        verb = "is" if all(v.exact for v in term.values) else "has"
        what = "traceback" if term.field == "trace" else term.field
        return f"{what} {verb} {no}" + _listed([_in_quotes(v.text) for v in term.values], "or")
    return f"{_VERBS.get(term.field, term.field)} {no}" + _listed([v.text or "(empty)" for v in term.values], "or")


def _range_in_words(low: int | None, high: int | None) -> str:
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def _listed(words: list[str], joint: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"


def _in_quotes(text: str) -> str:
    return f'"{text}"'


def unfit_for_acts(query: Query) -> str:
    """Return why the query cannot be the scope of an action; "" if it can."""
    if query.is_cut:
        return "The search is too long and was cut, so it would match other jobs. Shorten the search."
    for term in leaves(query.terms):
        if is_scanned(term):
            return (
                f"{format_term(term)} alone cannot use an index, as actions require. Start the word with letters or "
                "digits, or select the failures."
            )
    return ""
