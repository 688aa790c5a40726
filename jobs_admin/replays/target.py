"""Target of a replay: the failures that it covers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Max, QuerySet

from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, Viewer

MOST_SELECTED = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """Requested failures: the text of a query with absolute times, or a manual selection of failures."""

    query: str = ""
    selection: tuple[int, ...] = field(default=())

    @property
    def is_one_job(self) -> bool:
        return len(self.selection) == 1

    def within(self, viewer: Viewer, now: datetime, role: str = OPERATOR) -> QuerySet[Failure]:
        """Return all failures that the viewer may act on, in any state."""
        if self.selection:
            own = Failure.objects.filter(pk__in=self.selection)
            sources = viewer.sources(role)
            return own if sources is None else own.filter(source__in=sources)
        return failures.find_matching(viewer, language.parse(self.query, now), role=role)

    @property
    def digest(self) -> str:
        text = f"{self.query}\0{','.join(map(str, sorted(self.selection)))}"
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def build_target(query: str, selection: Sequence[int], now: datetime) -> Target:
    """Return the target with relative times made absolute. Raises Refused for a search unfit for acts."""
    if selection:
        ids = tuple(dict.fromkeys(int(pk) for pk in selection if 0 < int(pk) < 2**63))
        if len(ids) > MOST_SELECTED:
            raise Refused(
                "too_many",
                f"At most {MOST_SELECTED:,} failures can be chosen by hand. Replay all that match a search instead.",
                field="selection",
            )
        return Target(selection=ids or (0,))
    read = language.parse(query, now)
    if why := language.unfit_for_acts(read):
        raise Refused("bad_scope", why, field="query")
    return Target(query=language.format(language.pin(read, now)))


def find_matching(viewer: Viewer, query: str, now: datetime, field: str) -> QuerySet[Failure]:
    """Return the failures that match a search, in any replay.

    Raises Refused for a search unfit for acts; `field` names its input.
    """
    read = language.parse(query, now)
    if why := language.unfit_for_acts(read):
        raise Refused("bad_scope", f"{why} Nothing was changed.", field=field)
    return failures.find_matching(viewer, read, role=OPERATOR).order_by()


def parse_snapshot(snapshot: str, scope: Target) -> int | None:
    """Return the highest failure id in the preview; None without a preview. Raises Refused for an invalid snapshot."""
    if not snapshot:
        return None
    try:
        max_id, matched, count, digest, *options = snapshot.split(".")
        highest, *_ = int(max_id), int(matched), int(count), *(int(one, 16) for one in options)
        if len(options) > 1:
            raise ValueError(snapshot)
    except ValueError as error:
        raise Refused(
            "changed", "The snapshot is not one that a preview gave. Preview again.", field="snapshot"
        ) from error
    if digest != scope.digest:
        raise Refused(
            "changed", "The snapshot belongs to another search or selection. Preview again.", field="snapshot"
        )
    return highest


def highest_failure() -> int:
    return Failure.objects.aggregate(highest=Max("pk"))["highest"] or 0
