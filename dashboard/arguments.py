"""A job's arguments on a page: a tree that opens piece by piece, the job as a Python call, the difference of an edit.

Everything here works on the display copy: JSON text that the worker redacted and cut to size. A copy that
is not JSON (cut in the middle, or nested too deep to read) is shown as the text it is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs_admin.core.redaction import PLACEHOLDER, TOO_DEEP

# What one answer may hold: beyond it a branch stays shut until it is asked for.
MOST_LINES = 200
DEEPEST = 8
LONGEST_TEXT = 600
OPEN_ENTRIES = 12  # a branch that holds more begins shut


class NotJson(ValueError):
    """The display copy cannot be read as JSON."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree, in the order of the page."""

    what: str  # leaf, open, close, folded, more
    key: str = ""
    kind: str = ""  # of the value: text, number, boolean, null, list, object, hidden
    text: str = ""  # a leaf's value as JSON, or what a branch holds: "3 entries"
    at: str = ""  # JSON pointer (RFC 6901) of what opens on demand
    start: int = 0  # for `more`: the first entry that is not shown yet
    is_open: bool = True  # a branch that is short and not deep


def read(text: str) -> Any:
    """The value in a display copy. Raises NotJson."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def is_hidden(value: object) -> bool:
    """Whether the worker put its mark in the place of a secret, or of a part of the text."""
    return isinstance(value, str) and (PLACEHOLDER in value or value == TOO_DEEP)


def tree(value: Any, at: str = "", start: int = 0) -> list[Line]:
    """The lines for the entries of `value` from number `start` (from 0), at most MOST_LINES of them."""
    if not isinstance(value, list | dict):
        return [Line("leaf", kind=kind_of(value), text=_whole_text(value))]
    return list(_entries(value, at, start, 0, _Budget(MOST_LINES)))


def find(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer. Raises KeyError where there is none."""
    value = document
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise KeyError(pointer) from error
    return value


def kind_of(value: object) -> str:
    if is_hidden(value):
        return "hidden"
    for types, kind in ((bool, "boolean"), (str, "text"), (int | float, "number"), (list, "list"), (dict, "object")):
        if isinstance(value, types):
            return kind
    return "null"


class _Budget:
    def __init__(self, lines: int) -> None:
        self.left = lines


def _entries(value: list[Any] | dict[str, Any], at: str, start: int, depth: int, budget: _Budget) -> Iterator[Line]:
    pairs = list(value.items()) if isinstance(value, dict) else [(str(n), one) for n, one in enumerate(value)]
    for n, (key, one) in enumerate(pairs[start:], start):
        if budget.left <= 0:
            yield Line("more", text=f"{len(pairs) - n:,} more", at=at, start=n)
            return
        budget.left -= 1
        here = f"{at}/{key.replace('~', '~0').replace('/', '~1')}"
        kind = kind_of(one)
        if kind not in {"list", "object"} or not one:
            yield _leaf(key, kind, one, here)
        elif depth >= DEEPEST or _is_heavier(one, budget.left):
            yield Line("folded", key, kind, _holds(one), here)
        else:
            yield Line("open", key, kind, _holds(one), is_open=depth < 2 and len(one) <= OPEN_ENTRIES)
            yield from _entries(one, here, 0, depth + 1, budget)
            yield Line("close")


def _leaf(key: str, kind: str, value: object, at: str) -> Line:
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        head = json.dumps(value[:LONGEST_TEXT], ensure_ascii=False)[:-1]
        return Line("long", key, kind, f"{head}… {len(value):,} characters", at)
    return Line("leaf", key, kind, value if kind == "hidden" else json.dumps(value, ensure_ascii=False))


def _whole_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _holds(value: list[Any] | dict[str, Any]) -> str:
    return "1 entry" if len(value) == 1 else f"{len(value):,} entries"


def _is_heavier(value: object, limit: int) -> bool:
    """Whether a branch holds more than `limit` values. Looks at no more than that many."""
    seen, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        inside = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
        seen += len(inside)
        if seen > limit:
            return True
        waiting.extend(inside)
    return False


def python_call(task: str, args: str, kwargs: str) -> str:
    """The job as a call to paste into a shell of the application."""
    positional, named = read(args or "[]"), read(kwargs or "{}")
    parts = [repr(value) for value in positional]
    if all(str(name).isidentifier() for name in named):
        parts += [f"{name}={value!r}" for name, value in named.items()]
    else:
        parts.append(f"**{named!r}")
    return f"from celery import current_app\n\ncurrent_app.tasks[{task!r}]({', '.join(parts)})\n"


def pretty(text: str) -> str:
    """A display copy indented for reading and editing. Raises NotJson."""
    return json.dumps(read(text), indent=2, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Changed:
    """One line of a difference."""

    what: str  # same, added, removed, gap
    text: str

    @property
    def sign(self) -> str:
        return {"added": "+", "removed": "−", "gap": "⋯"}.get(self.what, " ")


def difference(before: Any, after: Any) -> list[Changed]:
    """What an edit changes, line by line of the indented JSON. Empty where nothing changes."""
    old, new = (json.dumps(value, indent=2, ensure_ascii=False).split("\n") for value in (before, after))
    found = []
    for line in list(difflib.unified_diff(old, new, n=3, lineterm=""))[2:]:
        if line.startswith("@@"):
            if found:
                found.append(Changed("gap", ""))
            continue
        found.append(Changed({"+": "added", "-": "removed"}.get(line[0], "same"), line[1:]))
    return found
