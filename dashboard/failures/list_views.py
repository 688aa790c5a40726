"""The list of failures, the parts loaded beside it, search help, and the export. Nothing here changes a failure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.failures import columns
from dashboard.failures import listing as failure_list
from dashboard.web import downloads, links, toasts
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.links import list_url
from jobs_admin import config, failures
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import completing, exporting, nearest, saved_views
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.search.failure_search import FailureSearch

# The text "3 new failures" needs no exact number beyond this.
NEWER_CAP = 1_000


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    back = failure_list.trail_of(request.GET.get("back", ""))
    return page(request, request.GET.get("q", "").strip(), after=request.GET.get("after"), back=back)


def page(
    request: HttpRequest, text: str, *, after: str | None = None, back: tuple[str, ...] = (), status: int = 200
) -> HttpResponse:
    """Show the list as a page or as a part; acts on its failures also return it."""
    now = timezone.now()
    found = failures.search(request.viewer, text, after=after, now=now)
    if not found.rows and not after and request.method == "GET":
        lead = nearest.find_pasted(request.viewer, found.query, text)
        if lead is not None and lead.text != text:
            toasts.add_toast(request, f"Matched from the pasted text: {lead.why}.", level="info")
            return go(request, failure_list.offer(lead).url)
    may_act = request.viewer.may_anywhere(OPERATOR)
    of_view = request.GET.get("columns", "")  # columns of a saved view; otherwise the reader's choice
    shown = columns.chosen(of_view.split(",") if of_view else saved_views.read_columns(request.viewer))
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
        "holds": failure_list.hold_links(request.viewer, found.query),
        "is_first": not after,
        "near": [] if found.rows or after else failure_list.near(nearest.near(request.viewer, found.query, text)),
        "by_name": failure_list.near(nearest.find_by_names(request.viewer, found.query, found.count.number))
        if found.rows and not after
        else [],
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
    """Return the number of matches that arrived after the list was shown, as a hint, so that no row moves."""
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
    """Return the facets of the matches as a separate part, so that the rows do not wait for them."""
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
    """Return completions for the word at the caret: qualifiers, and values with their number of failures."""
    text, at = request.GET.get("q", ""), whole_number(request.GET.get("at"))
    found = completing.complete(request.viewer, text, len(text) if at is None else min(at, len(text)))
    context = {"found": found, "options": failure_list.options(found.options)}
    return render_page(request, "redrive/failures/complete.html", context, part="complete")


@require_safe
@can(VIEWER)
def help_page(request: HttpRequest) -> HttpResponse:
    """Show the complete search language with clickable examples."""
    return render_page(request, "redrive/failures/help.html", {"chapters": chapters()}, part="help")


@require_safe
@can(VIEWER)
def choose_columns(request: HttpRequest) -> HttpResponse:
    """Show the choice of columns, which applies to every list of failures of this reader."""
    shown = columns.chosen(saved_views.read_columns(request.viewer))
    context = {
        "choices": [(one, one in shown) for one in columns.COLUMNS[1:]],
        "most": saved_views.MOST_COLUMNS - 1,
        "q": request.GET.get("q", ""),
    }
    return render_page(request, "redrive/failures/columns.html", context, part="columns")


@require_POST
@can(VIEWER)
def save_columns(request: HttpRequest) -> HttpResponse:
    """Store the reader's columns; `reset` restores the default."""
    url = links.list_url(request.POST.get("q", "").strip())
    names = [] if "reset" in request.POST else ["error", *request.POST.getlist("column")]
    before = saved_views.read_columns(request.viewer)
    default = [one.name for one in columns.COLUMNS if one.is_default]
    try:
        saved_views.choose_columns(request.viewer, [] if names == default else names)
    except Refused as refused:
        toasts.add_toast(request, refused.message, level="error")
        return go(request, f"{reverse('redrive:failure-columns')}?{urlencode({'q': request.POST.get('q', '')})}")
    fields = [("column", one) for one in before if one != "error"] or [("reset", "1")]
    undo = reverse("redrive:failure-columns-save")
    toasts.add_toast(request, "Columns saved.", undo=undo, undo_fields=[*fields, ("q", request.POST.get("q", ""))])
    return go(request, url)


# --- search help --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    finds: str
    url: str
    reading: str  # reading by the parser itself, so that the page cannot contradict the search


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    intro: str
    examples: list[Example]


_CHAPTERS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Words",
        "Any text is a valid search, such as an error pasted from a log. Words match completely; names are split into "
        "words at capitals and punctuation. Case and punctuation are otherwise ignored.",
        (
            ("timeout", "type or message contains the word: timeout=5, ReadTimeoutError; not found by time"),
            ("timeo*", "a word with this prefix"),
            ("connection refused", "both words, anywhere"),
            ('"connection refused"', "the exact phrase"),
            ('-"connection refused"', "without the phrase"),
            ("Read*Error", "a word that starts with read and matches read…error"),
            ("*imeout", "the text anywhere, also inside a word; under 3 characters in the latest 5,000 failures"),
            (
                "[Errno -2] Name or service not known",
                "the error itself: brackets separate words, and the minus is part of the number",
            ),
        ),
    ),
    (
        "Location",
        "Complete names, case-sensitive. Comma: any of. Star: wildcard. Leading minus: not.",
        (
            ("queue:webhooks", "one queue; also task: source: worker: host: tenant: release:"),
            ("queue:emails,webhooks", "either queue"),
            ("task:shop.*", "all tasks with this prefix"),
            ("-queue:emails", "all other queues"),
            ('tenant:"A, B"', "quotes around spaces and commas"),
        ),
    ),
    (
        "Error",
        "",
        (
            ("error:Timeout", "words of type or message"),
            ("error:=KeyError", "exactly this type"),
            ('message:"refused"', "words of the message only"),
            ("trace:billing.py", "a word of the traceback"),
            ("dependency:partner.example", "failed by this host or service; dependency:* by any"),
            ("kind:hard_limit", "how the latest attempt ended: exception, retry, lost, hard_limit …"),
        ),
    ),
    (
        "Arguments",
        "The first 32 values of a job are searched. Hidden secrets cannot be found.",
        (
            ("args.customer.id:42", "a positional argument, by its path"),
            ("kwargs.email:ann@*", "a keyword argument"),
            ("kwargs.coupon:*", "any value: the argument is present"),
        ),
    ),
    (
        "State and numbers",
        "Without state: open failures (dead, retrying, replaying and quarantined).",
        (
            ("state:discarded", "retrying dead quarantined replaying recovered discarded gone"),
            ("state:any", "every state"),
            ("is:dead", "same as state:dead; also is:failed, is:waiting, is:resolved"),
            ("attempts:>=3", "3  >3  >=3  <3  <=3  2..5; also priority:"),
            ("priority:high", "critical, high, medium or low, mapped to the queue system's numbers"),
            ("replay:12", "the jobs of a replay"),
            ("policy:slow@3", "attempts decided by a policy, or by one version"),
        ),
    ),
    (
        "Time",
        "Time of the last failed attempt, in UTC. In a saved view `2h` stays relative; a replay or discard fixes it.",
        (
            ("age:<2h", "less than two hours ago; units s m h d w"),
            ("age:>90m", "more than 90 minutes ago"),
            ("since:2026-11-20T10:00Z", "from this time"),
            ("since:2d until:1d", "between one and two days ago"),
        ),
    ),
    (
        "Combinations",
        "A space means AND. `OR` joins only the terms next to it. Use parentheses around qualifiers only.",
        (
            ("queue:webhooks error:Timeout OR error:Refused", "this queue, and either error"),
            ("(queue:emails state:dead) OR (queue:webhooks attempts:>3)", "either of two"),
        ),
    ),
)


def chapters() -> list[Chapter]:
    return [
        Chapter(
            title,
            intro,
            [Example(text, finds, list_url(text), language.reading(language.parse(text))) for text, finds in of],
        )
        for title, intro, of in _CHAPTERS
    ]


# --- the export ----------------------------------------------------------------------------------------------------


@require_POST
@can(VIEWER)
def export(request: HttpRequest, form: str) -> HttpResponse:
    """Return the results of a search as a file. A POST, because exports are audited and a GET changes nothing."""
    text = request.POST.get("q", "").strip()
    exporting.note(request.viewer, text, form)
    names = request.POST.get("columns", "")
    fields = [field for one in columns.chosen(names.split(",")) for field in one.fields] if names else []
    fields = exporting.COLUMNS if request.POST.get("all_fields") else fields
    pieces = exporting.stream(request.viewer, text, form, columns=exporting.parse_columns(fields))
    return downloads.announce(downloads.stream(pieces, "failures", form), request)
