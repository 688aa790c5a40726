"""The progress of signing: lines for the overview, and the page of sources and keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from jobs_admin import config
from jobs_admin.db.authorizing import may_write
from jobs_admin.desk import unconfigured_sources
from jobs_admin.models import Source, SourceKey
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer
from jobs_admin.trust import Cause, admission
from jobs_admin.trust.admission import Finding, RefusalCount, State


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    fix: list[tuple[bool, str]]  # parts of a sentence, with whether each is a command
    tone: str  # dead or retrying; "": no banner
    url: str  # URL of the page, if the viewer may open it


def lines(viewer: Viewer, state: State, now: datetime) -> list[Line]:
    """Return lines for the overview: refusals for viewers of the source, acts of admins for admins."""
    is_admin = viewer.may_anywhere(ADMIN)
    shown = [one for one in admission.findings(state, now) if _is_for(viewer, one)]
    url = reverse("redrive:source-list") if is_admin else ""
    return [Line(one.text, _parts(one.fix), _TONES[one.severity], url) for one in shown]


def _parts(text: str) -> list[tuple[bool, str]]:
    return [(bool(n % 2), part) for n, part in enumerate(text.split("`")) if part]


_TONES = {"high": "dead", "warning": "retrying", "info": ""}


def _is_for(viewer: Viewer, finding: Finding) -> bool:
    if finding.id == "refused":
        return True
    return viewer.may(ADMIN, EVERY_SOURCE) if finding.id == "unknown-sources" else viewer.may_anywhere(ADMIN)


@dataclass(frozen=True, slots=True)
class RefusedLine:
    row: RefusalCount
    may_file: bool
    may_discard: bool
    discarded: int  # stored reports of the source, for any reason: what the act would delete


@dataclass(frozen=True, slots=True)
class SourceLine:
    name: str
    signed_since: datetime | None
    unsigned_at: datetime | None
    keys: list[SourceKey]
    into: list[str]  # sources into which this one, which is not configured, can be merged


def page(viewer: Viewer, now: datetime) -> dict[str, object]:
    """Return the context of the page of sources and keys, for sources that the viewer administers."""
    state, mine = admission.state(viewer, now), viewer.sources(ADMIN)
    keys = SourceKey.objects.order_by("source", "-pk")
    sources = Source.objects.order_by("name")
    if mine is not None:
        keys, sources = keys.filter(source__in=mine), sources.filter(name__in=mine)
    by_source: dict[str, list[SourceKey]] = {}
    for key in keys[:_MOST]:
        by_source.setdefault(key.source, []).append(key)
    known = {row.name: row for row in sources[:_MOST]}
    return {
        "signing": state,
        "is_admin_of_all": mine is None,
        "refused": [
            RefusedLine(
                row,
                row.cause in (Cause.UNSIGNED, Cause.UNFILED) and row.stored > 0 and _may_decide(viewer, row.source),
                _may_decide(viewer, row.source),
                sum(
                    other.stored
                    for other in state.refused
                    if other.source == row.source and other.cause != Cause.UNFILED
                ),
            )
            for row in state.refused
        ],
        "sources": [
            SourceLine(
                name,
                known[name].signed_since if name in known else None,
                known[name].unsigned_at if name in known else None,
                by_source.get(name, []),
                _targets(viewer) if name in known and name not in config.sources() else [],
            )
            for name in sorted({*known, *by_source})
        ],
    }


def _may_decide(viewer: Viewer, source: str) -> bool:
    return bool(source) and viewer.may(ADMIN, source)  # reports without a source are handled in Django's admin


def _targets(viewer: Viewer) -> list[str]:
    return unconfigured_sources.targets() if may_write(viewer, ADMIN, EVERY_SOURCE) else []


_MOST = 500
