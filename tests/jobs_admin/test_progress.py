"""A source that cannot be read or makes no progress is an alert within a minute: by the rules that every desk has."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import redis
from django.utils import timezone

from jobs_admin import alerts, config
from jobs_admin.core import keys
from jobs_admin.desk import overview
from jobs_admin.models import Alert, Notice, RefusedReports, Source
from jobs_admin.queues import liveness
from jobs_admin.retries import pulling
from jobs_admin.sources.base import SourceUnreachable
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.server]
S = timedelta(seconds=1)
A_MINUTE = (35, 40, 45, 50, 55, 60)


@pytest.fixture
def shop(store, engine, settings, tmp_path, first_rules):
    """A source of BullMQ with one dead job, whose user `reader` may be given fewer rights; the client of its owner."""
    url = engine.url.removesuffix("/0") + "/6"
    with redis.Redis.from_url(url) as owner:
        owner.flushdb()
        owner.hset("bull:emails:meta", "version", "bullmq:5.81.5")
        fields = {"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "atm": 1}
        owner.hset("bull:emails:1", mapping=fields)
        owner.zadd("bull:emails:failed", {"1": int(owner.time()[0]) * 1000})
        owner.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">opensesame", "~*", "&*", "+@all")
        file = tmp_path / "sources.toml"
        host = urlsplit(url).netloc.rpartition("@")[2]
        file.write_text(
            f'[sources.shop]\nbackend = "bullmq"\nurl = "redis://reader:opensesame@{host}/6"\nqueues = ["emails"]\n'
        )
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        yield owner
        owner.execute_command("ACL", "DELUSER", "reader")
        owner.flushdb()


def judged(since, *seconds):
    for at in seconds:
        Source.objects.update(sampled_at=since + at * S)
        alerts.judge(since + at * S)


def firing():
    found = Alert.objects.exclude(fired_at=None).values_list("rule__name", "source", "subject")
    return sorted(found)


def pull():
    while pulling.pull("shop", "one"):
        pass


def test_a_source_that_cannot_be_read_is_an_alert_within_a_minute(shop):
    pull()
    shop.execute_command("ACL", "SETUSER", "reader", "-eval", "-evalsha", "-script")
    with pytest.raises(SourceUnreachable) as refused:
        pull()
    pulling._note_failed("shop", str(refused.value))
    assert config.adapter("shop").depths()  # its queues are sampled as before
    failed_at = Source.objects.get().not_pulled_since
    judged(failed_at, *A_MINUTE)
    assert firing() == [("No Progress", "shop", "")]
    assert "has made no progress" in json.dumps(Notice.objects.get().body)
    (row,) = overview.sources(ANN, failed_at + 60 * S)
    assert "refused the login or a command" in row.why_not_pulled and row.not_pulled_since == failed_at

    shop.execute_command("ACL", "SETUSER", "reader", "+@all")
    pull()
    assert liveness.stalled_sources(timezone.now()) == {"shop": None}


def test_a_reader_that_hangs_or_died_is_an_alert_within_a_minute(shop):
    pull()
    due = Source.objects.get().progress_due_at
    judged(due, 0, 10, 20, 30)
    assert firing() == []
    judged(due, *A_MINUTE)
    assert firing() == [("No Progress", "shop", "")]


def test_a_source_that_was_never_read_is_an_alert_within_a_minute(shop):
    source = Source.objects.create(name="shop", backend="bullmq", is_configured=True)
    judged(source.first_seen, *A_MINUTE)
    assert firing() == [("No Progress", "shop", "")]


def test_a_source_whose_reports_are_refused_is_an_alert_within_a_minute(store, first_rules):
    now = timezone.now()
    Source.objects.create(name="app", backend="celery")
    for source in ("app", "invented"):
        RefusedReports.objects.create(
            source=source, cause="unsigned", refused=3, first_at=now, last_at=now + 60 * S, why="It is not signed."
        )
    for at in A_MINUTE:
        alerts.judge(now + at * S)
    assert firing() == [("No Progress", "app", "")]
    assert "not signed" in liveness.stalled_sources(now)["app"].why
    assert "app" not in liveness.stalled_sources(now + liveness.RECENTLY_REFUSED + 61 * S)


def test_a_reader_within_a_long_backlog_makes_progress(shop, monkeypatch):
    for n in range(2, 1_500):
        shop.hset(
            f"bull:emails:{n}", mapping={"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "atm": 1}
        )
        shop.zadd("bull:emails:failed", {str(n): int(shop.time()[0]) * 1000})
    monkeypatch.setattr(pulling, "_ROUND_S", 0.0)
    marks = []
    while pulling.pull("shop", "one"):
        marks.append(Source.objects.get().progress_due_at)
    assert len(marks) > 2 and None not in marks and marks == sorted(marks)


def test_a_source_that_is_unreachable_is_one_alert_within_a_minute(shop):
    pull()
    since = timezone.now()
    Source.objects.update(is_reachable=False, changed_at=since, not_pulled_since=since, why_not_pulled="no route")
    judged(since, *A_MINUTE)
    assert firing() == [("Source Unreachable", "shop", "")]


def test_a_step_that_ends_no_round_is_an_alert_within_a_minute(shop, store):
    since = timezone.now()
    for name, age in (("settle", 0), ("send", -60)):
        store.hset(keys.steps(), name, json.dumps({"at": since.timestamp() - age}))
    judged(since, *A_MINUTE)
    assert firing() == [("No Progress", "", "settle")]


def test_a_watch_that_starts_again_fires_nothing(shop, store):
    """Marks of the watch are old until each step and each reader has ended its first round."""
    pull()
    now = timezone.now()
    Source.objects.update(progress_due_at=now - 600 * S, sampled_at=now - 600 * S)
    store.hset(keys.steps(), "settle", json.dumps({"at": time.time() - 600}))
    alerts.judge(now), alerts.judge(now + 5 * S)
    pull()
    store.hset(keys.steps(), "settle", json.dumps({"at": time.time()}))
    judged(now, 10, 15, 20)
    assert firing() == []
