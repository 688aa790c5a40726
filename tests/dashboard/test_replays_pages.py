from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from html.parser import HTMLParser
from io import StringIO

import pytest
from django.core.management import call_command
from django.db.models import Count
from django.urls import reverse
from django.utils import timezone

from dashboard.replays import api_shapes as replay_shapes
from dashboard.replays import outlook as replay_outlook
from dashboard.replays import paces as replay_paces
from dashboard.replays import page as replay_page
from dashboard.replays import preview as replay_preview
from jobs_admin import config, replays, trust
from jobs_admin.core import policy as policy_language
from jobs_admin.core.figures import clock
from jobs_admin.core.pacing import Controller, parse, settled
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.desk import overview
from jobs_admin.management.commands.replay import _progress_line
from jobs_admin.models import (
    Attempt,
    AuditEvent,
    DepthSample,
    Failure,
    Group,
    GroupCounter,
    Payload,
    PolicyVersion,
    QueueCounter,
    RefusedReports,
    Replay,
    ReplayItem,
    Source,
    UnsignedReports,
)
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.replays import acts, previewing, progress, spread
from jobs_admin.replays.outcomes import Unattended
from tests.kit.failures import dead, forget
from tests.kit.groups import group
from tests.kit.pages import HTMX, carried, text_of
from tests.kit.replays import BOB, create_replay_on_hold, died_of, moved, running

NEW = "/replays/new/"


# ---------- new replay ----------


def test_a_preview_shows_how_many_where_and_how_long_and_changes_nothing(ann, shop):
    dead(100, queue="emails")
    answer = ann.get(NEW, {"q": "queue:emails"})
    text = answer.content.decode()
    assert "Replay 100 jobs to emails" in text and "3 s" in text and "50/s" in text
    assert not Replay.objects.exists() and Failure.objects.filter(state="dead").count() == 100


def test_errors_of_one_title_are_distinguished_by_where_they_fail(ann, shop):
    dead(2, group=group("E", culprit="shop/a.py in send"), task="shop.deliver")
    dead(1, group=group("E", fingerprint="v1-b", message="no answer (tenant: cobalt)"), task="shop.stock")
    page = ann.get(NEW, {"q": "error:TimeoutError"}).content.decode()
    assert "task shop.deliver · shop/a.py in send" in page
    assert "(tenant: cobalt) no answer</span>" in page and "task shop.stock" in page


def test_no_search_and_no_selection_is_not_everything(ann, shop):
    dead(2)
    text = ann.get(NEW).content.decode()
    assert "No jobs selected" in text and 'value="start"' not in text
    assert "Replay 2 jobs" in ann.get(NEW, {"q": ""}).content.decode()


def test_what_is_left_out_is_there_with_its_reason(ann, shop):
    dead(2)
    dead(1, is_complete=False)
    dead(1, state="discarded")
    text = ann.get(NEW, {"q": "state:any"}).content.decode()
    assert "Replay 2 jobs" in text and "too large" in text and "discarded" in text


def test_the_button_starts_exactly_what_was_shown(ann, shop):
    dead(3, queue="emails")
    answer = ann.get(NEW, {"q": "queue:emails"})
    dead(2, queue="emails")  # what came later is not in it
    form = carried(answer) | {"step": "start", "reason": "partner is back", "amount": "10"}
    answer = ann.post(NEW, form)
    replay = Replay.objects.get()
    assert answer.url == f"/replays/{replay.pk}/"
    assert (replay.total, replay.state, replay.pace["rate"], replay.actor) == (3, "running", 10, "ann")


def test_more_than_a_hundred_are_replayed_carefully_unless_a_person_shows_otherwise(ann, shop):
    dead(101)
    page = ann.get(NEW, {"q": "queue:webhooks"})
    text = page.content.decode()
    assert page.context["style"] == "careful" and 'value="careful" checked' in text
    assert "Starts with 50 jobs. If 70 % succeed, ramps from 5/s to 1,000/s" in text
    ann.post(NEW, carried(page) | {"step": "start", "reason": "back", "style": "careful", "amount": "50"})
    pace = Replay.objects.get().pace
    assert pace["style"] == "careful" and pace["canary"]["jobs"] == 50


def test_a_preview_without_dead_jobs_reports_this_and_no_missing_right(ann, shop):
    ids = dead(3)
    assert "Replay 3 jobs" in ann.get(NEW, {"q": "queue:webhooks"}).text
    Failure.objects.filter(pk__in=ids).update(state="recovered")
    assert "All 3 jobs recovered. Back" in text_of(ann.get(NEW, {"q": "queue:webhooks state:any"}))
    assert "No job matches. Back" in text_of(ann.get(NEW, {"q": "queue:webhooks state:dead"}))
    one = {"selection": str(ids[0])}
    assert "The job recovered. Back" in text_of(ann.get(NEW, one))
    Failure.objects.update(state="retrying")
    assert "The job is excluded; see the reason listed. Back" in text_of(ann.get(NEW, one))
    assert "All 3 jobs are excluded; see the reasons listed." in text_of(ann.get(NEW, {"q": "state:any"}))


def test_the_plan_shows_its_end_and_what_failures_would_change(ann, shop):
    dead(300)
    context = ann.get(NEW, {"q": "queue:webhooks"}).context
    planned, some, half = context["endings"]
    assert planned.end and some.title == "10 % fail again" and "held after ~" in half.words
    assert "as soon as too many have failed. In this random run: " in half.words
    assert context["picture"].canary_x and context["picture"].future.count("V") > 20
    assert any("A job takes" in text for text in context["assumptions"])
    dead(3, queue="emails")
    (planned,) = ann.get(NEW, {"q": "queue:emails"}).context["endings"]
    assert planned.title == "Duration"


def test_the_picture_begins_low_and_rises_to_what_the_ramp_ends_at(ann, shop):
    dead(3000)
    given = {"q": "queue:webhooks", "style": "careful", "ramp_from": "5", "ramp_to": "50"}
    picture = ann.get(NEW, given).context["picture"]
    heights = [1000 - float(y) for y in re.findall(r"V([\d.]+)H", picture.future)]
    rates = [height / 1000 * float(picture.levels[0]) for height in heights]
    assert rates[0] < 8 and 45 < max(rates) <= 53 and sum(rates[-20:]) > 5 * sum(rates[:20])


def test_what_is_typed_under_advanced_comes_back_and_is_opened(ann, shop):
    dead(200)
    given = {
        "q": "queue:webhooks",
        "style": "careful",
        "canary_jobs": "7",
        "attempts": "number",
        "attempts_number": "3",
    }
    given |= {"window_from": "22:00", "window_to": "6:00", "window_days": ["mon", "sun"], "shuffle": "on"}
    text = ann.get(NEW, given).content.decode()
    assert '<details class="panel fold" id="advanced" open>' in text and "Starts with 7 jobs" in text
    assert 'name="canary_jobs" value="7"' in text and 'name="attempts_number"' in text and 'value="3"' in text
    assert text.count('name="window_days" value="mon" checked') == 1 and 'value="tue" checked' not in text
    plain = ann.get(NEW, {"q": "queue:webhooks"}).content.decode()
    assert '<details class="panel fold" id="advanced">' in plain and 'placeholder="50"' in plain


def test_an_advanced_part_that_cannot_be_is_refused_beside_its_field_and_nothing_starts(ann, shop):
    dead(200)
    form = carried(ann.get(NEW, {"q": "queue:webhooks"})) | {"step": "start", "reason": "x", "style": "careful"}
    answer = ann.post(NEW, form | {"canary_jobs": "many", "attempts": "number", "attempts_number": "0"})
    text = answer.content.decode()
    assert answer.status_code == 422 and not Replay.objects.exists()
    assert 'id="canary_jobs-refused"' in text and "This must be a whole number from 1 to 10,000" in text
    assert 'value="start" disabled' in text and 'id="advanced" open' in text


def test_options_are_started_as_typed(ann, shop):
    dead(200)
    form = carried(ann.get(NEW, {"q": "queue:webhooks"})) | {"step": "start", "reason": "x", "style": "careful"}
    form |= {
        "attempts": "number",
        "attempts_number": "3",
        "patch": '{"kwargs": {"dry_run": true}}',
        "stop_failed": "10",
    }
    assert ann.post(NEW, form).status_code == 302
    replay = Replay.objects.get()
    assert (replay.attempts, replay.patch) == ("3", {"kwargs": {"dry_run": True}})
    assert replay.pace["stop"]["failed"] == 0.1


def test_a_patch_is_shown_as_a_difference_of_each_job_and_what_is_hidden_stays_hidden(ann, shop):
    dead(12)
    given = {"q": "queue:webhooks", "patch": '{"kwargs": {"customer": {"name": null}, "dry_run": true}}'}
    page = ann.get(NEW, given)
    text = page.content.decode()
    assert len(page.context["changes"]) == 10 and text.count("<ins>") >= 10 and text.count("<del>") >= 10
    assert "dry_run" in text and "s3cret" not in text
    rest = ann.post(NEW, given | {"changes_after": str(page.context["changes_next"])})
    assert len(rest.context["changes"]) == 2 and "First jobs" in rest.content.decode()
    same = ann.get(NEW, given | {"patch": '{"kwargs": {"customer": {"id": 7}}}'}).content.decode()
    assert "No change: the job already has these arguments." in same


def test_what_came_after_the_first_check_is_shown_and_taken_in_only_on_request(ann, shop):
    dead(3)
    form = carried(ann.get(NEW, {"q": "queue:webhooks"}))
    dead(2)
    again = ann.post(NEW, form | {"step": "preview", "style": "steady", "amount": "10"})
    text = again.content.decode()
    assert "Replay 3 jobs" in text and "2 new matching jobs not included" in text
    repeated = ann.post(NEW, carried(again) | {"step": "anew"}).content.decode()
    assert "Replay 5 jobs" in repeated and 'id="arrived"' not in repeated


def test_what_is_left_out_and_may_be_accepted_has_a_box_that_stays_ticked(ann, shop):
    dead(3)
    dead(2, caveat="expired") if hasattr(Failure, "caveat") else None
    page = ann.get(NEW, {"q": "queue:webhooks", "accept": "expired"})
    text = page.content.decode()
    assert 'name="accept" value="expired" checked' in text and "Expired jobs" in text


def test_above_the_size_the_button_requests_approval_and_nothing_is_sent(ann, shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "5"}
    dead(6)
    page = ann.get(NEW, {"q": "queue:webhooks"})
    assert "Request approval to replay 6 jobs to webhooks" in page.content.decode()
    answer = ann.post(NEW, carried(page) | {"step": "start", "reason": "x", "style": "careful"})
    replay = Replay.objects.get()
    assert answer.url == f"/replays/{replay.pk}/" and replay.state == "awaiting_approval"
    shown = ann.get(answer.url).content.decode()
    assert "6 jobs waiting for another operator" in shown and "above 5, another operator must approve" in shown


def test_another_queue_is_named_on_the_button(ann, shop):
    dead(3)
    dead(1, queue="slow")
    text = ann.get(NEW, {"q": "queue:webhooks", "to_queue": "slow"}).content.decode()
    assert "Replay 3 jobs to slow" in text


def test_pressing_twice_starts_once(ann, shop):
    dead(3)
    form = carried(ann.get(NEW, {"q": "queue:webhooks"})) | {"step": "start", "reason": "back"}
    first, second = ann.post(NEW, form), ann.post(NEW, form)
    assert (first.status_code, second.status_code) == (302, 302) and first.url == second.url
    assert Replay.objects.filter(total=3).count() == 1 == Replay.objects.count()


def test_more_than_one_job_needs_a_reason_beside_its_field(ann, shop):
    dead(2)
    answer = ann.post(NEW, carried(ann.get(NEW, {"q": ""})) | {"step": "start"})
    assert answer.status_code == 422 and 'id="reason-refused"' in answer.content.decode()
    assert not Replay.objects.exists()


def test_all_at_once_wants_the_number_typed(ann, shop):
    dead(12)
    form = carried(ann.get(NEW, {"q": "", "style": "at_once"})) | {"step": "start", "reason": "x", "style": "at_once"}
    refused = ann.post(NEW, form | {"confirm": "11"})
    assert refused.status_code == 422 and "enter the number of jobs: 12" in refused.content.decode()
    assert ann.post(NEW, form | {"confirm": "12"}).status_code == 302
    assert Replay.objects.get().pace == {"style": "at_once"}


@pytest.mark.parametrize("amount", ["0", "-1", "fast", "1e999", "nan"])
def test_a_pace_that_cannot_be_is_refused_beside_its_field(ann, shop, amount):
    dead(2)
    answer = ann.post(NEW, carried(ann.get(NEW, {"q": ""})) | {"step": "start", "reason": "x", "amount": amount})
    assert 'id="pace-refused"' in answer.content.decode() and not Replay.objects.exists()


def test_a_scope_with_or_is_shown_with_its_parentheses(ann, shop):
    dead(2, error_type="shop.Timeout")
    requested = "queue:emails error:Timeout OR error:Refused"
    text = text_of(ann.get(NEW, {"q": requested}))
    assert 'All matching queue emails · (error has "Timeout" or error has "Refused")' in text
    assert requested not in text
    assert "All matching queue:emails · change" in text_of(ann.get(NEW, {"q": "queue:emails"}))


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        ({"style": "steady", "amount": "50"}, "50/s"),
        ({"style": "steady", "amount": "2.5"}, "2.5/s"),
        ({"style": "at_once"}, "all at once, at most 40 in any second"),
    ],
)
def test_a_pace_shows_one_maximum(ann, shop, pace, words):
    dead(40)
    assert f"<dt>Pace</dt><dd>{words}</dd>" in ann.get(NEW, {"q": "state:dead"} | pace).content.decode()


def test_careful_shows_by_name_the_rate_that_it_reaches_with_so_few_jobs(ann, shop):
    dead(120)
    seen = replays.preview(BOB, query="state:dead", pace={"style": "careful", "ramp": {"from": 5, "to": 500}})
    assert seen.peak_per_second < 500
    words = replay_preview._pace_words(seen)
    assert words == f"careful, up to 500/s; reaches {seen.peak_per_second:,.0f}/s"


def test_seconds_between_two_is_a_pace_too(ann, shop):
    dead(3)
    text = ann.get(NEW, {"q": "", "amount": "30", "unit": "every"}).content.decode()
    assert "one every 30 s" in text and "1 min" in text


def test_when_others_were_faster_it_is_shown_what_changed_and_shown_again(ann, shop):
    ids = dead(10)
    form = carried(ann.get(NEW, {"q": "queue:webhooks"})) | {"step": "start", "reason": "back"}
    Failure.objects.filter(pk__in=ids[:6]).update(state="recovered")
    answer = ann.post(NEW, form)
    text = answer.content.decode()
    assert answer.status_code == 409 and "4 can be replayed, 10 before" in text and "Replay 4 jobs" in text
    assert not ReplayItem.objects.exists()


def test_a_selection_is_carried_from_the_list_to_the_preview(ann, shop):
    ids = dead(5)
    answer = ann.post(NEW, {"step": "preview", "q": "state:dead", "selection": [str(ids[0]), f"{ids[1]},{ids[2]}"]})
    assert "Replay 3 jobs" in answer.content.decode()
    ann.post(NEW, carried(answer) | {"step": "start", "reason": "these"})
    assert Replay.objects.get().selection == ids[:3]


def test_a_viewer_may_not_open_it(vera, shop):
    assert vera.get(NEW, {"q": ""}).status_code == 403


def test_a_preview_queries_the_database_a_bounded_number_of_times(ann, shop, django_assert_max_num_queries):
    dead(200, group=group())
    with django_assert_max_num_queries(45):
        ann.get(NEW, {"q": "queue:webhooks"})


# ---------- a replay ----------


def test_the_page_shows_in_a_sentence_how_it_goes(ann, shop):
    replay = running()
    moved(replay, 1, "succeeded")
    moved(replay, 2, "failed_again", outcome="TimeoutError: again")
    text = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "Sending: 2 of 3 sent; 1 succeeded, 1 failed again." in text
    assert "2 of 3 sent; 2 of 2 settled, 100 %" in text and "partner is back" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state": "running", "planned": 1_105}, "Sending: 135 of 1,396 sent; 110 succeeded, 3 failed again."),
        ({"state": "ramping", "planned": 1_105}, "Ramping up: 135 of 1,396 sent; 110 succeeded, 3 failed again."),
        (
            {"state": "running", "planned": 0, "cancelled": 1_261},
            "135 of 1,396 sent, the rest is excluded; 110 succeeded",
        ),
    ],
)
def test_jobs_that_were_excluded_are_neither_sent_nor_settled(ann, shop, changes, sentence):
    replay = running()
    counts = {"total": 1_396, "cancelled": 156, "sent": 20, "running": 1, "uncertain": 1, "succeeded": 110}
    Replay.objects.filter(pk=replay.pk).update(**counts | {"failed_again": 3} | changes)
    text = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert sentence in text and "135 of 1,396 sent; 113 of 135 settled, 83 %" in text
    replay.refresh_from_db()
    assert "135 sent, 3 failed again" in _progress_line(replay)


def test_a_replay_that_nothing_moves_in_is_answered_with_not_modified(ann, shop):
    replay = running()
    Replay.objects.filter(pk=replay.pk).update(state="done", ended_at=timezone.now())
    url = f"/replays/{replay.pk}/"
    etag = ann.get(url, headers=HTMX)["ETag"]
    assert ann.get(url, headers=HTMX | {"If-None-Match": etag}).status_code in {200, 304}
    moved(replay, 1, "succeeded")
    assert ann.get(url, headers=HTMX | {"If-None-Match": etag}).status_code == 200


def test_where_a_source_does_not_report_careful_is_not_offered_and_the_end_shows_it(ann, shop, monkeypatch):
    monkeypatch.setattr(shop, "can", type(shop.can)(atomic_send=True, edit=True), raising=False)
    dead(101, queue="emails")
    page = ann.get(NEW, {"q": "queue:emails"}).content.decode()
    assert re.search(r'value="careful" disabled', page) and "Not available: shop does not report" in page
    refused = ann.get(NEW, {"q": "queue:emails", "style": "careful"}).content.decode()
    assert "shop does not report how its jobs end" in refused and "The plan below uses: 50/s" in refused
    replay = running(2, queue="slow")
    for n in (1, 2):
        moved(replay, n, "sent", settled_at=None)
    assert replays.settle()
    page = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "2 of 2 jobs sent. Their source does not report outcomes." in page
    assert '<div id="replay" class="stack replay">' in page  # nothing more comes: it does not ask again


def test_a_job_no_one_reports_is_settled_by_a_person_on_its_page(ann, shop, monkeypatch):
    monkeypatch.setattr(shop, "can", type(shop.can)(atomic_send=True, edit=True), raising=False)
    replay = running(1)
    while replays.send("test"):
        pass
    assert replays.settle()
    item = replay.items.get()
    url = f"/failures/{item.failure_id}/"
    page = ann.get(url).content.decode()
    assert "does not report results" in page and "is already replaying" not in page
    (action,) = re.findall(r'action="([^"]+/resolve/)"', page)
    assert ann.post(action, {"as": "lost"}).status_code == 302
    assert "Replay</button>" in ann.get(url).content.decode()


def test_pause_resume_and_cancel_are_plain_forms(ann, shop):
    replay = running()
    for act, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        answer = ann.post(f"/replays/{replay.pk}/{act}/", {"reason": "look first"})
        replay.refresh_from_db()
        assert (answer.status_code, replay.state) == (302, state)
    assert replay.cancelled == 3 and Failure.objects.filter(state="dead").count() == 3


def test_an_act_that_comes_too_late_is_shown_on_the_page(ann, shop):
    replay = running()
    replays.cancel(BOB, replay)
    answer = ann.post(f"/replays/{replay.pk}/pause/")
    assert answer.status_code == 409 and "is cancelled" in answer.content.decode()


def test_the_pace_is_changed_while_it_runs(ann, shop):
    replay = running()
    ann.post(f"/replays/{replay.pk}/pace/", {"amount": "5", "unit": "rate"})
    replay.refresh_from_db()
    assert replay.rate == 5
    answer = ann.post(f"/replays/{replay.pk}/pace/", {"amount": "0"})
    assert answer.status_code == 422 and 'id="pace-refused"' in answer.content.decode()


@pytest.mark.parametrize("step, rate", [("faster", 75), ("slower", 33.3)])
def test_one_press_makes_it_faster_or_slower(ann, shop, step, rate):
    replay = running()
    ann.post(f"/replays/{replay.pk}/pace/", {"step": step, "style": "steady", "amount": "999", "unit": "rate"})
    replay.refresh_from_db()
    assert replay.pace["rate"] == rate


def test_a_press_scales_where_a_ramp_ends_and_keeps_the_rest_of_the_pace():
    pace = {"style": "careful", "canary": {"jobs": 50}, "ramp": {"from": 5, "to": 12}, "in_flight": 300}
    slower = replay_paces.scaled(pace, 1 / 3)
    assert slower == pace | {"ramp": {"from": 4, "to": 4}}
    assert replay_paces.at_rate(pace, {"style": "steady", "rate": 60})["ramp"] == {"from": 5, "to": 60}
    assert replay_paces.scaled({"style": "at_once"}, 2) is None
    assert replay_paces.scaled({"style": "steady", "rate": 100_000}, 2) is None


def test_a_held_replay_shows_why_with_numbers_errors_and_what_to_do(ann, shop):
    replay = create_replay_on_hold(others=1, kind="canary", failed=2, judged=5, bound=0.12, limit=0.2)
    text = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "Held: 2 of 5 canary jobs failed again." in text and "2 of the last 5" in text
    assert "Cause fixed: resume all; the replay restarts" in text
    words = text_of(ann.get(f"/replays/{replay.pk}/"))
    # By the error that the jobs died of: unsent jobs are skipped by that. Each group is there once.
    assert "1 failed as before, 1 with a new error: PartnerDown" in words
    assert text.count('name="without_groups"') == 1 and 'checked data-jobs="1"' in text
    assert "Skip this group and resume without 1 of 2 unsent jobs" in words and "Resume all 2 unsent jobs" in words
    assert "Failed again, by group" not in words
    # Once both are settled with the error of before, these numbers agree with the rows below.
    known = Failure.objects.first().group
    for n in (1, 2):
        moved(replay, n, "failed_again", failed_group=known)
    assert "2 failed as before 2 1" in text_of(ann.get(f"/replays/{replay.pk}/"))
    Group.objects.update(error_type="Partner\u202eDown", culprit="shop.py in \u202esend")
    assert "\u202e" not in ann.get(f"/replays/{replay.pk}/").text


def test_a_held_replay_has_the_numbers_of_now_on_its_page_the_overview_and_the_list(ann, shop):
    replay = create_replay_on_hold(others=2, kind="workers_gone", unsettled=2, seconds=60, succeeded=0, failed_again=1)
    page, since = reverse("redrive:replay-detail", args=[replay.pk]), "Now, of"
    assert since not in ann.get(page).text and "No outcomes for" in ann.get(page).text
    moved(replay, 2, "succeeded"), moved(replay, 3, "succeeded"), moved(replay, 4, "failed_again")
    message = "Now, of 4 sent, 2 succeeded and 2 failed again; all are settled."
    overview.forget()
    for url in (page, reverse("redrive:overview"), reverse("redrive:replay-list")):
        assert message in text_of(ann.get(url)), url
    text = text_of(ann.get(page))
    assert "In flight 0" in text and "No outcomes for" not in text
    assert "Of 4 sent 2 succeeded, 2 failed again" in text
    assert replay_shapes.replay(Replay.objects.get(pk=replay.pk), "", 0.0, [], [])["held_because"].endswith(message)
    # An uncertain job is not settled.
    moved(replay, 2, "uncertain")
    text = text_of(ann.get(page))
    assert "Now, of 4 sent, 1 succeeded and 2 failed again; 1 uncertain." in text
    assert "Of 4 sent 1 succeeded, 2 failed again, 1 uncertain" in text
    moved(replay, 3, "sent")
    Replay.objects.update(evidence=replay.evidence | {"failed_again": 0})
    assert "Now, of 4 sent, 0 succeeded and 2 failed again; 1 not settled, 1 uncertain." in text_of(ann.get(page))


def test_a_limit_that_careful_learned_is_shown_until_the_pace_is_changed(ann, shop):
    """A learned limit may come from an outage during the climb: an operator can lift it."""
    replay = create_replay_on_hold(others=1, kind="failing", failed=20, judged=20)
    pace = settled(parse({"style": "careful", "rate": 40}), jobs=200)
    core = Controller(pace, timezone.now().timestamp()).as_dict() | {"cap": 15.0, "cap_of": 40.0, "bad": 20.0}
    Replay.objects.filter(pk=replay.pk).update(pace=pace.as_dict(), controller={"n": 1, "core": core})
    page = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "15/s: jobs failed at 20/s. Change the pace to lift the limit." in page
    assert f'action="/replays/{replay.pk}/pace/"' in page
    ann.post(f"/replays/{replay.pk}/pace/", {"style": "steady", "step": "", "amount": "30", "unit": "rate"})
    assert "Learned limit" not in ann.get(f"/replays/{replay.pk}/").content.decode()


def test_a_group_that_all_the_rest_died_of_is_not_to_be_gone_on_without(ann, shop):
    text = ann.get(f"/replays/{create_replay_on_hold(kind='canary', failed=2, judged=5).pk}/").content.decode()
    assert "all the rest: cancel instead" in text and 'name="without_groups"' not in text


def test_a_replay_that_ended_without_some_shows_how_many_were_never_sent():
    ended = Replay(state="done", total=10, succeeded=6, failed_again=1, cancelled=3)
    assert replay_page.sentence(ended) == "Of 10 jobs, 6 succeeded, 1 failed again. 3 not sent; they stay dead."


def test_what_its_source_refused_is_shown_as_not_sent_with_its_words_and_not_as_cancelled(ann, shop):
    (pk,) = dead(1)
    Payload.objects.update(body=config.payload_keys().encrypt(b"not json"))
    begun = replays.start(BOB, replays.draft(BOB, selection=[pk], pace={"style": "at_once"}, reason="x"))
    while replays.create_items() or replays.send("one"):
        pass
    replays.settle()
    for url in (f"/replays/{begun.pk}/", f"/failures/{pk}/"):
        text = text_of(ann.get(url))
        assert "not sent" in text and "shop refused it: The captured message is not JSON" in text, url
        assert "cancelled" not in text, url
    page = text_of(ann.get(f"/replays/{begun.pk}/"))
    assert "The job was not sent." in page and "0 of 1 sent; 1 not sent" in page
    for url in (f"/replays/{begun.pk}/", "/replays/"):
        html = ann.get(url).text
        assert re.search(r"not sent\s*</span>", html) and not re.search(r"done\s*</(span|title)>", html), url
    assert f"<title>Replay #{begun.pk}: not sent" in ann.get(f"/replays/{begun.pk}/").text


def test_the_rest_of_a_climb_takes_less_than_at_the_rate_it_begins_at(ann, shop):
    replay = running(3)
    climbing = {"pace": {"style": "careful", "ramp": {"from": 5, "to": 50}}, "rate": 5, "planned": 1000, "total": 1000}
    Replay.objects.filter(pk=replay.pk).update(**climbing)
    Replay.objects.filter(pk=replay.pk).update(state="ramping")
    message = "<dd>about 3 min 20 s at the present rate, 43 s at the soonest</dd>"
    assert message in ann.get(f"/replays/{replay.pk}/").content.decode()
    Replay.objects.filter(pk=replay.pk).update(rate=50)
    assert "<dd>20 s</dd>" in ann.get(f"/replays/{replay.pk}/").content.decode()
    # A steady one that was held begins again below its rate.
    Replay.objects.filter(pk=replay.pk).update(rate=5, pace={"style": "steady", "rate": 50})
    assert message in ann.get(f"/replays/{replay.pk}/").content.decode()


@pytest.mark.parametrize(
    ("state", "rate_now", "message"),
    [
        ("running", 9.0, "10 s"),  # at 10 a second
        ("running", 1.0, "about 1 min 40 s at the present rate"),
        ("ramping", 1.0, "about 1 min 40 s at the present rate"),
        ("running", 0.0, "10 s"),  # it has only begun, or stands
        ("canary", 2.0, "known after the canary"),
        ("done", 2.0, ""),
    ],
)
def test_how_long_the_rest_takes_is_what_is_really_sent(state, rate_now, message):
    replay = Replay(state=state, planned=100, rate=10.0, pace={"style": "steady", "rate": 10})
    assert replay_page.remaining(replay, rate_now) == message


def test_the_rest_of_a_replay_that_was_slowed_down_takes_what_its_rate_shows_and_the_page_shows_why(ann, shop):
    replay = running(3)
    sentence = "12 of 40 failed at 9.6/s with ReadTimeout: slowed down to 0.85/s."
    at = timezone.now() - timedelta(minutes=1)
    evidence = {"kind": "backed_off", "failed": 12, "judged": 40, "rate": 9.6, "to_rate": 0.85, "sentence": sentence}
    pace = {"style": "careful", "ramp": {"from": 1, "to": 122}}
    columns = {"state": "running", "pace": pace, "rate": 0.85, "planned": 873, "total": 1_396}
    Replay.objects.filter(pk=replay.pk).update(**columns, evidence=evidence | {"at": at.isoformat()})
    text = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "Time left about 17 min at the present rate Slowed down" in text
    assert f"Slowed down at {at:%H:%M} UTC. {sentence}" in text
    core = Controller(parse(pace, 1_396), at.timestamp()).as_dict() | {"cap": 7.2, "cap_of": 122, "bad": 9.6}
    Replay.objects.filter(pk=replay.pk).update(controller={"n": 1, "core": core})
    text = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "about 17 min at the present rate, 2 min 1 s at the learned limit" in text
    # Back at the rate that it had: nothing to explain any more.
    Replay.objects.filter(pk=replay.pk).update(rate=9.6)
    assert "Slowed down" not in text_of(ann.get(f"/replays/{replay.pk}/"))
    replay.refresh_from_db()
    replay.state, replay.rate = "held", 0.96
    assert replay_page.remaining(replay, 0.0) == "about 15 min at its starting rate, 2 min 1 s at the learned limit"


def test_it_goes_on_without_the_group_that_was_pressed(ann, shop):
    replay = create_replay_on_hold(kind="failing", failed=2, judged=5)
    fingerprint = Failure.objects.first().group.fingerprint
    ann.post(f"/replays/{replay.pk}/resume/", {"without_groups": fingerprint})
    replay.refresh_from_db()
    assert replay.state != "held" and replay.without_groups == [Failure.objects.first().group_id]


def awaiting(by: Viewer) -> Replay:
    replay = replays.start(by, replays.draft(by, selection=dead(3), reason="partner is back"))
    Replay.objects.filter(pk=replay.pk).update(
        state="awaiting_approval", approval_because="It has 3 jobs; above 2 a second person approves."
    )
    replay.refresh_from_db()
    return replay


def test_whoever_started_it_sees_who_may_approve_and_can_withdraw(ann, otto, vera, shop, django_user_model):
    user = django_user_model.objects.get(username="ann")
    replay = awaiting(Viewer("ann", {"*": "admin"}, user_id=user.pk))
    text = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "above 2 a second person approves" in text and "<strong>otto</strong>" in text
    assert "<strong>vera</strong>" not in text and "Approve 3" not in text and "Withdraw" in text
    assert ann.post(f"/replays/{replay.pk}/approve/").status_code == 409
    ann.post(f"/replays/{replay.pk}/cancel/", {"reason": "not now"})
    replay.refresh_from_db()
    assert (replay.state, replay.sent) == ("cancelled", 0)


def test_another_operator_approves_it_on_its_page(ann, otto, shop, django_user_model):
    user = django_user_model.objects.get(username="ann")
    replay = awaiting(Viewer("ann", {"*": "admin"}, user_id=user.pk))
    assert "Approve 3" in otto.get(f"/replays/{replay.pk}/").content.decode()
    otto.post(f"/replays/{replay.pk}/approve/", {"reason": "looked"})
    replay.refresh_from_db()
    assert replay.state != "awaiting_approval" and replay.approver == "otto"


def test_how_its_jobs_are_sent_is_shown_where_it_is_not_as_usual(ann, shop):
    replay = running()
    Replay.objects.filter(pk=replay.pk).update(
        attempts="3", to_queue="slow", patch={"kwargs": {"dry_run": True}}, taken=12, accepted=["expired"]
    )
    text = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "3 for each job" in text and "slow" in text and "&quot;dry_run&quot;: true" in text
    assert "12 more jobs taken over" in text and "expired jobs" in text


def test_an_uncertain_job_is_settled_by_a_persons_word(ann, shop):
    replay = running()
    moved(replay, 2, "uncertain", settled_at=None, outcome="No outcome within 60 min of sending.")
    assert "Mark as lost" in ann.get(f"/replays/{replay.pk}/").content.decode()
    ann.post(f"/replays/{replay.pk}/items/2/resolve/", {"as": "ran"})
    assert ReplayItem.objects.get(replay=replay, n=2).state == "succeeded"


def test_uncertain_jobs_are_settled_at_once_all_or_by_a_search_after_a_count(ann, shop):
    replay = running(6)
    Failure.objects.filter(replay_items__n__lte=2).update(tenant="acme")
    Failure.objects.update(state="replaying", run=2)
    for n in range(1, 6):
        moved(replay, n, "uncertain", settled_at=None, outcome="No outcome within 60 min of sending.")
    url = f"/replays/{replay.pk}/resolve/"
    counted = ann.post(url, {"as": "preview", "q": "tenant:acme"})
    assert "<strong>2 jobs</strong> match." in counted.content.decode() and not ReplayItem.objects.filter(
        state="succeeded"
    )
    other = ann.post(url, {"as": "lost", "q": "", "counted": "tenant:acme"})
    assert "Record 5 as lost" in other.content.decode() and not AuditEvent.objects.filter(act="replay.resolve").exists()
    text = text_of(ann.post(url, {"as": "ran", "q": "tenant:acme", "counted": "tenant:acme"}, follow=True))
    assert "2 jobs recorded as run." in text
    answer = ann.post(url, {"as": "lost", "counted": ""}, follow=True)
    assert "3 jobs recorded as lost: dead again." in text_of(answer) and "Replay jobs" in text_of(answer)
    assert dict(Failure.objects.values_list("state").annotate(n=Count("pk"))) == {
        "recovered": 2, "dead": 3, "replaying": 1,
    }  # fmt: skip
    replay.refresh_from_db()
    assert (replay.uncertain, replay.succeeded, replay.failed_again) == (0, 2, 3)
    reported = AuditEvent.objects.filter(act="replay.resolve").order_by("pk").values_list("after", flat=True)
    assert list(reported) == [
        {"state": "succeeded", "count": 2, "query": "tenant:acme"},
        {"state": "failed_again", "count": 3},
    ]
    refused = ann.post(url, {"as": "lost", "counted": ""})
    assert refused.status_code == 409 and "Nothing was changed." in text_of(refused)


def test_who_settles_very_many_jobs_is_shown_how_far_it_came(ann, shop, monkeypatch):
    replay = running(5)
    Failure.objects.update(state="replaying", run=2)
    for n in range(1, 6):
        moved(replay, n, "uncertain", settled_at=None)
    monkeypatch.setattr(acts, "_RESOLVED_AT_ONCE", 2)
    monkeypatch.setattr(acts, "_RESOLVING_S", -1)
    with pytest.raises(Refused) as refused:
        replays.resolve_all(BOB, replay, "lost")
    monkeypatch.undo()
    assert refused.value.message == "2 jobs settled, 3 remaining. Repeat for the rest."
    assert replays.resolve_all(BOB, replay, "lost") == 3


@pytest.mark.parametrize(
    ("state", "words"), [("running", "will not be sent"), ("done", "not sent"), ("cancelled", "cancelled")]
)
def test_only_jobs_of_a_cancelled_replay_are_called_cancelled(ann, shop, state, words):
    replay = running(5)
    ended = timezone.now() if state != "running" else None
    Replay.objects.filter(pk=replay.pk).update(state=state, planned=2, cancelled=3, ended_at=ended)
    ReplayItem.objects.filter(replay=replay, n__gt=2).update(state="cancelled", outcome="Set aside with its group: …")
    context = ann.get(f"/replays/{replay.pk}/").context
    assert [tab.words for tab in context["tabs"] if tab.state == "cancelled"] == [words]
    assert [part.words for part in context["shown"].parts if part.state == "cancelled"] == [words]


def test_the_overview_counts_what_is_done_of_the_jobs_that_are_to_go(ann, shop):
    replay = running(5)
    moved(replay, 1, "succeeded")
    Replay.objects.filter(pk=replay.pk).update(planned=1, cancelled=3)
    overview.forget()
    (line,) = ann.get("/").context["replays"]
    assert (line.settled, line.to_go) == (1, 2) and '1 <span class="muted">of 2</span>' in ann.get("/").content.decode()


def test_what_failed_again_is_grouped_with_links_to_group_and_jobs(ann, shop):
    replay, broken = running(), group("shop.PartnerDown", "still down")
    for n in (1, 2):
        moved(replay, n, "failed_again", failed_group=broken)
    text = ann.get(f"/replays/{replay.pk}/").content.decode()
    assert "shop.PartnerDown" in text and f"/groups/{broken.fingerprint}/" in text


def test_the_jobs_can_be_checked_by_state_page_by_page(ann, shop):
    replay = running(60)
    moved(replay, 7, "succeeded")
    url = f"/replays/{replay.pk}/"
    assert listed(ann.get(url, {"items": "succeeded"})) == [7]
    pages, after = [], {}
    while after is not None:
        answer = ann.get(url, {"items": "all"} | after)
        pages.append(listed(answer))
        after = {"after": answer.context["items_next"]} if answer.context["items_next"] else None
    assert [len(page) for page in pages] == [20, 20, 20] and [n for page in pages for n in page] == list(range(1, 61))
    latest = ann.get(url, {"items": "failed_again"})
    assert listed(latest) == [] and "No jobs in this state." in latest.text


def listed(answer) -> list[int]:
    """The places of the jobs that a replay's page lists."""
    return [job.item.n for job in answer.context["jobs"]]


def test_the_page_opens_on_what_failed_again_else_on_what_was_sent_last(ann, shop):
    replay = running(60)
    url = f"/replays/{replay.pk}/"
    page = ann.get(url)
    assert listed(page) == [] and "No jobs sent yet." in page.text  # sixty that are not sent are a number
    for n in range(1, 31):
        moved(replay, n, "succeeded")
    moved(replay, 31, "sent", settled_at=None)
    ReplayItem.objects.filter(replay=replay, n=4).update(state="running", settled_at=None)
    Replay.objects.filter(pk=replay.pk).update(running=1, succeeded=29)
    page = ann.get(url)
    # In flight first, then the latest settled.
    assert listed(page) == [31, 4, *range(30, 12, -1)]
    assert [(tab.words, tab.count) for tab in page.context["tabs"] if tab.is_on] == [("latest", None)]
    for n in (2, 8):
        moved(replay, n, "failed_again", outcome="TimeoutError: again")
    page = ann.get(url)
    assert listed(page) == [8, 2] and page.context["tabs"][0].is_on and page.context["tabs"][0].words == "failed again"
    assert [tab.words for tab in page.context["tabs"]][:2] == ["failed again", "latest"]
    assert 8 in listed(ann.get(url, {"items": "all"}))


def test_what_failed_again_is_compared_with_its_run_before(ann, shop, capsys):
    down, wire = group("shop.PartnerDown", "still down"), group("httpx.ReadError", "reset", fingerprint="v1-wire")
    replay = running(6, group=down)
    Replay.objects.filter(pk=replay.pk).update(state="ramping")
    died_of([item.failure_id for item in replay.items.all()], down)
    for n, now in ((1, down), (2, wire), (3, down), (4, wire), (5, down)):
        moved(replay, n, "failed_again", failed_group=now, outcome=f"{now.error_type}: {now.message}")
    page = ann.get(f"/replays/{replay.pk}/")
    assert [job.compared for job in page.context["jobs"]] == [
        "Same error as before",
        "New error: ReadError (was PartnerDown)",
        "Same error as before",
        "New error: ReadError (was PartnerDown)",
        "Same error as before",
    ]
    text = text_of(page)
    assert "Failed again, by group 5: 3 failed as before, 2 with a new error" in text
    assert "3 failed as before" in text and "2 failed with a new error" in text
    # Of jobs whose first attempts are not stored any more, nothing is claimed.
    Attempt.objects.all().delete()
    text = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "Failed again, by group 5" in text and "as before" not in text and "new error" not in text


def test_a_hold_offers_all_groups_at_once_by_the_error_that_their_jobs_died_of(ann, shop):
    down, wire = group("shop.PartnerDown", "still down"), group("httpx.ReadError", "reset", fingerprint="v1-wire")
    new = group("httpx.HTTPStatusError", "503", fingerprint="v1-503")
    ids = [*dead(4, group=down), *dead(4, group=wire), *dead(3)]
    replay = replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))
    died_of(ids[:4], down), died_of(ids[4:8], wire)
    now = timezone.now()
    Group.objects.filter(pk=new.pk).update(first_seen=now)
    for n, group_now in ((1, down), (2, new), (5, new)):
        moved(replay, n, "failed_again", first_at=now, first_ok=False, first_group=group_now, failed_group=group_now)
    # A job that failed again has the error that it failed with last.
    Failure.objects.filter(pk__in=[ids[1], ids[4]]).update(group=new)
    evidence = {"kind": "canary", "groups": [{"group": one.pk, "is_new": one is new} for one in (down, new)]}
    Replay.objects.filter(pk=replay.pk).update(state="held", held_because="Held.", evidence=evidence)
    page = ann.get(f"/replays/{replay.pk}/")
    text = text_of(page)
    rows = {one.fingerprint: one for one in page.context["hold"].groups}
    assert {name: (one.count, one.planned, one.is_on) for name, one in rows.items()} == {
        down.fingerprint: (2, 2, True),
        "v1-wire": (1, 3, True),
    }
    assert "1 failed as before, 1 with a new error: HTTPStatusError" in text and "first seen in this replay" in text
    assert page.text.count('name="without_groups"') == 2
    assert "Skip these 2 groups and resume without 5 of 8 unsent jobs" in text and "Resume all 8 unsent jobs" in text
    assert page.context["hold"].skips_most and "the cause may not be fixed yet" in text
    ann.post(
        f"/replays/{replay.pk}/resume/",
        Fields(page, f"/replays/{replay.pk}/resume/").sent | {"without_groups": list(rows)},
    )
    replay.refresh_from_db()
    assert sorted(replay.without_groups) == sorted([down.pk, wire.pk])


def test_an_error_that_came_with_the_replay_is_named_so_whichever_attempt_met_it(ann, shop):
    """Retries end in another error than the first attempts, of which alone the evidence of the hold has the groups."""
    down, first = group("shop.PartnerDown", "still down"), group("httpx.ReadError", "reset", fingerprint="v1-first")
    old = group("shop.Expired", "", fingerprint="v1-old")
    replay = running(3, group=down)
    last = group("shop.GaveUp", "", fingerprint="v1-last")
    died_of([item.failure_id for item in replay.items.all()], down)
    for n, final in ((1, last), (2, last), (3, old)):
        first_attempt = {"first_at": timezone.now(), "first_ok": False, "first_group": first}
        moved(replay, n, "failed_again", failed_group=final, **first_attempt)
    evidence = {"kind": "canary", "groups": [{"group": first.pk, "is_new": True}]}
    Replay.objects.filter(pk=replay.pk).update(state="held", held_because="Held.", evidence=evidence)
    words = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "2 failed with a new error: GaveUp (first seen in this replay), 1 with a new error: Expired" in words
    assert words.count("first seen in this replay") == 1


def test_a_replay_that_ended_shows_what_is_next(ann, vera, shop):
    broken = group("shop.PartnerDown", "still down")
    replay = running(4, group=broken)
    url = f"/replays/{replay.pk}/"
    died_of([item.failure_id for item in replay.items.all()], broken)
    assert "Replay again" not in text_of(ann.get(url))
    Failure.objects.filter(replay_items__n__in=(1, 2)).update(state="recovered")
    for n, state in ((1, "succeeded"), (2, "succeeded"), (3, "failed_again"), (4, "failed_again")):
        moved(replay, n, state, failed_group=broken if state == "failed_again" else None)
    Replay.objects.filter(pk=replay.pk).update(state="done", ended_at=timezone.now())
    text = text_of(ann.get(url))
    assert "Of 4 jobs, 2 succeeded, 2 failed again." in text and "Open 2 failures Replay again…" in text
    assert "2 failed as before. Fix the cause, then replay the failed jobs again." in text
    links = dict(
        re.findall(r'<a\s+class="button[^"]*"\s+href="([^"]*)">(?:<svg.*?</svg>)?([^<]*)</a>', ann.get(url).text)
    )
    # Why they failed comes before another replay.
    assert re.findall(r'<a\s+class="button primary"[^>]*>([^<]+)<', ann.get(url).text) == ["Open 2 failures"]
    assert {words.strip() for words in links.values()} >= {"Open 2 failures", "Replay again…"}
    assert [ann.get(address.replace("&amp;", "&")).status_code for address in links] == [200] * len(links)
    assert "Replay again" not in text_of(vera.get(url)) and "Open 2 failures" in text_of(vera.get(url))
    Failure.objects.update(state="recovered")
    assert "No job of this replay is dead. Nothing is left to do." in text_of(ann.get(url))
    Replay.objects.update(query="queue:webhooks", blocked=[{"code": "truncated", "reason": "truncated", "count": 2}])
    dead(2, is_complete=False)
    Replay.objects.update(scope_max_id=Failure.objects.latest("pk").pk)
    text = text_of(ann.get(url))
    assert "2 excluded jobs are still dead." in text and "Open 2 excluded jobs Replay again…" in text
    assert re.search(r'<a\s+class="button primary"[^>]*><svg.*?</svg>Replay again…', ann.get(url).text)
    assert "Nothing is left to do" not in text


def test_the_number_of_jobs_is_the_same_from_the_preview_to_the_end(ann, shop):
    mixed()
    dead(2, state="discarded")
    answer = ann.get(NEW, {"q": "state:dead,discarded"})
    sentence = "5 of 10 matching jobs: 3 in 1 group are off, 2 are excluded for other reasons."
    text = text_of(answer)
    assert sentence in text and "Replay 5 jobs to webhooks?" in text
    assert answer.context["preview"].replayable == 5 and "Replay 5 jobs to webhooks" in answer.context["button"]
    ann.post(
        NEW, carried(answer) | {"step": "start", "reason": "back", "group": [Failure.objects.first().group.fingerprint]}
    )
    replay = Replay.objects.get()
    url = f"/replays/{replay.pk}/"
    assert replay.total == 5 and sentence in text_of(ann.get(url)) and "0 of 5 sent" in text_of(ann.get(url))
    moved(replay, 1, "failed_again", first_at=timezone.now(), first_ok=False)
    Replay.objects.update(state="held", held_because="Held.", evidence={"kind": "canary"})
    text = text_of(ann.get(url))
    assert sentence in text and "1 of 5 sent" in text and "Resume all 4 unsent jobs" in text
    for n in range(2, 6):
        moved(replay, n, "succeeded")
    Replay.objects.update(state="done", ended_at=timezone.now())
    text = text_of(ann.get(url))
    assert (
        sentence in text and "Of 5 jobs, 4 succeeded, 1 failed again." in text and "5 of 5 sent; 5 of 5 settled" in text
    )


def test_the_picture_adds_up_to_the_counts(ann, shop):
    replay = running(4)
    for n in (1, 2, 3):
        moved(replay, n, "succeeded")
    found = progress.over_time(replay)
    assert [sum(row[n] for row in found.buckets) for n in (1, 2, 3)] == [3, 3, 0]
    assert len(found.buckets) <= 91 and found.buckets[0][1:] == (0, 0, 0)


def test_a_range_of_the_picture_ends_now_and_begins_with_no_zero_of_its_own(ann, shop):
    now = timezone.now().replace(microsecond=0)
    replay = running(4)
    for n, minutes in enumerate((180, 120, 50), 1):
        moved(
            replay,
            n,
            "succeeded",
            sent_at=now - timedelta(minutes=minutes),
            settled_at=now - timedelta(minutes=minutes),
        )
    hour = now - timedelta(hours=1)
    found = progress.over_time(replay, now, hour).buckets
    assert (found[0][0], sum(row[1] for row in found)) == (hour, 1) and now - found[-1][0] < timedelta(minutes=1)
    # Held for longer than that: an hour of nothing.
    half = now - timedelta(minutes=30)
    found = progress.over_time(replay, now, half).buckets
    assert len(found) > 40 and found[0][0] == half and not any(sum(row[1:]) for row in found)
    # The values at the pointer are in the unit of the axis.
    picture = replay_outlook.draw_progress(progress.over_time(replay, now, hour), [])
    assert picture.unit == "minute" and picture.step_s == 41
    assert set(json.loads(picture.chart)["series"]["succeeded"]) == {"0/min", "1.5/min"}
    Replay.objects.filter(pk=replay.pk).update(started_at=now - timedelta(hours=3))
    assert "Sent jobs and outcomes, last 1 h" in text_of(ann.get(f"/replays/{replay.pk}/", {"span": "1h"}))


def test_an_act_keeps_the_range_and_the_list_of_jobs(ann, shop):
    replay = running(60)
    Replay.objects.filter(pk=replay.pk).update(started_at=timezone.now() - timedelta(hours=3))
    url = f"/replays/{replay.pk}/"
    here = f"{url}?span=1h&items=planned"
    page = html.unescape(ann.get(here).content.decode())
    assert f'action="{url}pause/?span=1h&items=planned"' in page
    assert (
        f'href="{url}?span=1h&items=all#items"' in page and f'href="{url}?span=1h&items=planned&after=20#items"' in page
    )
    assert ann.post(f"{url}pause/?span=1h&items=planned").headers["Location"] == here
    # Refused, without scripts: the links of the picker are of the page. By htmx: so is its live part.
    refused = ann.post(f"{url}pause/?span=1h&items=planned")
    assert refused.status_code == 409
    page = html.unescape(refused.content.decode())
    assert f'href="{url}?span=1h&items=planned&remember=1"' in page and f'href="{url}pause' not in page
    answer = ann.post(f"{url}resume/?span=1h&items=planned", headers=HTMX).content.decode()
    assert f'hx-get="{here}"' in html.unescape(answer)


def test_an_unknown_replay_is_a_404_page_for_reading_and_for_acting(ann, vera, shop):
    assert ann.get("/replays/999/").status_code == 404
    assert ann.post("/replays/999/pause/").status_code == 404
    replay = running(2)
    assert vera.post(f"/replays/{replay.pk}/cancel/").status_code == 403


def test_the_list_shows_the_latest_first_and_an_empty_one_shows_what_to_do(ann, shop):
    assert "No replays yet" in ann.get("/replays/").content.decode()
    first, second = running(2), running(1)
    answer = ann.get("/replays/")
    assert [row.replay.pk for row in answer.context["rows"]] == [second.pk, first.pk]
    assert "partner is back" in answer.content.decode()


def test_a_replays_page_queries_the_database_a_bounded_number_of_times(ann, shop, django_assert_max_num_queries):
    replay = running(120)
    for n in range(1, 30):
        moved(replay, n, "succeeded")
    with django_assert_max_num_queries(19):  # three of them at most once a second, of the keys of sources
        ann.get(f"/replays/{replay.pk}/")


def test_the_last_hours_successes_are_shown_minute_by_minute(db):
    now = timezone.now().replace(second=30, microsecond=0)
    minute = now.replace(second=0)
    QueueCounter.objects.create(source="shop", queue="emails", at=minute - timedelta(minutes=1), succeeded=120)
    counts = progress.succeeded_per_minute(BOB, ["emails"], now)
    assert len(counts) == 60 and counts[-1] == 120 and sum(counts) == 120


@pytest.mark.parametrize("amount", ["", "fifty", "0", "-1", "1e9", "nan"])
def test_a_pace_that_is_no_number_is_refused_in_our_words_and_nothing_can_be_started(ann, shop, amount):
    dead(2)
    given = {"q": "state:dead", "style": "steady", "unit": "rate", "amount": amount}
    text = ann.post(NEW, given | {"step": "preview"}).content.decode()
    assert "Give a number from 0.001 to 100,000 jobs/s. Nothing was changed" in text
    assert 'value="start" disabled' in text and f'name="amount" inputmode="decimal" value="{amount}"' in text
    answer = ann.post(NEW, given | {"step": "start", "reason": "now"})
    assert answer.status_code == 422 and not Replay.objects.exists()


def test_the_bounds_of_a_pace_are_those_of_its_unit(ann, shop):
    dead(2)
    given = {"q": "state:dead", "style": "steady", "unit": "every", "amount": "1001", "step": "preview"}
    text = ann.post(NEW, given).content.decode()
    assert "Give a number from 0.00001 to 1,000 seconds between jobs." in text
    assert "Give a number" not in ann.post(NEW, given | {"amount": "1000"}).content.decode()


def test_an_emptied_field_does_not_change_the_pace_of_a_replay_under_way(ann, shop):
    dead(3)
    started = replays.start(BOB, replays.draft(BOB, query="state:dead", pace={"rate": 2}, reason="now"))
    answer = ann.post(
        reverse("redrive:replay-pace", args=[started.pk]), {"style": "steady", "unit": "rate", "amount": ""}
    )
    assert answer.status_code == 422 and "Nothing was changed." in answer.content.decode()
    assert Replay.objects.get().pace["rate"] == 2


def test_of_jobs_that_are_stored_no_longer_the_replay_shows_how_many_and_what_became_of_them(ann, shop):
    replay = running(3)
    for n in (1, 2, 3):
        moved(replay, n, "succeeded")
    Replay.objects.filter(pk=replay.pk).update(state="done", ended_at=timezone.now())
    forget(replay.items.filter(n__lt=3).values_list("failure_id", flat=True))
    text = ann.get(reverse("redrive:replay-detail", args=[replay.pk])).content.decode()
    assert "2 of 3 jobs were deleted by retention" in text and "3 of 3 settled" in text


def test_what_a_token_started_an_operator_sees_but_only_an_admin_approves(ann, otto, shop):
    replay = awaiting(Viewer("token ci", {"*": "operator"}, token_id=1))
    page = otto.get(f"/replays/{replay.pk}/").content.decode()
    assert "started by token ci, whose identity is unknown" in page and "Approve 3" not in page
    assert "<strong>ann</strong>" in page and "<strong>otto</strong>" not in page
    assert otto.post(f"/replays/{replay.pk}/approve/").status_code == 409
    assert "Approve 3" in ann.get(f"/replays/{replay.pk}/").content.decode()


def test_what_waits_is_called_the_same_in_bar_tabs_and_rows(ann, shop):
    page = ann.get(f"/replays/{running().pk}/").content.decode()
    assert page.count("not sent yet") >= 3 and "planned" not in re.sub(r"<[^>]*>", "", page)


def test_a_second_person_sees_what_they_approve(ann, otto, shop, django_user_model, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "3"}
    user = django_user_model.objects.get(username="ann")
    by = Viewer("ann", {"*": "admin"}, user_id=user.pk)
    ids = [*dead(300, tenant="acme", queue="emails"), *dead(100, tenant="cobalt", task="shop.refund")]
    replay = replays.start(by, replays.draft(by, selection=ids, reason="partner is back"))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", otto.get(f"/replays/{replay.pk}/").content.decode()))
    for message in ("emails 300", "webhooks 100", "shop.refund 100", "acme 300", "cobalt 100"):
        assert message in text, message


def test_of_many_a_second_person_sees_some_evenly_and_only_of_their_sources(shop, settings, monkeypatch):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "1"}
    ids = [*dead(700, tenant="acme"), *dead(700, tenant="cobalt")]
    replay = replays.start(BOB, replays.draft(BOB, selection=ids, reason="partner is back"))
    monkeypatch.setattr(spread, "SAMPLED", 200)
    frozen = spread.spread_of_frozen(BOB, replay)
    assert 100 <= frozen.replayable <= 220 and frozen.counted_over["tenant"] == frozen.replayable
    (_, one), (_, other) = frozen.by_tenant
    assert abs(one - other) <= frozen.replayable / 10
    assert spread.spread_of_frozen(Viewer("wim", {"web": OPERATOR}), replay).by_tenant == []


def test_a_replay_whose_jobs_no_one_takes_shows_where_they_wait(ann, otto, shop):
    replay = running(2)
    moved(replay, 1, "sent", sent_at=timezone.now() - timedelta(minutes=3), settled_at=None)
    DepthSample.objects.create(source="shop", queue="webhooks", at=timezone.now(), step=10, waiting=1)
    url = reverse("redrive:replay-detail", args=[replay.pk])
    for who in (ann, otto):
        assert "Check that a worker consumes from webhooks of shop." in who.get(url).text
    ReplayItem.objects.filter(replay=replay, n=1).update(sent_at=timezone.now())
    assert "No worker has taken" not in ann.get(url).text


def test_a_replay_under_way_while_the_guard_was_off_shows_how_many_outcomes_are_missing(ann, shop):
    replay = running(3)
    url, now = reverse("redrive:replay-detail", args=[replay.pk]), timezone.now()
    Replay.objects.update(started_at=now - timedelta(minutes=10))
    for n, minutes in ((1, 9), (2, 8), (3, 1)):
        moved(replay, n, "sent", sent_at=now - timedelta(minutes=minutes), settled_at=None)
    assert "outcomes of" not in text_of(ann.get(url))
    audit.record(BOB, "guard.off", "guard", after="off")
    off = now - timedelta(minutes=7)
    AuditEvent.objects.filter(act="guard.off").update(at=off)
    text = text_of(ann.get(url))
    assert f"The guard has been off since {clock(off, now)} UTC: outcomes of 3 jobs are not reported." in text
    audit.record(BOB, "guard.on", "guard", after="on")
    on = now - timedelta(minutes=5)
    AuditEvent.objects.filter(act="guard.on").update(at=on)
    message = f"The guard was off from {clock(off, now)} to {clock(on, now)} UTC: outcomes of 2 jobs were not reported."
    assert message in text_of(ann.get(url))
    moved(replay, 1, "succeeded"), moved(replay, 2, "succeeded")
    assert "outcomes of" not in text_of(ann.get(url))


def test_queues_out_of_sight_are_not_named_to_who_waits_for_a_worker():
    at = timezone.now().replace(hour=12, minute=31)
    found = Unattended(at, [("bank", "loans"), *(("shop", f"q{n}") for n in range(5))])
    message = "No worker has taken a job since 12:31 UTC. Check that a worker consumes from "
    assert (
        replay_page.unattended_words(found, Viewer("v", {"shop": OPERATOR}))
        == f"{message}q0 of shop, q1 of shop, q2 of shop and 2 more."
    )
    assert replay_page.unattended_words(found, Viewer("v", {"web": OPERATOR})) == f"{message}its queues."


# ---------- groups, drafts, jobs that wait ----------


def mixed():
    dead(5, group=group("shop.PartnerDown", "down"), task="shop.deliver")
    dead(3, group=group("KeyError", "sku", fingerprint="v1-key"), task="shop.stock")


def test_a_preview_lists_its_groups_and_those_likely_to_fail_again_are_off(ann, shop):
    mixed()
    answer = ann.get(NEW, {"q": "state:dead"})
    text = answer.content.decode()
    assert "Replay 5 jobs" in text and "permanent: KeyError is an error of code or data" in text
    words = text_of(answer)
    assert "Recommended 1 group, 5 jobs" in words and "Usually permanent 1 group, 3 jobs" in words
    assert words.index("Groups to replay") < words.index("Scope webhooks") < words.index("Advanced")
    assert "in an excluded group" not in words
    boxes = re.findall(r'name="group" value="([^"]+)"( checked)?', text)
    assert [bool(checked) for _, checked in boxes] == [True, False]
    # Ticked, it goes too; unticked, the other does not.
    form = carried(answer) | {"step": "preview"}
    assert "Replay 8 jobs" in ann.post(NEW, form | {"group": [name for name, _ in boxes]}).content.decode()
    assert "Replay 3 jobs" in ann.post(NEW, form | {"group": ["v1-key"]}).content.decode()
    ann.post(NEW, form | {"group": [boxes[0][0]], "step": "start", "reason": "back"})
    replay = Replay.objects.get()
    assert replay.total == 5
    page = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "Off at the start" in page and "KeyError: sku" in page and "3 jobs stay dead" in page


def test_groups_that_are_on_although_likely_to_fail_again_are_not_recommended_and_named_at_the_button(ann, shop):
    mixed()
    assert "likely to fail again" not in ann.get(NEW, {"q": "state:dead"}).text
    reason = "likely to fail again: permanent: KeyError is an error of code or data."
    every = ",".join(str(pk) for pk in Failure.objects.values_list("pk", flat=True))
    chosen = [
        ({"q": "group:v1-key"}, f"This group is {reason} Replay 3 jobs to webhooks"),
        ({"selection": every}, f"1 of 2 groups is {reason} Replay 8 jobs to webhooks"),
        ({"selection": str(Failure.objects.latest("pk").pk)}, f"This group is {reason} Replay 1 job to webhooks"),
    ]
    for fields, bar in chosen:
        answer = ann.post(NEW, fields | {"step": "preview"})
        words = text_of(answer)
        assert "Usually permanent 1 group" in words and bar in words, fields
    Group.objects.filter(error_type="shop.PartnerDown").update(state="muted", state_by="ann")
    words = text_of(ann.post(NEW, {"selection": every, "step": "preview"}))
    assert "2 of 2 groups are likely to fail again or muted. Replay 8 jobs" in words
    name = Group.objects.get(state="muted").fingerprint
    assert "This group is muted by ann. Replay 5 jobs" in text_of(
        ann.post(NEW, {"q": f"group:{name}", "step": "preview"})
    )
    Group.objects.update(state="muted")
    assert "2 of 2 groups are muted. Replay 8 jobs" in text_of(ann.post(NEW, {"selection": every, "step": "preview"}))


def test_all_groups_none_or_the_recommended_ones_are_ticked_at_once(ann, shop):
    mixed()
    form = carried(ann.get(NEW, {"q": "state:dead"})) | {"step": "preview", "group": ["v1-key"]}

    def ticked(**tick):
        answer = ann.post(NEW, form | tick)
        return re.findall(r'name="group" value="([^"]+)" checked', answer.text), text_of(answer)

    assert ticked()[0] == ["v1-key"]
    names, text = ticked(tick="all")
    assert len(names) == 2 and "Replay 8 jobs" in text and "matching jobs:" not in text
    names, text = ticked(tick="none")
    assert names == [] and "No jobs can be replayed" in text and "0 of 8 matching jobs: 8 in 2 groups are off." in text
    names, text = ticked(tick="recommended")
    assert names != ["v1-key"] and len(names) == 1 and "Replay 5 jobs" in text


def test_a_default_pace_follows_the_ticked_groups_and_a_chosen_one_stays(ann, shop):
    dead(5, group=group("shop.PartnerDown", "down"), task="shop.deliver")
    dead(12, group=group("KeyError", "'a'", fingerprint="v1-key"), task="shop.stock")
    opened = ann.get(NEW, {"q": "state:dead"})
    shown = {"step": "preview", "group": ["v1-key"], "style": "steady", "amount": "50", "unit": "rate"}

    def style_of(answer):
        return re.search(r'name="style" value="(\w+)" checked', " ".join(answer.text.split()))[
            1
        ], "data-default-pace" in answer.text

    assert style_of(opened) == ("steady", True)
    assert style_of(ann.post(NEW, carried(opened) | shown | {"pace": "default"})) == ("careful", True)
    assert style_of(ann.post(NEW, carried(opened) | shown)) == ("steady", False), "as without scripts"
    assert style_of(ann.get(NEW, {"q": "state:dead", "style": "at_once"})) == ("at_once", False)


def test_many_groups_that_are_not_recommended_are_folded_under_one_line(ann, shop):
    dead(5, group=group("shop.PartnerDown", "down"), task="shop.deliver")
    for n in range(7):
        dead(2, group=group("KeyError", f"'{n}'", fingerprint=f"v1-key{n}"), task="shop.stock")
    answer = ann.get(NEW, {"q": "state:dead"})
    recommended, permanent = answer.context["choices"].kinds
    assert (len(recommended.rows), len(permanent.rows), len(permanent.more)) == (1, 0, 7)
    assert permanent.summary == "7 groups off, 14 jobs: usually permanent" and permanent.summary in answer.text
    assert '<details class="fold" id="more-permanent"><summary>' in re.sub(r"\s+>", ">", answer.text)
    # One that is ticked stays there, and is in sight.
    form = carried(answer) | {"step": "preview", "group": [recommended.rows[0].group.fingerprint, "v1-key3"]}
    answer = ann.post(NEW, form)
    recommended, permanent = answer.context["choices"].kinds
    assert permanent.is_open and permanent.summary == "7 groups (1 on), 14 jobs: usually permanent"
    assert "Replay 7 jobs" in text_of(answer)


def test_a_row_shows_whom_a_group_hits_whether_it_still_fails_and_whether_its_queue_succeeds(ann, shop):
    now = timezone.now()
    minute = now.replace(second=0, microsecond=0)
    down = group("shop.PartnerDown", "down", last_seen=now)
    old = group("shop.Gone", "away", fingerprint="v1-old", last_seen=now - timedelta(hours=8))
    dead(3, group=down, tenant="acme"), dead(2, group=down, tenant="cobalt"), dead(2, group=old, queue="emails")
    GroupCounter.objects.create(group=down, at=minute - timedelta(minutes=2), failed=9)
    QueueCounter.objects.create(source="shop", queue="webhooks", at=minute - timedelta(minutes=1), succeeded=500)
    QueueCounter.objects.create(source="shop", queue="emails", step=3600, at=now - timedelta(hours=9), succeeded=4)
    answer = ann.get(NEW, {"q": "state:dead"})
    text = text_of(answer)
    assert "5 jobs 2 tenants shop. PartnerDown down" in text and "still failing: 1." in text
    assert "webhooks succeeding:" in text
    assert "2 jobs shop. Gone away" in text and "last failed 8 h ago emails: last success 9 h ago" in text
    rows = {row.group.fingerprint: row for kind in answer.context["choices"].kinds for row in kind.rows}
    assert rows["v1-old"].failing == "" and 1.5 <= rows[down.fingerprint].group.failed_per_min <= 1.8
    assert 80 <= rows[down.fingerprint].group.queue_succeeded_per_min <= 100
    # It is on, as few failures a minute say little about the dead jobs, but nothing recommends it.
    assert "Recommended 1 group, 2 jobs" in text and "Failing or failed again 1 group, 5 jobs" in text
    assert "1 of 2 groups is still failing: 1." in text and "Replay 7 jobs" in text
    # A queue of all groups is named once.
    dead(1, group=group("shop.Other", "x", fingerprint="v1-other", last_seen=now - timedelta(hours=8)))
    text = text_of(ann.get(NEW, {"q": "queue:webhooks"}))
    assert text.count("webhooks succeeding:") == 1 and "Some of these errors are still happening: 9 times" in text


def test_the_groups_of_a_preview_cost_the_same_however_many_there_are(ann, shop, django_assert_max_num_queries):
    for n in range(30):
        dead(2, group=group("shop.PartnerDown", f"down {n}", fingerprint=f"v1-{n}"), tenant=f"t{n}")
    with django_assert_max_num_queries(49):
        answer = ann.get(NEW, {"q": "queue:webhooks"})
    (recommended,) = answer.context["choices"].kinds
    assert (len(recommended.rows), len(recommended.more)) == (12, 18)
    assert recommended.summary == "18 more groups on, 36 jobs"


def test_what_slows_the_replay_is_shown_beside_its_pace(ann, shop):
    dead(200, task="shop.deliver")
    assert not ann.get(NEW, {"q": "state:dead"}).context["preview"].slowed_by
    given = {"name": "partner", "mode": "enforce", "match": {"task": "shop.*"}, "rate_limit": {"max": 120, "per_s": 60}}
    policy = policy_language.document(policy_language.parse(given))
    PolicyVersion.objects.create(version=1, is_published=True, document=policy, published_at=timezone.now())
    Source.objects.filter(name="shop").update(
        findings=[{"id": "paused", "severity": "info", "text": "Queue webhooks is paused: what is sent there waits."}]
    )
    DepthSample.objects.create(source="shop", queue="webhooks", at=timezone.now(), step=10, waiting=1_200, workers=0)
    answer = ann.get(NEW, {"q": "state:dead", "style": "steady", "amount": "50"})
    assert answer.context["preview"].slowed_by == [
        "shop: Queue webhooks is paused: what is sent there waits.",
        "No worker consumes from webhooks: jobs wait there until a worker starts; 1,200 jobs are waiting there already.",
        "Policy partner limits shop.deliver to 2 starts/s, fewer than this replay sends: the others wait in the queue.",
    ]
    text = text_of(answer)
    assert text.index("Policy partner limits") < text.index("Starts per second")
    DepthSample.objects.update(workers=3, guarded_workers=3)
    assert "1,200 jobs are already waiting in webhooks: replayed jobs run after them." in text_of(
        ann.get(NEW, {"q": "state:dead"})
    )
    slow = ann.get(NEW, {"q": "state:dead", "style": "steady", "amount": "1"}).context["preview"].slowed_by
    assert not [text for text in slow if "Policy" in text]
    opens = (timezone.now() + timedelta(hours=2)).strftime("%H:00")
    closes = (timezone.now() + timedelta(hours=3)).strftime("%H:00")
    text = text_of(ann.get(NEW, {"q": "state:dead", "window_from": opens, "window_to": closes}))
    assert "Outside its sending hours: starts at" in text and opens in text


def test_the_number_of_excluded_jobs_is_the_sum_of_its_groups_also_in_a_scope_that_no_counter_knows(
    ann, shop, monkeypatch
):
    mixed()
    dead(4, group=group("TypeError", "id", fingerprint="v1-type"), task="shop.stock")
    monkeypatch.setattr(previewing, "_GLANCED", 2)
    form = carried(ann.get(NEW, {"q": "state:dead since:30d"})) | {"step": "start", "reason": "back"}
    ann.post(NEW, form | {"group": [Failure.objects.order_by("pk").first().group.fingerprint]})
    replay = Replay.objects.get()
    assert (replay.total, sorted(row["jobs"] for row in replay.set_aside)) == (5, [3, 4])
    assert "7 jobs stay dead" in text_of(ann.get(f"/replays/{replay.pk}/"))
    (ours,) = replay.items.filter(n=1).values_list("failure__group", flat=True)
    reported = {
        "group": ours,
        "phase": "run",
        "code": "failed_again",
        "reason": "5 of 5",
        "by": "controller",
        "jobs": None,
    }
    noted = [*replay.set_aside, reported | {"at": timezone.now().isoformat()}]
    Replay.objects.update(without_groups=[*replay.without_groups, ours], set_aside=noted)
    assert "12 jobs stay dead" in text_of(ann.get(f"/replays/{replay.pk}/"))
    # Of a replay that an earlier version started, some are not known.
    Replay.objects.update(set_aside=[{**row, "jobs": None} for row in noted])
    assert "at least 5 jobs stay dead" in text_of(ann.get(f"/replays/{replay.pk}/"))


def test_a_group_set_aside_is_named_and_brought_back(ann, shop):
    replay = running(4, group=group("KeyError", "sku"))
    pk = Failure.objects.first().group_id
    reported = {"group": pk, "phase": "run", "code": "failed_again", "reason": "5 of 5 failed", "by": "controller"}
    Replay.objects.update(without_groups=[pk], set_aside=[reported | {"at": timezone.now().isoformat(), "jobs": None}])
    text = text_of(ann.get(f"/replays/{replay.pk}/"))
    assert "Set aside during the replay" in text and "5 of 5 failed" in text and "Bring back" in text
    ann.post(f"/replays/{replay.pk}/bring-back/", {"group": [Failure.objects.first().group.fingerprint]})
    replay.refresh_from_db()
    assert (replay.without_groups, replay.set_aside) == ([], [])


def test_a_held_replay_is_resumed_without_the_jobs_of_a_search(ann, shop):
    replay = create_replay_on_hold(others=4, kind="canary", failed=2, judged=5)
    Failure.objects.order_by("-pk").filter(pk__in=replay.items.filter(state="planned").values("failure")[:2]).update(
        tenant="acme"
    )
    ann.post(f"/replays/{replay.pk}/resume/", {"without": "tenant:acme"})
    assert replay.items.filter(state="cancelled", outcome__contains="tenant:acme").count() == 2


def test_a_refused_start_leaves_no_draft(ann, shop):
    ids = dead(20)
    form = carried(ann.get(NEW, {"q": "state:dead"})) | {"step": "start", "reason": "r"}
    Failure.objects.filter(pk__in=ids[:10]).update(state="recovered")
    assert ann.post(NEW, form).status_code == 409
    assert not Replay.objects.exists()


def test_a_draft_is_listed_opened_and_discarded(ann, shop):
    dead(3)
    draft = replays.draft(BOB, query="state:dead", reason="later")
    assert "3 jobs, none sent. Open the draft" in text_of(ann.get("/replays/"))
    page = ann.get(f"/replays/{draft.pk}/")
    text = page.content.decode()
    assert "Draft with 3 jobs. Nothing was sent." in text and "Discard draft" in text and "Open draft" in text
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text.split("Open draft")[0]))
    opened = ann.get(NEW, fields)
    assert "Replay 3 jobs" in opened.content.decode() and 'value="later"' in opened.content.decode()
    ann.post(NEW, carried(opened) | {"step": "start", "reason": "now"})
    assert Replay.objects.get().reason == "now"  # the draft is done with
    other = replays.draft(BOB, selection=dead(2), reason="never")
    assert ann.post(f"/replays/{other.pk}/discard/").status_code == 302
    assert Replay.objects.count() == 1


FULL_PACE = {
    "style": "careful",
    "canary": {"jobs": 7, "success": 0.55, "within": 90},
    "ramp": {"from": 1.5, "to": 12345.6789},
    "in_flight": 321,
    "per_key": {"key": "tenant", "concurrency": 2, "rate": 0.75},
    "stop": {"failed": 0.37, "of_last": 150, "new_groups": False},
    "queue_cap": 5000,
    "jitter": 0.25,
    "window": {"from": "22:00", "to": "06:30", "days": ["mon", "tue"]},
    "shuffle": True,
}


class Fields(HTMLParser):
    """Return the fields that a browser sends of the forms with one action: hidden, typed, ticked and chosen ones."""

    def __init__(self, page, action):
        super().__init__()
        self.action, self.sent, self.inside, self.select, self.area = action, {}, False, None, None
        self.feed(page.content.decode())

    def add(self, name, value):
        if name and name != "csrfmiddlewaretoken":
            self.sent.setdefault(name, []).append(value)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form":
            self.inside = given.get("action") == self.action
        elif self.inside and tag == "input" and "disabled" not in given:
            if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                self.add(given.get("name"), given.get("value") or "")
        elif self.inside and tag == "select":
            self.select = [given.get("name"), None]
        elif self.select and tag == "option" and ("selected" in given or self.select[1] is None):
            self.select[1] = given.get("value", "")
        elif self.inside and tag == "textarea":
            self.area = [given.get("name"), ""]

    def handle_data(self, data):
        if self.area:
            self.area[1] += data

    def handle_endtag(self, tag):
        if tag == "form":
            self.inside = False
        elif tag == "select" and self.select:
            self.add(*self.select)
            self.select = None
        elif tag == "textarea" and self.area:
            self.add(*self.area)
            self.area = None


@pytest.mark.parametrize(
    ("pace", "options"),
    [
        (FULL_PACE, {"attempts": 4, "without_groups": ["v1-down"], "patch": {"kwargs": {"note": "again & again"}}}),
        ({"style": "steady", "rate": 0.125}, {"attempts": "kept", "same_job_id": True, "without_groups": []}),
        ({"style": "at_once"}, {"accept": ["expired"]}),
    ],
)
def test_an_opened_draft_brings_back_its_groups_its_pace_and_its_attempts(ann, shop, pace, options):
    dead(5, group=group("shop.PartnerDown", "down", fingerprint="v1-down"), task="shop.deliver")
    dead(3, group=group("KeyError", "sku", fingerprint="v1-key"), task="shop.stock")
    options = replays.Options.parse(options)
    draft = replays.draft(BOB, query="state:dead", pace=pace, options=options, reason="later")
    opened = ann.get(NEW, Fields(ann.get(f"/replays/{draft.pk}/"), NEW).sent)
    form = Fields(opened, NEW).sent | {"step": "start", "reason": "now", "confirm": "5"}
    answer = ann.post(NEW, form)
    assert answer.status_code == 302, text_of(answer)
    started = Replay.objects.get()
    assert started.pk != draft.pk and started.pace == draft.pace
    assert replays.Options.from_replay(started) == replays.Options.from_replay(draft)
    assert started.without_groups == draft.without_groups


def test_a_job_under_a_held_replay_shows_it_on_its_page_and_in_the_list(ann, shop):
    replay = create_replay_on_hold(others=2, kind="canary", failed=2, judged=5)
    waiting = replay.items.filter(state="planned").first()
    text = text_of(ann.get(f"/failures/{waiting.failure_id}/"))
    assert "That replay is held, so this job is waiting. 2 of 5 canary jobs failed again." in text
    assert "Resume that replay, resume without this job or its group, or cancel the remaining jobs" in text
    rows = ann.get("/failures/").content.decode()
    assert f'in held <a href="/replays/{replay.pk}/">replay #{replay.pk}</a>' in rows
    call_command("failures", f"replay:{replay.pk}", stdout=(out := StringIO()), stderr=StringIO())
    assert f"in held replay #{replay.pk}: 2 of 5 canary jobs failed again." in out.getvalue()
    assert f"/replays/{replay.pk}/" in out.getvalue()


def test_a_replay_whose_outcomes_would_be_refused_shows_it_before_and_while_it_waits(ann, shop):
    replay = running(2)
    url, now = reverse("redrive:replay-detail", args=[replay.pk]), timezone.now()
    assert "are refused" not in ann.get(url).text
    UnsignedReports.objects.update(until=now)
    RefusedReports.objects.create(
        source="shop", cause="unsigned", refused=1, first_at=now, last_at=now, why="not signed"
    )
    trust.forget()
    message = "Reports of shop are refused, so job outcomes are unknown (the latest at"
    assert message in text_of(ann.get(url))
    dead(2, queue="emails")
    assert message in text_of(ann.get(NEW, {"q": "queue:emails"}))
    moved(replay, 1, "succeeded"), moved(replay, 2, "succeeded")
    assert message not in text_of(ann.get(url))


def test_a_preview_reports_what_decides_about_each_group_and_what_slows_the_replay(call_api, shop):
    now = timezone.now()
    down = group("shop.PartnerDown", "down", last_seen=now)
    dead(3, queue="orders", group=down, tenant="acme"), dead(1, queue="orders", group=group("shop.Gone", "away"))
    GroupCounter.objects.create(group=down, at=now.replace(second=0, microsecond=0), failed=11)
    QueueCounter.objects.create(source="shop", queue="orders", step=3600, at=now - timedelta(hours=3), succeeded=1)
    DepthSample.objects.create(source="shop", queue="orders", at=now, step=10, waiting=0, workers=0)
    seen = call_api("POST", "replays/preview", {"q": "queue:orders"}).json()
    first, second = sorted(seen["groups"], key=lambda one: -one["count"])
    assert (first["tenants"], first["is_tenants_all"], first["queue"]) == (1, True, "orders")
    assert 1.8 <= first["failed_per_min"] <= 2.2 and second["failed_per_min"] == 0
    assert first["queue_succeeded_per_min"] == 0 and first["queue_succeeded_at"]
    assert seen["slowed_by"] == ["No worker consumes from orders: jobs wait there until a worker starts."]
    call_command("replay", "queue:orders", "--dry-run", stdout=(out := StringIO()), stderr=StringIO())
    assert "slowed: No worker consumes from orders" in out.getvalue() and "failures/min now]" in out.getvalue()


def test_a_rate_of_a_group_with_failures_out_of_sight_is_not_shown(otto, shop):
    both = group("shop.PartnerDown", "down", last_seen=timezone.now() - timedelta(minutes=2))
    dead(2, group=both), dead(2, group=group("shop.Gone", "away")), dead(2, group=both, source="bank")
    GroupCounter.objects.create(group=both, at=timezone.now().replace(second=0, microsecond=0), failed=50)
    answer = otto.get("/replays/new/", {"q": "state:dead"})
    rows = [row for kind in answer.context["choices"].kinds for row in kind.rows]
    assert {row.title: row.group.failed_per_min for row in rows} == {
        "shop.PartnerDown: down": None,
        "shop.Gone: away": 0,
    }
    assert "still failing" not in answer.text


def test_the_preview_of_one_job_folds_its_pace(ann, shop):
    (one,) = dead(1)
    page = ann.get("/replays/new/", {"selection": one}).content.decode()
    assert '<details class="as-table" id="one-job"><summary>Pace: ' in page.replace("\n", "").replace("  ", "")
    dead(1)
    assert 'id="one-job"' not in ann.get("/replays/new/", {"q": "state:dead"}).content.decode()
