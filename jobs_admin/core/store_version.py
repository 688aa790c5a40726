"""The earliest versions of Redis and Valkey in which known faults of Lua scripts are fixed.

Workers run scripts in Redrive's store (`EVAL`, `core/worker_acl.py`). In earlier versions a script can take the server over
(CVE-2025-49844, CVE-2025-46817, CVE-2024-46981), run code as another user of it (CVE-2025-46818), or read its memory
(CVE-2025-46819). Valkey's versions also fix replies that a script forges on a connection that several users share (CVE-2025-67733).
"""

from __future__ import annotations

import re

REDIS, VALKEY = "Redis", "Valkey"

# By line (major, minor): its first version without them. A line that is not named and is older than one that is has none.
_FIXED: dict[str, dict[tuple[int, int], tuple[int, int, int]]] = {
    REDIS: {(6, 2): (6, 2, 20), (7, 2): (7, 2, 11), (7, 4): (7, 4, 6), (8, 0): (8, 0, 4), (8, 2): (8, 2, 2)},
    VALKEY: {(7, 2): (7, 2, 12), (8, 0): (8, 0, 7), (8, 1): (8, 1, 6), (9, 0): (9, 0, 3)},
}
_VERSION = re.compile(r"(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?")


def least_fixed_version(product: str, version: str) -> str | None:
    """Return the least version to upgrade to; None where `version` of the product (REDIS, VALKEY) has the fixes, or is none.

    A distribution may have fixed an earlier version under its old number: then the answer is too careful.
    """
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups())
    line = min((line for line in _FIXED[product] if line >= (major, minor)), default=None)
    least = _FIXED[product][line] if line else (0, 0, 0)
    return ".".join(map(str, least)) if (major, minor, patch) < least else None
