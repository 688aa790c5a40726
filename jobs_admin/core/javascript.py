"""A JavaScript stack as text, read: what V8 writes into `error.stack`, which is also what BullMQ keeps of a failed attempt.

The error stands first, then its frames, the innermost first. What an error was caused by (`error.cause`) is not in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_AT = "\n    at "
_MOST_FRAMES = 100  # V8 writes ten, unless it is told otherwise
_LONGEST = 2_000  # characters of a line
# `TypeError: text`, `AxiosError`, `TypeError [ERR_INVALID_ARG_TYPE]: text`
_HEAD = re.compile(r"(?:Uncaught )?([A-Za-z_$][\w.$]{0,200})(?: \[\w{1,100}\])?(?:: |:?\Z|(?=\n))")
_PLACE = re.compile(r"(.{1,1000}?)(?:\?[^/\\]{0,200})?:(\d{1,9}):\d{1,9}\Z")
_SCHEME = re.compile(r"file://(?=/)|webpack-internal:/{3}|webpack://[^/]{0,100}/|(?:\([\w-]{1,20}\)/)")
_LIBRARY = re.compile(
    r"(?:^|/)node_modules/|/\.yarn/|^(?:node|bun|ext|deno|wasm|npm):|^internal/|^bootstrap_node|^evalmachine\.|^<|^native\Z"
)
_RECEIVER = re.compile(r".*[.#](?=[^.#\]]+\Z)")


@dataclass(frozen=True, slots=True)
class Call:
    """One line `at …`. `line` is 0 where the engine knows none (`native`, `<anonymous>`)."""

    file: str
    line: int
    function: str
    is_application: bool  # False: of Node itself or of a package


@dataclass(frozen=True, slots=True)
class Stack:
    error: str  # the type as printed; "" where the text does not begin with one
    said: str
    calls: tuple[Call, ...]  # the innermost first


def stack_of(text: str) -> Stack | None:
    """What a stack says; None where the text is none. Linear in the text, whatever it is."""
    place = _first_call(text)
    if place < 0:
        return None
    calls = [_call(line) for line in text[place + 1 :].split("\n", _MOST_FRAMES)[:_MOST_FRAMES] if _is_call(line)]
    error, said = error_of(text[:place])
    return Stack(error, said, tuple(calls))


def error_of(head: str) -> tuple[str, str]:
    """Type and words of `TypeError: text`; ("", head) where it begins with no type."""
    found = _HEAD.match(head)
    if found is None or not (found[1][:1].isupper() or found[1].endswith("Error")):
        return "", head
    return found[1], head[found.end() :].strip()


def without_message(text: str, message: str) -> str:
    """The stack without the message at its head, where that only repeats `message`."""
    place = _first_call(text)
    error, said = error_of(text[:place]) if place >= 0 else ("", "")
    if not error or not said or said != message.strip():
        return text
    return f"{text[: text.index(said, len(error))].rstrip().removesuffix(':')}{text[place:]}"


def apart(text: str, most: int = 100) -> list[str]:
    """Stacks that were joined by line ends, the first first: at most the last so many, and what stands before them in one."""
    found: list[str] = []
    end = len(text)
    while len(found) < most - 1:
        place = _first_call(text[:end])
        before = text.rfind(_AT, 0, place) if place > 0 else -1
        if before < 0:
            break
        begins = text.find("\n", before + 1) + 1
        found.append(text[begins:end])
        end = begins - 1
    return [text[:end], *reversed(found)] if text else []


def _first_call(text: str) -> int:
    """Where the frames begin; -1 where there are none. Of a message that looks like frames, its own are the last in a row."""
    if text.startswith(_AT[1:]):
        return -1
    place = end = text.rfind(_AT)
    # Upwards over the lines that stand without a gap: what a message of several lines says above them is not a call.
    while place > 0:
        above = text.rfind("\n", 0, place)
        if above < 0 or not text.startswith(_AT, above):
            break
        place = end = above
    return end


def _is_call(line: str) -> bool:
    return line.startswith(_AT[1:]) and len(line) <= _LONGEST


def _call(line: str) -> Call:
    said = line.strip().removeprefix("at ").removeprefix("async ").removeprefix("new ")
    function = ""
    if said.endswith(")") and " (" in said:
        function, _, said = said[:-1].partition(" (")
    found = _PLACE.match(said)
    file = _SCHEME.sub("", found[1] if found else said, count=2)
    is_library = found is None or _LIBRARY.search(file.replace("\\", "/")) is not None
    return Call(file, int(found[2]) if found else 0, _name(function), not is_library)


def _name(function: str) -> str:
    """A function's own name: by what object it was called changes with releases, of Node and of libraries."""
    own = function.partition(" [as ")[0].strip()
    return _RECEIVER.sub("", own) or "<anonymous>"
