"""Redaction of secrets in arguments, headers, messages and tracebacks before they leave the worker.

Two rules, both visible as `[redacted]`: a field's name marks its value as secret (`password`, `api_key`,
`Authorization` …: `secret_names`, in texts `named_secrets`), or the value has a known form (a JWT, an AWS key, a
private key, the password in a URL …: `secret_looks`). The raw message is stored separately and not changed. All of it
is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import quote, quote_plus

from jobs_admin.core.named_secrets import may_name, without_named
from jobs_admin.core.secret_fields import is_key, is_secret_name, names_a_key
from jobs_admin.core.secret_patterns import (
    PLACEHOLDER,
    is_card,
    without_known_forms,
    without_private_keys,
    without_sentences,
    words_of,
)

__all__ = [
    "PLACEHOLDER", "SHORTEST", "TOO_DEEP",
    "elements", "fields", "hides_all", "named_values", "redact", "redact_text", "without_values",
]  # fmt: skip

TOO_DEEP = "[nested too deep]"
DEEPEST = 100
SHORTEST = 13  # characters of the shortest secret recognised by form alone: a card number

# A number is no secret if the name is an amount: `max_tokens`, `session_count`.
_AMOUNT = re.compile(r"(?:max|min|num|total|prompt|completion)|(?:count|limit|used|tokens|sessions|timeout|age|size)\Z")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
# `{"name": "password", "value": …}` and similar.
_NAMING = frozenset({"name", "key", "field", "header", "param", "parameter", "k", "variable"})
_NAMED_SO = frozenset({"value", "val", "v", "content", "data", "default"})
# Fields that mark others of their object as secret: Kubernetes Secrets, JSON Web Keys.
_NAMED_BY = {
    "kind": frozenset({"data", "stringdata"}),
    "kty": frozenset({"d", "p", "q", "dp", "dq", "qi", "k"}),
    "grant_type": frozenset({"code"}),
}
_NAMED_BY |= dict.fromkeys(_NAMING, _NAMED_SO)
_NONE: frozenset[str] = frozenset()
_NO_PLACES: frozenset[int] = frozenset()
_LONGEST_COMMAND = 100  # elements of a list that may be a command with options
_MARK = re.compile("[=:：＝]|[A-Za-z] [0-9]")
_BRANCHES = (dict, list, tuple)


def redact(value: object) -> tuple[object, int]:
    """Return a copy of JSON-like `value` without secrets, and the number hidden. Never changes `value`."""
    return _redacted(value, 0)


def _redacted(value: object, depth: int) -> tuple[object, int]:
    if isinstance(value, str):
        return redact_text(value)
    if depth >= DEEPEST and isinstance(value, _BRANCHES):
        return TOO_DEEP, 1
    if isinstance(value, dict):
        copy: dict[object, object] = {}
        hidden = 0
        named = _named_by_others(value)
        for name, inner in value.items():
            judged = _judged(name) if isinstance(name, str) else None
            if judged is None:
                copy[name], count = _redacted(inner, depth + 1)
            elif judged.hides(inner, named):
                copy[judged.shown], count = PLACEHOLDER, 1 + judged.hidden
            else:
                copy[judged.shown], count = _redacted(inner, depth + 1)
                count += judged.hidden
            hidden += count
        return copy, hidden
    if isinstance(value, list | tuple):
        if _is_secret_pair(value):
            return [redact_text(value[0])[0], PLACEHOLDER], 1
        options = _option_values(value)
        pairs = [
            (PLACEHOLDER, 1) if place in options else _redacted(inner, depth + 1) for place, inner in enumerate(value)
        ]
        return [shown for shown, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, int) and 10**SHORTEST <= value < 10**19 and is_card(value):
        return PLACEHOLDER, 1
    return value, 0


def hides_all(value: object, depth: int) -> bool:
    """Return whether `redact` hides a list or mapping at this depth completely."""
    return depth >= DEEPEST and isinstance(value, _BRANCHES)


def fields(value: dict[Any, object]) -> Iterator[tuple[str, object, bool]]:
    """Yield (displayable name, raw value, whether it is hidden) of each field, as `redact` decides."""
    named = _named_by_others(value)
    for name, inner in value.items():
        judged = _judged(name)
        if judged.hides(inner, named):
            yield judged.shown, inner, True
        else:
            yield judged.shown, inner, False


class _Judged(NamedTuple):
    """Classification of a field's name."""

    name: str
    is_secret: bool
    may_be_key: bool  # a key if its value looks random
    shown: str  # displayable name
    hidden: int  # number of secrets hidden in the name
    lower: str
    names: frozenset[str]  # fields that its value may mark as secret

    def hides(self, value: object, named: frozenset[str]) -> bool:
        if self.is_secret or (named and self.lower in named):
            return _is_revealing(self.name, value)
        return self.may_be_key and isinstance(value, str) and is_key(self.name, value)


def _judged(name: str) -> _Judged:
    # Return the classification, cached: all jobs of a task, and all entries of a list, have the same few names.
    return _remembered(name) if len(name) <= 100 else _judge(name)


def _judge(name: str) -> _Judged:
    lower = name.lower()
    return _Judged(
        name, is_secret_name(name), names_a_key(name), *redact_text(name), lower, _NAMED_BY.get(lower, _NONE)
    )


_remembered = lru_cache(maxsize=2048)(_judge)


def elements(value: list[object]) -> Iterator[tuple[object, bool]]:
    """Return (raw value, whether it is hidden) of each element, as `redact` decides."""
    hidden = frozenset({1}) if _is_secret_pair(value) else _option_values(value)
    return ((inner, place in hidden) for place, inner in enumerate(value))


def _is_secret_pair(value: list[object] | tuple[object, ...]) -> TypeGuard[list[str]]:
    """Return whether this is `["password", …]`, a field written as a list."""
    if len(value) != 2 or not isinstance(value[0], str):
        return False
    return is_secret_name(value[0]) and _is_revealing(value[0], value[1])


def _option_values(value: list[Any] | tuple[Any, ...]) -> frozenset[int]:
    """Return the indexes of secrets in a command written as a list: `["deploy", "--token", "…"]`."""
    for inner in value[:_LONGEST_COMMAND]:
        if isinstance(inner, str) and inner[:1] == "-":
            break
    else:
        return _NO_PLACES
    if len(value) > _LONGEST_COMMAND:
        return _NO_PLACES
    words = [inner if isinstance(inner, str) else "" for inner in value]
    joined, hidden = redact_text(json.dumps(words, ensure_ascii=False))
    if not hidden:
        return _NO_PLACES
    try:
        together = json.loads(joined)
    except ValueError:
        together = []
    if len(together) != len(words):  # a secret spans several elements
        together = [word if word and json.dumps(word, ensure_ascii=False) in joined else None for word in words]
    return frozenset(n for n, word in enumerate(words) if word and together[n] != redact_text(word)[0])


def _named_by_others(value: dict[object, object]) -> frozenset[str]:
    """Return the fields, in lower case, that another field of the object marks as secret: `{"name": "password",
    "value": …}`.
    """
    for name, inner in value.items():
        if isinstance(inner, str) and isinstance(name, str):
            names = _judged(name).names
            if names and (is_secret_name(inner) or name in ("kty", "grant_type")):
                return names
    return _NONE


def _is_revealing(name: str, value: object) -> bool:
    """Return whether the value is a secret. Empty values, true and false are not, and they explain many failures."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    return not (isinstance(value, int | float) and _AMOUNT.search(_NOT_ALPHANUMERIC.sub("", name.lower())))


def redact_text(text: str) -> tuple[str, int]:
    """Return `text` without secrets, and the number hidden."""
    if len(text) < SHORTEST and _MARK.search(text) is None:
        return text, 0
    text, keys = without_private_keys(text)
    named, words = 0, words_of(text)
    if may_name(text, words):
        text, named = without_named(text)
        text, spoken = without_sentences(text, words)
        named += spoken
    text, forms = without_known_forms(text, words)
    return text, keys + named + forms


# Secrets named in a job's arguments and repeated in its error: `login('bob', 'hunter2-x')` with `password: hunter2-x`.

MOST_VALUES = 20
_MOST_NAMED_READ = 2_000  # fields and elements
_DEEPEST_NAMED = 20
_SHORTEST, _LONGEST = 6, 4_096  # characters of a value
_SHORTEST_NUMBER, _SHORTEST_WORD, _SHORTEST_PHRASE = 9, 20, 16
# Parts of a longer text that are searched, at its start and end: more than is shown.
_HEAD, _TAIL = 60_000, 120_000

# Values of fields with a secret's name that are no secrets and explain failures: a URL, a path, an identifier, a time.
_PLAIN = re.compile(
    r"""(?x) [a-z][a-z0-9+.-]*://[^\s@?]*                     # `token_url`
    | \.{0,2}/[^\s?]*                                          # `secret_path`
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                             # an address of mail
    | [A-Za-z_]+(?:[.:/-][A-Za-z_]+)*                          # words, names of code, hosts: nothing but letters and what joins them
    | [a-z][a-z-]*\d{0,3}(?:\.[a-z0-9-]+)+(?::\d+)?            # `db1.internal:5432`
    | v?\d+(?:\.\d+)+                                          # a version
    | (?:19|20)\d\d-?\d\d-?\d\d(?:[T ][\d:.+Z-]*)?             # a time
    """
)


def named_values(*values: object) -> tuple[str, ...]:
    """Return up to MOST_VALUES texts under secret names in JSON-like values, longest first, without plain words."""
    found: dict[str, None] = {}
    reading = _Reading()
    for value in values:
        for text in _named_values(value, reading, 0, is_hidden=False):
            if _is_unmistakable(text):
                found[text] = None
                if len(found) == MOST_VALUES:
                    break
    return tuple(sorted(found, key=len, reverse=True))


def without_values(text: str, values: tuple[str, ...]) -> tuple[str, int]:
    """Return `text` without those values, also as a URL, JSON or a repr writes them, and the number of places
    hidden.
    """
    if not values or not text:
        return text, 0
    if len(text) > _HEAD + _TAIL:
        head, above = without_values(text[:_HEAD], values)
        tail, below = without_values(text[-_TAIL:], values)
        return head + text[_HEAD:-_TAIL] + tail, above + below
    present = [form for value in values for form in _spellings(value) if form in text]
    if not present:
        return text, 0
    forms = "|".join(map(re.escape, sorted(present, key=len, reverse=True)))
    # A letter after a backslash is part of an escape: `\nhunter2`.
    return re.subn(rf"(?:(?<![^\W_])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}}))(?:{forms})(?![^\W_])", PLACEHOLDER, text)


class _Reading:
    """Limit of values read, over all branches."""

    def __init__(self) -> None:
        self.left = _MOST_NAMED_READ

    def goes_on(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _named_values(value: object, reading: _Reading, depth: int, *, is_hidden: bool) -> Iterator[str]:
    if not reading.goes_on() or depth > _DEEPEST_NAMED:
        return
    if isinstance(value, str):
        if is_hidden:
            yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        if is_hidden and value.bit_length() < 400:
            yield str(value)
    elif isinstance(value, dict):
        first = {str(name): inner for name, inner in islice(value.items(), _MOST_NAMED_READ)}
        for name, inner, hides in fields(first):
            # In an object hidden as a whole, `{"credentials": {"user": …, "password": …}}`, only fields with a secret's
            # name.
            yield from _named_values(inner, reading, depth + 1, is_hidden=hides or (is_hidden and is_secret_name(name)))
    elif isinstance(value, list | tuple):
        for inner, hides in elements(list(value[:_MOST_NAMED_READ])):
            yield from _named_values(inner, reading, depth + 1, is_hidden=hides or is_hidden)


def _is_unmistakable(value: str) -> bool:
    """Return whether a value is a secret wherever it appears: long enough, and no ordinary text of a job."""
    if not _SHORTEST <= len(value) <= _LONGEST or PLACEHOLDER in value or value != value.strip():
        return False
    if value.isdigit():
        return len(value) >= _SHORTEST_NUMBER
    if any(map(str.isspace, value)):
        return len(value) >= _SHORTEST_PHRASE
    if _PLAIN.fullmatch(value):
        return value.isalpha() and len(value) >= _SHORTEST_WORD
    return True


def _spellings(value: str) -> set[str]:
    # Return the value's spellings. A Python text may contain a lone surrogate, which a URL cannot.
    in_url = (quote(value, safe="", errors="replace"), quote_plus(value, errors="replace"))
    return {value, *in_url, json.dumps(value)[1:-1], repr(value)[1:-1]}
