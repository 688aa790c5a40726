"""Alerts as the judge writes them: an episode with its transitions, and its notifications."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.models import Alert, AlertEvent, Channel, Delivery, DepthSample, Notice, Rule
from tests.kit.people import ANN


def rule(name: str = "Dead Letter Queue Growing", **changes) -> Rule:
    """One of those that stand from the first minute, or another."""
    values = {"metric": "dead", "threshold": 100, "for_s": 60, "severity": "warning"} | changes
    return Rule.objects.update_or_create(name=name, defaults=values)[0]


def episode(
    subject: str = "emails", *, of: Rule | None = None, source: str = "shop", state: str = "firing", value: float = 1243,
    ago_s: float = 300, lasted_s: float | None = None, acknowledged_by="", **changes,
) -> Alert:  # fmt: skip
    """True since `ago_s`; it fired a minute later, and is over after `lasted_s` where it is resolved."""
    of = of or rule()
    now = timezone.now()
    opened = now - timedelta(seconds=ago_s)
    fired = None if state == "pending" else opened + timedelta(seconds=of.for_s)
    resolved = opened + timedelta(seconds=lasted_s or 1200) if state == "resolved" else None
    taken = fired + timedelta(seconds=40) if acknowledged_by and fired else None
    values = {
        "severity": of.severity, "value": value, "peak": value, "threshold": of.threshold, "opened_at": opened,
        "fired_at": fired, "resolved_at": resolved, "acknowledged_at": taken, "acknowledged_by": acknowledged_by,
        "judged_at": now,
    } | changes  # fmt: skip
    made = Alert.objects.create(rule=of, source=source, subject=subject, state=state, **values)
    steps: list[tuple[datetime | None, str, str]] = [
        (opened, "pending", f"above {of.threshold:g}"), (fired, "firing", f"above {of.threshold:g} for {of.for_s} s"),
        (taken, "acknowledged", "looking"), (resolved, "resolved", "at or below it again"),
    ]  # fmt: skip
    for n, (at, to, reason) in enumerate([step for step in steps if step[0]], 1):
        AlertEvent.objects.create(alert=made, n=n, at=at, to=to, value=value, reason=reason)
    made.transitions = made.events.count()
    made.save(update_fields=["transitions"])
    return made


def create_delivery(alert: Alert, channel: str = "ops", state: str = "delivered", **changes) -> Delivery:
    """A notice that it fires, and how it went."""
    where = Channel.objects.get_or_create(
        name=channel, defaults={"kind": "webhook", "url": "https://ops.example/hook"}
    )[0]
    notice = Notice.objects.create(
        key=f"alert-{alert.pk}-{alert.notices.count() + 1}", type="alert.firing", severity=alert.severity,
        source=alert.source, alert=alert, is_routed_by_event=False, body={"title": alert.rule.name},
        routed_at=timezone.now(),
    )  # fmt: skip
    alert.events.filter(to="firing").update(notice=notice)
    done = timezone.now() if state == "delivered" else None
    values = {"tries": 1, "status": 200 if done else 503, "delivered_at": done, "tried_at": timezone.now()} | changes
    return Delivery.objects.create(notice=notice, channel=where, state=state, **values)


def samples(alert: Alert, values: list[int], every_s: int = 10) -> None:
    """Looks at its queue, the last one just now."""
    last = timezone.now().replace(microsecond=0)
    last -= timedelta(seconds=10 + last.second % 10)
    DepthSample.objects.bulk_create(
        DepthSample(
            source=alert.source, queue=alert.subject, at=last - timedelta(seconds=every_s * n), dead=value, waiting=3,
            oldest_dead_at=alert.opened_at,
        )
        for n, value in enumerate(reversed(values))
    )  # fmt: skip


def typed(**changes: str) -> dict[str, object]:
    """The form of the editor, confirmed where no channel is selected."""
    form = {"name": "Webhooks die", "metric": "dead", "source": "shop", "queue": "webhooks", "threshold": "100"}
    form |= {"for_s": "1 min", "keep_firing_s": "2 min", "no_data": "keep", "severity": "warning", "enabled": "on"}
    form["without_channel"] = "1"
    return form | changes


NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
DEAD = {"name": "Too many dead", "metric": "dead", "source": "shop", "threshold": 100}


def create_alert(rule, state="firing", **changes):
    """An alert as if it had been judged so."""
    fired = None if state == "pending" else NOW
    values = {
        "source": "shop", "subject": "emails", "severity": rule.severity, "value": 120, "peak": 120, "threshold": 100,
        "opened_at": NOW, "fired_at": fired, "judged_at": NOW, "transitions": 2, "told_at": fired,
    }  # fmt: skip
    return Alert.objects.create(rule=rule, state=state, **values | changes)


S = timedelta(seconds=1)


def judged(*seconds):
    for at in seconds:
        alerts.judge(NOW + at * S)


@pytest.fixture
def desk(db):
    """A desk without the rules that a new desk has."""
    Rule.objects.all().delete()


@pytest.fixture
def shop_rule(desk):
    """An alert rule on the shop's dead jobs, or as the fields say."""

    def save(viewer=ANN, **fields):
        return alerts.save_rule(viewer, {**DEAD, **fields})

    return save
