"""The calls for failures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from django.core import signing
from django.http import HttpRequest
from ninja import Field, Query
from pydantic import AfterValidator

from dashboard.failures import api_shapes as failure_shapes
from dashboard.web import downloads
from dashboard.web.access import needs
from dashboard.web.api import errors, shapes
from dashboard.web.api.base import REFUSALS, After, Body, Limit, Number, Reason, Text, api, page_of, viewer_of
from jobs_admin import failures, replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.failures import exporting, histories, nearest, triage
from jobs_admin.holds import in_force
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.replays import progress

Side = Annotated[str, Query(max_length=40), AfterValidator(representable)]
_STEP_S = 5.0  # of an act on many
_GOOD_FOR_S = 3_600  # what continues it


@api.get("/failures", response={200: shapes.Listed[failure_shapes.FailureItem], **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def list_failures(request: HttpRequest, q: str = "", after: After = None, limit: Limit = 50) -> Any:
    """Return matching failures, latest first. Without `state:`, only dead, retrying, replaying and quarantined ones."""
    viewer = viewer_of(request)
    page = failures.search(viewer, q, after=after, limit=limit)
    by_breaker = in_force.find_searched(viewer, page.query)
    near: list[nearest.Near] = []
    if not after:
        by_name = nearest.find_by_names
        near = by_name(viewer, page.query, page.count.number) if page.rows else nearest.near(viewer, page.query, q)
    return shapes.listed(
        page.rows,
        failure_shapes.failure,
        next=page.next,
        count=page.count.number,
        count_is_capped=page.count.is_capped,
        count_is_estimate=page.count.is_estimate,
        reading=page.reading,
        hints=[
            *page.hint_sentences,
            *(f"{name} of {source}: {count:,} held" for (source, name), count in by_breaker.items()),
        ],
        searched=page.searched,
        near=[failure_shapes.near(one) for one in near],
    )


@api.get("/failures/export", response={200: None, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def export_failures(
    request: HttpRequest, q: str = "", form: Literal["jsonl", "csv"] = "jsonl", columns: str = ""
) -> Any:
    """Export all matching failures as JSON lines or CSV, latest first. Arguments are redacted. `columns`: names
    separated by commas, such as task,failed_at; id, source and queue are always included. By default all columns but trace_id."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    pieces = exporting.stream(viewer_of(request), q.strip(), form, columns=exporting.parse_columns(names))
    return downloads.stream(pieces, "failures", form)


@api.get("/failures/facets", response={200: failure_shapes.Facets, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def list_facets(request: HttpRequest, q: str = "") -> Any:
    """Return the most frequent values of matching failures with counts: source, queue, task, state, error, tenant,
    release."""
    found = failures.facets(viewer_of(request), q.strip())
    return {
        "facets": [
            {"field": field, "counted_over": found.counted_over[field], "values": shapes.counts(values)}
            for field, values in found.items()
        ]
    }


class BulkAct(Body):
    act: Literal["discard", "restore", "readmit"]
    q: Text | None = Field(None, min_length=1, max_length=4_000)
    failures: list[int] = Field([], max_length=triage.MOST_SELECTED)
    reason: Text = Field("", max_length=500)


class Next(Body):
    next: str = Field(max_length=20_000)


class Key(Body):
    key: Text = Field(max_length=120)


@api.post("/failures/bulk", response={200: failure_shapes.BulkResult, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def act_on_failures(request: HttpRequest, body: BulkAct) -> Any:
    """Discard, restore or readmit all failures that match `q` now, or those with these IDs.

    An action that takes longer than a few seconds continues with `next`. `key` undoes the changes.
    """
    viewer = viewer_of(request)
    if (body.q is None) == (not body.failures):
        raise Refused("bad_scope", "Give either q or failures. Nothing was changed.", "q")
    if body.q is not None:
        triage.require_search(body.q)
        return _step(viewer, triage.begin(viewer, body.act, query=body.q, reason=body.reason))
    done = triage.act_on(viewer, body.act, body.failures, reason=body.reason)
    count = len(set(body.failures))
    return {
        "act": body.act, "key": done.key, "matched": count, "checked": count, "changed": done.count, "next": None,
    }  # fmt: skip


@api.post("/failures/bulk/next", response={200: failure_shapes.BulkResult, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def continue_act_on_failures(request: HttpRequest, body: Next) -> Any:
    """Continue an action of this token. Without further calls, the changes made so far remain."""
    viewer = viewer_of(request)
    try:
        fields = signing.loads(body.next, salt=_salt(viewer), max_age=_GOOD_FOR_S)
    except signing.BadSignature:
        message = "This action has expired or belongs to another token. Changes made so far remain."
        raise Refused("invalid", message, "next") from None
    return _step(viewer, triage.Sweep(**fields))


@api.post("/failures/undo", response={200: failure_shapes.BulkResult, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def undo_act_on_failures(request: HttpRequest, body: Key) -> Any:
    """Revert what the action `key` changed, except jobs changed since."""
    viewer = viewer_of(request)
    return _step(viewer, triage.begin_undo(viewer, body.key))


def _step(viewer: Viewer, under_way: triage.Sweep) -> dict[str, Any]:
    under_way = triage.go_on(viewer, under_way, within_s=_STEP_S)
    following = None if under_way.is_done else signing.dumps(asdict(under_way), salt=_salt(viewer), compress=True)
    same = {name: getattr(under_way, name) for name in ("act", "key", "matched", "changed")}
    return same | {"checked": min(under_way.looked, under_way.matched), "next": following}


def _salt(viewer: Viewer) -> str:
    return f"redrive.failures.bulk:{viewer.name}"


@api.get("/failures/{failure_id}", response={200: failure_shapes.FailureDetail, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def get_failure(request: HttpRequest, failure_id: Number) -> Any:
    viewer = viewer_of(request)
    return failure_answer(viewer, failures.get(viewer, failure_id))


@api.get("/failures/{failure_id}/why", response={200: failure_shapes.FailureReasons, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def explain_failure(request: HttpRequest, failure_id: Number) -> Any:
    """Return why the failure is in its state: what was decided after each attempt, what to do, and why it is in its group."""
    viewer = viewer_of(request)
    return reasons_answer(viewer, failures.get(viewer, failure_id))


@api.get("/failures/{failure_id}/compare", response={200: failure_shapes.Comparison, **REFUSALS}, tags=["failures"])
@needs(VIEWER)
def compare_attempts(request: HttpRequest, failure_id: Number, left: Side = "", right: Side = "") -> Any:
    """Compare two attempts, each given as `run.attempt`.

    Default: the latest failed attempt and the last of the previous run, else the previous attempt. A failure with one
    attempt is refused.
    """
    return comparison_answer(failures.get(viewer_of(request), failure_id), left, right)


def failure_answer(viewer: Viewer, found: Failure) -> dict[str, Any]:
    """Return the answer about one failure."""
    started = progress.started_runs(found)
    takes = replays.signatures().for_task(found.source, found.task)
    page, waits_in = page_of("redrive:failure-detail", found.pk), _waits_in(viewer, found)
    return failure_shapes.failure_detail(found, failures.attempts(found), started, takes, page, waits_in)


def reasons_answer(viewer: Viewer, found: Failure) -> dict[str, Any]:
    """Return the answer about the reasons of one failure."""
    return failure_shapes.reasons(found, _waits_in(viewer, found))


def comparison_answer(found: Failure, left: str, right: str) -> dict[str, Any]:
    """Return the answer about two attempts, chosen as `histories.choose_pair` takes them. Raises Refused, and NotFound."""
    pair = histories.choose_pair(found, left, right)
    if pair is None:
        raise Refused("wrong_state", histories.missing_pair(found))
    return failure_shapes.comparison(found, pair)


def _waits_in(viewer: Viewer, found: Failure) -> dict[str, Any] | None:
    """The replay that has the job planned and sends nothing now; None if there is none."""
    if (planned := replays.stopped_replays([found]).get(found.pk)) is None:
        return None
    number, state = planned
    reason = replays.find(viewer, number).held_because
    return {"replay": number, "state": state, "reason": reason, "url": page_of("redrive:replay-detail", number)}


@api.post("/failures/{failure_id}/discard", response={200: failure_shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def discard_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    return _triaged(request, failure_id, body.reason, triage.discard)


@api.post("/failures/{failure_id}/restore", response={200: failure_shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def restore_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    return _triaged(request, failure_id, body.reason, triage.restore)


@api.post("/failures/{failure_id}/readmit", response={200: failure_shapes.FailureItem, **REFUSALS}, tags=["failures"])
@needs(OPERATOR)
def readmit_failure(request: HttpRequest, failure_id: Number, body: Reason) -> Any:
    """Release the job from quarantine. The job is dead and can be replayed."""
    return _triaged(request, failure_id, body.reason, triage.readmit)


def _triaged(request: HttpRequest, failure_id: int, reason: str, act: Any) -> Any:
    viewer = viewer_of(request)
    found = failures.get(viewer, failure_id)
    if not viewer.may(OPERATOR, found.source):
        message = f"This token needs the role operator on {found.source}. Nothing was changed."
        errors.note_refusal(request, viewer, message, source=found.source)
        raise Refused("forbidden", message)
    if not act(viewer, selection=[failure_id], reason=reason).count:
        state = Failure.objects.values_list("state", flat=True).get(pk=failure_id)
        raise Refused("wrong_state", f"The failure is {state}. Nothing was changed.")
    return failure_shapes.failure(failures.get(viewer, failure_id))
