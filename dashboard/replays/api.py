"""The calls for replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Status
from pydantic import Field

from dashboard.replays import api_shapes as replay_shapes
from dashboard.web.access import needs
from dashboard.web.api import shapes
from dashboard.web.api.base import REFUSALS, After, Body, Limit, Number, Reason, Text, api, page_of
from jobs_admin import failures, replays
from jobs_admin.core.refused import Refused
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays import outcomes, progress

MADE = {201: replay_shapes.ReplayDetail, 202: replay_shapes.ReplayDetail, **REFUSALS}
ItemState = Literal["planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled"]


_PLAIN_OPTIONS = ("attempts", "to_queue", "same_job_id", "patch", "without_groups")


class Sent(Body):
    """Options for sending the jobs of a replay; omitted options have their defaults."""

    attempts: int | Literal["reset", "kept"] | None = None  # all that a job has; what it had left; or how many
    to_queue: Text | None = None
    same_job_id: bool | None = None
    patch: dict[str, Any] | None = None  # JSON Merge Patch over {"args": …, "kwargs": …} of every job
    accept: list[Text] | None = None  # of what a preview leaves out, the options that it names
    without_groups: list[Text] | None = Field(None, max_length=500)  # fingerprints; null: those likely to fail again
    accept_unguarded: bool = False  # the same as "unguarded" in accept

    @property
    def options(self) -> replays.Options:
        plain = {name: getattr(self, name) for name in _PLAIN_OPTIONS}
        accept = [*(self.accept or ()), *(["unguarded"] if self.accept_unguarded else [])]
        return replays.Options.parse(plain | {"accept": accept})


class OneReplay(Sent):
    reason: Text = Field("", max_length=500)
    args: list[Any] | None = None  # replaces the arguments
    kwargs: dict[str, Any] | None = None
    pace: dict[str, Any] | None = None
    idempotency_key: Text | None = Field(None, max_length=100)


class Scope(Sent):
    q: Text | None = None
    ids: list[int] | None = Field(None, min_length=1, max_length=10_000)  # failures chosen by hand, in place of q
    pace: dict[str, Any] | None = None


class Previewed(Scope):
    snapshot: Text = Field("", max_length=64)  # of an earlier preview: what came since is then only counted


class NewReplay(Scope):
    reason: Text = Field("", max_length=500)
    snapshot: Text = Field("", max_length=64)
    idempotency_key: Text | None = Field(None, max_length=100)


class Resume(Reason):
    without_groups: list[Text] = Field([], max_length=100)  # fingerprints of groups whose jobs are not sent any more
    without: Text = Field("", max_length=5_000)  # a search: matching jobs are no longer sent


class BroughtBack(Reason):
    groups: list[Text] = Field([], max_length=500)  # fingerprints; none is refused


class Pace(Body):
    pace: dict[str, Any]
    reason: Text = Field("", max_length=500)


class Resolution(Body):
    outcome: Literal["ran", "lost"] = Field(alias="as")


class Resolutions(Resolution):
    q: Text = Field("", max_length=5_000)  # a search; empty: all uncertain jobs of the replay


def _scope(body: Scope) -> dict[str, Any]:
    """Return the scope of a replay. It has to be explicit: an empty search is everything in the default states."""
    if (body.q is None) == (body.ids is None):
        raise Refused("invalid", "Give either q, the search, or ids. Nothing was changed.", "q")
    return {"query": body.q} if body.ids is None else {"selection": body.ids}


@api.post("/failures/{failure_id}/replay", response=MADE, tags=["failures"])
@needs(OPERATOR)
def replay_failure(request: HttpRequest, failure_id: Number, body: OneReplay) -> Any:
    viewer = request.auth
    found = failures.get(viewer, failure_id)
    edit = {name: value for name, value in (("args", body.args), ("kwargs", body.kwargs)) if value is not None}
    started = replays.launch(
        viewer,
        selection=[failure_id],
        pace=body.pace,
        reason=body.reason,
        options=body.options,
        edit=edit or None,
        idempotency_key=body.idempotency_key,
    )
    unchecked = replays.unchecked_task_warnings({(found.source, found.task)}) if edit or body.patch else []
    return _started(viewer, started, unchecked)


@api.post("/replays/preview", response={200: replay_shapes.PreviewItem, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def preview_replay(request: HttpRequest, body: Previewed) -> Any:
    """Return the effects of a replay. Changes nothing. Pass `snapshot` to start exactly what was previewed."""
    seen = replays.preview(request.auth, **_scope(body), pace=body.pace, options=body.options, snapshot=body.snapshot)
    return replay_shapes.preview(seen)


@api.post("/replays", response=MADE, tags=["replays"])
@needs(OPERATOR)
def start_replay(request: HttpRequest, body: NewReplay) -> Any:
    """Start a replay of all matching jobs. A repeated call with the same `idempotency_key` returns the same replay."""
    viewer = request.auth
    started = replays.launch(
        viewer,
        **_scope(body),
        pace=body.pace,
        reason=body.reason,
        options=body.options,
        snapshot=body.snapshot,
        idempotency_key=body.idempotency_key,
    )
    return _started(viewer, started)


def _started(viewer: Viewer, started: Replay, warnings: Sequence[str] = ()) -> Status:
    """201: it is sent. 202: another operator has to approve it first."""
    items = _replay(viewer, started)
    items["warnings"] = [*items["warnings"], *warnings]
    return Status(202 if started.state == ReplayState.AWAITING_APPROVAL else 201, items)


def _replay(viewer: Viewer, found: Replay) -> dict[str, Any]:
    (items,) = _items(viewer, [found])
    return replay_shapes.replay_detail(items, replays.groups_aside(viewer, found))


def _items(viewer: Viewer, rows: list[Replay]) -> list[dict[str, Any]]:
    rates, names = progress.rates_now(rows), replays.excluded_groups(viewer, rows)
    warnings = outcomes.refused_report_warnings(viewer, rows, timezone.now())
    return [
        replay_shapes.replay(
            row,
            page_of("redrive:replay-detail", row.pk),
            rates[row.pk],
            [names[pk] for pk in row.without_groups if pk in names],
            warnings.get(row.pk, []),
        )
        for row in rows
    ]


@api.get("/replays", response={200: shapes.Listed[replay_shapes.ReplayRow], **REFUSALS}, tags=["replays"])
@needs(VIEWER)
def list_replays(request: HttpRequest, after: After = None, limit: Limit = 50) -> Any:
    viewer = request.auth
    page = replays.listing(viewer, after=after, limit=limit)
    count, is_capped = replays.count(viewer)
    return {"items": _items(viewer, page.rows), "next": page.next, "count": count, "count_is_capped": is_capped}


@api.get("/replays/{replay_id}", response={200: replay_shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(VIEWER)
def get_replay(request: HttpRequest, replay_id: Number) -> Any:
    return _replay(request.auth, replays.find(request.auth, replay_id))


@api.patch("/replays/{replay_id}", response={200: replay_shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def change_replay_pace(request: HttpRequest, replay_id: Number, body: Pace) -> Any:
    viewer = request.auth
    return _replay(viewer, replays.change_pace(viewer, replays.find(viewer, replay_id), body.pace, reason=body.reason))


def _act_on(name: str) -> None:
    act = getattr(replays, name)

    @needs(OPERATOR)
    def call(request: HttpRequest, replay_id: Number, body: Reason) -> Any:
        viewer = request.auth
        return _replay(viewer, act(viewer, replays.find(viewer, replay_id), reason=body.reason))

    call.__name__ = f"{name}_replay"  # which also names its address
    api.post(
        f"/replays/{{replay_id}}/{name}",
        response={200: replay_shapes.ReplayDetail, **REFUSALS},
        operation_id=f"{name}_replay",
        summary=f"{name.title()} a replay",
        tags=["replays"],
    )(call)


@api.post("/replays/{replay_id}/resume", response={200: replay_shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def resume_replay(request: HttpRequest, replay_id: Number, body: Resume) -> Any:
    """Resume from a low rate. Jobs of the groups `without_groups`, and jobs that match `without`, are not sent: they stay dead
    and are free."""
    viewer = request.auth
    found = replays.find(viewer, replay_id)
    exclusions = {"without_groups": body.without_groups, "without": body.without}
    return _replay(viewer, replays.resume(viewer, found, reason=body.reason, **exclusions))


@api.post("/replays/{replay_id}/bring-back", response={200: replay_shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def bring_back_groups(request: HttpRequest, replay_id: Number, body: BroughtBack) -> Any:
    """Send the jobs of groups that were set aside during the replay."""
    viewer = request.auth
    found = replays.find(viewer, replay_id)
    return _replay(viewer, replays.bring_back(viewer, found, body.groups, reason=body.reason))


@api.post("/replays/{replay_id}/discard", response={204: None, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def discard_draft(request: HttpRequest, replay_id: Number, body: Reason) -> Any:
    """Discard a draft. Its jobs are not changed."""
    replays.discard(request.auth, replays.find(request.auth, replay_id), reason=body.reason)
    return Status(204, None)


for _name in ("approve", "pause", "cancel"):
    _act_on(_name)


@api.get(
    "/replays/{replay_id}/items", response={200: shapes.Listed[replay_shapes.ItemDetail], **REFUSALS}, tags=["replays"]
)
@needs(VIEWER)
def list_replay_items(
    request: HttpRequest, replay_id: Number, state: ItemState | None = None, after: After = None, limit: Limit = 50
) -> Any:
    viewer = request.auth
    found = replays.find(viewer, replay_id)
    page = replays.items(viewer, found, state=state, after=after, limit=limit)
    count, is_capped = replays.count_items(viewer, found, state)
    return shapes.listed(
        page.rows,
        lambda row: replay_shapes.item(row, page.due.get(row.pk)),
        next=page.next,
        count=count,
        count_is_capped=is_capped,
    )


@api.post(
    "/replays/{replay_id}/items/{n}/resolve", response={200: replay_shapes.ItemDetail, **REFUSALS}, tags=["replays"]
)
@needs(OPERATOR)
def resolve_replay_item(request: HttpRequest, replay_id: Number, n: Number, body: Resolution) -> Any:
    """Record the outcome of an uncertain item: `ran` or `lost`."""
    viewer = request.auth
    found = replays.find(viewer, replay_id)
    if not found.items.filter(n=n).exists():
        raise ReplayItem.DoesNotExist
    return replay_shapes.item(replays.resolve_item(viewer, found, n, body.outcome))


@api.post("/replays/{replay_id}/resolve", response={200: replay_shapes.ReplayDetail, **REFUSALS}, tags=["replays"])
@needs(OPERATOR)
def resolve_replay_items(request: HttpRequest, replay_id: Number, body: Resolutions) -> Any:
    """Record the outcome of all uncertain items, or those that match `q`: `ran`, or `lost` (dead again)."""
    viewer = request.auth
    found = replays.find(viewer, replay_id)
    replays.resolve_all(viewer, found, body.outcome, body.q)
    return _replay(viewer, replays.find(viewer, replay_id))
