"""Dead man's switch: an external URL is called each minute while every step of watch is alive, and raises the alarm
when the calls end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from jobs_admin import config
from jobs_admin.core.web_address import BadAddress, parse
from jobs_admin.notices import guard, posting
from jobs_admin.notices.posting import Answer, Request
from jobs_admin.queues import liveness

log = logging.getLogger(__name__)

EVERY_S = 60.0


class _Last:
    began = float("-inf")
    error = ""


def is_due(now: datetime) -> bool:
    """Return whether a minute has passed since the last call, a URL is set, and every step of watch is alive."""
    if time.monotonic() - _Last.began < EVERY_S or not config.heartbeat_url():
        return False
    _Last.began = time.monotonic()
    return liveness.find_stale(now) is None


def asker() -> Callable[[], Answer]:
    """Return a function that sends one request. An invalid setting is also returned as an answer."""
    try:
        request = Request(parse(config.heartbeat_url()), {}, b"", method="GET")
        allowed = config.webhook_allow()
    except BadAddress as error:
        answer = Answer(None, error=str(error))
        return lambda: answer
    return lambda: posting.send(request, allowed)


def ended(answer: Answer) -> None:
    """Log the result, once per distinct error."""
    is_heard = answer.status is not None and 200 <= answer.status < 300
    error = "" if is_heard else answer.error or f"the endpoint answered {answer.status}"
    if error and error != _Last.error:
        log.error("The heartbeat (REDRIVE_HEARTBEAT_URL) failed: %s", error)
    elif not error and _Last.error:
        log.info("The heartbeat succeeds again.")
    _Last.error = error


def why_refused() -> str:
    """Return why the heartbeat cannot be sent at all; empty if it can, or none is set. Looks up its host."""
    if not config.heartbeat_url():
        return ""
    try:
        guard.addresses(parse(config.heartbeat_url()), config.webhook_allow())
    except (BadAddress, guard.NotPublic, guard.Unknown) as error:
        return str(error)
    return ""
