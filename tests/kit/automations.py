"""Automations: people who own them, jobs that fail at chosen times, and replays that run to their end."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.auth import get_user_model
from django.utils import timezone

from jobs_admin import automations, replays
from jobs_admin.ingest import indexing
from jobs_admin.models import Attempt, Automation, Failure, Replay, ReplayItem, Role
from jobs_admin.models.access import Viewer, viewer_of
from tests.kit.replays import buried, came_home

AT_ONCE = {"kind": "replay", "pace": {"style": "at_once"}}


def person(name: str, **roles: str) -> Viewer:
    """A person who can log in; `roles`: source (`every` for all) -> role."""
    user = get_user_model().objects.get_or_create(username=name)[0]
    for source, role in roles.items():
        Role.objects.get_or_create(user=user, source="*" if source == "every" else source, role=role)
    return viewer_of(user)


def fail(at: datetime, n: int = 1, **changes) -> list[int]:
    """`n` jobs of the shop that died at `at`, with the attempt."""
    ids = buried(n, first_failed_at=at, failed_at=at, received_at=at, **changes)
    rows = list(Failure.objects.filter(pk__in=ids))
    indexing.index(rows)
    Attempt.objects.bulk_create(
        Attempt(failure=row, run=1, attempt=1, kind="exception", job_id=row.job_id, ended_at=at, received_at=at)
        for row in rows
    )
    return ids


def document(**changes) -> dict:
    base = {
        "source": "shop", "q": "", "min_jobs": 1, "quiet_s": 60, "cooldown_s": 60, "cap_per_hour": 100, "act": AT_ONCE,
    }  # fmt: skip
    return base | changes


def live(owner: Viewer, name: str = "back", **changes) -> Automation:
    automations.create(owner, name, document(**changes))
    return automations.enable(owner, name)


def minutes_ago(n: float) -> datetime:
    return timezone.now() - timedelta(minutes=n)


def finish(replay: Replay, kind: str = "success", now: datetime | None = None) -> Replay:
    """Send all of a replay, and let each job end as `kind`."""
    while replays.create_items():
        pass
    for _ in range(20):
        if not replays.send("one", now or timezone.now()):
            break
    for item in ReplayItem.objects.filter(replay=replay, state="sent"):
        came_home(item, kind)
    for _ in range(5):
        replays.settle(now or timezone.now())
        replay.refresh_from_db()
        if replay.state == "done":
            break
    return replay
