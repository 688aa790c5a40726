"""Pauses of one source as the desk publishes them to its workers: queue, task, tenant or dependency -> end of the
pause.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from jobs_admin.core import untrusted

KINDS = ("queue", "task", "tenant", "dependency")
MOST = 500  # per source
LONGEST_NAME = 255
UNTIL_RESUMED = 0  # instead of a time


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses in force. Ends are Unix ms; `UNTIL_RESUMED` for none."""

    queues: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=dict)
    dependencies: Mapping[str, int] = field(default_factory=dict)  # name of a breaker

    def at(self, now_ms: float) -> Pauses:
        """Return the pauses in force at a time."""
        parts = (self.queues, self.tasks, self.tenants, self.dependencies)
        return Pauses(*({name: end for name, end in one.items() if not end or now_ms < end} for one in parts))

    def limit_to(self, kinds: Collection[str]) -> Pauses:
        """Return the pauses of these kinds."""
        parts = zip(KINDS, (self.queues, self.tasks, self.tenants, self.dependencies), strict=True)
        return Pauses(*(part if kind in kinds else {} for kind, part in parts))

    @property
    def is_aside(self) -> bool:
        """Return whether any pause puts jobs on hold, that is, any pause other than a queue's."""
        return bool(self.tasks or self.tenants or self.dependencies)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the pauses as JSON values.

        Empty parts unknown to older desks and workers are omitted, so that each finds what it would write.
        """
        more = {"tenants": dict(self.tenants), "dependencies": dict(self.dependencies)}
        found = {"queues": dict(self.queues), "tasks": dict(self.tasks)}
        return found | {name: ends for name, ends in more.items() if ends}

    def render(self) -> bytes:
        return json.dumps({"v": 1, **self.as_dict()}, sort_keys=True, separators=(",", ":")).encode()


def parse(text: bytes | str | None, last: Pauses | None = None) -> Pauses | None:
    """Return the published pauses; None for an invalid document.

    `last`: the previous pauses, whose tenants and dependencies an older desk's document does not end.
    """
    document = untrusted.read_object(text)
    queues, tasks = _ends(document.get("queues")), _ends(document.get("tasks"))
    if queues is None or tasks is None:
        return None
    if last is not None and _is_older(document):
        return Pauses(queues, tasks, last.tenants, last.dependencies)
    return Pauses(
        queues, tasks, _ends(document.get("tenants", {})) or {}, _ends(document.get("dependencies", {})) or {}
    )


def is_older(text: bytes | str | None) -> bool:
    """Return whether an older desk, which does not know pauses of tenants or dependencies, published it."""
    return _is_older(untrusted.read_object(text))


def _is_older(document: Mapping[str, object]) -> bool:
    # An older desk reads such a pause from the database as one of the task "".
    return any(isinstance(part := document.get(kind), dict) and "" in part for kind in ("queues", "tasks"))


def _ends(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict) or len(value) > MOST:
        return None
    found = {}
    for name, end in value.items():
        if not isinstance(end, int) or isinstance(end, bool) or end < 0:
            return None
        if 0 < len(name) <= LONGEST_NAME:
            found[name] = end
    return found
