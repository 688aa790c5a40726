"""The page of a failure and its parts. Nothing here changes anything."""

from __future__ import annotations

import json
from functools import reduce
from urllib.parse import urlsplit

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard.failures import columns, python_call, quarantine, timeline, tree
from dashboard.failures import page as failure_page
from dashboard.web import links, tracebacks
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin import config, failures
from jobs_admin.core.coverage import UNKNOWN_QUEUE
from jobs_admin.core.redacted_view import Piece, build_display
from jobs_admin.core.text import whole_number
from jobs_admin.core.trace_context import find_traces
from jobs_admin.db import abilities
from jobs_admin.desk import overview
from jobs_admin.failures import contents, explanations, histories, related_jobs, saved_views
from jobs_admin.failures.links import links_of
from jobs_admin.fleet import stranded
from jobs_admin.groups import dependencies
from jobs_admin.models import Attempt, Failure
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.failure import Caveat
from jobs_admin.queues import coverage
from jobs_admin.replays import prognosis, progress
from jobs_admin.rights import replay_sight

# Size up to which a message is read for a copy button; beyond it the displayed copy is used.
LARGEST_COPY = 2 * 1024 * 1024
LARGEST_INDENTED = 200_000  # characters of JSON


def get_failure(request: HttpRequest, pk: int) -> Failure:
    """Return the failure. Raises Http404 if it does not exist or the viewer may not see it."""
    try:
        return failures.get(request.viewer, pk)
    except Failure.DoesNotExist as error:
        raise Http404(f"Failure {pk} not found. It may have been pruned, or you have no role on its source.") from error


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return page(request, get_failure(request, pk))


def page(
    request: HttpRequest, failure: Failure, *, status: int = 200, chosen: Attempt | None = None, **more: object
) -> HttpResponse:
    """Show the failure as a page, or as the part beside the list; acts return it too."""
    items = progress.items_of_failure(failure)
    replay_sight.restrict(request.viewer, [item.replay for item in items])
    open_item, sent = failure_page.open_item(failure, items), failure_page.sent_for_good(failure, items)
    payload = failure.payloads.order_by("-run").values("size", "is_whole").first()
    is_complete = bool(payload and payload["is_whole"])
    past, source = histories.history(failure), overview.source(request.viewer, failure.source)
    acts = failure_page.acts(
        request.viewer, failure, open_item=open_item, is_complete=is_complete, sent=sent, source=source
    )
    likely = {}
    if acts.replay and failure.group_id:
        likely = prognosis.predict_groups(request.viewer, [failure.group_id], timezone.now())
    context = {
        "failure": failure,
        "url": reverse("redrive:failure-detail", args=[failure.pk]),
        "compare_url": reverse("redrive:failure-diff", args=[failure.pk]) if sum(past.counts.values()) > 1 else "",
        "error": failure_page.short(failure.error_type),
        "runs": timeline.runs(failure, past, items, chosen.pk if chosen else None),
        "items": items,
        "open_item": open_item,
        "waits": failure_page.waits(open_item),
        "most_attempts": columns.most_attempts(failure),
        "priority": abilities.priority_text(failure.source, failure.priority),
        "is_live": bool(open_item) or failure.state in stranded.ON_THE_WAY,
        "branches": failure_page.branches(failure),
        "headers": failure_page.branch(failure, "headers", "Headers"),
        "payload": payload,
        "is_cut": is_complete and contents.is_cut(failure),
        "acts": acts,
        "likely": next((one.sentence("Its group") for one in likely.values()), "")  # the warning before a replay
        or failure_page.same_error(failure, items),
        "source": source,
        "removes": bool((can := abilities.capabilities(failure.source)) and can.remove),
        "crashes": quarantine.lines(failure),
        "unread": explanations.explain_unread(failure),
        **_stranded(failure, source),
        "lost": explanations.explain_lost(failure),
        "is_queue_unknown": coverage.is_queue_unknown(failure.source, failure.queue),
        "guard_snippet": coverage.snippet(failure.source) if (failure.caveats or 0) & Caveat.SEEN else "",
        "is_history": "demo-history" in failure.labels.split(),
        "group_count": failures.group_count(request.viewer, failure.group) if failure.group else None,
        "group_url": reverse("redrive:group-detail", args=[failure.group.name]) if failure.group else "",
        "dependency": dependencies.of_failure(failure),
        **_links(failure),
        "alike_url": links.list_url(f"group:{failure.group.name}") if failure.group else "",
        "row": _row_beside(request, failure),
        **attempt_context(failure, chosen),
        **more,
    }
    return render_page(request, "redrive/failures/detail.html", context, part="failure", status=status)


def _links(failure: Failure) -> dict[str, object]:
    """Return the links to other tools, and the ids that are shown as text without a link."""
    traces = find_traces(failure.headers)
    ids = {
        "Trace": next((trace.trace_id for trace in traces.values()), ""),
        "Logs": "",
        "Sentry": failure.event_id or "",
    }
    urls = {link.name: link.url for link in links_of(failure, traces)}
    return {
        "links": [(name, known_as, urls.get(name, "")) for name, known_as in ids.items() if known_as or name in urls]
    }


def _stranded(failure: Failure, source: overview.SourceRow | None) -> dict[str, object]:
    """Return the worker that is gone with this job, for a job in flight."""
    if failure.state not in stranded.ON_THE_WAY or source is None or not stranded.has_finding(source.findings):
        return {"stranded": None}
    found = stranded.find_for_job(failure.source, failure.job_id)
    return {"stranded": found, "is_lost": found is not None and failure.job_id in found.lost_jobs}


def _row_beside(request: HttpRequest, failure: Failure) -> SafeString | str:
    """Return the current row of the failure if the page is open beside the list; else ""."""
    beside = urlsplit(request.htmx.current_url or "") if request.htmx else None
    if beside is None or beside.path != reverse("redrive:failure-list"):
        return ""
    viewer = request.viewer
    sources = [name for name in config.sources() if viewer.may(VIEWER, name)]
    of_view = QueryDict(beside.query).get("columns", "")
    shown = columns.chosen(of_view.split(",") if of_view else saved_views.read_columns(viewer))
    (row,) = columns.rows([failure], shown, may_act=viewer.may_anywhere(OPERATOR), sources=sources)
    return row


def attempt_context(failure: Failure, chosen: Attempt | None) -> dict[str, object]:
    """Return error and traceback of one attempt, by default the latest that failed."""
    return {
        "chosen": chosen,
        "chosen_error": failure_page.short(chosen.error_type) if chosen else "",
        "trace": _trace(chosen or failure),
        "trace_url": reverse("redrive:failure-text", args=[failure.pk, "traceback"])
        + (f"?attempt={chosen.pk}" if chosen else ""),
    }


def _trace(one: Failure | Attempt) -> SafeString | str:
    if (stack := one.traceback) is None:
        return ""
    return tracebacks.with_message(tracebacks.as_html(stack.sha256, lambda: stack.text), one.error_type, one.message)


@require_safe
@can(VIEWER)
def attempt(request: HttpRequest, pk: int, attempt_pk: int) -> HttpResponse:
    """Show error and traceback of one attempt: the part beside the timeline, or the page with it selected."""
    failure = get_failure(request, pk)
    one = _attempt(failure, attempt_pk)
    if request.htmx and not request.htmx.history_restore_request:
        context = {
            "failure": failure,
            "url": reverse("redrive:failure-detail", args=[pk]),
            **attempt_context(failure, one),
        }
        return render_page(request, "redrive/failures/detail.html", context, part="traceback")
    return page(request, failure, chosen=one)


def _attempt(failure: Failure, pk: int) -> Attempt:
    try:
        return histories.get(failure, pk)
    except Attempt.DoesNotExist as error:
        raise Http404(f"Failure {failure.pk} has no attempt {pk}.") from error


@require_safe
@can(VIEWER)
def attempts(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the folded attempts of one run."""
    failure = get_failure(request, pk)
    run, before = _number(request, "run", "1"), _number(request, "before", "0")
    ended, more = histories.earlier(failure, run, before or None)
    base = reverse("redrive:failure-attempts", args=[pk])
    context = {
        "failure": failure,
        "run": run,
        "rows": timeline.rows(ended, base),
        "earlier_url": f"{base}?run={run}&before={ended[0].attempt}" if more else "",
    }
    return render_page(request, "redrive/failures/attempts.html", context, part="earlier")


@require_safe
@can(VIEWER)
def related(request: HttpRequest, pk: int) -> HttpResponse:
    """Show parent and child jobs, and similar failures; loaded by the page after it is displayed."""
    failure = get_failure(request, pk)
    relatives = related_jobs.find_related(request.viewer, failure)
    alike = [
        {
            "what": one.what,
            "url": links.list_url(one.query),
            "count": one.count.text,
        }
        for one in relatives.alike
    ]
    context = {
        "failure": failure,
        "url": reverse("redrive:failure-detail", args=[pk]),
        "kin": relatives,
        "alike": alike,
    }
    return render_page(request, "redrive/failures/kin.html", context, part="kin")


def _number(request: HttpRequest, name: str, default: str) -> int:
    number = whole_number(request.GET.get(name, default), digits=9)
    if number is None:
        raise Http404(f"{name} is not a number.")
    return number


@require_safe
@can(VIEWER)
def opened(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one branch of a failure's arguments from an entry on, or matches of a search within it.

    `at`: `kwargs.0.17`, numbers of entries. `whole=1` reads the stored message instead of the truncated copy.
    """
    failure = get_failure(request, pk)
    at, start, words = request.GET.get("at", ""), _number(request, "from", "0"), request.GET.get("find", "").strip()
    is_complete = request.GET.get("whole") == "1"
    name, _, steps = at.partition(".")
    to = failure_page.addresses(failure, is_complete=is_complete)
    context = {
        "failure": failure,
        "url": reverse("redrive:failure-detail", args=[pk]),
        "is_complete": is_complete,
        "find": words,
        "at": at,
    }
    try:
        roots = _roots(failure, is_complete)
        if not at:
            context |= (
                _search_result(roots, words, to)
                if words
                else {"trees": [_branch(one, root, to) for one, root in roots.items()]}
            )
            return render_page(request, "redrive/failures/branch.html", context, part="arguments")
        piece, names = tree.opened(roots[name], steps)
    except (KeyError, contents.Unreadable) as error:
        why = str(error) if isinstance(error, contents.Unreadable) else f"nothing at {at[:200]}"
        raise Http404(f"Failure {pk}: {why}.") from error
    path = reduce(tree.joined, names, name)
    lines = tree.lines(piece, at, path, start)
    context |= {"path": path, "branch": tree.as_html(lines, to, is_part=bool(start) and bool(request.htmx))}
    return render_page(request, "redrive/failures/branch.html", context, part="branch")


_NAMES = {"args": "Arguments", "kwargs": "Keyword arguments"}


def _branch(name: str, piece: Piece, to: tree.Addresses) -> failure_page.Branch:
    return failure_page.branch_of(piece, name, _NAMES.get(name, name), to)


def _roots(failure: Failure, is_complete: bool) -> dict[str, Piece]:
    stored = contents.message(failure) if is_complete else contents.copy(failure)
    roots = {"args": stored.args, "kwargs": stored.kwargs}
    if not is_complete and failure.headers:
        roots["headers"] = contents.Plain(contents.json_of(failure.headers, {}))
    return roots


def _search_result(roots: dict[str, Piece], words: str, to: tree.Addresses) -> dict[str, object]:
    lines, is_all = [], True
    for name in _NAMES:
        some, was_all = tree.find(roots[name], name, name, words)
        lines += some
        is_all = is_all and was_all
    return {"branch": tree.as_html(lines[: tree.MOST_FOUND], to), "count": len(lines), "is_all": is_all}


@require_safe
@can(VIEWER)
def as_text(request: HttpRequest, pk: int, form: str) -> HttpResponse:
    """Return the text of a copy button: the job as Python call or JSON, its traceback, or its redacted arguments."""
    failure = get_failure(request, pk)
    chosen = _attempt(failure, _number(request, "attempt", "")) if "attempt" in request.GET else None
    if form == "traceback":
        text = _trace_text(chosen or failure)
    else:
        text = {"python": _python, "json": _json}[form](failure)
    # A lone surrogate becomes its escape, which means the same in JSON.
    return HttpResponse(text.encode("utf-8", "backslashreplace"), content_type="text/plain; charset=utf-8")


def _trace_text(one: Failure | Attempt) -> str:
    text = one.traceback.text if one.traceback else ""
    is_bare = text.rstrip().rpartition("\n")[2].rpartition(".")[2] == failure_page.short(one.error_type)
    return f"{text.rstrip()}: {one.message}\n" if is_bare and one.message else text


def _copied(failure: Failure) -> contents.Contents:
    """Return the complete arguments if they are readable, otherwise the copy. Raises contents.Unreadable."""
    if contents.is_cut(failure) and failure.payloads.filter(is_whole=True, size__lte=LARGEST_COPY).exists():
        try:
            return contents.message(failure)
        except contents.Unreadable:
            pass  # the copy marks where it was truncated
    return contents.copy(failure)


def _python(failure: Failure) -> str:
    notes = [
        f"{failure.task}: job {failure.job_id} of {failure.source}, run {failure.run}, failed {failure.failed_at:%Y-%m-%d %H:%M:%S} UTC",
        f"{failure.error_type}: {failure.message[:200]}",
    ]
    try:
        stored = _copied(failure)
    except contents.Unreadable as error:
        notes += [
            f"{error} The job cannot be copied as a call.",
            f"args: {failure.args!a}",
            f"kwargs: {failure.kwargs!a}",
        ]
        return "\n".join(python_call.comment(line) for line in notes) + "\n"
    is_queue_known = not ((failure.caveats or 0) & Caveat.SEEN and failure.queue == UNKNOWN_QUEUE)
    queue = failure.queue if is_queue_known else None
    return python_call.send_task(failure.task, queue, stored.args, stored.kwargs, notes)


def _json(failure: Failure) -> str:
    arguments = failure_page.document(failure)
    try:
        stored = _copied(failure)
        arguments |= {"args": build_display(stored.args), "kwargs": build_display(stored.kwargs)}
    except contents.Unreadable:
        pass  # omitted if not JSON
    job = {
        "task": failure.task,
        "id": failure.job_id,
        "queue": failure.queue,
        "source": failure.source,
        **arguments,
        "error": {"type": failure.error_type, "message": failure.message, "failed_at": failure.failed_at.isoformat()},
    }
    text = json.dumps(job, ensure_ascii=False)
    # Indentation is for people, who do not read megabytes; it takes seconds for deep nesting.
    return (json.dumps(job, indent=2, ensure_ascii=False) if len(text) <= LARGEST_INDENTED else text) + "\n"
