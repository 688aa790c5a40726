"""The copy of a job that may be shown: redacted, and cut to a size that no job can exceed. Cuts are visible."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from jobs_admin.core.redaction import PLACEHOLDER, is_secret_name, redact, redact_text

JSON_SIZE = 16_000  # characters of JSON text, for arguments and for headers
MESSAGE_SIZE = 8_000  # characters
TRACE_HEAD, TRACE_TAIL = 32_000, 96_000  # characters: where it began, and the error at its end
DEEPEST = 50
LONGEST_NAME = 200  # characters of a field's name
# Read a little more than is shown: a secret that straddles the cut is recognised before it is cut.
_SLACK = 4_096


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
        copy = _cut_strings(copy, longest)
        text = json.dumps(copy, default=_unreadable)
        if len(text) <= JSON_SIZE:
            return Shown(text, hidden)
    return Shown(json.dumps(f"… {len(text)} characters of JSON, too many to show …"), hidden)


def shown_message(text: str) -> Shown:
    redacted, hidden = redact_text(text[: MESSAGE_SIZE + _SLACK])
    if len(redacted) > MESSAGE_SIZE:
        redacted = f"{redacted[:MESSAGE_SIZE]}… (cut, {len(text)} characters)"
    return Shown(redacted, hidden)


def shown_trace(text: str) -> Shown:
    """The first and the last part of a traceback: where it began, and the error at its end."""
    if len(text) <= TRACE_HEAD + TRACE_TAIL:
        return Shown(*redact_text(text))
    head, hidden = redact_text(text[: TRACE_HEAD + _SLACK])
    tail, hidden_below = redact_text(text[-TRACE_TAIL - _SLACK :])
    left_out = len(text) - TRACE_HEAD - TRACE_TAIL
    return Shown(
        f"{head[:TRACE_HEAD]}\n  … {left_out} characters left out …\n{tail[-TRACE_TAIL:]}", hidden + hidden_below
    )


class _Allowance:
    """How much may still be copied, over all branches: a million short strings are as long as one long one."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.hidden = 0  # values whose name was cut: what it told is lost afterwards

    def spend(self, characters: int) -> bool:
        self.characters -= characters
        return self.characters > 0


def _shortened(value: object, longest: int, left: _Allowance, depth: int = 0) -> object:
    if isinstance(value, str):
        left.spend(min(len(value), longest) + 2)
        return value[: longest + _SLACK]
    if isinstance(value, dict):
        if depth >= DEEPEST:
            return "… nested too deep to show …"
        copy: dict[object, object] = {}
        for name, inner in value.items():
            if not left.spend(len(str(name)[:LONGEST_NAME]) + 4):
                copy["…"] = f"{len(value) - len(copy)} more"
                break
            if len(str(name)) > LONGEST_NAME and is_secret_name(str(name)):
                left.hidden += 1
                copy[str(name)[:LONGEST_NAME]] = PLACEHOLDER
                continue
            copy[str(name)[:LONGEST_NAME]] = _shortened(inner, longest, left, depth + 1)
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
        return value if len(value) <= longest else f"{value[:longest]}… (cut)"
    if isinstance(value, dict):
        return {name: _cut_strings(inner, longest) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut_strings(inner, longest) for inner in value]
    return value


def _unreadable(value: object) -> str:
    return f"<{type(value).__name__}>"
