"""Display copy of a job: redacted, and cut to a maximum size. Cuts are visible.

Traceback frames seen before without secrets are not searched again, which takes a tenth of the time: most failed jobs
have the frames of an earlier job, and only their messages differ. Cached is only that a frame contains no secret; a
frame is source text, never a job's value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from jobs_admin.core.redaction import PLACEHOLDER, redact, redact_text
from jobs_admin.core.secret_fields import is_secret_name

# As Python writes frames: the location, then its lines of code.
_FRAMES = re.compile(r'(?:  File "[^"\n]*", line \d+, in [^\n]*\n(?:    [^\n]*\n)*)+')
_BEGINS = '  File "'
_LONGEST = 16_384  # characters of consecutive frames
_FRAMES_CUT = '\x00"\n'  # marks a cut
_THEN = "Zq7kTn2p: Zq7kTn2p9wRx4 Zq7kTn2p9wRx4\n"  # text that a secret starting in the frames would hide too


def redact_trace(text: str) -> tuple[str, int]:
    """Return the result of `redact_text`, faster."""
    if "\x00" in text:
        return redact_text(text)
    parts: list[str] = []
    cuts: list[str] = []
    at = 0
    for found in _FRAMES.finditer(text):
        frames = found[0]
        # Keep the first and last lines: secrets that start before or end after the frames are then found.
        tail_at = _last_lines(frames)
        if tail_at <= len(_BEGINS) or len(frames) > _LONGEST or not _hide_nothing(frames):
            continue
        cuts.append(frames[len(_BEGINS) : tail_at])
        parts += [text[at : found.start()], _BEGINS, _FRAMES_CUT]
        at = found.start() + tail_at
    if not cuts:
        return redact_text(text)
    shown, hidden = redact_text("".join([*parts, text[at:]]))
    pieces = shown.split(_FRAMES_CUT)
    if len(pieces) != len(cuts) + 1:
        return redact_text(text)  # a secret spans a cut
    joined = [pieces[0]]
    for cut, piece in zip(cuts, pieces[1:], strict=True):
        joined += [cut, piece]
    return "".join(joined), hidden


def _last_lines(frames: str) -> int:
    """Return where the last two lines start."""
    return frames.rfind("\n", 0, frames.rfind("\n", 0, -1)) + 1


@lru_cache(maxsize=256)
def _hide_nothing(frames: str) -> bool:
    return redact_text(frames + _THEN) == (frames + _THEN, 0)


JSON_SIZE = 16_000  # characters of JSON text, for arguments and for headers
MESSAGE_SIZE = 8_000  # characters
TRACE_HEAD, TRACE_TAIL = 32_000, 96_000  # characters: the start, and the error at the end
DEEPEST = 50
LONGEST_NAME = 200  # characters of a field's name
# Read a little more than is shown, so that a secret across the cut is recognised. The extra text is never shown, even
# if redaction made room: a secret at its end is incomplete and not recognised.
_SLACK = 4_096
_CUT = "… (cut)"


@dataclass(frozen=True, slots=True)
class Shown:
    text: str
    redacted: int  # number of hidden values


def shown_json(value: object) -> Shown:
    """Return `value` as JSON text of at most JSON_SIZE characters: always valid JSON, with omissions stated."""
    for longest in (JSON_SIZE // 2, 1_000, 100):
        allowance = _Allowance(JSON_SIZE)
        copy, hidden = redact(_shortened(value, longest, allowance))
        hidden += allowance.hidden
        text = _WRITTEN.encode(copy)
        if len(text) > longest:  # otherwise none of its strings is longer
            text = _WRITTEN.encode(_cut_strings(copy, longest))
        if len(text) <= JSON_SIZE:
            return Shown(text, hidden)
    return Shown(json.dumps(f"… {len(text)} characters of JSON, too many to show …"), hidden)


def shown_message(text: str) -> Shown:
    redacted, hidden = _beginning(text, MESSAGE_SIZE)
    if len(text) > MESSAGE_SIZE + _SLACK or len(redacted) > MESSAGE_SIZE:
        redacted = f"{redacted[:MESSAGE_SIZE]}… (cut, {len(text)} characters)"
    return Shown(redacted, hidden)


def _beginning(text: str, longest: int) -> tuple[str, int]:
    """Return the redacted text, cut to `longest` characters if it is much longer, and the number of hidden secrets."""
    read = text[: longest + _SLACK]
    redacted, hidden = redact_text(read)
    return (redacted if len(read) == len(text) else _up_to(longest, read, redacted)[:longest]), hidden


def _up_to(end: int, read: str, redacted: str) -> str:
    """Return the part of `redacted` that comes from `read[:end]`."""
    pieces = redacted.split(PLACEHOLDER)
    place, after = len(read), False
    while pieces:
        # Located by its end. It is not further right than found here, so nothing after `end` is returned.
        known = pieces[-1][-64:]
        found = read.rfind(known, 0, place)
        place = found + len(known) - len(pieces[-1])
        if found < 0:
            return ""
        if place <= end:
            hidden_to_end = PLACEHOLDER if after and end - place >= len(pieces[-1]) else ""
            return PLACEHOLDER.join([*pieces[:-1], pieces[-1][: end - place]]) + hidden_to_end
        pieces.pop()
        after = True
    return ""


def _from(start: int, read: str, redacted: str) -> str:
    """Return the part of `redacted` that comes from `read[start:]`."""
    end = len(read) - start
    return _reversed(_up_to(end, read[::-1], _reversed(redacted)))


def _reversed(redacted: str) -> str:
    return redacted.replace(PLACEHOLDER, PLACEHOLDER[::-1])[::-1]


def shown_trace(text: str, without: Callable[[str], str] = lambda part: part) -> Shown:
    """Return the first and last part of a traceback: the start, and the error at the end.

    `without` removes lines that must not be shown. The middle of a long traceback is not read.
    """
    if len(text) <= TRACE_HEAD + TRACE_TAIL:
        return Shown(*redact_trace(without(text)))
    above, below = without(text[: TRACE_HEAD + _SLACK]), without(text[-TRACE_TAIL - _SLACK :])
    head, hidden = redact_trace(above)
    tail, hidden_below = redact_trace(below)
    head = _up_to(max(0, len(above) - _SLACK), above, head)[:TRACE_HEAD]
    tail = _from(min(_SLACK, len(below)), below, tail)[-TRACE_TAIL:]
    left_out = len(text) - TRACE_HEAD - TRACE_TAIL
    return Shown(f"{head}\n  … {left_out} characters left out …\n{tail}", hidden + hidden_below)


class _Allowance:
    """Budget of characters to copy, over all branches: a million short strings are as long as a long one."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.hidden = 0  # values hidden in cut text or under a cut name, which the final redaction cannot count

    def spend(self, characters: int) -> bool:
        self.characters -= characters
        return self.characters > 0


def _shortened(value: object, longest: int, left: _Allowance, depth: int = 0) -> object:
    if isinstance(value, str):
        left.spend(min(len(value), longest) + 2)
        if len(value) <= longest + _SLACK:
            return value
        beginning, hidden = _beginning(value, longest)
        left.hidden += hidden
        return beginning + _CUT
    if isinstance(value, dict):
        if depth >= DEEPEST:
            return "… nested too deep to show …"
        copy: dict[object, object] = {}
        for name, inner in value.items():
            shown = name if isinstance(name, str) else str(name)
            if len(shown) > LONGEST_NAME:
                is_secret, (beginning, hidden) = is_secret_name(shown), _beginning(shown, LONGEST_NAME)
                left.hidden += hidden
                shown = beginning[:LONGEST_NAME]
            else:
                is_secret = False  # as `redact` does
            if not left.spend(len(shown) + 4):
                copy["…"] = f"{len(value) - len(copy)} more"
                break
            if is_secret:
                left.hidden += 1
                copy[shown] = PLACEHOLDER
                continue
            copy[shown] = _shortened(inner, longest, left, depth + 1)
        return copy
    if isinstance(value, list | tuple):
        if depth >= DEEPEST:
            return "… nested too deep to show …"
        items: list[object] = []
        for inner in value:
            if not left.spend(4):
                items.append(f"… {len(value) - len(items)} more …")
                break
            items.append(_shortened(inner, longest, left, depth + 1))
        return items
    left.spend(8)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4_000:
        return f"… a number of {value.bit_length()} bits …"  # Python limits int-to-text conversion to 4,300 digits
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # not representable in JSON
    return value


def _cut_strings(value: object, longest: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= longest + len(_CUT) else value[:longest] + _CUT
    if isinstance(value, dict):
        return {name: _cut_strings(inner, longest) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut_strings(inner, longest) for inner in value]
    return value


def _unreadable(value: object) -> str:
    return f"<{type(value).__name__}>"


_WRITTEN = json.JSONEncoder(default=_unreadable)
