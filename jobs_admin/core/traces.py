"""Parser of tracebacks: frames and exceptions of the chain. Python, and JavaScript in V8's `error.stack` format.

A JavaScript stack starts with the error, then its frames, innermost first; it does not contain `error.cause`. Nothing
is evaluated here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jobs_admin.core.normalising import MOST_MESSAGE

_AT = "\n    at "
_MOST_FRAMES = 100  # V8 writes ten by default
_LONGEST = 2_000  # characters of a line
# `TypeError: text`, `AxiosError`, `TypeError [ERR_INVALID_ARG_TYPE]: text`
_HEAD = re.compile(r"(?:Uncaught )?([A-Za-z_$][\w.$]{0,200})(?: \[\w{1,100}\])?(?:: |:?\Z|(?=\n))")
_PLACE = re.compile(r"(.{1,1000}?)(?:\?[^/\\]{0,200})?:(\d{1,9}):\d{1,9}\Z")
_SCHEME = re.compile(r"file://(?=/)|webpack-internal:/{3}|webpack://[^/]{0,100}/|(?:\([\w-]{1,20}\)/)")
_JAVASCRIPT_LIBRARY = re.compile(
    r"(?:^|/)node_modules/|/\.yarn/|^(?:node|bun|ext|deno|wasm|npm):|^internal/|^bootstrap_node|^evalmachine\.|^<|^native\Z"
)
_RECEIVER = re.compile(r".*[.#](?=[^.#\]]+\Z)")


@dataclass(frozen=True, slots=True)
class Call:
    """One `at …` line. `line` is 0 if the engine has none (`native`, `<anonymous>`)."""

    file: str
    line: int
    function: str
    is_application: bool  # False: of Node itself or a package


@dataclass(frozen=True, slots=True)
class Stack:
    error: str  # type as printed; "" if the text does not start with one
    message: str
    calls: tuple[Call, ...]  # innermost first


def stack_of(text: str) -> Stack | None:
    """Return a parsed stack; None if the text is not one. Linear in any text."""
    place = _first_call(text)
    if place < 0:
        return None
    calls = [_call(line) for line in text[place + 1 :].split("\n", _MOST_FRAMES)[:_MOST_FRAMES] if _is_call(line)]
    error, message = error_of(text[:place])
    return Stack(error, message, tuple(calls))


def error_of(head: str) -> tuple[str, str]:
    """Return type and message of `TypeError: text`; ("", head) if it does not start with a type."""
    found = _HEAD.match(head)
    if found is None or not (found[1][:1].isupper() or found[1].endswith("Error")):
        return "", head
    return found[1], head[found.end() :].strip()


def without_message(text: str, message: str) -> str:
    """Return the stack without the message at its head, if that only repeats `message`."""
    place = _first_call(text)
    error, words = error_of(text[:place]) if place >= 0 else ("", "")
    if not error or not words or words != message.strip():
        return text
    return f"{text[: text.index(words, len(error))].rstrip().removesuffix(':')}{text[place:]}"


def apart(text: str, most: int = 100) -> list[str]:
    """Return stacks that were joined by line breaks, in order: at most the last `most`, with all earlier text in
    the first of these.
    """
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
    """Return where the frames start; -1 without frames.

    If the message looks like frames, the stack's own are the last block.
    """
    if text.startswith(_AT[1:]):
        return -1
    place = end = text.rfind(_AT)
    # Upwards over adjacent lines: lines of a multi-line message above them are not calls.
    while place > 0:
        above = text.rfind("\n", 0, place)
        if above < 0 or not text.startswith(_AT, above):
            break
        place = end = above
    return end


def _is_call(line: str) -> bool:
    return line.startswith(_AT[1:]) and len(line) <= _LONGEST


def _call(line: str) -> Call:
    place = line.strip().removeprefix("at ").removeprefix("async ").removeprefix("new ")
    function = ""
    if place.endswith(")") and " (" in place:
        function, _, place = place[:-1].partition(" (")
    found = _PLACE.match(place)
    file = _SCHEME.sub("", found[1] if found else place, count=2)
    is_library = found is None or _JAVASCRIPT_LIBRARY.search(file.replace("\\", "/")) is not None
    return Call(file, int(found[2]) if found else 0, _name(function), not is_library)


def _name(function: str) -> str:
    """Return a function's own name: the object it was called on changes with releases of Node and libraries."""
    own = function.partition(" [as ")[0].strip()
    return _RECEIVER.sub("", own) or "<anonymous>"


# Characters read. A trace is cut at its start: the error's own frames are at its end.
_MOST_TRACE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    code: str  # source line; "" if unknown
    is_application: bool  # False: of the standard library or an installed package


def frames(trace: str) -> list[Frame]:
    """Return the frames of a traceback, outermost first, causes before their effects. Empty for other text."""
    return [frame for one in chain_of(trace) for frame in one.frames]


def stack(trace: str, message: str) -> str:
    """Return the trace without the message at its end, if that only repeats `message`.

    Ten thousand jobs that failed at one place then share one stack, although each message has its own id.
    """
    place = trace.rfind('\n  File "')
    if place < 0:
        return without_message(trace, message)
    lines = trace[place + 1 :].split("\n")
    inside = 1
    while inside < len(lines) and lines[inside].startswith(" "):
        inside += 1
    last_words = "\n".join(lines[inside:])
    error, _, words = last_words.partition(": ")
    if not words or words.strip() != message.strip():
        return trace
    return f"{trace[: len(trace) - len(last_words)]}{error}\n"


_NO_PACKAGE = re.compile(r"\W|\d")


def place_of(frame: Frame) -> str:
    """Return `file in function`: the same on every host, in every release, at every line."""
    # The last two names of the path: those before differ between hosts and releases. A folder that cannot be a package
    # is removed: `20261108-4f1c2aa/jobs.py`.
    names = frame.file.replace("\\", "/").split("/")[-2:]
    if len(names) == 2 and _NO_PACKAGE.search(names[0]):
        names[0] = re.sub(r"[\W_]*\d[\w.-]*", "", names[0]) or "<release>"
    return f"{'/'.join(names)} in {frame.function}"


@dataclass(slots=True)
class Member:
    """An error in an exception group."""

    error: str
    message: str
    place: str


@dataclass(slots=True)
class Raised:
    error: str = ""  # type as printed
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    leads_on: bool = False  # the next one was raised `from` it


_FRAME = re.compile(r'[ |+-]*File "([^"\n]{1,1000})", line (\d{1,9}), in (.{1,300})')
_TYPE = re.compile(r"([A-Za-z_][\w.]{0,200}(?:<locals>\.[\w.]{1,200}){0,5})(?::|\Z)")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/lib(?:64)?/(?:python|pypy)\d|/python\d*/lib/|^<|jobs_admin/worker/|\.(?:pyx|pxi|pxd)$"
)
_BETWEEN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_GROUP = "+ Exception Group Traceback (most recent call last):"
_MEMBER = re.compile(r" +\+(?:-\+)?-{4,} (?:\d{1,9}|\.\.\.) -{4,}\Z")


def chain_of(trace: str) -> list[Raised]:
    """Return the exceptions of a chain, first cause first."""
    lines = trace[-_MOST_TRACE:].split("\n")
    if _GROUP not in trace:
        return _raised(lines) or _raised_in_javascript(trace)
    own, inner = _without_members(lines)
    chain = _raised(own)
    if chain:
        for member in inner:
            for one in _raised(member)[-1:] or _unraised(member):
                place = next((place_of(f) for f in reversed(one.frames) if f.is_application), "")
                chain[-1].members.append(Member(one.error, one.message, place))
    return chain


def _raised_in_javascript(trace: str) -> list[Raised]:
    found = stack_of(trace[-_MOST_TRACE:])
    if found is None:
        return []
    calls = [Frame(c.file, c.line, c.function, "", c.is_application) for c in reversed(found.calls)]
    return [Raised(found.error, found.message[:MOST_MESSAGE], calls)]


def _unraised(lines: list[str]) -> list[Raised]:
    """Return an error that was put into a group without being raised: it has only type and message."""
    kind = _TYPE.match(lines[0]) if lines else None
    return [Raised(kind[1], lines[0][kind.end() :].strip())] if kind else []


def _without_members(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return the lines of a group's own traceback, and those of each member. Nested groups are omitted."""
    own: list[str] = []
    members: list[list[str]] = []
    for line in lines:
        at = len(line) - len(line.lstrip(" "))
        if _MEMBER.match(line):
            if at <= 4:
                members.append([])
        elif line[at : at + 1] == "|":
            if at <= 2:
                own.append(line[at + 2 :])
            elif at <= 4 and members:
                members[-1].append(line[at + 2 :])
        elif line[at : at + 1] != "+":
            own.append(line)
    return own, members


def _raised(lines: list[str]) -> list[Raised]:
    found: list[Raised] = []
    now = Raised()
    words: list[str] | None = None  # lines of the message being read
    alone = ""  # first line, if no frames precede it
    for n, line in enumerate(lines):
        if 'File "' in line and words is None and (frame := _FRAME.match(line)):
            file, number, function = frame.groups()
            after = lines[n + 1].lstrip(" |") if n + 1 < len(lines) and lines[n + 1][:1] in {" ", "|"} else ""
            code = "" if after.startswith('File "') else after.strip()
            is_library = _LIBRARY.search(file.replace("\\", "/").lower()) is not None
            now.frames.append(Frame(file, int(number), function.strip(), code, not is_library))
        elif line in _BETWEEN:
            if words is None and not now.frames and (kind := _TYPE.match(alone)):  # never raised: it has no traceback
                now.error, words = kind[1], [alone[kind.end() :]]
            now.leads_on = line == _BETWEEN[1]
            found.append(_with_message(now, words))
            now, words, alone = Raised(), None, ""
        elif words is not None:
            words.append(line)
        elif now.frames and line[:1] not in {" ", "|", ""} and (kind := _TYPE.match(line)):
            now.error, words = kind[1], [line[kind.end() :]]
        elif not alone:
            alone = line
    if now.frames or now.error:
        found.append(_with_message(now, words))
    return found


def _with_message(raised: Raised, words: list[str] | None) -> Raised:
    raised.message = "\n".join(words or ()).strip()[:MOST_MESSAGE]
    return raised
