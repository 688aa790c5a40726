"""Findings on a Redis of Sidekiq that may lose dead jobs, or that is not known."""

from __future__ import annotations

from jobs_admin.sources.base import Finding
from jobs_admin.sources.one_redis import memory_findings, now_ms, read_only_findings, unread_findings
from jobs_admin.sources.sidekiq.wire import Wire

_NEAR = 0.8  # of `dead_max_jobs`
_SOON_S = 7 * 86_400.0


def collect_findings(wire: Wire) -> list[Finding]:
    return [
        *read_only_findings(wire.why_read_only()),
        # `queues` counts them. Dead jobs and retries are those of all queues.
        *unread_findings(wire.queues(), wire.unread, "waiting jobs are not counted"),
        *_dropped_soon(wire),
        *memory_findings(wire.client, "Sidekiq"),
    ]


def _dropped_soon(wire: Wire) -> list[Finding]:
    """Return findings on dead jobs that Sidekiq drops soon: those above `dead_max_jobs`, and the oldest."""
    key, found = wire.key("dead"), []
    old = now_ms(wire.client) / 1000 - (wire.dead_timeout_s - min(_SOON_S, wire.dead_timeout_s / 2))
    pipe = wire.client.pipeline(transaction=False)
    pipe.zcard(key)
    pipe.zcount(key, "-inf", old)
    size, expiring = (one if isinstance(one, int) else 0 for one in wire.answers(pipe))
    if size >= wire.dead_max_jobs * _NEAR:
        found.append(
            Finding(
                "dead-set-full",
                "warning",
                f"The dead set has {size:,} jobs. Sidekiq drops the oldest ones above {wire.dead_max_jobs:,} "
                "(dead_max_jobs).",
                "Replay or discard dead jobs, or set a higher dead_max_jobs there and in this source.",
            )
        )
    if expiring:
        found.append(
            Finding(
                "dead-jobs-dropped-soon",
                "info",
                f"Dead jobs that Sidekiq drops within a week (dead_timeout_in_seconds): {expiring:,}.",
                "Replay them before then, or set a longer dead_timeout_in_seconds there and in this source.",
            )
        )
    return found
