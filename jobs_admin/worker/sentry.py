"""Id of the Sentry event of a failed job, from the sentry-sdk that the user's own code runs in the child process.

Nothing here imports sentry-sdk, and no error in these functions reaches the job. Other events may follow that of the
error (log records, check-ins), so the id is noted on the exception itself, and counts if the SDK sent that event.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from jobs_admin.core.trace_context import event_id

_EVENT = "redrive_event"  # attribute of an exception, then of its error info, which Celery sends to the main process


class _Job(threading.local):
    def __init__(self) -> None:
        self.before = ""  # the last event before this thread's job: the SDK's scope of a job begins as a copy
        self.sent: deque[str] = deque(maxlen=32)  # events that the SDK sent during the job


_job = _Job()


def begin_job(**_: Any) -> None:
    """Forget the events of the job before. Receiver of `task_prerun`."""
    if "sentry_sdk" in sys.modules:
        with suppress(Exception):  # without the processor no event is reported
            _job.sent.clear()
            _job.before = _last_event()
            scope: Any = sys.modules["sentry_sdk.scope"]
            if _note_event not in scope.global_event_processors:
                scope.add_global_event_processor(_note_event)


def keep_event(exception: Any = None, einfo: Any = None, **_: Any) -> None:
    """Attach the exception's event to its error info. Receiver of `task_failure`, before the SDK's own."""
    if "sentry_sdk" in sys.modules:
        with suppress(Exception):  # then the failure is reported without its event
            _note_sent()
            event = vars(exception).get(_EVENT)
            if event in _job.sent:
                setattr(einfo, _EVENT, event)


def event_of(exc_info: Any) -> str:
    """Return the event of a failed job; "" if none is known. In the main process."""
    return event_id(getattr(exc_info, _EVENT, ""))


def _note_event(event: Any, hint: Any) -> Any:
    """Note the event on its exception. The SDK's sampling and `before_send` follow, and may drop it."""
    with suppress(Exception):
        _note_sent()
        facts = vars(hint["exc_info"][1])
        if facts.get(_EVENT) not in _job.sent:
            facts[_EVENT] = event_id(event["event_id"])
    return event


def _note_sent() -> None:
    if (sent := _last_event()) and sent != _job.before:
        _job.sent.append(sent)


def _last_event() -> str:
    return event_id(sys.modules["sentry_sdk"].last_event_id())
