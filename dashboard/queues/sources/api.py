"""The calls for sources that are to be accepted, and for reports that were refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Path, Schema
from pydantic import AfterValidator, Field

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, api
from jobs_admin import config
from jobs_admin.core.text import representable
from jobs_admin.desk import unconfigured_sources
from jobs_admin.models.access import ADMIN, VIEWER, Viewer
from jobs_admin.queues import coverage
from jobs_admin.trust import admission

Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]


class Refused(Schema):
    """Reports of one source, refused for one cause."""

    source: str
    cause: str  # unsigned, signature, unknown: the source is to be accepted first; unfiled: no room, so they stay at their source
    refused: int
    stored: int
    dropped: int  # of those that were refused: there was no room
    first_at: datetime
    last_at: datetime
    why: str  # of the latest


class Decided(Schema):
    reports: int  # that are filed by `watch` within seconds, or were deleted


@api.get("/sources/refused", response={200: shapes.Listed[Refused], **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def list_refused_reports(request: HttpRequest) -> Any:
    """Return unknown sources (for admins of every source), then refused reports of known sources."""
    state = admission.state(request.auth, timezone.now())
    rows = [*state.waiting, *state.refused]
    return shapes.listed(rows, _answer, next=None, count=len(rows))


def _answer(one: admission.RefusalCount) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Refused.model_fields} | {"cause": one.word}


class Gap(Schema):
    start: datetime
    end: datetime | None  # null: it lasts
    missed: int  # jobs that ran meanwhile, at least


class Coverage(Schema):
    """Coverage of a source in guest mode in the last hour."""

    source: str
    share: float | None  # of the jobs that workers ran, from 0 to 1; null: they ran none
    executed: int
    seen: int
    gaps: list[Gap]
    silent: list[str]  # workers that send no events of their jobs, and have no guard
    heard_at: datetime | None  # when the latest event came
    failed: int  # jobs seen to fail; with has_more the latest of them
    replayable: int  # of these, jobs that could be replayed with the guard
    has_more: bool


@api.get("/sources/coverage", response={200: shapes.Listed[Coverage], **REFUSALS}, tags=["sources"])
@needs(VIEWER)
def list_coverage(request: HttpRequest) -> Any:
    """Return the coverage of each source in guest mode."""
    found = coverage.read([name for name in config.sources() if request.auth.may(VIEWER, name)], timezone.now())
    return shapes.listed(list(found.values()), _coverage, next=None, count=len(found))


def _coverage(one: coverage.SourceCoverage) -> dict[str, Any]:
    found = {name: getattr(one, name) for name in Coverage.model_fields}
    return found | {"gaps": [{"start": gap.start, "end": gap.end, "missed": gap.missed} for gap in one.gaps]}


@api.post("/sources/{source}/enable-events", response={204: None, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def enable_events(request: HttpRequest, source: Name) -> Any:
    """Ask all workers of a source in guest mode to send events of their jobs, until they restart."""
    return _switch_events(request, source, on=True)


@api.post("/sources/{source}/disable-events", response={204: None, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def disable_events(request: HttpRequest, source: Name) -> Any:
    """Ask all workers of a source in guest mode to send no more events of their jobs."""
    return _switch_events(request, source, on=False)


def _switch_events(request: HttpRequest, source: str, *, on: bool) -> tuple[int, None]:
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    coverage.switch_events(request.auth, source, on=on)
    return 204, None


@api.post("/sources/{source}/accept", response={200: Decided, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def accept_source(request: HttpRequest, source: Name) -> Any:
    """Accept an unknown source, and file its stored reports. Needs an admin of every source."""
    return {"reports": admission.accept(request.auth, source)}


@api.post("/sources/{source}/discard", response={200: Decided, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def discard_source(request: HttpRequest, source: Name) -> Any:
    """Delete the stored reports of an unknown source. Needs an admin of every source."""
    return {"reports": admission.discard(request.auth, source)}


@api.post("/sources/{source}/file", response={200: Decided, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def file_refused_reports(request: HttpRequest, source: Name) -> Any:
    """File the stored unsigned and unfiled reports of a source."""
    return _decided(request, source, admission.file_unsigned)


@api.post("/sources/{source}/discard-refused", response={200: Decided, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def discard_refused_reports(request: HttpRequest, source: Name) -> Any:
    """Delete the stored refused reports of a known source, and their count."""
    return _decided(request, source, admission.discard_refused)


class Merge(Schema):
    into: Annotated[str, Field(max_length=63), AfterValidator(representable)]


class Moved(Schema):
    moved: int  # failures
    left: int  # reported under both names: they stay, and so does the source


@api.post("/sources/{source}/merge", response={200: Moved, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def merge_source(request: HttpRequest, source: Name, body: Merge) -> Any:
    """Move the failures of a source that is not configured into one that is, and remove it. Needs an admin of every source."""
    merged = unconfigured_sources.merge(request.auth, source, body.into)
    return {"moved": merged.moved, "left": merged.left}


def _decided(request: HttpRequest, source: str, act: Callable[[Viewer, str], int]) -> dict[str, int]:
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    return {"reports": act(request.auth, source)}
