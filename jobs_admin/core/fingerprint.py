"""Fingerprint of an error: its type, the path through the application, the message without values, and its cause.

Queue, source, line numbers, library frames and a library's words around another error do not count: the same bug seen
in two queues, after a deploy that moved a line, or after a library upgrade is one group. The task only counts if no
application frame gives a location (a killed worker, a hard time limit): otherwise unrelated jobs that died the same way
would be resolved and replayed together. docs/grouping.md explains it for operators.

The value contains the version of these rules. When they change, the version rises, `regrouping` renames the groups, and
aliases keep old links working (table GroupAlias). An explanation lists the parts of a fingerprint; differences compare
two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from jobs_admin.core.canonical_error import (
    WORD,
    is_generic,
    name_of,
    name_of_none,
    plain_known,
    plain_message,
    status_alone,
    system_error,
    value_read,
)
from jobs_admin.core.normalising import MOST_MESSAGE, unify_placeholders
from jobs_admin.core.trace_path import USUAL_TRACE, Path, ignores, is_counted, on_the_way, path_of
from jobs_admin.core.traces import Frame, chain_of, place_of, stack

VERSION = "v3"

# Fields by which an operator may split a group; all but `message` are facts of a failure.
SPLITS = ("task", "queue", "source", "tenant", "release", "message")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    value: str  # `v3-…`
    title_message: str  # normalised message, one line of at most 500 characters
    culprit: str  # innermost application frame, `shop/tasks.py in charge`; "" if there is none


@dataclass(frozen=True, slots=True)
class Split:
    base: str  # fingerprint of the split group, shared by all groups merged into it
    by: str  # one of SPLITS


@dataclass(frozen=True, slots=True)
class Rules:
    """Operators' grouping rules: ignored frames and splits. Merges are stored as aliases instead."""

    ignored: tuple[str, ...] = ()  # globs over `file in function`
    splits: Mapping[str, Split] = field(default_factory=dict)  # by fingerprint


NO_RULES = Rules()


def fingerprint(
    error_type: str,
    message: str,
    trace: str,
    rules: Rules = NO_RULES,
    facts: Mapping[str, str] | None = None,
    stack_text: str | None = None,
) -> Fingerprint:
    """Return the fingerprint: equal for errors that are one problem. Never raises; linear in the (bounded) input.

    `facts`: task, queue, source, tenant and release of the failure, for splits. `stack_text`: the trace's `stack`, if
    already computed.
    """
    if stack_text is None:
        stack_text = stack(trace, message)
    parts = _parts_of_stack(error_type, message, stack_text, rules.ignored, (facts or {}).get("task", ""))
    value = parts.value
    title = parts.title
    if (split := rules.splits.get(value)) is not None:
        value, part = apart(split, message, facts or {})
        title = f"{title[: 499 - len(part)]} {part}"
    return Fingerprint(value, title[:500], parts.culprit)


def value_of(*parts: object) -> str:
    """Return the fingerprint of these parts under this version of the rules."""
    return f"{VERSION}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def apart(split: Split, message: str, facts: Mapping[str, str]) -> tuple[str, str]:
    """Return the fingerprint of a failure's part of a split group, and the label that distinguishes the part."""
    fact = _fact(split.by, message, facts)
    return value_of("split", split.base, split.by, fact), f"({split.by}: {fact[:120]})"


def _fact(by: str, message: str, facts: Mapping[str, str]) -> str:
    text = message[:MOST_MESSAGE] if by == "message" else facts.get(by, "")
    return " ".join(text.split())[:500] or "none"


# The clock decides at which step of a job these are raised: only its entry point counts.
_STRIKES_ANYWHERE = {"SoftTimeLimitExceeded", "TimeLimitExceeded"}


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of an error that make its fingerprint, with title and culprit."""

    type: str
    causes: tuple[tuple[str, str], ...]
    frames: tuple[str, ...]
    plain: str
    title: str
    culprit: str
    task: str  # "" if application frames give the location
    is_wrapped: bool  # the error only repeats its cause in a library's words, so the cause counts instead

    @property
    def value(self) -> str:
        return _value(self.type, self.causes, self.frames, self.plain, self.task)


@lru_cache(maxsize=1024)
def _value(kind: str, causes: tuple[tuple[str, str], ...], frames: tuple[str, ...], plain: str, task: str) -> str:
    """Return the fingerprint. Cached: most failures equal an earlier one in all counted parts."""
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
    """Return the parts. If `replaced` is given, append the replacements in the message, (name, text), and cache
    nothing.
    """
    return _parts_of_stack(error_type, message, stack(trace, message), ignored, task, replaced)


def _parts_of_stack(
    error_type: str,
    message: str,
    stack_text: str,
    ignored: tuple[str, ...],
    task: str,
    replaced: list[tuple[str, str]] | None = None,
) -> Parts:
    path = path_of(stack_text, ignored)
    if not message.strip():
        message = path.last_words  # a message lost on the way is at the end of the trace
    name = name_of(error_type)
    if replaced is not None:
        return _parts(name, plain_message(name, message, path.template, replaced), path, task, message, replaced)
    plain = plain_known(name, message[:MOST_MESSAGE], path.template)
    if path.wrapped or len(stack_text) > USUAL_TRACE:
        return _parts(name, plain, path, task, message)
    # Without such a cause only these parts count, and most failures equal an earlier one in all of them.
    return _parts_known(name, plain, stack_text, ignored, task)


@lru_cache(maxsize=2048)
def _parts_known(name: str, plain: str, stack_text: str, ignored: tuple[str, ...], task: str) -> Parts:
    return _parts(name, plain, path_of(stack_text, ignored), task)


def _parts(
    name: str,
    plain: str,
    path: Path,
    task: str,
    message: str = "",
    replaced: list[tuple[str, str]] | None = None,
) -> Parts:
    """Return the parts of an error with this normalised message.

    The message itself only counts if it repeats a cause.
    """
    lower = message.lower()
    # A library's words change with its version; the cause's words that it repeats do not.
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
    elif name == "RecursionError":  # the frame at which the recursion breaks is arbitrary
        frames = tuple(sorted(frames))
    if path.is_of_library:
        reduced = system_error(essence)
        is_plain = reduced != essence or essence == "timed out"
        essence = reduced
        if is_plain or len(WORD.findall(essence)) > 2:
            # These words at this location are the same problem, whatever the library names its class.
            name = ""
    of_task = "" if path.culprit else task
    return Parts(name, causes, frames, essence, plain, culprit, of_task, cause is not None)


@dataclass(frozen=True, slots=True)
class ExplainedFrame:
    frame: Frame
    place: str  # `file in function`, as in an ignore rule
    counts: bool
    why_not: str  # `library`, `rule`, `passed`; "": a repeated location, or one of an earlier error in the chain


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a fingerprint: the parts that count and those that do not."""

    type: str  # "" if the class does not count
    is_wrapped: bool  # a library's words about another error: type, causes and message are that error's
    causes: tuple[tuple[str, str], ...]  # (type, message)
    frames: tuple[ExplainedFrame, ...]
    message: str  # as counted, with values replaced
    replaced: tuple[tuple[str, str], ...]  # (kind, text)
    task: str  # "" if it does not count because application frames give the location
    acted: tuple[str, ...] = ()  # rules that made a difference, as text


def explain(
    error_type: str,
    message: str,
    trace: str,
    rules: Rules = NO_RULES,
    facts: Mapping[str, str] | None = None,
) -> Explanation:
    """Return why an error has its fingerprint. `facts`: as for `fingerprint`."""
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
    """Part in which two errors differ, which makes them two groups."""

    part: str  # type, task, cause, frame, message or rule
    place: str  # `message word 3`
    left: str
    right: str


def differences(left: Explanation, right: Explanation) -> list[Difference]:
    """Return where two errors differ; nothing if they are one group."""
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
    """Return the part between the common start and end: (`3` or `3 to 5`, left, right)."""
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
