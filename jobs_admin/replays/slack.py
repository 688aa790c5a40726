"""Approval and rejection of a replay by a press in Slack, with the rights that the linked account has at that moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.models import Channel, Replay
from jobs_admin.models.access import Viewer, viewer_of
from jobs_admin.notices import slack
from jobs_admin.replays import acts, drafting, reading
from jobs_admin.rights import slack_links


@dataclass(frozen=True, slots=True)
class Press:
    team: str
    member: str  # who pressed
    action: str  # slack.APPROVE, slack.REJECT
    value: str  # of the button
    response_url: str


def act(press: Press, signed: list[Channel], now: datetime) -> bool:
    """Approve or reject, and queue the answer. Return False, without any act, if the press is not on a message of ours.

    `signed`: the channels whose app signed the request.
    """
    pressed = slack.find_pressed(press.value, signed, press.team)
    if pressed is None or not slack.may_answer(press.response_url, pressed.channel):
        return False
    body = pressed.notice.body
    try:
        text, is_done = _act(press, body), True
    except Refused as refused:
        page = config.page_at(f"replays/{body['replay']}/")
        text, is_done = f"{refused.message} {page}", False
    slack.answer(pressed, press.response_url, text, now, replaces=is_done)
    return True


def _act(press: Press, shown: dict[str, Any]) -> str:
    user = slack_links.find_user(press.team, press.member)
    if user is None:
        raise Refused(
            "forbidden",
            "Your Slack user is not linked to a Redrive account. Nothing was changed. "
            f"Link it on {config.page_at('account/')}, or open the replay:",
        )
    if why := slack_links.why_not(user):
        raise Refused("forbidden", f"{why} Nothing was changed. Open the replay:")
    viewer = replace(viewer_of(user), through="Slack")
    replay = _find(viewer, shown["replay"])
    if press.action == slack.APPROVE:
        drafting.approve(viewer, replay, shown=shown)
        return f"Replay #{replay.pk}: approved by {viewer.name} through Slack"
    acts.cancel(viewer, replay, only_unapproved=True)
    return f"Replay #{replay.pk}: rejected by {viewer.name} through Slack"


def _find(viewer: Viewer, pk: int) -> Replay:
    try:
        return reading.find(viewer, pk)
    except Replay.DoesNotExist as error:
        raise Refused("not_found", "No such replay, or you cannot view it. Nothing was changed.") from error
