"""Execution of a planned decision, exactly once even if the process dies.

A replay and a notice have the decision's key; every other act is one transaction with the decision's row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from jobs_admin import config, holds, replays
from jobs_admin.automations import matching
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.failures import triage
from jobs_admin.groups import group_changes
from jobs_admin.models import Automation, AutomationDecision, Channel, Failure, Group, Notice, Replay
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.models.automation import DecisionState
from jobs_admin.models.replay import ReplayState

LATEST = timedelta(minutes=10)  # after the due time; later it is no longer carried out
MATCHED = "automation.matched"  # type of the notices of the act `notify`
_AT_ONCE = 500  # jobs per transaction
# Prefix of the text of an act that was refused half way.
_HALF_WAY = re.compile(r"[\d,]+ of [\d,]+ jobs discarded, then refused: ")
# Codes of refusals that do not count against the automation.
_NO_FAULT = ("nothing_to_replay", "already_open", "changed")


@dataclass(frozen=True, slots=True)
class _Done:
    text: str
    replay: Replay | None = None
    jobs: int | None = None  # number of jobs acted on, if the act counts them


def carry_out(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> None:
    """Carry out a planned act if it is due, and record the result."""
    if decision.due_at is None or now > decision.due_at + LATEST:
        why = f"It was due at {decision.due_at:%H:%M} UTC and did not end within 10 minutes."
        return _cancel(automation, decision, why, now)
    if record_started_replay(automation, decision, now):
        return
    chosen = Failure.objects.filter(pk__in=decision.selection).order_by()
    places = set(chosen.values_list("source", "queue", "task", "tenant").distinct())
    if reasons := matching.find_holds(automation, places, now):  # holds since it was planned
        _discard_draft(decision, viewer)
        return _cancel(automation, decision, reasons[min(reasons)], now)
    try:
        done = _ACTS[automation.act](automation, decision, viewer, now)
    except (Refused, NotFound) as refused:
        is_no_fault = isinstance(refused, Refused) and refused.code in _NO_FAULT
        _discard_draft(decision, viewer)
        if not record_effect(automation, decision, str(refused), now, is_refused=not is_no_fault):
            end(decision, DecisionState.REFUSED if is_no_fault else DecisionState.FAILED, str(refused), now)
        return
    if done is not None:
        end(decision, DecisionState.DONE, done.text, now, done.replay, done.jobs)


def _cancel(automation: Automation, decision: AutomationDecision, why: str, now: datetime) -> None:
    if not record_effect(automation, decision, why, now):
        end(decision, DecisionState.CANCELLED, f"{why} Nothing was done.", now)


def end(
    decision: AutomationDecision,
    state: str,
    text: str,
    now: datetime,
    replay: Replay | None = None,
    jobs: int | None = None,
) -> bool:
    """End a planned decision. A replay that was started counts even if it was cancelled meanwhile."""
    open_states = [DecisionState.PLANNED, *([DecisionState.CANCELLED] if replay is not None else [])]
    row = AutomationDecision.objects.filter(pk=decision.pk, state__in=open_states)
    if jobs is None:
        jobs = decision.jobs if replay is None else replay.total
    return bool(row.update(state=state, text=text[:500], ended_at=now, replay=replay, selection=[], jobs=jobs))


def has_failed(state: str, text: str) -> bool:
    """Return whether an act with this recorded state and text failed, or was refused half way."""
    return state == DecisionState.FAILED or (state == DecisionState.DONE and bool(_HALF_WAY.match(text)))


def record_effect(
    automation: Automation, decision: AutomationDecision, why: str, now: datetime, *, is_refused: bool = False
) -> bool:
    """End a planned decision as done if it did something before it was stopped: `why`. Return whether it did."""
    if record_started_replay(automation, decision, now):
        return True
    with transaction.atomic():
        planned = AutomationDecision.objects.select_for_update().filter(pk=decision.pk, state=DecisionState.PLANNED)
        row = planned.first()
        if row is None or not (done := _count(row.text)):
            return False
        how = ", then refused:" if is_refused else "."
        return end(row, DecisionState.DONE, f"{done:,} of {row.jobs:,} jobs discarded{how} {why}", now, jobs=done)


def record_started_replay(automation: Automation, decision: AutomationDecision, now: datetime) -> bool:
    """Return whether the planned replay already exists, and record it."""
    if automation.act != "replay":
        return False
    made = Replay.objects.filter(idempotency_key=decision.idempotency_key).exclude(state=ReplayState.DRAFT).first()
    return made is not None and end(decision, DecisionState.DONE, _replay_text(made), now, made)


def _discard_draft(decision: AutomationDecision, viewer: Viewer) -> None:
    draft = Replay.objects.filter(idempotency_key=decision.idempotency_key, state=ReplayState.DRAFT).first()
    if draft is not None:
        try:
            replays.discard(viewer, draft, "The replay could not be started.")
        except Refused:
            return  # a draft takes no jobs


def _replay(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> _Done:
    made = replays.launch(
        viewer,
        selection=decision.selection,
        pace=automation.parameters.get("pace"),
        reason=f"Automation {automation.name}. {automation.note}".strip()[:500],
        idempotency_key=decision.idempotency_key,
        now=now,
    )
    return _Done(_replay_text(made), made)


def _replay_text(made: Replay) -> str:
    begun = "waits for approval" if made.state == ReplayState.AWAITING_APPROVAL else "started"
    return f"Replay #{made.pk} of {made.total:,} jobs {begun}."


def _discard(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> _Done | None:
    """Discard some hundred per transaction, which removes them from the selection."""
    reason = f"Automation {automation.name}. {automation.note}".strip()[:500]
    while True:
        with transaction.atomic():
            row = AutomationDecision.objects.select_for_update().get(pk=decision.pk)
            if row.state != DecisionState.PLANNED:
                return None
            part, rest = row.selection[:_AT_ONCE], row.selection[_AT_ONCE:]
            done = triage.act_on(viewer, "discard", part, reason=reason).count if part else 0
            count = _count(row.text) + done
            text = f"{count:,} job{'' if count == 1 else 's'} discarded."
            AutomationDecision.objects.filter(pk=row.pk).update(selection=rest, text=text)
        if not rest:
            return _Done(text, jobs=count)


def _count(text: str) -> int:
    number = text.partition(" ")[0].replace(",", "")
    return int(number) if number.isdigit() else 0


def _assign(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> _Done | None:
    groups = Failure.objects.filter(pk__in=decision.selection, group__assignee__isnull=True).values("group")
    names = list(
        Group.objects.filter(pk__in=groups).values_list("fingerprint", flat=True)[: group_changes.MOST_AT_ONCE]
    )
    if not names:
        return _Done("All groups already have an assignee.")
    assignee = automation.parameters["assignee"]
    reason = f"Automation {automation.name}. {automation.note}".strip()[:500]
    with transaction.atomic():
        if not _is_planned(decision):
            return None
        changed = group_changes.change_many(viewer, names, {"assignee": assignee}, reason=reason, now=now)
        text = f"{len(changed.fingerprints):,} groups assigned to {assignee}."
        end(decision, DecisionState.DONE, text, now)
    return None


def _notify(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> _Done | None:
    channels = list(Channel.objects.filter(name__in=automation.parameters["channels"]))
    if not channels:
        raise Refused("invalid", "None of the channels exists any more.")
    with transaction.atomic():
        if not _is_planned(decision):
            return None
        title = f"{decision.jobs:,} jobs match {automation.name}"
        notice = build_notice(automation, MATCHED, decision.idempotency_key, title, automation.note, "info")
        notice.is_routed_by_event = False
        notice.save()
        notice.channels.set(channels)
        names = ", ".join(channel.name for channel in channels)
        end(decision, DecisionState.DONE, f"Notified {names}.", now)
    return None


def _pause(automation: Automation, decision: AutomationDecision, viewer: Viewer, now: datetime) -> _Done | None:
    queue, for_s = automation.parameters["queue"], automation.parameters["for_s"]
    reason = f"Automation {automation.name}. {automation.note}".strip()[:500]
    with transaction.atomic():
        if not _is_planned(decision):
            return None
        try:
            made = holds.pause(viewer, automation.source, queue=queue, reason=reason, for_s=for_s, now=now)
        except Refused as refused:
            state = DecisionState.REFUSED if refused.code == "conflict" else DecisionState.FAILED
            end(decision, state, refused.message, now)
        else:
            end(decision, DecisionState.DONE, f"Queue {queue} paused until {made.until:%Y-%m-%d %H:%M} UTC.", now)
    return None


def _is_planned(decision: AutomationDecision) -> bool:
    """Lock the decision, in the caller's transaction, and return whether it is still planned."""
    rows = AutomationDecision.objects.select_for_update().filter(Q(pk=decision.pk), state=DecisionState.PLANNED)
    return rows.first() is not None


def build_notice(automation: Automation, type_: str, key: str, title: str, message: str, severity: str) -> Notice:
    body = {
        "title": title[:200],
        "message": message[:1_000],
        "automation": automation.name,
        "by": automation.owner_name,
        "url": config.page_at(f"automations/{automation.name}/"),
    }
    source = automation.source if automation.source != EVERY_SOURCE else EVERY_SOURCE
    return Notice(key=key, type=type_, severity=severity, source=source, body=body)


_ACTS = {"replay": _replay, "discard": _discard, "assign": _assign, "notify": _notify, "pause": _pause}
