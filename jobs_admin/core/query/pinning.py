"""Relative times made absolute."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from jobs_admin.core.query.tree import Age, All, Any, Query, Term, Time


def pin(query: Query, now: datetime) -> Query:
    """The same query with every relative time made absolute: what a replay's scope and an alert's link hold."""
    return replace(query, terms=tuple(_pinned(t, now) for t in query.terms), now=now)


def _pinned(term: Term, now: datetime) -> Term:
    if isinstance(term, Any):
        return Any(tuple(_pinned(t, now) for t in term.of))
    if isinstance(term, All):
        return All(tuple(_pinned(t, now) for t in term.of))
    if isinstance(term, Age):
        return Time("since" if term.younger else "until", at=before(now, term.seconds), negated=term.negated)
    if isinstance(term, Time) and term.ago is not None:
        return replace(term, at=before(now, term.ago), ago=None)
    return term


def is_pin_of(pinned: Query, asked: Query, now: datetime, within: timedelta) -> bool:
    """Whether the one is the other, pinned at about `now`: relative times may differ by so much, all else not at all."""
    return _are_pins(pinned.terms, asked.terms, now, within)


def _are_pins(pinned: tuple[Term, ...], asked: tuple[Term, ...], now: datetime, within: timedelta) -> bool:
    pairs = zip(pinned, asked, strict=False)
    return len(pinned) == len(asked) and all(_is_pin(one, other, now, within) for one, other in pairs)


def _is_pin(pinned: Term, asked: Term, now: datetime, within: timedelta) -> bool:
    if isinstance(asked, Any | All):
        return type(pinned) is type(asked) and _are_pins(pinned.of, asked.of, now, within)
    expected = _pinned(asked, now)
    if expected is not asked and isinstance(expected, Time) and isinstance(pinned, Time):
        if expected.at is None or pinned.at is None:
            return False
        return replace(pinned, at=expected.at) == expected and abs(pinned.at - expected.at) <= within
    return pinned == expected


def before(now: datetime, seconds: int) -> datetime:
    """So many seconds before now; the beginning of time where that is further."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime(1, 1, 2, tzinfo=timezone.utc)
