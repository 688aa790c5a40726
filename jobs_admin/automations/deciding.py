"""A round of `watch`: each live automation carries out what it planned, or decides again."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta

import redis
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Max, Q, Sum

from jobs_admin import config
from jobs_admin.automations import acting, documents, matching, reading
from jobs_admin.core import automation as core
from jobs_admin.db import audit
from jobs_admin.models import Automation, AutomationDecision, Notice, Replay
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.models.automation import AutomationMode, DecisionState
from jobs_admin.models.replay import ENDED, ReplayState
from jobs_admin.queues import liveness

log = logging.getLogger(__name__)

AUTOMATIONS = Viewer(name="automations", roles={EVERY_SOURCE: "admin"})  # the desk's name in the audit for these acts
TRIPPED = "automation.tripped"
MOST_FAILED = 3  # consecutive failed acts
DIARY = 500  # decisions stored per automation
_CHECKED_EVERY = timedelta(minutes=1)
_DIGITS = re.compile(r"[\d,.]+")
_STOPPED = (ReplayState.HELD, ReplayState.STOPPED, ReplayState.CANCELLED)


def step(now: datetime) -> bool:
    """Run a round. Return whether there was something to do."""
    if config.is_read_only():
        return False
    busy = False
    live = Automation.objects.filter(mode=AutomationMode.LIVE).select_related("owner", "owner_token__owner", "rule")
    for one in live.order_by("pk"):
        try:
            busy |= _check(one, now)
        except (OperationalError, InterfaceError):
            raise
        except (redis.RedisError, config.BadConfiguration):  # not caused by the automation; its planned act waits
            _note_reason(one, "The store does not answer.", now)
        except Exception as error:  # one automation must not stop the others; the error is shown and trips it
            log.exception("Automation %s", one.name)
            trip(one, f"The check failed: {type(error).__name__}: {error}", now)
    return busy


def _check(automation: Automation, now: datetime) -> bool:
    if automation.expires_at is not None and automation.expires_at <= now:
        return _expire(automation, now)
    if automation.tripped_at is not None:
        return False
    viewer = reading.acting_viewer(automation)
    if viewer is None:
        return trip(automation, reading.lost_role_reason(automation), now)
    planned = AutomationDecision.objects.filter(automation=automation, state=DecisionState.PLANNED).order_by("n")
    if (decision := planned.first()) is not None:
        if decision.due_at is not None and decision.due_at > now:
            return False
        acting.carry_out(automation, decision, viewer, now)
        return True
    if why := _why_trip(automation):
        return trip(automation, why, now)
    return _decide(automation, viewer, now)


def _decide(automation: Automation, viewer: Viewer, now: datetime) -> bool:
    conditions = documents.conditions(automation)
    done = acts_of(automation)
    last = done.aggregate(at=Max("at"))["at"]
    spent = count_spent(automation, now)
    acted_at = last.timestamp() if last is not None else None
    why = _obstacle(automation, now) or core.waiting_reason(
        conditions, now.timestamp(), acted_at, spent, matching.read_episodes(automation)
    )
    ids: list[int] = []
    if not why:
        hold = ""
        is_quiet = matching.is_quiet(automation, viewer, now)
        most = max(conditions.min_jobs, core.most_jobs(conditions, spent))
        if is_quiet:
            ids, hold = matching.select(automation, matching.find_ready(automation, viewer, now), most, now)
        decision = core.decide(conditions, len(ids), spent, is_quiet=is_quiet)
        why, ids = hold or decision.why_not, ids[: decision.jobs]
    if not ids:
        return _note_reason(automation, why, now)
    planned = _plan(automation, ids, now)
    if planned is None:
        return False
    if planned.due_at is not None and planned.due_at <= now:
        acting.carry_out(automation, planned, viewer, now)
    return True


def acts_of(automation: Automation):
    """Return the decisions with an act, done or planned."""
    states = (DecisionState.PLANNED, DecisionState.DONE, DecisionState.REFUSED, DecisionState.FAILED)
    return AutomationDecision.objects.filter(automation=automation, state__in=states)


def count_spent(automation: Automation, now: datetime) -> int:
    """Return the number of jobs that it acted on within the last hour, or is about to act on."""
    recent = Q(state=DecisionState.DONE, ended_at__gt=now - timedelta(seconds=core.HOUR_S))
    rows = AutomationDecision.objects.filter(Q(state=DecisionState.PLANNED) | recent, automation=automation)
    return rows.aggregate(n=Sum("jobs"))["n"] or 0


def _plan(automation: Automation, ids: list[int], now: datetime) -> AutomationDecision | None:
    """Store the decision before its act; None if another process decided, or the automation was changed, meanwhile."""
    delay = timedelta(seconds=automation.parameters.get("delay_s", 0))
    with transaction.atomic():
        if not _claim_number(automation, now, ""):
            return None
        return AutomationDecision.objects.create(
            automation=automation, n=automation.last_n, at=now, version=automation.version,
            state=DecisionState.PLANNED, jobs=len(ids), selection=ids, due_at=now + delay,
        )  # fmt: skip


def _claim_number(automation: Automation, now: datetime, why_not: str) -> bool:
    """Claim the next decision number in the caller's transaction; only one process gets it."""
    same = Automation.objects.filter(
        pk=automation.pk,
        mode=AutomationMode.LIVE,
        version=automation.version,
        last_n=automation.last_n,
        tripped_at=None,
    )
    n = automation.last_n + 1
    if not same.update(last_n=n, checked_at=now, why_not=why_not[:500]):
        return False
    automation.last_n = n
    _prune_diary(automation, now)
    return True


def _prune_diary(automation: Automation, now: datetime) -> None:
    """Delete old decisions that nothing depends on.

    The latest act, the latest success and the last hour limit later acts; replays limit how often a job is sent.
    """
    old = AutomationDecision.objects.filter(automation=automation, n__lte=automation.last_n - DIARY)
    if not old.exists():
        return
    acts = acts_of(automation).order_by("-at").values_list("pk", flat=True)
    latest = [acts.first(), acts.filter(state=DecisionState.DONE).first()]
    counts = Q(state=DecisionState.PLANNED) | Q(replay__isnull=False) | Q(pk__in=latest)
    counts |= Q(state=DecisionState.DONE, ended_at__gt=now - timedelta(seconds=core.HOUR_S))
    old.exclude(counts).delete()


def _note_reason(automation: Automation, why: str, now: datetime) -> bool:
    """Record why nothing is done, as a decision if the reason is new."""
    is_same = _DIGITS.sub("", why) == _DIGITS.sub("", automation.why_not)
    if is_same and automation.checked_at is not None and now - automation.checked_at < _CHECKED_EVERY:
        return False
    if is_same:
        Automation.objects.filter(pk=automation.pk).update(checked_at=now, why_not=why[:500])
        return False
    with transaction.atomic():
        if _claim_number(automation, now, why):
            AutomationDecision.objects.create(
                automation=automation, n=automation.last_n, at=now, version=automation.version,
                state=DecisionState.WAITED, text=why[:500], ended_at=now,
            )  # fmt: skip
    return False


def _obstacle(automation: Automation, now: datetime) -> str:
    """Return an obstacle to any act: an alert rule that is not evaluated, an open replay, missing reports."""
    if automation.rule is not None and (automation.rule.deleted_at is not None or not automation.rule.enabled):
        return "The alert rule is disabled or deleted."
    if (replay := find_open_replay(automation)) is not None:
        return f"Replay #{replay.pk} has not ended."
    stalled = {name: one for name, one in liveness.stalled_sources(now).items() if one is not None}
    for name in sorted({*liveness.late_streams(now, with_unknown=False), *stalled}):
        if automation.source in (EVERY_SOURCE, name) or not name:
            return f"{name or 'A source'} is not being read, so failures may be missing."
    return ""


def find_open_replay(automation: Automation) -> Replay | None:
    decisions = AutomationDecision.objects.filter(automation=automation, replay__isnull=False).values("replay")
    return Replay.objects.filter(pk__in=decisions).exclude(state__in=ENDED).order_by("-pk").first()


def _why_trip(automation: Automation) -> str:
    """Return why it has to stop until an operator resets it; "" if it may continue."""
    decisions = AutomationDecision.objects.filter(automation=automation).order_by("-n")
    since = Q() if automation.reset_at is None else Q(ended_at__gt=automation.reset_at)
    ended = decisions.filter(since).exclude(state__in=[DecisionState.WAITED, DecisionState.PLANNED])
    latest = list(ended.values_list("state", "text")[:MOST_FAILED])
    if len(latest) == MOST_FAILED and all(acting.has_failed(state, text) for state, text in latest):
        return f"{MOST_FAILED} actions failed in a row. Latest: {latest[0][1]}"
    decision = decisions.filter(replay__isnull=False).select_related("replay").first()
    return _why_replay_trips(automation, decision.replay) if decision is not None and decision.replay else ""


def _why_replay_trips(automation: Automation, replay: Replay) -> str:
    changed_at = max(filter(None, (replay.state_since, replay.ended_at, replay.started_at)), default=None)
    if changed_at is None or (automation.reset_at is not None and changed_at <= automation.reset_at):
        return ""
    if replay.state in _STOPPED:
        why = f": {replay.held_because}" if replay.held_because else "."
        return f"Replay #{replay.pk} of this automation is {replay.state}{why}"
    if replay.state == ReplayState.DONE and replay.failed_again * 2 > replay.total:
        return f"{replay.failed_again:,} of {replay.total:,} jobs of replay #{replay.pk} failed again."
    return ""


def trip(automation: Automation, why: str, now: datetime) -> bool:
    """Stop it until an operator resets it, and notify. Its planned act is cancelled."""
    with transaction.atomic():
        rows = Automation.objects.filter(pk=automation.pk, tripped_at=None, mode=AutomationMode.LIVE)
        if not rows.update(tripped_at=now, why_tripped=why[:500], why_not="", checked_at=now):
            return False
        cancel_planned(automation, f"Tripped: {why}", now)
        title = f"Automation {automation.name} is tripped"
        key = f"automation:{automation.pk}:tripped:{int(now.timestamp() * 1000)}"
        notice = acting.build_notice(automation, TRIPPED, key, title, why, "warning")
        Notice.objects.bulk_create([notice], ignore_conflicts=True)
        record(AUTOMATIONS, "automation.trip", automation, reason=why)
    return True


def _expire(automation: Automation, now: datetime) -> bool:
    with transaction.atomic():
        rows = Automation.objects.filter(pk=automation.pk, mode=AutomationMode.LIVE, expires_at__lte=now)
        if not rows.update(mode=AutomationMode.DRY_RUN, why_not="", checked_at=now):
            return False
        cancel_planned(automation, "Expired.", now)
        record(AUTOMATIONS, "automation.expire", automation)
    return True


def cancel_planned(automation: Automation, why: str, now: datetime) -> None:
    """Cancel a planned act; the part that a process did before it died counts as done."""
    planned = AutomationDecision.objects.filter(automation=automation, state=DecisionState.PLANNED)
    for decision in planned:
        acting.record_effect(automation, decision, why, now)
    planned.update(state=DecisionState.CANCELLED, text=why[:500], ended_at=now, selection=[])


def record(viewer: Viewer, act: str, automation: Automation, **values: object) -> None:
    """Record the act in the audit of its source."""
    source = "" if automation.source == EVERY_SOURCE else automation.source
    audit.record(viewer, act, f"automation:{automation.name}", source=source, **values)  # type: ignore[arg-type]
