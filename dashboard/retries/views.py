"""Rescheduling of retries: preview, start, progress and undo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.retries.forms import JITTERS, KINDS, Change
from dashboard.web import charts, forms, links
from dashboard.web.access import can
from dashboard.web.figures import duration, number
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import Reschedule
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.models.reschedule import RescheduleState
from jobs_admin.retries import rescheduling
from jobs_admin.retries.rescheduling import Herd, Preview


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    found = rescheduling.listing(request.viewer, after=request.GET.get("after"))
    lines = [(one, summary(one, may_act=False, undone=False)) for one in found.rows]
    context = {"lines": lines, "next": found.next, "is_first": "after" not in request.GET}
    return render_page(request, "redrive/retries/list.html", context, part="retries")


@require_http_methods(["GET", "HEAD", "POST"])
@can(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Preview a rescheduling (GET or POST), which changes nothing; `step=start` plans it."""
    given = request.POST if request.method == "POST" else request.GET
    scope, change = forms.Scope(given), Change(given)
    if not scope.is_valid():
        add_toast(request, " ".join(text for texts in scope.errors.values() for text in texts), level="error")
        return go(request, reverse("redrive:failure-list"))
    what = scope.cleaned_data
    selection, query = what["selection"], "" if what["selection"] else what["q"]
    # A missing search does not mean everything: that requires an empty `q`.
    if not selection and "q" not in given:
        return render_page(request, "redrive/retries/new.html", {"is_unscoped": True}, part="preview")
    if request.method == "POST" and given.get("step") == "start" and change.is_valid():
        try:
            planned = rescheduling.plan(
                request.viewer,
                query=query,
                selection=selection,
                change=change.document,
                reason=change.cleaned_data["reason"],
                highest=whole_number(given.get("highest")),
            )
        except Refused as refused:
            status = 422 if refused.code in {"bad_change", "reason_required"} else 409
            return _page(request, query, selection, change, refused=refused, status=status)
        return go(request, reverse("redrive:reschedule-detail", args=[planned.pk]))
    return _page(request, query, selection, change, status=200 if change.is_valid() else 422)


def _page(
    request: HttpRequest,
    query: str,
    selection: list[int],
    change: Change,
    *,
    refused: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    preview = None
    if refused is not None:
        change.refuse(refused.field, refused.message)
    try:
        preview = rescheduling.preview(
            request.viewer, query=query, selection=selection, change=change.document, now=timezone.now()
        )
    except Refused as why:
        if refused is None:
            change.refuse(why.field, why.message)
        # An empty scope is an answer for a reader, not an error.
        is_answer = request.method != "POST" and why.code == "bad_scope"
        refused, status = refused or why, status if is_answer else max(status, 422)
    many = refused.details.get("sources", ()) if refused is not None else ()
    context = {
        "form": change,
        "kinds": KINDS,
        "jitters": JITTERS,
        "values": {name: change.value(name) for name in change.fields},
        "errors": {name: " ".join(texts) for name, texts in change.errors.items()},
        "refused": " ".join(change.non_field_errors()),
        "q": preview.query if preview else query,
        "selection": ",".join(map(str, selection)),
        "selected": len(selection),
        "preview": preview,
        "sources": [(name, links.retries_url(f"{query} source:{name}".strip())) for name in many],
        "back_url": links.list_url(query or "state:retrying"),
        "all_url": links.retries_url(f"source:{preview.source}") if preview and selection else "",
    }
    if preview is not None:
        before, after = herds(preview)
        context |= {
            "rows": rows(preview),
            "picture": picture(preview),
            "herd_before": before,
            "herd_after": after,
            "fitting": preview.matched - preview.beyond,
        }
    return render_page(request, "redrive/retries/new.html", context, part="preview", status=status)


def get_reschedule(request: HttpRequest, pk: int) -> Reschedule:
    try:
        return rescheduling.find(request.viewer, pk)
    except Reschedule.DoesNotExist as error:
        raise Http404(f"No change {pk} of retries, or you have no role on its source.") from error


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return _detail(request, get_reschedule(request, pk))


def _detail(request: HttpRequest, planned: Reschedule, *, refused: str = "", status: int = 200) -> HttpResponse:
    undone = planned.undone_by.first()
    context = {
        "planned": planned,
        "undone": undone,
        "refused": refused,
        "shown": summary(planned, may_act=request.viewer.may(OPERATOR, planned.source), undone=undone is not None),
        "here": reverse("redrive:reschedule-detail", args=[planned.pk]),
    }
    return render_page(request, "redrive/retries/detail.html", context, part="reschedule", status=status)


@require_POST
@can(OPERATOR)
def undo(request: HttpRequest, pk: int) -> HttpResponse:
    """Undo a rescheduling: retries still waiting at the new time get their former time back."""
    planned, form = get_reschedule(request, pk), forms.Reason(request.POST)
    if not form.is_valid():
        return _detail(request, planned, refused="; ".join(form.errors["reason"]), status=422)
    try:
        back = rescheduling.undo(request.viewer, planned, reason=form.cleaned_data["reason"])
    except Refused as refused:
        return _detail(request, planned, refused=refused.message, status=403 if refused.code == "forbidden" else 409)
    return go(request, reverse("redrive:reschedule-detail", args=[back.pk]))


# --- what the pages show -------------------------------------------------------------------------------------------

MOST_ROWS = 100  # rows of the table
_KINDS = {"exponential": "exponential", "linear": "linear", "fixed": "fixed"}


@dataclass(frozen=True, slots=True)
class Row:
    attempts: str
    jobs: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Both herds, superimposed on one scale, as the paths of two outlines."""

    before: str
    after: str
    step: str  # `4 s`
    levels: list[str]  # axis labels, retries per step: top, half, ground
    ticks: list[str]  # labels of the time axis, left to right
    words: str
    chart: str  # values for charts.js, as JSON
    table: list[tuple[str, str, str]]  # (time, current retries, new retries) of steps that have some
    more_rows: int


def rows(preview: Preview) -> list[Row]:
    return [
        Row(f"{line.attempts:,}", number(line.jobs), _range(line.before), _range(line.after)) for line in preview.lines
    ]


def _range(waits: tuple[float, float] | None) -> str:
    if waits is None:
        return "–"
    least, most = (duration(max(0.0, round(wait))) for wait in waits)
    return least if least == most else f"{least} to {most}"


def picture(preview: Preview) -> Picture:
    top = charts.round_up(max([1, *preview.before.counts, *preview.after.counts]))
    words = f"current: {_herd(preview.before)}; new: {_herd(preview.after)}"
    each = preview.span_s / max(len(preview.before.counts), 1)
    chart = charts.reading(
        {"now": preview.before.counts, "then": preview.after.counts},
        labels=[f"in {duration(round(n * each))}" for n in range(len(preview.before.counts))],
    )
    both = zip(preview.before.counts, preview.after.counts, strict=True)
    table = [(f"in {duration(round(n * each))}", number(b), number(a)) for n, (b, a) in enumerate(both) if b or a]
    return Picture(
        _outline(preview.before, top),
        _outline(preview.after, top),
        duration(each),
        charts.levels(top),
        ["now", *(f"in {duration(round(preview.span_s * part))}" for part in (0.5, 1))],
        words,
        chart,
        table[:MOST_ROWS],
        len(table[MOST_ROWS:]),
    )


def _herd(herd: Herd) -> str:
    due = f"{number(herd.at_once)} due" if herd.at_once else "none due"
    return f"{due}, peak {number(herd.busiest)}/s"


def _outline(herd: Herd, top: float) -> str:
    wide, heights = charts.SIZE / len(herd.counts), charts.Heights(top, filled=1)
    return charts.outline((n * wide, (n + 1) * wide, heights.y(count)) for n, count in enumerate(herd.counts))


def herds(preview: Preview) -> tuple[str, str]:
    return _herd(preview.before), _herd(preview.after)


def in_words(change: dict[str, Any]) -> str:
    """Return the requested change as a sentence without its full stop."""
    parts = []
    if change.get("due_at"):
        parts.append("all due at one time")
    if curve := change.get("curve"):
        backoff, jitter = curve.get("backoff") or {}, (curve.get("jitter") or {}).get("kind", "none")
        kind, first = backoff.get("kind", "exponential"), backoff.get("first_delay_s")
        parts.append(
            f"waits {_KINDS.get(kind, kind)}"
            + (f" from {duration(first)}" if isinstance(first, int | float) else "")
            + (f", at most {duration(curve['cap_s'])}" if isinstance(curve.get("cap_s"), int | float) else "")
            + (f", jitter {jitter.replace('_', ' ')}" if jitter != "none" else "")
        )
    if most := change.get("max_attempts"):
        parts.append(f"at most {most:,} attempts")
    return "; ".join(parts) or "previous schedule"


@dataclass(frozen=True, slots=True)
class Summary:
    sentence: str
    scope: str
    scope_url: str
    change: str
    is_live: bool
    may_undo: bool


def summary(planned: Reschedule, *, may_act: bool, undone: bool) -> Summary:
    jobs = number(planned.changed)
    if planned.state == RescheduleState.PLANNED:
        sentence = f"{jobs} of {number(planned.matched)} retries rescheduled so far"
    elif planned.state == RescheduleState.STOPPED:
        sentence = f"Stopped, after {jobs} of {number(planned.matched)} retries"
    else:
        sentence = f"{jobs} retr{'y' if planned.changed == 1 else 'ies'} rescheduled"
    if planned.undo_of_id is not None:
        sentence = sentence.replace("rescheduled", "restored")
    chosen = len(planned.selection)
    return Summary(
        sentence,
        f"{number(chosen)} selected" if chosen else planned.query or "all waiting retries",
        "" if chosen else links.list_url(_with(planned.query, f"source:{planned.source}", "state:retrying")),
        in_words(planned.change),
        planned.state == RescheduleState.PLANNED,
        may_act and bool(planned.changed) and planned.undo_of_id is None and not undone,
    )


def _with(query: str, *terms: str) -> str:
    words = query.split()
    return " ".join([query, *(term for term in terms if term not in words)]).strip()
