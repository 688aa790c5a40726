"""Policies that workers find in Redis, and when."""

from __future__ import annotations

import json
import threading

import pytest
import redis

from jobs_admin import config, policies
from jobs_admin.core import keys
from jobs_admin.core.policy import parse
from jobs_admin.policies import pushing
from tests.kit.people import ANN

pytestmark = [pytest.mark.django_db, pytest.mark.server]


@pytest.fixture
def published(store):
    """The names and versions that workers would read."""
    return lambda: {name.decode(): json.loads(text)["version"] for name, text in store.hgetall(keys.policies()).items()}


@pytest.fixture
def at_once(django_capture_on_commit_callbacks):
    return lambda: django_capture_on_commit_callbacks(execute=True)


def number(store):
    return int(store.get(keys.policies_version()))


def test_what_is_published_is_in_redis_at_once(store, publish, at_once):
    with at_once():
        made = publish()
    data = json.loads(store.hget(keys.policies(), "emails"))
    assert (data["name"], data["version"]) == ("emails", 1)
    assert parse(data["policy"]) == made.policy


def test_the_number_rises_with_every_change(store, publish, at_once):
    with at_once():
        publish()
    before = number(store)
    with at_once():
        publish(expected=1, cap_s=90)
    assert number(store) > before


def test_a_withdrawn_policy_is_gone_from_redis(store, publish, published, at_once):
    with at_once():
        publish()
        publish("others", match={"task": "others"})
    with at_once():
        policies.withdraw(ANN, "emails")
    assert published() == {"others": 1}


def test_what_redis_lost_is_brought_back_under_a_number_of_its_own(store, publish, published):
    publish()
    policies.push()
    before = number(store)
    store.flushall()
    assert policies.push() and published() == {"emails": 1}
    assert number(store) > before
    assert not policies.push()


@pytest.mark.parametrize("text", [b"", b"not json", b'{"name": "emails", "version": 9}'])
def test_what_another_person_wrote_is_put_right(store, publish, published, text):
    publish()
    policies.push()
    store.hset(keys.policies(), mapping={"emails": text, "strange": text})
    assert policies.push() and published() == {"emails": 1}


def test_a_store_without_policies_is_left_alone(store):
    assert not policies.push()
    assert store.keys("*") == []


def test_publishing_does_not_wait_for_a_store_that_is_away(settings, publish, at_once):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    with at_once():
        made = publish()
    assert policies.get(ANN, "emails") == made
    with pytest.raises(redis.RedisError):
        policies.push()


def test_who_read_the_tables_before_a_newer_change_does_not_undo_it_in_redis(store, publish, published, monkeypatch):
    publish()
    read, other = pushing._documents, threading.local()

    def read_and_be_overtaken():
        found = read()
        if not hasattr(other, "came"):
            other.came = True
            publish(expected=1, cap_s=90)
            policies.push()
        return found

    monkeypatch.setattr(pushing, "_documents", read_and_be_overtaken)
    policies.push()
    assert published() == {"emails": 2}
