"""An incident on its page: the facts, two pictures over one time, the timeline, and the acts of people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard.audit.undo import page_of as page_of_object
from dashboard.incidents import document as texts
from dashboard.web import charts, moments
from dashboard.web.figures import duration, number
from dashboard.web.moments import clock
from dashboard.web.pictures import share
from jobs_admin.incidents import Act, Incident, Moment, OverTime, Span

MOST_ROWS = 200  # of the table behind the pictures

# Kind of a moment -> its tone, and what it is called in the legend.
_TONES = {
    "failing": ("dead", "failures"),
    "group": ("dead", "groups"),
    "alert": ("retrying", "alerts"),
    "policy": ("quarantined", "policies"),
    "release": ("discarded", "releases"),
    "pause": ("retrying", "pauses"),
    "replay": ("replaying", "replays"),
    "calm": ("recovered", "recovery"),
    "back": ("recovered", "recovery"),
}
_BAD = {("replay", "held"), ("replay", "stopped")}
_GOOD = {("alert", "resolved"), ("replay", "done"), ("group", "resolved")}
_STATES = ("dead", "quarantined", "retrying", "replaying", "recovered", "discarded", "gone")


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the timeline."""

    moment: Moment
    tone: str
    url: str
    after: str  # how long after the first failures


@dataclass(frozen=True, slots=True)
class Upright:
    x: float
    tone: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    bars: str  # path: attempts that failed, in each step
    back: str  # path: attempts that ran well after a failure, over these
    levels: list[str]  # words of the axis: top, half, ground
    unit: str
    dead: str  # path of a line; "" where nobody knows
    dead_area: str
    dead_levels: list[str]
    marks: list[Upright]
    legend: list[tuple[str, str]]  # tone, name
    ticks: list[charts.Tick]
    chart: str  # what is read out
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
    facts: list[tuple[str, str, str]]  # name, value, what else
    picture: Picture
    steps: list[Step]
    jobs: list[Row]
    tenants: list[Row]
    tenants_words: str
    acts: list[ActLine] | None
    more_acts: bool
    url: str
    markdown_url: str
    json_url: str
    failures_url: str
    found: str  # how it was found


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
    """Return the values of the form: the typed ones, else those of the found span."""
    if where is None:
        return {name: given.get(name, "")[:200] for name in ("source", "queue", "since", "until")}
    return {
        "source": where.source,
        "queue": where.queue,
        "since": moments.as_field(where.since),
        # Up, so that what is shown is in it.
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
        # Jobs are counted by the second: at the edges of the span the two need not agree.
        ("Failed attempts", number(n.failed), f"in steps of {duration(seen.step_s)}"),
        ("Job deaths", number(n.died), ""),
        ("Peak dead jobs", "unknown" if seen.dead_most is None else number(seen.dead_most), ""),
    ]


def _not_back(seen: OverTime, where: Span) -> tuple[str, str]:
    """Return why the time is unknown at which the dead jobs were back to their former number."""
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
            _tone(state),
        )
        for state in _STATES
        if counts.get(state)
    ]


def _tone(state: str) -> str:
    return "discarded" if state == "gone" else state


def _tenants(incident: Incident) -> list[Row]:
    most = max((jobs for _, jobs in incident.counts.tenants), default=0)
    return [Row(name, number(jobs), share(jobs, most), "", "dead") for name, jobs in incident.counts.tenants]


def _tenants_words(incident: Incident) -> str:
    n = incident.counts
    return f"latest {number(n.looked_at)} jobs" if n.looked_at < n.of_jobs else ""
