"""Members of a JSON object as text, so that numbers keep all their digits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]

MOST = 200  # members per object
_SPACE = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(r'["{}\[\]]')
_SCALAR = re.compile(r"[^ \t\n\r,{}\[\]\":]{1,400}")


def members(text: str) -> dict[str, str] | None:
    """Return the members of a JSON object, at most `MOST`, each value as text; None if the text is not an object.

    Values are skipped without recursion, at any nesting. Raises ValueError.
    """
    at = _past_space(text, 0)
    if not text.startswith("{", at):
        return None
    found: dict[str, str] = {}
    at = _past_space(text, at + 1)
    while len(found) < MOST and not text.startswith("}", at):
        if not text.startswith('"', at):
            raise ValueError("a name was expected")
        name, at = scanstring(text, at + 1, True)
        at = _past_space(text, at)
        if not text.startswith(":", at):
            raise ValueError("no value")
        begins = _past_space(text, at + 1)
        at = _end_of(text, begins)
        found[name] = text[begins:at]
        at = _past_space(text, at)
        if text.startswith(",", at):
            at = _past_space(text, at + 1)
        elif not text.startswith("}", at):
            raise ValueError("no end")
    return found


def write(value: object) -> str:
    """Return a value as JSON text, as for `join_members`."""
    return json.dumps(value, separators=(",", ":"))


def join_members(parts: Mapping[str, str]) -> str:
    """Return the JSON object with these members."""
    return "{" + ",".join(f"{write(name)}:{text}" for name, text in parts.items()) + "}"


def _past_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too


def _end_of(text: str, at: int) -> int:
    if text.startswith('"', at):
        return int(scanstring(text, at + 1, True)[1])
    if not text.startswith(("{", "["), at):
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError("no value")
        return found.end()
    depth = 0
    while (mark := _MARK.search(text, at)) is not None:
        if mark[0] == '"':
            at = scanstring(text, mark.end(), True)[1]
            continue
        at = mark.end()
        depth += 1 if mark[0] in "{[" else -1
        if depth == 0:
            return at
    raise ValueError("no end")
