"""The call of an RQ job: its field `data`, the compressed, serialised `(function, instance, args, kwargs)`. Pure.

Pickled by default, or JSON; custom serialisers are not read. Nothing is unpickled.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rq import pickled

LARGEST = 15 * 1024**2  # maximum bytes of a job that are read


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a job, as far as it is readable."""

    function: str = ""
    instance: Any = None
    args: list[Any] | None = None  # None: not readable
    kwargs: dict[str, Any] = field(default_factory=dict)
    serializer: str = ""  # json, pickle, or "" for another
    is_plain: bool = False  # can be written with other arguments


def read_call(data: bytes | None) -> Call:
    """Read a job's call. Nothing is unpickled."""
    plain = decompressed(data or b"")
    if plain is None:
        return Call()
    serializer, value, is_plain = "", None, False
    if plain[:1] == b"[":
        value, serializer, is_plain = _parsed(plain), "json", True
    if not isinstance(value, list):
        try:
            (value, is_plain), serializer = pickled.read(plain), "pickle"
        except pickled.NotPickled:
            return Call()
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[0], str):
        return Call()
    function, instance, args, kwargs = value
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return Call(function, instance, serializer=serializer)
    return Call(function, instance, args, kwargs, serializer, is_plain and instance is None)


def _parsed(plain: bytes) -> Any:
    try:
        return json.loads(plain)
    except (ValueError, RecursionError):
        return None


def decompressed(data: bytes) -> bytes | None:
    """Return the data decompressed, or unchanged if not compressed; None if too large."""
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(data, LARGEST)
    except zlib.error:
        return data
    return None if reader.unconsumed_tail else plain


def encode_edited(data: bytes, args: list[Any] | None, kwargs: dict[str, Any] | None) -> bytes | None:
    """Return the job's data with these arguments; None without an edit. Raises SourceRefused."""
    if args is None and kwargs is None:
        return None
    call = _editable(data)
    args, kwargs = call.args if args is None else args, call.kwargs if kwargs is None else kwargs
    if call.serializer == "json":
        return zlib.compress(json.dumps([call.function, None, args, kwargs]).encode())
    value = (call.function, None, tuple(args or ()), kwargs)
    return zlib.compress(pickled.write(value, decompressed(data) or b""))


def _editable(data: bytes) -> Call:
    call = read_call(data)
    if call.args is None:
        raise SourceRefused(
            "The job's arguments cannot be read: they are neither JSON nor pickled. It can be sent as it is."
        )
    if not call.is_plain:
        raise SourceRefused(
            "The job's pickled arguments hold objects, which cannot be edited. It can be sent as it is."
        )
    return call


def arguments(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the editable arguments. Raises SourceRefused."""
    call = _editable(data)
    return call.args or [], call.kwargs
