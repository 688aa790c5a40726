"""The calls. Each does one thing of a service; what may be done where is decided there, by the token's role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.urls import reverse
from ninja import NinjaAPI, Path, Query, Schema
from ninja.operation import Operation
from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field

from dashboard import downloads, moments
from dashboard.access import needs
from dashboard.api import errors, shapes
from dashboard.api.tokens import Token
from jobs_admin import config, failures, queues, replays
from jobs_admin.core.text import representable, whole_number
from jobs_admin.db import audit as audit_log
from jobs_admin.failures import nearest, triage
from jobs_admin.models import Failure
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.replays import progress


class _Api(NinjaAPI):
    """Describes itself once for each address that it stands at: that takes half a second of a processor."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the call's name. No two calls have the same, and it stays when a module moves."""
        name: str = operation.view_func.__name__
        return name

    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None) -> Any:
        prefix = self.get_root_path(path_params or {}) if path_prefix is None else path_prefix
        described = self.__dict__.setdefault("_described", {})
        if prefix not in described:
            described[prefix] = super().get_openapi_schema(path_prefix=prefix)
        return described[prefix]


api = _Api(
    title="Redrive",
    version="1",
    description="The failure desk for background jobs. Every call needs `Authorization: Bearer TOKEN`.",
    auth=Token(),
    urls_namespace="api",
    docs_url=None,  # its page loads scripts from elsewhere, which our Content-Security-Policy refuses
    openapi_url="/openapi.json",
)
errors.install(api)

Text = Annotated[str, AfterValidator(representable)]
Moment = Annotated[AwareDatetime, AfterValidator(moments.sane)]
Limit = Annotated[int, Query(ge=1, le=500)]
Number = Annotated[int, Path(ge=1, lt=2**63)]
NO_CURSOR = "This is no cursor: hand over `next` of the page before, as it came"


def _cursor(text: str | None) -> str | None:
    """Anything else would silently be page one, and a program would leaf through it for ever."""
    if text and whole_number(text) is None:
        raise ValueError(NO_CURSOR)
    return text


After = Annotated[str | None, Query(max_length=100), AfterValidator(_cursor)]
AfterQueue = Annotated[str | None, Query(max_length=400)]


class Body(Schema):
    model_config = ConfigDict(extra="forbid")  # a misspelt field would silently do something else


class Reason(Body):
    reason: Text = Field("", max_length=500)


REFUSALS = dict.fromkeys((401, 403, 404, 409, 422), shapes.Error)


def _viewer(request: HttpRequest) -> Viewer:
    """Whoever the token stands for; the door has let it in by what the call `@needs`."""
    viewer: Viewer = request.auth
    return viewer


def page_of(name: str, *args: object) -> str:
    """The address of a page, as the desk is reached from outside."""
    return config.page_url(reverse(name, args=args))


# --- queues -----------------------------------------------------------------------------------------------------


@api.get("/queues", response={200: shapes.Listed[shapes.Queue], **REFUSALS}, tags=["queues"])
@needs(VIEWER)
def list_queues(request: HttpRequest, after: AfterQueue = None, limit: Limit = 100) -> Any:
    """The queues, those with the most dead jobs first, then those that fail most often."""
    if after and not queues.is_cursor(after):
        raise errors.CallRefused(422, "invalid", NO_CURSOR, "after")
    page = queues.listing(_viewer(request), after=after, limit=limit)
    return shapes.listed(page.rows, shapes.queue, next=page.next, count=page.count)


# --- failures ---------------------------------------------------------------------------------------------------


@api.get("/failures", response={200: shapes.Listed[shapes.FailureItem], **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def list_failures(request: HttpRequest, q: str = "", after: After = None, limit: Limit = 50) -> Any:
    """The failures that match, newest first. Without `state:` those that are dead, retrying, replaying or quarantined."""
    page = failures.search(_viewer(request), q, after=after, limit=limit)
    return shapes.listed(
        page.rows,
        shapes.failure,
        next=page.next,
        count=page.count,
        count_is_capped=page.count_is_capped,
        reading=page.reading,
        hints=list(page.said),
        searched=page.searched,
        near=[] if page.rows or after else [shapes.near(n) for n in nearest.near(_viewer(request), page.query, q)],
    )


@api.get("/failures/export", response={200: None, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def export_failures(request: HttpRequest, q: str = "", form: Literal["jsonl", "csv"] = "jsonl") -> Any:
    """Every failure that matches, newest first, streamed as a file: JSON lines, or CSV. Arguments are redacted."""
    return downloads.failures(_viewer(request), q.strip(), form)


@api.get("/failures/{failure_id}", response={200: shapes.FailureDetail, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def one_failure(request: HttpRequest, failure_id: Number) -> Any:
    found = failures.get(_viewer(request), failure_id)
    started = progress.started_runs(found)
    takes = replays.signatures().of(found.source, found.task)
    page, waits_in = page_of("failure-detail", found.pk), _waits_in(_viewer(request), found)
    return shapes.failure_detail(found, failures.attempts(found), started, takes, page, waits_in)


def _waits_in(viewer: Viewer, found: Failure) -> dict[str, Any] | None:
    """The replay that has the job planned and sends nothing now; None where there is none."""
    if (planned := replays.standing([found]).get(found.pk)) is None:
        return None
    number, state = planned
    reason = replays.find(viewer, number).held_because
    return {"replay": number, "state": state, "reason": reason, "url": page_of("replay-detail", number)}


@api.post("/failures/{failure_id}/discard", response={200: shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def discard_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    return _triaged(request, failure_id, body.reason, triage.discard)


@api.post("/failures/{failure_id}/restore", response={200: shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def restore_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    return _triaged(request, failure_id, body.reason, triage.restore)


@api.post("/failures/{failure_id}/readmit", response={200: shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def readmit_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    """Out of quarantine: it is dead, and can be replayed."""
    return _triaged(request, failure_id, body.reason, triage.readmit)


def _triaged(request: HttpRequest, failure_id: int, reason: str, act: Any) -> Any:
    viewer = _viewer(request)
    found = failures.get(viewer, failure_id)
    if not viewer.may(OPERATOR, found.source):
        message = f"This token is not operator of {found.source}. Nothing was changed."
        errors.note_refusal(request, viewer, message, source=found.source)
        raise errors.CallRefused(403, "forbidden", message)
    if not act(viewer, selection=[failure_id], reason=reason).count:
        state = Failure.objects.values_list("state", flat=True).get(pk=failure_id)
        raise errors.CallRefused(409, "wrong_state", f"The failure is {state}. Nothing was changed.")
    return shapes.failure(failures.get(viewer, failure_id))


# --- audit ------------------------------------------------------------------------------------------------------


@api.get("/audit", response={200: shapes.Listed[shapes.AuditItem], **REFUSALS}, tags=["audit"])
@needs(ADMIN)
def audit(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    """Who did, or was refused, what; newest first. For admins; of one source, only what belongs to it."""
    page = audit_log.listing(_viewer(request), after=after, limit=limit)
    return shapes.listed(
        page.rows, shapes.audit, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )
