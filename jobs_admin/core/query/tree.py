"""Search queries: terms, their properties, and relative times converted to absolute ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

from jobs_admin.core import search_terms as index
from jobs_admin.core.text import fits

HELD = "held"  # state of jobs that have not failed: a hint explains it
STATES = ("retrying", "dead", "quarantined", "replaying", "recovered", "discarded", "gone")
DEFAULT_STATES = ("dead", "retrying", "replaying", "quarantined")

NAMES = (
    "queue",
    "task",
    "source",
    "state",
    "group",
    "worker",
    "host",
    "tenant",
    "policy",
    "release",
    "kind",
    "dependency",
)
EMPTY = ("queue", "task", "tenant")  # names that may be empty: `queue:""`
CONTAINED = ("error", "message")  # words of the text, case-insensitive; other qualifiers match the complete name
NUMBERS = ("attempts", "priority", "replay")
TIMES = ("since", "until")
ARGUMENTS = ("args", "kwargs")  # with a path: `kwargs.customer.id`
QUALIFIERS = (*CONTAINED, *NAMES, *NUMBERS, "age", *TIMES, "trace")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # of a duration, in seconds


@dataclass(frozen=True, slots=True)
class Text:
    """The error's type and message contain these words in this order. Case and punctuation are ignored.

    With `glob`, `*` matches any text. Alternatively it is the job's id, now or in run 1, if it `may_be_job_id`.
    """

    value: str
    glob: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    text: str
    glob: bool = False
    exact: bool = False  # only for CONTAINED: the complete text


@dataclass(frozen=True, slots=True)
class Match:
    """A field has any of the values. An argument's field is its path, such as `kwargs.customer.id`."""

    field: str
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number is in any of the ranges, inclusive; None is open."""

    field: str
    ranges: tuple[tuple[int | None, int | None], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Age:
    """Failed more recently than, or longer ago than, some seconds."""

    younger: bool
    seconds: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Time:
    """Failed at or after (`since`), at or before (`until`): a time, or seconds before now."""

    field: str
    at: datetime | None = None
    ago: int | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Any:
    of: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class All:
    of: tuple[Term, ...]


Term: TypeAlias = Text | Match | Numbers | Age | Time | Any | All


@dataclass(frozen=True, slots=True)
class Query:
    """Search query: its terms, in the default states unless a term names states."""

    terms: tuple[Term, ...] = ()
    hints: tuple[str, ...] = field(default=(), compare=False)
    # Part of it was cut off, so it does not match what was requested: shown with a hint, refused as a scope of actions.
    is_cut: bool = field(default=False, compare=False)
    now: datetime | None = field(default=None, compare=False)

    @property
    def names_state(self) -> bool:
        """Return whether the text names states; otherwise the default states apply."""
        return any(isinstance(t, Match) and t.field == "state" for t in leaves(self.terms))

    @property
    def is_bounded(self) -> bool:
        """Return whether a part needs comparing failures because no index covers it.

        Not allowed as a scope of actions.
        """
        return any(is_scanned(t) for t in leaves(self.terms))

    @property
    def fields(self) -> set[str]:
        """All fields it uses; `text` for words. The default states count as `state`."""
        return {field_of(t) for t in leaves(self.terms)} | {"state"}


def may_be_job_id(term: Text) -> bool:
    """Return whether it is one word. Ids are matched in full, case-sensitively."""
    return not term.glob and not any(c.isspace() for c in term.value)


def is_argument(field: str) -> bool:
    return field.startswith(("args.", "kwargs."))


def before_star(pattern: str) -> tuple[str, bool]:
    """Return the text before the first `*` of a pattern, and whether nothing follows that star."""
    head, _, rest = pattern.partition("*")
    return head, not rest.strip("*")


# Names listed in another table, or in the language itself, so that patterns are looked up there.
LISTED = ("source", "queue", "task", "state", "group", "kind", "policy", "dependency")


def is_scanned(term: Text | Match | Numbers | Age | Time) -> bool:
    """Return whether no index covers it: it contains no word, or starts with `*`."""
    if isinstance(term, Text):
        return _has_no_word(term.value, term.glob)
    if not isinstance(term, Match) or term.field in LISTED or is_argument(term.field):
        return False
    if term.field in CONTAINED:
        return any(_has_no_word(v.text, v.glob) and not (v.exact and term.field == "error") for v in term.values)
    if term.field == "trace":
        return any(_has_no_word(v.text, v.glob) for v in term.values)
    return any(v.glob and v.text.startswith("*") and v.text.strip("*") for v in term.values)


def _has_no_word(text: str, glob: bool) -> bool:
    return not index.phrases(before_star(text)[0] if glob else text)


def leaves(terms: tuple[Term, ...]) -> Iterator[Text | Match | Numbers | Age | Time]:
    for term in terms:
        if isinstance(term, Any | All):
            yield from leaves(term.of)
        else:
            yield term


def field_of(term: Text | Match | Numbers | Age | Time) -> str:
    """Return the field of a term; `text` for words."""
    if isinstance(term, Text):
        return "text"
    return "age" if isinstance(term, Age) else term.field


def expand_states(values: tuple[Value, ...]) -> tuple[str, ...]:
    """Return the states named by `state:` values; `any` and `*` mean all."""
    found: set[str] = set()
    for value in values:
        pattern = "*" if value.text == "any" else value.text
        found.update(s for s in STATES if fits(pattern, s))
    return tuple(s for s in STATES if s in found)


def without(query: Query, index: int) -> Query:
    """Return the query without its term `index`, as when a filter chip is removed."""
    return replace(query, terms=query.terms[:index] + query.terms[index + 1 :])


def pin(query: Query, now: datetime) -> Query:
    """Return the query with relative times made absolute, as in a replay's scope and an alert's link."""
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


def is_pin_of(pinned: Query, original: Query, now: datetime, within: timedelta) -> bool:
    """Return whether `pinned` is `original` pinned at about `now`: relative times may differ by `within`,
    everything else must be equal.
    """
    return _are_pins(pinned.terms, original.terms, now, within)


def _are_pins(pinned: tuple[Term, ...], original: tuple[Term, ...], now: datetime, within: timedelta) -> bool:
    pairs = zip(pinned, original, strict=False)
    return len(pinned) == len(original) and all(_is_pin(one, other, now, within) for one, other in pairs)


def _is_pin(pinned: Term, original: Term, now: datetime, within: timedelta) -> bool:
    if isinstance(original, Any | All):
        return type(pinned) is type(original) and _are_pins(pinned.of, original.of, now, within)
    expected = _pinned(original, now)
    if expected is not original and isinstance(expected, Time) and isinstance(pinned, Time):
        if expected.at is None or pinned.at is None:
            return False
        return replace(pinned, at=expected.at) == expected and abs(pinned.at - expected.at) <= within
    return pinned == expected


def before(now: datetime, seconds: int) -> datetime:
    """Return the time `seconds` before now; the earliest time on overflow."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime(1, 1, 2, tzinfo=timezone.utc)
