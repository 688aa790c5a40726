"""Reads the fields of a JSON object one by one, and remembers everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import category

_MOST_NAMES = 20  # of unknown fields that are told


@dataclass(frozen=True, slots=True)
class Problem:
    field: str  # its path, such as backoff.first_delay_s or classes.0.error; "" is the document itself
    message: str  # a sentence that stands alone
    bound: str = ""  # what it must be, such as "0 to 2,592,000 seconds"


class Reading:
    """One object of a document. Every reader answers with the default where the field is missing, null or wrong.

    So the whole document is read whatever is wrong with parts of it, and all problems are told at once.
    """

    def __init__(self, value: object, path: str, problems: list[Problem], unknown: list[str]) -> None:
        self._path, self._problems, self._unknown = path, problems, unknown
        self._is_object = isinstance(value, dict)
        self._fields: dict[Any, Any] = value if isinstance(value, dict) else {}
        if not self._is_object:
            self.refuse("", "an object")

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def is_fine(self, *names: str) -> bool:
        """Whether nothing was wrong with these fields, or with what is in them."""
        paths = [self._at(name) for name in names]
        return not any(f"{p.field}.".startswith(f"{at}.") for p in self._problems for at in paths)

    def number(self, name: str, least: float, most: float, default: float, unit: str) -> float:
        """A finite number within the bounds. A truth value or a text is no number."""
        value = self._take(name)
        return default if value is None else self._number(name, value, least, most, default, unit)

    def whole(self, name: str, least: int, most: int, default: int, unit: str) -> int:
        value = self._take(name)
        if value is None:
            return default
        if not _is_number(value) or not least <= value <= most or value != int(value):
            self.refuse(name, f"a whole number from {least:,} to {most:,}{unit and f' {unit}'}", value)
            return default
        return int(value)

    def numbers(self, name: str, least: float, most: float, longest: int, unit: str) -> tuple[float, ...]:
        found = self._list(name, longest)
        return tuple(self._number(f"{name}.{n}", one, least, most, least, unit) for n, one in enumerate(found))

    def parts(self, name: str, longest: int) -> list[Reading]:
        found = self._list(name, longest)
        return [Reading(one, f"{self._at(name)}.{n}", self._problems, self._unknown) for n, one in enumerate(found)]

    def part(self, name: str) -> Reading | None:
        """The object in this field; None where there is none."""
        value = self._take(name)
        return None if value is None else Reading(value, self._at(name), self._problems, self._unknown)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}", value)
            return default
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "true or false", value)
        return value if isinstance(value, bool) else default

    def text(self, name: str, longest: int, default: str, *, lines: bool = False) -> str:
        """Text that can be stored and shown anywhere: no control characters, no halves of characters."""
        value = self._take(name)
        if value is None:
            return default
        bound = f"a text of at most {longest:,} characters{'' if lines else ' on one line'}, without control characters"
        if not isinstance(value, str) or len(value) > longest or not _is_clean(value, lines):
            self.refuse(name, bound, value)
            return default
        return value

    def refuse(self, name: str, bound: str, value: object = None, because: str = "") -> None:
        """Note that a field must be something else."""
        field = self._at(name)
        was = "" if value is None else f" It is {_shown(value)}."
        self._problems.append(
            Problem(field, f"{field or 'A policy'} must be {bound}.{because and f' {because}'}{was}", bound)
        )

    def needs(self, name: str, bound: str) -> None:
        """Note that a field is missing."""
        if not self._is_object:
            return
        field = self._at(name)
        self._problems.append(Problem(field, f"{field} is missing: it must be {bound}.", bound))

    def done(self, names: Sequence[str]) -> None:
        """All was read: what else the object holds is unknown."""
        others = [name for name in self._fields if name not in names and self._fields[name] not in (None, [])]
        self._unknown.extend(self._at(repr(str(name)[:40])[1:-1]) for name in others[:_MOST_NAMES])

    def has_not(self, names: Sequence[str], kind: str) -> None:
        """Refuse fields that would mean something in another kind, and nothing in this one."""
        for name in names:
            if self._fields.get(name) not in (None, []):
                field = self._at(name)
                self._problems.append(
                    Problem(field, f"{field} means nothing where the kind is {kind}. Leave it out.", "left out")
                )

    def _take(self, name: str) -> Any:
        return self._fields.get(name)

    def _number(self, name: str, value: Any, least: float, most: float, default: float, unit: str) -> float:
        if not _is_number(value) or not least <= value <= most:  # also false for NaN
            self.refuse(name, f"a number from {least:,g} to {most:,.10g}{unit and f' {unit}'}", value)
            return default
        return float(value)

    def _list(self, name: str, longest: int) -> list[Any]:
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > longest:
            self.refuse(name, f"a list of at most {longest:,}", value)
            return []
        return value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path and name else self._path or name


def _is_number(value: Any) -> Any:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_clean(value: str, lines: bool) -> bool:
    if not lines:
        return value.isprintable()
    return all(c in "\n\r\t" or category(c) not in ("Cc", "Cs") for c in value)


def _shown(value: object) -> str:
    """What was written, short enough to be quoted. An int of a million digits cannot even be written out."""
    if isinstance(value, str):
        return f"a text of {len(value):,} characters" if len(value) > 60 else repr(value)
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1:,} digits"
    return repr(value)[:60]
