"""Message of a job's next attempt: the bytes of the previous one except for the members that must change.

Parsing and serialising would keep the meaning but change the bytes: each language writes numbers, escapes and spaces
differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json import JSONDecoder, dumps
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple
from uuid import uuid4

Path = tuple[str, ...]

_WHITE = " \t\n\r"
_value_at = JSONDecoder().raw_decode


class _Member(NamedTuple):
    name: str
    start: int  # of the name's opening quote
    value: int
    end: int


def changed(text: str, changes: Mapping[Path, str | None]) -> str:
    """Return `text`, a JSON object, with JSON text inserted at each path, or the member removed (None).

    A missing last step is added at the end of its object; a path through a missing member or a non-object changes
    nothing. If a name occurs twice in an object, both change. Raises ValueError or RecursionError if the text is not a
    JSON object.
    """
    start = _skipped(text, 0)
    new, end = _object(text, start, changes)
    if _skipped(text, end) != len(text):
        raise ValueError("more than one JSON value")
    return text[:start] + new + text[end:]


def _object(text: str, at: int, changes: Mapping[Path, str | None]) -> tuple[str, int]:
    """Return the object that starts at `at`, changed, and its end."""
    members, end = _members(text, at)
    if not changes:
        return text[at:end], end
    pieces: list[str] = []
    last = at + 1
    for member in members:
        between, last = text[last : member.start], member.end
        value = _value(text, member, changes)
        if value is not None:
            pieces.append((between if pieces else "") + text[member.start : member.value] + value)
    known = {member.name for member in members}
    for path, value in changes.items():
        if len(path) == 1 and path[0] not in known and value is not None:
            pieces.append((", " if pieces else "") + f"{dumps(path[0])}: {value}")
    lead = text[at + 1 : members[0].start] if members else ""
    return "{" + lead + "".join(pieces) + text[last : end - 1] + "}", end


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


WAITED = "redrive_waited"  # header: seconds waited before this attempt, if the next delay depends on it
# Headers of a job that is or was on hold by a breaker: the breaker, start of the hold (Unix ms), failures after a
# release while others succeeded, and the ticket that lets it start.
HOLD, HOLD_SINCE, HOLD_FAILED, TICKET = "redrive_held", "redrive_held_since", "redrive_held_failed", "redrive_ticket"
OWN_HEADERS = frozenset({WAITED, HOLD, HOLD_SINCE, HOLD_FAILED, TICKET})

# Fields that the broker wrote on the last delivery: wrong on a message that was not fetched yet.
_OF_THE_BROKER = (
    ("headers", "redelivered"),
    ("headers", "x-death"),
    ("headers", "x-delivery-count"),
    ("headers", "x-first-death-exchange"),
    ("headers", "x-first-death-queue"),
    ("headers", "x-first-death-reason"),
    ("headers", "x-last-death-exchange"),
    ("headers", "x-last-death-queue"),
    ("headers", "x-last-death-reason"),
    ("properties", "delivery_info", "redelivered"),
)


# Field of a replay to RabbitMQ (`once.py`): the new message is no second copy, though it may be the same attempt.
_OF_THE_REPLAY = (("headers", "redrive", "once"),)


class NotCelerys(ValueError):
    """The message has no headers of Celery's protocol 2, so it cannot count attempts."""


def next_message(
    raw: bytes, retries: int, waited_s: float | None = None, hold: tuple[str, int, int] | None = None
) -> bytes:
    """Return `raw` as the next delivery, with Celery's retry count correct for every worker, guarded or not.

    It gets a new delivery tag, the key of unacknowledged messages in kombu. `hold`: values of `HOLD`, `HOLD_SINCE` and
    `HOLD_FAILED`. Raises NotCelerys.
    """
    changes: dict[tuple[str, ...], str | None] = dict.fromkeys(_OF_THE_BROKER + _OF_THE_REPLAY)
    changes.update(dict.fromkeys(("headers", name) for name in (HOLD_SINCE, HOLD_FAILED, TICKET)))
    if hold is not None:
        names = (("headers", name) for name in (HOLD, HOLD_SINCE, HOLD_FAILED))
        changes.update(zip(names, map(json.dumps, hold), strict=True))
    changes["headers", "retries"] = str(retries)
    changes["properties", "delivery_tag"] = json.dumps(str(uuid4()))
    if waited_s is not None:
        changes["headers", WAITED] = json.dumps(waited_s)  # exact: three times this value limits the next delay
    try:
        text = raw.decode("utf-8", "surrogateescape")
        if not json.loads(text)["headers"].get("task"):
            raise NotCelerys("its message is of Celery's first protocol")
        return changed(text, changes).encode("utf-8", "surrogateescape")
    except NotCelerys:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NotCelerys("its message cannot be read") from error


def with_ticket(message: bytes, ticket: str) -> bytes:
    """Return a held job's message as released. Raises ValueError or RecursionError if it cannot be read."""
    text = message.decode("utf-8", "surrogateescape")
    return changed(text, {("headers", TICKET): json.dumps(ticket)}).encode("utf-8", "surrogateescape")
