"""The pager of whoever is on call at the shop: takes the desk's webhooks and keeps what it could verify.

It does what a receiver of yours would: check the signature by the Standard Webhooks library before reading a word, answer
quickly, and take one id once, however often it comes.
"""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

MOST_PAGES = 20
_SHOWN = ("title", "message", "severity", "url", "replay_url", "failures_url", "metric")


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


class Pager:
    def __init__(self, secret: str) -> None:
        self._webhook = Webhook(secret)
        self._lock = threading.Lock()
        self._taken: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._refused = 0

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """The HTTP status to answer with: 204 for what is signed by the desk, 401 for everything else."""
        try:
            message = self._webhook.verify(body, dict(headers))
            at, type_, about = message["timestamp"], str(message["type"]), message.get("data") or {}
        except (WebhookVerificationError, ValueError, KeyError, TypeError, AttributeError):
            with self._lock:
                self._refused += 1
            return 401
        name = {key.lower(): value for key, value in headers.items()}["webhook-id"]
        with self._lock:
            before = self._taken.get(name)
            page = {"id": name, "type": type_, "at": at, "taken_at": time.time(), "times": 1}
            page |= {key: str(about.get(key) or "") for key in _SHOWN}
            self._taken[name] = before | {"times": before["times"] + 1} if before else page
            while len(self._taken) > MOST_PAGES:
                self._taken.popitem(last=False)
        return 204

    def state(self) -> dict[str, Any]:
        """Return the pages, latest first, and the number of requests that were not the desk's."""
        with self._lock:
            return {"pages": list(reversed(self._taken.values())), "refused": self._refused}
