from __future__ import annotations

import html
import json
import re
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit

from django.urls import reverse
from django.utils import timezone

from dashboard.web.middleware import identity
from jobs_admin import policies
from jobs_admin.core import keys
from jobs_admin.db import counters
from jobs_admin.desk import overview
from jobs_admin.fleet import heartbeats, uncaptured
from jobs_admin.models import (
    Alert,
    DepthSample,
    Group,
    GroupCounter,
    Release,
    Replay,
    Rule,
    Source,
    Total,
    Unfiled,
    Worker,
)
from jobs_admin.models.access import ENGINE
from tests.kit.alerts import episode, rule
from tests.kit.depths import create_samples, roll
from tests.kit.failures import bury, dead
from tests.kit.groups import group
from tests.kit.pages import HTMX, clock_of, count_of_link, text_of


def fail_now(n: int, queue: str = "webhooks") -> None:
    at = timezone.now().replace(second=0, microsecond=0)
    counters.add_queue_counts({("shop", queue, at): {"failed": n}})


def test_it_opens_with_the_sentence(ann, watched):
    bury(group=group(), tenant="acme")
    fail_now(900)
    page = ann.get("/").content.decode()
    title = re.search(r"<h1>(.*?)</h1>", page)[1]
    assert title.startswith("webhooks: ") and "failed attempts/min" in title and title.count("; ") <= 2
    assert "1 tenant affected." in text_of(ann.get("/")) and "View failed jobs</a>" in page


def test_a_desk_without_anything_shows_what_to_do(ann, watched):
    text = text_of(ann.get("/"))
    assert "No failed jobs yet." in text and 'install(app, source="celery")' in text
    for words in (
        "CELERY_BROKER_URL",
        "manage.py worker-wheel",
        "REDRIVE_REDIS_URL",
        "manage.py doctor",
        "docs/workers.md",
    ):
        assert words in text, words
    assert text.count("No source yet.") == 1


def test_a_source_without_a_worker_shows_how_to_connect_the_first_one_until_it_reports(ann, watched):
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)
    words = "No worker of shop has reported yet."
    text = text_of(ann.get("/"))
    assert words in text and 'install(app, source="shop")' in text and "CELERY_BROKER_URL" not in text
    Worker.objects.create(source="shop", name="w1@vm", boot="b", seen_at=timezone.now() - timedelta(days=1))
    assert words not in text_of(ann.get("/"))


def test_dead_now_is_what_its_links_show(ann, watched):
    bury(3)
    bury(2, queue="e mails")
    bury(4, state="recovered")
    page = ann.get("/").content.decode()
    dead = dict(re.findall(r'<a class="number count-of-state" href="([^"]+)">(\d+)</a>', page))
    assert sorted(map(int, dead.values())) == [2, 3]
    assert all(count_of_link(ann, html.unescape(link)) == int(n) for link, n in dead.items())


def test_an_unreachable_source_is_shown_with_since_when_and_why(ann, watched):
    bury()
    Source.objects.filter(name="shop").update(
        is_reachable=False, changed_at=timezone.now() - timedelta(minutes=4), why_unreachable="Connection refused"
    )
    text = text_of(ann.get("/"))
    assert "unreachable shop" in text and "Connection refused" in text


def test_unsafe_settings_of_a_source_are_shown_with_what_to_do(ann, watched):
    finding = {"id": "maxmemory-policy", "severity": "high", "text": "Jobs may be dropped.", "fix": "Set noeviction."}
    Source.objects.create(name="shop", findings=[finding])
    assert "shop: Jobs may be dropped. Set noeviction." in text_of(ann.get("/"))


def test_reports_that_no_worker_could_keep_are_shown_with_their_host(ann, watched):
    since = timezone.now() - timedelta(minutes=4)
    Total.objects.create(
        metric=uncaptured.METRIC, source="shop", queue="web-3", task="a", error=since.isoformat(), value=1_234
    )
    text = text_of(ann.get("/"))
    assert "shop: 1,234 reports of host web-3 could not be captured since" in text


def test_a_budget_that_could_not_be_queried_and_an_exceeded_limit_are_shown_for_an_hour(ann, watched):
    Source.objects.create(name="shop")
    now = timezone.now()

    def beat(boot: str, at: datetime, **counts: int) -> None:
        reported = {"source": "shop", "name": "w1", "boot": boot, "at": at.timestamp(), "queues": ["emails"], **counts}
        watched.hset(keys.workers("shop"), "w1", json.dumps(reported))
        heartbeats.count_heartbeats(at)
        overview.forget()

    beat("b1", now, overrun=0, shared_out=0)
    assert "budget could not be read" not in text_of(ann.get("/")) and "limit was exceeded" not in text_of(ann.get("/"))
    beat("b1", now - timedelta(minutes=61), overrun=1, shared_out=12)
    assert "budget could not be read" not in text_of(ann.get("/"))
    beat("b1", now - timedelta(minutes=5), overrun=1, shared_out=13)
    page = ann.get("/")
    text = text_of(page)
    assert "shop: the retry budget could not be read, last 5 min ago" in text
    assert "13 retries made by the workers’ own shares." in text
    assert "limit was exceeded" not in text_of(page) and 'href="/policies/"' in page.content.decode()
    beat("b2", now, overrun=2, shared_out=0)
    assert "shop: a limit was exceeded by 2 jobs, last" in text_of(ann.get("/"))


def test_a_watch_that_stopped_is_shown_before_any_number(ann, watched):
    ended = timezone.now() - timedelta(minutes=7)
    for step in ("ingest", "sample"):
        watched.hset(keys.steps(), step, json.dumps({"at": ended.timestamp()}))
    page = ann.get("/").content.decode()
    assert page.index(f"Not watching since {clock_of(ended)}") < page.index("<h1>Data may be out of date")


def test_a_store_that_does_not_answer_leaves_the_page_readable(ann, store, settings):
    from jobs_admin import config

    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    bury()
    text = text_of(ann.get("/"))
    assert "No answer from Redrive's own Redis (127.0.0.1:1)" in text and "Dead jobs" in text
    assert "Check that Redis is running" in text and "manage.py watch" not in text


def test_reports_that_could_not_be_filed_are_shown(ann, watched):
    Unfiled.objects.create(entry_id="1-1", received_at=timezone.now(), why="NUL", body=b"x", size=1)
    assert "1 report could not be filed. The reports are stored" in text_of(ann.get("/"))


def test_a_replay_under_way_shows_how_far_it_is(ann, watched):
    bury()
    running = Replay.objects.create(state="running", scope_max_id=1, total=1200, succeeded=400, failed_again=12)
    text = text_of(ann.get("/"))
    assert f"#{running.pk} running" in text and "412 of 1,200" in text


def test_the_picture_has_a_table_with_the_same_numbers(ann, watched):
    fail_now(1234)
    page = ann.get("/").content.decode()
    chart = json.loads(html.unescape(re.search(r'data-chart="([^"]+)"', page)[1]))
    assert sum(chart["series"]["webhooks"]) == 1234 and '<td class="number">1,234</td>' in page


def test_the_live_part_is_the_page_without_its_shell(ann, watched):
    part = ann.get("/", headers=HTMX).content.decode()
    assert part.lstrip().startswith('<div id="overview"') and "<nav" not in part


def test_the_role_of_one_source_shows_that_source_alone(vera, watched):
    bury(queue="webhooks")
    bury(source="bank", queue="transfers")
    assert "transfers" not in text_of(vera.get("/")) and "webhooks" in text_of(vera.get("/"))


def test_it_costs_the_same_for_one_failure_and_for_many(ann, watched, shop, django_assert_max_num_queries):
    bury(group=group())
    ann.get("/")
    overview.forget()
    with django_assert_max_num_queries(65):
        ann.get("/")
    for n in range(20):
        bury(50, group=group(f"Error{n}"), queue=f"queue-{n}")
    overview.forget()
    with django_assert_max_num_queries(65):
        ann.get("/")


def test_a_held_replay_is_among_what_needs_attention_also_behind_many_later_ones(ann, watched):
    why, at = "6 of the last 6 jobs failed again with <ReadTimeout>.", timezone.now()
    row = {"scope_max_id": 1, "actor": "ann", "state": "held", "total": 1_396, "state_since": at, "held_because": why}
    first = Replay.objects.create(**row, planned=1_055)
    for n in range(11):
        Replay.objects.create(scope_max_id=1, actor="ann", state="running", total=10, planned=n)
    text, page = text_of(ann.get("/")), ann.get("/").text
    message = f"Replay #{first.pk} is held since {clock_of(at)} : 1,055 jobs not sent. {why}"
    assert message.replace(" : ", ": ") in text.replace(" : ", ": ") and text.index("is held") < text.index(
        "need attention"
    )
    assert page.index("is held") < page.index('aria-label="Sources"') and "&lt;ReadTimeout&gt;" in page
    assert f'<a href="/replays/{first.pk}/">Replay #{first.pk} is held</a>' in page
    for planned in (1, 2, 3):
        Replay.objects.create(**row, planned=planned)
    overview.forget()
    text = text_of(ann.get("/"))
    assert "3 jobs not sent" in text and "1 job not sent" in text
    assert "1,055 jobs not sent" not in text and "1 more replay is held" in text


def test_a_replay_under_way_has_the_bar_of_its_own_page(ann, watched):
    bury()
    Replay.objects.create(state="running", scope_max_id=1, total=100, succeeded=40, failed_again=10, planned=50)
    page = ann.get("/").content.decode()
    assert (
        re.search(r'part-succeeded" x="0(.0)?" width="40.0"', page)
        and 'part-failed_again" x="40.0" width="10.0"' in page
    )


def test_a_guard_that_is_off_is_shown_where_it_would_be_missed(ann, watched):
    bury()
    running = Replay.objects.create(state="running", scope_max_id=1, total=2, planned=2)
    pages = ("/", "/queues/", f"/replays/{running.pk}/")
    assert not any("The guard is off" in text_of(ann.get(page)) for page in pages)
    watched.set(keys.switch(), "off")
    overview.forget()
    assert all("The guard is off: nothing is recorded." in text_of(ann.get(page)) for page in pages)
    watched.set(keys.switch(), "drain")
    overview.forget()
    assert all("Workers only record: retry policies are not applied." in text_of(ann.get(page)) for page in pages)


def test_a_source_that_was_not_checked_lately_is_not_called_reachable(ann, watched):
    bury()
    checked = timezone.now() - timedelta(minutes=7)
    Source.objects.filter(name="shop").update(is_reachable=True, sampled_at=checked)
    for page, words in (("/", "last checked"), ("/queues/", "since")):
        text = text_of(ann.get(page))
        assert "not known" in text and f"{words} {clock_of(checked)}" in text and "reachable" not in text, page


def test_whoever_may_read_reports_that_could_not_be_filed_has_the_way_there(ann, vera, watched, django_user_model):
    Unfiled.objects.create(entry_id="1-0", received_at=timezone.now(), why="?", body=b"x", size=1)
    django_user_model.objects.filter(username="ann").update(is_staff=True)
    way = re.search(r'<a href="([^"]+)">View reasons', ann.get("/").content.decode())[1]
    assert ann.get(way).status_code == 200
    assert "An admin of every source can view the reasons" in text_of(vera.get("/"))


def test_dead_queues_beyond_the_worst_are_a_number_and_a_link(ann, watched):
    for n in range(14):
        bury(1, queue=f"q{n:02}")
    page = ann.get("/").content.decode()
    assert '<a href="/queues/">and 2 more queues</a>' in page and ">q11<" in page and ">q12<" not in page


def test_the_picture_is_there_before_any_script_and_needs_no_library(ann, watched):
    fail_now(1234)
    page = ann.get("/").content.decode()
    assert "<strong>1,234</strong>" in page and "<li>1,500</li><li>750</li><li>0</li>" in page
    assert re.search(r'<path class="bars series-\d" d="M[\d.]+ 1000v-823h', page)
    assert (
        re.findall(r'<script src="/static/redrive/([^"]+)"', page)[-1] == "js/charts.js"
        and "vendor" not in page.split("<body")[1]
    )


def test_a_queue_keeps_its_colour_when_ranks_change_and_a_queue_joins(ann, watched):
    def colours():
        overview.forget()
        page = ann.get("/").content.decode()
        bars, lines = page.split('<ul class="legend">')[1:3]
        of_bars = re.findall(
            r'class="bars series-(\d)" d="(M0 0h10v4|M0 0h10v10)[^>]*></path>\s*</svg>([\w ]+?) <strong', bars
        )
        of_lines = re.findall(r'class="line series-(\d)"[^>]*></path></svg><a [^>]*>(\w+)<', lines.split("</ul>")[0])
        assert [shape.endswith("4") for _, shape, _ in of_bars] == [n % 2 == 1 for n in range(len(of_bars))]
        assert {name: n for n, name in of_lines}.items() <= {name: n for n, _, name in of_bars}.items()
        return {name: n for n, _, name in of_bars}, [name for _, _, name in of_bars]

    for n, queue in enumerate(("webhooks", "emails", "payments", "imports", "reports")):
        fail_now(10 - n, queue=queue), bury(2, queue=queue)
    before, ranks = colours()
    assert sorted(before.values()) == ["1", "2", "3", "4", "5"] and ranks[0] == "webhooks"
    fail_now(20, queue="emails")
    after, ranks = colours()
    assert after == before and ranks[0] == "emails"
    fail_now(1, queue="sms")
    assert sorted(colours()[0].values()) == ["1", "2", "3", "4", "5", "6"]
    fail_now(1, queue="push")
    assert colours()[0] == before | {"2 others": "6"}


def test_many_who_check_the_same_sources_query_the_database_once(ann, vera, watched, django_assert_max_num_queries):
    bury(group=group())
    ann.get("/")
    with django_assert_max_num_queries(3):  # what could not be filed, what fires, and what is paused
        ann.get("/")
    assert "webhooks" in text_of(vera.get("/"))


def test_what_is_remembered_of_one_persons_sources_is_shown_to_no_one_else(ann, vera, watched):
    bury(source="bank", queue="transfers")
    assert "transfers" in text_of(ann.get("/")) and "transfers" not in text_of(vera.get("/"))


def test_who_acts_sees_it_at_once(ann, watched):
    (one,) = bury()
    assert "webhooks" in text_of(ann.get("/"))
    ann.post(reverse("redrive:failure-discard", args=[one.pk]), {"reason": "not needed"})
    assert "No dead jobs." in text_of(ann.get("/"))


def test_a_change_of_a_policy_is_a_line_in_the_picture_and_a_link_below_it(ann, watched):
    fail_now(5)
    policies.publish(ENGINE, "webhooks", {"match": {"task": "shop.deliver"}, "mode": "enforce"})
    page = ann.get("/").content.decode()
    assert "webhooks v1 in force</title></line>" in page and 'href="/policies/webhooks/versions/#v1"' in page
    assert 980 < float(re.search(r'<line class="change" x1="([\d.]+)"', page)[1]) <= 1000
    policies.withdraw(ENGINE, "webhooks")
    overview.forget()
    assert "webhooks v1 withdrawn" in text_of(ann.get("/"))


def test_dead_jobs_over_a_day_stand_with_thresholds_and_what_happened(ann, watched):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(hours=2), 720, "webhooks"), roll(now)
    bury(3)
    Rule.objects.all().delete()
    rule = Rule.objects.create(name="Growing", metric="dead", threshold=50)
    (
        Rule.objects.create(name="Far", metric="dead", threshold=10**6),
        Rule.objects.create(name="Of emails", metric="dead", queue="emails", threshold=5),
    )
    at = now - timedelta(minutes=30)
    row = {"severity": "warning", "value": 5, "threshold": 1, "opened_at": at, "fired_at": at, "state": "resolved"}
    alert = Alert.objects.create(rule=rule, source="shop", subject="webhooks", **row)
    Release.objects.create(source="shop", version="v2", at=at)
    overview.forget()
    text = text_of(ann.get("/"))
    assert f"Dead jobs by queue, since {clock_of(now - timedelta(hours=2))}, when sampling began" in text
    assert "5 min samples" in text and "off scale: Far: 1,000,000" in text
    assert "Growing: 50" in text and "Of emails" not in text
    assert "alert Growing: webhooks" in text and "release v2" in text
    assert reverse("redrive:alert-detail", args=[alert.pk]) in ann.get("/").content.decode()


def test_charts_of_a_desk_that_was_sampled_for_a_day_show_the_day(ann, watched):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(hours=25), 20, "webhooks"), create_samples(now - timedelta(hours=1), 360, "webhooks")
    roll(now), bury(3), fail_now(7)
    text = text_of(ann.get("/"))
    assert "Dead jobs by queue, last 24 h" in text and "Failed attempts by queue, last 24 h" in text


def test_charts_begin_with_the_first_failure_or_sample(ann, watched):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(minutes=6), 36, "webhooks"), roll(now)
    bury(3), fail_now(7)
    Release.objects.create(source="shop", version="zircon", at=now - timedelta(hours=5))
    page = ann.get("/").content.decode()
    began = clock_of(now - timedelta(minutes=6))
    assert text_of(ann.get("/")).count(f"since {began}, when sampling began") == 2
    values = json.loads(html.unescape(re.search(r'id="depth-chart" class="[^"]+" data-chart="([^"]+)"', page)[1]))
    assert now.timestamp() - values["since"] <= 8 * 60 and "zircon" not in page
    overview.forget()
    earlier = now - timedelta(hours=3)
    counters.add_queue_counts({("shop", "webhooks", earlier): {"failed": 2}})
    values = re.search(r'id="failures-chart" class="[^"]+" data-chart="([^"]+)"', ann.get("/").content.decode())[1]
    assert 0 <= earlier.timestamp() - json.loads(html.unescape(values))["since"] < 900


def test_the_line_of_a_queue_ends_with_the_number_beside_it(ann, watched):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(hours=2), 720, "webhooks"), roll(now)
    bury(3)
    page = ann.get("/").content.decode()
    depth = page[page.index('id="depth-chart"') : page.index('id="dead-title"')]
    assert "<strong>3</strong>" in depth and "&quot;webhooks&quot;:[" in depth and ",3]" in depth


def test_what_happened_elsewhere_is_not_shown(vera, watched):
    now = timezone.now().replace(microsecond=0)
    create_samples(now - timedelta(hours=2), 720, "webhooks"), roll(now)
    bury(3)
    Release.objects.create(source="bank", version="zircon", at=now - timedelta(minutes=30))
    overview.forget()
    text = text_of(vera.get("/"))
    assert "Dead jobs by queue" in text and "zircon" not in text


# --- the primary act ---------------------------------------------------------------------------------------------


def acts(client) -> list[tuple[str, str]]:
    """The primary act: its address and its text."""
    found = re.findall(r'<a class="button primary" href="([^"]+)">(.*?)</a>', client.get("/").content.decode(), re.S)
    return [(html.unescape(url), re.sub(r"<[^>]+>", "", text).strip()) for url, text in found]


def test_the_primary_act_is_the_replay_of_the_worst_alert_on_dead_jobs(otto, watched, shop):
    bury(9, queue="emails")
    bury(3)
    assert acts(otto)[0][1] == "Review and replay 9 emails jobs"
    episode("emails", value=9, threshold=5)
    episode("webhooks", of=rule(name="grave", severity="critical"), value=3, threshold=2)
    ((url, words),) = acts(otto)
    assert words == "Review and replay 3 webhooks jobs"
    assert parse_qs(urlsplit(url).query)["q"] == ["source:shop queue:webhooks state:dead"]
    assert count_of_link(otto, url) == 3 and "3 jobs" in text_of(otto.get(url))


def test_an_alert_on_part_of_a_queue_alone_leads_to_the_replay_of_that_part(otto, watched, shop):
    bury(9, tenant="acme")
    bury(2, tenant="lighthouse")
    episode("webhooks", of=rule(name="One customer", tenant="lighthouse"), value=2, threshold=1)
    ((url, words),) = acts(otto)
    assert words == "Review and replay 2 webhooks jobs of tenant lighthouse" and count_of_link(otto, url) == 2


def test_the_primary_act_skips_what_cannot_be_replayed(otto, watched, shop):
    episode("empty", value=900)
    bury(1)
    Source.objects.update(is_configured=False)
    assert acts(otto) == []
    Source.objects.update(is_configured=True)
    overview.forget()
    assert [words for _, words in acts(otto)] == ["Review and replay 1 webhooks job"]


def test_while_jobs_still_fail_the_primary_act_is_a_review_and_the_replay_has_the_number_of_its_preview(
    otto, watched, shop
):
    minute, now = timezone.now().replace(second=0, microsecond=0), timezone.now()
    down, gone = group("PartnerDown", "down", last_seen=now), group("KeyError", "'id'", last_seen=now)
    bury(5, group=down), bury(2, group=gone)
    GroupCounter.objects.create(group=down, at=minute - timedelta(minutes=2), failed=55)
    episode("webhooks", value=7, threshold=5)
    ((url, words),) = acts(otto)
    assert words == "Review 7 dead webhooks jobs" and url.startswith("/failures/") and count_of_link(otto, url) == 7
    page = otto.get("/").content.decode()
    preview, label = re.search(r'<a class="button" href="(/replays/new/[^"]+)">(.*?)</a>', page, re.S).groups()
    assert re.sub(r"<[^>]+>", "", label).strip() == "Preview a replay of 5 jobs"
    assert otto.get(html.unescape(preview)).context["preview"].replayable == 5
    assert "These jobs still fail: a replay now would likely fail again." in text_of(otto.get("/"))
    Group.objects.update(last_seen=now - timedelta(seconds=90))  # as the alert page and the preview have it: ended
    overview.forget()
    assert [words for _, words in acts(otto)] == ["Review and replay 5 webhooks jobs"]


def test_jobs_of_one_group_that_would_fail_again_are_reviewed_first_as_its_preview_warns(otto, watched, shop):
    bury(5, group=group("builtins.KeyError", "'id'", last_seen=timezone.now() - timedelta(hours=1)))
    alert = episode("webhooks", value=5, threshold=4)
    ((url, words),) = acts(otto)
    assert words == "Review 5 dead webhooks jobs" and url.startswith("/failures/")
    text = text_of(otto.get("/"))
    assert "Preview a replay of 5 jobs" in text and "These jobs would likely fail again: fix the cause first" in text
    assert "is likely to fail again: permanent" in text_of(
        otto.get("/replays/new/", {"q": "queue:webhooks state:dead"})
    )
    page = otto.get(f"/alerts/{alert.pk}/")
    assert "All 5 webhooks jobs would likely fail again: fix the cause first, then replay." in text_of(page)
    assert 'class="button primary"' not in page.content.decode()
    Group.objects.update(state="resolved")  # an operator says that it is fixed
    overview.forget()
    assert [words for _, words in acts(otto)] == ["Review and replay 5 webhooks jobs"]


def test_an_outage_that_ended_has_ended_on_every_screen_while_its_minutes_still_count(otto, watched, shop):
    minute, now = timezone.now().replace(second=0, microsecond=0), timezone.now()
    down = group("PartnerDown", "down", last_seen=now - timedelta(seconds=75))
    bury(5, group=down), bury(1, group=group("Gone", "away", last_seen=now - timedelta(hours=1)))
    GroupCounter.objects.create(group=down, at=minute - timedelta(minutes=2), failed=55)
    counters.add_queue_counts({("shop", "webhooks", minute - timedelta(minutes=2)): {"failed": 55}})
    alert = episode("webhooks", value=6, threshold=5)
    assert text_of(otto.get("/")).count("no failed attempt for 1 min, down from") == 1
    shown = text_of(otto.get(f"/alerts/{alert.pk}/"))
    assert "last failed 1 min ago (" in shown and "still failing" not in shown, shown
    preview = text_of(otto.get("/replays/new/", {"q": "state:dead"}))
    assert "still failing:" not in preview and "last failed 1 min ago" in preview
    assert "last failed 1 min ago" in text_of(otto.get(f"/groups/{down.fingerprint}/"))
    assert "/min</p>" not in otto.get("/groups/").content.decode()


def test_who_may_not_replay_sees_why(vera, otto, watched, settings):
    bury(3)
    text = text_of(vera.get("/"))
    assert "Replaying 3 webhooks jobs needs the role operator on shop." in text
    assert "/replays/new/" not in vera.get("/").content.decode()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    page = otto.get("/")
    assert "The desk is read-only: 3 webhooks jobs cannot be replayed." in text_of(page)
    assert "/replays/new/" not in page.content.decode()


def test_each_queue_and_each_group_has_its_replay_with_a_name_of_its_own(otto, watched, shop):
    one, other = group(), group(error_type="KeyError")
    bury(3, group=one), bury(2, group=other, queue="emails")
    page = otto.get("/").content.decode()
    found = re.findall(r'<a class="replay-link ?"\s+href="([^"]+)">(.*?)</a>', page, re.S)
    names = {html.unescape(url): re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text)) for url, text in found}
    assert sorted(count_of_link(otto, url) for url in names) == [2, 2, 3, 3]
    assert len(set(names.values())) == len(names) == 4
    assert "Replay 3 dead jobs of webhooks…" in names.values()


def test_no_replay_is_offered_of_a_queue_without_a_name(otto, watched, shop):
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)
    bury(5, queue=""), bury(2)
    assert [words for _, words in acts(otto)] == ["Review and replay 2 webhooks jobs"]
    assert count_of_link(otto, "/replays/new/?q=source%3Ashop+queue%3Awebhooks+state%3Adead") == 2


def test_queues_of_one_name_in_two_sources_are_two_in_sentence_and_chart(ann, watched, sources):
    now = timezone.now()
    bury(3), bury(2, source="bank"), bury(1, source="bank", queue="emails")
    DepthSample.objects.create(source="shop", queue="webhooks", step=10, at=now - timedelta(seconds=20), dead=3)
    text = text_of(ann.get("/"))
    assert "6 dead jobs in 3 queues" in text
    for name in ("shop/webhooks 3", "bank/webhooks 2"):
        assert name in text, name


def test_pages_run_few_queries_with_nothing_cached(ann, watched, shop, django_assert_max_num_queries):
    for error in ("TimeoutError", "KeyError", "ValueError"):
        dead(4, group=(latest := group(error)), error_type=error)
    Worker.objects.create(source="shop", name="w1", boot="b", seen_at=timezone.now())
    create_samples(timezone.now() - timedelta(minutes=4), 24, "webhooks")
    for path, most in (("/", 62), (f"/groups/{latest.fingerprint}/", 22)):
        ann.get(path)  # its modules are imported
        overview.forget()
        identity.forget()
        with django_assert_max_num_queries(most):
            assert ann.get(path).status_code == 200
