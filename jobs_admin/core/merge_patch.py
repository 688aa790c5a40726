"""JSON Merge Patch (RFC 7396, October 2014): a document that says what to change of another."""

from __future__ import annotations

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with the patch laid over it; neither is changed.

    An object changes what it names and leaves the rest, null takes a member out, and anything else, a list too, takes
    the place of what was there.
    """
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merge_patch(found.get(name), value)
    return found
