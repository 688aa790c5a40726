"""Parser of search text into a query.

Every string is a valid search. Anything that is not clearly an operator is text, so that a pasted error finds itself:
`-` negates only before a qualifier or a quote, `OR` is an operator only between two terms, parentheses only around
qualifiers. `OR` joins the adjacent terms: `queue:a error:B OR error:C` is queue a, and error B or C.

Linear in the text.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from datetime import datetime, timezone
from itertools import accumulate

from jobs_admin.core import search_terms as index
from jobs_admin.core.priority import LEVELS
from jobs_admin.core.query.tree import (
    ARGUMENTS,
    CONTAINED,
    EMPTY,
    HELD,
    NAMES,
    NUMBERS,
    QUALIFIERS,
    STATES,
    TIMES,
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
    before_star,
    expand_states,
    is_argument,
    leaves,
)
from jobs_admin.core.text import representable

MAX_CHARS = 4_000
MAX_TERMS = 100
MAX_VALUES = 200  # of all terms together: words, values of a qualifier, ranges of a number
STAR, SHORT_STAR = 5, 20  # cost of a word with a star; and with fewer than SHORT letters before the star
SHORT = 3
MAX_DEPTH = 5
MAX_WORDS = 100  # consecutive sub-words of one term

# Characters of a bare word. All others (brackets, quotes, colons, commas …) separate words, so that `TimeoutError('x')`
# and `KeyError: 'x'` find a failure of that type with that message.
_WORD = re.compile(r"[^\s()\[\]{}<>'\"`,;:=!?|\\‘’“”«»…]+")
_ALPHANUMERIC = re.compile(r"[^\W_]")  # or digit
_TOKEN = re.compile(r"\S+")
# `is:dead` is `state:dead`, with other tools' names of states.
_IS = {
    "failed": "dead",
    "succeeded": "recovered",
    "resolved": "recovered",
    "waiting": "retrying",
    "ignored": "discarded",
}
_ARGUMENT_RANGE = re.compile(r"[<>]=?-?\d")
_QUALIFIER = re.compile(r"(-?)([a-z]+(?:\.[^\s:,()\"*=]{1,200})?):(?=[^\s])")
_QUALIFIER_FORM = re.compile(r"-?([A-Za-z_]{1,30}):[A-Za-z_\"*]")
_COMPARISON = re.compile(r"(>=|<=|>|<|=)?(-?\d{1,9})\Z")
_SPAN = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})\Z")
_DURATION = re.compile(r"(\d{1,6})(s|m|h|d|w)\Z")
_AGE = re.compile(r"(<=|>=|<|>)(\d{1,6})(s|m|h|d|w)\Z")


def parse(text: str, now: datetime | None = None) -> Query:
    """Return the query in `text`. Never fails; anything not understood as an operator is text, explained in `hints`."""
    return _Reader(text, now).query()


class _Reader:
    def __init__(self, text: str, now: datetime | None) -> None:
        self.hints: list[str] = []
        self.now = now
        text = representable(text)  # like the stored text
        self.is_cut = len(text) > MAX_CHARS
        if self.is_cut:
            text = text[:MAX_CHARS]
            self.hint(f"Only the first {MAX_CHARS:,} characters were used.")
        self.text = text
        self.no_closer_from = len(text) + 1  # no closing quote follows after this position: searched once

    def hint(self, text: str) -> None:
        if text not in self.hints and len(self.hints) < 5:
            self.hints.append(text)

    def query(self) -> Query:
        parts: list[Term | str] = []  # a str is "OR", which may turn out to be a word
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
            self._watch_operators(match.group(), start, at)
            parts.extend(["OR"] if match.group() == "OR" else self._words(match.group()))
        terms = _joined(parts)
        for leaf in leaves(terms):
            if isinstance(leaf, Text):
                self._watch_length(leaf.value)
        if not terms and self.text.translate({ord("*"): None, ord('"'): None}).strip():
            terms = (Text(self.text.strip()),)  # only punctuation: taken literally
        if len(terms) > MAX_TERMS:
            terms = terms[:MAX_TERMS]
            self.is_cut = True
            self.hint(f"Only the first {MAX_TERMS} terms were used.")
        bounded = _first_values(terms, MAX_VALUES)
        if bounded != terms:
            terms, self.is_cut = bounded, True
            stars = any(_size(leaf) > len(getattr(leaf, "values", (leaf,))) for leaf in leaves(bounded))
            dear = (
                f" A word with a wildcard counts as {STAR}, with fewer than {SHORT} letters before the wildcard as "
                f"{SHORT_STAR}."
                if stars
                else ""
            )
            self.hint(f"Only the first {MAX_VALUES} words and values were used.{dear}")
        return Query(terms, tuple(self.hints), self.is_cut, self.now)

    def _skip_space(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def _words(self, token: str) -> list[Term | str]:
        named = _QUALIFIER_FORM.match(token)
        inside = _QUALIFIER.match(token.lstrip("("))
        if token.startswith("(") and inside and (inside.group(2) in QUALIFIERS or is_argument(inside.group(2))):
            self.hint(
                f"“{token[:60]}” was searched for as text: a group contains only qualifiers and OR, and ends with “)”."
            )
        elif named and (name := named.group(1)) in QUALIFIERS:
            if not any(f"“{name}:”" in hint for hint in self.hints):  # unless a hint already explains the valid values
                self.hint(f"“{name}:” was not understood: it was searched for as text.")
        elif named and named.group(1) == "is":
            self.hint(f"“is:” takes a state ({', '.join(STATES)}). This term was searched for as text.")
        elif named:
            near = difflib.get_close_matches(named.group(1).lower(), (*QUALIFIERS, *ARGUMENTS), 1, 0.7)
            meant = f" Did you mean {near[0]}:?" if near else ""
            if near and near[0] in ARGUMENTS:
                meant = f" An argument is named by its path, as in {near[0]}.customer.id:42."
            self.hint(f"“{named.group(1)}:” was not understood as a qualifier: it was searched for as text.{meant}")
        elif token.endswith(":") and (token[:-1] in QUALIFIERS or is_argument(token[:-1])):
            empty = f' For an empty {token[:-1]}, write {token}"".' if token[:-1] in EMPTY else ""
            self.hint(f"“{token}” has no value: it was searched for as text.{empty}")
        return [Text(word, glob="*" in word) for word in bare_words(token)]

    def _watch_operators(self, word: str, start: int, end: int) -> None:
        """Add a hint for `not`, `and` and `or` where they look like operators of another tool.

        They are words, as in messages.
        """
        if word.lower() not in ("not", "and", "or") or word == "OR":
            return
        behind = self.text[self._skip_space(end) :][:200].split()
        if not behind:
            return
        named = _QUALIFIER.match(behind[0])
        is_named = named is not None and (named.group(2) in QUALIFIERS or is_argument(named.group(2)))
        if word.lower() == "or":
            before = self.text[:start].split()[-1:]
            left = _QUALIFIER.match(before[0]) if before else None
            if is_named and named is not None and left is not None and left.group(2) in (*QUALIFIERS, named.group(2)):
                same = left.group(2) == named.group(2) and not (left.group(1) or named.group(1))
                values = f"{before[0]},{behind[0][named.end() :]}"[:60]
                either = f"{values}, or write OR in capitals" if same else "write OR in capitals"
                self.hint(f"“{word}” was searched for as a word. For either: {either}.")
        elif word.lower() == "and":
            if is_named or (word == "AND" and self.text[:start].strip()):
                self.hint(f"“{word}” was searched for as a word. Remove “{word}”: all terms must match anyway.")
        elif is_named or (not self.text[:start].strip() and (word == "NOT" or len(behind) == 1)):
            what = behind[0] if is_named or behind[0].startswith('"') else f'"{behind[0]}"'
            self.hint(f"“{word}” was searched for as a word. To exclude a term, write -{what[:60]}.")

    def _watch_length(self, text: str) -> None:
        if len(text) > MAX_WORDS and index.has_more_words(text, MAX_WORDS):
            self.is_cut = True
            self.hint(f"Only the first {MAX_WORDS} parts of a quoted text or word were used.")

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
        """Return the text up to the closing quote, and the position after it; None if there is none.

        A quote closes if white space, the end, or one of `stops` follows, so that quotes inside pasted text need no
        escaping. Only quotes that would close are escaped with a backslash: `"say \\"hi\\" twice"` is read to the last
        one.
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
        """Return the group that opens at `start` and the position after it; None if it is not a group."""
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
        if head is not None and head.group(2) == "is":
            return self._state(head, in_group)
        if head is None or not (head.group(2) in QUALIFIERS or is_argument(head.group(2))):
            return None
        values, end = self._values(head.group(2), head.end(), in_group)
        if values is None:
            return None
        term = self._term(head.group(2), values, negated=bool(head.group(1)))
        return None if term is None else (term, end)

    def _state(self, head: re.Match[str], in_group: bool) -> tuple[Term, int] | None:
        """Return `is:dead` as a state term if every value is a state; in a pasted error it is text."""
        values, end = self._values("state", head.end(), in_group)
        states = [Value(_IS.get(v.text.lower(), v.text.lower())) for v in values or ()]
        if not states or any(v.text not in (*STATES, "any") for v in states):
            return None
        return Match("state", tuple(dict.fromkeys(states)), bool(head.group(1))), end

    def _values(self, name: str, at: int, in_group: bool) -> tuple[list[Value] | None, int]:
        """Return the comma-separated values from `at` on, and the position after them."""
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
        values = [v for v in values if v.text or name in EMPTY]
        return (values or None), at

    def _term(self, name: str, values: list[Value], *, negated: bool) -> Term | None:
        if name == "priority" and all(v.text.lower() in LEVELS for v in values):
            named = {v.text.lower() for v in values}
            return Match(name, tuple(Value(level) for level in LEVELS if level in named), negated)
        if name in NUMBERS:
            return self._numbers(name, values, negated=negated)
        if name == "age":
            return self._age(values, negated=negated)
        if name in TIMES:
            return self._time(name, values, negated=negated)
        if (name == "trace" or is_argument(name)) and not self._check_comparable(name, values):
            return None
        if name in (*CONTAINED, "trace"):
            for value in values:
                self._watch_length(value.text)
        if name == "state":
            unknown = [v.text for v in values if not expand_states((v,))]
            if HELD in unknown:
                self.hint(
                    "Held jobs have not failed, and a search finds failures only. The pages of breakers list held jobs."
                )
            elif unknown:
                self.hint(f"“{unknown[0]}” is not a state. States are {', '.join(STATES)}.")
        return Match(name, tuple(dict.fromkeys(values)), negated)

    def _numbers(self, name: str, values: list[Value], *, negated: bool) -> Numbers | None:
        ranges = [_range(v.text) for v in values]
        if any(r is None for r in ranges):
            level = f", or a level: {', '.join(LEVELS)}" if name == "priority" else ""
            self.hint(f"“{name}:” takes a number, as in {name}:3, {name}:>=3 or {name}:2..5{level}.")
            return None
        return Numbers(name, _merged([r for r in ranges if r is not None]), negated)

    def _age(self, values: list[Value], *, negated: bool) -> Age | None:
        found = _AGE.match(values[0].text) if len(values) == 1 else None
        if found is None:
            self.hint("“age:” takes a duration, as in age:<2d or age:>90m.")
            return None
        return Age(found[1].startswith("<"), int(found[2]) * UNITS[found[3]], negated)

    def _time(self, name: str, values: list[Value], *, negated: bool) -> Term | None:
        moment = _moment(values[0].text) if len(values) == 1 else None
        if moment is None:
            self.hint(f"“{name}:” takes a time in UTC, as in {name}:2026-11-20T10:00Z, or {name}:2h.")
            return None
        return replace(moment, field=name, negated=negated)

    def _check_comparable(self, name: str, values: list[Value]) -> bool:
        """Return whether the values can be searched in a trace or an argument.

        Add a hint if not, or if a range is read as a word.
        """
        if is_argument(name) and any(_ARGUMENT_RANGE.match(v.text) and not v.exact for v in values):
            self.hint(f"Arguments match complete values only: “{name}:” takes no > or <. {name}:* matches any value.")
        if any(v.glob and not _ends_in_star(v.text, name) for v in values):
            self.hint(f"“{name}:” allows a wildcard only at the end, as in {name}:abc*.")
            return False
        return True


def bare_words(token: str) -> list[str]:
    """Return the words of unquoted text: `TimeoutError('x')` gives `TimeoutError` and `x`."""
    words = (_fewer_stars(word.lstrip(".").rstrip(".-")) for word in _WORD.findall(token))
    return [word for word in words if _ALPHANUMERIC.search(word)]


def _ends_in_star(pattern: str, name: str) -> bool:
    head, is_all = before_star(pattern)
    return is_all and bool(head or is_argument(name))


def _fewer_stars(word: str) -> str:
    return re.sub(r"\*+", "*", word)


def _value(name: str, raw: str) -> Value:
    """Return an unquoted value. A leading `=` means the complete text, which is the default for names."""
    if raw.startswith("=") and len(raw) > 1 and (name in (*CONTAINED, *NAMES) or is_argument(name)):
        return Value(raw[1:], exact=name in CONTAINED)
    return Value(raw, glob="*" in raw and not raw.startswith('"'))


def _unescaped(body: str, stops: str) -> str:
    """Return the `body` of a quote: a backslash is removed only if it escaped a closing quote (or was doubled at
    the end).
    """
    stop = re.escape(stops)
    body = re.sub(
        rf'(\\+)"(?=[\s{stop}])' if stops else r'(\\+)"(?=\s)',
        lambda found: found.group(1)[: len(found.group(1)) // 2] + '"',
        body,
    )
    bare = body.rstrip("\\")
    return bare + "\\" * ((len(body) - len(bare)) // 2)


def _first_values(terms: tuple[Term, ...], most: int) -> tuple[Term, ...]:
    """Return the terms limited to the first `most` words, values and ranges: an SQL statement has limited depth."""
    bounded: list[Term] = []
    for term in terms:
        if most <= 0:
            break
        if isinstance(term, Any | All):
            of = _first_values(term.of, most)
            term = of[0] if len(of) == 1 else replace(term, of=of)
        elif isinstance(term, Match):
            costs = accumulate((_cost(value.text, value.glob) for value in term.values), initial=0)
            term = replace(
                term, values=tuple(v for v, before in zip(term.values, costs, strict=False) if before < most)
            )
        elif isinstance(term, Numbers):
            term = replace(term, ranges=term.ranges[:most])
        most -= sum(_size(leaf) for leaf in leaves((term,)))
        bounded.append(term)
    return tuple(bounded)


def _size(leaf: Text | Match | Numbers | Age | Time) -> int:
    if isinstance(leaf, Match):
        return sum(_cost(value.text, value.glob) for value in leaf.values)
    if isinstance(leaf, Text):
        return _cost(leaf.value, leaf.glob)
    return len(leaf.ranges) if isinstance(leaf, Numbers) else 1


def _cost(text: str, glob: bool) -> int:
    """Return the cost of a word or value in words. The fewer letters before its star, the more of the index is read."""
    if not glob:
        return 1
    return STAR if len(before_star(text)[0]) >= SHORT else SHORT_STAR


def _joined(parts: list[Term | str]) -> tuple[Term, ...]:
    """Return the terms with each OR between two of them applied; any other OR is a word."""
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


def _merged(ranges: list[tuple[int | None, int | None]]) -> tuple[tuple[int | None, int | None], ...]:
    """Return the same numbers in as few ranges as possible, lowest first."""
    found: list[tuple[int | None, int | None]] = []
    for low, high in sorted(ranges, key=lambda r: (r[0] is not None, r[0] or 0)):
        if low is not None and high is not None and low > high:
            continue
        bottom, top = found[-1] if found else (None, 0)
        if found and (top is None or low is None or low <= top + 1):
            found[-1] = bottom, None if top is None or high is None else max(top, high)
        else:
            found.append((low, high))
    return tuple(found) or tuple(ranges[:1])


def _moment(text: str) -> Time | None:
    duration = _DURATION.match(text)
    if duration:
        return Time("since", ago=int(duration[1]) * UNITS[duration[2]])
    if not re.match(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d|\Z)", text):
        return None
    try:
        at = datetime.fromisoformat(text)
        return Time("since", at=at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc))
    except (ValueError, OverflowError):
        return None


def is_path(field: str) -> bool:
    """Return whether an argument's path can be a qualifier: not with blanks or colons."""
    found = _QUALIFIER.match(f"{field}:x")
    return is_argument(field) and found is not None and found.group(2) == field
