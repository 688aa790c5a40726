"""The check of the shape that Celery takes for granted in a message. Made only for one that Celery has just broken on.

Celery checks what a producer of its own can get wrong, and believes the rest: a header of another type, or a body that is
no list of three, ends the worker by whatever error comes of it. Nothing is decoded here, but JSON that says it is such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What comes of reading a value of another shape. Not of a connection, a pool, or a lack of memory.
_OF_A_SHAPE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def fault(message: Any, error: Exception) -> str:
    """Return what is wrong with it, as a sentence; "" where the error cannot be laid to the message."""
    if not isinstance(error, _OF_A_SHAPE) or isinstance(error, OSError):
        return ""
    headers, body = message.headers, _decoded(message)
    if not isinstance(headers, Mapping):
        return "Its headers are no object."
    if "task" not in headers:
        return _of_fields(body if isinstance(body, Mapping) else {})
    if isinstance(body, Mapping) and "args" in body:
        return _of_fields({**body, **headers})
    if not (isinstance(body, list | tuple) and len(body) == 3):
        return "Its body is not the list of arguments, keyword arguments and what follows that Celery writes."
    return _of_fields(headers)


def limits_fault(limits: Any, is_timed: bool) -> str:
    """The same of a request's time limits; `is_timed`: whether its pool reckons with them, and would end by a text."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return "Its time limits are no pair."
    if is_timed and any(isinstance(one, str | bytes | list | dict) for one in limits):
        return "Its time limits are no numbers."
    return ""


def _of_fields(fields: Mapping[str, Any]) -> str:
    if not isinstance(fields.get("task"), str):
        return "The name of its task is no text."
    if not isinstance(fields.get("id"), str):
        return "It has no id that is a text."
    for name in ("eta", "expires"):
        if not isinstance(fields.get(name), str | None):
            return f"Its {name} is no text."
    for name, kind in (("stamped_headers", list), ("stamps", dict)):
        if not isinstance(fields.get(name), kind | None):
            return f"Its {name} have another type than Celery's."
    return ""


def _decoded(message: Any) -> Any:
    found = getattr(message, "_decoded_cache", None)
    if not found and message.content_type == "application/json":
        try:
            return message.decode()  # an empty one is not remembered
        except Exception:
            return None
    return found
