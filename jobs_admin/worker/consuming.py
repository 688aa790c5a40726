"""Messages that never become a job: of an unknown task, in a form or a content that is not accepted, garbage.

Celery logs such a message and forgets it; some of them end the worker. Its hooks are wrapped on the consumer of this
very worker, so that a consumer class of the user's own still runs: the message is reported first, then Celery goes on
as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kombu.exceptions import ContentDisallowed

from jobs_admin.core.envelope import Envelope
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.outcome import qualified
from jobs_admin.worker.unread import (
    UNKNOWN_FORMAT,
    element_envelope,
    message_envelope,
    queue_of,
    task_of,
    words_of,
)

_REPORTED = "redrive_told"  # on a message: Celery may break on one that it has just been asked to forget
_MOST_SHOWN = 200
# What comes of reading a value of another shape. Not of a connection, a pool, or a lack of memory.
_OF_A_SHAPE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)

logger = logging.getLogger("redrive.worker")


class Consuming:
    """In front of one worker's consumer. Nothing here raises into it."""

    def __init__(self, guard: Guard, consumer: Any, worker: str) -> None:
        self._guard = guard
        self._consumer = consumer
        self._worker = worker

    def wrap(self) -> None:
        """Before the consumer connects: it hands these on then, and looks at them no more."""
        for name, report in (
            ("on_unknown_task", self._unknown_task),
            ("on_invalid_task", self._invalid),
            ("on_unknown_message", self._unknown_message),
            ("on_decode_error", self._undecodable),
        ):
            setattr(self._consumer, name, _first(report, getattr(self._consumer, name)))
        create = self._consumer.create_task_handler

        def created(*args: Any, **options: Any) -> Any:
            return self._surviving(create(*args, **options))

        self._consumer.create_task_handler = created

    # -- as Celery calls them -----------------------------------------------------------------------------------------

    def _unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        def words() -> tuple[str, str]:
            task = task_of(message)
            text = f"No task of this worker is called {task}." if task else "The name of its task is no text."
            return "celery.exceptions.NotRegistered", text

        self._report(message, "unknown_task", words)

    def _invalid(self, body: Any, message: Any, exc: Any) -> None:
        kind = "bad_content" if isinstance(exc, ContentDisallowed) else "unknown_format"
        self._report(message, kind, lambda: words_of(exc))

    def _unknown_message(self, body: Any, message: Any) -> None:
        def words() -> tuple[str, str]:
            return UNKNOWN_FORMAT, f"It names no task, as Celery's messages do ({_content(message)})."

        self._report(message, "unknown_format", words)

    def _undecodable(self, message: Any, exc: Any) -> None:
        kind = "bad_content" if isinstance(exc, ContentDisallowed) else "undecodable"
        self._report(message, kind, lambda: words_of(exc))

    def _report(self, message: Any, kind: str, words: Callable[[], tuple[str, str]]) -> None:
        if getattr(message, _REPORTED, False):
            return
        setattr(message, _REPORTED, True)
        origin = self._guard.origin

        def build_report() -> Envelope:
            error_type, text = words()
            return message_envelope(message, kind, error_type, text, origin, self._worker)

        self._guard.message_ended(lambda: queue_of(message, origin), build_report)

    # -- what would end the worker ------------------------------------------------------------------------------------

    def _surviving(self, on_task_received: Any) -> Any:
        """Celery's handler of messages; one that it breaks on, by the message's own fault, ends there."""

        def on_message(message: Any) -> Any:
            try:
                return on_task_received(message)
            except Exception as error:
                if not self._ends_here(message, error):
                    raise

        return on_message

    def _ends_here(self, message: Any, error: Exception) -> bool:
        if self._guard.is_silenced:
            return False
        why = fault(message, error)
        if not why or message.acknowledged:
            return False
        self._report(message, "unknown_format", lambda: (qualified(type(error)), why))
        message.reject_log_error(logger, self._consumer.connection_errors)
        return True

    def element_refused(self, element: bytes, payload: Any, queue: str, error: Exception) -> bool:
        """Report an element of a list in Redis that is no message, and that is in no queue any more."""
        if self._guard.is_silenced:
            return False
        # A body in a broken encoding, or no JSON at all: else it is another program's.
        kind = "undecodable" if isinstance(error, ValueError | RecursionError) else "unknown_format"

        def build_report() -> Envelope:
            error_type, words = words_of(error)
            if kind == "unknown_format":
                error_type, words = UNKNOWN_FORMAT, _lacking(payload)
            return element_envelope(element, payload, queue, kind, error_type, words, self._guard.origin, self._worker)

        self._guard.message_ended(lambda: queue, build_report)
        return True


def _first(first: Any, then: Any) -> Any:
    def call_both(*args: Any, **options: Any) -> Any:
        first(*args, **options)
        return then(*args, **options)

    return call_both


def _content(message: Any) -> str:
    return f"{message.content_type or 'of no content type'}"[:_MOST_SHOWN]


def _lacking(payload: Any) -> str:
    """Return what kombu needs of an element and this one does not have."""
    if not isinstance(payload, dict):
        return "It is JSON, but no object."
    properties = payload.get("properties")
    if not isinstance(properties, dict):
        return "It has no properties."
    if not isinstance(payload.get("headers") or {}, dict):
        return "Its headers are no object."
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict) or not {"exchange", "routing_key"} <= delivery.keys():
        return "Its properties do not say where it was delivered to."
    if not isinstance(properties.get("delivery_tag"), str | int):
        return "Its properties hold no delivery tag."
    return "Its body cannot be taken out of its encoding."


# The check of the shape that Celery takes for granted in a message. Made only for one that Celery has just broken on.
# Celery checks what a producer of its own can get wrong, and believes the rest: a header of another type, or a body
# that is no list of three, ends the worker by whatever error comes of it. Nothing is decoded here, but JSON that says
# it is such.


def fault(message: Any, error: Exception) -> str:
    """Return what is wrong with it, as a sentence; "" where the error cannot be laid to the message."""
    if not isinstance(error, _OF_A_SHAPE) or isinstance(error, OSError):
        return ""
    headers, body = message.headers, _decoded(message)
    if not isinstance(headers, Mapping):
        return "Its headers are no object."
    if "task" not in headers:
        return _of_fields(body if isinstance(body, Mapping) else {})
    if isinstance(body, Mapping) and "args" in body:
        return _of_fields({**body, **headers})
    if not (isinstance(body, list | tuple) and len(body) == 3):
        return "Its body is not the list of arguments, keyword arguments and what follows that Celery writes."
    return _of_fields(headers)


def limits_fault(limits: Any, is_timed: bool) -> str:
    """The same of a request's time limits; `is_timed`: whether its pool reckons with them, and would end by a text."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return "Its time limits are no pair."
    if is_timed and any(isinstance(one, str | bytes | list | dict) for one in limits):
        return "Its time limits are no numbers."
    return ""


def _of_fields(fields: Mapping[str, Any]) -> str:
    if not isinstance(fields.get("task"), str):
        return "The name of its task is no text."
    if not isinstance(fields.get("id"), str):
        return "It has no id that is a text."
    for name in ("eta", "expires"):
        if not isinstance(fields.get(name), str | None):
            return f"Its {name} is no text."
    for name, kind in (("stamped_headers", list), ("stamps", dict)):
        if not isinstance(fields.get(name), kind | None):
            return f"Its {name} have another type than Celery's."
    return ""


def _decoded(message: Any) -> Any:
    found = getattr(message, "_decoded_cache", None)
    if not found and message.content_type == "application/json":
        try:
            return message.decode()  # an empty one is not remembered
        except Exception:
            return None
    return found
