"""Findings on an RQ Redis and workers that endanger jobs or prevent Redrive from writing."""

from __future__ import annotations

from jobs_admin.core.text import list_some
from jobs_admin.sources.base import Finding
from jobs_admin.sources.one_redis import memory_findings, now_ms, read_only_findings, unread_findings
from jobs_admin.sources.rq.wire import Wire

_OVERDUE_S = 120.0  # a scheduler takes over a dead one's queues within two minutes
_NAMED = 5  # queues per sentence


def collect_findings(wire: Wire) -> list[Finding]:
    return [
        *read_only_findings(wire.why_read_only()),
        *unread_findings(wire.queues(), wire.unread),  # `queues` counts them
        *_without_scheduler(wire),
        *memory_findings(wire.client, "RQ"),
    ]


def _without_scheduler(wire: Wire) -> list[Finding]:
    """Return a finding on retries with an interval, which need a scheduler: only a worker started with it has one."""
    queues = wire.queues()
    long_ago = now_ms(wire.client) / 1000 - _OVERDUE_S
    pipe = wire.client.pipeline(transaction=False)
    for queue in queues:
        pipe.zcount(wire.key("scheduled", queue), "-inf", long_ago)
        pipe.exists(wire.key("scheduler-lock", queue))
    answers = wire.answers(pipe) if queues else []
    overdue = [
        queue
        for queue, late, is_locked in zip(queues, answers[::2], answers[1::2], strict=True)
        if isinstance(late, int) and late and not is_locked
    ]
    if not overdue:
        return []
    names = list_some([queue[:60] for queue in overdue], _NAMED)
    return [
        Finding(
            "rq-no-scheduler",
            "warning",
            f"Retries and scheduled jobs of {names} are overdue, and no scheduler serves these queues.",
            "Start a worker with its scheduler: rq worker --with-scheduler (django-rq: rqworker --with-scheduler).",
        )
    ]
