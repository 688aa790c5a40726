"""The list of workers: page, API and command show the same facts, to those who may see the source."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import config, policies
from jobs_admin.core import keys
from jobs_admin.fleet import heartbeats, listing, stranded
from jobs_admin.models import Source, Worker
from jobs_admin.models.access import ENGINE
from tests.conftest import forget_configuration
from tests.kit.pages import text_of


@pytest.fixture
def shops(db, store):
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)
    Source.objects.create(name="bank", is_configured=True, is_reachable=True)
    return store


def hear(store, name: str = "w1@a", source: str = "shop", jobs=(), more: int = 0, **values) -> None:
    now = timezone.now()
    counts = {"webhooks": {"started": 7, "succeeded": 4}, "emails": {"started": 3, "failed": 2, "retried": 1}}
    fields = {"name": name, "boot": f"b{name[1]}", "at": now.timestamp(), "host": "web-3", "release": "2026.11"}
    fields |= {"guard": "0.1.0", "celery": "5.6.0", "pool": "prefork", "concurrency": 4, "mode": "enforce"}
    fields |= {"queues": ["webhooks", "emails"], "counts": counts, "memory": 90 * 2**20, "policies": {"hooks": 3}}
    store.hset(keys.workers(source), name, json.dumps(fields | values))
    if jobs:
        listed = [["tag", job, "shop.send", "webhooks", True] for job in jobs]
        store.hset(keys.in_hand(source), fields["boot"], json.dumps({"worker": name, "jobs": listed, "more": more}))
    heartbeats.count_heartbeats(now)


def test_a_live_worker_is_shown_with_what_it_runs_counted_and_has_in_hand(ann, shops):
    hear(shops, jobs=[f"job-{n}" for n in range(7)], more=2)
    text = text_of(ann.get("/workers/"))
    assert "All 1 Live 1 Gone 0" in text
    assert "w1@a shop · web-3 · release 2026.11 · prefork × 4 live" in text
    assert "webhooks , emails 9 10 4 2 1 90.0" in text.replace("webhooks,", "webhooks ,")
    assert "0.1.0 enforce" in text and "hooks v3" in text
    assert "job-0 in webhooks" in text and "job-4 in webhooks and 4 more" in text and "job-5" not in text


def test_what_needs_attention_is_a_sentence(ann, shops):
    hear(shops, refused={"hooks": "needs a guard of 0.2"}, spooled=1, dropped=12, mode="off")
    text = text_of(ann.get("/workers/"))
    for sentence in (
        "Policy hooks: the version in force is not used: needs a guard of 0.2",
        "1 report waiting on its disk: the store did not answer or was full.",
        "12 reports lost: its disk was full or could not be written to.",
        "The guard is off: failures of this worker are not recorded.",
    ):
        assert sentence in text


def test_a_gone_worker_keeps_its_counts_and_nothing_live_is_claimed_of_it(ann, shops):
    hear(shops, jobs=["job-1"])
    Worker.objects.update(seen_at=timezone.now() - timedelta(seconds=31))
    text = text_of(ann.get("/workers/?state=gone"))
    assert "All 1 Live 0 Gone 1" in text and "gone" in text and "31 s ago" in text
    assert "hooks v3" not in text and "90.0" not in text and "job-1" not in text
    assert "No workers in this state." in text_of(ann.get("/workers/?state=live"))


@pytest.fixture
def gone_with_a_job(shops, shop):
    """A worker that is gone, and took a job with it that it had acknowledged before it ran."""
    hear(shops)
    ago = timezone.now() - timedelta(seconds=60)
    values = {"worker": "w1@a", "at": ago.timestamp(), "jobs": [["", "job-1", "shop.send", "webhooks", False]]}
    shops.hset(keys.in_hand("shop"), "b1", json.dumps(values))
    Worker.objects.update(seen_at=ago)


@pytest.mark.usefixtures("gone_with_a_job")
def test_what_a_gone_worker_took_with_it_is_shown_once_the_sample_found_it(ann):
    assert "1 job was running" not in text_of(ann.get("/workers/"))
    Source.objects.filter(name="shop").update(findings=[{"id": stranded.FINDING}])
    text = text_of(ann.get("/workers/"))
    assert "1 job was running in worker w1@a" in text and "the job is lost" in text
    assert "Return" not in text  # no broker holds it


def test_only_workers_of_visible_sources_are_listed_on_page_api_and_terminal(vera, ann, shops):
    hear(shops, "w1@a", "shop")
    hear(shops, "w2@b", "bank")
    assert "w2@b" in text_of(ann.get("/workers/"))
    text = text_of(vera.get("/workers/"))
    assert "w1@a" in text and "w2@b" not in text and "All 1" in text
    out = io.StringIO()
    call_command("workers", "list", stdout=out)
    assert (
        "shop w1@a  live; 10 started, 2 failed, 1 retried, 0 in hand; guard 0.1.0 enforce; queues webhooks, emails"
        in (out.getvalue())
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_pages_follow_each_other_and_each_worker_is_on_one(shops, limit):
    for source in ("bank", "shop"):
        for name in ("w1@a", "w2/b", "w3 c"):
            hear(shops, name, source)
    found, after = [], ""
    while True:
        page = listing.worker_page(ENGINE, timezone.now(), after=after, limit=limit)
        found += [(row.source, row.worker) for row in page.rows]
        if page.next is None:
            break
        assert listing.is_cursor(page.next)
        after = page.next
    assert found == [(source, name) for source in ("bank", "shop") for name in ("w1@a", "w2/b", "w3 c")]


def test_the_page_takes_as_many_queries_for_many_workers_as_for_one(ann, shops):
    counts = []
    for more in (1, 20):
        for n in range(more):
            hear(shops, f"w{n}@many")
        ann.get("/workers/")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert ann.get("/workers/").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 12, counts


HOSTILE = {
    "policies": {"a/b": 1, "": 2, "<b>": 3, "new": 4, "hooks": 5} | {f"p{n:04}": 1 for n in range(2_000)},
    "refused": {"a/b": "x", "": "y"} | {f"p{n:04}": "x" * 300 for n in range(2_000)},
    "queues": ["", {}, None, "a/b", "..", "<b>"],
    "memory": -5,
    "guard": "0.1\u202e",
    "mode": "off\u202e",
}


def test_a_heartbeat_that_claims_anything_neither_breaks_nor_fills_the_page(ann, call_api, shops):
    hear(shops, "w1@a", jobs=["", "<b>"], more=-7, **HOSTILE)
    hear(shops, "w2@b")
    page = ann.get("/workers/")
    text = text_of(page)
    assert page.status_code == 200 and len(page.content) < 100_000 and "\u202e" not in page.text
    assert "hooks v5" in text and "p0018 v1" in text and "p0019 v1" not in text and "and 480 more" in text
    answer = call_api("GET", "workers")
    first = answer.json()["items"][0]
    assert len(answer.content) < 100_000 and len(first["policies"]) == 500 and len(first["refused"]) == 20
    assert first["in_hand"] == 2 and first["queues"] == ["a/b", "..", "<b>"]


def test_a_policy_for_other_sources_is_not_named_by_a_worker_that_cannot_read_it(vera, ann, call_api, shops):
    for name, source in (("bank-hooks", "bank"), ("shop-hooks", "shop")):
        policies.publish(ENGINE, name, {"mode": "observe", "match": {"source": source}})
    hear(shops, refused={"bank-hooks": "needs a guard of 0.2", "shop-hooks": "needs a guard of 0.3"})
    assert "bank-hooks" in text_of(ann.get("/workers/"))
    text = text_of(vera.get("/workers/"))
    assert "bank-hooks" not in text and "Policy shop-hooks: the version in force is not used" in text
    answer = call_api("GET", "workers", role="viewer", source="shop").json()
    assert list(answer["items"][0]["refused"]) == ["shop-hooks"]


def test_without_the_store_the_stored_facts_are_shown_and_no_others_are_claimed(ann, call_api, shops, settings):
    hear(shops, jobs=["job-1"])
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    text = text_of(ann.get("/workers/"))
    assert "The store does not answer." in text and "w1@a" in text and "hooks v3" not in text
    assert "webhooks , emails – 10 4 2 1 – 0.1.0" in text.replace("webhooks,", "webhooks ,")
    found = call_api("GET", "workers").json()["items"][0]
    assert (found["started"], found["in_hand"], found["memory"]) == (10, None, None)
    out = io.StringIO()
    call_command("workers", "list", stdout=out)
    assert "1 retried, jobs in hand unknown; guard" in out.getvalue()


def test_the_empty_page_has_the_next_step(ann, store):
    assert "No guarded workers. Workers appear here with their first heartbeat" in text_of(ann.get("/workers/"))


def test_the_api_has_the_same_facts(call_api, shops):
    hear(shops, jobs=["job-1"])
    answer = call_api("GET", "workers").json()
    assert answer["count"] == 1 and answer["next"] is None
    found = answer["items"][0]
    assert found["memory"] == 90 * 2**20 and found["policies"] == {"hooks": 3} and found["is_alive"]
    assert found["jobs"] == [{"job_id": "job-1", "task": "shop.send", "queue": "webhooks"}] and found["in_hand"] == 1
    assert call_api("GET", "workers", after="nothing").status_code == 422


def test_a_worker_that_was_stopped_in_order_is_not_shown_as_gone(ann, shops):
    hear(shops, name="w1@a"), hear(shops, name="w2@a")
    shops.hset(keys.boot("shop", "b1"), "gone", "1")
    Worker.objects.update(seen_at=timezone.now() - timedelta(seconds=31))
    page = ann.get("/workers/").content.decode()
    assert page.count("</svg>stopped") == 1 and page.count("</svg>gone") == 1
