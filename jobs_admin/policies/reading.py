"""Reading of policies: those in force, and former versions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from jobs_admin.core.policy import Policy
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer


@dataclass(frozen=True, slots=True)
class VersionPage:
    rows: list[PolicyVersion]  # latest first
    next: str | None  # `after` of the next page; None on the last
    count: int  # total


def published(viewer: Viewer) -> list[PolicyVersion]:
    """Return the policies in force that may decide about the viewer's sources, by name."""
    return _visible(viewer, PolicyVersion.objects.filter(is_published=True).order_by("name"))


def get(viewer: Viewer, name: str) -> PolicyVersion:
    """Return the version in force. Raises NotFound."""
    return _one(viewer, PolicyVersion.objects.filter(name=name, is_published=True))


def version(viewer: Viewer, name: str, number: int) -> PolicyVersion:
    """Return a version of a policy. Raises NotFound."""
    return _one(viewer, PolicyVersion.objects.filter(name=name, version=number))


def versions(viewer: Viewer, name: str, *, after: str | None = None, limit: int = 50) -> VersionPage:
    """Return all versions of a name, also if none is in force now. Raises NotFound if there never was one."""
    found = PolicyVersion.objects.filter(name=name).order_by("-version")
    if (below := whole_number(after)) is not None:
        found = found.filter(version__lt=below)
    # Versions may match different sources, and so be visible to different viewers.
    seen = (one for one in found.iterator(chunk_size=100) if viewer.sees_any_of(one.match_source))
    rows = list(islice(seen, limit + 1))
    if not rows and below is None:
        raise NotFound("Policy not found, or not visible to you.")
    sources = PolicyVersion.objects.filter(name=name).values_list("match_source", flat=True)
    count = sum(viewer.sees_any_of(source) for source in sources)
    return VersionPage(rows[:limit], str(rows[limit - 1].version) if len(rows) > limit else None, count)


def active() -> list[Policy]:
    """Return the policies in force, for evaluation only, not for display."""
    return readable(PolicyVersion.objects.filter(is_published=True).order_by("name"))


def readable(found: Iterable[PolicyVersion]) -> list[Policy]:
    """Return their policies, without those written by a newer Redrive or by hand, which workers ignore too."""
    policies = []
    for one in found:
        with suppress(Refused):
            policies.append(one.policy)
    return policies


def _visible(viewer: Viewer, found: Iterable[PolicyVersion]) -> list[PolicyVersion]:
    return [one for one in found if viewer.sees_any_of(one.match_source)]


def _one(viewer: Viewer, found: Iterable[PolicyVersion]) -> PolicyVersion:
    seen = _visible(viewer, found)
    if not seen:
        raise NotFound("Policy not found, or not visible to you.")
    return seen[0]
