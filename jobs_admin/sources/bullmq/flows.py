"""Flows of BullMQ: the children of a job, reported beside it. Its parent is in its own hash (`parent_of`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import redis

from jobs_admin.sources.bullmq.wire import Wire, text

_NAMED = 20  # children of one kind that are named; the others are counted
# Beside a job's hash, in 5.81 and 6.7 (4.18 has the first two): which of its children are where. `failed` are those whose failure the
# parent may ignore, `unsuccessful` those that it may not.
_KINDS = (
    ("dependencies", "wait or run"),
    ("processed", "ran well"),
    ("failed", "failed"),
    ("unsuccessful", "failed for good"),
)


def children_of(wire: Wire, queue: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Children of jobs that have any: their number by kind, and some of them (`queue:id`).

    One round trip for jobs without.
    """
    pipe = wire.client.pipeline(transaction=False)
    for job_id in ids:
        pipe.exists(*(f"{wire.key(queue, job_id)}:{kind}" for kind, _ in _KINDS))
    parents = [
        job_id for job_id, n in zip(ids, pipe.execute(raise_on_error=False), strict=True) if isinstance(n, int) and n
    ]
    return {job_id: children for job_id in parents if (children := _read_children(wire, f"{wire.key(queue, job_id)}:"))}


def _read_children(wire: Wire, base: str) -> dict[str, Any]:
    reads: dict[str, tuple[Any, Any]] = {
        "dependencies": (wire.client.scard, wire.client.sscan),
        "processed": (wire.client.hlen, wire.client.hscan),
        "failed": (wire.client.hlen, wire.client.hscan),
        "unsuccessful": (wire.client.zcard, wire.client.zscan),
    }
    children: dict[str, Any] = {}
    for kind, word in _KINDS:
        count, scan = reads[kind]
        with contextlib.suppress(redis.ResponseError):  # another kind of key by that name
            if n := count(base + kind):
                _, some = scan(base + kind, count=_NAMED)
                keys = [one[0] if isinstance(one, tuple) else one for one in list(some)[:_NAMED]]
                children[word] = {"count": n, "some": [_brief(text(key), wire.prefix) for key in keys]}
    return {"children": children} if children else {}


def _brief(key: str, prefix: str) -> str:
    """`queue:id`, of the key of a job."""
    return key.removeprefix(f"{prefix}:")[:300]
