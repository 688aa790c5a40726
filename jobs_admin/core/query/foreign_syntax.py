"""Translation of other search tools' syntax: `attempts>3` to `attempts:>3`, and `a|b` to `a OR b`.

Only suggested, never searched automatically: the same characters are common in errors.
"""

from __future__ import annotations

import re

from jobs_admin.core.query.parsing import parse
from jobs_admin.core.query.tree import NAMES, NUMBERS, QUALIFIERS, TIMES, is_argument

_MOST_PIECES = 12  # a longer text was pasted
_MOST_EQUALITIES = 3  # more of these, such as `host=10.0.0.1`, are part of an error
_COMPARED = re.compile(
    r"(-?)([a-z]+(?:\.[^\s:,()\"*=<>!|]{1,200})?)(:?)(==?|!=|>=|<=|>|<)([^\s<>=|\"][^\s\"|]{0,200})\Z"
)
_PART = re.compile(r"[^\s|\"()]{1,200}\Z")


def rewritten(text: str) -> str:
    """Return the search that was probably meant; "" if there is nothing to rewrite."""
    pieces = text.replace("||", "|").split()
    if not 0 < len(pieces) <= _MOST_PIECES:
        return ""
    meant = " ".join(filter(None, (_rewritten(piece, n, len(pieces)) for n, piece in enumerate(pieces))))
    return meant if meant != " ".join(pieces) and parse(meant).terms != parse(text).terms else ""


def _rewritten(piece: str, n: int, count: int) -> str:
    if piece == "|":
        return "OR" if 0 < n < count - 1 else ""
    if found := _COMPARED.match(piece):
        is_equality = found[4] in ("=", "==") and not is_argument(found[2])
        return piece if is_equality and count > _MOST_EQUALITIES else _compared(*found.groups()) or piece
    parts = piece.split("|")
    if len(parts) > 1 and all(_PART.match(part) for part in parts):
        name, colon, first = parts[0].partition(":")
        if not colon:
            return " OR ".join(parts)
        if name.lstrip("-") in QUALIFIERS or is_argument(name.lstrip("-")):
            fields = [part.partition(":") for part in parts[1:]]
            if all(other == name and mark for other, mark, _ in fields):
                return f"{name}:{','.join([first, *(value for _, _, value in fields)])}"
            if not any(mark for _, mark, _ in fields):
                return f"{name}:{','.join([first, *parts[1:]])}"
            return " OR ".join(parts)
    return piece


def _compared(sign: str, name: str, colon: str, operator: str, value: str) -> str:
    """Return a comparison as a qualifier; "" if it is none."""
    if operator == "!=":
        sign, operator = "-" if not sign else "", "="
    is_range = operator[0] in "<>"
    if is_argument(name):
        if is_range:
            return f"{sign}{name}:*"
        return "" if colon else f"{sign}{name}:{value}"
    if colon:
        return ""  # `attempts:>3` is already valid
    if name in (*NUMBERS, "age"):
        return f"{sign}{name}:{operator if is_range else ''}{value}"
    if name in TIMES and is_range:
        return f"{sign}{name}:{value}"
    return f"{sign}{name}:{value}" if name in NAMES and not is_range else ""
