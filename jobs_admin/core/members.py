"""JSON text with some of its members changed, and every other byte as it was.

Parsed and written anew, a message has the same meaning but not the same bytes: numbers, escapes and spaces are written
in as many ways as there are languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

Path = tuple[str, ...]

_WHITE = " \t\n\r"
_value_at = JSONDecoder().raw_decode


class _Member(NamedTuple):
    name: str
    start: int  # of its name's quote
    value: int
    end: int


def changed(text: str, changes: Mapping[Path, str | None]) -> str:
    """`text`, a JSON object, with JSON text put at each path, or the member there taken out (None).

    A last step that is not there is added at the end of its object; a path through something that is no object, or is not
    there, changes nothing. Of a name that stands twice in an object, both change. Raises ValueError (or RecursionError)
    where the text is not a JSON object.
    """
    start = _skipped(text, 0)
    new, end = _object(text, start, changes)
    if _skipped(text, end) != len(text):
        raise ValueError("more than one JSON value")
    return text[:start] + new + text[end:]


def _object(text: str, at: int, changes: Mapping[Path, str | None]) -> tuple[str, int]:
    """The object that begins at `at`, changed, and where it ends."""
    members, end = _members(text, at)
    if not changes:
        return text[at:end], end
    kept: list[str] = []
    last = at + 1
    for member in members:
        between, last = text[last : member.start], member.end
        value = _value(text, member, changes)
        if value is not None:
            kept.append((between if kept else "") + text[member.start : member.value] + value)
    known = {member.name for member in members}
    for path, value in changes.items():
        if len(path) == 1 and path[0] not in known and value is not None:
            kept.append((", " if kept else "") + f"{dumps(path[0])}: {value}")
    lead = text[at + 1 : members[0].start] if members else ""
    return "{" + lead + "".join(kept) + text[last : end - 1] + "}", end


def _value(text: str, member: _Member, changes: Mapping[Path, str | None]) -> str | None:
    if (member.name,) in changes:
        return changes[member.name,]
    inner = {path[1:]: value for path, value in changes.items() if path[0] == member.name and len(path) > 1}
    if inner and text[member.value] == "{":
        return _object(text, member.value, inner)[0]
    return text[member.value : member.end]


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    if text[at : at + 1] != "{":
        raise ValueError("no JSON object")
    found: list[_Member] = []
    at = _skipped(text, at + 1)
    while text[at : at + 1] != "}":
        if found:
            if text[at : at + 1] != ",":
                raise ValueError("no comma between two members")
            at = _skipped(text, at + 1)
        if text[at : at + 1] != '"':
            raise ValueError("a member without a name")
        name, colon = scanstring(text, at + 1)
        colon = _skipped(text, colon)
        if text[colon : colon + 1] != ":":
            raise ValueError("no colon behind a name")
        value = _skipped(text, colon + 1)
        _, end = _value_at(text, value)
        found.append(_Member(name, at, value, end))
        at = _skipped(text, end)
    return found, at + 1


def _skipped(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITE and at < len(text):
        at += 1
    return at
