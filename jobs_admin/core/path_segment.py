"""URL segments of untrusted names, such as a queue's.

A queue may be named `a/b`, `..` or ` `. Browsers and servers interpret such segments even when percent-encoded (`%2F`,
`%2e`), so all characters except letters, digits and `-_.:@` are written as `~2F`.
"""

from __future__ import annotations

import re

_PLAIN = frozenset("-_.:@")
_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")


_EMPTY = "~"  # the empty name, of a report without a queue


def escaped(name: str) -> str:
    """Return the segment of a name; the mapping is one-to-one."""
    return (
        _EMPTY
        if not name
        else "".join(
            one if (one.isalnum() or one in _PLAIN) and not (one == "." and at == 0) else _hex(one)
            for at, one in enumerate(name)
        )
    )


def name_of(segment: str) -> str:
    """Return the name of a segment. Raises ValueError for an invalid segment."""
    if segment == _EMPTY:
        return ""
    name = _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("~", "")).decode(), segment)
    if escaped(name) != segment:
        raise ValueError(f"{segment!r} is not a valid name")
    return name


def _hex(text: str) -> str:
    return "".join(f"~{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))
