"""Policies to be read: what is in force, and what was."""

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
    rows: list[PolicyVersion]  # newest first
    next: str | None  # `after` of the page that follows; None on the last
    count: int  # of all


def published(viewer: Viewer) -> list[PolicyVersion]:
    """The policies in force that may decide about the viewer's sources, by name."""
    return _visible(viewer, PolicyVersion.objects.filter(is_published=True).order_by("name"))


def get(viewer: Viewer, name: str) -> PolicyVersion:
    """The version in force. Raises NotFound."""
    return _one(viewer, PolicyVersion.objects.filter(name=name, is_published=True))


def version(viewer: Viewer, name: str, number: int) -> PolicyVersion:
    """Raises NotFound."""
    return _one(viewer, PolicyVersion.objects.filter(name=name, version=number))


def versions(viewer: Viewer, name: str, *, after: str | None = None, limit: int = 50) -> VersionPage:
    """All that was ever in force under a name, also where none is now. Raises NotFound where nothing ever was."""
    found = PolicyVersion.objects.filter(name=name).order_by("-version")
    if (below := whole_number(after)) is not None:
        found = found.filter(version__lt=below)
    # What a policy matched may have changed with its version, and with it who sees it.
    seen = (one for one in found.iterator(chunk_size=100) if viewer.sees_any_of(one.match_source))
    rows = list(islice(seen, limit + 1))
    if not rows and below is None:
        raise NotFound("Policy not found, or not visible to you.")
    sources = PolicyVersion.objects.filter(name=name).values_list("match_source", flat=True)
    count = sum(viewer.sees_any_of(source) for source in sources)
    return VersionPage(rows[:limit], str(rows[limit - 1].version) if len(rows) > limit else None, count)


def active() -> list[Policy]:
    """The policies in force, for whoever judges by them and shows none."""
    return readable(PolicyVersion.objects.filter(is_published=True).order_by("name"))


def readable(found: Iterable[PolicyVersion]) -> list[Policy]:
    """Return their policies, without those that a newer Redrive or a database edit wrote: no worker takes them either."""
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
