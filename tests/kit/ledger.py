"""The ledger of the jobs that run in workers: read, and written by a ledger without a worker around it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import redis
from celery.worker.request import Request
from kombu import Connection
from kombu.transport.virtual import Message

from jobs_admin import ingest
from jobs_admin.core import keys
from jobs_admin.ingest.lost_jobs import CONFIRM_SILENCE_S, Reaper
from jobs_admin.worker.at_start import AtStart
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.ledger import Ledger
from jobs_admin.worker.policies import Policies
from jobs_admin.worker.report import Origin
from jobs_admin.worker.store import STREAM_BYTES
from tests.kit.celery import make_app
from tests.kit.patience import patient
from tests.kit.policies import policy

KEEPING = policy("keeping", "*", max_attempts=1, file_lost=True)


def of_store(engine) -> redis.Redis:
    return redis.Redis.from_url(engine.url, socket_timeout=30)


def list_stored(client) -> list[str]:
    """The names of all jobs that workers keep just now."""
    found = [client.hkeys(key) for key in client.scan_iter("redrive:{shop}:kept:*", _type="hash")]
    return sorted(name.decode() for names in found for name in names)


def fall_silent(client) -> None:
    """As if all workers had given their last sign 20 s earlier."""
    for boot in client.zrange(keys.boots("shop"), 0, -1):
        client.zincrby(keys.boots("shop"), -20_000, boot)


def reap(client, watches: int = 1) -> None:
    """Run the watches that find silent workers, all at once."""
    fall_silent(client)
    reapers = [Reaper() for _ in range(watches)]
    for one in reapers:
        one.check(client, 0.0)
    threads = [threading.Thread(target=one.check, args=(client, CONFIRM_SILENCE_S)) for one in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def ledger(url: str, at: Path, calls: Calls | None = None, stream_bytes: int = STREAM_BYTES) -> Ledger:
    """The main process' part alone, on a store that answers however busy the machine is."""
    policies = Policies("shop", "enforce", at)
    policies._take({"keeping": {"name": "keeping", "version": 1, "policy": KEEPING}})
    calls = calls or patient(url)
    AtStart(calls, "shop", "b1", "w@here", "here").beat()
    return Ledger(calls, policies.in_force(), Origin("shop", "", ()), "b1", stream_bytes)


def fetched(kind: type = Request, acked: Any = None, **kwargs: Any) -> Any:
    """A job as a worker's main process has it. `acked()` is called where Celery acknowledges its message."""
    app = make_app("memory://")
    app.send_task("ok", kwargs=kwargs, queue="kept")
    channel = Connection("memory://").channel()
    message = Message(channel._get("kept"), channel=channel)
    on_ack = {"on_ack": lambda *errors: acked()} if acked else {}
    return kind(message, app=app, hostname="w@here", task=app.tasks["ok"], **on_ack)


def file_all() -> None:
    rounds = 0
    while ingest.step("test", wait_s=0.01) or rounds < 2:
        rounds += 1


def elements(worker) -> dict[str, bytes]:
    """The messages in the broker, byte for byte, by job."""
    with redis.Redis.from_url(worker.broker_url) as client:
        return {json.loads(one)["headers"]["id"]: one for one in client.lrange("celery", 0, -1)}
