"""The shop's retry policies, its channel and its alert rule, created at the first start of the demo and then left to its owner.

Two policies only observe: the partner's outages affect webhooks and payments as docs/demo.md describes, and each attempt
shows the policy's decision. Two are enforced. The newsletters' waits as the task's own `autoretry_for` does, but also after
a 503, which its code takes for final. The scans' quarantines the one job that ends every process which runs it.

The channel is the shop's pager (`pager`), which every existing rule notifies. The rule is about the customer whose jobs a
played incident kills, because the day before has left over a hundred dead jobs on some queues.
"""

from __future__ import annotations

import logging
from typing import Any

from demo.story import TENANT, THRESHOLD
from jobs_admin import alerts, config, notices, policies
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.core.refused import Refused
from jobs_admin.models import AuditEvent, Channel, PolicyVersion
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, OPERATOR, Viewer

SOURCE = "shop"  # as in demo/shop.py, whose import makes a Celery app
_PUBLISHER = Viewer("demo", {EVERY_SOURCE: OPERATOR})
SHOP = Viewer("demo", {EVERY_SOURCE: ADMIN})
CHANNEL = "demo-pager"

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
        "note": "A newsletter may be late: retries are spread widely.",
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
        "note": "Now and then a scan is as large as an archive, and no process survives it.",
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
        "note": "Watched before it is enforced: customers dislike events out of order.",
    },
    "payments": {
        **PRESETS["payments"].document,
        "match": {"source": SOURCE, "task": "shop.billing.charge"},
        "mode": "observe",
        "classes": [{"error": "CardDeclined", "as": "permanent"}, {"error": "RefundTooLarge", "as": "permanent"}],
        "note": "A person looks at what is left after three attempts.",
    },
}

RULE: dict[str, Any] = {
    "name": "A customer's jobs die",
    "metric": "dead",
    "source": "shop",
    "tenant": TENANT,
    "threshold": THRESHOLD,
    "for_s": 10,
    "keep_firing_s": 10,  # an incident is played in some 80 s: nobody waits two minutes for its end
    "severity": "critical",
    "channels": [CHANNEL],
}


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
            log.info("The demo's policy %s is left out: %s", name, refused)


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
        log.warning("The demo's pager is left out: %s", refused)
