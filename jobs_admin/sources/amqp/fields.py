"""Properties and headers of an AMQP message in wire format: split, and joined again byte for byte.

A library that parses headers into Python and writes them again changes their types (a short becomes a long, bytes
become text), and fails on malicious values: an impossible timestamp, invalid text. Here only requested values are
decoded. AMQP 0-9-1, section 4.2; type letters as in RabbitMQ.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from amqp.serialization import dumps

# Properties of Basic in the order of their flags, most significant first.
PROPERTIES = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "T"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
_FIXED = {
    "b": 1,
    "B": 1,
    "U": 2,
    "u": 2,
    "s": 2,
    "I": 4,
    "i": 4,
    "L": 8,
    "l": 8,
    "f": 4,
    "d": 8,
    "D": 5,
    "t": 1,
    "T": 8,
    "V": 0,
}
_NUMBERS = {
    "b": ">b",
    "B": ">B",
    "U": ">h",
    "u": ">H",
    "s": ">h",
    "I": ">i",
    "i": ">I",
    "L": ">q",
    "l": ">q",
    "f": ">f",
    "d": ">d",
}
_DEEPEST = 30

Parts = dict[str, bytes]  # property -> its value in wire format, with length


class Malformed(ValueError):
    """The bytes are not the properties of an AMQP message."""


def split(raw: bytes) -> Parts:
    """Return the properties in the second half of a content header: flags, then values. Raises Malformed."""
    try:
        (flags,) = struct.unpack_from(">H", raw)
        if flags & 1:
            raise Malformed("it has more flags than AMQP knows")
        at, found = 2, {}
        for n, (name, kind) in enumerate(PROPERTIES):
            if flags & (1 << (15 - n)):
                end = at + {"o": 1, "T": 8, "s": 1 + raw[at], "F": 0}[kind]
                if kind == "F":
                    end = at + 4 + struct.unpack_from(">I", raw, at)[0]
                if end > len(raw):
                    raise Malformed("a property is longer than all of them")
                found[name] = raw[at:end]
                at = end
    except (struct.error, IndexError) as error:
        raise Malformed("its properties break off") from error
    return found


def join(parts: Mapping[str, bytes]) -> bytes:
    flags, values = 0, b""
    for n, (name, _) in enumerate(PROPERTIES):
        if name in parts:
            flags |= 1 << (15 - n)
            values += parts[name]
    return struct.pack(">H", flags) + values


def entries(table: bytes) -> list[tuple[bytes, bytes]]:
    """Return pairs (name, entry with its name in wire format) of a table with length. Raises Malformed."""
    found = []
    at = 4
    try:
        while at < len(table):
            value = at + 1 + table[at]
            end = _end(table, value)
            if end > len(table):
                raise Malformed("a header is longer than all of them")
            found.append((table[at + 1 : value], table[at:end]))
            at = end
    except (struct.error, IndexError) as error:
        raise Malformed("its headers break off") from error
    return found


def replace_headers(table: bytes, names: Collection[bytes], adding: Mapping[str, Any] | None = None) -> bytes:
    """Return the table without these headers and with others appended; the rest keeps its bytes. Raises Malformed."""
    remaining = b"".join(entry for name, entry in entries(table) if name not in names)
    more = dumps("F", [dict(adding)])[4:] if adding else b""
    return struct.pack(">I", len(remaining) + len(more)) + remaining + more


def decode(table: bytes) -> dict[str, Any]:
    """Return the headers for display; values that are not text or dates are described. Raises Malformed."""
    return {_text(name): _value(entry, 1 + len(name), 0)[0] for name, entry in entries(table)}


def text(parts: Mapping[str, bytes], name: str) -> str:
    """Return a short-text property; "" if it is missing."""
    return _text(parts[name][1:]) if name in parts else ""


def number(parts: Mapping[str, bytes], name: str) -> int | None:
    return int.from_bytes(parts[name], "big") if name in parts else None


def short(value: str) -> bytes:
    """Return a short text in wire format. Raises ValueError if it is too long."""
    octets = value.encode()
    if len(octets) > 255:
        raise ValueError("a short text has 255 bytes at most")
    return bytes([len(octets)]) + octets


def _text(octets: bytes) -> str:
    return bytes(octets).decode("utf-8", "backslashreplace")


def _end(buf: bytes, at: int) -> int:
    kind = chr(buf[at])
    if kind in _FIXED:
        return at + 1 + _FIXED[kind]
    if kind in "SxFA":
        return at + 5 + int(struct.unpack_from(">I", buf, at + 1)[0])
    raise Malformed(f"a header has the type {kind!r}, which is not known")


def _value(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind, end = chr(buf[at]), _end(buf, at)
    if end > len(buf):
        raise Malformed("a header breaks off")
    at += 1
    if depth > _DEEPEST:
        return "… nested too deep to show …", end
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], buf, at)[0], end
    if kind == "t":
        return bool(buf[at]), end
    if kind == "V":
        return None, end
    if kind == "T":
        return _moment(struct.unpack_from(">Q", buf, at)[0]), end
    if kind == "D":
        return _decimal(buf[at], struct.unpack_from(">i", buf, at + 1)[0]), end
    if kind in "Sx":
        return _text(buf[at + 4 : end]), end
    at += 4
    if kind == "A":
        items = []
        while at < end:
            item, at = _value(buf, at, depth + 1)
            items.append(item)
        return items, end
    table: dict[str, Any] = {}
    while at < end:
        name = _text(buf[at + 1 : at + 1 + buf[at]])
        table[name], at = _value(buf, at + 1 + buf[at], depth + 1)
    return table, end


def _moment(seconds: int) -> Any:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return seconds


def _decimal(scale: int, unscaled: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    units, rest = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    return ("-" if unscaled < 0 else "") + units + (f".{rest}" if rest else "")
