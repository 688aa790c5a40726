"""Approval of replays in Slack: who signed a request, the buttons of messages, and answers to a press.

A message in a channel has one button, *Review*, which acts on nothing. The answer to it, visible only to the person who
pressed, shows the replay and has the buttons that act. Their values are of that person, of what was shown, and of the next
minutes, so a message that imitates one of Redrive's cannot pass one replay off as another.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core import signing
from django.db import IntegrityError, transaction

from jobs_admin import config
from jobs_admin.core.slack_signature import WITHIN_S, is_recent, is_signed
from jobs_admin.core.text import whole_number
from jobs_admin.core.web_address import BadAddress, WebAddress, parse
from jobs_admin.models import Channel, Delivery, Notice, SlackRequest
from jobs_admin.models.notice import REPLAY_AWAITING_APPROVAL, SLACK_ANSWER
from jobs_admin.notices import routing, sealing

log = logging.getLogger(__name__)

REVIEW, APPROVE, REJECT, OPEN = "review", "approve", "reject", "open"  # ids of the buttons
_SERVER = ("https", "hooks.slack.com", 443)
_WORKSPACE = re.compile(r"/services/(T[A-Z0-9]{1,19})/[^/?]+/[^/?]+", re.ASCII)
_STORED_FOR = timedelta(seconds=4 * WITHIN_S)
_LONGEST_LINE, _LONGEST, _MOST_LINES = 900, 9_000, 40  # of a message that people read; a section may have 3,000


def is_signed_by_slack(timestamp: str, body: bytes, signature: str, now: datetime) -> bool:
    """Return whether the Slack app of the deployment signed this request within five minutes. Others are logged."""
    secret = config.slack_secret()
    if secret and is_recent(timestamp, now.timestamp()) and is_signed(secret, timestamp, body, signature):
        return True
    _log_refusal()
    return False


_LOGGED_EVERY_S = 60.0
_logged_at = [float("-inf")]


def _log_refusal() -> None:
    """Log a request that no one signed, at most once a minute: the sender is unknown, so the audit does not have it."""
    if time.monotonic() - _logged_at[0] >= _LOGGED_EVERY_S:
        _logged_at[0] = time.monotonic()
        log.warning("A request to /slack/ was refused: not signed by the Slack app, or older than five minutes.")


def record_signature(signature: str, now: datetime) -> bool:
    """Return whether this is the first request with this signature. Older ones are refused by their timestamp."""
    try:
        with transaction.atomic():
            SlackRequest.objects.create(signature=signature[:80], received_at=now)
    except IntegrityError:
        return False
    SlackRequest.objects.filter(received_at__lt=now - _STORED_FOR).delete()
    return True


# -- channels -----------------------------------------------------------------------------------------------------


def is_approval_channel(channel: Channel) -> bool:
    """Return whether replays are approved in this channel: an incoming webhook of Slack that subscribes to them."""
    is_subscribed = channel.kind == "slack" and REPLAY_AWAITING_APPROVAL in channel.events
    return is_subscribed and bool(config.slack_secret() and channel.disabled_at is None and _workspace(channel))


def is_workspace_known(team: str) -> bool:
    """Return whether replays are approved in a channel of this workspace."""
    channels = Channel.objects.filter(kind="slack", disabled_at=None)
    return any(is_approval_channel(one) and _workspace(one) == team for one in channels)


def _workspace(channel: Channel) -> str:
    """Return Slack's id of the workspace of the channel's address; "" if it is not an incoming webhook of Slack."""
    try:
        address = parse(sealing.unseal(channel.secrets[:1])[0])
    except (sealing.CannotOpen, BadAddress, IndexError):
        return ""
    found = _WORKSPACE.fullmatch(address.target) if _is_on_slack(address) else None
    return found[1] if found else ""


def _is_on_slack(address: WebAddress) -> bool:
    return (address.scheme, address.host, address.port) == _SERVER


# -- buttons ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Press:
    team: str
    member: str  # who pressed
    action: str  # REVIEW, APPROVE, REJECT
    value: str  # of the button
    response_url: str


@dataclass(frozen=True, slots=True)
class ReviewedMessage:
    """Message of a pressed button."""

    message: Delivery
    shown: str = ""  # digest of the replay that the person was shown; "" for REVIEW
    is_expired: bool = False  # reviewed more than five minutes ago


def build_channel_buttons(notice: Notice, channel: Channel, url: str) -> dict[str, Any]:
    """Return the block of a channel's message: *Review* and *Open in Redrive*."""
    value = _signer(REVIEW).sign(f"{notice.pk}:{channel.pk}")
    return _actions(_button(REVIEW, "Review") | {"value": value, "style": "primary"}, _open(url))


def _build_acts(number: int, value: str, url: str) -> dict[str, Any]:
    approve = _button(APPROVE, f"Approve replay #{number}") | {"value": value, "style": "primary"}
    return _actions(approve, _button(REJECT, "Reject") | {"value": value, "style": "danger"}, _open(url))


def find_message(press: Press) -> ReviewedMessage | None:
    """Return the message of the button; None if Redrive did not give this button to this person or workspace."""
    is_act, signer = press.action != REVIEW, _signer(press.action)
    try:
        text, is_expired = signer.unsign(press.value), False
        signer.unsign(press.value, max_age=WITHIN_S if is_act else None)
    except signing.SignatureExpired:
        is_expired = True
    except signing.BadSignature:
        return None
    notice, channel, *rest = text.split(":")
    if rest[:2] != ([press.team, press.member] if is_act else []):
        return None
    sent = Delivery.objects.select_related("notice", "channel").filter(
        notice=whole_number(notice), channel=whole_number(channel), notice__type=REPLAY_AWAITING_APPROVAL
    )
    found = sent.first()
    if found is None or not is_approval_channel(found.channel) or _workspace(found.channel) != press.team:
        return None
    return ReviewedMessage(found, rest[2] if is_act else "", is_expired) if _can_answer(press.response_url) else None


def _can_answer(url: str) -> bool:
    try:
        return _is_on_slack(parse(url))
    except BadAddress:
        return False


def _signer(action: str) -> signing.TimestampSigner:
    return signing.TimestampSigner(salt=f"redrive.slack.{'review' if action == REVIEW else 'act'}")


def _actions(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "actions", "elements": list(elements)}


def _button(action: str, text: str) -> dict[str, Any]:
    return {"type": "button", "action_id": action, "text": _plain(text)}


def _open(url: str) -> dict[str, Any]:
    return _button(OPEN, "Open in Redrive") | {"url": url}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


# -- answers ------------------------------------------------------------------------------------------------------


def fits(lines: list[str]) -> bool:
    """Return whether a message can show all of these lines, uncut."""
    lengths = [len(line) for line in lines]
    return len(lines) <= _MOST_LINES and sum(lengths) <= _LONGEST and max(lengths) <= _LONGEST_LINE


def answer_review(press: Press, pressed: Delivery, lines: list[str], shown: str, now: datetime) -> None:
    """Queue the answer to *Review*: the lines, and buttons that act for this person on what they show."""
    number = int(pressed.notice.body["replay"])
    value = _signer(APPROVE).sign(f"{pressed.notice_id}:{pressed.channel_id}:{press.team}:{press.member}:{shown}")
    # Plain: nothing of a job, a search or a reason is markup in it. Expanded: Slack folds no line above the buttons.
    blocks = [{"type": "section", "text": _plain(line), "expand": True} for line in lines]
    blocks.append(_build_acts(number, value, config.page_at(f"replays/{number}/")))
    _answer(press, pressed, f"Replay #{number}: review", now, blocks=blocks)


def answer(press: Press, pressed: Delivery, text: str, now: datetime, *, is_public: bool) -> None:
    """Queue an answer: in the channel, or visible only to the person who pressed."""
    _answer(press, pressed, text, now, is_public=is_public)


def _answer(press: Press, pressed: Delivery, text: str, now: datetime, **more: Any) -> None:
    """Queue an answer. The step `deliver` sends it, so that no request waits for Slack.

    Answers share the channel's lane with its alerts, so presses beyond the bound get none.
    """
    recent = Delivery.objects.filter(channel=pressed.channel, created_at__gt=now - timedelta(minutes=1))
    if recent.filter(notice__type=SLACK_ANSWER).count() >= routing.MOST_A_MINUTE:
        return
    body = {
        "title": "Answer in Slack",
        "message": text,
        "replay": pressed.notice.body["replay"],
        "response_url": sealing.seal(press.response_url),  # valid for half an hour, so never encrypted with a new key
        **more,
    }
    with transaction.atomic():
        made = Notice.objects.create(
            key=f"slack-{secrets.token_hex(8)}",
            type=SLACK_ANSWER,
            severity="info",
            source=pressed.notice.source,
            body=body,
            is_routed_by_event=False,
            routed_at=now,
        )
        Delivery.objects.create(notice=made, channel=pressed.channel, next_try_at=now)
