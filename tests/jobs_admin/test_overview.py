from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dashboard.web.figures import number
from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.policy import document, parse
from jobs_admin.desk import overview
from jobs_admin.groups import group_numbers
from jobs_admin.models import (
    DepthSample,
    Failure,
    Group,
    GroupCounter,
    PolicyVersion,
    Replay,
    ReplayItem,
    Source,
    Worker,
)
from jobs_admin.models.access import ENGINE, VIEWER, Viewer
from jobs_admin.queues import rates
from tests.kit.overview import NOW, bury, count, tick

pytestmark = pytest.mark.django_db
BANKER = Viewer("ann", {"bank": "viewer"})


@pytest.fixture(autouse=True)
def watched(store):
    """The watch ended a round a second ago."""
    tick(store, NOW - timedelta(seconds=1))
    return store


def test_the_sentence_names_the_loudest_queue_its_rise_the_new_group_and_the_tenants():
    for minute in range(1, 6):
        count(312, minute)
        count(1, minute, queue="emails")
    count(78, 7)
    group = Group.objects.create(
        fingerprint="v1-a", error_type="E", message="", first_seen=NOW - timedelta(minutes=7), last_seen=NOW
    )
    for tenant in ("a", "b", "c", ""):
        bury(group=group, tenant=tenant)
    sentence = overview.sentence(ENGINE, NOW)
    assert str(sentence) == (
        "webhooks: 312 failed attempts/min, 40 times the 7.8/min before; 1 more failing queue; 4 dead jobs, oldest from 02:14 UTC"
    ), "three facts, the worst first"
    assert sentence.more == "1 new group in webhooks since 02:07 UTC; 3 tenants affected."
    assert sentence.tone == "trouble" and sentence.query.startswith("queue:webhooks since:2026-11-21T01:59")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (0, "/min, none in the 10 minutes before"),
        (180, "/min, as in the 10 minutes before"),
        (900, "/min, down from 90/min"),
        (60, "/min, 3 times the 6/min before"),
    ],
)
def test_the_sentence_reports_whether_it_gets_worse(before, words):
    count(90, 1)
    if before:
        count(before, 7)
    assert words in str(overview.sentence(ENGINE, NOW))


def test_an_alarm_that_goes_on_reports_when_it_began():
    count(400, 90)  # another one, an hour before
    for minute in (*range(1, 20), *range(23, 31)):  # in a flood a few minutes may be calm
        count(90, minute)
    assert "as in the 10 minutes before; failing since 01:44 UTC" in str(overview.sentence(ENGINE, NOW))
    for minute in range(31, 1441):
        count(90, minute)
    assert "; failing for a day or longer" in str(overview.sentence(ENGINE, NOW))


def test_a_wave_that_is_over_is_reported_as_over_while_its_minutes_still_count():
    for minute in range(2, 25):
        count(90, minute)
    assert str(overview.sentence(ENGINE, NOW)).startswith(
        "webhooks: no failed attempts in the last minute, down from 72/min over the last 5 minutes; had been failing since 01:50 UTC"
    )
    count(1, 1)
    assert "webhooks: 1 failed attempt in the last minute, down from 72" in str(overview.sentence(ENGINE, NOW))
    count(30, 0)  # it goes on, in the minute that runs
    assert "failed attempts/min, as in" in str(overview.sentence(ENGINE, NOW + timedelta(seconds=20)))


def test_an_alarm_reports_all_the_dead_and_since_when():
    count(11, 2, queue="emails")
    bury(702, failed_at=NOW.replace(day=20, hour=23, minute=12))
    bury(1, queue="emails")
    assert "; 703 dead jobs in 2 queues, oldest from 20 Nov 23:12 UTC" in str(overview.sentence(ENGINE, NOW))
    Failure.objects.filter(queue="webhooks").update(failed_at=NOW.replace(day=19, hour=7, minute=12))
    assert "dead jobs in 2 queues, oldest from 19 Nov 07:12 UTC" in str(overview.sentence(ENGINE, NOW))


def test_the_oldest_is_the_one_of_the_page_of_queues_however_late_it_arrived():
    count(11, 2)
    bury(1), bury(1, failed_at=NOW - timedelta(hours=3))
    sampled = {"queue": "webhooks", "at": NOW - timedelta(seconds=9), "step": 10, "is_reachable": True, "dead": 2}
    for source, hours in (("shop", 3), ("bank", 9)):
        DepthSample.objects.create(source=source, **sampled, oldest_dead_at=NOW - timedelta(hours=hours))
    assert "2 dead jobs, oldest from 20 Nov 23:14 UTC" in str(
        overview.sentence(Viewer("vera", {"shop": "viewer"}), NOW)
    )


def test_the_sentence_is_calm_when_nothing_is_wrong():
    assert str(overview.sentence(ENGINE, NOW)) == "No job has failed yet."
    bury(1204, failed_at=datetime(2026, 11, 19, 10, 2, tzinfo=UTC))
    sentence = overview.sentence(ENGINE, NOW)
    assert str(sentence) == "1,204 dead jobs, oldest from 19 Nov 10:02 UTC. No failures in the last hour."
    assert (sentence.tone, sentence.query) == ("calm", "state:dead")
    count(3, 40)
    none = "3 failed attempts in the last hour, in webhooks; none in the last 5 minutes."
    assert str(overview.sentence(ENGINE, NOW)).endswith(none)


def test_the_calm_sentence_has_the_rate_that_the_groups_of_its_queues_have():
    group = Group.objects.create(fingerprint="v1-a", error_type="E", message="m", first_seen=NOW, last_seen=NOW)
    for queue in ("emails", "orders", "webhooks"):
        count(4, 2, queue=queue)
    GroupCounter.objects.create(group=group, step=60, at=(NOW - timedelta(minutes=2)).replace(second=0), failed=12)
    per_minute, _ = group_numbers.over_time([group.pk], NOW)
    assert per_minute[group.pk] == rates.failed_per_minute(ENGINE, NOW) > 2
    assert f"; now {number(per_minute[group.pk])}/min." in str(overview.sentence(ENGINE, NOW))
    shop = Viewer("ann", {"shop": VIEWER})
    count(40, 2, source="bank")
    assert rates.failed_per_minute(shop, NOW) == per_minute[group.pk]


def test_no_one_hears_of_a_source_they_may_not_see():
    count(500, 1), bury(9)
    assert str(overview.sentence(BANKER, NOW)) == "No job has failed yet."
    assert overview.dead_by_queue(BANKER, NOW) == ([], 0)
    assert overview.failures_over_time(BANKER, NOW).queues == {}


def test_a_watch_that_stopped_is_reported_with_the_time(watched):
    tick(watched, NOW - timedelta(minutes=20))
    assert str(overview.sentence(ENGINE, NOW)) == "Not watching since 01:54 UTC."
    watched.delete(keys.steps())
    assert "has not run yet" in str(overview.sentence(ENGINE, NOW))


def test_a_store_that_does_not_answer_is_reported(settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    assert "No answer from Redrive's own Redis" in str(overview.sentence(ENGINE, NOW))


def test_sources_report_reachability_workers_and_unsafe_settings():
    finding = {"id": "eviction", "severity": "high", "text": "t", "fix": "f"}
    Source.objects.create(
        name="shop",
        is_configured=True,
        is_reachable=False,
        why_unreachable="refused",
        findings=[finding],
        sampled_at=NOW,
    )
    Worker.objects.create(source="shop", name="w1", boot="b", seen_at=NOW)
    Worker.objects.create(source="shop", name="w2", boot="b", seen_at=NOW - timedelta(hours=1))
    bury(2)
    (row,) = overview.sources(ENGINE, NOW)
    assert (row.reachable, row.why, row.workers, row.dead, row.age_s) == (False, "refused", 1, 2, 0)
    assert overview.findings(ENGINE) == [{"source": "shop", **finding}]
    assert overview.sources(BANKER, NOW) == []


def test_failures_over_time_are_summed_into_steps_up_to_now():
    count(5, 1), count(7, 2), count(1, 23 * 60), count(9, 25 * 60), count(2, 1, queue="emails")
    series = overview.failures_over_time(ENGINE, NOW)
    assert (series.step_s, len(series.times)) == (900, 96)
    assert series.times[-1] <= NOW.timestamp() < series.times[-1] + 900
    assert list(series.queues) == ["webhooks", "emails"] and sum(series.queues["webhooks"]) == 13
    assert series.queues["webhooks"][-1] == 12


def test_the_overview_costs_the_same_however_many_queues(django_assert_max_num_queries):
    for n in range(30):
        bury(queue=f"q{n}"), count(5, 1, queue=f"q{n}")
    with django_assert_max_num_queries(8):
        overview.sentence(ENGINE, NOW)


def test_only_open_replays_that_touch_a_visible_source_are_running():
    (one,) = bury()
    for state in ("draft", "running", "held", "done"):
        replay = Replay.objects.create(scope_max_id=1, actor="ann", state=state)
        if state == "running":
            ReplayItem.objects.create(replay=replay, n=1, failure=one, run=2)
    assert [r.state for r in overview.running_replays(ENGINE)] == ["held", "running"]
    assert overview.running_replays(BANKER) == []


def test_the_fullest_queues_are_reported_and_the_others_counted():
    for n in range(15):
        bury(n + 1, queue=f"q{n:02}"), count(n + 1, 1, queue=f"q{n:02}")
    dead, more = overview.dead_by_queue(ENGINE, NOW)
    assert (len(dead), dead[0], more) == (12, ("shop", "q14", 15), 3)
    series = overview.failures_over_time(ENGINE, NOW).queues
    assert list(series) == ["q14", "q13", "q12", "q11", "q10", "10 others"]
    assert sum(series["10 others"]) == sum(range(1, 11)) and series["10 others"][-1] == sum(range(1, 11))


def test_sources_that_name_themselves_push_no_configured_one_out():
    Source.objects.create(name="zoo", is_configured=True)
    Source.objects.bulk_create(Source(name=f"s{n}") for n in range(60))
    assert next(iter(overview.sources(ENGINE, NOW))).name == "zoo"
    assert (len(overview.sources(ENGINE, NOW)), overview.more_sources(ENGINE)) == (50, 11)
    assert overview.more_sources(BANKER) == 0


def version(name, n, at, *, ended=None, source="shop", mode="enforce"):
    policy = document(parse({"name": name, "mode": mode, "match": {"source": source, "task": name}}))
    PolicyVersion.objects.create(
        document=policy, version=n, published_at=at, is_published=ended is None, ended_at=ended, published_by="ann"
    )


def test_changes_of_policies_are_marked_in_the_time_of_the_picture():
    hours = [NOW - timedelta(hours=n) for n in range(30)]
    version("emails", 1, hours[28], ended=hours[5])
    version("emails", 2, hours[5])
    version("webhooks", 1, hours[3], ended=hours[1], mode="observe")  # withdrawn
    version("old", 1, hours[27])
    version("bank", 1, hours[2], source="bank")
    version("wide", 1, hours[4], source="b*")
    marks = overview.board(ENGINE, NOW).policies
    assert [(mark.at, mark.version, mark.mode) for mark in marks] == [
        (hours[5], "emails@2", "enforce"),
        (hours[4], "wide@1", "enforce"),
        (hours[3], "webhooks@1", "observe"),
        (hours[2], "bank@1", "enforce"),
        (hours[1], "webhooks@1", ""),
    ]
    assert [mark.version for mark in overview.board(BANKER, NOW).policies] == ["wide@1", "bank@1"]
