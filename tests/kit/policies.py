"""Policies for tests of real workers: put into the store as the desk puts them there, and what jobs did under them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import redis

from jobs_admin.core import keys
from tests.kit.celery import RealWorker

_numbers = itertools.count(1)


def published(url: str, *policies: dict[str, Any]) -> int:
    """These are in force, and no others. Each is a document with its name. Answers the version that they have."""
    version = next(_numbers)
    texts = {one["name"]: json.dumps({"name": one["name"], "version": version, "policy": one}) for one in policies}
    with redis.Redis.from_url(url) as client, client.pipeline() as pipe:
        pipe.delete(keys.policies())
        if texts:
            pipe.hset(keys.policies(), mapping=texts)
        pipe.set(keys.policies_version(), version)
        pipe.execute()
    return version


def policy(name: str, task: str = "try", **fields: Any) -> dict[str, Any]:
    """Enforced, without jitter, 50 ms between attempts; `fields` say otherwise."""
    usual = {"mode": "enforce", "max_attempts": 3, "backoff": {"kind": "fixed", "first_delay_s": 0.05}}
    return {"name": name, "match": {"task": task}, **usual, **fields}


def running(url: str, source: str = "shop") -> list[dict[str, Any]]:
    """The heartbeats of a source's workers."""
    with redis.Redis.from_url(url, socket_timeout=30) as client:
        return [
            json.loads(heartbeat)
            for heartbeat in (*client.hvals(keys.workers(source)), *client.hvals(keys.shared("workers")))
        ]


def obeyed(worker: RealWorker, url: str, *policies: dict[str, Any]) -> int:
    """Publish, and wait until all workers say that they run exactly these. Answers the version that they have."""
    version = published(url, *policies)
    names = {one["name"]: version for one in policies}
    worker.wait(
        lambda: (heartbeats := running(url)) and all(one["policies"] == names for one in heartbeats),
        what=f"{names} in force",
    )
    return version


def attempts(worker: RealWorker, job: str) -> list[tuple[int, float]]:
    """(attempt, when it began), in the order in which they began."""
    lines = [line.split() for line in worker.marks("attempts")]
    return [(int(n), float(at)) for id_, n, at in lines if id_ == job]


def gaps(worker: RealWorker, job: str) -> list[float]:
    times = [at for _, at in attempts(worker, job)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


EMAILS = {"match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4, "cap_s": 60}
