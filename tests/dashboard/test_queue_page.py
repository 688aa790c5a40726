"""One queue over time, for those who may see it."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs_admin.models import DepthSample, Release, Rule, Source, Worker
from tests.kit.depths import create_samples, roll
from tests.kit.failures import bury
from tests.kit.pages import clock_of, text_of

SPANS = ("1h", "6h", "24h", "7d", "30d", "90d", "400d")


@pytest.fixture
def now():
    return timezone.now().replace(microsecond=0)


def page(client, queue="emails", source="shop", **query):
    return client.get(reverse("redrive:queue-detail", args=[source, queue]), query)


@pytest.fixture
def history(db, now):
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=now)
    create_samples(now - timedelta(hours=2), 720)
    roll(now)


@pytest.mark.parametrize("span", SPANS)
def test_each_span_has_three_pictures_and_a_table(ann, watched, history, span):
    shown = page(ann, span=span).content.decode()
    assert shown.count('class="plot"') == 3 and f'aria-current="true">Last {span[:-1]} {span[-1]}</a>' in shown
    assert 'class="line line-dead" d="M' in shown and 'id="depth-table"' in shown
    values = json.loads(html.unescape(re.search(r'data-chart="([^"]+)"', shown)[1]))
    assert values["at"] and len(values["at"]) == len(values["series"]["dead"]) <= 700


@pytest.mark.parametrize(("minutes", "span"), [(10, "1h"), (90, "6h"), (60 * 12, "24h")])
def test_a_new_queue_is_not_shown_with_a_day_in_which_no_one_checked(ann, watched, db, now, minutes, span):
    create_samples(now - timedelta(minutes=minutes), 30)
    assert page(ann).context["window"].name == span


def test_what_it_shows_now_is_above(ann, watched, history):
    bury(3, queue="emails")
    text = text_of(page(ann))
    assert re.search(r"Dead 3 Oldest dead .* Waiting \d+ Active – Delayed – Retrying 0", text)
    assert "View dead jobs" in text and "Replay dead jobs" in text


@pytest.mark.parametrize(
    ("grade", "message"),
    [
        (
            "early-window",
            "up to 4 running jobs (a policy can record lost jobs for replay: file_lost) and up to 1 in-flight message may be lost",
        ),
        ("late", "no jobs are lost"),
    ],
)
def test_what_a_kill_of_its_workers_would_take_is_shown(ann, watched, db, now, grade, message):
    Worker.objects.create(source="shop", name="w1", boot="b", seen_at=now, queues=["emails"], concurrency=4)
    DepthSample.objects.create(
        source="shop", queue="emails", at=now, step=10, workers=3, guarded_workers=1, durability=grade
    )
    text = text_of(page(ann))
    assert f"If the guarded worker is killed now, {message}." in text
    assert "1 of 3 guarded: failures in the other 2 are not recorded." in text


def test_a_queue_whose_source_is_not_configured_offers_no_replay(ann, watched, db, now):
    Source.objects.create(name="shop", is_configured=False, is_reachable=False, sampled_at=now)
    bury(3, queue="emails")
    text = text_of(page(ann))
    assert "View dead jobs" in text and "Replay dead jobs" not in text


def test_a_stretch_that_was_chosen_is_shown_finer_and_can_be_left_again(ann, watched, history, now):
    since = now - timedelta(minutes=50)
    shown = page(ann, since=int(since.timestamp()), until=int(since.timestamp()) + 600).content.decode()
    assert "10 s per step" in shown and "Zoom out" in shown and 'rel="next"' in shown
    assert 'aria-current="true"' not in re.search(r'aria-label="Time range".*?</nav>', shown, re.S)[0]


def zoomed_out(client, **query):
    found = re.search(r'href="([^"]+)">Zoom out', page(client, **query).content.decode())
    return html.unescape(found[1]) if found else ""


def test_no_zoom_leads_into_the_future_or_beyond_what_is_stored(ann, watched, history, now):
    complete = parse_qs(urlsplit(zoomed_out(ann, span="24h")).query)
    since, until = (datetime.fromisoformat(complete[one][0]) for one in ("since", "until"))
    assert until <= timezone.now() and timedelta(hours=47) < until - since < timedelta(hours=49)
    assert zoomed_out(ann, span="400d") == ""


def test_long_steps_that_are_not_filled_in_yet_are_not_called_nothing(ann, watched, db, now):
    create_samples(now - timedelta(minutes=10), 30)  # and not folded
    text = text_of(page(ann, span="400d"))
    assert "Select a shorter range for recent data" in text and "Select a longer range" not in text
    assert f"{now - timedelta(days=400):%b %Y} – now" in text and f" {now:%Y} " not in text_of(page(ann, span="24h"))


@pytest.mark.parametrize(
    "requested",
    [{"span": "x"}, {"since": "x"}, {"since": "9" * 11}, {"since": "-5"}, {"since": "2026-02-31"}, {"until": "0"}, {"since": "0"}, {"hide": "x,dead"}, {"since": "10", "until": "5"}],
)  # fmt: skip
def test_an_address_that_means_nothing_is_still_a_page(ann, watched, history, requested):
    assert page(ann, **requested).status_code == 200


def test_lines_can_be_left_out(ann, watched, history):
    shown = page(ann, hide="waiting").content.decode()
    assert 'class="line line-waiting" d=""' in shown and 'line-waiting is-off"' in shown
    assert "hide=waiting%2Cdead" in shown  # what leads to the next is told


def test_gaps_show_why_and_marks_show_what(ann, watched, history, now):
    DepthSample.objects.filter(step=10, at__gte=now - timedelta(minutes=20), at__lt=now - timedelta(minutes=10)).update(
        is_reachable=False, why="<b>refused</b>", waiting=None
    )
    released = Release.objects.create(source="shop", version="<i>v2</i>", at=now - timedelta(minutes=5)).at
    answer = page(ann, span="1h")
    text, shown = text_of(answer), answer.content.decode()
    assert "The source did not answer: <b>refused</b>" in html.unescape(text) and "<b>refused" not in shown
    assert f"V {clock_of(released)} release <i>v2</i>" in html.unescape(text) and "<i>v2" not in shown
    assert shown.count('class="upright is-release"') == 3 and shown.count('class="hole"') >= 3


def test_messages_of_marks_that_are_close_to_each_other_do_not_print_over_each_other(ann, watched, history, now):
    for n, minutes in enumerate((60, 59, 58, 20)):
        Release.objects.create(source="shop", version=f"v{n}", at=now - timedelta(minutes=minutes))
    shown = page(ann, span="24h").content.decode()
    places = [float(x) for x in re.findall(r'<text class="letter is-release" x="([\d.]+)%"', shown)]
    assert shown.count('class="upright is-release"') == 3 * 4 and len(places) == 1
    assert len(re.findall(r'<span class="letter is-release"', shown)) == 4, "the list has them all"
    shown = page(ann, span="1h").content.decode()
    assert len(re.findall(r'<text class="letter is-release"', shown)) >= 2


def test_a_threshold_is_a_line_and_one_far_above_is_shown(ann, watched, history):
    Rule.objects.all().delete()
    for name, value, more in (
        ("near", 90, {}),
        ("far", 10**6, {}),
        ("other", 50, {"queue": "webhooks"}),
        ("off", 50, {"enabled": False}),
    ):
        Rule.objects.create(name=name, metric="dead", threshold=value, **more)
    shown = page(ann, span="1h").content.decode()
    assert "near: warning" in shown and "other: warning" not in shown and "off: warning" not in shown
    assert "Off scale: far: warning at 1,000,000." in html.unescape(text_of(page(ann, span="1h")))


def test_a_queue_that_was_never_checked_shows_it(ann, watched, db):
    bury(2, queue="emails")
    text = text_of(page(ann))
    assert "Not sampled yet: only worker reports are shown" in text and "No data for this period." in text


def test_a_source_that_does_not_answer_and_a_watch_that_stopped_are_shown(ann, store, history):
    Source.objects.update(is_reachable=False, why_unreachable="refused", changed_at=timezone.now())
    text = text_of(page(ann))
    assert "This source does not answer." in text and "Not watching" in text


@pytest.mark.parametrize(
    "queue", ["", "a/b", "..", "../../audit", "a%2Fb", "~", "ä ö", "x" * 200, "<script>", "\u202e"]
)
def test_whatever_a_queue_is_called_the_list_leads_to_it(ann, watched, db, queue):
    bury(1, queue=queue)
    (link,) = re.findall(r'class="row-link" href="(/queues/shop/[^"]+)"', ann.get("/queues/").content.decode())
    shown = ann.get(html.unescape(link))
    assert shown.status_code == 200 and shown.context["queue"] == queue


def test_out_of_sight_is_not_there(vera, otto, watched, history):
    assert page(vera).status_code == 200 and "Replay dead jobs" not in page(vera).content.decode()
    for source, queue in (("bank", "emails"), ("shop", "nothing")):
        create_samples(timezone.now() - timedelta(minutes=1), 1) if source == "shop" else None
        assert page(vera, queue=queue, source=source).status_code == 404


def test_a_page_makes_the_same_number_of_queries_at_any_span(ann, watched, history):
    page(ann)
    counts = set()
    for span in SPANS:
        with CaptureQueriesContext(
            connection,
        ) as requested:
            page(ann, span=span)
        counts.add(len(requested))
    assert max(counts) <= 26, counts


def test_what_did_not_change_is_not_sent_again(ann, watched, history, now):
    def get_page(**headers):
        until = int((now - timedelta(minutes=10)).timestamp())
        return ann.get(
            reverse("redrive:queue-detail", args=["shop", "emails"]), {"since": until - 600, "until": until},
            headers={"HX-Request": "true", **headers},
        )  # fmt: skip

    first = get_page()
    assert get_page(**{"If-None-Match": first["ETag"]}).status_code == 304


def test_its_counts_name_the_time_of_their_sample(ann, watched, history):
    sampled_at = DepthSample.objects.filter(step=10).latest("at").at
    text = text_of(page(ann))
    assert f"Waiting, active and delayed as of {clock_of(sampled_at, 'seconds')} UTC; sampled every 10 s." in text
    assert "Jobs per minute (2 min avg)" in text and "failed for good" in text
