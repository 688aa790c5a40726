"""Events of an incident in chronological order, each once, limited per kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from jobs_admin.core.alert_metrics import figure
from jobs_admin.db.policy_marks import policy_marks
from jobs_admin.incidents.over_time import OverTime
from jobs_admin.incidents.spans import Span
from jobs_admin.models import (
    Alert,
    AlertEvent,
    AuditEvent,
    BreakerEvent,
    FailureCount,
    Group,
    Pause,
    PolicyVersion,
    Release,
    Replay,
    Silence,
)
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.models.group import IS_TAKEN_IN, GroupState
from jobs_admin.models.replay import ReplayState
from jobs_admin.queues import depths
from jobs_admin.rights import alert_sight, group_sight, replay_sight

MOST_OF_A_KIND = 50
MOST_GROUPS = 200  # groups of the place with the most jobs, whose changes (new, regressed, resolved) are listed
_MOST_SILENCES = 2_000  # latest silences that are checked, of all sources
_MATCHERS = ("alert", "rule", "severity", "queue", "source")
_SHOWN_STATES = (AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.SILENCED, AlertState.RESOLVED)
# Acts on a replay -> kind of moment.
_ACTS = {
    "replay.hold": "held",
    "replay.pause": "paused",
    "replay.resume": "resumed",
    "replay.approve": "approved",
    "replay.pace": "pace",
}
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Ref:
    kind: str  # alert, replay, policy (`webhooks@7`), group (its fingerprint), release, breaker (`shop/partner`)
    name: str


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    kind: str  # failing, calm, back, alert, release, policy, pause, breaker, replay, group, silence
    what: str  # fired, acknowledged … of its kind
    words: str  # may contain text of jobs and people
    who: str = ""  # empty: no one, or the engine
    ref: Ref | None = None
    why: str = ""  # as the actor gave it


def moments(viewer: Viewer, where: Span, seen: OverTime) -> list[Moment]:
    """Return the events, oldest first."""
    alerts = _find_alerts(viewer, where)
    found = [
        *_failing(seen),
        *_alerts(where, alerts),
        *_silences(viewer, where, alerts),
        *_releases(where),
        *_policies(viewer, where),
        *_pauses(where),
        *_breakers(where),
        *_replays(viewer, where),
        *_groups(viewer, where),
    ]
    return sorted(found, key=lambda one: (one.at, _ORDER.index(one.kind), one.words))


_ORDER = ("release", "policy", "pause", "breaker", "failing", "group", "silence", "alert", "replay", "calm", "back")


def _failing(seen: OverTime) -> Iterator[Moment]:
    if seen.first_at is not None:
        yield Moment(seen.first_at, "failing", "began", "Attempts started to fail")
    if seen.calm_at is not None:
        yield Moment(seen.calm_at, "calm", "over", "Failures back to the normal rate")
    if seen.back_at is not None:
        yield Moment(seen.back_at, "back", "back", f"Dead jobs back to the previous number ({seen.dead_before:,})")


def _find_alerts(viewer: Viewer, where: Span) -> list[Alert]:
    """Return the place's alerts that were open in the span, latest first."""
    open_then = Q(opened_at__lte=where.until) & (Q(resolved_at__isnull=True) | Q(resolved_at__gte=where.since))
    found = Alert.objects.filter(alert_sight.visible(viewer), open_then, source=where.source)
    if where.queue:
        found = found.filter(subject__in=(where.queue, ""))
    return list(found.select_related("rule").order_by("-opened_at")[:MOST_OF_A_KIND])


def _alerts(where: Span, alerts: list[Alert]) -> Iterator[Moment]:
    events = AlertEvent.objects.filter(alert__in=alerts, to__in=_SHOWN_STATES, at__gte=where.since, at__lte=where.until)
    rows = events.select_related("alert__rule").order_by("-at", "-pk")[: MOST_OF_A_KIND * 2]
    for event in rows:
        alert, to = event.alert, str(event.to)
        name = f"{alert.rule.name} ({alert.severity})"
        subject = "" if alert.subject in ("", where.queue) else f" on {alert.subject}"
        what = "unacknowledged" if event.is_undo else {"firing": "fired"}.get(to, to)
        value = _value(alert, event.value) if what == "fired" and event.value else ""
        ref = Ref("alert", str(alert.told_with_id or alert.pk))
        yield Moment(event.at, "alert", what, f"Alert {name}{subject} {what}{value}", event.actor, ref, event.reason)


def _silences(viewer: Viewer, where: Span, alerts: list[Alert]) -> Iterator[Moment]:
    """Yield the starts and ends of silences that cover one of the alerts."""
    overlapping = Silence.objects.filter(starts_at__lte=where.until, ends_at__gte=where.since)
    found = [
        one
        for one in overlapping.order_by("-starts_at", "-pk")[:_MOST_SILENCES]
        if viewer.sees_any_of(str(one.matchers.get("source") or EVERY_SOURCE))
        and any(one.covers(alert, alert.rule.name) for alert in alerts)
    ]
    for one in found[:MOST_OF_A_KIND]:
        name = f"Silence of {', '.join(f'{kind} {one.matchers[kind]}' for kind in _MATCHERS if kind in one.matchers)}"
        if one.starts_at >= where.since:
            yield Moment(one.starts_at, "silence", "started", f"{name} started", one.author, why=one.comment)
        if one.ends_at <= where.until:
            yield Moment(one.ends_at, "silence", "ended", f"{name} ended", one.ended_by)


def _value(alert: Alert, value: float) -> str:
    metric = alert.rule.metric
    return f" at {figure(metric, value)}, threshold {figure(metric, alert.threshold)}"


def _releases(where: Span) -> Iterator[Moment]:
    found = Release.objects.filter(source=where.source, at__gte=where.since, at__lte=where.until)
    for version, at, by in found.order_by("-at").values_list("version", "at", "told_by")[:MOST_OF_A_KIND]:
        text = f"Release {version} was {'deployed' if by else 'first seen'}"
        yield Moment(at, "release", "released", text, by, ref=Ref("release", version))


def _policies(viewer: Viewer, where: Span) -> Iterator[Moment]:
    words = {"enforce": "in force", "observe": "observes"}
    marks = policy_marks(viewer, where.since, where.until, source=where.source, queue=where.queue)
    names = {mark.version.rpartition("@")[0] for mark in marks}
    rows = PolicyVersion.objects.filter(name__in=names).values_list("name", "version", "published_by", "reason")
    published = {f"{name}@{version}": (by, reason) for name, version, by, reason in rows}
    for mark in marks:
        name, _, version = mark.version.rpartition("@")
        # A withdrawn version does not record who withdrew it.
        by, why = published.get(mark.version, ("", "")) if mark.mode else ("", "")
        text = f"Policy {name} v{version} {words.get(mark.mode, 'withdrawn')}"
        yield Moment(
            mark.at, "policy", "published" if mark.mode else "withdrawn", text, by, Ref("policy", mark.version), why
        )


def _pauses(where: Span) -> Iterator[Moment]:
    found = Pause.objects.filter(source=where.source, created_at__lte=where.until)
    found = found.filter(Q(resumed_at=None) | Q(resumed_at__gte=where.since))
    if where.queue:
        found = found.filter(queue__in=[where.queue, ""])
    for one in found.order_by("-created_at", "-pk")[:MOST_OF_A_KIND]:
        name = f"{one.kind.capitalize()} {one.name}"
        if one.created_at >= where.since:
            yield Moment(one.created_at, "pause", "paused", f"{name} paused", one.created_by, why=one.reason)
        if one.resumed_at is not None and one.resumed_at <= where.until:
            yield Moment(one.resumed_at, "pause", "resumed", f"{name} resumed", one.resumed_by)


def _breakers(where: Span) -> Iterator[Moment]:
    found = BreakerEvent.objects.filter(source=where.source, at__gte=where.since, at__lte=where.until)
    found = found.exclude(BreakerEvent.IS_SAMPLE)
    words = {"open": "opened", "half_open": "began its release", "closed": "closed"}
    for one in found.order_by("-at", "-pk")[:MOST_OF_A_KIND]:
        what = words.get(one.to_state, one.to_state)
        observed = ", observed only" if one.is_observed else ""
        ref = Ref("breaker", f"{one.source}/{one.name}")
        text = f"Breaker {one.name}: {one.why}" if one.is_of_host else f"Breaker {one.name} {what}"
        why = "" if one.is_of_host else one.why
        yield Moment(one.at, "breaker", one.to_state, f"{text}{observed}", "", ref, why)


# -- replays ----------------------------------------------------------------------------------------------------


def _replays(viewer: Viewer, where: Span) -> Iterator[Moment]:
    replays = _started(viewer, where)
    replay_sight.restrict(viewer, replays.values())
    for replay in replays.values():
        ref = Ref("replay", str(replay.pk))
        size = f"{replay.total:,} job{'' if replay.total == 1 else 's'}"
        if replay.started_at is not None and where.since <= replay.started_at <= where.until:
            text = f"Replay #{replay.pk} of {size} started"
            yield Moment(replay.started_at, "replay", "started", text, replay.actor, ref, replay.reason)
        if replay.state in _OVER and replay.ended_at is not None and where.since <= replay.ended_at <= where.until:
            ends = f"{replay.succeeded:,} succeeded, {replay.failed_again:,} failed again"
            ends += f", {replay.cancelled:,} not sent" if replay.cancelled else ""
            yield Moment(
                replay.ended_at, "replay", str(replay.state), f"Replay #{replay.pk} {replay.state}: {ends}", "", ref
            )
    rows = AuditEvent.objects.filter(
        object__in=[f"replay:{pk}" for pk in replays],
        source__in=(where.source, ""),
        act__in=list(_ACTS),
        allowed=True,
        at__gte=where.since,
        at__lte=where.until,
    )
    # For an act on several sources, the row without a source, which is written first, has the reason.
    acts = {(row.at, row.object, row.act): row for row in rows.order_by("-id")[: MOST_OF_A_KIND * 2]}
    for row in acts.values():
        number = row.object.removeprefix("replay:")
        what = _ACTS[row.act]
        # The reason of a hold names errors, also of hidden sources.
        why = row.reason if replays[int(number)].seen_sources is None else ""
        who = "" if row.actor == "controller" else row.actor
        text = f"Replay #{number} {'changed pace' if what == 'pace' else what}"
        yield Moment(row.at, "replay", what, text, who, Ref("replay", number), why)


def _started(viewer: Viewer, where: Span) -> dict[int, Replay]:
    """Return the replays that were active meanwhile with jobs of the place; of its queue by their first and last jobs."""
    begun = AuditEvent.objects.filter(act="replay.start", allowed=True, source=where.source, at__lte=where.until)
    objects = list(begun.order_by("-id").values_list("object", flat=True)[: MOST_OF_A_KIND * 4])
    numbers = [int(name.removeprefix("replay:")) for name in objects if name.removeprefix("replay:").isdigit()]
    open_then = Q(ended_at__isnull=True) | Q(ended_at__gte=where.since)
    found = Replay.objects.filter(open_then, pk__in=numbers, started_at__lte=where.until).order_by("-pk")
    rows = {replay.pk: replay for replay in found[:MOST_OF_A_KIND]}
    if not where.queue:
        return rows
    theirs = depths.replays_of_queue(list(rows), where.source, where.queue)
    return {pk: replay for pk, replay in rows.items() if pk in theirs}


# -- groups -----------------------------------------------------------------------------------------------------


def _groups(viewer: Viewer, where: Span) -> Iterator[Moment]:
    counters = FailureCount.objects.filter(source=where.source, group_id__gt=0)
    if where.queue:
        counters = counters.filter(queue=where.queue)
    ids = list(counters.order_by("-count").values_list("group_id", flat=True)[: MOST_GROUPS * 4])
    lately = Q(first_seen__gte=where.since, first_seen__lte=where.until)
    lately |= Q(state_since__gte=where.since, state_since__lte=where.until)
    groups = list(Group.objects.filter(lately, pk__in=ids).exclude(IS_TAKEN_IN).order_by("-count")[:MOST_OF_A_KIND])
    shared = group_sight.partial(viewer, [group.pk for group in groups])  # these also failed at hidden sources
    for group in groups:
        ref = Ref("group", group.fingerprint)
        # The start and state of a group shared with other sources may come from those.
        if group.pk in shared:
            continue
        if where.since <= group.first_seen <= where.until:
            yield Moment(group.first_seen, "group", "new", f"New: {group.title}", "", ref)
        since = group.state_since
        if since is None or not where.since <= since <= where.until:
            continue
        if group.state == GroupState.REGRESSED:
            after = f" after {_after(group.regressed_after)}" if group.regressed_after else ""
            yield Moment(since, "group", "regressed", f"Came back{after}: {group.title}", "", ref)
        elif group.state == GroupState.RESOLVED:
            yield Moment(since, "group", "resolved", f"Resolved: {group.title}", group.state_by, ref)


def _after(text: str) -> str:
    kind, _, name = text.partition(":")
    return f"replay #{name}" if kind == "replay" else f"release {name}"


__all__ = ["MOST_OF_A_KIND", "Moment", "Ref", "moments"]
