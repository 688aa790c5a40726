"""The changes that a patch makes in each job, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.web.differences import Difference, of_values
from jobs_admin.models import Failure
from jobs_admin.replays import PatchedJob, PatchedPage

_NAMES = {"args": "Arguments", "kwargs": "Keyword arguments"}


@dataclass(frozen=True, slots=True)
class Changed:
    failure: Failure
    differences: list[tuple[str, Difference]]  # only where something differs
    why_not: str

    @property
    def is_same(self) -> bool:
        return not self.differences


def changes(page: PatchedPage) -> list[Changed]:
    return [Changed(row.failure, _differences(row), "" if row.before else row.why) for row in page.rows]


def _differences(row: PatchedJob) -> list[tuple[str, Difference]]:
    if row.before is None or row.after is None:
        return []
    pairs = ((name, of_values(getattr(row.before, key), getattr(row.after, key))) for key, name in _NAMES.items())
    return [(name, one) for name, one in pairs if not one.is_same]
