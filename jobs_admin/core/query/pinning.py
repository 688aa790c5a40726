"""Relative times made absolute."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

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


def before(now: datetime, seconds: int) -> datetime:
    """So many seconds before now; the beginning of time where that is further."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime(1, 1, 2, tzinfo=UTC)
