"""A job that was too late to run is a failure; one that an operator revoked is none."""

from __future__ import annotations

import pytest
import redis
from celery.utils import uuid

from jobs_admin.core import keys
from tests.kit.streams import of_job, reports

pytestmark = pytest.mark.server


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_expired_is_reported_with_its_message_and_what_was_revoked_is_not(start, own_store, pool):
    worker = start(own_store.url, pool=pool, later=True)
    late = worker.send("ok", "too late", kwargs={"customer": {"id": 42}}, expires=-5, queue="emails")
    with redis.Redis.from_url(worker.broker_url) as broker:
        (raw,) = broker.lrange("emails", 0, -1)
    worker.start()
    (report,) = worker.wait(lambda: of_job(own_store, late), what="its report")
    revoked, both = uuid(), uuid()
    worker.app.control.revoke([revoked, both])
    worker.wait(lambda: "Tasks flagged as revoked" in worker.text(), what="the operator's act")
    worker.send("ok", "revoked", task_id=revoked)
    worker.send("ok", "both", task_id=both, expires=-5)
    assert (report.kind, report.error_type, report.queue) == ("expired", "celery.exceptions.TaskRevokedError", "emails")
    assert report.message.startswith("ok expired ") and report.message.endswith("; it never ran")
    assert (report.raw, report.tenant, report.attempt) == (raw, "42", 1)
    worker.wait(lambda: worker.text().count("Discarding revoked task") == 3, what="all three")
    last = worker.send("fail")
    worker.wait(lambda: of_job(own_store, last), what="a later failure")
    assert [one.job_id for one in reports(own_store)] == [late, last]
    assert worker.marks("ok") == []
    with redis.Redis.from_url(own_store.url) as store:
        worker.wait(
            lambda: all(b'"failed": 1' in heartbeat for heartbeat in store.hgetall(keys.workers("shop")).values()),
            what="its count",
        )
