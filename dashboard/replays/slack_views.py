"""Requests of Slack: a pressed button of a message, and the command that links a Slack user to an account.

Without a session: each request proves by its signature that Slack sent it, before any of it is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from jobs_admin import config, replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.notices import slack
from jobs_admin.rights import slack_links

LARGEST = 64 * 1024  # bytes of a request
_MOST_FIELDS = 50
_ACTIONS = (slack.REVIEW, slack.APPROVE, slack.REJECT, slack.OPEN)


@csrf_exempt
@login_not_required
@require_POST
def receive(request: HttpRequest) -> HttpResponse:
    if not config.slack_secret():
        return _refused("Approval in Slack is off (REDRIVE_SLACK_SIGNING_SECRET).", 403)
    length = whole_number(request.headers.get("Content-Length", "0"))
    if length is None or length > LARGEST or len(body := request.body) > LARGEST:
        return _refused(f"The request has no valid length, or is larger than {LARGEST:,} bytes.", 413)
    now, signature = timezone.now(), request.headers.get("X-Slack-Signature", "")
    if not slack.is_signed_by_slack(request.headers.get("X-Slack-Request-Timestamp", ""), body, signature, now):
        return _refused("The signature is missing, wrong or older than five minutes.", 403)
    if not slack.record_signature(signature, now):
        return _refused("This request was received before.", 409)
    try:
        fields = {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=_MOST_FIELDS).items()}
        payload = json.loads(fields["payload"]) if "payload" in fields else None
        press = _read_press(payload) if payload is not None else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return _refused("The request is neither a press of a button nor a command.", 400)
    if press is None:
        return _redeem_code(fields)
    if press.action == slack.OPEN or replays.handle_slack_press(press, now):
        return HttpResponse()
    return _refused("Redrive did not give this button to this person.", 403)


receive.right = "anyone"


def _read_press(payload: Mapping[str, Any]) -> slack.Press:
    """Return the only pressed button. Raises ValueError and others for anything else."""
    (action,) = payload["actions"]
    user, team = payload["user"], payload["team"]["id"]
    if payload["type"] != "block_actions" or action["action_id"] not in _ACTIONS:
        raise ValueError
    if user.get("team_id", team) != team:  # a guest from another workspace, in a shared channel
        raise ValueError
    value = "" if action["action_id"] == slack.OPEN else action["value"]
    texts = team, user["id"], action["action_id"], value, payload["response_url"]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    if not (slack_links.is_id(team) and slack_links.is_id(user["id"])):
        raise ValueError
    return slack.Press(*texts)


def _redeem_code(fields: Mapping[str, str]) -> HttpResponse:
    team = fields.get("team_id", "")
    if "command" not in fields or not slack.is_workspace_known(team):
        return _refused("The command is not from the workspace of a channel in which replays are approved.", 403)
    try:
        name = slack_links.redeem_code(
            team, fields.get("user_id", ""), fields.get("user_name", ""), fields.get("text", "")
        )
    except Refused as refused:
        return _ephemeral_response(refused.message)
    account = config.page_at("account/")
    return _ephemeral_response(f"Confirm on {account} that this Slack user may approve and reject replays as {name}.")


def _ephemeral_response(text: str) -> HttpResponse:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return JsonResponse({"response_type": "ephemeral", "text": escaped})


def _refused(why: str, status: int) -> HttpResponse:
    answer = HttpResponse(f"{why} Nothing was changed.\n", status=status, content_type="text/plain; charset=utf-8")
    # Anyone may send such requests: not worth a log line each.
    answer._has_been_logged = True
    return answer
