"""Queues of Celery's own messages among those that RabbitMQ's management names."""

from __future__ import annotations

import pytest

from jobs_admin.sources.amqp.management import _parse_queue


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("webhooks", True),
        ("celery", True),
        ("w1@vm.celery.pidbox", False),
        ("0f3a.reply.celery.pidbox", False),
        ("celeryev.5b1c", False),
        ("celeryevents", True),
    ],
)
def test_what_workers_report_to_each_other_is_no_queue_of_jobs(name, is_ours):
    assert _parse_queue({"name": name, "exclusive": False}).is_ours is is_ours
