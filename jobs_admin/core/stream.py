"""Size of the stream of reports in bytes, counted the same way by writers and readers."""

from __future__ import annotations

import re
from collections.abc import Mapping

BESIDE = 64  # overhead of a report in a stream: id, lengths, its share of a node (measured: 28 to 60)


# A count has at most 15 digits, which a double represents exactly. Any other value means that nothing was counted.
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
    """Return a script with two functions.

    `counted(key)` returns the bytes of the stream, or nil if the count is missing. `count_on(key, bytes)` adds bytes,
    negative ones for removed reports. If the count is missing, the next writer of a report measures it.
    """
    return _LUA_COUNT + text


# KEYS: the count. ARGV: bytes.
COUNT_ON = with_counted("count_on(KEYS[1], tonumber(ARGV[1])) return 1")


def parse_count(value: bytes | None) -> int | None:
    """Return the stored count; None if it is missing."""
    return int(value) if value is not None and _COUNT.fullmatch(value) else None


def weight(entry: Mapping[bytes, bytes]) -> int:
    """Return the bytes that a report takes in the stream, to within a few per cent."""
    return BESIDE + sum(len(name) + len(value) for name, value in entry.items())
