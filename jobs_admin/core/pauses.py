"""The pauses of one source as the desk publishes them to its workers: queue or task -> time at which the pause ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs_admin.core import untrusted

MOST = 500  # of one source
LONGEST_NAME = 255
UNTIL_RESUMED = 0  # instead of a time


@dataclass(frozen=True, slots=True)
class Pauses:
    """Ends in ms since 1970; `UNTIL_RESUMED` for none."""

    queues: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)

    def at(self, now_ms: float) -> Pauses:
        """Return those in force at a time."""
        return Pauses(
            *({name: end for name, end in one.items() if not end or now_ms < end} for one in (self.queues, self.tasks))
        )

    def render(self) -> bytes:
        document = {"v": 1, "queues": dict(self.queues), "tasks": dict(self.tasks)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parse(text: bytes | str | None) -> Pauses | None:
    """Return the published pauses; None for what is no such document."""
    document = untrusted.read_object(text)
    queues, tasks = _ends(document.get("queues")), _ends(document.get("tasks"))
    return None if queues is None or tasks is None else Pauses(queues, tasks)


def _ends(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict) or len(value) > MOST:
        return None
    found = {}
    for name, end in value.items():
        if not 0 < len(name) <= LONGEST_NAME or not isinstance(end, int) or isinstance(end, bool) or end < 0:
            return None
        found[name] = end
    return found
