"""Links of a failure to the tools that a team already has: its trace, its logs, its Sentry event.

Links are built from settings (`REDRIVE_TRACE_URL` …) and the failure's own facts; nothing is requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta

from jobs_admin import config
from jobs_admin.core.trace_context import SENTRY_TRACE, TraceContext
from jobs_admin.core.url_template import fill
from jobs_admin.models import Failure

AROUND = timedelta(minutes=15)  # of the failure: from and to


@dataclass(frozen=True, slots=True)
class Link:
    name: str  # Trace, Logs, Sentry
    url: str


def links_of(failure: Failure, traces: Mapping[str, TraceContext]) -> list[Link]:
    """Return the links whose template is set and has a value for each field. `traces`: of `find_traces`."""
    trace, in_sentry = next(iter(traces.values()), None), traces.get(SENTRY_TRACE)
    start, end = failure.failed_at - AROUND, failure.failed_at + AROUND
    values = {
        "trace_id": trace.trace_id if trace else "",
        "span_id": trace.span_id if trace else "",
        **{name: getattr(failure, name) for name in ("job_id", "task", "queue", "source", "tenant", "worker", "host")},
        "release": failure.release,
        "event_id": failure.event_id or "",
        "from": str(int(start.timestamp() * 1000)),
        "to": str(int(end.timestamp() * 1000)),
        "from_iso": start.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "to_iso": end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    of_sentry = values | {"trace_id": in_sentry.trace_id, "span_id": in_sentry.span_id} if in_sentry else values
    found = [
        Link("Trace", fill(config.setting("TRACE_URL"), values)),
        Link("Logs", fill(config.setting("LOGS_URL"), values)),
        Link("Sentry", fill(config.setting("SENTRY_URL"), of_sentry)),
    ]
    return [link for link in found if link.url]
