"""Breaker on pages: state as a sentence, evidence, held jobs over time, and the effect of closing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.urls import reverse

from dashboard.web import charts, links
from dashboard.web.figures import duration, number
from dashboard.web.moments import clock
from jobs_admin.core.breaker import RESUMED
from jobs_admin.core.dependency import declared_name
from jobs_admin.core.figures import exact_percent, small
from jobs_admin.core.matching import matches
from jobs_admin.core.text import list_some
from jobs_admin.holds import breaker_history, breakers
from jobs_admin.holds.breaker_documents import CLOSED, HALF_OPEN, OPEN, Document, Evidence, HostHold
from jobs_admin.holds.breakers import OFF, BreakerRow
from jobs_admin.models import BreakerEvent, Failure, GroupSource
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState

# Seconds as submitted by the forms, with label; "" means until changed.
LENGTHS = (("900", "15 min"), ("3600", "1 h"), ("14400", "4 h"), ("", "until changed"))
STATE_NAMES = {CLOSED: "closed", OPEN: "open", HALF_OPEN: "releasing"}
MOST_NAMED = 3  # names in a sentence
MOST_DEAD = 10_000  # dead jobs counted at most
_CHANCE_SHOWN = 1e-12


@dataclass(frozen=True, slots=True)
class Shown:
    """A breaker on a page."""

    row: BreakerRow
    url: str
    sentence: str
    state: str  # name of the state in `pictures.STATES`
    words: str
    can_force: bool

    @property
    def document(self) -> Document | None:
        return self.row.document


def show(viewer: Viewer, row: BreakerRow, now: datetime, *, dead: int | None = None) -> Shown:
    """Return the breaker. `dead`: jobs that died while it was open; None: not counted."""
    return Shown(
        row,
        page_of(row.source, row.name),
        sentence(row, now, dead),
        OFF if row.mode == OFF else "observed" if row.is_observed and not row.is_closed else row.state,
        "not in force" if row.mode == OFF else STATE_NAMES[row.state],
        breakers.may_force(viewer, row),
    )


def page_of(source: str, name: str) -> str:
    return reverse("redrive:breaker-detail", args=[source, name])


def sentence(row: BreakerRow, now: datetime, dead: int | None = None) -> str:
    """Return the state of a breaker in one sentence."""
    document = row.document
    if row.mode == OFF:
        return f"{row.name}: no policy in force has this breaker"
    if document is None:
        return f"{row.name}: no outcome reported yet"
    start = document.opened_at or document.since if row.state == OPEN else document.since
    since = f" since {clock(start, now)}" if start else ""
    is_now = "has been" if since else "is"
    if row.is_observed:
        return _observed_sentence(row, document, since, start, now)
    forced = document.forced
    if forced and forced.as_ == CLOSED and row.is_closed:
        return f"{row.name} is forced closed by {forced.by or 'an operator'}{_until(forced.until, now)}: jobs start"
    if row.is_closed:
        rest = f", {_jobs(document.on_hold)} still held" if document.on_hold else ""
        return f"{row.name}: jobs running normally{since}{_hosts_text(document)}{rest}"
    jobs = f"{_jobs(document.on_hold)} held" if document.on_hold is not None else "jobs are held"
    died = "" if dead is None else ", none dead" if not dead else f", {_number(dead)} dead"
    if forced and forced.as_ == OPEN:
        by = forced.by or "an operator"
        return f"{row.name} is forced open by {by}{_until(forced.until, now)}: {jobs}{died}"
    if row.state == HALF_OPEN:
        rate = f", {small(document.rate)}/s released" if document.rate else ", being released"
        return f"{row.name} {is_now} recovering{since}: {jobs}{rate}{died}"
    latest = next((it for it in reversed(document.history) if not it.is_of_host), None)
    if latest is not None and latest.why.startswith(RESUMED):
        return f"{row.name} is waiting for a first job after a pause: {jobs}{died}"
    whose = ""
    if parts := [*document.tenants, *(f"task {one}" for one in document.tasks)]:
        whose = f" for {list_some(parts, MOST_NAMED)}"
    return f"{row.name} {is_now} down{whose}{since}: {jobs}{died}"


def _hosts_text(document: Document) -> str:
    """Return the part of the sentence that names failing hosts; "" for none."""
    names = [one.host for one in document.hosts]
    hosts = "host" if len(names) == 1 else "hosts"
    return f", but not on {hosts} {list_some(names, MOST_NAMED)}" if names else ""


def _observed_sentence(row: BreakerRow, document: Document, since: str, start: datetime | None, now: datetime) -> str:
    if row.is_closed:
        return f"{row.name}: observed, no outage{since}"
    jobs = f"{_jobs(document.would_hold)}" if document.would_hold is not None else "jobs"
    lasted = f" for {duration((now - start).total_seconds())}" if start else ""
    return f"{row.name} {'has looked' if since else 'looks'} down{since}: would have held {jobs}{lasted}"


def _until(until: datetime | None, now: datetime) -> str:
    return f" until {clock(until, now)}" if until else ""


def _jobs(count: int | None) -> str:
    return f"{number(count)} job{'' if count == 1 else 's'}"


def _number(count: int) -> str:
    return number(count) if count <= MOST_DEAD else f"over {number(MOST_DEAD)}"


def count_dead(row: BreakerRow) -> int | None:
    """Return the number of jobs of its policies that died since it opened.

    None if it is closed, or opened at an unknown time.
    """
    document = row.document
    if not row.is_holding or document is None or document.opened_at is None:
        return None
    found = (
        Failure.objects.filter(source=row.source, state=FailureState.DEAD, failed_at__gte=document.opened_at)
        .order_by()
        .values_list("queue", "task")[: MOST_DEAD + 1]
    )
    return sum(
        any(matches(one.match_queue, queue) and matches(one.match_task, task) for one in row.policies)
        for queue, task in found
    )


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host that starts no jobs of the breaker."""

    hold: HostHold
    attempts: str
    kinds: str


def host_lines(document: Document | None) -> list[HostLine]:
    return [
        HostLine(
            one,
            f"{number(one.evidence.failures)} of {number(one.evidence.attempts)}",
            ", ".join(sorted(one.evidence.kinds)),
        )
        for one in (document.hosts if document else ())
    ]


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    title: str = ""


def evidence_facts(evidence: Evidence) -> list[Fact]:
    """Return the evidence for its opening, as figures."""
    found = []
    if evidence.attempts:
        found.append(Fact("Failed attempts", f"{number(evidence.failures)} of {number(evidence.attempts)}"))
    if evidence.share is not None:
        found.append(Fact("Share", exact_percent(evidence.share)))
    if evidence.usual is not None:
        found.append(Fact("Usual share", exact_percent(evidence.usual), "Learned while the breaker was closed"))
    if evidence.kinds:
        most = sorted(evidence.kinds.items(), key=lambda one: -one[1])
        found.append(Fact("Kinds", ", ".join(f"{kind} ({number(n)})" for kind, n in most[:5])))
    if evidence.chance is not None:
        chance = "below 1 in 10¹²" if evidence.chance < _CHANCE_SHOWN else f"1 in {number(round(1 / evidence.chance))}"
        found.append(Fact("False alarm", chance, "Upper bound of the chance if 20 % or more usually fail"))
    return found


def closing_text(row: BreakerRow) -> str:
    """Return the effect of forcing it closed now; "" while it holds nothing."""
    document = row.document
    if not row.is_holding or document is None:
        return ""
    evidence = document.evidence
    text = (
        f"{_jobs(document.on_hold)} would start at the careful pace."
        if document.on_hold
        else "Matching jobs would start again."
    )
    if evidence and evidence.share and document.state == "open":  # while jobs are being released, most of them succeed
        again = f" With {exact_percent(evidence.share)} failing, as when the breaker opened,"
        text += f"{again} about {number(round((document.on_hold or 0) * evidence.share))} of them would fail and spend an attempt."
    return text


def policies_of(row: BreakerRow) -> list[tuple[str, str, str, datetime | None, str]]:
    """Return name, URL, mode, expiry and author of the policies that define it."""
    return [
        (one.name, reverse("redrive:policy-detail", args=[one.name]), one.mode, one.expires_at, one.published_by)
        for one in row.policies
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """Line of the history."""

    event: BreakerEvent
    words: str


def steps(events: Iterable[BreakerEvent]) -> list[Step]:
    return [Step(one, "one host" if one.is_of_host else STATE_NAMES.get(one.to_state, one.to_state)) for one in events]


# -- other pages --------------------------------------------------------------------------------------------------


def open_lines(viewer: Viewer, sources: Iterable[str], now: datetime) -> list[Shown]:
    """Return the breakers of these sources that hold jobs now, for the overview, with their number of dead jobs."""
    found = breakers.open_breakers(viewer, sources)[:MOST_NAMED]
    return [show(viewer, one, now, dead=count_dead(one)) for one in found]


def of_queue(viewer: Viewer, source: str, queue: str, now: datetime) -> list[Shown]:
    """Return the breakers that may hold jobs of a queue."""
    found = [one for one in breakers.open_breakers(viewer, [source]) if one.matches(queue)]
    return [show(viewer, one, now) for one in found]


def dependency_of(row: BreakerRow) -> str:
    """Return the dependency in its source's failures that has the breaker's name; "" if none has."""
    name = declared_name(row.name)
    return name if GroupSource.objects.filter(source=row.source, dependency=name).exists() else ""


def failures_url(row: BreakerRow, dependency: str) -> str:
    """Return the URL of the failures of its dependency, or of its policies' only place, or else of its source."""
    fields = {"source": row.source}
    if dependency:
        return links.failures_of(**fields, dependency=dependency)
    if len(row.policies) == 1:
        one = row.policies[0]
        fields |= {"queue": one.match_queue} if "*" not in one.match_queue else {}
        fields |= {"task": one.match_task} if "*" not in one.match_task else {}
    return links.failures_of(**fields)


SPAN = timedelta(hours=24)
SHORTEST = timedelta(minutes=1)
MOST_ROWS = 60  # rows of the table


@dataclass(frozen=True, slots=True)
class Band:
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    words: str  # description as a sentence
    line: str  # SVG path
    area: str
    bands: list[Band]
    levels: list[str]  # axis labels: top, half, ground
    ticks: list[charts.Tick]
    rows: list[tuple[datetime, str, str]]  # (time, held, state), latest first
    chart: str  # values for charts.js, as JSON


def draw(row: BreakerRow, events: Sequence[BreakerEvent], now: datetime) -> Picture | None:
    """Draw the latest day of samples and transitions, given oldest first; None if no sample counts held jobs."""
    if not events:
        return None
    on_hold = row.document.on_hold if row.document else None
    is_current = on_hold is not None and (row.is_holding or on_hold > 0)
    until = now if is_current else events[-1].at
    points: list[tuple[datetime, int, str]] = []
    for one in events:
        if one.at >= until - SPAN and one.on_hold is not None:
            if one.from_state == CLOSED and one.to_state != CLOSED:
                points.append((one.at, 0, CLOSED))
            points.append((one.at, one.on_hold, one.to_state))
    if is_current:
        points.append((now, on_hold or 0, row.state))
    if not points:
        return None
    since = min(points[0][0], until - SHORTEST)
    times, top = charts.Times.between(since, until), charts.round_up(max(2, *(n for _, n, _ in points)))
    heights = charts.Heights(top, filled=1)
    line = [(times.x(at), heights.y(n)) for at, n, _ in points]
    step = max(1, -(-len(points) // MOST_ROWS))
    return Picture(
        f"Held jobs: peak {number(max(n for _, n, _ in points))}, latest {number(points[-1][1])}",
        charts.line(line),
        charts.area(line),
        [
            _band(times, opened, closed, row, now)
            for opened, closed in breaker_history.openings(events)
            if closed is None or closed.at > since
        ],
        charts.levels(top),
        times.ticks(),
        [(at, number(n), STATE_NAMES.get(state, state)) for at, n, state in points[::-1][::step]],
        charts.reading({"Held jobs": [n for _, n, _ in points]}, times=times, at=[at.timestamp() for at, *_ in points]),
    )


def _band(
    times: charts.Times, opened: BreakerEvent, closed: BreakerEvent | None, row: BreakerRow, now: datetime
) -> Band:
    """Return the band of an opening, clipped to the chart; its text has the times of the transitions."""
    end = closed.at if closed else datetime.fromtimestamp(times.until, UTC)
    left, right = times.x(opened.at), times.x(end)
    # Of too many events, the first is a sample, not the opening.
    words = f"Open {'from' if opened.from_state == CLOSED else 'since before'} {clock(opened.at, now)}"
    if closed:
        words += f" to {clock(end, now)}"
    elif not row.is_closed:
        words += " to now"
    else:  # unknown state, or a transition that is not copied yet
        words += f" until at least {clock(end, now)}"
    return Band(left, round(max(right - left, 2), 1), words)
