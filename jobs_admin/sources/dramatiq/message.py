"""Dramatiq's message: a JSON object of seven fields. A message of another encoder is never decoded.

Its members are handled as text, so that unchanged ones keep their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs_admin.core import untrusted
from jobs_admin.core.envelope import Lineage
from jobs_admin.core.text import representable
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.json_members import MOST, join_members, members, write

FIELDS = frozenset(
    ("queue_name", "actor_name", "args", "kwargs", "options", "message_id", "message_timestamp")
)  # of Dramatiq 1 and 2
_LONGEST_ID = 200
# Options that the middleware of docs/sources/dramatiq.md writes: the running attempt, and the number of attempts of a
# dead job.
ATTEMPT, ATTEMPTS = "redrive_attempt", "redrive_attempts"
# Options of earlier attempts: a run begins without them.
_OF_A_RUN = ("retries", "traceback", "requeue_timestamp", "eta", ATTEMPT, ATTEMPTS)
_NOT_JSON = "This message is not JSON: another encoder wrote it. The stored message is unchanged, and nothing was sent."
_UNKNOWN = "This message does not have the format of Dramatiq 1 or 2. Nothing was sent."


@dataclass(frozen=True, slots=True)
class Message:
    """One message. If it cannot be read, only `raw` is set."""

    raw: bytes
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, raw: bytes) -> Message:
        fields = untrusted.read_object(raw)
        return cls(raw, fields if isinstance(fields.get("options"), dict) and "actor_name" in fields else {})

    @property
    def options(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.fields.get("options", {})
        return found

    @property
    def is_known(self) -> bool:
        """Return whether it has the format of Dramatiq 1 or 2 on Redis."""
        return self.has_known_fields and isinstance(self.options.get("redis_message_id"), str)

    @property
    def has_known_fields(self) -> bool:
        """Return whether it has the format of Dramatiq 1 or 2 on any broker."""
        return self.fields.keys() == FIELDS

    @property
    def is_foreign(self) -> bool:
        """Return whether an encoder other than JSON wrote it."""
        return not self.fields

    @property
    def id(self) -> str:
        """Return its id; "" if the desk cannot store it unchanged."""
        found = self._text("message_id")
        return found if len(found) <= _LONGEST_ID and found == representable(found) else ""

    @property
    def actor(self) -> str:
        return self._text("actor_name")

    @property
    def redis_id(self) -> str:
        """Name of the message in Redis, new each time it is enqueued."""
        found = self.options.get("redis_message_id")
        return found if isinstance(found, str) else ""

    @property
    def lineage(self) -> Lineage | None:
        return Lineage.of_message(self.options.get("redrive"), self.id)

    @property
    def retries(self) -> int:
        """Retries before the last attempt: Dramatiq does not store the options of the attempt that ends the job."""
        count = untrusted.number(self.options.get("retries"))
        return max(0, int(count)) if count is not None and count < 10**6 else 0

    @property
    def failed_ms(self) -> float | None:
        """Time of the failure before the last attempt; without one, the time at which the message was created."""
        return untrusted.number(self.options.get("requeue_timestamp")) or untrusted.number(
            self.fields.get("message_timestamp")
        )

    @property
    def expires_at(self) -> datetime | None:
        """End of the `max_age` in the message; None without one."""
        made, most = (
            untrusted.number(one) for one in (self.fields.get("message_timestamp"), self.options.get("max_age"))
        )
        try:
            return datetime.fromtimestamp((made + most) / 1000, UTC) if made and most else None
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        args, kwargs = self.fields.get("args"), self.fields.get("kwargs")
        return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None

    def _text(self, field: str) -> str:
        found = self.fields.get(field)
        return found if isinstance(found, str) else ""


def read_known(raw: bytes, *, is_on_redis: bool = True) -> Message:
    """Parse a message that can be sent. Raises SourceRefused for any other."""
    message = Message.read(raw)
    if message.is_foreign:
        raise SourceRefused(_NOT_JSON)
    if not (message.is_known if is_on_redis else message.has_known_fields) or message.arguments is None:
        raise SourceRefused(_UNKNOWN)
    if not message.id:
        raise SourceRefused(
            "The id of this message is too long, or contains characters that are not text. Nothing was sent."
        )
    return message


def read_arguments(raw: bytes, *, is_on_redis: bool = True) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a message that can be sent, with all digits of their numbers. Raises SourceRefused."""
    read_known(raw, is_on_redis=is_on_redis)
    parts = _parts(raw.decode("utf-8", "surrogateescape"))
    try:
        return json.loads(parts["args"]), json.loads(parts["kwargs"])
    except (ValueError, RecursionError) as error:
        raise SourceRefused("The arguments of this message cannot be read. Nothing was sent.") from error


def rewritten(
    raw: bytes,
    *,
    queue: str,
    message_id: str,
    redis_id: str | None,
    lineage: Mapping[str, Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    retries: int | None,
) -> bytes:
    """Return the message as Dramatiq would enqueue it for a new run. `redis_id`: None on RabbitMQ. Raises SourceRefused."""
    fields = _parts(raw.decode("utf-8", "surrogateescape"))
    options = _parts(fields["options"])
    for name in _OF_A_RUN if retries is not None else ("eta",):
        options.pop(name, None)
    if retries:
        options["retries"] = str(retries)
    options.pop("redis_message_id", None)
    options |= {"redis_message_id": write(redis_id)} if redis_id is not None else {}
    options["redrive"] = write(lineage)
    fields |= {"queue_name": write(queue), "message_id": write(message_id), "options": join_members(options)}
    if args is not None:
        fields["args"] = write(args)
    if kwargs is not None:
        fields["kwargs"] = write(kwargs)
    return join_members(fields).encode("utf-8", "surrogateescape")


def _parts(text: str) -> dict[str, str]:
    """Return the members of an object, each as its JSON text. Raises SourceRefused."""
    try:
        found = members(text)
    except ValueError as error:
        raise SourceRefused(_NOT_JSON) from error
    if found is None or len(found) == MOST:
        raise SourceRefused(_UNKNOWN)
    return found
