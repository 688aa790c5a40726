"""Views of a JSON value, piece by piece.

A raw message's pieces are redacted when read, so a 5 MB message opens at once.

Both kinds of piece have the same interface. `Plain` is for values already redacted (the display copy) and input just
typed; `Veiled` is for a message's own values, and shows what `redact` would show of the complete message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

from jobs_admin.core.redaction import PLACEHOLDER, SHORTEST, TOO_DEEP, elements, fields, hides_all, redact

# A secret cut off at the end of the shown text is recognised by the text after it.
_SLACK = 4_096


class Piece(Protocol):
    """A value: a scalar, or a list or mapping with entries."""

    size: int  # number of entries, or characters of a text
    is_branch: bool  # a list or mapping whose entries may be shown

    @property
    def kind(self) -> str:
        """text, number, boolean, null, list, object, hidden."""

    def entries(self, start: int = 0) -> Iterator[tuple[str, Piece]]:
        """Yield (name or index, piece) from entry `start`, counted from 0; nothing for a scalar."""

    def text(self, longest: int | None = None) -> str:
        """Return a scalar as text: at most `longest` characters of a text, JSON of other values; "" for a list or
        mapping.
        """

    def holds(self, words: str) -> bool:
        """Return whether a scalar's text contains these words, given in lower case."""

    def same(self, other: Piece) -> bool:
        """Return whether both have the same JSON value: `1`, `1.0` and `true` differ."""

    def digest(self) -> str:
        """Return a digest that is equal exactly for pieces that are the `same`; it reveals nothing of the value."""


class Plain:
    """A piece of a value that may be shown unchanged."""

    __slots__ = ("is_branch", "size", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.is_branch = isinstance(value, list | dict)
        self.size = len(value) if isinstance(value, str | list | dict) else 0

    @property
    def kind(self) -> str:
        return kind_of(self.value)

    def entries(self, start: int = 0) -> Iterator[tuple[str, Piece]]:
        if isinstance(self.value, dict):
            for name, inner in islice(self.value.items(), start, None):
                yield name, Plain(inner)
        elif isinstance(self.value, list):
            for place, inner in enumerate(islice(self.value, start, None), start):
                yield str(place), Plain(inner)

    def text(self, longest: int | None = None) -> str:
        return _words(self.value, longest)

    def holds(self, words: str) -> bool:
        return words in self.text().lower()

    def same(self, other: Piece) -> bool:
        return isinstance(other, Plain) and _same(self.value, other.value)

    def digest(self) -> str:
        return _digest(self.value)


class Veiled:
    """A piece of a raw value at level `depth`. Hidden parts are never returned."""

    __slots__ = ("_depth", "_mark", "_value", "is_branch", "size")

    def __init__(self, value: Any, depth: int = 0, *, is_hidden: bool = False) -> None:
        self._value, self._depth = value, depth
        self._mark = PLACEHOLDER if is_hidden else TOO_DEEP if hides_all(value, depth) else ""
        self.is_branch = isinstance(value, list | dict) and not self._mark
        self.size = 0 if self._mark or not isinstance(value, str | list | dict) else len(value)

    @property
    def kind(self) -> str:
        if self._mark:
            return "hidden"
        if _is_plain(self._value):
            return kind_of(self._value)
        # Texts are only searched for secrets when read, and when a page shows them.
        if isinstance(self._value, str | int | float) and is_hidden_text(self.text(1_000)):
            return "hidden"
        return kind_of(self._value)

    def entries(self, start: int = 0) -> Iterator[tuple[str, Piece]]:
        if not self.is_branch:
            return
        if isinstance(self._value, dict):
            for name, inner, is_hidden in islice(fields(self._value), start, None):
                yield name, Veiled(inner, self._depth + 1, is_hidden=is_hidden)
        else:
            for place, (inner, is_hidden) in enumerate(islice(elements(self._value), start, None), start):
                yield str(place), Veiled(inner, self._depth + 1, is_hidden=is_hidden)

    def text(self, longest: int | None = None) -> str:
        if self._mark:
            return self._mark
        value = self._value
        if _is_plain(value):
            return _words(value, longest)
        if isinstance(value, str) and longest is not None:
            value = value[: longest + _SLACK]
        return _words(redact(value)[0], longest) if not isinstance(value, list | dict) else ""

    def holds(self, words: str) -> bool:
        # Most texts do not match, which is known without redaction; a match is confirmed in the redacted text.
        return not self._mark and words in _words(self._value, None).lower() and words in self.text().lower()

    def same(self, other: Piece) -> bool:
        return isinstance(other, Veiled) and _same(self._value, other._value)

    def digest(self) -> str:
        return _digest(self._value)


def build_display(piece: Piece) -> Any:
    """Return the complete displayable value, to be written as JSON."""
    kind = piece.kind
    if kind == "object":
        return {name: build_display(inner) for name, inner in piece.entries()}
    if kind == "list":
        return [build_display(inner) for _, inner in piece.entries()]
    if kind in {"text", "hidden"}:
        return piece.text()
    return json.loads(piece.text())


def _is_plain(value: object) -> bool:
    """Return whether `redact` leaves the value unchanged, without calling it: large messages consist mostly of such
    values.
    """
    return value is None or isinstance(value, float) or (isinstance(value, int) and value < 10**SHORTEST)


def kind_of(value: object) -> str:
    if isinstance(value, str):
        return "hidden" if is_hidden_text(value) else "text"
    for types, kind in ((bool, "boolean"), (int | float, "number"), (list, "list"), (dict, "object")):
        if isinstance(value, types):
            return kind
    return "null"


def is_hidden_text(text: str) -> bool:
    """Return whether part of the text was hidden."""
    return PLACEHOLDER in text or text == TOO_DEEP


def _words(value: Any, longest: int | None) -> str:
    if isinstance(value, str):
        return value if longest is None else value[:longest]
    return "" if isinstance(value, list | dict) else json.dumps(value)


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True)
    except RecursionError:
        text = str(id(value))
    return hashlib.sha256(text.encode()).hexdigest()


def _same(one: Any, other: Any) -> bool:
    """Compare without recursion, so that values of any nesting that JSON can parse are compared."""
    waiting = [(one, other)]
    while waiting:
        one, other = waiting.pop()
        if one is other:
            continue
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            if one.keys() != other.keys():
                return False
            waiting.extend((inner, other[name]) for name, inner in one.items())
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif one != other if not isinstance(one, float) else repr(one) != repr(other):  # -0.0 and 0.0 differ as JSON
            return False
    return True
