"""One value among a job's arguments, by its path: `kwargs.customer_id`, `args.0.tenant`."""

from __future__ import annotations

from typing import Any


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
