"""Find exactly these; what happened to this one. Pages and parts that change nothing."""

from __future__ import annotations

import json

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import arguments, tracebacks
from dashboard.access import can
from dashboard.htmx import render_page
from dashboard.screens import failure_list, failure_page
from jobs_admin import failures
from jobs_admin.core import query as language
from jobs_admin.models import Failure
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.failure import FailureState
from jobs_admin.replays import progress

# What changes by itself, and is looked at anew while it does.
ON_THE_WAY = (FailureState.RETRYING, FailureState.REPLAYING)
# "3 new failures" needs no exact thousands.
NEWER_CAP = 1_000


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    text, after = request.GET.get("q", "").strip(), request.GET.get("after")
    page = failures.search(request.viewer, text, after=after)
    spread = failures.facets(request.viewer, text)
    context = {
        "q": text,
        "page": page,
        "rows": failure_list.rows(page),
        "chips": failure_list.chips(page.query),
        "facets": failure_list.facets(page.query, spread),
        "is_default_state": not page.query.names_state,
        "any_state_url": failure_list.list_url(f"{text} state:any".strip()),
        "is_first": not after,
        "first_url": failure_list.list_url(text),
        "next_url": failure_list.list_url(text, after=page.next) if page.next else "",
        "newest": page.rows[0].pk if page.rows else 0,
        "may_act": request.viewer.may_anywhere(OPERATOR),
    }
    return render_page(request, "failures/list.html", context, part="results")


@require_safe
@can(VIEWER)
def newer(request: HttpRequest) -> HttpResponse:
    """How many match that were not there when the list was shown: a hint beside it, so that no row moves."""
    text, since = request.GET.get("q", ""), request.GET.get("since", "")
    count = 0
    if since.isascii() and since.isdigit() and len(since) < 19:
        matching = failures.scope(request.viewer, language.parse(text))
        count = matching.filter(pk__gt=int(since)).order_by().values("pk")[: NEWER_CAP + 1].count()
    context = {
        "q": text,
        "newest": since,
        "newer": min(count, NEWER_CAP),
        "is_capped": count > NEWER_CAP,
        "first_url": failure_list.list_url(text),
    }
    return render_page(request, "failures/list.html", context, part="newer")


def found(request: HttpRequest, pk: int) -> Failure:
    """The failure, or a 404 page: also for what the viewer may not see."""
    try:
        return failures.get(request.viewer, pk)
    except Failure.DoesNotExist as error:
        raise Http404(f"There is no failure {pk}, or it was pruned, or you have no role on its source.") from error


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return page(request, found(request, pk))


def page(request: HttpRequest, failure: Failure, *, status: int = 200, **more: object) -> HttpResponse:
    """The failure's page, or its part beside the list; acts answer with it too."""
    items = progress.of_failure(failure)
    open_item = failure_page.open_item(items)
    payload = failure.payloads.order_by("-run").values("size", "is_whole").first()
    trace = failure.traceback.text if failure.traceback else ""
    context = {
        "failure": failure,
        "error": failure_page.short(failure.error_type),
        "runs": failure_page.timeline(failure, failures.attempts(failure), items),
        "items": items,
        "open_item": open_item,
        "most_attempts": failure_list.most_attempts(failure),
        "is_live": bool(open_item) or failure.state in ON_THE_WAY,
        "trace": tracebacks.shown(trace) if trace else None,
        "branches": failure_page.branches(failure),
        "headers": failure_page.branch("headers", "Headers", failure.headers),
        "payload": payload,
        "acts": failure_page.acts(
            request.viewer, failure, open_item=open_item, is_whole=bool(payload and payload["is_whole"])
        ),
        "is_history": "demo-history" in failure.labels.split(),
        "group_url": reverse("group-detail", args=[failure.group.fingerprint]) if failure.group else "",
        "alike_url": failure_list.list_url(f"group:{failure.group.fingerprint}") if failure.group else "",
        **more,
    }
    return render_page(request, "failures/detail.html", context, part="failure", status=status)


@require_safe
@can(VIEWER)
def opened(request: HttpRequest, pk: int) -> HttpResponse:
    """One branch of a failure's arguments that was too large for its page: at a JSON pointer, from an entry on."""
    failure = found(request, pk)
    at, start = request.GET.get("at", ""), request.GET.get("from", "0")
    if not (start.isascii() and start.isdigit() and len(start) < 10):
        raise Http404("Which entry to begin with is not a number.")
    try:
        value = arguments.find(failure_page.document(failure), at)
    except KeyError as error:
        raise Http404(f"Failure {pk} has nothing at {at[:200]}.") from error
    context = {"failure": failure, "at": at, "lines": arguments.tree(value, at, int(start))}
    return render_page(request, "failures/branch.html", context, part="branch")


@require_safe
@can(VIEWER)
def as_text(request: HttpRequest, pk: int, form: str) -> HttpResponse:
    """What the copy buttons fetch: the job as a Python call or as JSON, its traceback, its redacted arguments."""
    failure = found(request, pk)
    text = {"python": _python, "json": _json, "traceback": _traceback}[form](failure)
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


def _python(failure: Failure) -> str:
    try:
        return arguments.python_call(failure.task, failure.args, failure.kwargs)
    except arguments.NotJson:
        return (
            f"# The kept copy of the arguments is not whole.\n# args: {failure.args!a}\n# kwargs: {failure.kwargs!a}\n"
        )


def _json(failure: Failure) -> str:
    job = {
        "task": failure.task,
        "id": failure.job_id,
        "queue": failure.queue,
        "source": failure.source,
        **failure_page.document(failure),
        "error": {"type": failure.error_type, "message": failure.message, "failed_at": failure.failed_at.isoformat()},
    }
    return json.dumps(job, indent=2, ensure_ascii=False) + "\n"


def _traceback(failure: Failure) -> str:
    return failure.traceback.text if failure.traceback else ""
