"""The search language: text <-> Query. One language for the search field, the API, and the scope of a replay.

Every string is a valid search. What is not clearly an operator is text, so that a pasted error finds itself:
`-` negates only before a qualifier or a quote, `OR` is one only between two terms, parentheses only around
qualifiers. `OR` joins the terms beside it: `queue:a error:B OR error:C` is queue a, and error B or C.

Reading costs time linear in the text. `parse(format(q)) == q` for every query that `parse` gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from jobs_admin.core.text import representable

MAX_CHARS = 4_000
MAX_TERMS = 100
MAX_DEPTH = 5

STATES = ("retrying", "dead", "quarantined", "replaying", "recovered", "discarded", "gone")
DEFAULT_STATES = ("dead", "retrying", "replaying", "quarantined")

NAMES = ("queue", "task", "source", "state", "group", "worker", "host", "tenant", "policy", "release", "kind")
CONTAINED = ("error", "message")  # these match inside the text, without regard to case; the others match the whole name
NUMBERS = ("attempts", "priority", "replay")
TIMES = ("since", "until")
QUALIFIERS = (*CONTAINED, *NAMES, *NUMBERS, "age", *TIMES)
# Part of the language, but no index serves them yet: text, with a hint.
UNINDEXED = ("args", "kwargs", "trace")


@dataclass(frozen=True, slots=True)
class Text:
    """The error's type and message contain it, without regard to case. With `glob`, `*` matches anything.

    Or it is the job's id, now or in run 1: where it `may_be_job_id`.
    """

    value: str
    glob: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    text: str
    glob: bool = False
    exact: bool = False  # only for CONTAINED: the whole text and nothing else


@dataclass(frozen=True, slots=True)
class Match:
    """A field is any of the values."""

    field: str
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number is in any of the ranges; both ends belong to it, None is open."""

    field: str
    ranges: tuple[tuple[int | None, int | None], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Age:
    """Failed less than so long ago, or more."""

    younger: bool
    seconds: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Time:
    """Failed at or after (`since`), at or before (`until`): a moment, or so many seconds before now."""

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
    """What a search asks for: every term, in the default states unless a term names states."""

    terms: tuple[Term, ...] = ()
    hints: tuple[str, ...] = field(default=(), compare=False)
    # Something was cut off, so that it matches more than was asked: shown with a hint, refused as a scope of acts.
    is_cut: bool = field(default=False, compare=False)
    now: datetime | None = field(default=None, compare=False)

    @property
    def names_state(self) -> bool:
        """Whether the text says which states; otherwise the default scope applies."""
        return any(isinstance(t, Match) and t.field == "state" for t in leaves(self.terms))

    @property
    def fields(self) -> set[str]:
        """Every field that it touches; `text` for words. The default scope counts as `state`."""
        return {_field(t) for t in leaves(self.terms)} | {"state"}

    @property
    def reading(self) -> str:
        """How it was read, in words."""
        return reading(self)


def may_be_job_id(term: Text) -> bool:
    """Whether it is one word. Ids are matched whole, with regard to case."""
    return not term.glob and not any(c.isspace() for c in term.value)


def leaves(terms: tuple[Term, ...]) -> Iterator[Text | Match | Numbers | Age | Time]:
    for term in terms:
        if isinstance(term, Any | All):
            yield from leaves(term.of)
        else:
            yield term


def _field(term: Text | Match | Numbers | Age | Time) -> str:
    if isinstance(term, Text):
        return "text"
    return "age" if isinstance(term, Age) else term.field


# --- reading text -----------------------------------------------------------------------------------------------

# What a bare word is made of. Everything else (brackets, quotes, colons, commas …) parts words, so that
# `TimeoutError('x')` and `KeyError: 'x'` find a failure of that type with that message.
_WORD = re.compile(r"[^\s()\[\]{}<>'\"`,;:=!?|\\‘’“”«»…]+")
_TOKEN = re.compile(r"\S+")
_QUALIFIER = re.compile(r"(-?)([a-z]+):(?=[^\s])")
_LOOKS_LIKE_QUALIFIER = re.compile(r"-?([A-Za-z_]+)[.:][A-Za-z_\"*]")
_SAFE_VALUE = re.compile(r"[\w.@/+%#&$~^-]+\Z")
_COMPARISON = re.compile(r"(>=|<=|>|<|=)?(-?\d{1,9})\Z")
_SPAN = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})\Z")
_DURATION = re.compile(r"(\d{1,6})(s|m|h|d|w)\Z")
_AGE = re.compile(r"(<=|>=|<|>)(\d{1,6})(s|m|h|d|w)\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse(text: str, now: datetime | None = None) -> Query:
    """The query in `text`. Never fails; what was not understood as an operator is text, told in `hints`."""
    return _Reader(text, now).query()


class _Reader:
    def __init__(self, text: str, now: datetime | None) -> None:
        self.hints: list[str] = []
        self.now = now
        text = representable(text)  # as what it searches was stored
        self.is_cut = len(text) > MAX_CHARS
        if self.is_cut:
            text = text[:MAX_CHARS]
            self.hint(f"Only the first {MAX_CHARS:,} characters were searched for.")
        self.text = text
        self.no_closer_from = len(text) + 1  # beyond it no closing quote follows: looked for once

    def hint(self, text: str) -> None:
        if text not in self.hints and len(self.hints) < 5:
            self.hints.append(text)

    def query(self) -> Query:
        parts: list[Term | str] = []  # a str is "OR", which may yet turn out to be a word
        at = 0
        while (start := self._skip_space(at)) < len(self.text):
            group = self._group(start, 0) if self.text[start] == "(" else None
            if group is not None:
                term, at = group
                parts.append(term)
                continue
            found = self._quote(start) or self._qualifier(start, in_group=False)
            if found is not None:
                leaf, at = found
                if leaf is not None:
                    parts.append(leaf)
                continue
            match = _TOKEN.match(self.text, start)
            assert match is not None
            at = match.end()
            parts.extend(["OR"] if match.group() == "OR" else self._words(match.group()))
        terms = _joined(parts)
        if not terms and self.text.translate({ord("*"): None, ord('"'): None}).strip():
            terms = (Text(self.text.strip()),)  # punctuation alone: taken as it stands
        if len(terms) > MAX_TERMS:
            terms = terms[:MAX_TERMS]
            self.is_cut = True
            self.hint(f"Only the first {MAX_TERMS} terms were searched for.")
        return Query(terms, tuple(self.hints), self.is_cut, self.now)

    def _skip_space(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def _words(self, token: str) -> list[Term | str]:
        looks = _LOOKS_LIKE_QUALIFIER.match(token)
        if looks and looks.group(1) in UNINDEXED:
            self.hint(f"“{looks.group(1)}” is not indexed yet: it was searched for as text.")
        elif looks and token[looks.end(1)] == ":":
            self.hint(f"“{looks.group(1)}:” was not understood as a qualifier: it was searched for as text.")
        elif token.endswith(":") and token[:-1] in QUALIFIERS:
            self.hint(f"“{token}” has no value: it was searched for as text.")
        return [Text(word, glob="*" in word) for word in bare_words(token)]

    def _quote(self, start: int) -> tuple[Term | None, int] | None:
        negated = self.text.startswith('-"', start)
        if not negated and self.text[start] != '"':
            return None
        closed = self._closing(start + 1 + negated, "")
        if closed is None:
            return None
        value, end = closed
        return (Text(value, negated=negated) if value.strip() else None), end

    def _closing(self, start: int, stops: str) -> tuple[str, int] | None:
        """The text up to the quote that closes, and the place after it; None where none does.

        A quote closes where white space, the end, or one of `stops` follows, so that quotes inside pasted text need
        no care. Only one that would close is escaped by a backslash: `"say \\"hi\\" twice"` is read to the last.
        """
        if start >= self.no_closer_from:
            return None
        at = start
        while (at := self.text.find('"', at)) != -1:
            follows = self.text[at + 1 : at + 2]
            if not follows or follows.isspace() or follows in stops:
                body = self.text[start:at]
                if (len(body) - len(body.rstrip("\\"))) % 2 == 0:
                    return _unescaped(body, stops), at + 1
            at += 1
        if not stops:
            self.no_closer_from = min(self.no_closer_from, start)
        return None

    def _group(self, start: int, depth: int) -> tuple[Term, int] | None:
        """The group that opens at `start` and the place after it, or None where it is not one."""
        if depth >= MAX_DEPTH:
            return None
        parts: list[Term | str] = []
        at = start + 1
        while (at := self._skip_space(at)) < len(self.text):
            if self.text[at] == ")":
                ends = at + 1 == len(self.text) or self.text[at + 1].isspace() or (depth and self.text[at + 1] == ")")
                terms = _joined(parts)
                if not ends or not terms or "OR" in parts[:1] + parts[-1:]:
                    return None
                return (terms[0] if len(terms) == 1 else All(terms)), at + 1
            if self.text[at] == "(":
                group = self._group(at, depth + 1)
                if group is None:
                    return None
                parts.append(group[0])
                at = group[1]
            elif re.match(r"OR\s", self.text[at : at + 3]):
                parts.append("OR")
                at += 2
            else:
                found = self._qualifier(at, in_group=True)
                if found is None:
                    return None
                parts.append(found[0])
                at = found[1]
        return None

    def _qualifier(self, start: int, *, in_group: bool) -> tuple[Term, int] | None:
        head = _QUALIFIER.match(self.text, start)
        if head is None or head.group(2) not in QUALIFIERS:
            return None
        values, end = self._values(head.group(2), head.end(), in_group)
        if values is None:
            return None
        term = self._term(head.group(2), values, negated=bool(head.group(1)))
        return None if term is None else (term, end)

    def _values(self, name: str, at: int, in_group: bool) -> tuple[list[Value] | None, int]:
        """The comma-separated values from `at` on, and the place after them."""
        values: list[Value] = []
        while at < len(self.text) and not self.text[at].isspace():
            equal = self.text.startswith('="', at)
            closed = self._closing(at + 1 + equal, ",)") if self.text[at] == '"' or equal else None
            if closed is not None:
                text, at = closed
                values.append(Value(text, exact=equal and name in CONTAINED))
            else:
                end = at
                while end < len(self.text) and self.text[end] != "," and not self.text[end].isspace():
                    end += 1
                raw = self.text[at:end]
                if in_group:
                    surplus = raw.count(")") - raw.count("(")
                    while surplus > 0 and raw.endswith(")"):
                        raw, surplus = raw[:-1], surplus - 1
                at += len(raw)
                if raw:
                    values.append(_value(name, raw))
            follows = self.text[at : at + 1]
            if follows == ",":
                at += 1
            elif follows == ")" and in_group:
                break
            elif follows and not follows.isspace():
                return None, at
        values = [v for v in values if v.text]
        return (values or None), at

    def _term(self, name: str, values: list[Value], *, negated: bool) -> Term | None:
        if name in NUMBERS:
            ranges = [_range(v.text) for v in values]
            if any(r is None for r in ranges):
                self.hint(f"“{name}:” takes a number, as in {name}:3, {name}:>=3 or {name}:2..5.")
                return None
            return Numbers(name, tuple(r for r in ranges if r is not None), negated)
        if name == "age":
            found = _AGE.match(values[0].text) if len(values) == 1 else None
            if found is None:
                self.hint("“age:” takes a duration, as in age:<2d or age:>90m.")
                return None
            return Age(found[1].startswith("<"), int(found[2]) * _UNITS[found[3]], negated)
        if name in TIMES:
            moment = _moment(values[0].text) if len(values) == 1 else None
            if moment is None:
                self.hint(f"“{name}:” takes a time in UTC, as in {name}:2026-11-20T10:00Z, or {name}:2h.")
                return None
            return replace(moment, field=name, negated=negated)
        if name == "state":
            unknown = [v.text for v in values if not expand_states((v,))]
            if unknown:
                self.hint(f"“{unknown[0]}” is no state. States are {', '.join(STATES)}.")
        return Match(name, tuple(values), negated)


def bare_words(token: str) -> list[str]:
    """The words of unquoted text: `TimeoutError('x')` is `TimeoutError` and `x`."""
    words = (_fewer_stars(word.lstrip(".").rstrip(".-")) for word in _WORD.findall(token))
    return [word for word in words if word.strip(".-*/")]


def _fewer_stars(word: str) -> str:
    return re.sub(r"\*+", "*", word)


def _value(name: str, raw: str) -> Value:
    """An unquoted value: `=` before it means the whole text, which names mean anyway."""
    if raw.startswith("=") and len(raw) > 1 and name in (*CONTAINED, *NAMES):
        return Value(raw[1:], exact=name in CONTAINED)
    return Value(raw, glob="*" in raw and not raw.startswith('"'))


def _unescaped(body: str, stops: str) -> str:
    """`body` of a quote: a backslash goes only where it kept a quote from closing (or doubled to the end)."""
    stop = re.escape(stops)
    body = re.sub(
        rf'(\\+)"(?=[\s{stop}])' if stops else r'(\\+)"(?=\s)',
        lambda found: found.group(1)[: len(found.group(1)) // 2] + '"',
        body,
    )
    bare = body.rstrip("\\")
    return bare + "\\" * ((len(body) - len(bare)) // 2)


def _joined(parts: list[Term | str]) -> tuple[Term, ...]:
    """The terms with each OR that stands between two of them applied; any other OR is a word."""
    terms: list[Term] = []
    pending = False
    for i, part in enumerate(parts):
        if isinstance(part, str):
            between = bool(terms) and not pending and i + 1 < len(parts) and not isinstance(parts[i + 1], str)
            if between:
                pending = True
            else:
                terms.append(Text("OR"))
        elif pending:
            left = terms.pop()
            of = (left.of if isinstance(left, Any) else (left,)) + (part.of if isinstance(part, Any) else (part,))
            terms.append(Any(of))
            pending = False
        elif isinstance(part, All):
            terms.extend(part.of) if not _or_follows(parts, i) else terms.append(part)
        else:
            terms.append(part)
    return tuple(terms)


def _or_follows(parts: list[Term | str], i: int) -> bool:
    return i + 2 < len(parts) and parts[i + 1] == "OR" and not isinstance(parts[i + 2], str)


def _range(text: str) -> tuple[int | None, int | None] | None:
    span = _SPAN.match(text)
    if span:
        return int(span[1]), int(span[2])
    found = _COMPARISON.match(text)
    if not found:
        return None
    sign, number = found[1], int(found[2])
    if sign == ">=":
        return number, None
    if sign == ">":
        return number + 1, None
    if sign == "<=":
        return None, number
    if sign == "<":
        return None, number - 1
    return number, number


def _moment(text: str) -> Time | None:
    duration = _DURATION.match(text)
    if duration:
        return Time("since", ago=int(duration[1]) * _UNITS[duration[2]])
    if not re.match(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d|\Z)", text):
        return None
    try:
        at = datetime.fromisoformat(text)
        return Time("since", at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def expand_states(values: tuple[Value, ...]) -> tuple[str, ...]:
    """The states that `state:` values name; `any` and `*` are all of them."""
    found: set[str] = set()
    for value in values:
        pattern = "*" if value.text == "any" else value.text
        glob = re.compile(".*".join(re.escape(part) for part in pattern.split("*")) + r"\Z")
        found.update(s for s in STATES if (glob.match(s) if "*" in pattern else s == pattern))
    return tuple(s for s in STATES if s in found)


# --- writing text -----------------------------------------------------------------------------------------------


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
        return f"{sign}{term.field}:" + ",".join(_format_value(v) for v in term.values)
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


def _format_value(value: Value) -> str:
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
    unit, size = next((u, n) for u, n in reversed(_UNITS.items()) if seconds % n == 0)
    return f"{seconds // size}{unit}"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


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


def without(query: Query, index: int) -> Query:
    """The query without its term `index`: what clicking a chip away leads to."""
    return replace(query, terms=query.terms[:index] + query.terms[index + 1 :])


# --- in words ---------------------------------------------------------------------------------------------------

_VERBS = {"group": "group", "kind": "ended as", "replay": "in replay", "since": "failed since", "until": "failed until"}


def reading(query: Query) -> str:
    """How the query was read: `type or message has "errno" and "-2" · state dead, retrying, replaying or quarantined`."""
    words = [t for t in query.terms if isinstance(t, Text) and not t.negated]
    parts = []
    if words:
        or_id = " (or is the job's id)" if any(may_be_job_id(t) for t in words) else ""
        parts.append("type or message has " + _listed([_shown(t.value) for t in words], "and") + or_id)
    parts += [in_words(t) for t in query.terms if t not in words]
    if not query.names_state:
        parts.append("state " + _listed(list(DEFAULT_STATES), "or"))
    return " · ".join(parts)


def in_words(term: Term, *, jobs: bool = True) -> str:
    """How one term was read. `jobs`: words may be jobs' ids, as they may not be where groups are searched."""
    if isinstance(term, Any):
        return " or ".join(in_words(t, jobs=jobs) for t in term.of)
    if isinstance(term, All):
        return "(" + " and ".join(in_words(t, jobs=jobs) for t in term.of) + ")"
    no = "not " if term.negated else ""
    if isinstance(term, Text):
        or_id = (
            (" (nor is it" if term.negated else " (or is") + " the job's id)" if jobs and may_be_job_id(term) else ""
        )
        return f"type or message has {no}{_shown(term.value)}{or_id}"
    if isinstance(term, Age):
        return f"{no}failed {'less' if term.younger else 'more'} than {duration(term.seconds)} ago"
    if isinstance(term, Time):
        when = f"{term.at:%Y-%m-%d %H:%M:%S} UTC" if term.at else f"{duration(term.ago or 0)} ago"
        return f"{no}{_VERBS[term.field]} {when}"
    if isinstance(term, Numbers):
        return f"{_VERBS.get(term.field, term.field)} {no}" + _listed([_range_in_words(*r) for r in term.ranges], "or")
    if term.field in CONTAINED:
        verb = "is" if all(v.exact for v in term.values) else "has"
        return f"{term.field} {verb} {no}" + _listed([_shown(v.text) for v in term.values], "or")
    return f"{_VERBS.get(term.field, term.field)} {no}" + _listed([v.text for v in term.values], "or")


def _range_in_words(low: int | None, high: int | None) -> str:
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def _listed(words: list[str], joint: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"


def _shown(text: str) -> str:
    return f'"{text}"'
