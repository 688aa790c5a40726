"""Jobs on queues that are not called what they are routed by."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kombu import Connection, Exchange

from tests.kit.celery import RealWorker
from tests.kit.policies import attempts, obeyed, policy, running
from tests.kit.streams import of_job, reports
from tests.workers.routed_app import queues

APP = "tests.workers.routed_app:app"
WAYS = [  # exchange, routing key, the queue that a worker of ours takes it from
    ("shop", "order.1.created", "orders"),
    ("shop", "order.2.created", "orders"),
    ("media", "video", "media"),
    ("media", "image", "media"),
    ("paid", "paid", "billing"),
]


def send(worker: RealWorker, exchange: str, key: str, *args: Any, task: str = "try", **options: Any) -> str:
    through = Exchange(exchange, type="topic" if exchange == "shop" else "direct")
    sent = worker.app.send_task(task, args, exchange=exchange, routing_key=key, declare=[through], **options)
    return sent.id


def retries_come_back(worker: RealWorker, store: Any) -> None:
    """Each job fails once; the policy of its own queue brings it back there, and no other queue gets a copy."""
    names = ("orders", "billing", "media")
    version = obeyed(worker, store.url, *(policy(name, match={"task": "try", "queue": name}) for name in names))
    with Connection(worker.broker_url) as connection:
        mailing = next(one for one in queues() if one.name == "mailing")(connection.default_channel)
        mailing.queue_arguments = {"x-max-priority": 10}  # as the app declares its queues on RabbitMQ
        mailing.declare()
        jobs = [(send(worker, exchange, key, "down", 2), queue) for exchange, key, queue in WAYS]
        # Of a job's two reports the second may be there first.
        both = {"retry": len(jobs), "success": len(jobs)}
        worker.wait(lambda: Counter(one.kind for one in reports(store)) == both, what="all to end well")
        for job, queue in jobs:
            results = [(one.kind, one.queue) for one in of_job(store, job)]
            assert results == [("retry", queue), ("success", queue)]
            assert of_job(store, job)[0].policy == f"{queue}@{version}"
            assert [n for n, _ in attempts(worker, job)] == [1, 2]
        assert mailing.queue_declare(passive=True).message_count == 1
    worker.wait(lambda: sum(one["started"] for one in running(store.url)[0]["counts"].values()) == 10, what="counts")
    assert set(running(store.url)[0]["counts"]) == set(names)
    assert running(store.url)[0]["unplaced"] == 0
