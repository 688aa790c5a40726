"""A captured Celery message, made ready to run again. Whatever is not named here stays byte for byte."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery.utils.saferepr import saferepr

from jobs_admin.sources.base import Letter, SourceRefused
from jobs_admin.sources.celery import plain as celery_plain

# All that a replay changes in a message stands in these five lists; docs/replays.md says them to people.

# What names the run: its id, whose child it is (the run's before it), how many retries count as made, and where it comes from.
# `eta` and `expires` were of the first run: a replay is sent when it is due, and what has expired is left out unless that is
# accepted.
RENEWED_HEADERS = ("id", "parent_id", "retries", "eta", "expires", "redrive")
RENEWED_PROPERTIES = ("correlation_id", "delivery_tag")
# Only where the letter says so: other arguments, a priority, another queue.
RENEWED_AS_ASKED = ("body", "argsrepr", "kwargsrepr", "priority", "delivery_info")
# Its time to live, which began when it was first sent: RabbitMQ would drop the new run without a word.
STRIPPED_PROPERTIES = ("expiration",)
# What a broker wrote onto the message while it lived: true of the old life, a lie in the new one.
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

# Not to be shown: unredacted copies of the arguments, and our own.
HIDDEN_HEADERS = frozenset({"argsrepr", "kwargsrepr", "redrive", WAITED})

# Celery's own bound for the `argsrepr` header (celery.app.amqp.Queues, 5.7).
_REPR_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Body:
    """What Celery calls with: arguments, and the callbacks, errbacks, chain and chord that follow (`embed`)."""

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
    """Its headers but for what repeats the arguments."""
    return {name: value for name, value in message["headers"].items() if name not in HIDDEN_HEADERS}


class Reader:
    """The part of a `sources.Source` that only reads a message: the same on every broker."""

    def arguments(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        body = body_of(parse(raw))
        return body.args, body.kwargs

    def check_arguments(self, raw: bytes, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Every message of Celery has both, whatever they are."""

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
    """What a message that this replay sent contains, right before its token."""
    return f'"delivery_tag": "redrive-{replay}-'


def renew(letter: Letter, replay: str) -> tuple[int, bytes]:
    """The letter's message under its new id: its priority, and its bytes for the broker; the same for the same letter.

    Raises SourceRefused (with the token).
    """
    # Celery's own retries get another tag: by it we know what nobody has fetched yet.
    tag = f"redrive-{replay}-{letter.token}"
    return celery_plain.renewed(letter, tag) or _renewed(letter, tag)


def _renewed(letter: Letter, tag: str) -> tuple[int, bytes]:
    try:
        message = parse(letter.raw)
        headers, properties = message["headers"], message["properties"]
        old_id = headers.get("id")
        for name in STRIPPED_HEADERS:
            headers.pop(name, None)
        for name in STRIPPED_PROPERTIES:
            properties.pop(name, None)
        headers["root_id"] = headers.get("root_id") or old_id
        if letter.job_id != old_id:  # else it stays the child of whom it was
            headers["parent_id"] = old_id
        if letter.retries is not None:
            headers["retries"] = letter.retries
            headers.pop(WAITED, None)  # of the attempts that do not count any more
        headers.update(id=letter.job_id, eta=None, expires=None, redrive=letter.lineage)
        # A result waits under correlation_id, an unacknowledged message under delivery_tag: both must be of this run.
        properties["correlation_id"] = letter.job_id
        properties["delivery_tag"] = tag
        if letter.priority is not None:
            properties["priority"] = letter.priority
        _address(properties, letter)
        if letter.args is not None or letter.kwargs is not None:
            _replace_arguments(message, letter)
        return priority_of(message), json.dumps(message).encode()
    except SourceRefused as error:
        raise SourceRefused(str(error), token=letter.token) from error
    except RecursionError as error:
        raise SourceRefused(
            "The message is nested too deep to be written. Nothing was sent.", token=letter.token
        ) from error


def _address(properties: dict[str, Any], letter: Letter) -> None:
    """Where Celery's own retries of the job go, and kombu puts it back: to the queue that it is sent to."""
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict):
        delivery = {}
    delivery.pop("redelivered", None)
    # Without an exchange the routing key is the queue's name; with one, the message was never redirected.
    came_from = delivery.get("routing_key") if delivery.get("exchange") == "" else letter.lineage.get("queue")
    if came_from != letter.queue:
        properties["delivery_info"] = {**delivery, "exchange": "", "routing_key": letter.queue}


def is_chord_member(raw: bytes) -> bool:
    """Whether a chord waits for this job. Costs half a microsecond for a job without a group; never raises."""
    if _says_nothing(raw, b'"group":'):
        return False
    try:
        message = parse(raw)
        return bool(message["headers"].get("group")) and bool(body_of(message).embed.get("chord"))
    except SourceRefused:
        return False


def expires_at(raw: bytes) -> datetime | None:
    """The `expires` header, which Celery writes in UTC. Costs half a microsecond where there is none; never raises."""
    if _says_nothing(raw, b'"expires":'):
        return None
    try:
        moment = datetime.fromisoformat(parse(raw)["headers"]["expires"])
    except (SourceRefused, KeyError, TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _says_nothing(raw: bytes, member: bytes) -> bool:
    """Whether a member of JSON is absent or null; told without parsing, as this is asked of every failure."""
    at = raw.rfind(member)  # from the end: the headers stand behind the body, which may have 16 MB
    return at < 0 or raw[at + len(member) : at + len(member) + 5].lstrip().startswith(b"null")


def _replace_arguments(message: dict[str, Any], letter: Letter) -> None:
    body = body_of(message)
    args = body.args if letter.args is None else letter.args
    kwargs = body.kwargs if letter.kwargs is None else letter.kwargs
    text = json.dumps([args, kwargs, body.embed])
    if message["properties"].get("body_encoding") == "base64":
        text = base64.b64encode(text.encode(message.get("content-encoding") or "utf-8")).decode()
    message["body"] = text
    message["headers"]["argsrepr"] = saferepr(tuple(args), _REPR_LENGTH)
    message["headers"]["kwargsrepr"] = saferepr(kwargs, _REPR_LENGTH)
