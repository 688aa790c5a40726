"""An entry of the stream as one document, for reports that are kept raw (`Unfiled`).

With it goes the key of its message, where a worker sealed that: the document is then under the payload key that encrypts it
alone, and not under the older one that the worker sealed for as well.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from jobs_admin.trust import unsealing

_MESSAGE_KEY = ""  # no field of an entry is called so


def encode(fields: Mapping[bytes, bytes], key: bytes | None = None) -> bytes:
    """Return the fields of an entry, byte for byte, with the key of its message: `key`, else the one that this desk finds."""
    encoded = {name.decode("latin-1"): value for name, value in fields.items()}
    if key := key or unsealing.message_key(fields):
        encoded[_MESSAGE_KEY] = key
    return json.dumps({name: base64.b64encode(value).decode() for name, value in encoded.items()}).encode()


def size(fields: Mapping[bytes, bytes]) -> int:
    """Return the bytes of an entry: its names count, as whoever writes it chooses them."""
    return sum(len(name) + len(value) for name, value in fields.items())


def head(fields: Mapping[bytes, bytes], most: int) -> dict[bytes, bytes]:
    """Return the fields cut to `most` bytes, the short ones first: they identify the entry."""
    found: dict[bytes, bytes] = {}
    for name, value in sorted(fields.items(), key=lambda field: len(field[0]) + len(field[1])):
        if len(name) >= most:
            continue
        found[name] = value[: most - len(name)]
        most -= len(name) + len(found[name])
    return found


def decode(document: bytes) -> tuple[dict[bytes, bytes], bytes | None]:
    """Return the fields of the entry, and the key of its message where one is stored. Raises ValueError."""
    encoded = {name: base64.b64decode(value) for name, value in json.loads(document).items()}
    key = encoded.pop(_MESSAGE_KEY, None)
    return {name.encode("latin-1"): value for name, value in encoded.items()}, key


def with_message_key(document: bytes) -> bytes:
    """Return the same document with the key of its message, where this desk finds it and it is not there yet."""
    try:
        fields, key = decode(document)
    except (ValueError, TypeError, AttributeError):
        return document
    return document if key is not None else encode(fields)
