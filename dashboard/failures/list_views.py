"""Find exactly these: the list of failures, and what is loaded beside it. Nothing here changes anything."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.failures import columns, search_help
from dashboard.failures import listing as failure_list
from dashboard.web import links, toasts
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from jobs_admin import config, failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import completing, list_columns, nearest
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.search.failure_search import FailureSearch

# "3 new failures" needs no exact thousands.
NEWER_CAP = 1_000


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    back = failure_list.trail_of(request.GET.get("back", ""))
    return page(request, request.GET.get("q", "").strip(), after=request.GET.get("after"), back=back)


def page(
    request: HttpRequest, text: str, *, after: str | None = None, back: tuple[str, ...] = (), status: int = 200
) -> HttpResponse:
    """The list as a page or as its part; acts on what it shows answer with it too."""
    now = timezone.now()
    found = failures.search(request.viewer, text, after=after, now=now)
    if not found.rows and not after and request.method == "GET":
        lead = nearest.find_pasted(request.viewer, found.query, text)
        if lead is not None and lead.text != text:
            toasts.add_toast(request, f"Matched from the pasted text: {lead.why}.", level="info")
            return go(request, failure_list.offer(lead).url)
    may_act = request.viewer.may_anywhere(OPERATOR)
    of_view = request.GET.get("columns", "")  # of a saved view; else the choice of the reader
    shown = columns.chosen(of_view.split(",") if of_view else list_columns.read(request.viewer))
    context = {
        "q": text,
        "page": found,
        "rows": columns.rows(
            found.rows,
            shown,
            may_act=may_act,
            sources=[name for name in config.sources() if request.viewer.may(VIEWER, name)],
        ),
        "head": failure_list.head(found, text),
        "meant_url": links.list_url(found.meant) if found.meant else "",
        "acts": failure_list.acts(found.query, found.rows) if may_act else None,
        "paths": failure_list.paths(text, found, after, back, of_view),
        "of_view": of_view,
        "is_first": not after,
        "near": [] if found.rows or after else failure_list.near(nearest.near(request.viewer, found.query, text)),
        "latest": found.rows[0].pk if found.rows else 0,
        "shown_at": int(now.timestamp()),
        "may_act": may_act,
        "columns": shown,
        "group_acts": failure_list.GROUP_ACTS,
    }
    return render_page(request, "redrive/failures/list.html", context, part="results", status=status)


@require_safe
@can(VIEWER)
def newer(request: HttpRequest) -> HttpResponse:
    """Return the number of matches that arrived after the list was shown: a hint, so that no row moves."""
    text, since = request.GET.get("q", ""), request.GET.get("since", "")
    count = 0
    if (last := whole_number(since)) is not None:
        count = FailureSearch(request.viewer, language.parse(text)).newer(last, NEWER_CAP + 1)
    context = {
        "q": text,
        "latest": since,
        "newer": min(count, NEWER_CAP),
        "is_capped": count > NEWER_CAP,
        "first_url": links.list_url(text),
    }
    return render_page(request, "redrive/failures/list.html", context, part="newer")


@require_safe
@can(VIEWER)
def facets(request: HttpRequest) -> HttpResponse:
    """Return the facets of the matches as a separate part, so that the rows never wait for it."""
    text = request.GET.get("q", "").strip()
    spread = failures.facets(request.viewer, text)
    query = language.parse(text)
    context = {
        "q": text,
        "reading": language.reading(query),
        "facets": failure_list.facets(query, spread),
        "counted_over": failure_list.counted_over_all(spread),
        "list_url": links.list_url(text),
    }
    return render_page(request, "redrive/failures/facets.html", context, part="facets")


@require_safe
@can(VIEWER)
def complete(request: HttpRequest) -> HttpResponse:
    """Return completions of the word at the caret: qualifiers, and values with their number of failures."""
    text, at = request.GET.get("q", ""), whole_number(request.GET.get("at"))
    found = completing.complete(request.viewer, text, len(text) if at is None else min(at, len(text)))
    context = {"found": found, "options": failure_list.options(found.options)}
    return render_page(request, "redrive/failures/complete.html", context, part="complete")


@require_safe
@can(VIEWER)
def help_page(request: HttpRequest) -> HttpResponse:
    """The whole search language, with examples to follow."""
    return render_page(request, "redrive/failures/help.html", {"chapters": search_help.chapters()}, part="help")


@require_safe
@can(VIEWER)
def choose_columns(request: HttpRequest) -> HttpResponse:
    """The columns to choose from; the choice is the reader's, on every list of failures."""
    shown = columns.chosen(list_columns.read(request.viewer))
    context = {
        "choices": [(one, one in shown) for one in columns.COLUMNS[1:]],
        "most": list_columns.MOST - 1,
        "q": request.GET.get("q", ""),
    }
    return render_page(request, "redrive/failures/columns.html", context, part="columns")


@require_POST
@can(VIEWER)
def save_columns(request: HttpRequest) -> HttpResponse:
    """Store the reader's columns; `reset`: the default ones."""
    url = links.list_url(request.POST.get("q", "").strip())
    names = [] if "reset" in request.POST else ["error", *request.POST.getlist("column")]
    before = list_columns.read(request.viewer)
    default = [one.name for one in columns.COLUMNS if one.is_default]
    try:
        list_columns.choose(request.viewer, [] if names == default else names)
    except Refused as refused:
        toasts.add_toast(request, refused.message, level="error")
        return go(request, f"{reverse('redrive:failure-columns')}?{urlencode({'q': request.POST.get('q', '')})}")
    fields = [("column", one) for one in before if one != "error"] or [("reset", "1")]
    undo = reverse("redrive:failure-columns-save")
    toasts.add_toast(request, "Columns saved.", undo=undo, undo_fields=[*fields, ("q", request.POST.get("q", ""))])
    return go(request, url)
