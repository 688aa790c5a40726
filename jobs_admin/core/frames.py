"""A traceback without its secrets, at a tenth of the cost: frames that were seen before and hide nothing are not searched again.

The jobs that fail are mostly those that failed a moment ago: their frames are the same text, and only their messages differ. What
is remembered of a frame is that it hides nothing, and it is the source's text, never a value of a job.
"""

from __future__ import annotations

import re
from functools import lru_cache

from jobs_admin.core.redaction import redact_text

# As Python writes one: the place, then its lines of code.
_FRAMES = re.compile(r'(?:  File "[^"\n]*", line \d+, in [^\n]*\n(?:    [^\n]*\n)*)+')
_BEGINS = '  File "'
_LONGEST = 16_384  # characters of frames that stand in a row
_CUT = '\x00"\n'  # stands for what was left out
_THEN = "Zq7kTn2p: Zq7kTn2p9wRx4 Zq7kTn2p9wRx4\n"  # what begins among them would hide it too


def redact_trace(text: str) -> tuple[str, int]:
    """The same as `redact_text` of it."""
    if "\x00" in text:
        return redact_text(text)
    parts: list[str] = []
    cuts: list[str] = []
    at = 0
    for found in _FRAMES.finditer(text):
        frames = found[0]
        # Their beginning and their last lines stay: what begins before them or ends behind them is found as it would be.
        kept = _last_lines(frames)
        if kept <= len(_BEGINS) or len(frames) > _LONGEST or not _hide_nothing(frames):
            continue
        cuts.append(frames[len(_BEGINS) : kept])
        parts += [text[at : found.start()], _BEGINS, _CUT]
        at = found.start() + kept
    if not cuts:
        return redact_text(text)
    shown, hidden = redact_text("".join([*parts, text[at:]]))
    pieces = shown.split(_CUT)
    if len(pieces) != len(cuts) + 1:
        return redact_text(text)  # something hidden reaches over a cut
    whole = [pieces[0]]
    for cut, piece in zip(cuts, pieces[1:], strict=True):
        whole += [cut, piece]
    return "".join(whole), hidden


def _last_lines(frames: str) -> int:
    """Where the last two lines begin."""
    return frames.rfind("\n", 0, frames.rfind("\n", 0, -1)) + 1


@lru_cache(maxsize=256)
def _hide_nothing(frames: str) -> bool:
    return redact_text(frames + _THEN) == (frames + _THEN, 0)
