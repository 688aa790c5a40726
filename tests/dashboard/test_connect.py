"""The page Connect: lines with this desk's values, and what has arrived."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import RefusedReports, Source, Worker
from tests.kit.failures import bury
from tests.kit.pages import HTMX, text_of

URL = "redis://:s3cret@127.0.0.1:6390/0"


@pytest.fixture
def connected(watched, sources, settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": URL}
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)


def test_an_admin_of_every_source_reads_the_address_of_the_store_and_others_no_password(ann, vera, connected):
    text = text_of(ann.get("/connect/"))
    assert f"export REDRIVE_REDIS_URL='{URL}'" in text and 'install(app, source="shop")' in text
    assert "For workers on other hosts, start the desk with REDRIVE_REDIS_URL" in text
    text = text_of(vera.get("/connect/"))
    assert "s3cret" not in text and "redis://127.0.0.1:6390" in text and "User and password are shown" in text


def test_what_arrives_is_ticked_one_after_the_other(ann, connected):
    def checks():
        return text_of(ann.get("/connect/?source=shop", headers=HTMX))

    assert "waiting Heartbeat no worker has reported yet" in checks()
    Worker.objects.create(source="shop", name="w1@vm", boot="b", seen_at=timezone.now())
    assert "arrived Heartbeat w1@vm, " in checks() and "waiting First report" in checks()
    bury(1)
    Source.objects.filter(name="shop").update(unsigned_at=timezone.now())
    assert "arrived First report" in checks() and "arrived Failure TimeoutError, " in checks()
    Worker.objects.update(seen_at=timezone.now() - timedelta(minutes=5))
    assert "problem Heartbeat w1@vm, 5 min ago" in checks()


def test_what_is_wrong_is_named_with_its_fix(ann, connected):
    Worker.objects.create(source="shopp", name="w1@vm", boot="b", seen_at=timezone.now())
    now = timezone.now()
    RefusedReports.objects.create(
        source="shop", cause="unsigned", refused=3, first_at=now, last_at=now, why="the report is not signed"
    )
    text = text_of(ann.get("/connect/"))
    assert "problem Other name Workers report as shopp, which is not configured. If its workers belong to" in text
    assert "problem Refused reports 3: the report is not signed" in text


def test_a_desk_with_only_the_demo_begins_with_another_app_and_one_with_its_own_source_with_that(
    ann, watched, settings
):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": URL, "DEMO_BROKER_URL": "redis://127.0.0.1:1/1"}
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)
    config.sources.cache_clear()
    text = text_of(ann.get("/connect/"))
    assert "[sources.billing]" in text and "Change billing and url to your values. List every" in text
    assert 'install(app, source="billing")' in text and f"export REDRIVE_REDIS_URL='{URL}'" in text
    assert 'source="shop"' not in text, "the demo's workers are connected already"
    assert 'install(app, source="shop")' in text_of(ann.get("/connect/?source=shop")), "a link names it"
    settings.REDRIVE = settings.REDRIVE | {"CELERY_BROKER_URL": "redis://127.0.0.1:1/2"}
    config.sources.cache_clear()
    assert 'install(app, source="celery")' in text_of(ann.get("/connect/"))


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("bullmq", 'backend = "bullmq"'),
        ("bull", 'backend = "bull"'),
        ("celery-app", "the desk then ignores CELERY_BROKER_URL"),
        ("rq", 'backend = "rq"'),
        ("dramatiq", 'backend = "dramatiq"'),
        ("dramatiq-rabbitmq", 'queues = ["default"]'),
        ("sidekiq", 'backend = "sidekiq"'),
        ("guest", "up --watch redis://"),
        ("rabbitmq", 'backend = "rabbitmq"'),
        ("x", "worker-wheel"),
    ],
)
def test_each_system_has_its_lines(ann, connected, system, words):
    assert words in text_of(ann.get(f"/connect/?system={system}"))
