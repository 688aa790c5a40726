"""The calls for sources that are to be accepted, and for reports that were refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Path, Schema
from pydantic import AfterValidator

from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, api
from jobs_admin.core.text import representable
from jobs_admin.models.access import ADMIN, VIEWER, Viewer
from jobs_admin.trust import admission

Name = Annotated[str, Path(max_length=63), AfterValidator(representable)]


class Refused(Schema):
    """Reports of one source, refused for one cause."""

    source: str
    cause: str  # unsigned, signature, unknown: the source is to be accepted first; unfiled: dropped, as too many could not be filed
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


def _answer(one: admission.Refusals) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Refused.model_fields} | {"cause": one.word}


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
def file_reports(request: HttpRequest, source: Name) -> Any:
    """File the stored unsigned reports of a source."""
    return _decided(request, source, admission.file_unsigned)


@api.post("/sources/{source}/discard-refused", response={200: Decided, **REFUSALS}, tags=["sources"])
@needs(ADMIN)
def discard_refused_reports(request: HttpRequest, source: Name) -> Any:
    """Delete the stored refused reports of a known source, and their count."""
    return _decided(request, source, admission.discard_refused)


def _decided(request: HttpRequest, source: str, act: Callable[[Viewer, str], int]) -> dict[str, int]:
    if not request.auth.may(VIEWER, source):
        raise Http404("Source not found, or not visible to this token.")
    return {"reports": act(request.auth, source)}
