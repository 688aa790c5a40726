"""12 of 14 workers on v7: who runs what."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from jobs_admin import config, policies
from jobs_admin.core import keys
from jobs_admin.fleet import heartbeats
from jobs_admin.worker.heartbeat import known_tasks
from tests.kit.people import ANN, LOU

pytestmark = [pytest.mark.django_db, pytest.mark.server]


@pytest.fixture
def beat(store):
    heartbeats._last_heard.clear()

    def beats(name, source="shop", queues=("emails",), mode="enforce", tasks=("shop.mail",), **fields):
        now = timezone.now()
        known = known_tasks(tasks)
        store.set(keys.tasks(source, known.digest), known.text)
        word = {"source": source, "name": name, "boot": "b", "at": now.timestamp(), "queues": queues, "mode": mode}
        word |= {"tasks": known.digest} | fields
        store.hset(keys.workers(source), name, json.dumps(word))
        heartbeats.count_heartbeats(now)

    return beats


def test_workers_are_counted_by_the_version_that_they_run(beat, publish):
    publish()
    publish(expected=1, cap_s=90)
    beat("w1", policies={"emails": 2})
    beat("w2", policies={"emails": 1})
    beat("w3", policies={})
    found = policies.in_force(ANN, policies.published(ANN))["emails"]
    assert found.on == {2: 1, 1: 1, None: 1}
    assert found.sentence == "1 of 3 workers on v2"


def test_only_workers_of_the_source_and_queue_count(beat, publish):
    publish(match={"source": "shop", "queue": "emails"})
    beat("w1", policies={"emails": 1})
    beat("w2", queues=["reports"])
    beat("w3", source="billing")
    assert policies.in_force(ANN, policies.published(ANN))["emails"].worker_count == 1


def test_workers_of_sources_out_of_sight_are_not_counted(beat, publish):
    publish(match={})
    beat("w1", policies={"emails": 1})
    beat("w2", source="billing", policies={"emails": 1})
    assert policies.in_force(LOU, policies.published(LOU))["emails"].sentence == "1 of 1 workers on v1"


def test_a_ceiling_below_the_policys_mode_is_reported(beat, publish):
    publish(mode="enforce")
    for name, mode in (("w1", "enforce"), ("w2", "observe"), ("w3", "capture"), ("w4", "off")):
        beat(name, mode=mode)
    assert policies.in_force(ANN, policies.published(ANN))["emails"].held_back == {"observe": 1, "capture": 1, "off": 1}


def test_a_worker_that_cannot_use_a_version_reports_why(beat, publish):
    publish()
    beat("w1", policies={}, refused={"emails": "unknown field"})
    assert policies.in_force(ANN, policies.published(ANN))["emails"].refused == {"w1": "unknown field"}


def test_workers_of_one_name_in_two_sources_each_report_why(beat, publish):
    publish("wide", match={"source": "*"})
    for source, why in (("shop", "unknown field"), ("billing", "too long")):
        beat("w1", source=source, policies={}, refused={"wide": why})
    refused = policies.in_force(ANN, policies.published(ANN))["wide"].refused
    assert refused == {"shop/w1": "unknown field", "billing/w1": "too long"}


def test_starts_that_were_not_counted_are_reported_where_the_policy_counts_something(beat, publish):
    publish(poison={"crashes": 3})
    publish("plain", match={"source": "shop", "task": "shop.plain"})
    beat("w1", uncounted=2)
    beat("w2", uncounted=1)
    beat("w3", uncounted="many")
    found = policies.in_force(ANN, policies.published(ANN))
    assert (found["emails"].uncounted, found["plain"].uncounted) == (3, 0)


def test_jobs_that_were_not_stored_are_reported_where_the_policy_files_them_as_lost(beat, publish):
    publish(file_lost=True)
    publish("plain", match={"source": "shop", "task": "shop.plain"})
    beat("w1", unkept=2)
    beat("w2", unkept=1)
    found = policies.in_force(ANN, policies.published(ANN))
    assert (found["emails"].unkept, found["plain"].unkept) == (3, 0)


def test_jobs_of_an_unsure_queue_are_reported_with_each_policy_that_they_may_have_missed(beat, publish):
    publish()
    beat("w1", unplaced=2)
    beat("w2", unplaced=1)
    assert policies.in_force(ANN, policies.published(ANN))["emails"].unplaced == 3


def test_without_a_store_no_one_knows(publish, settings):
    made = publish()
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": ""}
    config.store.cache_clear()
    found = policies.in_force(ANN, [made])["emails"]
    assert not found.is_known and found.sentence.startswith("Not known")


def test_each_task_that_workers_know_has_its_policy_or_none(beat, publish):
    publish()
    beat("w1", tasks=["shop.mail", "shop.other"])
    assert [(row.task, row.queue, row.policy and row.policy.name) for row in policies.by_task(ANN)] == [
        ("shop.mail", "", "emails"),
        ("shop.other", "", None),
    ]


def test_a_task_whose_queues_have_different_policies_has_a_row_for_each(beat, publish):
    publish(match={"source": "shop", "queue": "emails"})
    beat("w1", queues=["emails", "slow"])
    assert [(row.queue, row.policy and row.policy.name) for row in policies.by_task(ANN)] == [
        ("emails", "emails"),
        ("slow", None),
    ]
