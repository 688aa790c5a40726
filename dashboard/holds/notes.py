"""Pauses as other pages show them: banners of a queue, badges in lists, and the line of the overview."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse
from django.utils import timezone

from dashboard.web import links
from jobs_admin import config, holds
from jobs_admin.models import Pause
from jobs_admin.models.access import OPERATOR, Viewer

# Seconds, as the form sends them, and the label; "" until resumed.
LENGTHS = (("900", "Pause 15 min"), ("3600", "Pause 1 h"), ("14400", "Pause 4 h"), ("", "Pause until resumed"))
MOST_NAMED = 3  # in a sentence


@dataclass(frozen=True, slots=True)
class Note:
    pause: Pause
    reach: holds.Reach
    resume_url: str  # "" where this viewer may not
    queue_url: str  # "" for a task

    @property
    def name(self) -> str:
        return self.pause.queue or self.pause.task

    @property
    def what(self) -> str:
        return "queue" if self.pause.queue else "task"


def notes(viewer: Viewer, found: Iterable[Pause], now: datetime) -> list[Note]:
    found = [one for one in found if holds.is_open(one, now)]
    known = holds.reach(viewer, found, now)
    return [
        Note(
            one,
            known[one.pk],
            reverse("redrive:pause-resume", args=[one.pk]) if holds.may_resume(viewer, one) else "",
            links.queue_page(one.source, one.queue) if one.queue else "",
        )
        for one in found
    ]


def of_queue(viewer: Viewer, source: str, queue: str, now: datetime) -> list[Note]:
    return notes(viewer, holds.pauses_of(viewer, source, queue), now)


def may_pause(viewer: Viewer, source: str, queue: str) -> bool:
    """Return whether the viewer may pause this queue, it can be paused, and is not yet."""
    if not queue or config.is_read_only() or not viewer.may(OPERATOR, source) or holds.why_not_pausable(source):
        return False
    now = timezone.now()
    return not any(one.queue and holds.is_open(one, now) for one in holds.pauses_of(viewer, source, queue))


def paused_queues(viewer: Viewer, now: datetime) -> set[tuple[str, str]]:
    return {(one.source, one.queue) for one in holds.listing(viewer) if one.queue and holds.is_open(one, now)}


def sentence(viewer: Viewer, now: datetime) -> str:
    """Return what is paused, for the overview; "" for nothing."""
    found = [one for one in holds.listing(viewer) if holds.is_open(one, now)]
    if not found:
        return ""
    names = ", ".join(one.queue or one.task for one in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
    return f"Paused: {names}{more}."


def warning(viewer: Viewer, sources: Iterable[str], queues: Iterable[str], tasks: Iterable[str], now: datetime) -> str:
    """Return a warning for jobs that are about to be sent to these places; "" where none is paused."""
    wanted, queues, tasks = set(sources), set(queues), set(tasks)
    found = [
        one
        for one in holds.listing(viewer)
        if holds.is_open(one, now) and one.source in wanted and (one.queue in queues or one.task in tasks)
    ]
    if not found:
        return ""
    names = " and ".join(f"{'queue' if one.queue else 'task'} {one.queue or one.task}" for one in found[:MOST_NAMED])
    return f"Paused: {names}. Jobs are sent, but wait until the pause ends."
