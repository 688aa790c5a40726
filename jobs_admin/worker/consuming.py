"""Reports of messages that never become a job: unknown task, unaccepted format or content, garbage.

Celery logs and drops such a message; some end the worker. The hooks of this worker's consumer are wrapped, so a custom
consumer class still works: the message is reported first, then Celery's own hook runs.
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

# attribute of a message that was reported: Celery may fail on a message that it has just dropped
_REPORTED = "redrive_told"
_MOST_SHOWN = 200
# Errors from reading a value of an unexpected type. Errors of connections, pools and memory are not among them.
_OF_A_SHAPE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)

logger = logging.getLogger("redrive.worker")


class Consuming:
    """Wrapper of one worker's consumer. Never raises into it."""

    def __init__(self, guard: Guard, consumer: Any, worker: str) -> None:
        self._guard = guard
        self._consumer = consumer
        self._worker = worker

    def wrap(self) -> None:
        """Wrap the hooks. Call it before the consumer connects: it passes the hooks on then and does not read them
        again.
        """
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

    # -- hooks that Celery calls
    # -----------------------------------------------------------------------------------------

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

    # -- errors that would end the worker
    # --------------------------------------------------------------------------------

    def _surviving(self, on_task_received: Any) -> Any:
        """Wrap Celery's message handler: a message that breaks it by its own fault is reported and rejected."""

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
        """Report an element of a Redis list that is no message and is no longer in a queue."""
        if self._guard.is_silenced:
            return False
        # A body in a broken encoding, or no JSON. Other elements belong to another program.
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
    """Return what kombu requires of an element and this element lacks."""
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


# Checks of types that Celery takes for granted in a message, run only after Celery has failed on one.
# Celery validates what its own producers can get wrong and trusts the rest: a header of another type, or a body that is
# not a list of three, ends the worker with any error. Nothing is decoded here except bodies declared as JSON.


def fault(message: Any, error: Exception) -> str:
    """Return what is wrong with the message, as a sentence; "" if the message did not cause the error."""
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
    """Return what is wrong with a request's time limits.

    `is_timed`: the pool calculates with them, and a string would end it.
    """
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
            return message.decode()  # an empty cached body is not reused
        except Exception:
            return None
    return found
