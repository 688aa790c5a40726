"""Every way in which a job can fail, tried on one broker, one way of acknowledging and one pool: reported, filed, brought back.

The jobs of all rows go to one guarded worker. What lay in the queue is noted before it takes them. Then the cause is fixed,
by a worker of the next deployment, and the desk replays them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from amqp import Message
from celery.utils import uuid
from kombu import Connection, compression

from jobs_admin import ingest, replays
from jobs_admin.core import keys
from jobs_admin.core.envelope import Envelope, decode
from jobs_admin.failures import triage
from jobs_admin.models import Failure, Replay
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.replays.options import Options
from tests.kit.celery import RealWorker

ANN = Viewer("ann", {"*": OPERATOR})
QUEUE, ASIDE = "emails", "aside"
ASIDE_KEY = b'"routing_key": "aside"'
POOLS = ("prefork", "threads", "solo")
_CHILDREN = ("prefork",)  # only there is a process of the job's own, that can end or be ended

# A codec that the producer has and the worker has not, until it is mended.
compression.register(zlib.compress, zlib.decompress, "x-own")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    task: str
    kinds: tuple[str, ...]  # of its reports, in their order; none for what is no failure
    pools: tuple[str, ...] = POOLS
    options: dict[str, Any] = field(default_factory=dict)
    ends_worker: bool = False
    by_broker: bool = False  # under late ack the broker gives it to the next worker by itself


ROWS = (
    Row("exception", "kind.raises", ("exception",)),
    Row("exception, message compressed", "kind.raises", ("exception",), options={"compression": "zlib"}),
    Row("retries exhausted", "kind.exhausts", ("retry", "exception")),
    Row("Reject without requeue", "kind.rejects", ("rejected",)),
    Row("bad arguments", "kind.arguments", ("exception",), options={"args": ["one too many"]}),
    Row("exception that cannot be pickled", "kind.unpicklable", ("exception",)),
    Row("soft time limit", "kind.soft", ("soft_limit",), _CHILDREN),
    Row("hard time limit", "kind.hard", ("hard_limit",), _CHILDREN),
    Row("child killed (SIGKILL)", "kind.killed", ("worker_lost",), _CHILDREN),
    Row("segmentation fault", "kind.segfault", ("worker_lost",), _CHILDREN),
    Row("os._exit", "kind.os_exit", ("worker_lost",), _CHILDREN),
    Row("sys.exit", "kind.sys_exit", ("worker_lost",), _CHILDREN),
    Row("unregistered task", "kind.unknown", ("unknown_task",)),
    Row("undecodable body", "kind.raises", ("undecodable",), options={"compression": "x-own"}),
    Row("content type not accepted", "kind.raises", ("bad_content",), options={"serializer": "pickle"}),
    Row("unknown format", "kind.raises", ("unknown_format",), options={"headers": {"eta": "tomorrow"}}),
    Row("expired", "kind.raises", ("expired",), options={"expires": True}),
    Row("revoked by an operator", "kind.raises", (), options={"revoked": True}),
    Row("MemoryError", "kind.memory", ("memory",), ("prefork",), ends_worker=True, by_broker=True),
)


@dataclass(slots=True)
class Outcome:
    """Outcome of one row."""

    row: Row
    job_id: str
    kinds: tuple[str, ...] = ()
    is_equal: bool = False  # the raw message of its first report, to what lay in the queue
    state: str = ""  # on the desk, before the cause was mended
    rows: int = 0  # of failures
    brought_back_by: str = ""
    ended: str = ""


class OnRedis:
    name = "Redis"

    def __init__(self, url: str) -> None:
        self.url = url
        with redis.Redis.from_url(url) as client:
            client.flushdb()

    def publish(self, worker: RealWorker, jobs: dict[str, Row]) -> dict[str, Any]:
        """Puts the jobs on the queue and starts the worker, if it does not run. Answers each element as it lay there."""
        messages = {}
        with redis.Redis.from_url(self.url) as client:
            for job_id, row in jobs.items():
                options = dict(row.options)
                if options.pop("expires", None):
                    options["expires"] = datetime.now(UTC) - timedelta(seconds=5)
                options.pop("revoked", None)
                worker.app.send_task(row.task, task_id=job_id, queue=ASIDE, **options)
                element = client.rpop(ASIDE).replace(ASIDE_KEY, b'"routing_key": "%s"' % QUEUE.encode())
                client.lpush(QUEUE, element)
                messages[job_id] = element
        if worker.process is None:
            worker.start()
        return messages

    def is_equal(self, raw: bytes, original: bytes) -> bool:
        return raw == original


class OnRabbitMQ:
    name = "RabbitMQ"

    def __init__(self, url: str) -> None:
        self.url = url
        with Connection(url) as connection:
            for queue in (QUEUE, ASIDE):
                found = connection.default_channel
                found.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-max-priority": 10})
                found.queue_purge(queue)

    def publish(self, worker: RealWorker, jobs: dict[str, Row]) -> dict[str, Any]:
        """As above; each message is published to another queue, looked at, and published again as it is."""
        if worker.process is None:
            worker.start()
        messages = {}
        # The one that expires goes first: what expires in a queue RabbitMQ throws away by itself, and nobody is told.
        ordered = sorted(jobs.items(), key=lambda job: "expires" not in job[1].options)
        with Connection(self.url) as connection:
            channel = connection.default_channel
            for job_id, row in ordered:
                options = dict(row.options)
                options.pop("revoked", None)
                if options.pop("expires", None):  # while it waits for its time in the worker, which has it long before
                    now = datetime.now(UTC)
                    options |= {"expires": now + timedelta(seconds=6), "eta": now + timedelta(seconds=6.5)}
                worker.app.send_task(row.task, task_id=job_id, queue=ASIDE, **options)
                while (message := channel.basic_get(ASIDE, no_ack=True)) is None:
                    time.sleep(0.01)  # it is on its way
                messages[job_id] = message
                channel.basic_publish(Message(message.body, **message.properties), "", QUEUE)
        return messages

    def is_equal(self, raw: bytes, original: Any) -> bool:
        data = json.loads(raw)
        properties, body = original.properties, original.body
        return (
            base64.b64decode(data["body"]) == (body.encode() if isinstance(body, str) else bytes(body))
            and data["headers"] == properties["application_headers"]
            and data["content-type"] == properties["content_type"]
            and data["content-encoding"] == properties["content_encoding"]
            and all(
                data["properties"][name] == value for name, value in properties.items() if name != "application_headers"
            )
        )


def reports(store: redis.Redis) -> list[Envelope]:
    """Each once: one whose answer came late is in the stream twice, in the very same words."""
    distinct = {frozenset(fields.items()): fields for _, fields in store.xrange(keys.failures("shop"))}
    return [decode(fields) for fields in distinct.values()]


def tried(broker: OnRedis | OnRabbitMQ, pool: str, late: bool, store_url: str, store: redis.Redis) -> list[Outcome]:
    """All rows of this pool. The desk of this process has the broker as its source `shop`, and an empty database."""
    tries = [Outcome(row, uuid()) for row in ROWS if pool in row.pools]
    worker = RealWorker(broker.url, store_url, pool=pool, concurrency=4, queues=QUEUE, late_ack=late)
    fixed = RealWorker(
        broker.url,
        store_url,
        pool=pool,
        concurrency=4,
        queues=QUEUE,
        late_ack=late,
        environment={"REAL_MENDED": "1", "C_FORCE_ROOT": "1"},
    )
    try:
        _fail(broker, worker, tries, store)
        _file(tries)
        fixed.start()
        _bring_back(fixed, tries)
    finally:
        worker.stop()
        fixed.stop()
    ran = Counter(line.split()[1] for line in fixed.marks("ran"))
    for one in tries:
        failure = Failure.objects.filter(first_job_id=one.job_id).first()
        is_known = failure is not None and ran[failure.job_id] == 1
        one.ended = f"{failure.state}{'' if is_known else ', and did not run'}" if failure else ""
    return tries


def _fail(broker: OnRedis | OnRabbitMQ, worker: RealWorker, tries: list[Outcome], store: redis.Redis) -> None:
    first = {one.job_id: one.row for one in tries if not one.row.ends_worker and "revoked" not in one.row.options}
    originals = broker.publish(worker, first)
    expected = sum(len(row.kinds) for row in first.values())
    worker.wait(lambda: len(reports(store)) >= expected, 90, f"{expected} reports")
    revoked = [one for one in tries if "revoked" in one.row.options]
    worker.app.control.revoke([one.job_id for one in revoked])
    worker.wait(lambda: "Tasks flagged as revoked" in worker.text(), deadline_s=60, what="the operator's act")
    broker.publish(worker, {one.job_id: one.row for one in revoked})
    worker.wait(
        lambda: worker.text().count("Discarding revoked task") >= len(revoked) + 1,
        deadline_s=60,
        what="what was revoked",
    )
    for one in tries:
        if one.row.ends_worker:
            originals |= broker.publish(worker, {one.job_id: one.row})
            worker.wait(lambda: worker.process.poll() is not None, 60, "the end of the worker", may_die=True)
    worker.stop()
    by_job: dict[str, list[Envelope]] = {}
    for report in reports(store):
        by_job.setdefault(report.job_id, []).append(report)
    for one in tries:
        mine = sorted(by_job.get(one.job_id, []), key=lambda report: report.attempt)
        # A report whose answer took more than 100 ms is in the stream and in the spool: the same one, filed once.
        one.kinds = tuple(kind for _, kind in dict.fromkeys((report.attempt, report.kind) for report in mine))
        one.is_equal = bool(mine) and broker.is_equal(mine[0].raw, originals[one.job_id])


def _file(tries: list[Outcome]) -> None:
    _desk_until(lambda: Failure.objects.count() >= sum(bool(one.row.kinds) for one in tries), "the failures")
    for one in tries:
        mine = list(Failure.objects.filter(first_job_id=one.job_id))
        one.rows, one.state = len(mine), mine[0].state if mine else ""


def _bring_back(worker: RealWorker, tries: list[Outcome]) -> None:
    """By one replay, but for what the broker gives to the next worker all automatically."""
    of_itself = [one for one in tries if one.row.by_broker and worker.app.conf.task_acks_late]
    _desk_until(
        lambda: all(Failure.objects.get(first_job_id=one.job_id).state == "recovered" for one in of_itself),
        "what the broker brings back",
    )
    quarantined = list(Failure.objects.filter(state="quarantined").values_list("pk", flat=True))
    if quarantined:
        triage.readmit(ANN, selection=quarantined, reason="mended")
    replay = replays.start(
        ANN, replays.draft(ANN, query="", reason="mended", options=Options(accept=("expired",), without_groups=()))
    )
    _desk_until(lambda: Replay.objects.filter(pk=replay.pk, state="done").exists(), "the replay")
    sent = set(replay.items.filter(state="succeeded").values_list("failure__first_job_id", flat=True))
    for one in tries:
        by_itself = "the broker" if one in of_itself else ""
        one.brought_back_by = "a replay" if one.job_id in sent else by_itself


def _desk_until(reached: Callable[[], bool], what: str, deadline_s: float = 90) -> None:
    ends = time.monotonic() + deadline_s
    while not reached():
        if time.monotonic() > ends:
            with contextlib.suppress(Exception):
                what += f": {list(Failure.objects.values_list('task', 'kind', 'state', 'reason', 'message'))}"
                what += f" {list(Replay.objects.values_list('state', 'held_because'))}"
            raise AssertionError(f"waited {deadline_s} s for {what}")
        ingest.step("test"), replays.send("test"), replays.settle()
