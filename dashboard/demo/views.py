"""The page of the demo: break and fix the partner, set the load, show the effects and the notices of the pager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.demo import incident as incident_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.figures import duration, number
from dashboard.web.htmx import render_page
from dashboard.web.toasts import add_toast
from demo import control, story
from demo.temper import STRAIN
from jobs_admin import config, queues
from jobs_admin.core.alert_metrics import METRICS, Link
from jobs_admin.db import audit
from jobs_admin.models.access import OPERATOR, VIEWER

SOURCE = "shop"
RATES = (0, 1, 5, 10, 25, 50)

# (mode, label of its button, effect)
MODES = (
    ("well", "Fix", "Healthy: answers every request at once."),
    ("warming", "Fix slowly", "Warming up: handles a rate that rises over a minute, and falls over above it."),
    ("outage", "Break", "Outage: answers 503 or cuts the connection."),
    ("slow", "Make slow", "Slow: answers later than the shop waits."),
    ("rate_limit", "Limit the rate", "Rate limit: answers 429 with Retry-After above its limit."),
)
_DOES = {mode: does for mode, _, does in MODES}
_TONES = {"well": "recovered", "warming": "replaying", "slow": "retrying", "rate_limit": "retrying", "outage": "dead"}
_STATUSES = {
    "200": ("recovered", "answered"),
    "402": ("discarded", "card declined"),
    "404": ("discarded", "no such endpoint"),
    "410": ("discarded", "endpoint gone"),
    "429": ("retrying", "rate limited"),
    "503": ("dead", "service unavailable"),
    "cut": ("dead", "connection cut"),
}

WIDTH, HEIGHT = 600, 96  # of the chart, in its own units


def only_in_demo(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return 404 unless the demo runs."""

    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if not config.setting("DEMO_BROKER_URL"):
            raise Http404("The demo is not running.")
        return view(request)

    return guarded


@only_in_demo
@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    _in_sight(request)
    return _page(request)


@only_in_demo
@require_POST
@can(OPERATOR)
def partner(request: HttpRequest) -> HttpResponse:
    """Break or fix the partner: `mode`, and `delay_s` or `limit` if the mode has such a number."""
    mode = request.POST.get("mode", "")

    def change() -> None:
        numbers = {name: float(request.POST[name]) for name in ("delay_s", "limit") if request.POST.get(name)}
        control.set_mode(config.setting("DEMO_PARTNER_URL"), mode, **numbers)

    return _acted(request, change, "demo.partner", mode, lambda: _DOES[mode])


@only_in_demo
@require_POST
@can(OPERATOR)
def load(request: HttpRequest) -> HttpResponse:
    """Set how many jobs per second the shop publishes."""
    rate = request.POST.get("rate", "")

    def change() -> None:
        control.set_rate(_broker(), float(rate))

    return _acted(request, change, "demo.load", rate, lambda: f"Load set to {_jobs(float(rate))}/s.")


@only_in_demo
@require_POST
@can(OPERATOR)
def incident(request: HttpRequest) -> HttpResponse:
    """Start the incident (`wish`: play), or stop it (stop)."""
    wish = request.POST.get("wish", "")

    def change() -> None:
        if wish == "play":
            _refuse_while_broken()
            story.request(_broker(), request.viewer.user_id, request.viewer.name)
        elif wish == "stop":
            story.stop(_broker())
        else:
            raise control.BadWish(f"{wish[:40]!r} is neither play nor stop. Nothing was changed.")

    words = {"play": "Incident started.", "stop": "Stopping the incident and cleaning up."}
    return _acted(request, change, "demo.incident", wish, lambda: words[wish])


def _refuse_while_broken() -> None:
    mode = control.partner(config.setting("DEMO_PARTNER_URL"))["mode"]
    if mode != "well":
        raise control.BadWish(
            "The partner is not healthy and blocks the shop's workers. Fix the partner below, then run the incident. Nothing was changed."
        )


def _in_sight(request: HttpRequest) -> None:
    if request.viewer.role_on(SOURCE) is None:
        raise Http404("No such page, or you cannot view it.")


def _acted(
    request: HttpRequest, change: Callable[[], None], act: str, wish: str, words: Callable[[], str]
) -> HttpResponse:
    _in_sight(request)
    if not request.viewer.may(OPERATOR, SOURCE):
        raise PermissionDenied(f"This needs the role operator on the source {SOURCE}. Nothing was changed.")
    try:
        with transaction.atomic():
            audit.record(request.viewer, act, wish[:100], source=SOURCE)
            change()
    except control.DemoUnreachable as error:
        add_toast(request, str(error), level="error")
    except ValueError as error:  # BadWish, or not a number
        message = (
            str(error) if isinstance(error, control.BadWish) else f"{wish!r} is not a number. Nothing was changed."
        )
        add_toast(request, message, level="error")
    else:
        link = (
            {} if act == "demo.incident" else {"link": _recent_failures(), "link_text": "Failures of the last 15 min"}
        )
        add_toast(request, words(), **link)
    if not request.htmx:
        return redirect("redrive:demo")
    return _page(request)


def _page(request: HttpRequest) -> HttpResponse:
    lines = [_queue(row) for row in queues.queue_page(request.viewer, source=SOURCE).rows]
    context: dict[str, Any] = {
        "queues": lines,
        "may_operate": request.viewer.may(OPERATOR, SOURCE),
        "failures_url": _recent_failures(),
        "groups_url": f"{reverse('redrive:group-list')}?{urlencode({'q': f'source:{SOURCE}'})}",
    }
    try:
        context["partner"] = _partner(control.partner(config.setting("DEMO_PARTNER_URL")))
    except control.DemoUnreachable as error:
        context["partner_is_away"] = str(error)
    with contextlib.suppress(control.DemoUnreachable):  # the partner, in the same process, is reported as unreachable
        context["pager"] = present(control.pages(config.setting("DEMO_PARTNER_URL")))
    try:
        context["load"] = _load(control.load(_broker()))
    except control.DemoUnreachable as error:
        context["load_is_away"] = str(error)
    try:
        context["incident"] = incident_page.present(story.read(_broker()))
    except control.DemoUnreachable as error:
        context["incident_is_away"] = str(error)
    return render_page(request, "redrive/demo/index.html", context, part="demo")


def _broker():
    return control.broker(config.setting("DEMO_BROKER_URL"))


def _recent_failures() -> str:
    return f"{reverse('redrive:failure-list')}?{urlencode({'q': f'source:{SOURCE} age:<15m'})}"


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    words: str
    does: str
    is_now: bool


@dataclass(frozen=True, slots=True)
class Partner:
    tone: str
    sentence: str
    choices: list[Choice]
    requests_per_s: float
    refused_per_s: float
    capacity: float | None
    statuses: list[tuple[str, str, str, int]]  # (tone, status, text, requests of the last minute)
    bars: list[incident_page.Bar]
    capacity_y: float | None  # position of the capacity line; None: outside the chart
    top: int  # requests/s at the upper edge
    by_second: list[tuple[int, int, int]]  # (seconds ago, requests, refused)


def _partner(seen: dict[str, Any]) -> Partner:
    series = seen["series"]
    top = max(5, *(point["requests"] for point in series), round(seen["capacity"] or 0))
    return Partner(
        tone=_TONES.get(seen["mode"], "discarded"),
        sentence=_sentence(seen),
        # A partner that fell over while warming up is still recovering: no one clicked Break.
        choices=[
            Choice(mode, *words, ("warming" if seen["fell_over"] else seen["mode"]) == mode) for mode, *words in MODES
        ],
        requests_per_s=seen["requests_per_s"],
        refused_per_s=seen["refused_per_s"],
        capacity=seen["capacity"],
        statuses=[(*_status_words(status), n) for status, n in seen["by_status"].items()],
        bars=list(_bars(series, top)),
        capacity_y=None if seen["capacity"] is None else round(HEIGHT * (1 - seen["capacity"] / top), 1),
        top=top,
        by_second=[
            (point["ago_s"], point["requests"], point["requests"] - point["by_status"].get("200", 0))
            for point in reversed(series)
        ],
    )


def _status_words(status: str) -> tuple[str, str, str]:
    tone, words = _STATUSES.get(status, ("discarded", "other"))
    return tone, status, words


def _sentence(seen: dict[str, Any]) -> str:
    if seen["fell_over"]:
        return f"Overloaded and down. Recovers in {duration(round(seen['back_in_s']))}."
    does = _DOES.get(seen["mode"], seen["mode"])
    if seen["mode"] == "warming":
        does += f" Now {number(seen['capacity'])} requests/s; {number(STRAIN * seen['capacity'])} would bring the partner down."
    elif seen["mode"] == "rate_limit":
        does = f"Rate limit: answers 429 with Retry-After above {number(seen['limit'])} requests/s."
    elif seen["mode"] == "slow":
        does = f"Slow: answers after {duration(seen['delay_s'])}; the shop waits 2 s."
    return f"{does} For {duration(round(seen['for_s']))}."


def _bars(series: list[dict[str, Any]], top: int):
    step = WIDTH / len(series)
    for n, point in enumerate(series):
        floor = float(HEIGHT)
        for status, requests in sorted(point["by_status"].items()):
            tall = HEIGHT * requests / top
            floor -= tall
            yield incident_page.Bar(
                round(n * step, 1), round(floor, 2), round(step - 2, 1), round(tall, 2), _status_words(status)[0]
            )


@dataclass(frozen=True, slots=True)
class LoadNow:
    sentence: str
    choices: list[Choice]


def _load(found: control.Load) -> LoadNow:
    if found.published_per_s is None:
        sentence = "The load generator is not running."
    elif found.pause_depth is not None:
        sentence = f"Held: {number(found.pause_depth)} jobs waiting. Continues when the workers have caught up."
    else:
        sentence = f"The shop publishes {_jobs(found.published_per_s)}/s; 1 in 100 fails at random."
    rates = [Choice(str(rate), f"{rate}/s" if rate else "Stop", "", found.rate == rate) for rate in RATES]
    return LoadNow(sentence, rates)


@dataclass(frozen=True, slots=True)
class QueueLine:
    queue: str
    waiting: int | None
    active: int | None
    retrying: int
    retrying_url: str
    dead: int
    dead_url: str
    failed_per_minute: float


def _queue(row: queues.QueueRow) -> QueueLine:
    return QueueLine(
        queue=row.queue,
        waiting=row.waiting,
        active=row.active,
        retrying=row.retrying,
        retrying_url=links.failures_of(source=SOURCE, queue=row.queue, state="retrying"),
        dead=row.dead,
        dead_url=links.failures_of(source=SOURCE, queue=row.queue, state="dead"),
        failed_per_minute=row.failed_per_minute,
    )


def _jobs(rate: float) -> str:
    return "1 job" if rate == 1 else f"{number(rate)} jobs"


# --- the pager -----------------------------------------------------------------------------------------------------

MOST_PAGES = 5
_PAGE_TONES = {
    "alert.resolved": "recovered",
    "ping": "replaying",
    "replay.done": "recovered",
    "replay.held": "retrying",
}


@dataclass(frozen=True, slots=True)
class Page:
    tone: str
    words: str
    title: str
    message: str
    taken_at: datetime
    again: str  # number of deliveries, if more than one
    url: str
    quarantine_url: str  # URL of the quarantined jobs, if it is about those
    replay_url: str


@dataclass(frozen=True, slots=True)
class Pager:
    pages: list[Page]


def present(seen: dict[str, Any]) -> Pager:
    return Pager([_page_received(one) for one in seen["pages"][:MOST_PAGES]])


def _page_received(one: dict[str, Any]) -> Page:
    times = one["times"]
    return Page(
        tone=_PAGE_TONES.get(one["type"], "dead"),
        words=one["type"].rpartition(".")[2],
        title=one["title"],
        message=one["message"],
        taken_at=datetime.fromtimestamp(one["taken_at"], UTC),
        again=f"received {times} times with one id, shown once" if times > 1 else "",
        url=_path_on_desk(one["url"]),
        quarantine_url=_path_on_desk(one["failures_url"]) if _is_of_quarantine(one) else "",
        replay_url=_path_on_desk(one["replay_url"]),
    )


def _is_of_quarantine(one: dict[str, Any]) -> bool:
    metric = METRICS.get(one["metric"])
    return metric is not None and metric.link is Link.QUARANTINE


def _path_on_desk(url: str) -> str:
    """Return the path of a URL of this desk, so that it opens on the host of the page; "" for other URLs."""
    base = config.setting("URL") + "/"
    return url.removeprefix(config.setting("URL")) if url.startswith(base) else ""
