"""Signature of Slack's requests (v0): HMAC-SHA256 over version, timestamp and raw body."""

from __future__ import annotations

import hashlib
import hmac
import re

WITHIN_S = 300.0  # between Slack's timestamp and now, in either direction
_TIMESTAMP = re.compile(r"[0-9]{1,12}", re.ASCII)


def is_signed(secret: str, timestamp: str, body: bytes, signature: str) -> bool:
    """Return whether the secret signed this body at this timestamp, compared in constant time."""
    return hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode("utf-8", "replace"))


def is_recent(timestamp: str, now: float) -> bool:
    return _TIMESTAMP.fullmatch(timestamp) is not None and abs(now - int(timestamp)) <= WITHIN_S


def sign(secret: str, timestamp: str, body: bytes) -> str:
    message = b"v0:" + timestamp.encode("utf-8", "replace") + b":" + body
    return "v0=" + hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
