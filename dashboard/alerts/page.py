"""The page of an alert: its state as a sentence, a timeline with notifications, and similar alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from dashboard.alerts import words as alert_words
from dashboard.groups import listing as group_list
from dashboard.groups import page as group_page
from dashboard.web import links
from dashboard.web.figures import duration, number
from dashboard.web.pictures import share
from jobs_admin.alerts import Acknowledgement, Cause, Causes, RisenGroup
from jobs_admin.alerts.affected_groups import MOST_ONE_BY_ONE
from jobs_admin.alerts.links import MOST_QUEUES
from jobs_admin.core.alert_metrics import Subject
from jobs_admin.models import Alert, AlertEvent, Group
from jobs_admin.models.alert import AlertState
from jobs_admin.models.group import GroupState
from jobs_admin.notices import DeliveryRow
from jobs_admin.queues import rates
from jobs_admin.replays import Outlook, ReadyJobs, prognosis

MOST_NAMED = 6  # alerts of one notification listed on a line of the timeline

# Labels of transitions on the timeline.
_TO = {
    AlertState.PENDING: "pending",
    AlertState.FIRING: "fired",
    AlertState.ACKNOWLEDGED: "acknowledged",
    AlertState.SILENCED: "silenced",
    AlertState.RESOLVED: "resolved",
}
# States of a delivery: (tone, text).
_DELIVERIES = {
    "waiting": ("retrying", "not sent yet"),
    "sending": ("replaying", "sending"),
    "delivered": ("recovered", "delivered"),
    "parked": ("dead", "not delivered"),
}


@dataclass(frozen=True, slots=True)
class Notified:
    """Delivery of a notice."""

    channel: str
    tone: str
    words: str
    at: datetime | None
    why: str  # why it failed, untrusted text


@dataclass(slots=True)
class Step:
    """Line of the timeline: simultaneous events of one alert, or of several in one notification."""

    at: datetime
    words: str
    tone: str
    reason: str
    actor: str
    of: list[tuple[str, str]] = field(default_factory=list)  # (subject, "" for this alert alone; value)
    more: int = 0  # number of further alerts with this event
    notified: list[Notified] = field(default_factory=list)


def steps(alert: Alert, events: Iterable[AlertEvent], deliveries: Iterable[DeliveryRow], now: datetime) -> list[Step]:
    """Return transitions and reminders, latest first, each with its deliveries."""
    by_notice: dict[int, list[DeliveryRow]] = {}
    for delivery in deliveries:
        by_notice.setdefault(delivery.notice_id, []).append(delivery)
    moments: dict[tuple, Step] = {}
    events = list(events)
    is_alone = len({event.alert_id for event in events}) <= 1
    for event in events:
        is_undo = event.is_undo
        moment = (event.at.replace(microsecond=0), event.to, event.actor, event.reason if is_alone or is_undo else "")
        step = moments.setdefault(moment, _step(event))
        if step.reason != event.reason and not is_undo:  # reasons differ only in the values, which are listed
            step.reason = ""
        if len(step.of) < MOST_NAMED:
            step.of.append(_whose(event, alert, is_alone))
        else:
            step.more += 1
        # A notice about several alerts is shown at the first of its transitions.
        if event.notice_id is not None:
            step.notified += [_notified(one, now) for one in by_notice.pop(event.notice_id, [])]
    shown = [*moments.values(), *(_repeated_notice(found, now) for found in by_notice.values())]
    shown.sort(key=lambda step: step.at, reverse=True)
    return shown


def _step(event: AlertEvent) -> Step:
    state = AlertState(event.to)
    if event.is_undo:
        return Step(event.at, "unacknowledged", alert_words.TONES[state], "", event.actor)
    return Step(event.at, _TO[state], alert_words.TONES[state], event.reason, event.actor)


def _whose(event: AlertEvent, alert: Alert, is_alone: bool) -> tuple[str, str]:
    # Alerts of one notification have the same rule.
    value = alert_words.in_unit(event.value, alert.rule.metric) if event.value is not None else ""
    return ("" if is_alone else alert_words.where(event.alert), value)


def _repeated_notice(found: list[DeliveryRow], now: datetime) -> Step:
    """Return the line of a notice without a transition: a reminder or an escalation."""
    at = min(one.created_at for one in found)
    return Step(at, "notified again", "replaying", "", "", notified=[_notified(one, now) for one in found])


def _notified(delivery: DeliveryRow, now: datetime) -> Notified:
    tone, words = _DELIVERIES.get(delivery.state, ("discarded", delivery.state))
    tries = f" after {number(delivery.tries)} tries" if delivery.tries > 1 else ""
    if delivery.state == "waiting" and delivery.tries:
        words, tries = f"not delivered{tries or ' after 1 try'}", ""
        if delivery.next_try_at and delivery.next_try_at > now:
            words += f", next try in {duration((delivery.next_try_at - now).total_seconds())}"
    why = delivery.error if delivery.state != "delivered" else ""
    return Notified(delivery.channel, tone, f"{words}{tries}", delivery.delivered_at or delivery.tried_at, why)


def sentence(alert: Alert, now: datetime) -> str:
    """Return the alert's state as a sentence: `Firing for 5 min. Not acknowledged.`"""
    lasts = duration((now - alert.opened_at).total_seconds()) if alert.is_open else ""
    if alert.state == AlertState.PENDING:
        left = alert.opened_at + timedelta(seconds=alert.rule.for_s) - now
        soon = f" Fires in {duration(left)} unless the condition clears." if left > timedelta() else ""
        return f"Condition met for {lasts}.{soon}"
    if alert.state == AlertState.FIRING:
        return f"Firing for {lasts}. Not acknowledged."
    if alert.state == AlertState.ACKNOWLEDGED:
        return f"Firing for {lasts}. Acknowledged by {_who(alert)}."
    if alert.state == AlertState.SILENCED:
        return f"Condition met for {lasts}. Silenced: no notifications are sent."
    assert alert.resolved_at is not None
    return f"Resolved after {duration((alert.resolved_at - alert.opened_at).total_seconds())}."


def acknowledged(done: Acknowledgement, left: int) -> str:
    """Return the message after an acknowledgement. `left`: alerts of the notification that were not acknowledged."""
    condition = alert_words.condition(done.alert)
    if len(done.changed) > 1:
        many = number(len(done.changed))
        return f"Acknowledged {many} alerts, among them: {condition}. Reminders and escalation are off for all of them."
    others = (
        f" {number(left)} more of the notification {'is' if left == 1 else 'are'} not acknowledged." if left else ""
    )
    return f"Acknowledged: {condition}. Reminders and escalation are off for this alert.{others}"


def unacknowledged(done: Acknowledgement) -> str:
    """Return the message after an undo: how many alerts notify again, and what resumes by their rule."""
    count, rule = len(done.changed), done.alert.rule
    again = "1 alert is" if count == 1 else f"{number(count)} alerts are"
    resumes = {
        (True, True): "reminders and escalation resume",
        (True, False): "reminders resume",
        (False, True): "escalation resumes",
        (False, False): "the rule has neither reminders nor escalation",
    }[bool(rule.renotify_s), bool(rule.escalate_s)]
    left = (
        f" {number(done.others)} more {'was' if done.others == 1 else 'were'} resolved in the meantime."
        if done.others
        else ""
    )
    return f"{again} unacknowledged again; {resumes}.{left}"


def _who(alert: Alert) -> str:
    return alert.acknowledged_by or "an operator"


@dataclass(frozen=True, slots=True)
class Shared:
    """Links for all queues of one notification, in addition to those of the page's queue."""

    count: int
    failures_url: str
    replay_url: str  # "" if the act is to release from quarantine, or no job can be replayed


def shared(queues: Sequence[str], failures_url: str, replay_url: str, ready: ReadyJobs | None) -> Shared:
    can_replay = ready is not None and ready.count
    return Shared(min(len(queues), MOST_QUEUES), failures_url, replay_url if can_replay else "")


@dataclass(frozen=True, slots=True)
class Before:
    """Earlier episode, and the response to it."""

    alert: Alert
    url: str
    condition: str
    lasted_s: float | None
    acknowledged: str
    replays: list[tuple[str, str]]  # (text, URL)


def before(found: Iterable[Any]) -> list[Before]:
    """Return earlier episodes and their replays. `found`: alerts of the same rule, source and subject."""
    shown = []
    for alert in found:
        ended = alert.resolved_at
        lasted = (ended - alert.opened_at).total_seconds() if ended else None
        replays: Sequence[Any] = getattr(alert, "replays", ()) or ()
        named = [(f"replay #{one.pk}", reverse("redrive:replay-detail", args=[one.pk])) for one in replays]
        by = _who(alert) if alert.acknowledged_at else ""
        shown.append(
            Before(
                alert, reverse("redrive:alert-detail", args=[alert.pk]), alert_words.condition(alert), lasted, by, named
            )
        )
    return shown


# --- cause --------------------------------------------------------------------------------------------------------

_NEW_WITHIN = timedelta(hours=1)  # a group first seen within this time before the condition was met may be its cause
_PARTICULAR = (GroupState.REGRESSED, GroupState.MUTED, GroupState.RESOLVED)


@dataclass(frozen=True, slots=True)
class Error:
    """Group behind the alert, as text."""

    group: Group
    url: str
    place: str
    jobs: int
    tenants: str
    is_failing: bool
    rate: str  # rate while it is failing; "" if not counted per source
    is_new: bool
    standing: SafeString | str  # "" for an ordinary state
    prognosis: str  # why its jobs would fail again, unless only because it is failing now
    called: list[SafeString]  # dependencies that failed its jobs, with links


@dataclass(frozen=True, slots=True)
class Act:
    """Replay offered beside the errors."""

    advice: str  # sentence that recommends the next step
    words: str  # "Review and replay 1,752 jobs"; "" without dead jobs
    is_primary: bool
    left_out: str  # sentence about jobs that the preview excludes; "" for none
    is_replay: bool = True  # False: no job can be replayed, and the link leads to the dead jobs


def errors(found: Causes, alert: Alert, now: datetime) -> list[Error]:
    return [_error(one, alert, now) for one in found.leading]


def _error(cause: Cause, alert: Alert, now: datetime) -> Error:
    group, is_failing = cause.group, _is_failing(cause, now)
    rate = ""
    if is_failing and cause.per_minute is not None:
        rate = f"{number(cause.per_minute)}/min in {rates.WINDOW}{', all queues' if cause.is_elsewhere else ''}"
    tenants = ""
    if cause.tenants:
        least = "" if cause.has_all_tenants else "at least "
        tenants = f"{least}{number(cause.tenants)} tenant{'' if cause.tenants == 1 else 's'}"
    known = cause.prognosis
    return Error(
        group,
        links.group_page(group.fingerprint),
        cause.place,
        cause.count,
        tenants,
        is_failing,
        rate,
        group.first_seen >= alert.opened_at - _NEW_WITHIN,
        group_page.standing(group, now) if group.state in _PARTICULAR else "",
        known.reason if known is not None and known.code != prognosis.STILL_FAILING else "",
        [group_list.called(one) for one in cause.dependencies],
    )


def _is_failing(cause: Cause, now: datetime) -> bool:
    return rates.is_failing(cause.group.last_seen, cause.per_minute, now)


def act(found: Causes, alert: Alert, now: datetime, outlook: Outlook | None, *, may_act: bool) -> Act:
    """Return the recommended replay, or the alternative. `outlook`: None for a viewer who may not replay."""
    if not found.dead:
        return Act("No dead jobs to replay.", "", False, "")
    replayable = outlook.replayable if outlook else None
    is_replay = replayable != 0
    words = f"Review and replay {_jobs(alert, replayable)}" if is_replay else f"Review {_jobs(alert, found.dead)}"
    left_out = _left_out(found.dead, outlook) if outlook and replayable else ""
    quiet = _quiet_acts(alert) if may_act else ""
    these, occur = ("This error", "occurs") if len(found.leading) == 1 else ("The leading errors", "occur")
    still = [one for one in found.leading if _is_failing(one, now)]
    latest = max((one.group.last_seen for one in found.leading), default=now)
    last = duration(max(0, round((now - latest).total_seconds())))
    if any(one.per_minute is None or one.per_minute >= rates.LOUD_PER_MIN for one in still):
        advice = f"{these} still {occur} (last failure {last} ago): a replay now would likely fail again.{quiet}"
        return Act(advice, words, False, left_out, is_replay)
    if outlook and not is_replay and not outlook.excluded:
        why = outlook.reason or "the preview lists the reasons"
        return Act(f"None of these jobs can be replayed now: {why}.", words, False, "", is_replay)
    if not is_replay or (outlook and outlook.is_likely_to_fail):
        these = "This job" if found.dead == 1 else f"All {_jobs(alert, found.dead)}"
        advice = f"{these} would likely fail again: fix the cause first, then replay.{quiet}"
        return Act(advice, words, False, left_out, is_replay)
    quiet_for = f"{these} ha{'s' if occur == 'occurs' else 've'} not occurred for {last}."
    some = f"{len(still)} of the {len(found.leading)} leading errors still occur{'s' if len(still) == 1 else ''}"
    rare = f"{these} {occur}" if len(still) == len(found.leading) else some
    return Act(f"{rare} only now and then." if still else quiet_for, words, True, left_out)


def _left_out(dead: int, outlook: Outlook) -> str:
    """Return sentences about dead jobs that are not in the replay, with their number and reason; "" for none."""
    counted = (
        (outlook.excluded, "excluded: likely to fail again"),
        (outlook.blocked, "blocked: the preview lists the reasons"),
        (dead - (outlook.replayable or 0) - outlook.excluded - outlook.blocked, "not included: died before this alert"),
    )
    return " ".join(f"{number(n)} job{' is' if n == 1 else 's are'} {words}." for n, words in counted if n > 0)


def _jobs(alert: Alert, n: int | None) -> str:
    many = "" if n is None else f"{number(n)} "
    of_queue = f"{alert.subject} " if alert.rule.measure.subject is Subject.QUEUE else ""
    return f"{many}{of_queue}job{'' if n == 1 else 's'}"


def _quiet_acts(alert: Alert) -> str:
    return {
        AlertState.FIRING: " Acknowledge or silence the alert.",
        AlertState.ACKNOWLEDGED: " Silence the alert if it will take long.",
    }.get(AlertState(alert.state), "")


_OUTCOMES = ("dead", "retrying", "replaying", "quarantined", "recovered", "discarded", "gone")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of the failures of a resolved alert."""

    total: str
    by_state: list[tuple[str, int]]
    dead: int


def outcomes(counts: Counter[str]) -> Outcomes:
    least = "at least " if counts.total() >= MOST_ONE_BY_ONE else ""
    total = f"{least}{number(counts.total())} failed job{'' if counts.total() == 1 else 's'}"
    return Outcomes(total, [(name, counts[name]) for name in _OUTCOMES if counts[name]], counts["dead"])


@dataclass(frozen=True, slots=True)
class GrownGroup:
    title: str
    url: str
    count: int
    part: str  # 0 to 100, relative to the largest


def grown_groups(found: Sequence[RisenGroup]) -> list[GrownGroup]:
    most = max((one.count for one in found), default=0)
    return [
        GrownGroup(one.title, links.group_page(one.fingerprint), one.count, share(one.count, most)) for one in found
    ]
