"""The meaning of a job's number depends on the queue system that it came from."""

from __future__ import annotations

import pytest

from jobs_admin import config
from jobs_admin.config import SourceConfig
from jobs_admin.db import abilities
from tests.kit.searching import bury, find_keys

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def three_systems(monkeypatch):
    sources = {
        "redis": SourceConfig("redis", "celery", "redis://127.0.0.1:1/0"),
        "rabbit": SourceConfig("rabbit", "celery", "amqp://127.0.0.1:1//"),
        "bull": SourceConfig("bull", "bullmq", "redis://127.0.0.1:1/0"),
    }
    monkeypatch.setattr(config, "sources", lambda: sources)


def test_one_level_is_another_number_in_each_system():
    made = {
        (source, number): bury(source=source, priority=number)[0].pk
        for source in ("redis", "rabbit", "bull", "heard-of")
        for number in (1, 5, 9)
    }
    assert set(find_keys("priority:critical")) == {
        made[at] for at in (("redis", 1), ("heard-of", 1), ("rabbit", 9), ("bull", 1))
    }
    assert set(find_keys("priority:low")) == {
        made[at] for at in (("redis", 9), ("heard-of", 9), ("rabbit", 1), ("bull", 9))
    }
    bury(source="redis", priority=None)
    assert len(find_keys("priority:critical,high,medium,low")) == len(made)


def test_a_priority_is_shown_with_its_level():
    assert abilities.priority_text("redis", 3) == "3, high"
    assert abilities.priority_text("rabbit", 9) == "9, critical"
    assert abilities.priority_text("redis", 0) == "0, default"
    assert (abilities.priority_text("bull", 0), abilities.priority_text("bull", None)) == ("0, default", "")
