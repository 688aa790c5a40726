"""Jobs of made-up Celery systems: their messages, their reports, and the worker that runs what the desk sends again."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 88, in {task}
    partner.post(order)
shop.{error}: order 17 refused
"""


def message(job_id: str, queue: str, task: str, args: list[Any]) -> bytes:
    """A message as Celery writes it."""
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    headers = {
        "lang": "py", "task": task, "id": job_id, "shadow": None, "eta": None, "expires": None, "group": None,
        "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": job_id, "parent_id": None,
        "argsrepr": repr(args), "kwargsrepr": "{}", "origin": "gen1@desk", "ignore_result": None,
        "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
    }  # fmt: skip
    properties = {
        "correlation_id": job_id, "reply_to": "7066f683-2129-3716-b85f-2be07f56732f", "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue}, "priority": 0, "body_encoding": "base64",
        "delivery_tag": f"t-{job_id}",
    }  # fmt: skip
    body = base64.b64encode(json.dumps([args, {}, embed]).encode()).decode()
    complete = {
        "body": body, "content-encoding": "utf-8", "content-type": "application/json", "headers": headers,
        "properties": properties,
    }  # fmt: skip
    return json.dumps(complete).encode()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A job that a worker has taken from its queue."""

    source: str
    queue: str
    raw: bytes
    job_id: str
    task: str
    lineage: dict[str, Any] | None
    args: list[Any]
    kwargs: dict[str, Any]

    @property
    def item(self) -> int | None:
        return None if self.lineage is None else self.lineage["item"]


def fetched(source: str, queue: str, raw: bytes) -> Fetched:
    data = json.loads(raw)
    headers = data["headers"]
    args, kwargs, _ = json.loads(base64.b64decode(data["body"]))
    return Fetched(source, queue, raw, headers["id"], headers["task"], headers.get("redrive"), args, kwargs)


def report(
    source: str,
    queue: str,
    job_id: str,
    *,
    at: float,
    task: str = "charge",
    kind: str = "exception",
    attempt: int = 1,
    error: str = "Refused",
    raw: bytes | None = None,
    lineage: dict[str, Any] | None = None,
    **more: Any,
) -> dict[bytes, bytes]:
    """A worker's report of one attempt, as it stands in the stream."""
    from jobs_admin.core.envelope import Envelope, Lineage, encode

    values: dict[str, Any] = {
        "source": source, "queue": queue, "job_id": job_id, "task": task, "kind": kind, "attempt": attempt, "at": at,
        "release": "r1", "lineage": Lineage.from_header(lineage),
    }  # fmt: skip
    if kind != "success":
        values |= {
            "error_type": f"shop.{error}", "message": "order 17 refused",
            "trace": TRACE.format(task=task, error=error), "raw": raw, "raw_size": len(raw or b""),
        }  # fmt: skip
    if kind == "retry":
        values["due_at"] = at + 60
    return encode(Envelope(**values | more))
