"""Failures that workers could not capture are reported once on the desk, whoever reads it and however often."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs_admin import trust
from jobs_admin.core import keys
from jobs_admin.fleet import uncaptured
from jobs_admin.models import Source, Total
from jobs_admin.models.access import ENGINE, VIEWER, Viewer

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def known_sources(db):
    Source.objects.bulk_create([Source(name="shop"), Source(name="crm")])
    trust.forget()


def note_dropped(
    store, name: str, count: int, *, source="shop", host="web-3", ago=timedelta(minutes=5), last=timedelta(0)
):
    fields = {"host": host, "count": count}
    fields |= {"since": (NOW - ago).timestamp(), "last": (NOW - last).timestamp()}
    store.hset(keys.dropped(source), name, json.dumps(fields))


def list_counts(viewer=ENGINE, **options):
    return [(one.source, one.host, one.count) for one in uncaptured.recent_counts(viewer, NOW, **options)]


def test_it_is_reported_with_its_host_and_since_when(store):
    note_dropped(store, "a", 12_345)
    uncaptured.record_counts(NOW)
    (one,) = uncaptured.recent_counts(ENGINE, NOW)
    assert (one.source, one.host, one.count) == ("shop", "web-3", 12_345)
    assert one.since == NOW - timedelta(minutes=5)


def test_reading_twice_and_an_older_word_add_nothing(store):
    for count in (5, 5, 9, 7):
        note_dropped(store, "a", count)
        uncaptured.record_counts(NOW)
        uncaptured.record_counts(NOW)
    assert list_counts() == [("shop", "web-3", 9)]


def test_lives_of_one_host_are_added_and_hosts_distinguished(store):
    note_dropped(store, "a", 5)
    note_dropped(store, "b", 6)
    note_dropped(store, "c", 1, host="web-4")
    note_dropped(store, "d", 2, source="crm")
    uncaptured.record_counts(NOW)
    assert list_counts() == [("shop", "web-3", 11), ("crm", "web-3", 2), ("shop", "web-4", 1)]
    assert list_counts(source="crm") == [("crm", "web-3", 2)]
    assert uncaptured.totals_by_source(ENGINE) == [("crm", 2), ("shop", 12)]


def test_it_outlives_the_store(store):
    note_dropped(store, "a", 5)
    uncaptured.record_counts(NOW)
    store.flushall()
    uncaptured.record_counts(NOW)
    assert list_counts() == [("shop", "web-3", 5)]


def test_what_is_long_over_is_forgotten_in_the_store_and_shown_no_more_but_counted(store):
    note_dropped(store, "a", 5, ago=timedelta(days=8), last=timedelta(days=8))
    note_dropped(store, "b", 6, ago=timedelta(days=8))  # goes on
    uncaptured.record_counts(NOW)
    assert store.hkeys(keys.dropped("shop")) == [b"b"]
    assert list_counts() == []
    assert uncaptured.totals_by_source(ENGINE) == [("shop", 11)]


def test_no_one_sees_what_a_source_that_is_not_shown_to_them_lost(store):
    note_dropped(store, "a", 5)
    uncaptured.record_counts(NOW)
    assert list_counts(Viewer(name="vera", roles={"crm": VIEWER})) == []
    assert uncaptured.totals_by_source(Viewer(name="vera", roles={"crm": VIEWER})) == []


def test_hostile_words_are_left_out_and_forgotten(store):
    for name, text in enumerate((b"", b"[]", b"{", b'{"host": "h", "count": 0, "since": 1, "last": 1}',
                 b'{"source": "shop", "host": "h", "count": -1, "since": 1, "last": 1}',
                 b'{"source": "shop", "host": "h", "count": 1e400, "since": 1, "last": 1}',
                 b'{"source": "shop", "host": "h", "count": 1, "since": NaN, "last": 1}',
                 b'{"source": "shop", "host": "h", "count": 1, "since": 1, "last": NaN}')):  # fmt: skip
        store.hset(keys.dropped("shop"), f"x{name}", text)
        store.hset(keys.shared("dropped"), f"x{name}", text)
    store.hset(keys.shared("dropped"), "y", '{"source": "../x", "host": "h", "count": 1, "since": 1, "last": 1}')
    uncaptured.record_counts(NOW)
    assert not store.hlen(keys.dropped("shop")) and not store.hlen(keys.shared("dropped"))
    assert not Total.objects.exists()


def test_of_what_is_old_the_sum_of_each_source_remains_and_nothing_comes_twice(store):
    for number in range(30):
        ago = timedelta(days=40, minutes=number)
        # Some go on, and the store tells of them again and again.
        note_dropped(store, f"n{number}", 1, ago=ago, last=timedelta(0) if number < 10 else ago)
    note_dropped(store, "young", 1)
    for _ in range(3):
        uncaptured.record_counts(NOW)
    assert uncaptured.totals_by_source(ENGINE) == [("shop", 31)]
    assert Total.objects.count() == 10 + 1 + 1
