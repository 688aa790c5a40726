"""The shop's retry policies, its channel and its alert rule, created at the first start of the demo and then left to its owner.

Two policies only observe: the partner's outages affect webhooks and payments as docs/demo.md describes, and each attempt
shows the policy's decision. Three are enforced. The newsletters' waits as the task's own `autoretry_for` does, but also after
a 503, which its code takes for final. The scans' quarantines the one job that ends every process
which runs it. The warehouse's has a breaker, for the last act of the incident.

The channel is the shop's pager (`pager`), which every existing rule notifies. The rule is about the customer whose jobs a
played incident kills, because the day before has left over a hundred dead jobs on some queues.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from demo.story import TENANT, THRESHOLD
from jobs_admin import alerts, config, notices, policies
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.core.refused import Refused
from jobs_admin.models import AuditEvent, Channel, DepthSample, PolicyVersion
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.queues import depths

SOURCE = "shop"  # as in demo/shop.py, whose import makes a Celery app
_PUBLISHER = Viewer("demo", {EVERY_SOURCE: OPERATOR})
SHOP = Viewer("demo", {EVERY_SOURCE: ADMIN})
CHANNEL = "demo-pager"
WAREHOUSE = "warehouse"  # a policy, and the dependency of its breaker

log = logging.getLogger(__name__)

POLICIES: dict[str, dict[str, Any]] = {
    "newsletters": {
        "match": {"source": SOURCE, "task": "shop.mailer.send_newsletter"},
        "mode": "enforce",
        "max_attempts": 4,
        "backoff": {"kind": "exponential", "first_delay_s": 2},
        "cap_s": 30,
        "jitter": {"kind": "full"},
        "classes": [
            {"error": "httpx.*Error", "as": "transient"},  # by their own names: the desk does not know base classes
            {"error": "httpx.*Timeout", "as": "transient"},
            {"error": "*.RateLimited", "as": "rate_limited"},
            {"error": "*", "as": "permanent"},
        ],
        "budget": {"per_minute": 600, "burst": 100},
        "note": "Newsletters may be late, so retries are spread widely.",
    },
    "scans": {
        "match": {"source": SOURCE, "task": "shop.reporting.read_scan"},
        "mode": "enforce",
        "max_attempts": 5,
        "backoff": {"kind": "exponential", "first_delay_s": 1},
        "cap_s": 60,
        "jitter": {"kind": "equal"},
        "classes": [{"error": "TypeError", "as": "permanent"}, {"error": "ValueError", "as": "permanent"}],
        "poison": {"crashes": 3, "window_s": 300},
        "note": "Quarantines scans that crash their worker.",
    },
    WAREHOUSE: {
        "match": {"source": SOURCE, "task": "shop.hooks.reserve_stock"},
        "mode": "enforce",
        "breaker": {"dependency": WAREHOUSE},
        "note": "While the warehouse is down, its jobs are put aside.",
    },
    "webhooks": {
        **PRESETS["webhooks"].document,
        "match": {"source": SOURCE, "task": "shop.hooks.*"},
        "mode": "observe",
        "classes": [
            {"error": "*.RateLimited", "as": "rate_limited"},
            {"error": "EndpointGone", "as": "permanent"},
            {"error": "BlockedAddress", "as": "permanent"},
            {"error": "KeyError", "as": "permanent"},
        ],
        "note": "Receivers are down for minutes. Retries may reorder events.",
    },
    "payments": {
        **PRESETS["payments"].document,
        "match": {"source": SOURCE, "task": "shop.billing.charge"},
        "mode": "observe",
        "classes": [{"error": "CardDeclined", "as": "permanent"}, {"error": "RefundTooLarge", "as": "permanent"}],
        "note": "After three attempts an operator decides.",
    },
}

RULE: dict[str, Any] = {
    "name": "A customer's jobs die",
    "metric": "dead",
    "source": "shop",
    "tenant": TENANT,
    "threshold": THRESHOLD,
    "for_s": 10,
    "keep_firing_s": 10,  # the incident goes on: nobody waits two minutes for the end of its alert
    "severity": "critical",
    "channels": [CHANNEL],
}


AUTOMATION: dict[str, Any] = {
    "source": SOURCE,
    "q": "queue:webhooks",
    "min_jobs": 20,
    "quiet_s": 600,
    "cap_per_hour": 5_000,
    "act": {"kind": "replay"},
    "note": "Replays jobs that failed at the partner, once none of them has failed for 10 min.",
}


def create_automation() -> None:
    """Create the example in dry run, where it has never been."""
    if config.is_read_only() or AuditEvent.objects.filter(actor=SHOP.name, act="automation.create").exists():
        return
    from jobs_admin import automations

    try:
        automations.create(SHOP, "partner-is-back", AUTOMATION)
    except Refused as refused:
        log.info("The demo's automation was not created: %s", refused)


def publish_policies() -> None:
    """Publish the policies that never had a version: those changed or withdrawn by an operator stay as they are."""
    if config.is_read_only():
        return
    known = set(PolicyVersion.objects.values_list("name", flat=True))
    for name, document in POLICIES.items():
        if name in known:
            continue
        try:
            policies.publish(_PUBLISHER, name, document, reason="Demo default.")
        except Refused as refused:  # somebody has one of their own for the same jobs
            log.info("The demo's policy %s was not created: %s", name, refused)


def create_alerts(partner_url: str, secret: str) -> None:
    """Create the channel and the alert rule where they have never been; where the partner has moved, its pager has too."""
    if config.is_read_only():
        return
    url = f"{partner_url}/pager"
    try:
        current = Channel.objects.filter(name=CHANNEL).first()
        if current is not None:
            if current.url != url and current.changed_by == SHOP.name:
                notices.save_channel(SHOP, {"url": url}, current.pk)
        elif not AuditEvent.objects.filter(actor=SHOP.name, act="channel.save").exists():
            fields = {"name": CHANNEL, "kind": "webhook", "url": url, "secret": secret}
            notices.save_channel(SHOP, {**fields, "events": ["poison.quarantined", "replay.held", "replay.done"]})
            for rule in alerts.rules(SHOP):
                alerts.save_rule(SHOP, {**alerts.document(rule), "channels": [CHANNEL]}, rule.pk)
            alerts.save_rule(SHOP, RULE)
    except Refused as refused:
        log.warning("The demo's pager was not created: %s", refused)


def fill_depths(text: bytes) -> None:
    """Write the depth samples of the day before, as the desk would have sampled them: the history has only failures.

    `text`: of `control.DEPTHS`. Samples that were stored while the history was filed count all of it too.
    """
    if config.is_read_only():
        return
    past = json.loads(text)
    oldest = datetime.fromtimestamp(min(times["failed"][0] for times in past.values() if times["failed"]), UTC)
    if DepthSample.objects.filter(source=SOURCE, step=3_600, at__lte=oldest).exists():
        return  # filled before
    real = list(DepthSample.objects.filter(source=SOURCE, step=depths.SAMPLE_S, queue__in=past).order_by("at"))
    first = int((real[0].at if real else datetime.now(UTC)).timestamp())
    for sample in real:
        died = past[sample.queue]["died"]
        sample.dead = max(sample.dead or 0, bisect_left(died, sample.at.timestamp()))
        sample.oldest_dead_at = datetime.fromtimestamp(died[0], UTC) if sample.dead else None
    DepthSample.objects.bulk_update(real, ["dead", "oldest_dead_at"])
    for step in _FILLED:  # of these samples: folded again
        since = datetime.fromtimestamp(first // step * step, UTC)
        DepthSample.objects.filter(source=SOURCE, queue__in=past, step=step, at__gte=since).exclude(
            step=depths.SAMPLE_S
        ).delete()
    rows = [
        sample
        for queue, times in past.items()
        for step, span in _FILLED.items()
        for sample in _samples(queue, times, step, span, first)
    ]
    DepthSample.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)


# Seconds of a step -> how far back. The running step is folded from the shorter ones as always.
_FILLED = {10: 4_200, 60: 21_600, **dict.fromkeys((300, 900, 3_600, 21_600, 86_400), 90_000)}


def _samples(queue: str, times: dict[str, list[int]], step: int, span: int, until: int) -> Iterator[DepthSample]:
    failed, died = times["failed"], times["died"]
    for at in range((until - span) // step * step, until // step * step, step):
        before, dead = bisect_left(died, at), bisect_left(died, at + step)
        yield DepthSample(
            source=SOURCE,
            queue=queue,
            at=datetime.fromtimestamp(at, UTC),
            step=step,
            looks=step // depths.SAMPLE_S,
            waiting=0,
            active=0,
            delayed=0,
            dead=dead,
            dead_min=before if before < dead and step > depths.SAMPLE_S else None,
            oldest_dead_at=datetime.fromtimestamp(died[0], UTC) if dead else None,
            failed_per_min=round((bisect_left(failed, at + step) - bisect_left(failed, at)) * 60 / step, 3),
        )
