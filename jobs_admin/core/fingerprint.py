"""What makes two errors the same: its type, the path through the application, the message without what varies, its cause.

Neither the queue nor the source counts, nor line numbers, nor the frames of libraries, nor the words in which a library
wraps another error: the same break seen from two queues, after a deployment that moved a line, or after an upgrade of a
library is one group. The task counts only where no frame of the application names a place (a killed worker, a hard time
limit): otherwise unrelated jobs that died in the same way would be resolved and replayed together.
docs/grouping.md says it for people. The value names the version of these rules; when they
change, its number rises, `regrouping` gives the groups their new names and an alias keeps the old links (table GroupAlias).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from jobs_admin.core.normalising import MOST_MESSAGE, alike
from jobs_admin.core.paths import path_of
from jobs_admin.core.traces import stack
from jobs_admin.core.wording import (
    WORD,
    asked,
    name_of,
    plain_known,
    plain_message,
    says_nothing,
    status_alone,
    system_error,
    value_read,
)

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
    """What people decided over what is found here. Of merges nothing is known here: they are aliases."""

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
        value, said = apart(split, message, facts or {})
        title = f"{title[: 499 - len(said)]} {said}"
    return Fingerprint(value, title[:500], parts.culprit)


def value_of(*parts: object) -> str:
    """The name of these parts, under this version of the rules."""
    return f"{VERSION}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def apart(split: Split, message: str, facts: Mapping[str, str]) -> tuple[str, str]:
    """Of a failure in a group that is split: the fingerprint of its part, and how that is told from the others."""
    fact = _fact(split.by, message, facts)
    return value_of("split", split.base, split.by, fact), f"({split.by}: {fact[:120]})"


def _fact(by: str, message: str, facts: Mapping[str, str]) -> str:
    text = message[:MOST_MESSAGE] if by == "message" else facts.get(by, "")
    return " ".join(text.split())[:500] or "none"


# The clock decides in which step of a job these come: only where it began counts.
_STRIKES_ANYWHERE = {"SoftTimeLimitExceeded", "TimeLimitExceeded"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What of an error makes its value, and what is shown of it."""

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
    alike_causes = tuple(dict.fromkeys((cause, alike(said)) for cause, said in causes))
    of_task = (task,) if task else ()
    return value_of(kind, alike_causes, frames, alike(plain)[:1000], *of_task)


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
    said = message.lower()
    # The library's words about the same thing change with its version; those of the cause that it repeats do not.
    cause = next((cause for cause in path.wrapped if cause.said in said), None)
    if cause is None and path.wrapped and says_nothing(name, plain):
        cause = path.wrapped[0]
    if cause is None:
        causes, essence = path.causes, status_alone(plain)
    else:
        name, causes, essence = cause.type, path.own_causes, cause.plain
        if replaced is not None:
            replaced.clear()
            plain_message(name, cause.words, None, replaced)
    if name == "AttributeError" and cause is None:
        essence += asked(plain, path.code)
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
