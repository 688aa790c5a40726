"""Who may see a policy, and who may change one: decided by the sources that its match may touch.

A policy that names one source belongs to that source. One whose source is a pattern belongs to all of them, also to those
that will come.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from jobs_admin import config
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer


def may_see(viewer: Viewer, source: str) -> bool:
    """`source` is a match's, and may be a pattern."""
    return viewer.sees_any_of(source)


def must_see(viewer: Viewer, source: str) -> None:
    """Raises NotFound: what is out of sight is answered like what is not there."""
    if not may_see(viewer, source):
        raise NotFound("No policy is called so, or none that you may see.")


def may_publish(viewer: Viewer, source: str) -> bool:
    """Put in force or take out of it what matches this source, which may be a pattern."""
    return not config.is_read_only() and viewer.may(OPERATOR, _owner(source))


def must_publish(viewer: Viewer, sources: Iterable[str]) -> None:
    """Raises Refused; `note` it where that does not end with the transaction."""
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)
    for source in sources:
        if not viewer.may(OPERATOR, _owner(source)):
            where = "every source, because it matches more than one" if _owner(source) == EVERY_SOURCE else source
            message = f"This policy takes the role operator on {where}. Nothing was changed."
            raise Refused("forbidden", message, "match.source")


def audited(sources: Iterable[str]) -> list[str]:
    """One row of the audit each, so that the admin of one source reads what was done with its jobs."""
    return sorted({"" if _owner(source) == EVERY_SOURCE else source for source in sources}) or [""]


def note(viewer: Viewer, act: str, name: str, why: str, sources: Iterable[str]) -> None:
    with transaction.atomic():
        for source in audited(sources):
            audit.record(viewer, act, f"policy:{name}", source=source, reason=why, allowed=False)


def _owner(source: str) -> str:
    return EVERY_SOURCE if "*" in source else source
