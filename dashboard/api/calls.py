"""The calls. Each does one thing of a service; what may be done where is decided there, by the token's role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.urls import reverse
from ninja import NinjaAPI, Path, Query, Schema, Status
from pydantic import AfterValidator, ConfigDict, Field

from dashboard import downloads
from dashboard.access import needs
from dashboard.api import errors, shapes
from dashboard.api.tokens import Token
from jobs_admin import audit as audit_log
from jobs_admin import config, failures, nearest, queues, replays, triage
from jobs_admin.core.text import representable, whole_number
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.replays import progress

api = NinjaAPI(
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
Limit = Annotated[int, Query(ge=1, le=500)]
Number = Annotated[int, Path(ge=1, lt=2**63)]
ItemState = Literal["planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled"]
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


class OneReplay(Reason):
    args: list[Any] | None = None  # replaces the arguments
    kwargs: dict[str, Any] | None = None
    pace: dict[str, Any] | None = None
    idempotency_key: Text | None = Field(None, max_length=100)


class Scope(Body):
    q: Text | None = None
    ids: list[int] | None = Field(None, min_length=1, max_length=10_000)  # failures chosen by hand, in place of q
    pace: dict[str, Any] | None = None


class NewReplay(Scope):
    reason: Text = Field("", max_length=500)
    snapshot: Text = Field("", max_length=64)
    idempotency_key: Text | None = Field(None, max_length=100)


class Pace(Body):
    pace: dict[str, Any]
    reason: Text = Field("", max_length=500)


class Resolution(Body):
    outcome: Literal["ran", "lost"] = Field(alias="as")


REFUSALS = dict.fromkeys((401, 403, 404, 409, 422), shapes.Error)


def _viewer(request: HttpRequest) -> Viewer:
    """Whoever the token stands for; the door has let it in by what the call `@needs`."""
    viewer: Viewer = request.auth
    return viewer


def _scope(body: Scope) -> dict[str, Any]:
    """What a replay is for. Said in so many words: an empty search is everything in the default states."""
    if (body.q is None) == (body.ids is None):
        raise errors.CallRefused(422, "invalid", "Give either q, the search, or ids. Nothing was changed.", "q")
    return {"query": body.q} if body.ids is None else {"selection": body.ids}


def _page(name: str, *args: object) -> str:
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
        hints=list(page.hints),
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
    return shapes.failure_detail(found, failures.attempts(found), _page("failure-detail", found.pk))


@api.post("/failures/{failure_id}/replay", response={201: shapes.ReplayDetail, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def replay_failure(request: HttpRequest, failure_id: Number, body: OneReplay) -> Any:
    viewer = _viewer(request)
    failures.get(viewer, failure_id)
    edit = {name: value for name, value in (("args", body.args), ("kwargs", body.kwargs)) if value is not None}
    made = replays.draft(
        viewer,
        selection=[failure_id],
        pace=body.pace,
        reason=body.reason,
        edit=edit or None,
        idempotency_key=body.idempotency_key,
    )
    return Status(201, _started(viewer, made))


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


# --- replays ----------------------------------------------------------------------------------------------------


@api.post("/replays/preview", response={200: shapes.PreviewItem, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def preview_replay(request: HttpRequest, body: Scope) -> Any:
    """What a replay would do. Changes nothing; `snapshot` makes sure that what you saw is what is started."""
    viewer = _viewer(request)
    return shapes.preview(replays.preview(viewer, **_scope(body), pace=body.pace))


@api.post("/replays", response={201: shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def start_replay(request: HttpRequest, body: NewReplay) -> Any:
    """Replay all that match. With an `idempotency_key`, the same call again answers with the same replay."""
    viewer = _viewer(request)
    made = replays.draft(
        viewer,
        **_scope(body),
        pace=body.pace,
        reason=body.reason,
        snapshot=body.snapshot,
        idempotency_key=body.idempotency_key,
    )
    return Status(201, _started(viewer, made))


def _started(viewer: Viewer, made: Replay) -> dict[str, Any]:
    return _replay(replays.start(viewer, made))


def _replay(found: Replay) -> dict[str, Any]:
    (shown,) = _shown([found])
    return shown


def _shown(rows: list[Replay]) -> list[dict[str, Any]]:
    rates = progress.rates_now(rows)
    return [shapes.replay(row, _page("replay-detail", row.pk), rates[row.pk]) for row in rows]


@api.get("/replays", response={200: shapes.Listed[shapes.ReplayDetail], **REFUSALS}, tags=["replays"])
@needs(VIEWER)
def list_replays(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    viewer = _viewer(request)
    page = replays.listing(viewer, after=after, limit=limit)
    count, is_capped = replays.count(viewer)
    return {"items": _shown(page.rows), "next": page.next, "count": count, "count_is_capped": is_capped}


@api.get("/replays/{replay_id}", response={200: shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(VIEWER)
def one_replay(request: HttpRequest, replay_id: Number) -> Any:
    return _replay(replays.find(_viewer(request), replay_id))


@api.patch("/replays/{replay_id}", response={200: shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def change_pace(request: HttpRequest, replay_id: Number, body: Pace) -> Any:
    viewer = _viewer(request)
    return _replay(replays.change_pace(viewer, replays.find(viewer, replay_id), body.pace))


def _act_on(name: str) -> None:
    act = getattr(replays, name)

    @needs(OPERATOR)
    def call(request: HttpRequest, replay_id: Number, body: Reason) -> Any:
        viewer = _viewer(request)
        return _replay(act(viewer, replays.find(viewer, replay_id), reason=body.reason))

    call.__name__ = f"{name}_replay"  # which also names its address
    api.post(
        f"/replays/{{replay_id}}/{name}",
        response={200: shapes.ReplayDetail, **REFUSALS},
        operation_id=f"{name}_replay",
        summary=f"{name.title()} a replay",
        tags=["replays"],
    )(call)


for _name in ("pause", "resume", "cancel"):
    _act_on(_name)


@api.get("/replays/{replay_id}/items", response={200: shapes.Listed[shapes.ItemDetail], **REFUSALS}, tags=["replays"])
@needs(VIEWER)
def list_items(
    request: HttpRequest, replay_id: Number, state: ItemState | None = None, after: After = None, limit: Limit = 50
) -> Any:
    viewer = _viewer(request)
    found = replays.find(viewer, replay_id)
    page = replays.items(viewer, found, state=state, after=after, limit=limit)
    count = found.total if state is None else getattr(found, state)
    return shapes.listed(page.rows, lambda row: shapes.item(row, page.due.get(row.pk)), next=page.next, count=count)


@api.post("/replays/{replay_id}/items/{n}/resolve", response={200: shapes.ItemDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def resolve_item(request: HttpRequest, replay_id: Number, n: Number, body: Resolution) -> Any:
    """Settle an uncertain item by a person's word: it `ran`, or it was `lost`."""
    viewer = _viewer(request)
    found = replays.find(viewer, replay_id)
    if not found.items.filter(n=n).exists():
        raise ReplayItem.DoesNotExist
    return shapes.item(replays.resolve_item(viewer, found, n, body.outcome))


# --- audit ------------------------------------------------------------------------------------------------------


@api.get("/audit", response={200: shapes.Listed[shapes.AuditItem], **REFUSALS}, tags=["audit"])
@needs(ADMIN)
def audit(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    """Who did, or was refused, what; newest first. For admins; of one source, only what belongs to it."""
    page = audit_log.listing(_viewer(request), after=after, limit=limit)
    return shapes.listed(
        page.rows, shapes.audit, next=page.next, count=page.count, count_is_capped=page.count_is_capped
    )
