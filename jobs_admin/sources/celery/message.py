"""A captured Celery message, made ready to run again. Fields that are not listed here stay byte for byte."""

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

# Identity of the run: its id, whose child it is (the run's before it), how many retries count as made, and where it comes from.
# `eta` and `expires` were of the first run: a replay is sent when it is due, and what has expired is left out unless that is
# accepted.
RENEWED_HEADERS = ("id", "parent_id", "retries", "eta", "expires", "redrive")
RENEWED_PROPERTIES = ("correlation_id", "delivery_tag")
# Only on request: other arguments, a priority, another queue.
RENEWED_ON_REQUEST = ("body", "argsrepr", "kwargsrepr", "priority", "delivery_info")
# Its time to live, which began when it was first sent: RabbitMQ would drop the new run without a word.
STRIPPED_PROPERTIES = ("expiration",)
# Written by brokers while the message lived: true of the old run, false of the new one.
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
)

# A policy's note of how long the attempt before waited (`worker/next_message.py`).
WAITED = "redrive_waited"

# Never shown: unredacted copies of the arguments, and our own.
HIDDEN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "redrive", WAITED})

# Celery's own bound for the `argsrepr` header (celery.app.amqp.Queues, 5.7).
_REPR_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a message: arguments, and the callbacks, errbacks, chain and chord that follow (`embed`)."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]


def parse(raw: bytes) -> dict[str, Any]:
    """The message as a mapping. Raises SourceRefused for what is not a Celery message of protocol 2."""
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
    """The decoded body. Raises SourceRefused where it is not plain JSON: nothing else is decoded, least of all pickle."""
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
    """Headers of a message without those that repeat the arguments."""
    return {name: value for name, value in message["headers"].items() if name not in HIDDEN_HEADERS}


class Reader:
    """The part of a `sources.Source` that only reads a message: the same on every broker."""

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        body = body_of(parse(raw))
        return body.args, body.kwargs

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Accept anything: every message of Celery has both."""

    def headers(self, raw: bytes) -> dict[str, Any]:
        return shown_headers(parse(raw))

    def is_chord_member(self, raw: bytes) -> bool:
        return is_chord_member(raw)

    def expires_at(self, raw: bytes) -> datetime | None:
        return expires_at(raw)


def priority_of(message: dict[str, Any]) -> int:
    """0 to 9, as kombu reads it."""
    try:
        return max(min(int(message["properties"]["priority"]), 9), 0)
    except (TypeError, ValueError, KeyError):
        return 0


def tag_head(replay: str) -> str:
    """Text in every message that this replay sent, right before its token."""
    return f'"delivery_tag": "redrive-{replay}-'


def renew(outgoing: OutgoingMessage, replay: str) -> tuple[int, bytes]:
    """Return the message under its new id: its priority, and its bytes for the broker; the same for the same input.

    Raises SourceRefused (with the token).
    """
    # Celery's own retries get another tag: this one marks what no worker has fetched yet.
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
        if outgoing.job_id != old_id:  # else it keeps its parent
            headers["parent_id"] = old_id
        if outgoing.retries is not None:
            headers["retries"] = outgoing.retries
            headers.pop(WAITED, None)  # of the attempts that do not count any more
        headers.update(id=outgoing.job_id, eta=None, expires=None, redrive=outgoing.lineage)
        # A result waits under correlation_id, an unacknowledged message under delivery_tag: both must be of this run.
        properties["correlation_id"] = outgoing.job_id
        properties["delivery_tag"] = tag
        if outgoing.priority is not None:
            properties["priority"] = outgoing.priority
        _address(properties, outgoing)
        if outgoing.args is not None or outgoing.kwargs is not None:
            _replace_arguments(message, outgoing)
        return priority_of(message), json.dumps(message).encode()
    except SourceRefused as error:
        raise SourceRefused(str(error), token=outgoing.token) from error
    except RecursionError as error:
        raise SourceRefused(
            "The message is nested too deep to be written. Nothing was sent.", token=outgoing.token
        ) from error


def _address(properties: dict[str, Any], outgoing: OutgoingMessage) -> None:
    """Direct Celery's own retries, and messages that kombu puts back, to the queue that the job is sent to."""
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict):
        delivery = {}
    delivery.pop("redelivered", None)
    # Without an exchange the routing key is the queue's name; with one, the message was never redirected.
    came_from = delivery.get("routing_key") if delivery.get("exchange") == "" else outgoing.lineage.get("queue")
    if came_from != outgoing.queue:
        properties["delivery_info"] = {**delivery, "exchange": "", "routing_key": outgoing.queue}


def is_chord_member(raw: bytes) -> bool:
    """Return whether a chord waits for this job. Costs half a microsecond for a job without a group; never raises."""
    if _is_absent(raw, b'"group":'):
        return False
    try:
        message = parse(raw)
        return bool(message["headers"].get("group")) and bool(body_of(message).embed.get("chord"))
    except SourceRefused:
        return False


def expires_at(raw: bytes) -> datetime | None:
    """The `expires` header, which Celery writes in UTC. Costs half a microsecond where there is none; never raises."""
    if _is_absent(raw, b'"expires":'):
        return None
    try:
        moment = datetime.fromisoformat(parse(raw)["headers"]["expires"])
    except (SourceRefused, KeyError, TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_absent(raw: bytes, member: bytes) -> bool:
    """Return whether a member of JSON is absent or null, without parsing: this runs for every failure."""
    at = raw.rfind(member)  # from the end: the headers are behind the body, which may have 16 MB
    return at < 0 or raw[at + len(member) : at + len(member) + 5].lstrip().startswith(b"null")


def _replace_arguments(message: dict[str, Any], outgoing: OutgoingMessage) -> None:
    from celery.utils.saferepr import saferepr  # a sender of unchanged arguments needs nothing of Celery

    body = body_of(message)
    args = body.args if outgoing.args is None else outgoing.args
    kwargs = body.kwargs if outgoing.kwargs is None else outgoing.kwargs
    text = json.dumps([args, kwargs, body.embed])
    if message["properties"].get("body_encoding") == "base64":
        text = base64.b64encode(text.encode(message.get("content-encoding") or "utf-8")).decode()
    message["body"] = text
    message["headers"]["argsrepr"] = saferepr(tuple(args), _REPR_LENGTH)
    message["headers"]["kwargsrepr"] = saferepr(kwargs, _REPR_LENGTH)


# A captured message in the form that Celery itself writes, made ready to run again without being parsed. It is what
# nearly all messages are, and a replay sends tens of thousands of them a second: here one costs some 7 µs, by way of
# JSON some 17. The pattern is the whole grammar of that form, each string to its closing quote, so that no text inside
# a message can be taken for a part of it. Whatever differs by a byte is left to `_renew_parsed`.

# Only single characters repeat possessively: Python before 3.11.5 loses matches of a possessive group (CPython issue 106052).
# A value without escapes can be compared as it stands.
_SIMPLE = r'"[^"\\\x00-\x1f]*+"'
_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*"'
_NUMBER = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?"
_SCALAR = rf"(?:{_STRING}|null|true|false|{_NUMBER})"
_LIST = rf"\[(?:{_SCALAR}(?:, {_SCALAR})*)?\]"
_OBJECT = rf"\{{(?:{_STRING}: {_SCALAR}(?:, {_STRING}: {_SCALAR})*)?\}}"
# Not a second one of those that are renewed, and none that a broker or a replay leaves behind.
_NO_OTHER = r'(?!"(?:id|eta|expires|retries|root_id|parent_id|redelivered|redrive(?:_waited)?|x-[a-z-]++)")'
_MORE = rf"(?:, {_NO_OTHER}{_STRING}: (?:{_SCALAR}|{_LIST}|{_OBJECT}))*"

# The rest behind the body. In the order in which Celery 5.3 to 5.7 and kombu write them (tested with 5.7).
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
    """Return the same bytes as `message.renew`; None for a message of another form."""
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
