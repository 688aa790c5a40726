"""Arguments of a job: one value by its path, JSON Merge Patch, and edits that never send a redacted or cut value."""

from __future__ import annotations

import json
from typing import Any

from jobs_admin.core.redaction import PLACEHOLDER, TOO_DEEP
from jobs_admin.core.refused import Refused


def value_at(path: str, args: Any, kwargs: Any) -> Any:
    """None where nothing is there. Places in a list count from 0."""
    value: Any = {"args": args, "kwargs": kwargs}
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


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


DEEPEST = 100  # levels of lists and objects that an edit may have

# How `core.display` says that it left something out. Sent as a value, each of them would be nonsense.
_LEFT_OUT = (
    PLACEHOLDER,
    TOO_DEEP,
    "… (cut)",
    "… nested too deep to show …",
    " more …",
    " bits …",
    "too many to show …",
)


def merge(real: Any, shown: Any, edited: Any, path: str) -> Any:
    """The value to send: `edited`, in which whatever is still as it was `shown` takes its real value back.

    Raises Refused for a placeholder that is not where it was shown (its real value is not known there), and for a
    list or mapping of which only a part was shown.
    """
    if _same(edited, shown):
        return real
    if isinstance(edited, dict):
        return _merge_mapping(real, shown, edited, path)
    if isinstance(edited, list):
        return _merge_list(real, shown, edited, path)
    refuse_placeholder(edited, path)
    return edited


def _merge_mapping(real: Any, shown: Any, edited: dict[str, Any], path: str) -> dict[str, Any]:
    if isinstance(real, dict) and isinstance(shown, dict):
        if "…" in shown and "…" not in real:
            raise Refused("bad_edit", f"{path} is too long to be shown completely, so it cannot be edited.", path)
        known = shown.keys() & real.keys()
    else:
        known = set()
    merged = {}
    for name, value in edited.items():
        inner = f"{path}.{name}"
        if name in known:
            merged[name] = merge(real[name], shown[name], value, inner)
        else:
            # Also a name that was itself redacted: its real spelling is not known.
            refuse_placeholder(name, inner)
            refuse_placeholder(value, inner)
            merged[name] = value
    return merged


def _merge_list(real: Any, shown: Any, edited: list[Any], path: str) -> list[Any]:
    if not (isinstance(real, list) and isinstance(shown, list)):
        refuse_placeholder(edited, path)
        return edited
    if len(shown) != len(real):
        raise Refused("bad_edit", f"{path} is too long to be shown completely, so it cannot be edited.", path)
    if len(edited) != len(shown):
        # Places have moved, unless everything shown still stands where it stood and the rest is new.
        beginning = edited[: len(shown)]
        if len(edited) > len(shown) and _same(beginning, shown):
            refuse_placeholder(edited[len(shown) :], path)
            return [*real, *edited[len(shown) :]]
        refuse_placeholder(edited, path)
        return edited
    return [merge(*values, f"{path}.{i}") for i, values in enumerate(zip(real, shown, edited, strict=True))]


def refuse_placeholder(value: Any, path: str, depth: int = 0) -> None:
    """Raises Refused for a value in which something hidden or cut was typed, moved or left beside a change.

    Also for one so deep that what stores and shows it later would break.
    """
    if depth > DEEPEST:
        raise Refused("bad_edit", f"{path[:80]}… is nested deeper than {DEEPEST} levels.", path)
    if isinstance(value, str):
        for mark in _LEFT_OUT:
            if mark in value:
                raise Refused(
                    "bad_edit",
                    f"{path} contains {mark.strip()!r}, a placeholder for a value that is not shown. Leave the "
                    "placeholder unchanged, or enter the real value.",
                    path,
                )
    elif isinstance(value, dict):
        for name, inner in value.items():
            refuse_placeholder(name, f"{path}.{name}")
            refuse_placeholder(inner, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            refuse_placeholder(inner, f"{path}.{index}", depth + 1)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: `1`, `1.0` and `true` are three values."""
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False
