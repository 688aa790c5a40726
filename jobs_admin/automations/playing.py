"""Dry run: what an automation would have done within the stored history, and what it would do now. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet

from jobs_admin.automations import documents, matching
from jobs_admin.core import automation as core
from jobs_admin.core.automation import Dead, Episode, WouldAct
from jobs_admin.models import Attempt, Automation, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState

PERIOD = timedelta(days=7)
MOST_ATTEMPTS = 20_000  # latest attempts read
MOST_SHOWN = 100  # latest acts shown
_TAKES = ("replay", "discard", "assign")  # acts after which a job no longer matches
# States of a failure whose latest run ended dead, as far as known.
_DIED = (FailureState.DEAD, FailureState.DISCARDED, FailureState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Act:
    at: datetime
    jobs: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run. `acts`: the latest MOST_SHOWN, oldest first; `count` and `jobs` cover all."""

    since: datetime
    acts: list[Act]
    count: int
    jobs: int
    is_cut: bool  # older attempts were not read
    ready: int  # jobs that match now
    why_not: str  # reason for not acting now; "" if it would act


def dry_run(viewer: Viewer, automation: Automation, now: datetime) -> DryRun:
    """Return the dry run of an automation, which need not be stored, with the viewer's rights on its source."""
    acting = Viewer(viewer.name, {automation.source: OPERATOR})
    since = now - PERIOD
    attempts = _read_attempts(automation, acting, since)
    is_cut = len(attempts) > MOST_ATTEMPTS
    attempts = attempts[:MOST_ATTEMPTS]
    if is_cut:
        since = attempts[-1].ended_at
    episodes = matching.read_episodes(automation)
    found = core.play(
        documents.conditions(automation),
        _read_dead(automation, acting, attempts, since),
        [one.ended_at.timestamp() for one in attempts],
        since.timestamp(),
        now.timestamp(),
        takes_jobs=automation.act in _TAKES,
        episodes=episodes,
    )
    ready = matching.find_ready(automation, acting, now).order_by()[: core.MOST_AT_ONCE].count()
    why_not = _why_not_now(automation, acting, found, episodes, ready, now)
    acts = [Act(datetime.fromtimestamp(one.at, UTC), len(one.jobs), one.jobs) for one in found[-MOST_SHOWN:]]
    return DryRun(since, acts, len(found), sum(len(one.jobs) for one in found), is_cut, ready, why_not)


def _why_not_now(
    automation: Automation, viewer: Viewer, acts: list[WouldAct], episodes: list[Episode], ready: int, now: datetime
) -> str:
    """Return why a first act would not happen now."""
    conditions = documents.conditions(automation)
    if why := core.waiting_reason(conditions, now.timestamp(), None, 0, episodes):
        return why
    return core.decide(conditions, ready, 0, is_quiet=matching.is_quiet(automation, viewer, now)).why_not


class _Failed(NamedTuple):
    """Failed attempt. Its report counts as having arrived at once, although the desk may have read it later."""

    job: int
    run: int
    ended_at: datetime
    latest_run: int  # of the job
    state: str


def _read_attempts(automation: Automation, viewer: Viewer, since: datetime) -> list[_Failed]:
    """Return the attempts that failed since then, latest first; MOST_ATTEMPTS + 1 if there are more."""
    found = Attempt.objects.filter(failure__in=_find_jobs(automation, viewer, since), ended_at__gte=since)
    rows = found.exclude(kind="success").order_by("-ended_at", "-pk")
    columns = ("failure_id", "run", "ended_at", "failure__run", "failure__state")
    return [_Failed(*row) for row in rows.values_list(*columns)[: MOST_ATTEMPTS + 1]]


def _find_jobs(automation: Automation, viewer: Viewer, since: datetime) -> QuerySet:
    return matching.of_automation(automation, viewer).filter(failed_at__gte=since).order_by().values("pk")


def _read_dead(automation: Automation, viewer: Viewer, attempts: Iterable[_Failed], since: datetime) -> list[Dead]:
    """Return when each job was dead: from the last failed attempt of a run until its next run was sent."""
    last: dict[tuple[int, int], _Failed] = {}
    for one in attempts:
        if (key := (one.job, one.run)) not in last or last[key].ended_at < one.ended_at:
            last[key] = one
    sent = ReplayItem.objects.filter(failure__in=_find_jobs(automation, viewer, since), sent_at__gte=since)
    taken = {(job, run - 1): at.timestamp() for job, run, at in sent.values_list("failure", "run", "sent_at")}
    return [
        Dead(one.job, one.ended_at.timestamp(), taken.get(key))
        for key, one in sorted(last.items())
        if one.run < one.latest_run or one.state in _DIED  # otherwise it recovered or is being retried
    ]
