"""Pauses on other pages: banners of a queue, badges in lists, and the line of the overview."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, product

from django.urls import reverse

from dashboard.web import links
from dashboard.web.moments import clock
from jobs_admin import config, holds
from jobs_admin.core.text import list_some
from jobs_admin.holds import breakers
from jobs_admin.holds.in_force import HoldsInForce
from jobs_admin.models import Pause
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.policies import active

# Seconds as submitted by the form, with label; "" means until resumed.
LENGTHS = (("900", "Pause 15 min"), ("3600", "Pause 1 h"), ("14400", "Pause 4 h"), ("", "Pause until resumed"))
MOST_NAMED = 3  # names in a sentence
MOST_PAIRS = 1_000  # pairs of queue and task whose policy is read


@dataclass(frozen=True, slots=True)
class Note:
    pause: Pause
    reach: holds.Reach
    resume_url: str  # "" if the viewer may not resume it
    url: str  # URL of the queue or the dependency's breaker; "" for other kinds
    is_paced: bool  # it can be resumed at a pace

    @property
    def name(self) -> str:
        return self.pause.name

    @property
    def what(self) -> str:
        return self.pause.kind


def notes(viewer: Viewer, found: Iterable[Pause], now: datetime) -> list[Note]:
    found = [one for one in found if holds.is_open(one, now)]
    known = holds.reach(viewer, found, now)
    resumable = [one for one in found if holds.may_resume(viewer, one)]
    rows, policies = (breakers.listing(viewer).rows, active()) if resumable else ([], [])
    places = breakers.find_places(policies, resumable)
    return [
        Note(
            one,
            known[one.pk],
            reverse("redrive:pause-resume", args=[one.pk]) if one.pk in places else "",
            "" if known[one.pk].is_unknown_dependency else _page_of(one),
            one.pk in places and bool(breakers.releasing(rows, policies, one, places[one.pk])),
        )
        for one in found
    ]


def _page_of(one: Pause) -> str:
    if one.dependency:
        return reverse("redrive:breaker-detail", args=[one.source, one.dependency])
    return links.queue_page(one.source, one.queue) if one.queue else ""


def of_queue(viewer: Viewer, source: str, queue: str, now: datetime) -> list[Note]:
    """Return the pauses that hold jobs of a queue."""
    return notes(viewer, holds.pauses_of(viewer, [(source, queue)], now)[source, queue], now)


def may_pause(viewer: Viewer, source: str, queue: str, found: Iterable[Note]) -> bool:
    """Return whether the viewer may pause this queue now. `found`: its current pauses."""
    if not queue or config.is_read_only() or not viewer.may(OPERATOR, source) or holds.why_not_pausable(source):
        return False
    return not any(one.pause.queue for one in found)


def sentence(found: Sequence[Pause], now: datetime) -> str:
    """Return pauses as a sentence: what is paused, until when; "" for none."""
    if not found:
        return ""
    names = [f"{one.kind} {one.name} {_end(one, now)}" for one in found]
    return f"Paused: {list_some(names, MOST_NAMED)}."


def _end(one: Pause, now: datetime) -> str:
    return f"until {clock(one.until, now)}" if one.until else "until resumed"


def warning(viewer: Viewer, sources: Iterable[str], places: Mapping[str, Sequence[str]], now: datetime) -> str:
    """Return a warning before jobs are sent to these places, by kind; "" if none is paused."""
    wanted = set(sources)
    current = [one for one in holds.listing(viewer) if holds.is_open(one, now) and one.source in wanted]
    policies = active() if any(one.dependency for one in current) else []
    pairs = list(islice(product(places["queue"], places["task"]), MOST_PAIRS)) if policies else []
    found = [
        one
        for one in current
        if one.name in places.get(one.kind, ())
        or (one.dependency and any(HoldsInForce([one], (), policies).find_pause(one.source, *pair) for pair in pairs))
    ]
    if not found:
        return ""
    names = " and ".join(f"{one.kind} {one.name}" for one in found[:MOST_NAMED])
    return f"Paused: {names}. Jobs are sent, but wait until the pause ends."
