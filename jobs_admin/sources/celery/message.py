"""Captured Celery messages, prepared to run again. Fields not listed here keep their bytes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from jobs_admin.sources.base import OutgoingMessage, SourceRefused

# These five lists are all that a replay changes in a message; docs/replays.md explains them.

# Identity of the run: id, parent (the previous run), retries counted as made, and lineage. `eta` and `expires` belonged
# to the first run: a replay is sent when due, and expired jobs are excluded unless accepted.
RENEWED_HEADERS = ("id", "parent_id", "retries", "eta", "expires", "redrive")
RENEWED_PROPERTIES = ("correlation_id", "delivery_tag")
# Only on request: other arguments, a priority, another queue.
RENEWED_ON_REQUEST = ("body", "argsrepr", "kwargsrepr", "priority", "delivery_info")
# Time to live, counted from the first sending: RabbitMQ would silently drop the new run.
STRIPPED_PROPERTIES = ("expiration",)
# Set by a breaker that held the old run (`worker/next_message.py`).
HOLD_HEADERS = ("redrive_held", "redrive_held_since", "redrive_held_failed", "redrive_ticket")
# Written by brokers during the message's life: true for the old run, false for the new one.
STRIPPED_HEADERS = (
    "redelivered",
    "x-death",
    "x-delivery-count",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    *HOLD_HEADERS,
)

# A policy's note of the delay before the previous attempt (`worker/next_message.py`).
WAITED = "redrive_waited"

# Never shown: unredacted copies of the arguments, and our own headers.
HIDDEN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "redrive", WAITED, *HOLD_HEADERS})

# Celery's own limit of the `argsrepr` header (celery.app.amqp.Queues, 5.7).
_REPR_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a message: arguments, and the callbacks, errbacks, chain and chord that follow (`embed`)."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]


def parse(raw: bytes) -> dict[str, Any]:
    """Parse a message. Raises SourceRefused unless it is a Celery message of protocol 2."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceRefused(
            "The captured message is not JSON, so it cannot be given a new id. Nothing was sent."
        ) from error
    if not (
        isinstance(message, dict)
        and isinstance(message.get("headers"), dict)
        and isinstance(message.get("properties"), dict)
        and "body" in message
    ):
        raise SourceRefused("The captured message is not a Celery message. Nothing was sent.")
    if not message["headers"].get("task"):
        raise SourceRefused("The message names no task in its headers (Celery's protocol 1). Nothing was sent.")
    return message


def body_of(message: dict[str, Any]) -> Body:
    """Return the decoded body.

    Raises SourceRefused unless it is plain JSON: nothing else is decoded, least of all pickle.
    """
    if message.get("content-type") != "application/json":
        raise SourceRefused(
            f"The arguments are {message.get('content-type')!r}, not JSON: they can be replayed, not edited."
        )
    if message["headers"].get("compression"):
        raise SourceRefused("The arguments are compressed: they can be replayed, not edited.")
    try:
        text = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            text = base64.b64decode(text).decode(message.get("content-encoding") or "utf-8")
        args, kwargs, embed = json.loads(text)
    except (ValueError, TypeError, LookupError, RecursionError, binascii.Error) as error:
        raise SourceRefused("The arguments cannot be decoded: they can be replayed, not edited.") from error
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise SourceRefused("The arguments have another shape than Celery's: they can be replayed, not edited.")
    return Body(args, kwargs, embed if isinstance(embed, dict) else {})


def shown_headers(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message's headers, without those that repeat the arguments."""
    return {name: value for name, value in message["headers"].items() if name not in HIDDEN_HEADERS}


class Reader:
    """The part of a `sources.Source` that only reads messages, shared by all brokers."""

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        body = body_of(parse(raw))
        return body.args, body.kwargs

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Accept any arguments."""

    def headers(self, raw: bytes) -> dict[str, Any]:
        return shown_headers(parse(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        return is_chord_member(raw)

    def expires_at(self, raw: bytes) -> datetime | None:
        return expires_at(raw)


def priority_of(message: dict[str, Any]) -> int:
    """Return 0 to 9, as in kombu."""
    try:
        return max(min(int(message["properties"]["priority"]), 9), 0)
    except (TypeError, ValueError, KeyError):
        return 0


def tag_head(replay: str) -> str:
    """Return the text in every message sent by this replay, immediately before its token."""
    return f'"delivery_tag": "redrive-{replay}-'


def renew(outgoing: OutgoingMessage, replay: str) -> tuple[int, bytes]:
    """Return priority and bytes of the message under its new id; the same for the same input.

    Raises SourceRefused (with the token).
    """
    # Celery's own retries get another tag: this one marks messages that no worker has fetched yet.
    tag = f"redrive-{replay}-{outgoing.token}"
    return _renew_plain(outgoing, tag) or _renew_parsed(outgoing, tag)


def _renew_parsed(outgoing: OutgoingMessage, tag: str) -> tuple[int, bytes]:
    try:
        message = parse(outgoing.raw)
        headers, properties = message["headers"], message["properties"]
        old_id = headers.get("id")
        for name in STRIPPED_HEADERS:
            headers.pop(name, None)
        for name in STRIPPED_PROPERTIES:
            properties.pop(name, None)
        headers["root_id"] = headers.get("root_id") or old_id
        if outgoing.job_id != old_id:  # otherwise it keeps its parent
            headers["parent_id"] = old_id
        if outgoing.retries is not None:
            headers["retries"] = outgoing.retries
            headers.pop(WAITED, None)  # belongs to attempts that no longer count
        headers.update(id=outgoing.job_id, eta=None, expires=None, redrive=outgoing.lineage)
        # Results are stored under correlation_id, unacknowledged messages under delivery_tag: both must belong to this
        # run.
        properties["correlation_id"] = outgoing.job_id
        properties["delivery_tag"] = tag
        if outgoing.priority is not None:
            properties["priority"] = outgoing.priority
        _address(properties, outgoing)
        if outgoing.args is not None or outgoing.kwargs is not None:
            replace_arguments(message, outgoing.args, outgoing.kwargs)
        return priority_of(message), json.dumps(message).encode()
    except SourceRefused as error:
        raise SourceRefused(str(error), token=outgoing.token) from error
    except RecursionError as error:
        raise SourceRefused(
            "The message is nested too deep to be written. Nothing was sent.", token=outgoing.token
        ) from error


def _address(properties: dict[str, Any], outgoing: OutgoingMessage) -> None:
    """Direct Celery's own retries, and messages that kombu requeues, to the job's target queue."""
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict):
        delivery = {}
    delivery.pop("redelivered", None)
    # Without an exchange, the routing key is the queue's name; with one, the message was never redirected.
    came_from = delivery.get("routing_key") if delivery.get("exchange") == "" else outgoing.lineage.get("queue")
    if came_from != outgoing.queue:
        properties["delivery_info"] = {**delivery, "exchange": "", "routing_key": outgoing.queue}


def is_chord_member(raw: bytes) -> bool:
    """Return whether a chord waits for this job. Takes 0.5 µs for a job without a group; never raises."""
    if _is_absent(raw, b'"group":'):
        return False
    try:
        message = parse(raw)
        return bool(message["headers"].get("group")) and bool(body_of(message).embed.get("chord"))
    except SourceRefused:
        return False


def expires_at(raw: bytes) -> datetime | None:
    """Return the `expires` header, which Celery writes in UTC. Takes 0.5 µs without one; never raises."""
    if _is_absent(raw, b'"expires":'):
        return None
    try:
        moment = datetime.fromisoformat(parse(raw)["headers"]["expires"])
    except (SourceRefused, KeyError, TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_absent(raw: bytes, member: bytes) -> bool:
    """Return whether a JSON member is absent or null, without parsing, because this runs for every failure."""
    at = raw.rfind(member)  # from the end: headers follow the body, which may have 16 MB
    return at < 0 or raw[at + len(member) : at + len(member) + 5].lstrip().startswith(b"null")


def replace_arguments(message: dict[str, Any], new_args: list[Any] | None, new_kwargs: dict[str, Any] | None) -> None:
    """Set the arguments of a parsed message; None keeps them. Raises SourceRefused if its body cannot be read."""
    from celery.utils.saferepr import saferepr  # senders of unchanged arguments do not need Celery

    body = body_of(message)
    args = body.args if new_args is None else new_args
    kwargs = body.kwargs if new_kwargs is None else new_kwargs
    text = json.dumps([args, kwargs, body.embed])
    if message["properties"].get("body_encoding") == "base64":
        text = base64.b64encode(text.encode(message.get("content-encoding") or "utf-8")).decode()
    message["body"] = text
    message["headers"]["argsrepr"] = saferepr(tuple(args), _REPR_LENGTH)
    message["headers"]["kwargsrepr"] = saferepr(kwargs, _REPR_LENGTH)


# Fast path: a captured message in the form that Celery itself writes, prepared without parsing.
# Nearly all messages have this form, and a replay sends tens of thousands per second: here one takes about 7 µs, with
# JSON about 17 µs. The pattern is the complete grammar of that form, each string up to its closing quote, so that no
# text in a message can be mistaken for structure. Any message that differs by a byte is left to `_renew_parsed`.

# Only single characters repeat possessively: Python before 3.11.5 loses matches of a possessive group (CPython issue
# 106052). A value without escapes can be compared directly.
_SIMPLE = r'"[^"\\\x00-\x1f]*+"'
_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*"'
_NUMBER = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?"
_SCALAR = rf"(?:{_STRING}|null|true|false|{_NUMBER})"
_LIST = rf"\[(?:{_SCALAR}(?:, {_SCALAR})*)?\]"
_OBJECT = rf"\{{(?:{_STRING}: {_SCALAR}(?:, {_STRING}: {_SCALAR})*)?\}}"
# No duplicates of the renewed headers, and none that a broker or a replay adds.
_NO_OTHER = r'(?!"(?:id|eta|expires|retries|root_id|parent_id|redelivered|redrive(?:_waited)?|x-[a-z-]++)")'
_MORE = rf"(?:, {_NO_OTHER}{_STRING}: (?:{_SCALAR}|{_LIST}|{_OBJECT}))*"

# The part after the body, in the order in which Celery 5.3 to 5.7 and kombu write it (tested with 5.7).
_REST = re.compile(
    (
        rf'(", "content-encoding": {_SIMPLE}, "content-type": {_SIMPLE}, "headers": \{{"lang": {_SIMPLE}, '
        rf'"task": (?!""){_STRING}, "id": )(?P<id>{_SIMPLE})(, "shadow": {_SCALAR}, "eta": ){_SCALAR}(, "expires": ){_SCALAR}'
        rf'(, "group": {_SCALAR}, "group_index": {_SCALAR}, "retries": )(?P<retries>0|[1-9]\d*+)'
        rf'(, "timelimit": {_LIST}, "root_id": )(?P<root>{_SIMPLE}|null)(, "parent_id": )(?P<parent>{_SIMPLE}|null)'
        rf'({_MORE})(?:, "redrive": {_OBJECT}({_MORE}))?\}}, "properties": \{{"correlation_id": {_SIMPLE}'
        rf'((?:, "reply_to": {_SCALAR})?, "delivery_mode": \d)(?:, "expiration": {_SIMPLE})?(, "delivery_info": '
        rf'\{{"exchange": )(?P<exchange>{_SIMPLE})(, "routing_key": )(?P<key>{_SIMPLE})(\}}, "priority": )(?P<priority>\d)'
        rf'(, "body_encoding": "base64", "delivery_tag": ){_SIMPLE}\}}\}}'
    ).encode()
)
_HEAD = b'{"body": "'
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def _renew_plain(outgoing: OutgoingMessage, tag: str) -> tuple[int, bytes] | None:
    """Return the same as `message.renew`; None for a message of another form."""
    raw = outgoing.raw
    if not raw.startswith(_HEAD) or outgoing.args is not None or outgoing.kwargs is not None or not raw.isascii():
        return None
    end = raw.find(b'"', len(_HEAD))
    if raw[len(_HEAD) : end].translate(None, _BASE64):
        return None
    found = _REST.fullmatch(raw, end)
    if found is None:
        return None
    (
        to_id, old_id, to_eta, to_expires, to_retries, retries, to_root, root, to_parent, parent, before, after,
        mode, to_exchange, exchange, to_key, key, to_priority, priority, to_tag,
    ) = found.groups()  # fmt: skip
    new_id, queue = quoted(outgoing.job_id).encode(), quoted(outgoing.queue).encode()
    if new_id != old_id:
        parent = old_id
    if root in (b"null", b'""'):
        root = old_id
    if outgoing.retries is not None:
        retries = b"%d" % outgoing.retries
    if outgoing.priority is not None:
        priority = b"%d" % outgoing.priority
    if queue != key if exchange == b'""' else outgoing.queue != outgoing.lineage.get("queue"):
        exchange, key = b'""', queue
    return int(priority), b"".join((
        raw[:end], to_id, new_id, to_eta, b"null", to_expires, b"null", to_retries, retries, to_root, root,
        to_parent, parent, before, b', "redrive": ', json.dumps(outgoing.lineage).encode(), after or b"",
        b'}, "properties": {"correlation_id": ', new_id, mode, to_exchange, exchange, to_key, key, to_priority, priority,
        to_tag, quoted(tag).encode(), b"}}",
    ))  # fmt: skip
