"""The table of docs/sources.md lists what the `can` of each adapter declares."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from jobs_admin.sources import SYSTEMS, connect
from jobs_admin.sources.base import Capabilities

ADAPTERS = {
    "Celery on Redis": ("celery", "redis://127.0.0.1:1/0", {}),
    "Celery on RabbitMQ": ("celery", "amqp://127.0.0.1:1//", {}),
    "BullMQ": ("bullmq", "redis://127.0.0.1:1/0", {}),
    "Bull": ("bull", "redis://127.0.0.1:1/0", {}),
    "RQ": ("rq", "redis://127.0.0.1:1/0", {}),
    "Dramatiq on Redis": ("dramatiq", "redis://127.0.0.1:1/0", {}),
    "Dramatiq on RabbitMQ": ("dramatiq", "amqp://127.0.0.1:1//", {"management_url": "http://127.0.0.1:1"}),
    "jobs table": ("jobs_table", "sqlite:////nowhere/app.db", {}),
    "Django Tasks": ("django_tasks", "sqlite:////nowhere/app.db", {}),
    "RabbitMQ": ("rabbitmq", "amqp://127.0.0.1:1//", {"dead_letter_queues": ["orders.dlq"]}),
    "SQS": ("sqs", "sqs://eu-west-1", {"dead_letter_queues": ["orders-dlq"]}),
    "Sidekiq": ("sidekiq", "redis://127.0.0.1:1/0", {}),
}


def table() -> str:
    able = {
        name: connect("x", backend, url, options=options, store=lambda: None).can
        for name, (backend, url, options) in ADAPTERS.items()
    }
    # What all of them can do, and what none can, tells nobody anything apart.
    abilities = [
        field.name for field in fields(Capabilities) if len({getattr(can, field.name) for can in able.values()}) == 2
    ]
    lines = ["| | " + " | ".join(able) + " |", "|---|" + "---|" * len(able)]
    lines += [
        f"| `{name}` | " + " | ".join("yes" if getattr(can, name) else "–" for can in able.values()) + " |"
        for name in abilities
    ]
    return "\n".join(lines)


def test_the_table_of_abilities_is_what_the_adapters_report():
    assert table() in Path("docs/sources.md").read_text()


def test_every_system_is_in_that_table():
    listed = {backend for backend, _, _ in ADAPTERS.values()}
    assert listed == {name for name, system in SYSTEMS.items() if not system.is_for_tests}


if __name__ == "__main__":
    print(table())
