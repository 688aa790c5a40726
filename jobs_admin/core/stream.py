"""The size of the stream of reports, in bytes: writers and readers count it in the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping

BESIDE = (
    64  # bytes that a report takes in a stream beside its own: id, lengths, its share of a node (measured: 28 to 60)
)


# A count is a plain whole number of at most 15 digits, which a double holds exactly. Anything else means that nobody counted.
_COUNT = re.compile(rb"[0-9]{1,15}")
_LUA_COUNT = """
local function counted(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and #found <= 15 and string.match(found, '^%d+$') and tonumber(found) or nil
end
local function count_on(key, bytes)
  local held = counted(key)
  if held then
    redis.call('SET', key, string.format('%.0f', math.max(0, held + bytes)))
  else
    redis.call('DEL', key)
  end
end
"""


def with_counted(text: str) -> str:
    """A script with the functions `counted(key)`, the bytes of the stream or nil where the count is missing, and
    `count_on(key, bytes)` for bytes that came or went (negative). Where the count is missing, the next writer of a
    report measures.
    """
    return _LUA_COUNT + text


# KEYS: the count. ARGV: bytes.
COUNT_ON = with_counted("count_on(KEYS[1], tonumber(ARGV[1])) return 1")


def parse_count(value: bytes | None) -> int | None:
    """Return the stored count; None where it is missing."""
    return int(value) if value is not None and _COUNT.fullmatch(value) else None


def weight(entry: Mapping[bytes, bytes]) -> int:
    """Bytes that a report takes there, within some per cent."""
    return BESIDE + sum(len(name) + len(value) for name, value in entry.items())
