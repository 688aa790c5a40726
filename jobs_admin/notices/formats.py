"""A notice as each kind of channel takes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from standardwebhooks import Webhook

from jobs_admin.core.web_address import parse
from jobs_admin.models import Channel, Notice
from jobs_admin.models.notice import ALERT_RESOLVED, REPLAY_AWAITING_APPROVAL, SLACK_ANSWER
from jobs_admin.notices import sealing, slack, wording
from jobs_admin.notices.posting import Request

_JSON = {"Content-Type": "application/json; charset=utf-8"}
# PagerDuty knows critical, error, warning and info.
_SEVERITIES = {"critical": "critical", "warning": "warning", "info": "info"}
_LONGEST_SECTION = 3_000  # of Slack
_ENDS = (ALERT_RESOLVED, "replay.done", "breaker.closed")


def request(notice: Notice, channel: Channel, now: datetime) -> Request:
    """Raises sealing.CannotOpen, web_address.BadAddress. Not for e-mail, which is no request (`mail`)."""
    return _OF_KIND[channel.kind](notice, channel, now)


def _webhook(notice: Notice, channel: Channel, now: datetime) -> Request:
    return build_webhook(channel, notice.key, wording.body(notice), now)


def build_webhook(channel: Channel, key: str, body: Mapping[str, Any], now: datetime) -> Request:
    """Return a request of Standard Webhooks 1.0 with this id. While a secret is rotated, both sign.

    Raises sealing.CannotOpen, web_address.BadAddress.
    """
    text = wording.encode_body(body).decode()
    signatures = [Webhook(secret).sign(key, now, text) for secret in sealing.unseal(channel.secrets)]
    headers = {
        **_JSON,
        "webhook-id": key,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return Request(parse(channel.url), headers, text.encode(), text)


def _slack(notice: Notice, channel: Channel, now: datetime) -> Request:
    if notice.type == SLACK_ANSWER:
        return _slack_answer(notice)
    content = wording.build_text(notice)
    mark = {"critical": "🔴", "warning": "🟠"}.get(notice.severity, "🔵")
    mark = "🟢" if notice.type in _ENDS else mark
    lines = [_mrkdwn(content.message)]
    lines += [f"• {_mrkdwn(group)}" for group in content.groups]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": f"{mark} {content.title}"[:150]}},
        *_section("\n".join(filter(None, lines))),
    ]
    if notice.type == REPLAY_AWAITING_APPROVAL and slack.is_approval_channel(channel):
        blocks.append(slack.build_channel_buttons(notice, channel, content.links[0][1]))
    else:
        links = [f"<{_address(address)}|{_mrkdwn(words)}>" for words, address in content.links]
        blocks += _section(_joined(links))
    if head := dict(content.facts).get("Audit head"):
        blocks.append({"type": "context", "elements": [{"type": "plain_text", "text": f"Audit head: {head}"}]})
    section = {"text": _mrkdwn(f"{content.title}: {content.message}")[:3_000], "blocks": blocks}
    text = json.dumps(section, ensure_ascii=False)
    (url, *_) = sealing.unseal(channel.secrets[:1])
    return Request(parse(url), _JSON, text.encode(), text)


def _slack_answer(notice: Notice) -> Request:
    """Build the answer to a press of a button: in the channel, or for the person who pressed alone.

    Its blocks are not logged: they show arguments, and the buttons that act.
    """
    about = notice.body
    where = "in_channel" if about.get("is_public") else "ephemeral"
    document = {"response_type": where, "replace_original": False, "text": _mrkdwn(str(about["message"]))[:3_000]}
    body = json.dumps(document | ({"blocks": about["blocks"]} if "blocks" in about else {}), ensure_ascii=False)
    (url,) = sealing.unseal([str(about["response_url"])])
    return Request(parse(url), _JSON, body.encode(), json.dumps(document, ensure_ascii=False))


def _pagerduty(notice: Notice, channel: Channel, now: datetime) -> Request:
    """Build an Events v2 request: a resolved bundle resolves the incident of the same key; one incident for a bundle."""
    content = wording.build_text(notice)
    event: dict[str, Any] = {
        "routing_key": "",
        "event_action": "resolve" if notice.type in _ENDS else "trigger",
        "dedup_key": wording.dedup_key(notice),
    }
    if event["event_action"] == "trigger":
        event |= {
            "payload": {
                "summary": f"{content.title}: {content.message}"[:1_024],
                "source": notice.source or "redrive",
                "severity": _SEVERITIES.get(notice.severity, "warning"),
                "timestamp": notice.created_at.isoformat(),
                "class": notice.type,
                "custom_details": dict(content.facts) | ({"Failing": list(content.groups)} if content.groups else {}),
            },
            "client": "Redrive",
            "links": [{"href": address, "text": words} for words, address in content.links],
        }
        if content.links:
            event["client_url"] = content.links[0][1]
    (key, *_) = sealing.unseal(channel.secrets[:1])
    body = json.dumps(event | {"routing_key": key}, ensure_ascii=False)
    return Request(
        parse(channel.url), _JSON, body.encode(), json.dumps(event | {"routing_key": "…"}, ensure_ascii=False)
    )


_OF_KIND: dict[str, Callable[[Notice, Channel, datetime], Request]] = {
    "webhook": _webhook,
    "slack": _slack,
    "pagerduty": _pagerduty,
}


def _section(text: str) -> list[dict[str, Any]]:
    # Verbatim: an address within a name does not become a link by itself.
    section = {"type": "mrkdwn", "text": text[:_LONGEST_SECTION], "verbatim": True}
    return [{"type": "section", "text": section}] if text else []


def _joined(links: Sequence[str]) -> str:
    """As many whole links as a section holds."""
    text = ""
    for link in links:
        longer = f"{text} · {link}" if text else link
        text = longer if len(longer) <= _LONGEST_SECTION else text
    return text


def _mrkdwn(text: str) -> str:
    """Slack's own escapes: without < there is no mention of a channel, and no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _address(url: str) -> str:
    return _mrkdwn(url).replace("|", "%7C").replace(" ", "%20")
