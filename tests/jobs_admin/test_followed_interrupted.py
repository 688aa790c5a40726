"""Guest mode where events are off, or stop: what is shown then, and what is done only because an operator asked for it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.utils import timezone

from dashboard.setup.engine import Engine
from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.desk import overview
from jobs_admin.models import AuditEvent, Failure, QueueCounter, Source
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.models.counter import MINUTE
from jobs_admin.queues import coverage as coverages
from jobs_admin.retries import pulling
from jobs_admin.sources.celery import listening
from tests.kit.following import attempts, coverage, ended, pull, pull_heartbeat, pull_until
from tests.kit.overview import tick
from tests.kit.pages import text_of
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def own_broker(tmp_path):
    """A Redis that may be killed, beside the desk's own."""
    engine = Engine(tmp_path / "broker").start()
    yield engine
    engine.process.send_signal(signal.SIGCONT)
    engine.stop()


@pytest.fixture
def reading(follow, settings, tmp_path):
    """A function: the thread of `watch` reads the source from then on."""

    def start():
        config.adapter("shop").close()
        forget_configuration(config)
        Source.objects.update(puller_until=None)
        pulling.step("test")

    yield start
    thread = pulling._threads.pop("shop", None)
    config.adapter("shop").close()
    (tmp_path / "none.toml").write_text("")
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(tmp_path / "none.toml")}
    forget_configuration(config)
    if thread is not None:
        thread.join(20)
        assert not thread.is_alive()


def unlocked(question):
    """`question`, false while the thread holds the table: the tests' database, in memory, has no lock that is waited for."""

    def answer():
        with suppress(OperationalError):
            return question()

    return answer


def shop_coverage():
    return coverages.read(["shop"], timezone.now())["shop"]


def silent():
    return [one.text for one in config.adapter("shop").findings() if one.id == "events-off"]


def test_events_are_switched_on_by_an_admin_alone(follow, stock, broker):
    worker = stock(broker, events=False)
    source = follow(broker, queues=["celery"], result_backend="none")
    pull_heartbeat()
    for n in range(3):
        worker.send("pay", n)
    pull_until(lambda: coverage().last_hour(time.time()).executed == 3, "heartbeats")
    # Whatever reads it switches nothing on.
    source.depths()
    overview.sources(Viewer("ann", {"*": ADMIN}))
    (text,) = silent()
    assert worker.name in text and not Failure.objects.exists() and shop_coverage().share == 0.0
    tick(config.store(), timezone.now())
    sentence = overview.sentence(Viewer("vera", {"shop": VIEWER}), timezone.now())
    assert sentence.text.startswith("Events of 0 of 3 jobs arrived") and sentence.tone == "trouble"
    assert overview.sentence(Viewer("bea", {"bank": VIEWER}), timezone.now()).text == "No job has failed yet."
    elsewhere = Viewer("vera", {"*": VIEWER}, focus="bank")
    assert overview.sentence(elsewhere, timezone.now()).text == "No job has failed yet."
    with pytest.raises(Refused):
        coverages.switch_events(Viewer("olga", {"*": OPERATOR}), "shop", on=True)
    worker.send("pay", 3)
    pull_until(lambda: coverage().last_hour(time.time()).executed == 4, "heartbeats")
    assert not Failure.objects.exists() and coverage().last_hour(time.time()).started == 0

    call_command("sources", "enable-events", "shop")
    events = AuditEvent.objects.filter(act="source.enable_events").order_by("pk")
    assert [(one.source, one.actor == "olga") for one in events] == [("shop", True), ("shop", False)]

    def has_events():
        worker.send("ok")
        return coverage().last_hour(time.time()).started

    pull_until(has_events, "the worker to send events")
    jobs = {worker.send("pay", n) for n in range(4, 9)}
    pull_until(lambda: set(Failure.objects.values_list("job_id", flat=True)) == jobs, "the failures")
    assert set(Failure.objects.values_list("task", "error_type")) == {("shop.pay", "ValueError")} and not silent()

    coverages.switch_events(Viewer("ann", {"*": ADMIN}), "shop", on=False)

    def is_silent():
        worker.send("ok")
        return silent()

    pull_until(is_silent, "the silence")
    assert set(Failure.objects.values_list("job_id", flat=True)) == jobs


def test_a_broker_that_dies_is_a_sentence_and_then_a_gap(follow, stock, own_broker, reading, as_):
    worker = stock(own_broker.url, results=own_broker.url, extended=True)
    follow(own_broker.url)
    pull_heartbeat()
    worker.send("pay", 1)
    pull_until(lambda: Failure.objects.count() == 1, "the first")
    browser = as_()
    reading()
    wait_until(unlocked(lambda: time.time() - coverage().at < 1.5), "reading")
    own_broker.process.kill()
    own_broker.process.wait()
    died_at = time.time()

    def is_reported():
        if not (why := Source.objects.get(name="shop").why_not_pulled):
            return False
        assert why.startswith(f"Redis at 127.0.0.1:{own_broker.port}") and "password" not in why
        row = next(one for one in overview.sources(Viewer("ann", {"*": ADMIN})) if one.name == "shop")
        return row.why_not_pulled == why and why in text_of(browser.get("/queues/"))

    wait_until(unlocked(is_reported), "the sentence, for programs and on the page")
    time.sleep(3)
    own_broker.start()
    worker.send("pay", 2)
    wait_until(unlocked(lambda: Failure.objects.count() == 2), "the second")
    wait_until(unlocked(lambda: not Source.objects.get(name="shop").why_not_pulled), "the end of it")
    (gap,) = coverage().gaps
    assert abs(gap.start - died_at) < 15 and gap.end - gap.start > 3
    assert wait_until(unlocked(attempts)) == ended(worker, "failed")


def test_a_broker_that_hangs_is_a_sentence_and_then_a_gap(follow, stock, own_broker, monkeypatch):
    monkeypatch.setattr(listening, "_HUNG_S", 3.0)
    worker = stock(own_broker.url)
    follow(own_broker.url, result_backend="none", queues=["celery"])
    pull_heartbeat()
    own_broker.process.send_signal(signal.SIGSTOP)
    hung_at = time.time()
    with pytest.raises(Exception, match="subscription to Celery's events ended"):
        wait_until(pull, "the end of the subscription", every_s=0.2)
    assert time.time() - coverage().at > 2
    own_broker.process.send_signal(signal.SIGCONT)
    pull_until(lambda: coverage().gaps, "the gap")
    assert abs(coverage().gaps[0].start - hung_at) < 10
    worker.send("pay", 1)
    pull_until(lambda: Failure.objects.count() == 1, "a failure")


def test_workers_that_end_without_a_word_are_a_sentence(follow, stock, broker, monkeypatch, as_):
    monkeypatch.setattr(coverages, "_SILENT_S", 4.0)
    worker = stock(broker)
    follow(broker, queues=["celery"])
    pull_heartbeat()
    assert not shop_coverage().is_quiet
    worker.kill()
    pull_until(lambda: shop_coverage().is_quiet, "the silence")
    assert not shop_coverage().gaps
    assert "No event has arrived since" in text_of(as_().get("/queues/"))


def test_successes_count_on_the_queue_of_their_task(follow, stock, engine):
    url = engine.url.removesuffix("/0") + "/3"
    worker = stock(url, results=url, extended=True, queues="orders,mails")
    follow(url)
    for n in range(4):
        worker.app.send_task("shop.pay", (n,), queue="orders")
        worker.app.send_task("shop.ok", (n,), queue="mails")
    counted = QueueCounter.objects.filter(source="shop", step=MINUTE)
    pull_until(lambda: sum(counted.values_list("succeeded", flat=True)) == 4 and Failure.objects.count() == 4, "all")
    assert {row.queue for row in counted if row.succeeded} == {"mails"}
    assert set(Failure.objects.values_list("queue", flat=True)) == {"orders"}
