"""The tasks that a worker knows, reported once by a fleet of the same app."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

MOST = 2_000
MOST_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class KnownTasks:
    """`digest` travels with each heartbeat, `text` only where the store has none of that digest. "": too many to
    report.
    """

    digest: str
    text: str  # JSON list of names

    @property
    def is_cut(self) -> bool:
        return not self.digest


def known_tasks(names: Iterable[str]) -> KnownTasks:
    """Return the tasks of the app; Celery's own are in every worker."""
    listed = sorted(name for name in names if not name.startswith("celery."))
    text = json.dumps(listed)
    # A part of them would be of no use: what is not in it may be known all the same.
    if len(listed) > MOST or len(text) > MOST_BYTES:
        return KnownTasks("", "")
    return KnownTasks(hashlib.sha256(text.encode()).hexdigest()[:32], text)
