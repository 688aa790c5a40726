"""Approval of replays in Slack: who signed a request, the buttons of a message, and answers to a press.

A button names the message that Redrive sent, and what that message showed is read from Redrive's own tables.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.core.signing import BadSignature, Signer
from django.db import IntegrityError, transaction

from jobs_admin import config
from jobs_admin.core.slack_signature import WITHIN_S, is_recent, is_signed
from jobs_admin.core.web_address import BadAddress, WebAddress, parse
from jobs_admin.models import Channel, Delivery, Notice, SlackRequest
from jobs_admin.models.notice import REPLAY_AWAITING_APPROVAL, SLACK_ANSWER
from jobs_admin.notices import sealing

APPROVE, REJECT, OPEN = "approve", "reject", "open"  # ids of the buttons
_WORKSPACE = re.compile(r"/services/(T[A-Z0-9]{1,19})/[^/?]+/[^/?]+")
_STORED_FOR = timedelta(seconds=4 * WITHIN_S)


def read_address(channel: Channel) -> WebAddress | None:
    """Return the address of the channel's incoming webhook; None if it cannot be decrypted."""
    try:
        return parse(sealing.unseal(channel.secrets[:1])[0])
    except (sealing.CannotOpen, BadAddress, IndexError):
        return None


def workspace(address: WebAddress | None) -> str:
    """Return Slack's id of the workspace in the address of an incoming webhook; "" if it names none."""
    found = _WORKSPACE.fullmatch(address.target) if address is not None else None
    return found[1] if found else ""


def find_signed(timestamp: str, body: bytes, signature: str, now: datetime) -> list[Channel]:
    """Return the channels whose app signed this request within five minutes; none for a forged or an old one.

    Only enabled channels that subscribe to replays awaiting approval.
    """
    if not is_recent(timestamp, now.timestamp()):
        return []
    found = []
    for one in Channel.objects.filter(kind="slack", disabled_at=None).order_by("pk"):
        if not one.takes_approvals or REPLAY_AWAITING_APPROVAL not in one.events:
            continue
        try:
            (secret,) = sealing.unseal(one.secrets[1:2])
        except sealing.CannotOpen:
            continue
        if is_signed(secret, timestamp, body, signature):
            found.append(one)
    return found


def accept_once(signature: str, now: datetime) -> bool:
    """Return whether this is the first request with this signature. Older ones are refused by their timestamp."""
    try:
        with transaction.atomic():
            SlackRequest.objects.create(signature=signature[:80], received_at=now)
    except IntegrityError:
        return False
    SlackRequest.objects.filter(received_at__lt=now - _STORED_FOR).delete()
    return True


def build_buttons(notice: Notice, channel: Channel, url: str) -> dict[str, Any]:
    """Return the block with *Approve*, *Reject* and *Open in Redrive*."""
    value = _signer().sign(f"{notice.pk}:{channel.pk}")
    replay = f"replay #{notice.body.get('replay')}"
    return {
        "type": "actions",
        "elements": [
            {**_button(APPROVE, "Approve"), "style": "primary", "value": value}
            | {"confirm": _confirm(f"Approve {replay}?", "Its jobs are sent to their queues.", "Approve")},
            {**_button(REJECT, "Reject"), "style": "danger", "value": value}
            | {"confirm": _confirm(f"Reject {replay}?", "It is cancelled. Its jobs stay dead.", "Reject")},
            {**_button(OPEN, "Open in Redrive"), "url": url},
        ],
    }


def has_buttons(notice: Notice, channel: Channel) -> bool:
    """Return whether the message has buttons. In a host project, which has its own accounts, it has none."""
    return notice.type == REPLAY_AWAITING_APPROVAL and channel.takes_approvals and config.is_own_project()


def find_pressed(value: str, signed: list[Channel], team: str) -> Delivery | None:
    """Return the message with the pressed button: of a channel of this workspace whose app signed the request."""
    try:
        notice, _, channel = _signer().unsign(value).partition(":")
    except BadSignature:
        return None
    if not any(one.pk == int(channel) and workspace(read_address(one)) == team for one in signed):
        return None
    sent = Delivery.objects.select_related("notice", "channel")
    return sent.filter(notice=int(notice), channel=int(channel), notice__type=REPLAY_AWAITING_APPROVAL).first()


def may_answer(url: str, channel: Channel) -> bool:
    """Return whether `url` is at the server of the channel's own address, to which alone answers are sent."""
    own = read_address(channel)
    try:
        given = parse(url)
    except BadAddress:
        return False
    return own is not None and (given.scheme, given.host, given.port) == (own.scheme, own.host, own.port)


def answer(pressed: Delivery, url: str, text: str, now: datetime, *, replaces: bool) -> None:
    """Queue an answer to a press: in place of the message, or visible only to the person who pressed.

    The step `deliver` sends it, so that no request waits for Slack.
    """
    body = {
        "title": "Answer in Slack",
        "message": text,
        "replay": pressed.notice.body.get("replay"),
        "about": pressed.notice.body.get("message", "") if replaces else "",
        "replaces": replaces,
        "response_url": sealing.seal(url),  # valid for half an hour, so it is not encrypted again with a new key
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


def _signer() -> Signer:
    return Signer(salt="redrive.slack.button")


def _button(action: str, text: str) -> dict[str, Any]:
    return {"type": "button", "action_id": action, "text": {"type": "plain_text", "text": text}}


def _confirm(title: str, text: str, confirm: str) -> dict[str, Any]:
    words = {"title": title[:100], "text": text, "confirm": confirm, "deny": "Back"}
    return {name: {"type": "plain_text", "text": word} for name, word in words.items()}
