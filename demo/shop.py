"""The demo's Celery app: a small shop whose jobs really fail. `celery -A demo.shop worker`."""

from __future__ import annotations

import os

# Before `install` reads it: which version of the shop this is.
os.environ.setdefault("REDRIVE_RELEASE", "shop@2026.11.2")

from celery import Celery
from kombu import Queue

from jobs_admin.worker.celery import install

SOURCE = "shop"
QUEUES = ("emails", "webhooks", "payments", "reports")
TENANTS = ("aurora", "borealis", "cobalt", "dune", "ember", "fjord", "grove", "harbour")

# Without a broker the app can be imported and its tasks called, nothing more.
app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL") or "memory://")
app.conf.update(
    include=["demo.mailer", "demo.hooks", "demo.billing", "demo.reporting"],
    task_queues=[Queue(name, routing_key=name) for name in QUEUES],
    task_default_queue="emails",
    task_routes={
        "shop.mailer.*": {"queue": "emails"},
        "shop.hooks.*": {"queue": "webhooks"},
        "shop.billing.*": {"queue": "payments"},
        "shop.reporting.*": {"queue": "reports"},
    },
    task_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    task_ignore_result=True,
    task_soft_time_limit=20,
    task_time_limit=30,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    # Short of the hour that is Celery's default: the demo is restarted often, and its jobs are quick.
    broker_transport_options={"visibility_timeout": 300, "socket_timeout": 10, "socket_connect_timeout": 5},
)

install(app, source=SOURCE, tenant="kwargs.tenant")
