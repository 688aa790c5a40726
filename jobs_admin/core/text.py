"""Text that arrives from outside, made fit to be stored and shown."""

from __future__ import annotations

import re

# What no database column or UTF-8 file takes: NUL (PostgreSQL), and halves of surrogate pairs (both).
_REFUSED = re.compile("[\x00\ud800-\udfff]")


def representable(text: str) -> str:
    """`text` with every NUL as ␀ and every lone surrogate as its escape (`\\udcff`), so that nothing is hidden."""
    if text.isascii() and "\x00" not in text:  # the usual case, without a scan by pattern
        return text
    return _REFUSED.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    return "␀" if character == "\x00" else f"\\u{ord(character):04x}"
