"""The shop's app, on queues that are not called what their jobs are routed by. Modules of tests import `QUEUES` alone."""

from __future__ import annotations

from kombu import Exchange, Queue, binding

from tests.kit.celery import app

_SHOP, _PAID, _MEDIA = Exchange("shop", type="topic"), Exchange("paid", type="direct"), Exchange("media", type="direct")


def queues() -> list[Queue]:
    return [
        Queue("orders", _SHOP, routing_key="order.#"),
        # Each service has its copy of what is paid.
        Queue("billing", _PAID, routing_key="paid"),
        Queue("mailing", _PAID, routing_key="paid"),
        Queue("media", [binding(_MEDIA, routing_key="video"), binding(_MEDIA, routing_key="image")]),
    ]


if app is not None:  # in a worker
    app.conf.task_queues = queues()
