"""Reports of Sidekiq's dead jobs and retries. No content of a job raises an error here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from jobs_admin.core.arguments import value_at
from jobs_admin.core.display import Shown, shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import Envelope
from jobs_admin.core.redaction import named_values, without_values
from jobs_admin.sources.sidekiq.message import LATEST_S, Job
from jobs_admin.sources.sidekiq.wire import RAW_BYTES, StoredJob

NO_ERROR = "Sidekiq stores no error of this job: someone moved it to the dead set before it failed."
TOO_LARGE = f"This job is larger than {RAW_BYTES // 10**6} MB. Only its beginning was read."
_ELSEWHERE = frozenset(("args", "error_class", "error_message", "error_backtrace", "jid"))  # shown there
_RAW_HEAD = 64 * 1024


def build_report(
    source: str, stored: StoredJob, kind: str, died_before: float | None, tenant_paths: Sequence[str] = ()
) -> Envelope:
    """Build the report of a job that died or waits for a retry. `died_before`: when someone brought it back, the time
    of the death that this ended.
    """
    job = stored.job
    args = _safely(job.arguments) if job.arguments is not None else Shown("", 0)
    error, text = job.error
    if not stored.is_complete:
        text = TOO_LARGE
    elif not job.fields:
        text = "This entry is not a job of Sidekiq's."
    elif not error and not text:
        text = NO_ERROR
    secrets = named_values(job.fields.get("args"))
    (text, in_text), (trace, in_trace) = (without_values(one, secrets) for one in (text, job.trace))
    shown, traced, headers = shown_message(text), shown_trace(trace), _safely(headers_of(job))
    scored = stored.score if 0 < stored.score < LATEST_S else None
    # By the worker's clock, which may be ahead: the desk stores no future time.
    at = min((scored if kind == "exception" else job.failed_at) or time.time(), time.time())
    is_complete = stored.is_complete
    return Envelope(
        source=source,
        queue=job.queue,
        task=job.task[:500],
        job_id=job.id,
        kind=kind,
        attempt=job.attempt,
        at=at,
        error_type=error[:500],
        message=shown.text,
        max_attempts=job.max_attempts,
        due_at=scored if kind == "retry" else None,
        tenant=_find_tenant(job, tenant_paths),
        args=args.text,
        kwargs="{}" if args.text else "",
        headers=headers.text,
        redacted=in_text + in_trace + sum(one.redacted for one in (args, shown, traced, headers)),
        raw=job.raw if is_complete else job.raw[:_RAW_HEAD],
        raw_size=stored.size,
        raw_sha256=hashlib.sha256(job.raw).hexdigest() if is_complete else "",
        trace=traced.text,
        made_at=job.made_at if died_before is None else died_before,
        lineage=job.lineage(died_before),
    )


def headers_of(job: Job) -> dict[str, Any]:
    """Return what a job has beside its arguments and error: times, tags, its batch."""
    return {name: value for name, value in job.fields.items() if name not in _ELSEWHERE}


def _safely(value: object) -> Shown:
    try:
        return shown_json(value)
    except (ValueError, TypeError, RecursionError):
        return Shown("", 0)


def _find_tenant(job: Job, paths: Sequence[str]) -> str:
    for path in paths:
        found = value_at(path, job.arguments or [], {})
        if (isinstance(found, int) and not isinstance(found, bool)) or (isinstance(found, str) and found):
            return shown_message(str(found)[:200]).text
    return ""
