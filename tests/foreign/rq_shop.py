"""A producer and worker of RQ, run by an interpreter that has RQ: acts as in `foreign_shop.py`."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module

import rq
from foreign_shop import PlannedShop, run_acts, take_end
from rq import Queue, Retry, SimpleWorker, Worker, get_current_job
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

KNOWN = {"json": JSONSerializer, "pickle": None}


class PartnerDown(Exception):
    pass


class Address:
    def __init__(self, street):
        self.street, self.password = street, "hunter2"


def send(data, *others, **named):
    job = get_current_job()
    end = take_end(job.connection, job.id)
    if end == "again":
        return Retry(max=2, interval=1_000_000)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end != "ok":
        raise PartnerDown("the partner is down")
    return data


def note_failure(job, connection, *raised):
    connection.rpush("called-back", job.id)


class Shop(PlannedShop):
    def queue(self, name, serializer="pickle"):
        return Queue(name, connection=self.client, serializer=KNOWN[serializer])

    def do_add(self, queue, jobs):
        """Add jobs: `args`, `kwargs`, `plan`, `retry` and whatever else `enqueue_call` takes. Return their ids."""
        ids = []
        for one in jobs:
            serializer, plan, retry = one.pop("serializer", "pickle"), one.pop("plan", []), one.pop("retry", None)
            job_id = one.setdefault("job_id", os.urandom(8).hex())
            if plan:
                self.do_plan(job_id, plan)
            args = [Address("Elm")] if one.pop("address", False) else one.pop("args", [])
            callback = {"on_failure": note_failure} if one.pop("callback", False) else {}
            given = {"retry": Retry(**retry)} if retry else {}
            if limit := one.pop("rate_limit", None):  # since RQ 3
                given["rate_limit"] = import_module("rq.rate_limit").RateLimit(*limit)
            self.queue(queue, serializer).enqueue_call("rq_shop.send", args=args, **given, **callback, **one)
            ids.append(job_id)
        return ids

    def do_work(self, *queues, serializer="pickle"):
        """All that waits there runs."""
        worker = SimpleWorker(list(queues), connection=self.client, serializer=KNOWN[serializer])
        worker.work(burst=True, logging_level="CRITICAL")

    def do_work_json(self, *queues):
        self.do_work(*queues, serializer="json")

    def do_fork_and_work(self, *queues):
        """As the command `rq worker` does: each job in a process of its own."""
        Worker(list(queues), connection=self.client).work(burst=True, logging_level="CRITICAL")

    def do_promote(self, queue, job_id):
        """The time of a scheduled job has come, and RQ's scheduler sees it."""
        self.client.zadd(f"rq:scheduled:{queue}", {job_id: time.time() - 1}, xx=True)
        scheduler = RQScheduler([queue], connection=self.client, logging_level="CRITICAL")
        scheduler.acquire_locks()
        scheduler.enqueue_scheduled_jobs()
        scheduler.release_locks()

    def do_requeue(self, job_id):
        Job.fetch(job_id, connection=self.client).requeue()

    def do_delete(self, job_id):
        Job.fetch(job_id, connection=self.client).delete()

    def do_abandon(self, queue):
        """RQ finds that the workers of what runs there have died."""
        StartedJobRegistry(queue, connection=self.client).cleanup(timestamp=time.time() + 1_000_000)

    def do_version(self):
        return rq.VERSION


if __name__ == "__main__":
    run_acts(Shop(sys.argv[1]))
