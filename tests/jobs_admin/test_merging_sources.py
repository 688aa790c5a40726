"""A source under a wrong name is merged into the one that is configured."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs_admin import failures, replays
from jobs_admin.core import keys
from jobs_admin.core.refused import Refused
from jobs_admin.db import counters
from jobs_admin.desk import unconfigured_sources
from jobs_admin.fleet import heartbeats
from jobs_admin.models import AuditEvent, Failure, FailureCount, GroupSource, QueueCounter, Source, Worker
from jobs_admin.models.access import ADMIN, ENGINE, OPERATOR, Viewer
from tests.kit.failures import bury, dead
from tests.kit.groups import group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
ANN = Viewer("ann", {"*": ADMIN})


@pytest.fixture
def misnamed(sources):
    """Three jobs under `shopp`, one of a group that `shop` has too; both have counted attempts of the same minute."""
    now = timezone.now().replace(second=0, microsecond=0)
    where = group(first_seen=now)
    dead(3, source="shopp", group=where), bury(1, group=where)
    for name, at in (("shopp", now - timedelta(hours=1)), ("shop", now)):
        GroupSource.objects.update_or_create(
            group=where, source=name, defaults={"error_type": "E", "message": "", "first_seen": at, "last_seen": at}
        )
    counters.add_queue_counts({(name, "webhooks", now): {"failed": n} for name, n in (("shopp", 3), ("shop", 1))})
    Source.objects.filter(name="shopp").update(is_configured=False)
    return where


def test_failures_and_counts_move_and_the_source_is_removed(misnamed):
    found = unconfigured_sources.merge(ANN, "shopp", "shop")
    assert (found.moved, found.left) == (3, 0)
    assert not Source.objects.filter(name="shopp").exists()
    assert not any(
        kind.objects.filter(source="shopp").exists() for kind in (Failure, FailureCount, QueueCounter, GroupSource)
    )
    assert set(QueueCounter.objects.values_list("failed", flat=True)) == {4}
    part = GroupSource.objects.get(source="shop")
    assert part.last_seen - part.first_seen == timedelta(hours=1)
    assert failures.search(ENGINE, "source:shop state:dead").count.number == 4
    event = AuditEvent.objects.get(act="source.merge")
    assert (event.source, event.after) == ("shop", {"into": "shop", "failures": 3, "left": 0})


def test_merged_jobs_can_be_replayed(misnamed):
    assert replays.preview(ANN, query="source:shopp").replayable == 0
    unconfigured_sources.merge(ANN, "shopp", "shop")
    assert (
        replays.preview(ANN, query="source:shop").blocked
        == [{"code": "no_message", "reason": "no message was stored", "count": 1}]
        or replays.preview(ANN, query="source:shop").replayable >= 3
    )


def test_jobs_under_both_names_stay_and_nothing_is_lost(misnamed):
    twin = Failure.objects.filter(source="shopp").first()
    bury(1)
    Failure.objects.filter(pk=Failure.objects.latest("pk").pk).update(first_job_id=twin.first_job_id)
    call_command("sources", "merge", "shopp", "shop")
    assert list(Failure.objects.filter(source="shopp")) == [twin] and Source.objects.filter(name="shopp").exists()


def test_a_source_with_live_workers_a_configured_one_and_an_unknown_target_are_refused(misnamed):
    Worker.objects.create(source="shopp", name="w1@vm", boot="b", seen_at=timezone.now())
    cases = [
        ("shopp", "shop", "Workers still report as shopp: w1@vm. Set source='shop' in their install()"),
        ("bank", "shop", "The desk has no source bank."),
        ("shop", "bank", "shop is configured here."),
        ("shopp", "nowhere", "nowhere is not a configured source"),
    ]
    for source, into, why in cases:
        with pytest.raises(Refused, match="Nothing was changed") as refused:
            unconfigured_sources.merge(ANN, source, into)
        assert refused.value.message.startswith(why)
    with pytest.raises(CommandError, match="Workers still report"):
        call_command("sources", "merge", "shopp", "shop")
    assert Failure.objects.filter(source="shopp").count() == 3


def test_it_needs_an_admin_of_every_source(misnamed):
    for viewer in (Viewer("a", {"shopp": ADMIN, "shop": ADMIN}), Viewer("b", {"*": OPERATOR})):
        with pytest.raises(Refused, match="needs an admin"):
            unconfigured_sources.merge(viewer, "shopp", "shop")


def test_the_last_heartbeat_of_its_workers_does_not_register_it_again(misnamed, store):
    at = timezone.now() - timedelta(seconds=60)
    store.hset(keys.workers("shopp"), "w1@vm", json.dumps({"name": "w1@vm", "boot": "b1", "at": at.timestamp()}))
    heartbeats.count_heartbeats(timezone.now() - timedelta(seconds=40))
    assert Worker.objects.filter(source="shopp").exists()
    Worker.objects.update(seen_at=at)
    unconfigured_sources.merge(ANN, "shopp", "shop")
    heartbeats.count_heartbeats(timezone.now())
    assert not any(kind.objects.filter(source="shopp").exists() for kind in (Worker, Failure))
    assert not Source.objects.filter(name="shopp").exists()
