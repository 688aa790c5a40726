"""Why a policy was not changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs_admin.core.policy import Problem

if TYPE_CHECKING:
    from jobs_admin.models import PolicyVersion
    from jobs_admin.policies.changes import Conflict


class NoSuchPolicy(Exception):
    """There is none of this name in force, no such version, or who asks may not see it."""


class PolicyRefused(Exception):
    """Nothing was changed. `field` names the input that is to blame, `problems` all that is wrong with a document.

    Codes: forbidden, read_only, invalid, stale, equal_match, taken.
    """

    def __init__(self, code: str, message: str, field: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.problems = code, message, field, list(problems)


class StaleEdit(PolicyRefused):
    """Somebody else changed it since: `changes` has what differs from the version that the edit began from."""

    def __init__(self, message: str, current: PolicyVersion | None, changes: Sequence[Conflict]) -> None:
        super().__init__("stale", message, "expected_version")
        self.current, self.changes = current, list(changes)


class EqualMatch(PolicyRefused):
    """Another policy could match the same job with equal right: nobody could say which decides."""

    def __init__(self, message: str, other: str) -> None:
        super().__init__("equal_match", message, "match")
        self.other = other
