"""The differences between two policies, field by field, in the words of the editor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboard.policies.fields import LABELS
from dashboard.policies.forms import EXPIRES_AT, KINDS
from dashboard.web import moments

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    values: tuple[str, ...]  # before, after; of a stale edit: begun from, in force, yours


def lines(changes: Iterable[Any], *names: str) -> list[Line]:
    """`changes` carry a dotted `field` and a value under each of `names`."""
    return [
        Line(label(one.field), tuple(editor_text(one.field, getattr(one, name)) for name in names)) for one in changes
    ]


def label(path: str) -> str:
    if path in LABELS:
        parent, _, part = path.partition(".")
        return f"{LABELS[parent]}: {LABELS[path].lower()}" if part and parent in LABELS else LABELS[path]
    return path


def editor_text(path: str, value: Any) -> str:
    """Return a value of a document as the editor shows it."""
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if path == EXPIRES_AT:
        at = moments.local(datetime.fromisoformat(str(value)))
        return f"{at.isoformat(sep=' ')[:19].removesuffix(':00')} {moments.zone_name(at)}"
    if path in KINDS:
        return KINDS[path].write(value)
    if path == "classes":
        return "; ".join(f"{one.get('error')}: {str(one.get('as')).replace('_', ' ')}" for one in value)
    return str(value)
