"""Each reason for leaving a job out, automatically; and that what may be accepted goes once it is."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core import keys
from jobs_admin.models import DepthSample, Payload, Replay, Source, Worker
from jobs_admin.models.failure import Caveat
from jobs_admin.replays.options import Options
from jobs_admin.worker.heartbeat import known_tasks
from tests.kit.people import ANN, BOB

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def left_out(**options):
    seen = replays.preview(ANN, **options)
    assert seen.matched == seen.replayable + sum(row["count"] for row in seen.blocked)
    return seen.replayable, {row["code"]: row["count"] for row in seen.blocked}


def sampled(source="shop", queue="emails", workers=3, guarded=1, **more):
    # One look has one time, and it must not be long ago.
    at = DepthSample.objects.values_list("at", flat=True).first() or timezone.now()
    DepthSample.objects.create(source=source, queue=queue, at=at, workers=workers, guarded_workers=guarded, **more)


def started(**options):
    replay = replays.draft(ANN, query="", reason="fixed", options=Options(**options))
    return replays.start(ANN, replay).total


@pytest.mark.parametrize("state", ["retrying", "quarantined", "replaying", "recovered", "discarded", "gone"])
def test_only_dead_jobs_go(shop, bury, state):
    bury(2)
    bury(3, state=state)
    assert left_out(query="state:any") == (2, {state: 3})


def test_jobs_of_two_open_replays_are_distinguished(shop, bury):
    ids = bury(6)
    first = replays.start(ANN, replays.draft(ANN, selection=ids[:2], reason="mine"))
    second = replays.start(BOB, replays.draft(BOB, selection=ids[2:5], reason="mine"))
    seen = replays.preview(ANN)
    blocked = [(row["code"], row["replay"], row["count"], row["reason"].split()[-1]) for row in seen.blocked]
    assert blocked == [("open", second.pk, 3, "bob"), ("open", first.pk, 2, "ann")] and seen.replayable == 1


def test_an_open_replay_of_other_jobs_is_not_reported(shop, bury):
    bury(2)
    other = bury(3, queue="webhooks")
    replays.start(ANN, replays.draft(ANN, selection=other, reason="mine"))
    assert left_out(query="queue:emails") == (2, {})


def test_messages_that_are_cut_or_missing(shop, bury):
    bury(1)
    bury(2, is_complete=False)
    bury(3, payload=False)
    assert left_out() == (1, {"truncated": 2, "no_message": 3})


def test_sources_that_cannot_be_reached_or_are_not_configured(shop, bury):
    bury(1)
    bury(2, source="web")
    bury(3, source="elsewhere")
    Source.objects.create(name="web", is_configured=True, is_reachable=False)
    assert left_out() == (1, {"unreachable": 2, "not_configured": 3})


def test_nothing_goes_to_a_source_that_is_read_only_and_why_is_reported(shop, bury):
    bury(2)
    bury(1, source="web")
    finding = {"id": "read-only", "severity": "high", "text": "BullMQ 99 is not known", "fix": "Upgrade."}
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, findings=[finding | {"id": "x"}, finding])
    assert left_out() == (1, {"read_only": 2})
    assert replays.preview(ANN).blocked[0]["reason"] == "source shop is read-only: BullMQ 99 is not known"


def test_messages_sealed_with_a_key_that_is_no_longer_there(shop, bury, settings):
    bury(36)
    bury(4, tenant="acme")
    old = settings.REDRIVE["PAYLOAD_KEYS"]
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()
    bury(20)
    bury(5, tenant="acme")
    assert left_out() == (25, {"key_missing": 40})
    assert left_out(query="tenant:acme") == (5, {"key_missing": 4})
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [*settings.REDRIVE["PAYLOAD_KEYS"], *old]}
    config.payload_keys.cache_clear()
    assert left_out() == (65, {})


def test_a_key_that_was_there_only_for_a_while(shop, bury, settings):
    bury(30)
    own = settings.REDRIVE["PAYLOAD_KEYS"]
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()
    shut = bury(17)
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": own}
    config.payload_keys.cache_clear()
    bury(50)
    assert left_out() == (80, {"key_missing": 17})
    assert Payload.objects.filter(failure__in=shut).count() == 17


def test_tasks_that_no_live_worker_knows(shop, bury, store, settings, tmp_path):
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(tmp_path / "sources.toml")}
    config.sources.cache_clear()
    bury(2)
    bury(3, task="shop.gone")
    assert left_out() == (5, {})  # nobody lives, so nobody knows
    tasks = known_tasks(["shop.send"])
    store.set(keys.tasks("shop", tasks.digest), tasks.text)
    Worker.objects.create(source="shop", name="w@1", boot="b", seen_at=timezone.now(), queues=["emails"])
    store.hset(keys.workers("shop"), "w@1", json.dumps({"tasks": tasks.digest}))
    assert left_out() == (2, {"unknown_task": 3})
    (row,) = replays.preview(ANN).blocked
    assert "shop.gone" in row["reason"] and row["accept"] == "unknown_task"
    assert left_out(options=Options(accept=("unknown_task",))) == (5, {})
    # A message that names no task is told for what it is, and no option lets it go.
    bury(4, task="", caveats=Caveat.NO_FORM)
    assert left_out() == (2, {"unknown_task": 3, "no_form": 4})


def test_queues_that_a_worker_without_a_guard_consumes(shop, bury):
    bury(2)
    bury(3, queue="webhooks")
    bury(4, queue="webhooks", source="web")
    sampled(queue="webhooks")
    sampled(queue="emails", workers=2, guarded=2)
    assert left_out() == (6, {"unguarded": 3})
    (row,) = replays.preview(ANN).blocked
    assert row["reason"] == "queue webhooks: 2 of its 3 live workers have no guard" and row["accept"] == "unguarded"
    accepted = replays.preview(ANN, options=Options(accept=("unguarded",)))
    assert (accepted.replayable, accepted.blocked) == (9, [])
    assert any("2 of its 3 live workers" in text for text in accepted.warnings)


def test_a_replay_to_another_queue_requests_the_guards_of_that_one(shop, bury):
    bury(2)
    bury(3, queue="webhooks")
    sampled(queue="webhooks")
    assert left_out(options=Options(to_queue="webhooks")) == (0, {"unguarded": 5})
    assert left_out(options=Options(to_queue="emails")) == (5, {})


def test_members_of_chords_and_not_of_plain_groups(shop, bury):
    bury(2, headers='{"group": "g", "group_index": 3}')
    bury(3, caveats=Caveat.CHORD)
    assert left_out() == (2, {"chord": 3})
    assert left_out(options=Options(accept=("chord",))) == (5, {})


def test_messages_that_have_expired(shop, bury):
    now = timezone.now()
    bury(2, caveats=Caveat.EXPIRES, expires_at=now + timedelta(hours=1))
    bury(3, caveats=Caveat.EXPIRES, expires_at=now - timedelta(hours=1))
    bury(4, caveats=Caveat.EXPIRES | Caveat.CHORD, expires_at=now - timedelta(hours=1))
    assert left_out() == (2, {"expired": 3, "chord": 4})
    assert left_out(options=Options(accept=("chord",))) == (2, {"expired": 7})
    assert left_out(options=Options(accept=("chord", "expired"))) == (9, {})


def test_what_is_accepted_is_started_and_what_is_not_stays(shop, bury):
    past = timezone.now() - timedelta(hours=1)
    bury(1)
    bury(2, caveats=Caveat.CHORD)
    bury(3, caveats=Caveat.EXPIRES, expires_at=past)
    bury(4, queue="webhooks")
    sampled(queue="webhooks")
    assert started(accept=("expired",)) == 4
    assert started(accept=("chord", "unguarded")) == 6
    assert Replay.objects.count() == 2
