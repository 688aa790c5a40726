"""Arguments of a job: the worker's copy for display, or the stored message itself, redacted while it is read.

The copy is short: a job of 5 MB is truncated in it. The message is complete, and its secrets are redacted piece by
piece as it is read (core.redacted_view). Only JSON is parsed; in particular, nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import InvalidToken

from jobs_admin import config
from jobs_admin.core.redacted_view import Piece, Plain, Veiled
from jobs_admin.core.redaction import redact, redact_text
from jobs_admin.models import Failure, Payload
from jobs_admin.sources.base import SourceRefused

# Prefixes of the text with which `core.display` replaces a value.
_CUT_MARKS = ("\\u2026", "…")
_LARGEST_DECRYPTED = 2 * 1024 * 1024  # size of a message that is decrypted for its head
_HEAD, _SLACK = 8_192, 4_096  # bytes read, and the part of them needed to recognize a secret at the end


class Unreadable(ValueError):
    """The arguments cannot be shown. The text says why; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Arguments of one run, each a piece that can be navigated (core.redacted_view)."""

    args: Piece
    kwargs: Piece
    headers: Piece


def opened(payload: Payload) -> bytes:
    """Return the captured message. Raises SourceRefused if its key is no longer configured."""
    try:
        return config.payload_keys().decrypt(bytes(payload.body))
    except InvalidToken as error:
        raise SourceRefused("its key is missing: the message cannot be decrypted (REDRIVE_PAYLOAD_KEYS)") from error


def is_cut(failure: Failure) -> bool:
    """Return whether values may be missing from the copy for display."""
    return any(mark in text for text in (failure.args, failure.kwargs) for mark in _CUT_MARKS)


def copy(failure: Failure) -> Contents:
    """Return the worker's copy for display, of the latest failed run. Raises Unreadable if it is not JSON."""
    return Contents(
        Plain(json_of(failure.args, [])), Plain(json_of(failure.kwargs, {})), Plain(json_of(failure.headers, {}))
    )


def head(failure: Failure) -> str:
    """Return the start of the latest run's message as redacted text, without the body; "" without a message."""
    payload = failure.payloads.order_by("-run").first()
    if payload is None or payload.size > _LARGEST_DECRYPTED:
        return ""
    try:
        raw = opened(payload)
    except SourceRefused:
        return ""
    try:
        content = json.loads(raw) if payload.is_whole else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return redact_text(raw[:_HEAD].decode("utf-8", "backslashreplace"))[0][: _HEAD - _SLACK]
    if "body" in content:
        # Patterns do not find secrets in an encoded body.
        content = {
            **content,
            "body": f"… {len(content['body']) if isinstance(content['body'], str) else 'not a text'} …",
        }
    shown, _ = redact(content)
    return json.dumps(shown, ensure_ascii=False, indent=1)[: _HEAD - _SLACK]


def json_of(text: str, nothing: Any) -> Any:
    """Return the value in a copy; `nothing` without text. Raises Unreadable."""
    try:
        return json.loads(text) if text else nothing
    except (ValueError, RecursionError) as error:
        raise Unreadable("The stored copy is not complete JSON.") from error


def message(failure: Failure, run: int | None = None) -> Contents:
    """Return the complete contents of the message of `run`, by default the latest. Raises Unreadable."""
    payloads = failure.payloads.filter(is_whole=True)
    payload = (payloads.filter(run=run) if run is not None else payloads).order_by("-run").first()
    if payload is None and run and not failure.payloads.filter(run=run).exists():
        raise Unreadable(
            f"Run {run} has no stored message: a run that succeeds stores none, and old messages are pruned."
        )
    if payload is None:
        raise Unreadable(f"The message of {f'run {run}' if run else 'this job'} was not stored completely.")
    if failure.source not in config.sources():
        raise Unreadable(f"The source {failure.source} is no longer configured, so its messages cannot be read.")
    adapter = config.adapter(failure.source)
    try:
        raw = opened(payload)
        (args, kwargs), headers = adapter.arguments(raw), adapter.headers(raw)
    except SourceRefused as error:
        raise Unreadable(str(error)) from error
    return Contents(Veiled(args), Veiled(kwargs), Veiled(headers))
