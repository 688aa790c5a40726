from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from demo import first_start, history
from demo.shop import QUEUES
from jobs_admin import ingest
from jobs_admin.core import envelope, keys
from jobs_admin.models import Attempt, DepthSample, Failure, Group
from jobs_admin.models.access import ENGINE
from jobs_admin.queues import depths
from tests.kit.waiting import wait_until

NOW = 1_795_000_000.0


@pytest.fixture(scope="module")
def reports(stage):
    return history.envelopes(stage, NOW)


def test_it_is_a_day_of_thousands_of_failures_in_the_order_of_time(reports):
    times = [report.at for report in reports]
    assert times == sorted(times)
    assert NOW - 24 * 3600 <= times[0] < NOW - 23 * 3600
    assert NOW - 3600 < times[-1] < NOW
    assert len({report.job_id for report in reports}) >= 2000


def test_it_has_every_queue_two_releases_and_several_tenants(reports):
    assert {report.queue for report in reports} == set(QUEUES)
    assert {report.release for report in reports} == {history.BEFORE, history.AFTER}
    assert len({report.tenant for report in reports}) >= 6
    assert {report.labels for report in reports} == {("demo-history",)}


def test_the_release_that_broke_refunds_is_seen_in_the_curve(reports):
    broken = [r for r in reports if r.task == "shop.billing.refund" and r.error_type == "TypeError"]
    new = [r for r in broken if r.release == history.AFTER]
    assert len(new) > 400 > 20 * len([r for r in broken if r.release == history.BEFORE])


def test_its_jobs_are_the_same_each_time(stage, reports):
    again = history.envelopes(stage, NOW)
    first_tries = [[(r.job_id, r.at, r.kind) for r in reports_ if r.attempt == 1] for reports_ in (reports, again)]
    assert first_tries[0] == first_tries[1]


def test_a_raw_message_holds_the_arguments_that_are_shown(reports):
    from base64 import b64decode

    report = Random(3).choice([r for r in reports if r.raw])
    message = json.loads(report.raw)
    _, kwargs, _ = json.loads(b64decode(message["body"]))
    assert message["headers"]["id"] == report.job_id
    assert kwargs["tenant"] == json.loads(report.kwargs)["tenant"] == report.tenant
    assert message["properties"]["delivery_info"]["routing_key"] == report.queue


def test_each_error_text_quotes_its_own_job(reports):
    bounces = [r for r in reports if r.error_type.endswith("AttachmentTooLarge")]
    assert len(bounces) > 5
    for report in bounces:
        assert json.loads(report.kwargs)["invoice"] in report.message
        assert json.loads(report.kwargs)["invoice"] in report.trace


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_it_lands_through_the_real_ingest(store, settings, reports):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": settings.REDRIVE["REDIS_URL"]}
    history.write(store, reports)
    wait_until(
        lambda: not store.xlen(keys.failures("shop")),
        "all to be filed",
        progress=lambda: store.xlen(keys.failures("shop")),
        meanwhile=lambda: ingest.step("test"),
    )
    ends = {report.job_id: report.kind for report in reports}  # the last one counts
    expected = Counter("recovered" if kind == "success" else "dead" for kind in ends.values())
    states = Counter(Failure.objects.values_list("state", flat=True))
    waiting = states.pop("retrying", 0)
    assert waiting == sum(kind == "retry" for kind in ends.values())
    assert states["recovered"] == expected["recovered"]
    assert states["dead"] == expected["dead"] - waiting
    assert Attempt.objects.count() == len(reports)
    assert Group.objects.count() >= 40


@pytest.mark.long("Writes the history of the demo shop, twice, each in a process of its own.")
@pytest.mark.server
def test_the_command_writes_it_once(store, engine):
    environment = {**os.environ, "REDRIVE_REDIS_URL": engine.url, "CELERY_BROKER_URL": engine.url[:-1] + "1"}
    for _ in range(2):
        command = [sys.executable, "-m", "demo.history"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    assert store.xlen(keys.failures("shop")) > 4000
    store.select(1)
    assert store.dbsize() == 0, "nothing of it reached the shop's queues"
    store.select(0)


@pytest.mark.server
def test_a_message_of_the_history_still_runs(store, engine, reports, service):
    """The raw message, put on its queue again, is a job that the shop's worker knows and runs."""
    report = next(r for r in reports if r.task == "shop.mailer.attach_invoice")
    broker = engine.url[:-1] + "2"
    store.select(2)
    store.lpush(report.queue, report.raw)
    store.select(0)
    environment = {**os.environ, "REDRIVE_REDIS_URL": engine.url, "CELERY_BROKER_URL": broker}
    command = [sys.executable, "-m", "celery", "-A", "demo.shop", "worker", "-c", "1", "-l", "ERROR"]
    command += ["--without-mingle", "--without-gossip"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: store.xlen(keys.failures("shop")), "a report", process=worker)
    finally:
        worker.terminate()
        worker.wait(60)
    ((_, entry),) = store.xrange(keys.failures("shop"))
    again = envelope.decode(entry)
    assert (again.job_id, again.error_type, again.message) == (report.job_id, report.error_type, report.message)


@pytest.mark.django_db
def test_its_day_is_in_the_depth_samples_of_every_step_and_ends_with_what_is_dead(reports):
    until = datetime.fromtimestamp(NOW, UTC)
    DepthSample.objects.create(source="shop", queue="webhooks", at=until, dead=0)  # sampled before all was filed
    depths.roll_up(until)
    for _ in range(2):  # the player may be killed before it notes that it did
        first_start.fill_depths(json.dumps(history.depths(reports)).encode())
    ends = {report.job_id: report for report in reports}
    died = [report for report in ends.values() if report.kind not in ("success", "retry")]
    for step in (10, 60, 300, 900):
        last = DepthSample.objects.filter(step=step, at__lt=until).order_by("queue", "-at")
        for queue in {report.queue for report in died}:
            sample = last.filter(queue=queue).first()
            ended = sample.at.timestamp() + step
            assert sample.dead == sum(report.queue == queue and report.at < ended for report in died), (queue, step)
            assert NOW - step < ended <= NOW
    all_dead = sum(report.queue == "webhooks" for report in died)
    assert DepthSample.objects.get(step=10, at=until, queue="webhooks").dead == all_dead > 1000
    while depths.roll_up(until):
        pass
    assert depths.desk_sampled_since(ENGINE) <= until - timedelta(days=1)
    known = [one for one in depths.dead_depth(ENGINE, [("shop", "webhooks")], until).lines[0].dead if one is not None]
    assert len(known) == 96 and known == sorted(known) and known[-1] > 1000
