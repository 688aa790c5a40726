"""A job as Python code, to paste into a shell of the application: correct for any JSON, and safe against accidents.

Redacted or truncated values become an undefined name (`REDACTED`), so that Python stops with a NameError and no
placeholder is ever charged, mailed or written.
"""

from __future__ import annotations

import json
import math
from typing import Any

from jobs_admin.core.redacted_view import Piece
from jobs_admin.core.text import marked, representable

DEEPEST = 60  # Python's own parser stops at about 90 brackets
DEEPEST_INDENT = 10  # levels: a list of a million entries below sixty levels would need 240 MB of indentation
_LONGEST_LINE = 88
_CUT = ("… (cut)", "… nested too deep to show …", " more …", " bits …", "too many to show …", " more")


def send_task(task: str, queue: str | None, args: Piece, kwargs: Piece, notes: list[str]) -> str:
    """Return a call of `app.send_task`; `notes` are comment lines that identify the job.

    Without a queue the call names none, and the app routes the task as for its own calls.
    """
    writer = _Writer()
    call = [
        f"    {_string(task)},",
        f"    args={writer.literal(args, 1)},",
        f"    kwargs={writer.literal(kwargs, 1)},",
        *([] if queue is None else [f"    queue={_string(queue)},"]),
    ]
    lines = [comment(line) for line in notes]
    for count, word, name in ((writer.hidden, "hidden", "REDACTED"), (writer.cut, "cut", "CUT")):
        if count:
            are = "1 value is" if count == 1 else f"{count:,} values are"
            lines.append(f"# {are} {word}: replace {name} with the real value. Python raises an error until then.")
    lines.append("# Run it where your app is loaded, such as in `celery -A PROJECT shell`.")
    lines += ["from celery import current_app as app", "", "app.send_task(", *call, ")"]
    return "\n".join(lines) + "\n"


def comment(text: str) -> str:
    """Return `text` as a one-line comment, whatever it contains: a bare carriage return would end a comment."""
    return f"# {' '.join(marked(representable(text)).split())}"


def _string(text: str) -> str:
    """Return a string literal without invisible characters and line ends."""
    quoted = repr(text)
    return f'"{quoted[1:-1]}"' if quoted[0] == "'" and '"' not in quoted else quoted


class _Writer:
    def __init__(self) -> None:
        self.hidden = self.cut = 0

    def literal(self, piece: Piece, level: int) -> str:
        """Return a literal, with one entry per line if it is long."""
        kind = piece.kind
        if kind == "object":
            inside = [f"{self._name(name)}: {self._inner(one, level)}" for name, one in piece.entries()]
            return _bracketed("{", inside, "}", level)
        if kind == "list":
            return _bracketed("[", [self._inner(one, level) for _, one in piece.entries()], "]", level)
        return self._scalar(piece, kind)

    def _inner(self, piece: Piece, level: int) -> str:
        if level >= DEEPEST and piece.kind in {"list", "object"}:
            self.cut += 1
            return "CUT"
        return self.literal(piece, level + 1)

    def _name(self, name: str) -> str:
        if "[redacted]" in name:
            self.hidden += 1
            return "REDACTED" if name == "[redacted]" else f"REDACTED({_string(name)})"
        if name == "…":
            self.cut += 1
            return "CUT"
        return _string(name)

    def _scalar(self, piece: Piece, kind: str) -> str:
        text = piece.text()
        if kind == "hidden":
            self.hidden += 1
            return "REDACTED" if text == "[redacted]" else f"REDACTED({_string(text)})"
        if kind == "text":
            if text.endswith(_CUT) and "…" in text:
                self.cut += 1
                return f"CUT({_string(text)})"
            return _string(text)
        value: Any = json.loads(text)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)


def _bracketed(opening: str, inside: list[str], closing: str, level: int) -> str:
    if sum(map(len, inside)) <= _LONGEST_LINE:  # otherwise not joined just to measure it: it may have megabytes
        short = ", ".join(inside)
        if len(short) <= _LONGEST_LINE and "\n" not in short:
            return f"{opening}{short}{closing}"
    indent = "    " * min(level + 1, DEEPEST_INDENT)
    return f"{opening}\n{''.join(f'{indent}{one},{chr(10)}' for one in inside)}{indent[4:]}{closing}"
