"""The shop's retry policies, published at the first start of the demo.

Two only observe: the partner's outages affect webhooks and payments as docs/demo.md describes, and each attempt shows
the policy's decision. Two are enforced. The newsletters' waits as the task's own `autoretry_for` does, but also after a
503, which its code takes for final. The scans' quarantines the one job that ends every process which runs it.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs_admin import config, policies
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.core.refused import Refused
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer

SOURCE = "shop"  # as in demo/shop.py, whose import makes a Celery app
SHOP = Viewer("demo", {EVERY_SOURCE: OPERATOR})

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
            {"error": "httpx.HTTPError", "as": "transient"},
            {"error": "*.RateLimited", "as": "rate_limited"},
            {"error": "*", "as": "permanent"},
        ],
        "budget": {"per_minute": 600, "burst": 100},
        "note": "Nobody waits for a newsletter: spread as widely as can be.",
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


def publish() -> None:
    """Publish the policies that never had a version: those changed or withdrawn by an operator stay as they are."""
    if config.is_read_only():
        return
    known = set(PolicyVersion.objects.values_list("name", flat=True))
    for name, document in POLICIES.items():
        if name in known:
            continue
        try:
            policies.publish(SHOP, name, document, reason="The demo's own.")
        except Refused as refused:  # somebody has one of their own for the same jobs
            log.info("The demo's policy %s is left out: %s", name, refused)
