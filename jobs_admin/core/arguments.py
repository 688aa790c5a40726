"""Arguments of a job: values by path, JSON Merge Patch, and edits that never send a redacted or cut value."""

from __future__ import annotations

import json
from typing import Any

from jobs_admin.core.redaction import PLACEHOLDER, TOO_DEEP
from jobs_admin.core.refused import Refused


def value_at(path: str, args: Any, kwargs: Any) -> Any:
    """Return the value at a path; None if there is none. List indexes count from 0."""
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
    """Return `target` with the JSON Merge Patch applied; neither is changed.

    An object changes the members it names, null removes a member, and any other value, including a list, replaces the
    old one.
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


DEEPEST = 100  # maximum nesting of lists and objects in an edit

# Marks that `core.display` puts in place of an omission. Sent as a value, each would be nonsense.
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
    """Return the value to send: `edited`, with the real value wherever it is unchanged from `shown`.

    Raises Refused for a placeholder in another place than shown (its real value is unknown there), and for an edited
    list or mapping that was only shown in part.
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
            # Includes a redacted name: its real spelling is unknown.
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
        # Positions changed, unless everything shown is unchanged and the rest is appended.
        beginning = edited[: len(shown)]
        if len(edited) > len(shown) and _same(beginning, shown):
            refuse_placeholder(edited[len(shown) :], path)
            return [*real, *edited[len(shown) :]]
        refuse_placeholder(edited, path)
        return edited
    return [merge(*values, f"{path}.{i}") for i, values in enumerate(zip(real, shown, edited, strict=True))]


def refuse_placeholder(value: Any, path: str, depth: int = 0) -> None:
    """Raise Refused for a value that contains a typed, moved or partly changed placeholder.

    Also for a value nested too deeply for the code that stores and shows it.
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
    """Return whether two values are equal as JSON: `1`, `1.0` and `true` differ."""
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False
