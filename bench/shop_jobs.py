"""A shop's Celery app for benches: jobs with arguments of 0.8 kB, of which one does nothing and one fails deep in a library.

    celery -A bench.shop_jobs:app worker        (settings come from the environment: JOBS_BROKER, JOBS_QUEUE, JOBS_STOCK)

A failing job's traceback has 15 frames in two parts: an HTTP client's (httpx, without a network) and the shop's own.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import httpx
from celery import Celery

KWARGS: dict[str, Any] = {
    "order": {
        "id": 7204117,
        "currency": "EUR",
        "placed_at": "2026-11-22T10:31:07.114+00:00",
        "lines": [
            {
                "sku": f"{n * 2654435761 % 2**32:08x}",
                "quantity": n % 3 + 1,
                "price": 1999 + 250 * n,
                "note": "gift wrap",
            }
            for n in range(6)
        ],
        "shipping": {"name": "Ann Example", "street": "12 Harbour Street", "city": "Rotterdam", "zip": "3011 AA"},
    },
    "customer": {"id": 88213, "email": "ann.example@customers.example", "locale": "nl-NL"},
    "event": "order.paid",
    "tenant": "acme",
}


class DeliveryFailed(Exception):
    """A customer's endpoint did not take an event."""


class Hooks:
    """The shop's own client: an HTTP client whose every request times out."""

    def __init__(self) -> None:
        self._client = httpx.Client(
            transport=httpx.MockTransport(_times_out), base_url="https://hooks.customers.example"
        )

    def deliver(self, order: dict[str, Any], customer: dict[str, Any], event: str) -> None:
        try:
            self._post(f"/v1/{customer['id']}/events", {"event": event, "order": order["id"]})
        except OSError as error:
            raise DeliveryFailed(
                f"{event} of order {order['id']} did not reach customer {customer['id']}: {error}"
            ) from error

    def _post(self, path: str, document: dict[str, Any]) -> None:
        self._client.post(path, json=document).raise_for_status()


def _times_out(request: httpx.Request) -> httpx.Response:
    raise TimeoutError(f"POST {request.url} (request 5f0c9e1a-2b7d-4c58-9a44-0d6b1f2c7e90) timed out after 3000 ms")


def make_app(broker: str, queue: str) -> Celery:
    made = Celery("shop", broker=broker, set_as_current=False)
    made.conf.update(task_default_queue=queue, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
    # At INFO the client says a line for each request; the shop keeps that out of its log.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    hooks = Hooks()

    def deliver(order: dict[str, Any], customer: dict[str, Any], event: str, tenant: str) -> None:
        hooks.deliver(order, customer, event)

    @made.task(name="shop.note", shared=False)  # type: ignore[misc]
    def note(**kwargs: Any) -> str:
        return "ok"

    made.task(name="shop.deliver", shared=False)(deliver)
    made.task(name="shop.deliver_late", shared=False, acks_late=True)(deliver)
    return made


def _app_of_the_environment() -> Celery | None:
    broker = os.environ.get("JOBS_BROKER")
    if not broker:
        return None
    made = make_app(broker, os.environ["JOBS_QUEUE"])
    if not os.environ.get("JOBS_STOCK"):
        from jobs_admin.worker.celery import install

        install(made, source="shop", tenant="kwargs.tenant", release="2026.11")
    return made


app = _app_of_the_environment()
