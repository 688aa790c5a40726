from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.http import HttpResponse
from django.utils import timezone

from dashboard.alerts.silences import screens as silence_screens
from dashboard.web import moments
from jobs_admin import alerts
from jobs_admin.core import keys
from jobs_admin.models import (
    Alert,
    AlertEvent,
    AuditEvent,
    DepthSample,
    Failure,
    Group,
    GroupCounter,
    Release,
    Replay,
    ReplayItem,
    Rule,
    Silence,
    Source,
)
from jobs_admin.models.access import ENGINE
from jobs_admin.models.failure import Caveat
from tests.kit.alerts import create_delivery, episode, rule, samples
from tests.kit.browsing import Browser
from tests.kit.failures import bury, dead
from tests.kit.groups import group
from tests.kit.matrix import digest
from tests.kit.pages import HTMX, clock_of, count_of_link, text_of

pytestmark = pytest.mark.django_db


def page_of(alert: Alert) -> str:
    return f"/alerts/{alert.pk}/"


# --- the list ----------------------------------------------------------------------------------------------------


def test_a_desk_on_which_nothing_ever_fired_shows_what_is_watched(ann, watched, first_rules):
    text = text_of(ann.get("/alerts/"))
    assert "No alerts firing" in text and "No alerts yet." in text
    assert "4 active rules: Dead Letter Queue Growing, No Progress, Quarantine" in text


def test_what_fires_is_first_and_shows_that_no_one_has_taken_it(otto, watched):
    episode("emails")
    page = otto.get("/alerts/").content.decode()
    assert "<h1>1 alert firing, not acknowledged</h1>" in page
    assert "emails has 1,243 dead jobs (threshold: 100)" in html.unescape(page)
    assert "Acknowledge<span" in page


def test_who_has_taken_it_is_shown_and_it_is_not_offered_again(otto, watched):
    episode("emails", state="acknowledged", acknowledged_by="otto")
    text = text_of(otto.get("/alerts/"))
    assert "1 open alert, acknowledged" in text and "acknowledged by otto" in text


@pytest.mark.parametrize(
    ("requested", "found"),
    [("state=firing", "emails"), ("state=resolved", "webhooks"), ("source=shop", "emails webhooks"), ("queue=emails", "emails")],
)  # fmt: skip
def test_the_list_is_narrowed_by_state_source_and_queue(ann, watched, requested, found):
    episode("emails")
    episode("webhooks", state="resolved", ago_s=9_000)
    episode("ledger", source="bank", state="pending")
    rows = re.findall(r'<a class="row-link" href="/alerts/\d+/">(\w+)', ann.get(f"/alerts/?{requested}").content.decode().split('id="all"')[1])  # fmt: skip
    assert sorted(rows) == found.split()


def test_of_a_chosen_source_it_shows_that_alone(ann, watched, sources):
    episode("emails", acknowledged_by="ann")
    episode("ledger", source="bank", acknowledged_by="ann")
    page = text_of(ann.get("/alerts/"))
    assert "2 alerts firing" in page and "Fired in 30 days 2" in page
    page = text_of(ann.get("/alerts/", {"source": "bank"}))
    assert "1 alert firing" in page and "Fired in 30 days 1" in page and "emails" not in page


def test_the_list_is_narrowed_by_rule(ann, watched):
    episode("emails")
    other = rule("Old dead", metric="oldest_dead_s", threshold=3600)
    episode("webhooks", of=other, value=18_000)
    listed = text_of(ann.get(f"/alerts/?rule={other.pk}")).split("All alerts")[1]
    assert "webhooks has a job that has been dead for 5 h (threshold: 1 h)" in listed and "emails has" not in listed


def test_a_long_list_goes_on_where_it_ended(ann, watched):
    for n in range(60):
        episode(f"q{n}", state="resolved", ago_s=9_000 + n)
    page = ann.get("/alerts/").content.decode()
    next_url = html.unescape(re.search(r'rel="next" href="([^"]+)"', page)[1]).partition("#")[0]
    first, second = (
        set(re.findall(r'data-row="(/alerts/\d+/)"', text)) for text in (page, ann.get(next_url).content.decode())
    )
    assert len(first) == 50 and len(second) == 10 and not first & second


def test_the_strip_has_a_line_a_subject_and_a_bar_an_episode_with_its_values(ann, watched):
    for days in (1, 3, 5):
        episode("emails", state="resolved", ago_s=days * 86_400, value=400 + days)
    episode("webhooks", ago_s=7_200)
    page = html.unescape(ann.get("/alerts/").content.decode())
    strips = re.findall(r'<svg class="strip" .*?aria-label="([^"]+)">(.*?)</svg>', page)
    assert [words for words, _ in strips] == [
        "webhooks, Dead Letter Queue Growing: fired 1 time, firing for 1 h 59 min in total; firing now",
        "emails, Dead Letter Queue Growing: fired 3 times, firing for 57 min in total",
    ]
    assert strips[1][1].count("<rect") == 3 and "peak 403, threshold 100" in strips[1][1]


def test_what_ended_before_the_time_shown_is_not_in_the_strip(ann, watched):
    episode("emails", state="resolved", ago_s=3 * 86_400)
    assert "No alerts in the last 24 h." in text_of(ann.get("/alerts/?span=24h"))
    assert 'class="strip" viewBox' in ann.get("/alerts/?span=7d").content.decode()


def test_how_quickly_people_are_is_shown_as_medians(ann, watched, otto):
    for n in range(3):
        episode(f"q{n}", state="resolved", ago_s=9_000, lasted_s=660, acknowledged_by="otto")
    text = text_of(ann.get("/alerts/"))
    assert "Median time to acknowledge 40 s Median time to resolve 11 min Fired in 30 days 3" in text
    # The page of each says the same duration: from when it became true, not from when it fired.
    assert "Resolved after 11 min." in text_of(ann.get(page_of(Alert.objects.first())))


def test_those_of_other_sources_are_seen_by_no_one_else(vera, watched):
    episode("ledger", source="bank")
    page = vera.get("/alerts/").content.decode()
    assert "ledger" not in page and "No alerts firing" in page


def test_an_unknown_filter_or_cursor_finds_nothing_or_is_left_out(ann, watched):
    episode("emails")
    for requested in ("state=nonsense", "rule=nobody", "after=x", "span=12345678901234567890", "after=99999999999999999999999", "source=%00"):  # fmt: skip
        assert ann.get(f"/alerts/?{requested}").status_code == 200


def test_a_watch_that_stopped_is_shown_on_every_page_about_alerts(ann, watched):
    ended = timezone.now() - timedelta(minutes=7)
    for step in ("ingest", "sample"):
        watched.hset(keys.steps(), step, json.dumps({"at": ended.timestamp()}))
    for address in ("/alerts/", page_of(episode("emails")), "/alerts/silences/"):
        assert f"Not watching since {clock_of(ended)}" in text_of(ann.get(address)), address


@pytest.mark.parametrize("many", [5, 200])
def test_the_list_costs_the_same_for_many(ann, watched, django_assert_max_num_queries, many):
    for n in range(many):
        episode(f"q{n}", state="firing" if n % 3 else "resolved", ago_s=9_000 + n)
    with django_assert_max_num_queries(16):
        assert ann.get("/alerts/").status_code == 200


# --- one alert ---------------------------------------------------------------------------------------------------


def test_its_page_shows_what_how_many_since_when_and_the_threshold(otto, watched):
    alert = episode("emails", ago_s=360)
    # The list says the same duration; on a busy machine some seconds pass until it is asked.
    assert re.search(r"condition met for 6 min( \d+ s)?, since", text_of(otto.get("/alerts/")))
    text = text_of(otto.get(page_of(alert)))
    assert "emails has 1,243 dead jobs (threshold: 100)" in text
    assert re.search(r"Firing for 6 min( \d+ s)?\. Not acknowledged\.", text)
    assert f"condition met since {clock_of(alert.opened_at, 'seconds')} UTC" in text


def test_its_picture_is_the_depth_with_the_threshold_and_a_table(otto, watched):
    alert = episode("emails", ago_s=360)
    samples(alert, [10, 20, 90, 150, 400, 800, 1243])
    page = html.unescape(otto.get(page_of(alert)).content.decode())
    chart = json.loads(re.search(r'data-chart="(\{.*?\})">', page)[1])
    assert list(chart["series"]) == ["Dead jobs"] and "1,243" in chart["series"]["Dead jobs"]
    assert 'class="threshold"' in page and '<td class="number">1,243</td>' in page
    assert "crossed the threshold" in page


def test_groups_with_unrecovered_jobs_are_named_with_links(otto, watched, shop):
    found = group("SMTPServerDisconnected", "gone")
    bury(7, queue="emails", group=found)
    page = text_of(otto.get(page_of(episode("emails"))))
    assert "SMTPServerDisconnected gone" in page and "Review and replay 7 emails jobs" in page


def failing(found, *, per_minute: int, minutes: int = 5):
    """Attempts of the group fail, until now."""
    minute = timezone.now().replace(second=0, microsecond=0)
    for n in range(minutes + 1):
        counted = {"step": 60, "at": minute - timedelta(minutes=n), "failed": per_minute}
        GroupCounter.objects.create(group=found, **counted)


def read_reasons(client, alert: Alert) -> tuple[str, str]:
    """The text of the page's reasons, and its markup."""
    page = client.get(page_of(alert)).content.decode()
    why = re.search(r'<section class="panel" id="why".*?</section>', page, re.S)[0]
    return text_of(HttpResponse(why)), page


def test_an_error_that_still_occurs_has_its_rate_and_no_replay_is_pressed_upon_anyone(otto, watched, shop):
    long = "SMTP server refused " + "the sender " * 40
    found = group("smtplib.SMTPServerDisconnected", long.strip(), first_release="v2.4.1")
    failing(found, per_minute=30)
    bury(7, queue="emails", group=found, tenant="acme"), bury(2, queue="emails", group=found, tenant="globex")
    text, page = read_reasons(otto, episode("emails"))
    assert long.strip() in text and "SMTPServerDisconnected" in text
    assert re.search(r"still failing (2[5-9]|3\d)(\.\d)?/min in the last 5 minutes · 9 jobs · 2 tenants", text)
    assert "new , first seen" in text and "in release v2.4.1" in text
    assert "a replay now would likely fail again. Acknowledge or silence the alert." in text
    assert re.search(r'class="primary"[^>]*data-key="a"', page), "acknowledging is the act"
    assert (
        re.search(r'class="button"\s+href="/replays/new/[^"]+" data-key="r"', page)
        and "Review and replay 9 emails jobs" in text
    )


def test_of_errors_that_ended_the_replay_is_the_act_with_the_number_of_its_draft(otto, watched, shop):
    earlier = timezone.now() - timedelta(minutes=20)
    bury(7, queue="emails", group=group("SMTPServerDisconnected", "gone", last_seen=earlier))
    bury(2, queue="emails", group=group("KeyError", "'email'", last_seen=earlier))
    before = earlier - timedelta(days=1)
    bury(4, queue="emails", group=group("OSError", "old", last_seen=earlier), failed_at=before, first_failed_at=before)
    text, page = read_reasons(otto, episode("emails"))
    assert "4 jobs are not included: died before this alert." in text
    assert "The leading errors have not occurred for 20 min. Review and replay 7 emails jobs" in text
    assert "last failed 20 min ago (" in text
    assert not re.search(r"\bended\b", text), "an error that occurs each half hour has not ended after 20 minutes"
    assert (
        "2 jobs are excluded: likely to fail again." in text
        and "permanent: KeyError is an error of code or data" in text
    )
    assert re.search(r'class="button primary"\s+href="/replays/new/[^"]+"', page) and 'class="primary"' not in page


def test_errors_of_which_some_still_occur_are_counted(otto, watched, shop):
    hours_ago, at = timezone.now() - timedelta(hours=8), timezone.now() - timedelta(minutes=2)
    both = [group(name, "now and then", last_seen=hours_ago) for name in ("OSError", "TimeoutError")]
    for one in both:
        bury(3, queue="emails", group=one)
    alert = episode("emails")
    for one, sentence in zip(both, ("1 of the 2 leading errors still occurs", "The leading errors occur"), strict=True):
        GroupCounter.objects.create(group=one, step=60, at=at.replace(second=0, microsecond=0), failed=1)
        Group.objects.filter(pk=one.pk).update(last_seen=at)
        assert f"{sentence} only now and then." in read_reasons(otto, alert)[0]


def test_where_every_job_would_fail_again_the_advice_is_to_fix_the_cause(otto, watched, shop):
    earlier = timezone.now() - timedelta(minutes=20)
    for n in range(2):
        bury(2, queue="emails", group=group("KeyError", f"'{n}'", last_seen=earlier))
    text, page = read_reasons(otto, episode("emails"))
    assert "All 4 emails jobs would likely fail again: fix the cause first" in text
    assert 'class="button primary"' not in page and "Review and replay" not in text
    assert _count_of_review(otto, page, "Review 4 emails jobs") == 4


@pytest.mark.parametrize("more", [{}, {"state": "resolved", "ago_s": 1800, "lasted_s": 1200}])
def test_where_no_job_can_be_replayed_the_link_leads_to_the_jobs_and_the_reason_is_shown(otto, watched, shop, more):
    alert = episode("emails", **more)
    died = {"failed_at": alert.opened_at, "first_failed_at": alert.opened_at}
    dead(3, queue="emails", is_complete=False, group=group(last_seen=alert.opened_at), **died)
    text, page = read_reasons(otto, alert)
    assert "can be replayed now: truncated: the message was too large to store completely." in text
    assert (
        "Review and replay" not in text
        and "/replays/new/" not in page.partition('id="why"')[2].partition("</section>")[0]
    )
    assert _count_of_review(otto, page, "Review 3 dead jobs" if more else "Review 3 emails jobs") == 3


def _count_of_review(client, page: str, words: str) -> int:
    links = re.findall(r'<a class="button" href="([^"]+)"[^>]*>(.*?)</a>', page, re.DOTALL)
    (url,) = [html.unescape(url) for url, label in links if words in " ".join(re.sub("<[^>]+>", "", label).split())]
    return count_of_link(client, url)


def test_a_release_shortly_before_is_named_and_an_older_one_is_not(otto, watched):
    alert = episode("emails")
    bury(2, queue="emails", group=group())
    Release.objects.create(source="shop", version="v1", at=alert.opened_at - timedelta(days=1))
    assert "release v1" not in read_reasons(otto, alert)[0]
    Release.objects.create(source="shop", version="v2", at=alert.opened_at - timedelta(minutes=3))
    assert "release v2 first seen" in read_reasons(otto, alert)[0]


def test_a_resolved_alert_shows_what_became_of_its_jobs_and_replays_the_dead(otto, watched, shop):
    alert = episode("emails", state="resolved", ago_s=1800, lasted_s=1200)
    died = {"queue": "emails", "group": group(), "failed_at": alert.opened_at, "first_failed_at": alert.opened_at}
    bury(2, state="discarded", **died), bury(3, **died)
    replay = Replay.objects.create(state="done", scope_max_id=10, actor="ann")
    for n, one in enumerate(bury(5, state="recovered", **died)):
        ReplayItem.objects.create(replay=replay, n=n, failure=one, run=2, state="succeeded")
    text, _ = read_reasons(otto, alert)
    assert "Outcome" in text and "TimeoutError: no answer 10" in text and "Review and replay 3 jobs" in text
    assert "10 failed jobs, now: dead 3 recovered 5 discarded 2" in text
    assert "Resolved after 20 min." in text_of(otto.get(page_of(alert)))


def test_an_alert_without_failing_jobs_behind_it_is_explained(otto, watched):
    Source.objects.create(
        name="shop",
        is_configured=True,
        is_reachable=False,
        why_unreachable="connection refused",
        changed_at=timezone.now(),
    )
    of = rule("Unreachable", metric="unreachable", threshold=60)
    text, page = read_reasons(otto, episode("", of=of, value=300))
    assert "While shop does not answer, its queues are not sampled" in text and "connection refused" in text
    assert (
        "/replays/new/" not in page and "Open failures" not in page and "This alert is not about failing jobs." in text
    )


def test_a_viewer_sees_why_without_an_act(vera, watched):
    bury(2, queue="emails", group=group())
    text, page = read_reasons(vera, episode("emails"))
    assert "TimeoutError" in text and "/replays/new/" not in page and "Acknowledge or silence" not in text


def test_the_story_shows_who_was_notified_and_whether_it_arrived(ann, watched):
    alert = episode("emails")
    create_delivery(alert, "ops")
    create_delivery(alert, "pager", "waiting", tries=3, error="<b>connection refused</b>", next_try_at=timezone.now() + timedelta(minutes=5))  # fmt: skip
    page = ann.get(page_of(alert)).content.decode()
    text = text_of(ann.get(page_of(alert)))
    assert "ops: delivered" in text and "pager: not delivered after 3 tries, next try in" in text
    assert "&lt;b&gt;connection refused" in page


def test_what_happens_to_several_in_one_moment_is_one_line(ann, watched):
    leader = episode("emails", opened_at=timezone.now())
    others = [episode(name, told_with=leader) for name in ("sms", "push")]
    at = timezone.now().replace(microsecond=0)
    for n, alert in enumerate((leader, *others)):
        alert.events.exclude(to="firing").delete()
        alert.events.update(at=at, reason=f"At {n}, above 100.")
    text = text_of(ann.get(page_of(leader)))
    assert "fired emails at 1,243, sms at 1,243, push at 1,243" in text and "At 1, above 100." not in text


def test_a_rule_that_names_no_channel_is_shown(ann, watched):
    assert "No notifications were sent: the rule has no channel." in text_of(ann.get(page_of(episode("emails"))))


def test_earlier_ones_show_what_was_done_then(ann, watched, otto):
    episode("emails", state="resolved", ago_s=90_000, acknowledged_by="otto", value=512)
    text = text_of(ann.get(page_of(episode("emails"))))
    assert "emails had up to 512 dead jobs (threshold: 100)" in text and "lasted 20 min · acknowledged by otto" in text


def test_the_links_lead_to_the_failures_and_to_a_draft_with_absolute_times(otto, watched):
    alert = episode("emails")
    bury(2, queue="emails", group=group())
    page = html.unescape(otto.get(page_of(alert)).content.decode())
    links = re.findall(r'href="(/(?:failures|replays/new)/\?q=[^"]+)"', page)
    assert len(links) == 2 and all("queue%3Aemails" in link and "since%3A20" in link for link in links)
    assert [otto.get(link).status_code for link in links] == [200, 200]


def test_the_page_of_a_quarantine_alert_opens_the_jobs_to_readmit_and_drafts_no_replay(otto, watched):
    bury(1, queue="emails", state="quarantined")
    alert = episode("emails", of=rule("Quarantine", metric="quarantined", threshold=0), value=1)
    page = html.unescape(otto.get(page_of(alert)).content.decode())
    (link,) = re.findall(r'href="(/failures/\?q=[^"]+)" data-offer="Open quarantined jobs"', page)
    assert "/replays/new/" not in page and "Open failures" not in page
    assert 'value="readmit"' in otto.get(link).content.decode()


def test_a_page_whose_notice_covers_several_queues_names_them_and_has_both_pairs_of_links(otto, watched, shop):
    leader = episode("webhooks")
    episode("payments", told_with=leader)
    bury(2, queue="webhooks", group=group())
    page = otto.get(page_of(leader))
    assert "Same notification payments has 1,243 dead jobs" in text_of(page) and "All 2 queues:" in text_of(page)
    links = re.findall(r'href="(/(?:failures|replays/new)/\?q=[^"]+)"', html.unescape(page.content.decode()))
    assert len(links) == 4 and sum("queue%3Awebhooks%2Cpayments" in link for link in links) == 2
    assert "All 2 queues: Failures · Review and replay" in text_of(page)
    Failure.objects.update(caveats=Caveat.TRUNCATED)
    assert "All 2 queues: Failures" in (text := text_of(otto.get(page_of(leader)))) and "Review and replay" not in text


def test_a_viewer_sees_and_cannot_act_and_is_shown_why(vera, watched):
    alert = episode("emails")
    page = vera.get(page_of(alert)).content.decode()
    assert "Acknowledging, silencing and replaying need the role operator on shop." in page
    assert "acknowledge/" not in page and "/silence/" not in page and "/replays/new/" not in page
    assert vera.post(f"{page_of(alert)}acknowledge/").status_code == 403
    assert vera.post(f"{page_of(alert)}silence/").status_code == 403


def test_on_a_read_only_desk_no_one_can_act_and_it_shows_it(otto, watched, settings):
    alert = episode("emails")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    page = otto.get(page_of(alert)).content.decode()
    assert "The desk is read-only: alerts cannot be acknowledged or silenced, and jobs" in page
    assert "acknowledge/" not in page
    assert otto.post(f"{page_of(alert)}acknowledge/").status_code == 403 and Alert.objects.get().state == "firing"


def test_what_is_out_of_sight_is_answered_like_what_is_not_there(otto, watched):
    alert = episode("ledger", source="bank")
    for method in (otto.get, otto.post):
        assert method(f"{page_of(alert)}{'' if method == otto.get else 'acknowledge/'}").status_code == 404
    assert otto.get("/alerts/999999/").status_code == 404
    assert otto.post(f"{page_of(alert)}silence/", {"for": "3600", "comment": "x", "source": "bank"}).status_code == 404


def test_a_link_in_a_notice_leads_through_the_login_to_the_same_page(watched, django_user_model, otto):
    alert = episode("emails")
    stranger = Browser()
    answer = stranger.get(page_of(alert))
    assert (answer.status_code, answer["Location"]) == (302, f"/login/?next={page_of(alert)}")
    came = stranger.post(
        answer["Location"], {"username": "otto", "password": "correct horse battery", "next": page_of(alert)}
    )
    assert came["Location"] == page_of(alert)


def test_the_login_leads_to_no_other_desk(watched, otto):
    form = {"username": "otto", "password": "correct horse battery", "next": "https://evil.example/alerts/1/"}
    assert Browser().post("/login/", form)["Location"] == "/"


def test_ten_prefetches_change_no_row(otto, vera, watched):
    alert = episode("emails")
    bury(3, queue="emails", group=group())
    before = digest()
    ahead = {"Sec-Purpose": "prefetch;prerender", "Purpose": "prefetch", "User-Agent": "Slackbot-LinkExpanding 1.0"}
    page = html.unescape(otto.get(page_of(alert)).content.decode())
    links = {page_of(alert), *re.findall(r'href="(/(?:failures|replays|alerts)/[^"#]*)"', page)}
    for _ in range(2):  # of each link twelve in all
        for client in (otto, vera, Browser()):
            for link in links:
                client.get(link, headers=ahead)
                client.head(link, headers=ahead)
    assert len(links) >= 4 and digest() == before


def test_the_acts_take_no_get(otto, watched):
    alert = episode("emails")
    assert [otto.get(f"{page_of(alert)}{act}/").status_code for act in ("acknowledge", "silence")] == [405, 405]
    assert Alert.objects.get(pk=alert.pk).state == "firing"


@pytest.mark.parametrize("many", [2, 120])
def test_its_page_costs_the_same_for_many(otto, watched, django_assert_max_num_queries, many):
    leader = episode("emails")
    for n in range(many):
        episode(f"q{n}", told_with=leader)
        episode("emails", state="resolved", ago_s=90_000 + n)
        bury(1, queue="emails", group=group("TimeoutError", f"no answer {n}"), tenant=f"t{n}")
    current = episode("emails2")
    for each in (leader, current):
        with django_assert_max_num_queries(77):
            assert otto.get(page_of(each)).status_code == 200


# --- acts --------------------------------------------------------------------------------------------------------


def test_acknowledging_stops_the_calls_shows_it_and_is_written_down(otto, watched):
    alert = episode("emails")
    answer = otto.post(f"{page_of(alert)}acknowledge/", {"comment": "I look at the mail server"})
    assert answer["Location"] == page_of(alert)
    text = text_of(otto.get(page_of(alert)))
    assert (
        "Reminders and escalation are off" in text
        and "Acknowledged by otto." in text
        and "I look at the mail server" in text
    )
    assert AuditEvent.objects.filter(act="alert.acknowledge", actor="otto", reason="I look at the mail server").exists()


def test_who_comes_second_is_shown_who_was_first(otto, ann, watched):
    alert = episode("emails")
    ann.post(f"{page_of(alert)}acknowledge/")
    otto.post(f"{page_of(alert)}acknowledge/")
    assert "Already acknowledged by ann at" in text_of(otto.get(page_of(alert)))


def test_what_acknowledging_covers_is_on_the_button_and_only_this_one_is_possible(otto, watched):
    leader = episode("emails")
    others = [episode(name, told_with=leader, state=state) for name, state in (("sms", "firing"), ("push", "silenced"))]
    episode("old", told_with=leader, state="resolved")
    for page in ("/alerts/", "/", page_of(leader)):
        text = text_of(otto.get(page))
        assert "Acknowledge 2 alerts" in text and re.search("Acknowledge [Oo]nly this one", text)
        assert "1 silenced alert" in text and "not included" in text
    otto.post(f"{page_of(leader)}acknowledge/", {"only_this": "1"})
    text = text_of(otto.get(page_of(leader)))
    assert "1 more of the notification is not acknowledged." in text and "Acknowledged by otto." in text
    assert [Alert.objects.get(pk=one.pk).state for one in others] == ["firing", "silenced"]
    otto.post(f"{page_of(others[0])}acknowledge/")
    assert "Acknowledged: sms has" in text_of(otto.get(page_of(leader)))
    assert Alert.objects.get(pk=others[1].pk).state == "silenced"
    alone = episode("alone", of=rule("Another"))
    assert "nly this one" not in text_of(otto.get(page_of(alone)))


def test_an_acknowledgement_is_undone_by_its_message_which_names_what_resumes(otto, ann, watched):
    of = rule("Reminding", renotify_s=300)
    leader = episode("emails", of=of)
    episode("sms", of=of, told_with=leader)
    otto.post(f"{page_of(leader)}acknowledge/")
    assert f'action="{page_of(leader)}unacknowledge/"' in otto.get(page_of(leader)).content.decode()
    offer = text_of(otto.get("/undo/"))
    assert "You acknowledged 2 alerts" in offer
    assert "2 alerts become unacknowledged again; the rule’s reminders and escalation resume." in offer
    otto.post(f"{page_of(leader)}unacknowledge/")
    text = text_of(otto.get(page_of(leader)))
    assert "2 alerts are unacknowledged again; reminders resume." in text and "unacknowledged emails" in text
    assert set(Alert.objects.values_list("state", flat=True)) == {"firing"}
    ann.post(f"{page_of(leader)}acknowledge/")
    otto.post(f"{page_of(leader)}unacknowledge/")
    assert "Can’t undo: the alert is acknowledged by ann at" in text_of(otto.get(page_of(leader)))


def test_acknowledged_from_the_list_one_stays_there(otto, watched):
    alert = episode("emails")
    assert (
        otto.post(f"{page_of(alert)}acknowledge/", {"back": "/alerts/?state=firing"})["Location"]
        == "/alerts/?state=firing"
    )


def test_silenced_for_an_hour_it_is_silenced_and_can_be_taken_back(otto, watched):
    alert = episode("emails")
    form = {"rule": alert.rule.name, "source": "shop", "queue": "emails", "comment": "known", "for": "3600"}
    assert otto.post(f"{page_of(alert)}silence/", form)["Location"] == page_of(alert)
    made = Silence.objects.get()
    assert made.matchers == {"rule": alert.rule.name, "source": "shop", "queue": "emails"}
    assert abs((made.ends_at - timezone.now()).total_seconds() - 3600) < 10
    text = text_of(otto.get(page_of(alert)))
    assert f"Silenced until {moments.dated(made.ends_at, made.starts_at)} by otto: “known”" in text and "Undo" in text


def test_a_silence_is_ended_on_the_page_of_an_alert_by_those_who_may(otto, vera, watched):
    alert = episode("emails")
    otto.post(f"{page_of(alert)}silence/", {"source": "shop", "queue": "emails", "comment": "known", "for": "3600"})
    end = f"/alerts/silences/{Silence.objects.get().pk}/end/"
    assert f'action="{end}"' not in vera.get(page_of(alert)).content.decode()
    assert f'action="{end}"' in otto.get(page_of(alert)).content.decode()
    assert otto.post(end, {"back": page_of(alert)})["Location"] == page_of(alert)
    text = text_of(otto.get(page_of(alert)))
    assert "Silence ended. Matching alerts send notifications again." in text and "Silenced until" not in text


def test_a_silence_covers_the_alerts_of_the_notification_or_one_and_its_presets_show_their_end(otto, watched):
    at = r"\d+ \w+ (\d{4} )?\d\d:\d\d UTC"
    leader = episode("emails")
    episode("sms", told_with=leader), episode("push", told_with=leader, state="resolved")
    text = text_of(otto.get(page_of(leader)))
    assert "Silence 2 alerts…" in text and "These 2 alerts of this notification" in text and "By matchers" in text
    assert re.search(r"1 h until D 4 h until D Tomorrow 09:00 until D Monday 09:00 until D".replace("D", at), text)
    form = {"scope": "notification", "comment": "known", "for": "tomorrow", "queue": "emails"}
    otto.post(f"{page_of(leader)}silence/", form)
    made = Silence.objects.get()
    assert made.matchers == {"alert": leader.pk, "source": "shop"} and f"{made.ends_at:%H:%M}" == "09:00"
    assert "all alerts of this notification" in text_of(otto.get(page_of(leader)))
    text = text_of(otto.get(page_of(episode("alone", of=rule("Another")))))
    assert "Silence…" in text and "Covers this alert and new alerts that match." in text


def test_a_silence_of_a_notification_names_its_alerts_and_promises_nothing_about_new_ones(otto, watched):
    only = "Covers these 3 alerts only. A new alert, even about the same queue, sends notifications."
    leader = episode("webhooks")
    others = [episode(name, told_with=leader) for name in ("emails", "payments")]
    episode("old", told_with=leader, state="resolved", ago_s=9_000)
    assert only in text_of(otto.get(page_of(leader)))
    otto.post(f"{page_of(others[0])}silence/", {"scope": "notification", "comment": "known", "for": "monday"})
    made = Silence.objects.get()
    text = text_of(otto.get("/alerts/silences/"))
    assert "3 alerts webhooks, emails, payments" in text and only in text and f"#{leader.pk}" not in text
    assert f"“known”. {only}" in text_of(otto.get(page_of(leader)))
    Alert.objects.filter(resolved_at=None).update(state="resolved", resolved_at=timezone.now())
    episode("webhooks", told_with=None), otto.post(f"/alerts/silences/{made.pk}/end/")
    text = text_of(otto.get("/alerts/silences/"))
    assert (
        "3 alerts webhooks, emails, payments" in text and "sends notifications" not in text.split("Ended silences")[1]
    )


def test_lists_show_until_when_an_alert_is_silenced(otto, watched, sources):
    leader = episode("webhooks", state="acknowledged", acknowledged_by="otto")
    episode("emails", told_with=leader), episode("ledger", source="bank")
    for hours, matchers in ((1, {"source": "shop", "queue": "w*"}), (4, {"source": "shop", "alert": leader.pk})):
        last = silence(matchers, timedelta(hours=hours))
    until = f"silenced until {moments.dated(last.ends_at, timezone.now())}"
    for page, count in (("/", 2), ("/alerts/", 4)):
        text = text_of(otto.get(page))
        assert text.count(until) == text.count("silenced until") == count, page


def silence(matchers: dict, length: timedelta) -> Silence:
    now = timezone.now().replace(second=0, microsecond=0)
    return Silence.objects.create(
        matchers=matchers, author="otto", comment="known", starts_at=now, ends_at=now + length
    )


def test_a_name_with_a_star_in_it_silences_itself_until_a_person_writes_a_pattern(otto, watched):
    alert = episode("*")
    form = {"rule": alert.rule.name, "source": "shop", "queue": "*", "comment": "known", "for": "3600"}
    otto.post(f"{page_of(alert)}silence/", form)
    otto.post(f"{page_of(alert)}silence/", form | {"queue": "a*"})
    own, pattern = Silence.objects.order_by("pk")
    assert own.matchers["exact"] == ["queue"] and "exact" not in pattern.matchers
    assert "queue, exactly" in text_of(otto.get("/alerts/silences/"))


@pytest.mark.parametrize("form", [{"for": "until", "until": "soon"}, {"for": "3600"}, {"for": "until", "until": "2020-01-01T00:00", "comment": "x"}, {"for": "9999999999", "comment": "x"}])  # fmt: skip
def test_a_silence_without_an_end_or_a_reason_is_refused(otto, watched, form):
    alert = episode("emails")
    otto.post(f"{page_of(alert)}silence/", {"source": "shop", "queue": "emails"} | form)
    assert not Silence.objects.exists() and "Nothing was changed." in text_of(otto.get(page_of(alert)))


# --- silences ----------------------------------------------------------------------------------------------------


def test_silences_stand_by_what_they_are_at_work_coming_over(otto, watched):
    now = timezone.now()
    for begins, ends, why in ((-1, 1, "running"), (1, 2, "planned"), (-3, -1, "gone by")):
        hours = {"starts_at": now + timedelta(hours=begins), "ends_at": now + timedelta(hours=ends)}
        Silence.objects.create(matchers={"source": "shop", "queue": "emails"}, author="ann", comment=why, **hours)
    text = text_of(otto.get("/alerts/silences/"))
    assert (
        text.index("Active silences") < text.index("running") < text.index("Scheduled silences") < text.index("planned")
    )
    assert text.index("Ended silences") < text.index("gone by")


def test_what_a_silence_would_fit_is_shown_before_it_is_made(otto, watched):
    episode("emails")
    episode("webhooks")
    text = text_of(otto.get("/alerts/silences/fitting/?source=shop&queue=em*"))
    assert "Silences 1 open alert now:" in text and "emails has" in text and "webhooks has" not in text
    assert "No open alerts match now" in text_of(otto.get("/alerts/silences/fitting/?source=shop&queue=nothing"))
    assert "Fill in at least one field" in text_of(otto.get("/alerts/silences/fitting/"))


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ({"for": "3600"}, "2026-11-26T23:30"),
        ({"for": "tomorrow"}, "2026-11-27T09:00"),
        ({"for": "monday"}, "2026-11-30T09:00"),
        ({"for": "until", "until": "2026-11-28T10:00"}, "2026-11-28T10:00"),
    ],
)
def test_a_silence_ends_as_chosen(given, ends):
    thursday = datetime(2026, 11, 26, 22, 30, tzinfo=UTC)
    assert moments.as_field(silence_screens.ends_at(given, thursday)) == ends


@pytest.mark.parametrize(("begins", "ends"), [(8, 0), (9, 7)])
def test_until_monday_is_the_next_one_from_the_start(begins, ends):
    monday = datetime(2026, 11, 30, begins, tzinfo=UTC)
    found = silence_screens.ends_at({"for": "monday"}, datetime(2026, 11, 26, tzinfo=UTC), monday)
    assert found == datetime(2026, 11, 30, 9, tzinfo=UTC) + timedelta(days=ends)


def test_a_silence_shows_its_end_and_what_is_wrong_with_its_times_as_it_is_filled_in(otto, watched):
    def check(**given: str) -> str:
        return html.unescape(otto.get("/alerts/silences/fitting/", {"source": "shop", **given}).content.decode())

    assert re.search(
        r'id="silence-end"[^>]*>Ends \w{3} \d+ \w{3} \d\d:\d\d UTC, after 4 h\.<', check(**{"for": "14400"})
    )
    wrong = check(**{"for": "until", "until": "2020-01-01T10:00"})
    assert re.search(r'id="refused-until"[^>]*><p class="refusal".*?The end must be after the start', wrong, re.S)
    assert re.search(r'id="silence-end"[^>]*></p>', wrong)
    assert re.search(r'id="refused-starts"[^>]*><p class="refusal"', check(**{"for": "3600", "starts": "soon"}))


@pytest.mark.parametrize(
    ("wrong", "slot", "field"),
    [
        ({"for": "until", "until": "soon"}, "until", "new-until"),
        ({"starts": "soon"}, "starts", "new-starts"),
        ({"comment": ""}, "comment", "new-comment"),
        ({"source": ""}, "matchers", "new-source"),
    ],
)
def test_what_is_refused_of_a_silence_is_beside_its_field(otto, watched, wrong, slot, field):
    form = {"source": "shop", "comment": "typed", "for": "3600"} | wrong
    answer = otto.post("/alerts/silences/save/", form)
    page = answer.content.decode()
    assert answer.status_code == 422 and not Silence.objects.exists()
    assert re.search(rf'id="refused-{slot}"[^>]*><p class="refusal"', page)
    assert re.search(rf'id="{field}"[^>]*aria-describedby="refused-{slot}"\s+aria-invalid="true"', page)
    if "comment" not in wrong:
        assert 'value="typed"' in page


def test_a_silence_is_made_and_ended_early(otto, watched):
    otto.post("/alerts/silences/save/", {"source": "shop", "queue": "emails", "comment": "move", "for": "14400"})
    made = Silence.objects.get()
    assert "move" in text_of(otto.get("/alerts/silences/"))
    otto.post(f"/alerts/silences/{made.pk}/end/")
    made.refresh_from_db()
    assert made.ends_at <= timezone.now() and made.ended_by == "otto"


def test_a_refused_silence_comes_back_as_it_was_filled_in(otto, watched):
    answer = otto.post(
        "/alerts/silences/save/", {"source": "bank", "queue": "<b>x", "comment": "why not", "for": "3600"}
    )
    page = answer.content.decode()
    assert answer.status_code == 422 and "needs the role operator on bank" in page
    assert 'value="&lt;b&gt;x"' in page and 'value="why not"' in page and not Silence.objects.exists()


def test_a_silence_of_another_source_is_neither_seen_nor_ended(otto, watched):
    now = timezone.now()
    other = Silence.objects.create(matchers={"source": "bank"}, author="ann", comment="zz", starts_at=now, ends_at=now + timedelta(hours=1))  # fmt: skip
    assert "zz" not in text_of(otto.get("/alerts/silences/"))
    assert otto.post(f"/alerts/silences/{other.pk}/end/").status_code == 404


def test_a_viewer_sees_silences_and_makes_none(vera, watched):
    page = vera.get("/alerts/silences/").content.decode()
    assert "Creating a silence needs the role operator" in page and "silences/save/" not in page
    assert vera.post("/alerts/silences/save/", {"source": "shop", "comment": "x", "for": "3600"}).status_code == 403


# --- elsewhere ---------------------------------------------------------------------------------------------------


def test_what_fires_is_on_the_overview_before_any_picture(otto, watched):
    alert = episode("emails")
    page = otto.get("/").content.decode()
    assert page.index("emails has 1,243 dead jobs") < page.index('id="chart-title"')
    assert f'action="/alerts/{alert.pk}/acknowledge/"' in page


def test_the_overview_shows_some_and_shows_how_many_more(ann, watched):
    for n in range(9):
        episode(f"q{n}", ago_s=900 + n)
    page = ann.get("/").content.decode()
    assert page.count('class="alert-says"') == 5 and "All alerts: 4 more firing" in page


def test_alerts_of_one_notification_are_one_line_that_names_the_worst_and_links_each(ann, watched):
    leader = episode("emails", ago_s=900, value=268)
    others = [episode(f"q{n}", ago_s=900 + n, value=1_752 - n, told_with=leader) for n in range(9)]
    for address in ("/", "/alerts/"):
        page = ann.get(address).content.decode()
        assert page.count('class="alert-says"') == 1
        assert f'<a class="row-link" href="{page_of(others[0])}">q0 has 1,752 dead jobs' in page
        assert "<summary>+9 more queues: q1 1,751, q2 1,750, q3 1,749, …</summary>" in page
        fold = page[page.index('class="alert-fold"') :].partition("</details>")[0]
        assert re.findall(r'href="/alerts/(\d+)/"', fold) == [str(one.pk) for one in [*others[1:], leader]]


def test_an_alert_on_part_of_a_queue_is_in_its_line_with_its_own_acknowledgement(otto, watched):
    tenant = rule(name="One customer", tenant="lighthouse", severity="critical")
    part = episode("webhooks", of=tenant, value=300)
    wide = episode("webhooks", value=1_752)
    page = otto.get("/").content.decode()
    assert page.count('class="alert-says"') == 1 and 'class="is-dead count-of-state' in page
    assert "<summary>including tenant lighthouse 300 (critical)</summary>" in page
    assert all(f'action="/alerts/{one.pk}/acknowledge/"' in page for one in (part, wide))


def test_a_calm_overview_has_no_panel_of_alerts(ann, watched):
    episode("emails", state="resolved", ago_s=9_000)
    assert "alerts-title" not in ann.get("/").content.decode()


def test_the_live_part_is_the_page_without_its_shell_and_is_not_sent_twice(otto, watched):
    alert = episode("emails", state="resolved", ago_s=90_000)
    part = otto.get(page_of(alert), headers=HTMX)
    assert b"<html" not in part.content and b'id="alert"' in part.content
    assert otto.get(page_of(alert), headers=HTMX | {"If-None-Match": part["ETag"]}).status_code == 304


def test_a_deleted_rules_alerts_still_open(otto, watched):
    alert = episode("emails", state="resolved", ago_s=9_000)
    Rule.objects.filter(pk=alert.rule_id).update(deleted_at=timezone.now())
    assert otto.get(page_of(alert)).status_code == 200


def test_what_is_over_is_shown_as_what_it_was_and_a_name_stays_a_name(ann, watched):
    worst = rule("Old", metric="oldest_dead_s", threshold=60)
    for name, of, words in (
        ("it has gone", None, "it has gone had up to 1,243 dead jobs (threshold: 100)"),
        ("mail", worst, "mail had a job that was dead for 20 min 43 s (threshold: 1 min)"),
    ):
        assert words in text_of(ann.get(page_of(episode(name, of=of, state="resolved", ago_s=9_000))))


def test_its_incident_covers_from_before_the_breach_and_what_happens_after_its_page_was_opened(otto, watched):
    bury(3, queue="emails", group=group())
    alert = episode("emails")
    page = html.unescape(otto.get(page_of(alert)).content.decode())
    (link,) = re.findall(r'href="(/incidents/\?[^"]+)"', page)
    assert "source=shop" in link and "queue=emails" in link and "since=20" in link and "until" not in link
    assert "not acknowledged" in text_of(otto.get(link))
    otto.post(f"{page_of(alert)}acknowledge/")
    # An incident ends with a whole second.
    AlertEvent.objects.filter(alert=alert, to="acknowledged").update(at=timezone.now() - timedelta(seconds=1))
    assert "not acknowledged" not in text_of(otto.get(link))


def test_its_incident_is_its_own_time_and_a_little_around(ann, watched):
    made = episode("emails", state="resolved", ago_s=7_200, lasted_s=600)
    link = re.search(r'href="(/incidents/[^"]+)"', ann.get(page_of(made)).content.decode())[1]
    requested = dict(parse_qsl(urlsplit(html.unescape(link)).query))
    assert requested["since"] == f"{made.opened_at - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"
    assert requested["until"] == f"{made.resolved_at + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"


def test_a_picture_shows_what_it_shows_more_than_the_rule_counts(ann, watched):
    some = episode("emails", of=rule("Of acme", tenant="acme"))
    samples(some, [900, 900])
    assert "The rule counts only jobs of tenant acme; the chart shows the whole queue." in text_of(
        ann.get(page_of(some))
    )
    pill = episode("webhooks", of=rule("Pills", metric="quarantined"))
    samples(pill, [900, 900])
    text = text_of(ann.get(page_of(pill)))
    assert "No history of quarantined jobs is stored." in text and "Dead jobs" not in text


def test_a_runbook_of_the_task_is_offered_where_rule_and_group_have_none(ann, watched):
    bury(3, queue="emails", task="shop.send")
    alerts.save_runbook(ENGINE, "shop.*", "https://wiki.example/shop")
    assert 'href="https://wiki.example/shop"' in ann.get(page_of(episode("emails"))).content.decode()


def chart_of(page: str) -> dict:
    return json.loads(html.unescape(re.search(r'id="metric-chart" class="[^"]+" data-chart="([^"]+)"', page)[1]))


def test_the_chart_of_a_young_desk_begins_with_the_first_sample(ann, watched):
    alert = episode("emails", ago_s=300, value=7)
    samples(alert, [7] * 40)
    page = ann.get(page_of(alert))
    first = DepthSample.objects.order_by("at").values_list("at", flat=True)[0]
    assert abs(chart_of(page.content.decode())["since"] - first.timestamp()) <= 10
    assert f"Dead jobs, since {clock_of(first)}, when sampling began" in text_of(page)
    assert "no data" not in text_of(page)


def test_a_chart_with_older_samples_begins_before_the_alert_and_shows_gaps(ann, watched):
    alert = episode("emails", ago_s=300)
    samples(alert, [7] * 40)
    DepthSample.objects.create(source="shop", queue="other", at=timezone.now() - timedelta(hours=5), dead=0)
    page = ann.get(page_of(alert))
    assert chart_of(page.content.decode())["since"] <= (alert.opened_at - timedelta(minutes=29)).timestamp()
    assert "when sampling began" not in text_of(page) and "no data" in text_of(page)


@pytest.mark.parametrize(
    "metric, threshold, words",
    [("dead", 1_000, ["1,500", "750", "0"]), ("failure_rate", 0.3, ["30 %", "15 %", "0 %"]), ("oldest_dead_s", 7_000, ["2 h", "1 h", "0 s"])],
)  # fmt: skip
def test_the_axis_of_a_chart_has_three_values_with_their_unit(ann, watched, metric, threshold, words):
    value = threshold * 1.243 if metric == "dead" else threshold
    alert = episode("emails", of=rule(metric, metric=metric, threshold=threshold), ago_s=300, value=value)
    samples(alert, [1_243 if metric == "dead" else 7] * 40)
    DepthSample.objects.update(failed_per_min=20, succeeded_per_min=80)
    page = ann.get(page_of(alert)).content.decode()
    assert re.findall(r"<li>([^<]+)</li>", page[page.index('class="levels"') :].partition("</ol>")[0]) == words


def test_the_jobs_of_an_alert_are_all_counted_however_many_groups_they_have(otto, watched):
    bury(2, group=group("shop.Most", "most", fingerprint="v1-most"))
    bury_each([group("shop.One", f"one {n}", fingerprint=f"v1-{n}") for n in range(205)])
    text = text_of(otto.get(page_of(episode("webhooks"))))
    assert "207 webhooks jobs" in text and "200 webhooks jobs" not in text


def bury_each(groups) -> None:
    for one in groups:
        bury(group=one)
