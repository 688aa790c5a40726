"""Findings on a Redis of Dramatiq that may lose dead letters, or that Redrive cannot write to."""

from __future__ import annotations

from jobs_admin.core.text import list_some
from jobs_admin.sources.base import Finding
from jobs_admin.sources.dramatiq.wire import Wire
from jobs_admin.sources.one_redis import memory_findings, now_ms, read_only_findings, unread_findings

_SOON_S = 86_400.0
_NAMED = 5  # queues per sentence


def collect_findings(wire: Wire, ttl_s: float) -> list[Finding]:
    return [
        *read_only_findings(wire.why_read_only()),
        *unread_findings(wire.queues(), wire.unread),  # `queues` counts them
        *_dropped_soon(wire, ttl_s),
        *memory_findings(wire.client, "Dramatiq"),
    ]


def _dropped_soon(wire: Wire, ttl_s: float) -> list[Finding]:
    """Return a finding on dead letters whose `dead_message_ttl` ends within a day: Dramatiq then drops them."""
    queues = wire.queues()
    until = now_ms(wire.client) - (ttl_s - min(_SOON_S, ttl_s / 2)) * 1000
    pipe = wire.client.pipeline(transaction=False)
    for queue in queues:
        pipe.zcount(wire.key(queue, ".XQ"), "-inf", until)
    counts = {
        queue: n
        for queue, n in zip(queues, wire.answers(pipe) if queues else [], strict=True)
        if isinstance(n, int) and n
    }
    if not counts:
        return []
    names = list_some([queue[:60] for queue in counts], _NAMED)
    return [
        Finding(
            "dead-letters-dropped-soon",
            "info",
            f"Dead letters that Dramatiq drops within a day (dead_message_ttl): {sum(counts.values())}, of {names}. "
            "Redrive cannot replay them after that.",
            "Replay them before then, or set a longer dead_message_ttl for RedisBroker.",
        )
    ]
