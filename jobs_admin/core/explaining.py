"""A fingerprint told to people: what of an error made it, what did not, and where two errors part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs_admin.core.fingerprint import NO_RULES, Rules, apart, parts_of
from jobs_admin.core.normalising import alike
from jobs_admin.core.paths import ignores, is_counted, on_the_way
from jobs_admin.core.traces import Frame, chain_of, place_of, stack


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
    """What of an error made its fingerprint, and what did not."""

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
    """Why an error has the fingerprint that it has. `facts` as `fingerprint` takes them."""
    replaced: list[tuple[str, str]] = []
    parts = parts_of(error_type, message, trace, rules.ignored, (facts or {}).get("task", ""), replaced)
    counted = set(parts.frames)
    told = []
    for one in chain_of(stack(trace, message)):
        own = {id(frame) for frame in on_the_way(one.frames)}
        for frame in one.frames:
            place = place_of(frame)
            is_ignored = frame.is_application and not is_counted(frame, rules.ignored)
            is_passed = frame.is_application and id(frame) not in own and place not in counted
            why_not = "rule" if is_ignored else "passed" if is_passed else "" if frame.is_application else "library"
            counts = place in counted and not is_ignored
            told.append(ExplainedFrame(frame, place, counts, "" if counts else why_not))
    acted = [
        f"the frame {p} is ignored" for p in rules.ignored if any(ignores(p, t.place) for t in told if not t.counts)
    ]
    if (split := rules.splits.get(parts.value)) is not None:
        acted.append(f"its group is split by {apart(split, message, facts or {})[1][1:-1]}")
    return Explanation(
        parts.type,
        parts.is_wrapped,
        parts.causes,
        tuple(told),
        parts.plain[:1000],
        tuple(dict.fromkeys(replaced)),
        parts.task,
        tuple(acted),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which two errors differ, so that they are two groups."""

    part: str  # type, task, cause, frame, message or rule
    says: str  # `message word 3`
    left: str
    right: str


def differences(left: Explanation, right: Explanation) -> list[Difference]:
    """Where two errors part; nothing where they are one group."""
    found = []
    if left.type != right.type:
        found.append(Difference("type", "the type", left.type, right.type))
    if left.task != right.task:
        found.append(Difference("task", "the task", left.task, right.task))
    for says, one, other in _parted(_causes(left), _causes(right)):
        found.append(Difference("cause", f"cause {says}", one, other))
    for says, one, other in _parted(_way(left), _way(right)):
        found.append(Difference("frame", f"application frame {says}", one, other))
    for says, one, other in _parted(alike(left.message).split(), alike(right.message).split()):
        found.append(Difference("message", f"message word {says}", one, other))
    for says, one, other in _parted(left.acted, right.acted):
        found.append(Difference("rule", f"rule {says}", one, other))
    return found


def _causes(told: Explanation) -> list[str]:
    return list(dict.fromkeys(f"{kind}: {alike(said)}" if said else kind for kind, said in told.causes))


def _way(told: Explanation) -> list[str]:
    return list(dict.fromkeys(frame.place for frame in told.frames if frame.counts))


def _parted(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str, str]]:
    """What stands between the first and the last that are the same: (`3` or `3 to 5`, left, right)."""
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
    says = str(start + 1) if last <= start + 1 else f"{start + 1} to {last}"
    return [(says, " ".join(one)[:500], " ".join(other)[:500])]
