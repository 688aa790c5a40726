"""The copy of a job that may be shown: redacted, and cut to a size that no job can exceed. Cuts are visible."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from jobs_admin.core.frames import redact_trace
from jobs_admin.core.redaction import PLACEHOLDER, redact, redact_text
from jobs_admin.core.secret_names import is_secret_name

JSON_SIZE = 16_000  # characters of JSON text, for arguments and for headers
MESSAGE_SIZE = 8_000  # characters
TRACE_HEAD, TRACE_TAIL = 32_000, 96_000  # characters: where it began, and the error at its end
DEEPEST = 50
LONGEST_NAME = 200  # characters of a field's name
# Read a little more than is shown: a secret that straddles the cut is recognised before it is cut. Nothing of it is shown itself,
# whatever was hidden before it: at its end a secret is not whole, and is not recognised.
_SLACK = 4_096
_CUT = "… (cut)"


@dataclass(frozen=True, slots=True)
class Shown:
    text: str
    redacted: int  # how many values were hidden


def shown_json(value: object) -> Shown:
    """`value` as JSON text of at most JSON_SIZE characters; always valid JSON, and it says what was left out."""
    for longest in (JSON_SIZE // 2, 1_000, 100):
        allowance = _Allowance(JSON_SIZE)
        copy, hidden = redact(_shortened(value, longest, allowance))
        hidden += allowance.hidden
        text = _WRITTEN.encode(copy)
        if len(text) > longest:  # else none of its strings is longer
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
    """The text without its secrets, or where it is much longer than `longest` so many characters; and how many were hidden."""
    read = text[: longest + _SLACK]
    redacted, hidden = redact_text(read)
    return (redacted if len(read) == len(text) else _up_to(longest, read, redacted)[:longest]), hidden


def _up_to(end: int, read: str, redacted: str) -> str:
    """What of `redacted` comes from `read[:end]`."""
    pieces = redacted.split(PLACEHOLDER)
    place, after = len(read), False
    while pieces:
        # Known by its end. None stands further to the right than found here, so none is taken to be before `end` that is not.
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
    """What of `redacted` comes from `read[start:]`."""
    end = len(read) - start
    return _reversed(_up_to(end, read[::-1], _reversed(redacted)))


def _reversed(redacted: str) -> str:
    return redacted.replace(PLACEHOLDER, PLACEHOLDER[::-1])[::-1]


def shown_trace(text: str, without: Callable[[str], str] = lambda part: part) -> Shown:
    """The first and the last part of a traceback: where it began, and the error at its end.

    `without` takes lines out that are not to be shown. Nothing else is read of it, however long it is.
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
    """How much may still be copied, over all branches: a million short strings are as long as one long one."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.hidden = 0  # in what was cut, and under a name that was: what it told is lost afterwards

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
                is_secret = False  # as `redact` finds
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
        return f"… a number of {value.bit_length()} bits …"  # int to text is limited to 4,300 digits
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
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
