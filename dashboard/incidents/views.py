"""The page of an incident: charts and a timeline from the first failure to the last recovered job; and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.audit.words import page_of as page_of_object
from dashboard.incidents import document as texts
from dashboard.web import charts, links, moments
from dashboard.web.access import can
from dashboard.web.figures import duration, number
from dashboard.web.htmx import render_page
from dashboard.web.moments import clock
from dashboard.web.pictures import share
from jobs_admin import incidents
from jobs_admin.core.refused import Refused
from jobs_admin.incidents import Act, Incident, Moment, OverTime, Span
from jobs_admin.models.access import VIEWER

_TYPES = {"markdown": ("md", "text/markdown; charset=utf-8"), "json": ("json", "application/json")}


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    now, refusal, where = timezone.now(), None, None
    try:
        where = texts.span_from_query(request.viewer, request.GET, now)
    except Refused as error:
        refusal = error
    is_local = "time_zone" in request.GET or moments.zone_id() != "UTC"
    if where and is_local and (shared := texts.shared_query(request.GET)) != request.GET.dict():
        # Times typed in the reader's zone would mean other times to the recipient of the URL.
        return HttpResponseRedirect(f"{request.path}?{urlencode(shared)}")
    incident = incidents.incident(request.viewer, where, now) if where else None
    context = {
        "report": report(incident, now) if incident else None,
        "form_values": form_values(request.GET, where),
        "refusal": refusal,
        "is_of_place": bool(request.GET.get("source")),
        "has_times": bool(request.GET.get("since") or request.GET.get("until")),
    }
    return render_page(
        request, "redrive/incidents/report.html", context, part="incident", status=400 if refusal else 200
    )


@require_safe
@can(VIEWER)
def as_text(request: HttpRequest, form: str) -> HttpResponse:
    """Return the report as Markdown or JSON, in UTC, with exactly the content of the page."""
    now = timezone.now()
    try:
        where = texts.span_from_query(request.viewer, request.GET, now)
    except Refused as error:
        return HttpResponse(error.message, status=400, content_type="text/plain; charset=utf-8")
    if where is None:
        return HttpResponse("No incident found.", status=404, content_type="text/plain; charset=utf-8")
    with timezone.override(UTC):
        incident = incidents.incident(request.viewer, where, now)
        body = texts.markdown(incident) if form == "markdown" else json.dumps(texts.document(incident), indent=1)
    ending, content_type = _TYPES[form]
    response = HttpResponse(body, content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="incident-{where.since:%Y%m%dT%H%MZ}.{ending}"'
    return response


# --- the report ----------------------------------------------------------------------------------------------------

MOST_ROWS = 200  # rows of the table of the charts

# Kind of event -> tone, and label in the legend.
_TONES = {
    "failing": ("dead", "failures"),
    "group": ("dead", "groups"),
    "alert": ("retrying", "alerts"),
    "silence": ("discarded", "silences"),
    "policy": ("quarantined", "policies"),
    "release": ("discarded", "releases"),
    "pause": ("retrying", "pauses"),
    "breaker": ("retrying", "breakers"),
    "replay": ("replaying", "replays"),
    "calm": ("recovered", "recovery"),
    "back": ("recovered", "recovery"),
}
_BAD = {("replay", "held"), ("replay", "stopped"), ("breaker", "open")}
_GOOD = {("alert", "resolved"), ("breaker", "closed"), ("replay", "done"), ("group", "resolved")}
_STATES = ("dead", "quarantined", "retrying", "replaying", "recovered", "discarded", "gone")


@dataclass(frozen=True, slots=True)
class Step:
    """Line of the timeline."""

    moment: Moment
    tone: str
    url: str
    after: str  # time since the first failure


@dataclass(frozen=True, slots=True)
class Upright:
    x: float
    tone: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    bars: str  # SVG path: failed attempts per step
    back: str  # SVG path: attempts that succeeded after a failure, on top
    levels: list[str]  # axis labels: top, half, ground
    unit: str
    dead: str  # SVG path of a line; "" if unknown
    dead_area: str
    dead_levels: list[str]
    marks: list[Upright]
    legend: list[tuple[str, str]]  # (tone, name)
    ticks: list[charts.Tick]
    chart: str  # values for charts.js, as JSON
    rows: list[tuple[datetime, int, int, int | None]]
    has_more_rows: bool
    words: str
    dead_words: str


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    count: str
    part: str
    url: str
    tone: str


@dataclass(frozen=True, slots=True)
class ActLine:
    act: Act
    url: str


@dataclass(frozen=True, slots=True)
class Report:
    where: Span
    title: str
    sentence: str
    facts: list[tuple[str, str, str]]  # (name, value, note)
    picture: Picture
    steps: list[Step]
    jobs: list[Row]
    tenants: list[Row]
    tenants_words: str
    dependencies: list[Row]
    acts: list[ActLine] | None
    more_acts: bool
    url: str
    markdown_url: str
    json_url: str
    failures_url: str
    found: str  # how the incident was found


def report(incident: Incident, now: datetime) -> Report:
    where, seen = incident.where, incident.seen
    return Report(
        where,
        texts.name_of(where),
        texts.sentence(incident),
        _facts(incident),
        _picture(where, seen, incident.timeline),
        [_step(one, seen.first_at) for one in incident.timeline],
        _jobs(incident),
        _tenants(incident),
        _tenants_words(incident),
        _dependencies(incident),
        None if incident.acts is None else [ActLine(act, page_of_object(act.object)) for act in incident.acts],
        incident.has_more_acts,
        texts.address(where),
        texts.address(where, "markdown"),
        texts.address(where, "json"),
        texts.failures(where),
        {"alert": "Latest alert and surrounding events.", "counters": "Detected from failures: no alert fired."}.get(
            where.found_by, ""
        ),
    )


def form_values(given: Mapping[str, str], where: Span | None) -> dict[str, str]:
    """Return the values of the form: as typed, otherwise those of the found span."""
    if where is None:
        return {name: given.get(name, "")[:200] for name in ("source", "queue", "since", "until")}
    return {
        "source": where.source,
        "queue": where.queue,
        "since": moments.as_field(where.since),
        # Rounded up, so that the span contains everything shown.
        "until": moments.as_field(where.until + timedelta(seconds=59)),
    }


def _facts(incident: Incident) -> list[tuple[str, str, str]]:
    n, seen = incident.counts, incident.seen
    first = seen.first_at

    def since(at: datetime | None, otherwise: tuple[str, str]) -> tuple[str, str]:
        if at is None:
            return otherwise
        if first is None:
            return "–", clock(at, incident.where.since)
        return (duration(at - first) if at >= first else "before it"), clock(at, incident.where.since)

    lasted, until = since(seen.calm_at, ("–", "at a normal rate"))
    beside = f"{clock(first, incident.where.since)} to {until}" if first and until else until
    if first is not None and seen.calm_at is None:
        lasted = f"at least {duration(incident.where.until - first)}"
        ends = "still failing" if incident.where.is_going_on else "still failing at the end of the period"
        beside = f"since {clock(first, incident.where.since)}, {ends}"
    facts = [("Failing for", lasted, beside)]
    for what, name, nothing in (
        ("fired", "Time to alert", "no alert"),
        ("acknowledged", "Time to acknowledge", "not acknowledged"),
        ("started", "Time to replay", "no replay"),
    ):
        at = next((one.at for one in incident.timeline if one.what == what), None)
        facts.append((name, *since(at, (nothing, ""))))
    facts.append(("Recovered", *since(seen.back_at, _not_back(seen, incident.where))))
    return [
        *facts,
        # Jobs are counted to the second, so at the edges of the span the two numbers can differ.
        ("Failed attempts", number(n.failed), f"in steps of {duration(seen.step_s)}"),
        ("Job deaths", number(n.died), ""),
        ("Peak dead jobs", "unknown" if seen.dead_most is None else number(seen.dead_most), ""),
    ]


def _not_back(seen: OverTime, where: Span) -> tuple[str, str]:
    """Return why it is unknown when the dead jobs fell to their number before the incident."""
    if seen.dead_before is None or seen.dead_most is None:
        return "unknown", "no depth samples" if where.queue else "select one queue"
    if seen.dead_most <= seen.dead_before:
        return "no increase", f"over the {number(seen.dead_before)} before"
    return "not yet" if where.is_going_on else "not in this period", f"{number(seen.dead_before)} dead before"


def _step(one: Moment, first: datetime | None) -> Step:
    tone = _TONES[one.kind][0]
    place = (one.kind, one.what)
    tone = "dead" if place in _BAD else "recovered" if place in _GOOD else tone
    after = f"+{duration(one.at - first)}" if first and one.at > first else ""
    return Step(one, tone, texts.page_of(one.ref), after)


# -- pictures -----------------------------------------------------------------------------------------------------


def _picture(where: Span, seen: OverTime, timeline: Sequence[Moment]) -> Picture:
    points = seen.points
    begin = points[0].at
    end = points[-1].at + timedelta(seconds=seen.step_s)
    times = charts.Times.between(begin, end)
    most = max((max(p.failed, p.recovered) for p in points), default=0)
    top = charts.round_up(most or 1)
    dead_top = charts.round_up(max((p.dead for p in points if p.dead is not None), default=0) or 1)
    heights, dead_heights = charts.Heights(top, filled=1), charts.Heights(dead_top, filled=1)
    dead = [(times.x(p.at), None if p.dead is None else dead_heights.y(p.dead)) for p in points]
    kinds = dict.fromkeys(one.kind for one in timeline)
    minutes = seen.step_s // 60
    rows = [(p.at, p.failed, p.recovered, p.dead) for p in points if p.failed or p.recovered or p.dead]
    known = [p.dead for p in points if p.dead is not None]
    return Picture(
        charts.bars([p.failed for p in points], heights, wide=1),
        charts.bars([p.recovered for p in points], heights, wide=1),
        charts.levels(top),
        "per minute" if minutes == 1 else f"in {minutes} min" if minutes < 60 else "per hour",
        charts.line(dead),
        charts.area(dead),
        charts.levels(dead_top),
        [Upright(times.x(one.at), _TONES[one.kind][0], one.kind, one.words) for one in timeline],
        list(dict.fromkeys(_TONES[kind] for kind in kinds)),
        times.ticks(),
        charts.reading(
            {
                "failed": [p.failed for p in points],
                "recovered": [p.recovered for p in points],
                "dead": [p.dead for p in points],
            },
            times=times,
            at=[p.at.timestamp() for p in points],
        ),
        rows[-MOST_ROWS:],
        len(rows) > MOST_ROWS,
        f"Peak {number(most)} failed or recovered attempts in {duration(seen.step_s)}",
        f"From {number(known[0])} to {number(known[-1])} dead jobs, peak {number(max(known))}" if known else "",
    )


# -- numbers ------------------------------------------------------------------------------------------------------


def _jobs(incident: Incident) -> list[Row]:
    counts = incident.counts.jobs
    most = max(counts.values(), default=0)
    return [
        Row(
            state,
            number(counts[state]),
            share(counts[state], most),
            texts.failures(incident.where, state),
            "discarded" if state == "gone" else state,
        )
        for state in _STATES
        if counts.get(state)
    ]


def _tenants(incident: Incident) -> list[Row]:
    most = max((jobs for _, jobs in incident.counts.tenants), default=0)
    return [Row(name, number(jobs), share(jobs, most), "", "dead") for name, jobs in incident.counts.tenants]


def _dependencies(incident: Incident) -> list[Row]:
    most = max((jobs for _, jobs in incident.counts.dependencies), default=0)
    return [
        Row(name, number(jobs), share(jobs, most), links.dependency_page(name), "dead")
        for name, jobs in incident.counts.dependencies
    ]


def _tenants_words(incident: Incident) -> str:
    n = incident.counts
    return f"latest {number(n.looked_at)} jobs" if n.looked_at < n.of_jobs else ""
