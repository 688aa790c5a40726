"""Trace of a job: the ids that OpenTelemetry and Sentry send in a message's headers.

`traceparent` (W3C Trace Context) is read first, then `sentry-trace`. They are headers of their own, or in Celery's
custom headers, in BullMQ's telemetry option (`opts.tm`, JSON text), or where sentry-sdk puts them for RQ (`meta`) and
Dramatiq. Anything malformed is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TRACEPARENT, SENTRY_TRACE = "traceparent", "sentry-trace"
# Later versions than 00 may append fields; ff is no version.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?"
)
_SENTRY_TRACE = re.compile(r"(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})(?:-[01])?")
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    trace_id: str  # 32 hex digits
    span_id: str  # of the span that sent the job: 16 hex digits


def find_trace(headers: str) -> TraceContext | None:
    """Return the trace in a failure's headers (JSON text); None if there is none."""
    return next(iter(find_traces(headers).values()), None)


def find_traces(headers: str) -> dict[str, TraceContext]:
    """Return header -> trace, of TRACEPARENT first, then of SENTRY_TRACE."""
    if TRACEPARENT not in headers and SENTRY_TRACE not in headers:
        return {}
    places = list(_places(_object(headers)))
    found = {}
    for name in (TRACEPARENT, SENTRY_TRACE):
        traces = (_parse(name, place.get(name)) for place in places)
        if (trace := next(filter(None, traces), None)) is not None:
            found[name] = trace
    return found


def event_id(value: object) -> str:
    """Return the id of a Sentry event, 32 hex digits; "" for any other value."""
    return value if isinstance(value, str) and _ID.fullmatch(value) else ""


def _places(headers: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield headers
    meta = headers.get("meta")
    of_rq = meta.get("_sentry_trace_headers") if isinstance(meta, dict) else None
    for place in (headers.get("headers"), headers.get("_sentry_headers"), of_rq):
        if isinstance(place, dict):
            yield place
    if isinstance(options := headers.get("opts"), dict) and isinstance(telemetry := options.get("tm"), str):
        yield _object(telemetry)


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse(name: str, value: object) -> TraceContext | None:
    if not isinstance(value, str) or len(value) > 512:
        return None
    found = (_TRACEPARENT if name == TRACEPARENT else _SENTRY_TRACE).fullmatch(value)
    if found is None or (name == TRACEPARENT and found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id = found["trace"], found["span"]
    return TraceContext(trace_id, span_id) if trace_id.strip("0") and span_id.strip("0") else None
