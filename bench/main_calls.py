"""Costs of each call that a worker's main process makes: reports, heartbeat, switch, promoting, the mark of a replayed job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import redis

from bench.blocking import failing, guard_on
from jobs_admin.core import envelope, keys
from jobs_admin.worker import report
from jobs_admin.worker.at_start import AtStart
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.configuration import ConfigurationReport
from jobs_admin.worker.delays import Delays, Head
from jobs_admin.worker.heartbeat import Heartbeat, Identity, known_tasks
from jobs_admin.worker.once import Once
from jobs_admin.worker.outcome import outcome_of

_MOST = 4_000  # of what takes memory in the store: reports, jobs that wait


class Timing(Protocol):
    client: redis.Redis
    count: int

    def timed(
        self, calls: dict[str, Any], *, is_empty: bool = True, server: tuple[str, ...] = ...
    ) -> dict[str, Any]: ...

    def empty(self) -> None: ...

    def less(self, most: int) -> Timing: ...


def measured(bench: Timing, url: str, folder: Path) -> dict[str, Any]:
    few = bench.less(_MOST)
    return {**_reports(few, url, folder), **_beats(bench, url, folder), **_first(few, url, folder), **_promoted(few)}


def _reports(bench: Timing, url: str, folder: Path) -> dict[str, Any]:
    guard = guard_on(url, folder)
    (request,), error = failing(guard, 1)
    entry = envelope.encode(report.failure(request, outcome_of(request, error), guard.origin, 0.1))  # type: ignore[arg-type]
    size = sum(map(len, entry.values())) / 1000
    found = {
        **bench.timed({f"report of {size:.1f} kB, answered (late ack)": lambda _: guard.store.write(entry)}),
        **bench.timed({f"report of {size:.1f} kB, sent (early ack)": lambda _: guard.store.write(entry, may_lag=True)}),
    }
    guard.store.close()
    assert guard.store.spool.waiting == guard.store.dropped == 0
    return found


def _beats(bench: Timing, url: str, folder: Path) -> dict[str, Any]:
    guard = guard_on(url, folder)
    at_start = AtStart(Calls(url, "the bench"), "shop", "boot", "w@here", "here")
    identity = Identity(
        name="w@here",
        release="2026.11",
        celery="5.7",
        guard="0.1",
        pool="prefork",
        broker="redis",
        concurrency=8,
        queues=lambda: ["emails", "webhooks"],
        late_ack=frozenset({True}),
        tasks=known_tasks([f"shop.task_{n}" for n in range(40)]),
        configuration=lambda: ConfigurationReport("", ""),
        boot="boot",
    )
    heartbeat = Heartbeat(guard, identity, at_start)
    found = {
        **bench.timed({"switch and version of policies: asked": lambda _: heartbeat._obey()}, server=("mget",)),
        **bench.timed({"heartbeat: told": lambda _: heartbeat._beat()}, server=("hset", "expire", "set")),
        **bench.timed({"heartbeat: room of the stream": lambda _: guard.store.measure()}, server=("xlen", "get")),
        **bench.timed({"heartbeat: jobs that are counted": lambda _: at_start.beat()}),
    }
    guard.store.close()
    return found


def _first(bench: Timing, url: str, folder: Path) -> dict[str, Any]:
    """The mark of a job that was replayed onto RabbitMQ."""
    guard = guard_on(url, folder)
    replayed, _ = failing(guard, bench.count + 1)
    for number, request in enumerate(replayed):
        request.request_dict["redrive"] = {
            "queue": "shop", "job_id": "j", "run": 2, "replay": "r", "item": number, "once": True,
        }  # fmt: skip
    once = Once(Calls(url, "the bench", timeout_s=10), "shop", "boot")
    bench.empty()
    # The last of them is the one that opens the connection.
    return bench.timed({"once: is it the first": lambda n: once.is_repeated(replayed[n - 1])}, is_empty=False)


def _promoted(bench: Timing) -> dict[str, Any]:
    """A batch of a hundred, as one call takes them."""
    bench.empty()
    delays = Delays(bench.client, "shop")
    for n in range(bench.count):
        delays.schedule(Head(f"j{n}", 2, "shop.deliver", "webhooks", "hour@1", list="webhooks"), b" " * 1500, -1.0)
    batches = bench.less(bench.count // 100 - 1)
    found = batches.timed({"delays: promote 100 of 1.5 kB": lambda _: delays.promote()}, is_empty=False)
    queued: Any = bench.client.llen("webhooks")
    assert queued >= 100 * batches.count, f"{queued} went on their queue: {bench.count} were due"
    bench.client.delete(keys.due("shop"))
    return found
