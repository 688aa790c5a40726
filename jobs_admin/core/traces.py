"""A traceback as text, read: its frames, and the exceptions of its chain. Python's and JavaScript's. Nothing is judged here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jobs_admin.core import javascript
from jobs_admin.core.normalising import MOST_MESSAGE

# What is looked at. A trace is cut from its head: the error's own frames stand at its end.
_MOST_TRACE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    code: str  # the source line; "" where it is not known
    is_application: bool  # False: of the standard library or an installed package


def frames(trace: str) -> list[Frame]:
    """The frames of a traceback, outermost first, causes before what they led to. Empty for other text."""
    return [frame for one in chain_of(trace) for frame in one.frames]


def stack(trace: str, message: str) -> str:
    """The trace without the message at its end, where that only repeats `message`.

    Ten thousand jobs that failed at one place then share one stack, although each message has its own id.
    """
    place = trace.rfind('\n  File "')
    if place < 0:
        return javascript.without_message(trace, message)
    lines = trace[place + 1 :].split("\n")
    inside = 1
    while inside < len(lines) and lines[inside].startswith(" "):
        inside += 1
    last_words = "\n".join(lines[inside:])
    error, _, said = last_words.partition(": ")
    if not said or said.strip() != message.strip():
        return trace
    return f"{trace[: len(trace) - len(last_words)]}{error}\n"


_NO_PACKAGE = re.compile(r"\W|\d")


def place_of(frame: Frame) -> str:
    """`file in function`: the same on every machine, in every release, at every line."""
    # The last two names of the path: what stands before them differs between machines and releases. A folder that could
    # be no package is not one: `20261108-4f1c2aa/jobs.py`.
    names = frame.file.replace("\\", "/").split("/")[-2:]
    if len(names) == 2 and _NO_PACKAGE.search(names[0]):
        names[0] = re.sub(r"[\W_]*\d[\w.-]*", "", names[0]) or "<release>"
    return f"{'/'.join(names)} in {frame.function}"


@dataclass(slots=True)
class Member:
    """One of the errors in an exception group."""

    error: str
    said: str
    place: str


@dataclass(slots=True)
class Raised:
    error: str = ""  # the type as printed
    said: str = ""  # its message
    frames: list[Frame] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    leads_on: bool = False  # the next one was raised `from` it, on purpose


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
    """The exceptions of a chain, the first cause first."""
    lines = trace[-_MOST_TRACE:].split("\n")
    if _GROUP not in trace:
        return _raised(lines) or _raised_in_javascript(trace)
    own, inner = _without_members(lines)
    chain = _raised(own)
    if chain:
        for member in inner:
            for one in _raised(member)[-1:] or _unraised(member):
                place = next((place_of(f) for f in reversed(one.frames) if f.is_application), "")
                chain[-1].members.append(Member(one.error, one.said, place))
    return chain


def _raised_in_javascript(trace: str) -> list[Raised]:
    found = javascript.stack_of(trace[-_MOST_TRACE:])
    if found is None:
        return []
    calls = [Frame(c.file, c.line, c.function, "", c.is_application) for c in reversed(found.calls)]
    return [Raised(found.error, found.said[:MOST_MESSAGE], calls)]


def _unraised(lines: list[str]) -> list[Raised]:
    """An error that was put into a group without ever being raised: it has a type and words alone."""
    kind = _TYPE.match(lines[0]) if lines else None
    return [Raised(kind[1], lines[0][kind.end() :].strip())] if kind else []


def _without_members(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """The lines of a group's own traceback, and those of each of its members. Groups in groups are left out."""
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
    words: list[str] | None = None  # the lines of the message, while it is read
    alone = ""  # the first line, where no frames stand before it
    for n, line in enumerate(lines):
        if 'File "' in line and words is None and (frame := _FRAME.match(line)):
            file, number, function = frame.groups()
            after = lines[n + 1].lstrip(" |") if n + 1 < len(lines) and lines[n + 1][:1] in {" ", "|"} else ""
            code = "" if after.startswith('File "') else after.strip()
            is_library = _LIBRARY.search(file.replace("\\", "/").lower()) is not None
            now.frames.append(Frame(file, int(number), function.strip(), code, not is_library))
        elif line in _BETWEEN:
            if words is None and not now.frames and (kind := _TYPE.match(alone)):  # raised nowhere: it has no traceback
                now.error, words = kind[1], [alone[kind.end() :]]
            now.leads_on = line == _BETWEEN[1]
            found.append(_told(now, words))
            now, words, alone = Raised(), None, ""
        elif words is not None:
            words.append(line)
        elif now.frames and line[:1] not in {" ", "|", ""} and (kind := _TYPE.match(line)):
            now.error, words = kind[1], [line[kind.end() :]]
        elif not alone:
            alone = line
    if now.frames or now.error:
        found.append(_told(now, words))
    return found


def _told(raised: Raised, words: list[str] | None) -> Raised:
    raised.said = "\n".join(words or ()).strip()[:MOST_MESSAGE]
    return raised
