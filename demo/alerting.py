"""Whom the shop's desk calls, and when: made at the first start of the demo, and its owner's to change from then on.

A channel that is the shop's pager (`pager`), which every rule that stands by then calls; and a rule of its own on the
customer whose jobs a played incident kills, because the day before has left over a hundred dead jobs on some queues.
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
        held = Channel.objects.filter(name=CHANNEL).first()
        if held is not None:
            if held.url != url and held.changed_by == SHOP.name:
                notices.save_channel(SHOP, {"url": url}, held.pk)
        elif not AuditEvent.objects.filter(actor=SHOP.name, act="channel.save").exists():
            told = {"name": CHANNEL, "kind": "webhook", "url": url, "secret": secret}
            notices.save_channel(SHOP, {**told, "events": ["poison.quarantined", "replay.held", "replay.done"]})
            for rule in alerts.rules(SHOP):
                alerts.save_rule(SHOP, {**alerts.document(rule), "channels": [CHANNEL]}, rule.pk)
            alerts.save_rule(SHOP, RULE)
    except Refused as refused:
        log.warning("The demo's pager is left out: %s", refused)
