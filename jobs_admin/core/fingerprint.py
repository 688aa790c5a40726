"""Fingerprint of an error: its type, the path through the application, the message without values, and its cause.

Queue, source, line numbers, frames of libraries and the words of a library around another error do not count: the same break
seen from two queues, after a deployment that moved a line, or after an upgrade of a library is one group. The task counts
only where no frame of the application names a place (a killed worker, a hard time limit): otherwise unrelated jobs that died
in the same way would be resolved and replayed together. docs/grouping.md explains it for operators.

The value names the version of these rules. When they change, its number rises, `regrouping` renames the groups, and an
alias keeps the old links (table GroupAlias). An explanation lists the parts of a fingerprint; differences compare two.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from jobs_admin.core.canonical_error import (
    WORD,
    Template,
    is_generic,
    name_of,
    name_of_none,
    plain_known,
    plain_message,
    status_alone,
    system_error,
    template_of,
    value_read,
)
from jobs_admin.core.normalising import MOST_MESSAGE, normalise, unify_placeholders
from jobs_admin.core.text import fits
from jobs_admin.core.traces import Frame, Raised, chain_of, place_of, stack

VERSION = "v3"

# By what a person may split a group; each but `message` names one of the facts of a failure.
SPLITS = ("task", "queue", "source", "tenant", "release", "message")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    value: str  # `v3-…`
    title_message: str  # the normalised message, in one line of at most 500 characters
    culprit: str  # the innermost application frame, `shop/tasks.py in charge`; "" where there is none


@dataclass(frozen=True, slots=True)
class Split:
    base: str  # the fingerprint of the group that is split: all that were merged into it share it
    by: str  # one of SPLITS


@dataclass(frozen=True, slots=True)
class Rules:
    """The decisions of people about fingerprints: ignored frames and splits. Merges are not among them: they are
    aliases.
    """

    ignored: tuple[str, ...] = ()  # globs over `file in function`
    splits: Mapping[str, Split] = field(default_factory=dict)  # by fingerprint


NO_RULES = Rules()


def fingerprint(
    error_type: str,
    message: str,
    trace: str,
    rules: Rules = NO_RULES,
    facts: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The same value for errors that are one problem. Never raises; time is linear in the (bounded) input.

    `facts`: task, queue, source, tenant and release of the failure, for rules that split by them.
    """
    parts = parts_of(error_type, message, trace, rules.ignored, (facts or {}).get("task", ""))
    value = parts.value
    title = parts.title
    if (split := rules.splits.get(value)) is not None:
        value, part = apart(split, message, facts or {})
        title = f"{title[: 499 - len(part)]} {part}"
    return Fingerprint(value, title[:500], parts.culprit)


def value_of(*parts: object) -> str:
    """The name of these parts, under this version of the rules."""
    return f"{VERSION}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def apart(split: Split, message: str, facts: Mapping[str, str]) -> tuple[str, str]:
    """Return the fingerprint of a failure's part in a group that is split, and the label that distinguishes the part
    from the others.
    """
    fact = _fact(split.by, message, facts)
    return value_of("split", split.base, split.by, fact), f"({split.by}: {fact[:120]})"


def _fact(by: str, message: str, facts: Mapping[str, str]) -> str:
    text = message[:MOST_MESSAGE] if by == "message" else facts.get(by, "")
    return " ".join(text.split())[:500] or "none"


# The clock decides in which step of a job these come: only where it began counts.
_STRIKES_ANYWHERE = {"SoftTimeLimitExceeded", "TimeLimitExceeded"}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an error that make its fingerprint, and its title and culprit."""

    type: str
    causes: tuple[tuple[str, str], ...]
    frames: tuple[str, ...]
    plain: str
    title: str
    culprit: str
    task: str  # "" where frames of the application name the place
    is_wrapped: bool  # the error says no more than its cause, in a library's words: its cause counts in its place

    @property
    def value(self) -> str:
        return _value(self.type, self.causes, self.frames, self.plain, self.task)


@lru_cache(maxsize=1024)
def _value(kind: str, causes: tuple[tuple[str, str], ...], frames: tuple[str, ...], plain: str, task: str) -> str:
    """Cached: most failures are like one before in all that counts."""
    alike_causes = tuple(dict.fromkeys((cause, unify_placeholders(message)) for cause, message in causes))
    of_task = (task,) if task else ()
    return value_of(kind, alike_causes, frames, unify_placeholders(plain)[:1000], *of_task)


def parts_of(
    error_type: str,
    message: str,
    trace: str,
    ignored: tuple[str, ...],
    task: str = "",
    replaced: list[tuple[str, str]] | None = None,
) -> Parts:
    """`replaced`, where given, is filled with what was replaced in the message: (name, text). Then nothing is cached."""
    path = path_of(stack(trace, message), ignored)
    if not message.strip():
        message = path.last_words  # what was lost on the way stands at the end of the trace
    name = name_of(error_type)
    if replaced is None:
        plain = plain_known(name, message[:MOST_MESSAGE], path.template)
    else:
        plain = plain_message(name, message, path.template, replaced)
    lower = message.lower()
    # The library's words about the same thing change with its version; those of the cause that it repeats do not.
    cause = next((cause for cause in path.wrapped if cause.first_line in lower), None)
    if cause is None and path.wrapped and is_generic(name, plain):
        cause = path.wrapped[0]
    if cause is None:
        causes, essence = path.causes, status_alone(plain)
    else:
        name, causes, essence = cause.type, path.own_causes, cause.plain
        if replaced is not None:
            replaced.clear()
            plain_message(name, cause.words, None, replaced)
    if name == "AttributeError" and cause is None:
        essence += name_of_none(plain, path.code)
    essence += value_read(name, path.code)
    frames, culprit = path.frames, path.culprit
    if name in _STRIKES_ANYWHERE:
        frames, causes = frames[:1], ()
        culprit = frames[0] if culprit else ""
    elif name == "RecursionError":  # at which frame of its loop it breaks is chance
        frames = tuple(sorted(frames))
    if path.is_of_library:
        reduced = system_error(essence)
        is_plain = reduced != essence or essence == "timed out"
        essence = reduced
        if is_plain or len(WORD.findall(essence)) > 2:
            # With these words at this place it is the same thing, whatever the library calls its class today.
            name = ""
    of_task = "" if path.culprit else task
    return Parts(name, causes, frames, essence, plain, culprit, of_task, cause is not None)


@dataclass(frozen=True, slots=True)
class ExplainedFrame:
    frame: Frame
    place: str  # `file in function`, what a rule may ignore
    counts: bool
    why_not: (
        str  # `library`, `rule`, `passed`, or empty: it is the same place again, or of an earlier error of the chain
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of an error that made its fingerprint, and those that did not."""

    type: str  # empty where the class does not count
    is_wrapped: bool  # a library's words about another error: the type, causes and message are of that one
    causes: tuple[tuple[str, str], ...]  # (type, message)
    frames: tuple[ExplainedFrame, ...]
    message: str  # as it counts, with what varies replaced
    replaced: tuple[tuple[str, str], ...]  # (what it is taken for, the text)
    task: str  # "" where it does not count: frames of the application name the place
    acted: tuple[str, ...] = ()  # the rules that made a difference, in words


def explain(
    error_type: str,
    message: str,
    trace: str,
    rules: Rules = NO_RULES,
    facts: Mapping[str, str] | None = None,
) -> Explanation:
    """Return why an error has the fingerprint that it has. `facts` as `fingerprint` takes them."""
    replaced: list[tuple[str, str]] = []
    parts = parts_of(error_type, message, trace, rules.ignored, (facts or {}).get("task", ""), replaced)
    counted = set(parts.frames)
    explained = []
    for one in chain_of(stack(trace, message)):
        own = {id(frame) for frame in on_the_way(one.frames)}
        for frame in one.frames:
            place = place_of(frame)
            is_ignored = frame.is_application and not is_counted(frame, rules.ignored)
            is_passed = frame.is_application and id(frame) not in own and place not in counted
            why_not = "rule" if is_ignored else "passed" if is_passed else "" if frame.is_application else "library"
            counts = place in counted and not is_ignored
            explained.append(ExplainedFrame(frame, place, counts, "" if counts else why_not))
    acted = [
        f"the frame {p} is ignored"
        for p in rules.ignored
        if any(ignores(p, t.place) for t in explained if not t.counts)
    ]
    if (split := rules.splits.get(parts.value)) is not None:
        acted.append(f"its group is split by {apart(split, message, facts or {})[1][1:-1]}")
    return Explanation(
        parts.type,
        parts.is_wrapped,
        parts.causes,
        tuple(explained),
        parts.plain[:1000],
        tuple(dict.fromkeys(replaced)),
        parts.task,
        tuple(acted),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which two errors differ, so that they are two groups."""

    part: str  # type, task, cause, frame, message or rule
    place: str  # `message word 3`
    left: str
    right: str


def differences(left: Explanation, right: Explanation) -> list[Difference]:
    """Return where two errors part; nothing where they are one group."""
    found = []
    if left.type != right.type:
        found.append(Difference("type", "the type", left.type, right.type))
    if left.task != right.task:
        found.append(Difference("task", "the task", left.task, right.task))
    for place, one, other in _parted(_causes(left), _causes(right)):
        found.append(Difference("cause", f"cause {place}", one, other))
    for place, one, other in _parted(_way(left), _way(right)):
        found.append(Difference("frame", f"application frame {place}", one, other))
    for place, one, other in _parted(
        unify_placeholders(left.message).split(), unify_placeholders(right.message).split()
    ):
        found.append(Difference("message", f"message word {place}", one, other))
    for place, one, other in _parted(left.acted, right.acted):
        found.append(Difference("rule", f"rule {place}", one, other))
    return found


def _causes(explained: Explanation) -> list[str]:
    return list(
        dict.fromkeys(
            f"{kind}: {unify_placeholders(message)}" if message else kind for kind, message in explained.causes
        )
    )


def _way(explained: Explanation) -> list[str]:
    return list(dict.fromkeys(frame.place for frame in explained.frames if frame.counts))


def _parted(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return what stands between the first and the last that are the same: (`3` or `3 to 5`, left, right)."""
    if list(left) == list(right):
        return []
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    one, other = left[start : len(left) - end], right[start : len(right) - end]
    last = start + max(len(one), len(other))
    place = str(start + 1) if last <= start + 1 else f"{start + 1} to {last}"
    return [(place, " ".join(one)[:500], " ".join(other)[:500])]


# The parts of a trace that count: its way through the application, its causes, and whether a library raised it.

# Python before 3.12 runs the first three as functions of their own; the last is no place that anybody gave a name.
_UNNAMED = {"<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
# What decorators and helpers for retries call the functions that they put around others.
_AROUND = re.compile(
    r"_*(?:wrap(?:per|ped|s)?|inner|inner_function|decorat(?:or|ed|e)|(?:\w{1,40}_with_|with_)?retr(?:y|ies|ied|ying)|call_with_\w{1,60}"
    r"|\w{1,60}_(?:wrapper|wrapped|decorator)|__call__)\Z"
)
# `return work()`, `result = func(*args, **kwargs)`: a call of something that it was given.
_PASSES_ON = re.compile(r"(?:return |[a-z_]\w{0,60} = )?(?:await )?([a-z_]\w{0,60})\((?:\*[^()]{0,200})?\)\Z")


def on_the_way(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of an exception without those of the application that only pass on to the next: they come and go with releases."""
    ahead: set[str] = set()  # functions further in
    counted: list[Frame] = []
    for n in range(len(frames) - 1, -1, -1):
        frame = frames[n]
        if frame.is_application:
            passes = _PASSES_ON.match(frame.code)
            if frame.function in _UNNAMED:
                continue
            # Given under another name than the one that it has: no function of that name is called later.
            is_given = passes and frames[n + 1 : n + 2] and frames[n + 1].is_application and passes[1] not in ahead
            if ahead and (_AROUND.match(frame.function) or (is_given and not counted[-1].function.startswith("__"))):
                continue
            ahead.add(frame.function)
        counted.append(frame)
    return counted[::-1]


@dataclass(frozen=True, slots=True)
class Cause:
    type: str
    first_line: str  # the first line of its message in small letters, without its number
    plain: str
    words: str  # its message as it is


@dataclass(frozen=True, slots=True)
class Path:
    """The parts of a trace that count."""

    frames: tuple[str, ...]  # where the last exception went through the application
    causes: tuple[tuple[str, str], ...]  # type and message: the first cause, and what the application raised since
    own_causes: tuple[tuple[str, str], ...]  # the same without the first cause
    wrapped: tuple[Cause, ...]  # the causes that say enough to be recognised, where a library raised the last exception
    is_of_library: bool  # a library raised it
    template: Template | None
    code: str  # the line of the application that raised
    last_words: str
    culprit: str


_NO_PATH = Path((), (), (), (), False, None, "", "", "")


def path_of(trace: str, ignored: tuple[str, ...]) -> Path:
    """Return the path of a trace without the message at its end (`traces.stack`). `ignored`: globs over `file in
    function`.
    """
    # Most failures come with a trace that was seen before; many are kept of the usual length, few of the long ones.
    return (_path_of_usual if len(trace) <= _USUAL_TRACE else _path_of_long)(trace, ignored)


def _path_through(trace: str, ignored: tuple[str, ...]) -> Path:
    chain = _without_lookups(chain_of(trace))
    if not chain:
        return _NO_PATH
    last = chain[-1]
    of_application = [[place_of(f) for f in on_the_way(one.frames) if is_counted(f, ignored)] for one in chain]
    # Without a frame of the application, that of its latest cause; else the innermost place in a library.
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


_USUAL_TRACE = 8 * 1024
_path_of_usual = lru_cache(maxsize=4096)(_path_through)
_path_of_long = lru_cache(maxsize=64)(_path_through)


_LOOKUPS = {"KeyError", "AttributeError", "IndexError", "StopIteration", "ModuleNotFoundError", "ImportError"}


def _without_lookups(chain: list[Raised]) -> list[Raised]:
    """Without the first causes that are only how a library looks things up: `except KeyError:` and then it went on."""
    first = 0
    for one in chain[:-1]:
        # How asyncio ends what took too long is no cause either.
        is_end = one.error.endswith("CancelledError")
        if not is_end and (one.leads_on or one.error not in _LOOKUPS or any(f.is_application for f in one.frames)):
            break
        first += 1
    return chain[first:]


_CAUSED_BY = re.compile(r"\(Caused by ([A-Z]\w{0,80})\(['\"](.{1,1000}?)['\"]\)\)\Z")
_NUMBER_BEFORE = re.compile(r"\[Errno -?\d{1,6}\] ")


def _cause(one: Raised) -> Cause:
    error, message = one.error, one.message
    if caused := _CAUSED_BY.search(message):  # what the older urllib3 tells only in words
        error, message = caused.groups()
    name = name_of(error)
    brief = _NUMBER_BEFORE.sub("", message.strip().partition("\n")[0], count=1).lower()
    return Cause(name, brief, plain_message(name, message, None)[:500], message)


def is_counted(frame: Frame, ignored: tuple[str, ...]) -> bool:
    """Return whether the frame is of the application, and no rule leaves it out."""
    if not frame.is_application:
        return False
    if not ignored:
        return True
    names = (place_of(frame), f"{frame.file} in {frame.function}")
    return not any(ignores(pattern, name) for pattern in ignored for name in names)


def ignores(pattern: str, place: str) -> bool:
    """Return whether a rule with this pattern would leave the frame `file in function` out."""
    return fits(pattern, place)
