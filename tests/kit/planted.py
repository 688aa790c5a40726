"""Two Celery apps for lint: `shop`, with a mistake in each task, and `tidy`, without one.

As a module either is an app for a worker: `celery -A tests.kit.planted:shop worker`. Who runs it gives PLANTED_BROKER.
"""

from __future__ import annotations

import os
import random
from functools import partial

import httpx
from celery import Celery
from kombu import Queue

from jobs_admin.core.lint import GROWTH
from jobs_admin.worker.celery import install

BROKER = os.environ.get("PLANTED_BROKER", "redis://127.0.0.1:1/0")
STEPS = (20, 60, 240)

# What is found, and of which task: the mistake, and where a mistake breaks a second rule, that too.
PLANTED = {
    "calendar": {"delay-beyond-visibility-timeout"},
    "greeting": {"gives-up-before-outage"},
    "digest": {"backoff-above-its-cap", GROWTH},
    "forever": {"attempts-without-end"},
    "herd": {"no-jitter-at-volume"},
    "anything": {"retries-permanent-errors"},
    "crasher": {"requeue-without-crash-cap"},
    "layered": {"retries-multiplied"},
    "answer": {"results-too-short-to-replay"},
    "abrupt": {"soft-limit-never-fires"},
    "idle": {"backoff-without-autoretry"},
    "every_minute": {GROWTH},
    "perishable": {"expires-before-retries-end"},
    "long": {"limit-beyond-visibility-timeout"},
    "never": {"autoretry-never-retries"},
    "early": {"requeue-without-late-ack"},
}

patient = httpx.Client(transport=httpx.HTTPTransport(retries=2), trust_env=False)
calm = httpx.Client(trust_env=False)

# Outlives five minutes, below every visibility timeout here.
SOUND = {
    "autoretry_for": (httpx.TransportError,),
    "max_retries": 7,
    "retry_backoff": 5,
    "retry_backoff_max": 240,
    "time_limit": 60,
    "soft_time_limit": 50,
    "acks_late": True,
    "ignore_result": True,
}


def _app(name: str, queues: tuple[str, ...], **settings) -> Celery:
    made = Celery(name, broker=BROKER, backend=BROKER, set_as_current=False)
    made.conf.update(
        task_queues=[Queue(queue, routing_key=queue) for queue in queues],
        task_default_queue=queues[0],
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=1,
        **settings,
    )
    return made


def _define_shop(app: Celery) -> None:
    def task(**options):
        return partial(app.task, shared=False, **(SOUND | options))

    def by_hand(**options):
        limits = {name: SOUND[name] for name in ("time_limit", "soft_time_limit", "acks_late", "ignore_result")}
        return partial(app.task, shared=False, bind=True, **(limits | options))

    def call():
        return calm.get("http://partner.example/")

    def call_patiently():
        return patient.get("http://partner.example/")

    @by_hand(name="idle", max_retries=7, retry_backoff=True)()
    def idle(self):
        try:
            call()
        except httpx.TransportError as error:
            raise self.retry(exc=error, countdown=min(240, 5 * 2**self.request.retries) * random.uniform(0.5, 1))

    @by_hand(name="every_minute", max_retries=9)()
    def every_minute(self):
        try:
            call()
        except httpx.TransportError as error:
            self.retry(exc=error, countdown=60)

    task(name="calendar", retry_backoff=60, retry_backoff_max=600)()(call)
    task(name="greeting", max_retries=3, retry_backoff=1)()(call)
    task(name="digest", retry_backoff=3600)()(call)
    task(name="forever", max_retries=None)()(call)
    task(name="herd", retry_jitter=False, queue="bulk")()(call)
    task(name="anything", autoretry_for=(Exception,))()(call)
    task(name="crasher", reject_on_worker_lost=True)()(call)
    task(name="layered")()(call_patiently)
    task(name="answer", ignore_result=False)()(call)
    task(name="abrupt", soft_time_limit=60)()(call)
    task(name="perishable", expires=120)()(call)
    task(name="long", time_limit=900, soft_time_limit=890)()(call)
    task(name="never", max_retries=0)()(call)
    task(name="early", acks_late=False, reject_on_worker_lost=True)()(call)


def _define_tidy(app: Celery) -> None:
    @app.task(shared=False, name="mail", dont_autoretry_for=(ValueError,), **(SOUND | {"autoretry_for": (Exception,)}))
    def mail():
        return calm.get("http://partner.example/")

    @app.task(shared=False, name="charge", bind=True, max_retries=7, acks_late=True, time_limit=60, soft_time_limit=50)
    def charge(self):
        try:
            return calm.get("http://partner.example/")
        except LookupError as error:
            raise self.retry(exc=error, countdown=error.retry_after)
        except OSError as error:
            wait = min(240, 5 * 2**self.request.retries)
            raise self.retry(exc=error, countdown=wait * random.uniform(0.5, 1))

    @app.task(shared=False, name="import_rows", bind=True, max_retries=3)
    def import_rows(self):
        raise self.retry(countdown=STEPS[self.request.retries], max_retries=3)

    @app.task(shared=False, name="report")
    def report():
        return patient.get("http://partner.example/")  # it is not retried: one layer


shop = _app(
    "shop", ("work", "bulk"), result_expires=3600, broker_transport_options={"visibility_timeout": 300}, task_soft_time_limit=None,
)  # fmt: skip
_define_shop(shop)
install(shop, source="shop")

tidy = _app("tidy", ("tidy",))
_define_tidy(tidy)
install(tidy, source="tidy")
