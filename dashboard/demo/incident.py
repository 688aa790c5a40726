"""The demo's incident on /demo/: its acts, the effect of each replay on the partner per second, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.urls import reverse

from dashboard.web import charts, links
from dashboard.web.figures import duration, number
from demo.story import ACTS, JOBS, SIDES, TENANT, THRESHOLD, Seen, Side, Story
from demo.temper import COLD_RATE, FALLEN_S, WARM_RATE

NAMES = {
    "outage": "Outage",
    "group": "A new group",
    "condition": "Alert fires",
    "at_once": "Everything at once",
    "careful": "Careful",
    "held": "Held",
}
_SHORTEST_S = 30  # of the time axis
_LOWEST_TOP, _HIGHEST_TOP = 60, 150  # requests/s; higher bars are clipped and show their number
_MARK_EVERY_S = 10


@dataclass(frozen=True, slots=True)
class Act:
    name: str
    standing: str  # done, now, later
    words: str  # time after which it began, as text


@dataclass(frozen=True, slots=True)
class Bar:
    """Requests of one second, in units of the chart."""

    x: float
    y: float
    width: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Second whose bar is clipped."""

    x: float
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    second: int
    requests: int
    refused: int
    capacity: float | None
    left: int | None


@dataclass(frozen=True, slots=True)
class Picture:
    """Requests at the partner after an outage. Lengths are in per cent of the chart, which begins at its return."""

    name: str
    side: str
    verdict: str
    tone: str
    replay: int | None
    url: str
    words: str  # description of the chart
    bars: list[Bar]
    cuts: list[Cut]
    down: list[Bar]  # outages
    falls: list[float]
    capacity: str  # SVG path, interrupted during outages
    left: str
    left_words: str
    rows: list[Row]
    chart: str  # values for charts.js, as JSON


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    url: str
    words: str


@dataclass(frozen=True, slots=True)
class IncidentPage:
    headline: str
    tone: str
    sentence: str
    acts: list[Act]
    is_playing: bool
    has_player: bool
    is_over: bool
    began_at: datetime | None
    by: str
    groups: list[Group]
    failures_url: str
    pictures: list[Picture]
    columns: list[str]  # columns of the figures
    figures: list[Figure]
    top: int  # requests/s at the upper edge of each chart
    half: str
    jobs: int
    half_jobs: str
    tenant: str
    marks: list[str]  # labels of the time axis


def present(seen: Seen) -> IncidentPage:
    story = seen.story
    sides = [story.sides[name] for name in SIDES if name in story.sides] if story else []
    span = _span(sides)
    top = _top(sides)
    headline, tone = _headline(seen)
    return IncidentPage(
        headline=headline,
        tone=tone,
        sentence=_sentence(story) if story else "",
        acts=list(_acts(story, seen.is_playing)),
        is_playing=seen.is_playing,
        has_player=seen.has_player,
        is_over=story is not None and story.is_over,
        began_at=datetime.fromtimestamp(story.began_at, UTC) if story else None,
        by=story.by if story else "",
        groups=list(_groups(story)) if story else [],
        failures_url=links.failures_of(source="shop", tenant=TENANT, state="any"),
        pictures=[_picture(name, story.sides[name], story, span, top) for name in SIDES if name in story.sides]
        if story
        else [],
        columns=[NAMES[name] for name in SIDES],
        figures=_figures(story) if story and sides else [],
        top=top,
        half=number(top / 2),
        jobs=story.jobs if story else JOBS,
        half_jobs=number((story.jobs if story else JOBS) / 2),
        tenant=TENANT,
        marks=[f"{second} s" for second in range(0, span + 1, _MARK_EVERY_S)],
    )


def _span(sides: list[Side]) -> int:
    """Return the length of the shared time axis in seconds, a multiple of ten."""
    longest = max((len(side.seconds) for side in sides), default=0)
    return max(_SHORTEST_S, -(-longest // _MARK_EVERY_S) * _MARK_EVERY_S)


def _top(sides: list[Side]) -> int:
    """Return requests/s at the upper edge. Extreme peaks are clipped, because nothing else would be visible."""
    highest = max((side.peak for side in sides), default=0)
    return max(_LOWEST_TOP, -(-min(highest, _HIGHEST_TOP) // 10) * 10)


# Words ----------------------------------------------------------------------------------------------------------------


def _headline(seen: Seen) -> tuple[str, str]:
    story = seen.story
    if story is None:
        return ("Starting.", "replaying") if seen.is_playing else ("", "")
    if story.outcome and not story.is_over:
        return "Ending: the warehouse is being fixed, and jobs in flight are settling.", "replaying"
    if story.outcome == "failed":
        return f"The incident stopped. {story.why}", "dead"
    if story.outcome == "stopped":
        return "Stopped. The warehouse is fixed, and dead jobs are discarded.", "discarded"
    if story.outcome == "played":
        return _moral(story)
    words = f"{ACTS.index(story.act) + 1} of {len(ACTS)}: {NAMES[story.act]}."
    return words, "replaying" if story.act in ("careful", "held") else "dead"


def _moral(story: Story) -> tuple[str, str]:
    naive, careful, hold = story.sides["at_once"], story.sides["careful"], story.sides.get("held")
    left = f"left {number(naive.failed_again)} of {number(naive.jobs)} dead"
    first = f"Everything at once knocked the warehouse over {_times(len(naive.falls))} and {left}"
    if careful.falls:
        return f"{first}. Careful knocked the warehouse over {_times(len(careful.falls))}, too.", "retrying"
    if careful.failed_again:
        return f"{first}. Careful did not; {number(careful.failed_again)} failed again.", "retrying"
    first = f"{first}. Careful recovered all of them in {duration(round(careful.ended or 0))}"
    if hold is None:  # stored by the previous version
        return f"{first}.", "recovered"
    if hold.failed_again or hold.falls:
        return f"{first}. With the breaker {number(hold.failed_again)} of {number(story.jobs)} died.", "retrying"
    return f"{first}. With the breaker no job died.", "recovered"


def _moment(at: float) -> str:
    return f"{max(at, 0.1):.1f} s"


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def _sentence(story: Story) -> str:
    """Return the state of the current act as a sentence."""
    if story.outcome:
        return ""
    if story.act == "outage":
        queued = f"{number(story.published)} of {number(story.jobs)} jobs are on the queue"
        return f"A warehouse of the partner answers 503 or cuts the connection. {queued}."
    if story.act == "group":
        return (
            f"The jobs fail in {_number_of(story.groups, 'group')}. Celery tries each four times within some seconds: "
            f"{number(story.dead)} of {number(story.jobs)} are dead."
        )
    if story.act == "condition":
        after = duration(round((story.reached_at or 0) - (story.broken_at or 0)))
        return (
            f"{THRESHOLD} jobs were dead after {after}: a condition of that kind is reached. "
            f"{number(story.dead)} of {number(story.jobs)} are dead now."
        )
    if story.act == "held":
        return _hold_sentence(story)
    side = story.sides.get(story.act)
    if side is None or side.replay is None:
        return "The partner is about to recover with cold caches. Then the replay starts."
    if story.act == "at_once":
        if not side.falls:
            carries = number(round(COLD_RATE * story.scale, 1))
            return f"The partner has just recovered and handles {carries} requests/s. All {number(side.jobs)} jobs arrive at once."
        dead = f"{number(side.failed_again)} of {number(side.jobs)} are dead again"
        return (
            f"It fell over after {_moment(side.falls[0])}, and retries hit a partner that is down: "
            f"{dead}. Recovery takes {number(FALLEN_S)} s."
        )
    if side.state == "held":
        return f"Held: {side.said}"
    back = f"{number(side.jobs - story.left if story.left <= side.jobs else 0)} of {number(side.jobs)} recovered"
    return {
        "canary": f"Canary: a few jobs first, the rest follow if they succeed: {back}.",
        "ramping": f"Canary passed. The rate rises while no job fails: {back}.",
    }.get(side.state, f"The partner has recovered, again with cold caches. {back}.")


def _hold_sentence(story: Story) -> str:
    outage, side = story.outages.get("held"), story.sides.get("held")
    if outage is None:
        return "The warehouse goes down again, for as long as before. Now a breaker guards its jobs."
    if side is None:
        return (
            f"{number(outage.while_down)} requests reached the warehouse. {number(outage.on_hold)} of "
            f"{number(story.jobs)} jobs are held, {number(outage.failed_again)} dead."
        )
    back = f"{number(side.succeeded)} of {number(side.jobs)} succeeded"
    return {
        "open": f"The warehouse has recovered. One job at a time probes it: {back}.",
        "half_open": f"The probe succeeded. Jobs are released while none fails: {back}.",
    }.get(side.state, f"The breaker is closed: {back}.")


def _number_of(things: list[dict[str, str]], word: str) -> str:
    fresh = " never seen before" if all(thing["state"] == "new" for thing in things) else ""
    return f"{'one' if len(things) == 1 else number(len(things))} {word}{'' if len(things) == 1 else 's'}{fresh}"


def _acts(story: Story | None, is_playing: bool) -> Iterator[Act]:
    begun = _act_starts(story) if story else {}
    on = ACTS.index(story.act) if story else -1
    for n, act in enumerate(ACTS):
        if story is None or n > on or (n == on and act not in begun):
            standing = "later"
        elif n < on or story.outcome:
            standing = "done"
        else:
            standing = "now"
        yield Act(NAMES[act], standing, f"{begun[act]:.0f} s" if act in begun and standing != "later" else "")


def _act_starts(story: Story) -> dict[str, float]:
    """Return the start of each act, in seconds after the first."""
    first = story.broken_at
    if first is None:
        return {}
    begun = {"outage": 0.0}
    if story.failed_at:
        begun["group"] = story.failed_at - first
    if story.reached_at:
        begun["condition"] = story.reached_at - first
    if story.all_dead_at:
        begun["at_once"] = story.all_dead_at - first
        if "careful" in story.sides:
            begun["careful"] = begun["at_once"] + story.sides["careful"].began - story.sides["at_once"].began
    if story.broken_again_at:
        begun["held"] = story.broken_again_at - first
    return begun


def _groups(story: Story) -> Iterator[Group]:
    words = {"new": "new", "regressed": "came back"}
    for group in story.groups:
        url = reverse("redrive:group-detail", args=[group["fingerprint"]])
        yield Group(group["title"], url, words.get(group["state"], group["state"]))


# Figures --------------------------------------------------------------------------------------------------------------


def _figures(story: Story) -> list[Figure]:
    sides = [story.sides.get(name) for name in SIDES]

    def row(name: str, value) -> Figure:
        return Figure(name, [value(side) if side else "–" for side in sides])

    outages = [story.outages.get("held" if name == "held" else "dead") for name in SIDES]
    return [
        Figure("Requests during the outage", [number(one.while_down) if one else "–" for one in outages]),
        row("Peak requests/s", lambda side: number(side.peak)),
        row("Fell over", _fell),
        row("Requests while down again", lambda side: number(side.while_down)),
        row("Failed again", lambda side: f"{number(side.failed_again)} of {number(side.jobs)}"),
        row("All recovered after", _through),
    ]


def _fell(side: Side) -> str:
    if side.falls:
        return _times(len(side.falls))
    return "never" if side.ended is not None else "not yet"


def _through(side: Side) -> str:
    if side.ended is None:
        return "not yet"
    if side.failed_again:
        return f"never: {number(side.failed_again)} dead"
    return duration(round(side.ended))


# Pictures -------------------------------------------------------------------------------------------------------------


def _picture(name: str, side: Side, story: Story, span: int, top: int) -> Picture:
    step = 100 / span
    rows = [
        Row(n, second.requests, second.refused, second.capacity, second.left)
        for n, second in enumerate(side.seconds)
        if second
    ]
    # The first second began before the partner was back; labels count from its return.
    offset = side.began % 1
    verdict, tone = _verdict(name, side)
    return Picture(
        name=NAMES[name],
        side=name,
        verdict=verdict,
        tone=tone,
        replay=side.replay,
        url=reverse("redrive:replay-detail", args=[side.replay]) if side.replay else "",
        words=f"{NAMES[name]}: requests per second at the partner, peak {number(side.peak)}. {verdict}",
        bars=[bar for row in rows for bar in _bars(row, step, top)],
        cuts=list(_cuts(rows, step, top)),
        down=[
            Bar(
                round((at + offset) * step, 2),
                0,
                round(max(0.0, min(FALLEN_S, len(side.seconds) - at - offset)) * step, 2),
                100,
                "dead",
            )
            for at in side.falls
        ],
        falls=[round((at + offset) * step, 2) for at in side.falls],
        capacity=_capacity(rows, step, top),
        left=_back(rows, side, story.jobs, step),
        left_words=f"{NAMES[name]}: unrecovered jobs. {_left_words(rows, side)}",
        rows=rows,
        chart=charts.reading(
            {
                "requests": [row.requests for row in rows],
                "refused": [row.refused for row in rows],
                "unrecovered": [row.left for row in rows],
            },
            labels=[f"second {row.second}" for row in rows],
            lefts=[row.second / span for row in rows],
            reach=1 / span,
        )
        if rows
        else "",
    )


def _verdict(name: str, side: Side) -> tuple[str, str]:
    if side.falls:
        after = f"after {_moment(side.falls[0])}"
        fell = f"Fell over {after}" if len(side.falls) == 1 else f"Fell over {_times(len(side.falls))}, first {after}"
        return f"{fell}; {number(side.failed_again)} failed again.", "dead"
    if side.ended is None:
        return ("Running." if side.state != "held" else "Held."), "replaying" if side.state != "held" else "retrying"
    if name == "held" and not side.failed_again:
        return f"No job died; all {number(side.jobs)} succeeded in {duration(round(side.ended))}.", "recovered"
    if side.failed_again:
        return f"Never fell over; {number(side.failed_again)} failed again.", "retrying"
    return f"Never fell over; all {number(side.succeeded)} recovered in {duration(round(side.ended))}.", "recovered"


def _back(rows: list[Row], side: Side, jobs: int, step: float) -> str:
    known = [(-1, side.jobs), *((row.second, row.left) for row in rows if row.left is not None)]
    heights = charts.Heights(jobs, filled=1)
    return charts.line((round((second + 1) * step * 10, 1), heights.y(left)) for second, left in known)


def _left_words(rows: list[Row], side: Side) -> str:
    known = [row.left for row in rows if row.left is not None]
    return f"{number(known[0])} at first, {number(known[-1])} at last." if known else "No data yet."


def _bars(row: Row, step: float, top: int) -> Iterator[Bar]:
    """Yield the bars of a second: answered requests at the bottom, refused ones on top."""
    scale = 100 / max(top, row.requests)
    floor = 100.0
    for requests, tone in ((row.requests - row.refused, "recovered"), (row.refused, "dead")):
        tall = requests * scale
        floor -= tall
        if requests:
            yield Bar(
                round(row.second * step + step * 0.08, 2), round(floor, 2), round(step * 0.84, 2), round(tall, 2), tone
            )


def _cuts(rows: list[Row], step: float, top: int) -> Iterator[Cut]:
    """Return the highest of each run of clipped seconds, whose numbers would otherwise overlap."""
    run: list[Row] = []
    for row in [*rows, None]:
        if row and row.requests > top and (not run or row.second - run[0].second < 8):
            run.append(row)
            continue
        if run:
            highest = max(run, key=lambda one: one.requests)
            yield Cut(round((highest.second + 1) * step, 2), f"↑ {number(highest.requests)}")
        run = [row] if row and row.requests > top else []


def _capacity(rows: list[Row], step: float, top: int) -> str:
    heights = charts.Heights(top, filled=1)
    return charts.line(
        (
            round((row.second + 1) * step * 10, 1),
            None if row.capacity is None else heights.y(min(row.capacity, WARM_RATE)),
        )
        for row in rows
    )
