"""Secrets that a job's own arguments name, wherever its error repeats them: `login('bob', 'hunter2-x')` under `password: hunter2-x`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from urllib.parse import quote, quote_plus

from jobs_admin.core.redaction import PLACEHOLDER, elements, fields
from jobs_admin.core.secret_fields import is_secret_name

__all__ = ["named_values", "without_values"]

MOST_VALUES = 20
_MOST_READ = 2_000  # fields and elements
_DEEPEST = 20
_SHORTEST, _LONGEST = 6, 4_096  # characters of a value
_SHORTEST_NUMBER, _SHORTEST_WORD, _SHORTEST_PHRASE = 9, 20, 16
# Of a longer text so much of its beginning and end is searched: more than is shown of one.
_HEAD, _TAIL = 60_000, 120_000

# What a field with a secret's name may hold that is none, and that explains failures: an address, a path, a name of code, a time.
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
    """Up to MOST_VALUES texts that stand under secret names in JSON-like values, the longest first; none that is a plain word."""
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
    """`text` without those values, also as a URL, JSON or a repr writes them, and how many places were hidden."""
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
    # Behind a backslash a letter is part of an escape: `\nhunter2`.
    return re.subn(rf"(?:(?<![^\W_])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}}))(?:{forms})(?![^\W_])", PLACEHOLDER, text)


class _Reading:
    """The number of values that may still be read, over all branches."""

    def __init__(self) -> None:
        self.left = _MOST_READ

    def goes_on(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _named_values(value: object, reading: _Reading, depth: int, *, is_hidden: bool) -> Iterator[str]:
    if not reading.goes_on() or depth > _DEEPEST:
        return
    if isinstance(value, str):
        if is_hidden:
            yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        if is_hidden and value.bit_length() < 400:
            yield str(value)
    elif isinstance(value, dict):
        first = {str(name): inner for name, inner in islice(value.items(), _MOST_READ)}
        for name, inner, hides in fields(first):
            # Of an object that is hidden whole, `{"credentials": {"user": …, "password": …}}`, what is named so itself.
            yield from _named_values(inner, reading, depth + 1, is_hidden=hides or (is_hidden and is_secret_name(name)))
    elif isinstance(value, list | tuple):
        for inner, hides in elements(list(value[:_MOST_READ])):
            yield from _named_values(inner, reading, depth + 1, is_hidden=hides or is_hidden)


def _is_unmistakable(value: str) -> bool:
    """Return whether a value is a secret wherever it stands: long enough, and nothing that a job may say otherwise."""
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
    # A text of Python may hold half a pair of surrogates, which no URL can.
    in_url = (quote(value, safe="", errors="replace"), quote_plus(value, errors="replace"))
    return {value, *in_url, json.dumps(value)[1:-1], repr(value)[1:-1]}
