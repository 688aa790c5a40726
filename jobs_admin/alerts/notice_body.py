"""The `data` of an alert's webhook: the same for every channel, and limited in size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from jobs_admin import config
from jobs_admin.alerts import affected_groups, wording
from jobs_admin.alerts.links import alert_page, links
from jobs_admin.alerts.runbooks import find_alert_runbook
from jobs_admin.core.alert_metrics import figure
from jobs_admin.core.text import terminal_line
from jobs_admin.db import audit_anchor
from jobs_admin.models import Alert
from jobs_admin.models.alert import AlertState

LARGEST = 18_000  # bytes, so that the complete request with type, time and the channel's own fields stays below 20 kB
MOST_GROUPS = 5
MOST_ALSO = 20
_LONGEST_TITLE = 200
LONGEST_LINK = 1_000  # characters of an address: fits most numbers of queues


def build(
    leader: Alert,
    members: Sequence[Alert],
    now: datetime,
    *,
    reason: str,
    before: str = "",
    why: str = "",
    others: Sequence[Alert] = (),
    left_out: int = 0,
    news: Collection[int] = (),
) -> dict[str, Any]:
    """Build the data.

    `members`: the open alerts, or the leader if none is open. `others` are resolved in the same notice.

    `news`: numbers of the alerts that this notice is about. They come first, and its links are for them; alerts of
    earlier notices come last, and silenced ones are omitted.
    """
    rule = leader.rule
    speaking = [one for one in members if one.state != AlertState.SILENCED] or list(members)
    ranked = sorted((*speaking, *others), key=lambda one: _rank(one, leader, news))
    main = next((one for one in ranked if one.is_open), leader)
    rest = [one for one in ranked if one.pk != main.pk]
    about = [main, *(one for one in rest if main.pk not in news or one.pk in news)]
    groups = affected_groups.top_groups(about, MOST_GROUPS)
    led = links(main, now, queues=[one.subject for one in about] if main.subject else (), longest=LONGEST_LINK)
    body = {
        "alert_id": str(leader.pk),
        "dedup_key": dedup_key(leader.pk),
        "severity": rule.severity,
        "title": rule.name,
        "message": before + _message(main, rest, now, why, left_out),
        "runbook": find_alert_runbook(main, groups),
        "source": main.source,
        "queue": main.subject,
        "metric": rule.metric,
        "value": _plain(main.value),
        "threshold": _plain(main.threshold),
        "since": main.opened_at.isoformat(),
        "top_groups": [
            {"title": terminal_line(one.title, _LONGEST_TITLE), "count": one.count, "url": one.url} for one in groups
        ],
        "url": alert_page(leader.pk),
        "failures_url": led.failures_url,
        "replay_url": led.replay_url,
        "reason": reason,
        "also": [
            {"queue": one.subject, "value": _plain(one.value), "url": alert_page(one.pk)} for one in rest[:MOST_ALSO]
        ],
        "more": max(0, len(rest) - MOST_ALSO) + left_out,
        "left_out": left_out,
        "audit_head": audit_anchor.short_head(),
    }
    return _within(body)


def dedup_key(leader: int) -> str:
    """Return the key of all notices of a bundle; it differs between two desks that use one pager."""
    desk = hashlib.sha256(config.page_url("/").encode()).hexdigest()[:8]
    return f"redrive-{desk}-alert-{leader}"


def _rank(one: Alert, leader: Alert, news: Collection[int]) -> tuple[Any, ...]:
    """Return the sort key: alerts of this notice first, open and unacknowledged ones before others, then the worst."""
    is_taken = one.state == AlertState.ACKNOWLEDGED
    return is_taken, one.pk not in news, not one.is_open, -one.value, one.pk != leader.pk, one.pk


def _message(main: Alert, rest: Sequence[Alert], now: datetime, why: str, left_out: int) -> str:
    lasted = (now - main.opened_at).total_seconds()
    if main.resolved_at is not None:
        text = wording.resolved_sentence(main, lasted)
        return f"{text}. {why}".strip() if why else text
    text = wording.sentence(main, lasted)
    if rest:
        named = ", ".join(f"{wording.name(one.subject)} {figure(main.rule.metric, one.value)}" for one in rest[:3])
        n = len(rest) + left_out
        text += f"; and {n:,} more: {named}{', …' if n > 3 else ''}"
    return text


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 6)


def size(body: dict[str, Any]) -> int:
    """Return the size in bytes in the least compact encoding of any channel."""
    return len(json.dumps(body))


def _within(body: dict[str, Any]) -> dict[str, Any]:
    """Remove the least important fields until it fits: names may be arbitrarily long."""
    if size(body) > LARGEST:
        body["more"] += len(body["also"]) - len(body["also"][:3])
        body["also"] = body["also"][:3]
    if size(body) > LARGEST:
        body["top_groups"] = [{**one, "title": terminal_line(one["title"], 60)} for one in body["top_groups"]]
    for name in ("replay_url", "failures_url"):
        if size(body) > LARGEST and body[name]:
            body[name] = body["url"]  # the page has both links
    if size(body) > LARGEST:
        body |= {"more": body["more"] + len(body["also"]), "also": [], "top_groups": []}
    return body
