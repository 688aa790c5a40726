"""The channel and the alert rule of the shop, created at the first start of the demo and then left to its owner.

The channel is the shop's pager (`pager`), which every existing rule notifies. The rule is about the customer whose jobs a
played incident kills, because the day before has left over a hundred dead jobs on some queues.
"""

from __future__ import annotations

import logging
from typing import Any

from demo.story import TENANT, THRESHOLD
from jobs_admin import alerts, config, notices
from jobs_admin.core.refused import Refused
from jobs_admin.models import AuditEvent, Channel
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer

SHOP = Viewer("demo", {EVERY_SOURCE: ADMIN})
CHANNEL = "demo-pager"
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

log = logging.getLogger(__name__)


def begin(partner_url: str, secret: str) -> None:
    """Make them where they have never been; where the partner has moved, its pager has too."""
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
