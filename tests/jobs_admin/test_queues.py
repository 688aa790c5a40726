"""Every queue, the worst first, page by page, whatever strangers name theirs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs_admin import queues
from jobs_admin.models import DepthSample
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.overview import NOW, bury, count

pytestmark = pytest.mark.django_db


def test_queues_show_the_latest_sample_the_live_dead_and_the_rates():
    for age, waiting in ((20, 9), (10, 4)):
        at = NOW - timedelta(seconds=age)
        DepthSample.objects.create(
            source="shop", queue="webhooks", at=at, waiting=waiting, dead=0, oldest_dead_at=NOW - timedelta(hours=1)
        )
    bury(3), bury(2, state="retrying"), bury(1, queue="emails")
    count(50, 2, succeeded=100)
    webhooks, emails = queues.queue_page(ENGINE, now=NOW).rows
    assert (webhooks.waiting, webhooks.dead, webhooks.retrying, webhooks.oldest_dead_age_s) == (4, 3, 2, 3600)
    assert (webhooks.failed_per_minute, webhooks.succeeded_per_minute) == (10, 20)
    assert (emails.dead, emails.reachable, emails.waiting) == (1, None, None)


def test_a_queue_that_is_no_longer_sampled_shows_its_last_sample_with_its_age():
    DepthSample.objects.create(source="shop", queue="webhooks", at=NOW - timedelta(hours=2), waiting=4)
    (row,) = queues.queue_page(ENGINE, now=NOW).rows
    assert row.sampled_at == NOW - timedelta(hours=2)


def names(page):
    return [row.queue for row in page.rows]


def sampled(queue, **changes):
    DepthSample.objects.create(source="shop", queue=queue, **{"at": NOW, "waiting": 4} | changes)


def test_the_most_dead_come_first_then_what_fails_most_often_then_the_rest():
    bury(1, queue="few"), bury(3, queue="many"), bury(2, queue="later", state="retrying"), sampled("calm")
    count(5, 1, queue="loud"), count(1, 1, queue="few", source="web"), count(2, 1, queue="few")
    page = queues.queue_page(ENGINE, now=NOW)
    assert names(page) == ["many", "few", "loud", "few", "calm", "later"]
    assert (page.count, page.next) == (6, None)


def test_each_queue_comes_once_from_page_to_page():
    for n in range(11):
        bury(n // 4, queue=f"q~{n}"), count(n % 3, 1, queue=f"q~{n}"), sampled(f"q~{n}")
    found, after = [], None
    while True:
        page = queues.queue_page(ENGINE, after=after, limit=3, now=NOW)
        found, after = found + names(page), page.next
        if after is None:
            break
        assert len(page.rows) == 3 and page.count == 11
    assert found == names(queues.queue_page(ENGINE, now=NOW)) and len(set(found)) == 11


@pytest.mark.parametrize(
    "after", ["", "1", "~~~", "x~1~shop~q", "1~1~shop", "1~1~s\0~q", "9" * 30 + "~1~s~q", "-1~1~s~q", "1~1~\ud800~q"]
)
def test_what_is_no_cursor_begins_at_the_beginning(after):
    bury(1)
    assert not queues.is_cursor(after)
    assert names(queues.queue_page(ENGINE, after=after, now=NOW)) == ["webhooks"]


def test_a_viewer_sees_the_queues_of_the_own_sources_alone():
    bury(1), bury(1, source="bank", queue="loans"), count(1, 1), sampled("calm")
    assert names(queues.queue_page(Viewer("bo", {"bank": "viewer"}), now=NOW)) == ["loans"]
    assert queues.queue_page(Viewer("no"), now=NOW) == queues.QueuePage([], None, 0)
    assert names(queues.queue_page(ENGINE, source="bank", now=NOW)) == ["loans"]


def test_a_page_costs_the_same_however_many_queues(django_assert_max_num_queries):
    for n in range(30):
        bury(queue=f"q{n}"), count(5, 1, queue=f"q{n}"), sampled(f"q{n}")
    with django_assert_max_num_queries(7):
        assert len(queues.queue_page(ENGINE, limit=10, now=NOW).rows) == 10
