"""Parts of a trace that count for a fingerprint: its path through the application, its causes, and whether a
library raised it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jobs_admin.core.canonical_error import Template, name_of, plain_message, template_of
from jobs_admin.core.normalising import normalise
from jobs_admin.core.text import fits
from jobs_admin.core.traces import Frame, Raised, chain_of, place_of

# Python before 3.12 runs the first three as functions; the last has no name in the code.
_UNNAMED = {"<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
# Names of inner functions of decorators and retry helpers.
_AROUND = re.compile(
    r"_*(?:wrap(?:per|ped|s)?|inner|inner_function|decorat(?:or|ed|e)|(?:\w{1,40}_with_|with_)?retr(?:y|ies|ied|ying)|call_with_\w{1,60}"
    r"|\w{1,60}_(?:wrapper|wrapped|decorator)|__call__)\Z"
)
# `return work()`, `result = func(*args, **kwargs)`: a call of an argument.
_PASSES_ON = re.compile(r"(?:return |[a-z_]\w{0,60} = )?(?:await )?([a-z_]\w{0,60})\((?:\*[^()]{0,200})?\)\Z")


def on_the_way(frames: Sequence[Frame]) -> list[Frame]:
    """Return an exception's frames without application frames that only call the next one: they change with
    releases.
    """
    ahead: set[str] = set()  # functions of inner frames
    counted: list[Frame] = []
    for n in range(len(frames) - 1, -1, -1):
        frame = frames[n]
        if frame.is_application:
            passes = _PASSES_ON.match(frame.code)
            if frame.function in _UNNAMED:
                continue
            # Passed under another name than its own: no function with that name is called later.
            is_given = passes and frames[n + 1 : n + 2] and frames[n + 1].is_application and passes[1] not in ahead
            if ahead and (_AROUND.match(frame.function) or (is_given and not counted[-1].function.startswith("__"))):
                continue
            ahead.add(frame.function)
        counted.append(frame)
    return counted[::-1]


@dataclass(frozen=True, slots=True)
class Cause:
    type: str
    first_line: str  # first line of its message in lower case, without its number
    plain: str
    words: str  # its unchanged message


@dataclass(frozen=True, slots=True)
class Path:
    """Parts of a trace that count."""

    frames: tuple[str, ...]  # path of the last exception through the application
    # type and message: the first cause, and those that the application raised later
    causes: tuple[tuple[str, str], ...]
    own_causes: tuple[tuple[str, str], ...]  # the same without the first cause
    wrapped: tuple[Cause, ...]  # causes with enough text to be recognised, if a library raised the last exception
    is_of_library: bool  # a library raised it
    template: Template | None
    code: str  # the application's line that raised
    last_words: str
    culprit: str


_NO_PATH = Path((), (), (), (), False, None, "", "", "")


def path_of(trace: str, ignored: tuple[str, ...]) -> Path:
    """Return the path of a trace without the message at its end (`traces.stack`).

    `ignored`: globs over `file in function`.
    """
    # Cached, because most traces repeat: many of the usual length, few long ones.
    return (_path_of_usual if len(trace) <= USUAL_TRACE else _path_of_long)(trace, ignored)


def _path_through(trace: str, ignored: tuple[str, ...]) -> Path:
    chain = _without_lookups(chain_of(trace))
    if not chain:
        return _NO_PATH
    last = chain[-1]
    of_application = [[place_of(f) for f in on_the_way(one.frames) if is_counted(f, ignored)] for one in chain]
    # Without an application frame, use its latest cause's; else the innermost library location.
    application = next((places for places in reversed(of_application) if places), [])
    counted = application or [place_of(f) for f in last.frames[-1:]]
    causes = [_cause(one) for one in chain[:-1]]
    of_ours = [
        (cause.type, cause.plain)
        for n, (one, cause) in enumerate(zip(chain, causes, strict=False))
        if n > 0 and one.frames and is_counted(one.frames[-1], ignored)
    ]
    first = [(causes[0].type, causes[0].plain)] if causes else []
    members = sorted({(name_of(m.error), normalise(m.message), m.place) for m in last.members})
    was_raised_here = bool(last.frames) and is_counted(last.frames[-1], ignored)
    return Path(
        # In order, each once: the depth of a recursion does not count.
        frames=tuple(dict.fromkeys(counted)),
        causes=tuple(dict.fromkeys([*first, *of_ours])) + tuple((m[0], f"{m[1]} at {m[2]}") for m in members),
        own_causes=tuple(dict.fromkeys(of_ours)),
        wrapped=() if was_raised_here else tuple(cause for cause in causes if len(cause.first_line) > 7),
        is_of_library=bool(last.frames) and not was_raised_here,
        template=template_of(last.frames[-1].code, is_foreign=not was_raised_here) if last.frames else None,
        code=last.frames[-1].code if was_raised_here else "",
        last_words=last.message,
        culprit=(application or [""])[-1][:255],
    )


USUAL_TRACE = 8 * 1024  # characters of a trace, for the larger cache
_path_of_usual = lru_cache(maxsize=4096)(_path_through)
_path_of_long = lru_cache(maxsize=64)(_path_through)


_LOOKUPS = {"KeyError", "AttributeError", "IndexError", "StopIteration", "ModuleNotFoundError", "ImportError"}


def _without_lookups(chain: list[Raised]) -> list[Raised]:
    """Return the chain without first causes that are only a library's lookups: `except KeyError:`, then it
    continued.
    """
    first = 0
    for one in chain[:-1]:
        # asyncio's way to end a slow task is not a cause either.
        is_end = one.error.endswith("CancelledError")
        if not is_end and (one.leads_on or one.error not in _LOOKUPS or any(f.is_application for f in one.frames)):
            break
        first += 1
    return chain[first:]


_CAUSED_BY = re.compile(r"\(Caused by ([A-Z]\w{0,80})\(['\"](.{1,1000}?)['\"]\)\)\Z")
_NUMBER_BEFORE = re.compile(r"\[Errno -?\d{1,6}\] ")


def _cause(one: Raised) -> Cause:
    error, message = one.error, one.message
    if caused := _CAUSED_BY.search(message):  # older urllib3 versions only mention the cause in the message
        error, message = caused.groups()
    name = name_of(error)
    brief = _NUMBER_BEFORE.sub("", message.strip().partition("\n")[0], count=1).lower()
    return Cause(name, brief, plain_message(name, message, None)[:500], message)


def is_counted(frame: Frame, ignored: tuple[str, ...]) -> bool:
    """Return whether the frame is the application's and no rule ignores it."""
    if not frame.is_application:
        return False
    if not ignored:
        return True
    names = (place_of(frame), f"{frame.file} in {frame.function}")
    return not any(ignores(pattern, name) for pattern in ignored for name in names)


def ignores(pattern: str, place: str) -> bool:
    """Return whether a rule with this pattern ignores the frame `file in function`."""
    return fits(pattern, place)
