"""What a finding is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Where:
    """An empty field says nothing: a setting of a whole app has a source and no task."""

    source: str = ""
    queue: str = ""
    task: str = ""
    policy: str = ""  # its name

    def __str__(self) -> str:
        if self.policy:
            return f"policy {self.policy}"
        return " · ".join(filter(None, (self.source, self.task or (f"queue {self.queue}" if self.queue else ""))))
