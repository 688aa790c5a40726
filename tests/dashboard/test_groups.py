from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import groups
from jobs_admin.db import counters
from jobs_admin.management.commands.token import create
from jobs_admin.models import Group, GroupAlias, GroupCounter
from jobs_admin.search import failure_search
from tests.kit.failures import bury
from tests.kit.groups import TRACE, group
from tests.kit.pages import HTMX, count_of_link, text_of


def test_a_group_shows_how_many_are_dead_and_its_link_shows_as_many(ann, watched):
    where = group()
    bury(7, group=where)
    bury(2, group=where, state="recovered")
    page = ann.get("/groups/").content.decode()
    link, count = re.search(r'<a class="is-dead count-of-state" href="([^"]+)">([\d,]+)</a>', page).groups()
    assert int(count) == 7 == count_of_link(ann, html.unescape(link))


def test_groups_of_one_error_differ_by_their_task_before_anything_is_cut_off(ann, watched):
    for queue, task in (("webhooks", "shop.hooks.deliver"), ("payments", "shop.billing.charge")):
        bury(group=group(message=f"503 for {queue}", culprit="demo/wire.py in post"), queue=queue, task=task)
    for address in ("/", "/groups/"):
        text = text_of(ann.get(address))
        assert "known · shop.hooks.deliver · webhooks · demo/wire.py in post" in text.replace("new ·", "known ·")
        assert "· shop.billing.charge · payments · demo/wire.py in post" in text


def test_a_group_whose_failures_ended_is_called_known(ann, watched):
    minute, now = timezone.now().replace(second=0, microsecond=0), timezone.now()
    where = group(state="ongoing", first_seen=now - timedelta(hours=3), last_seen=now - timedelta(seconds=100))
    bury(group=where)
    GroupCounter.objects.create(group=where, at=minute - timedelta(minutes=2), failed=55)
    text = text_of(ann.get(f"/groups/{where.fingerprint}/"))
    assert "known" in text and "last failed 1 min ago" in text and "ongoing" not in text


def test_groups_are_sorted_by_what_is_dead_on_request(ann, watched):
    few, many = group("Few"), group("Many")
    bury(1, group=few)
    bury(5, group=many)
    text = text_of(ann.get("/groups/?order=dead"))
    assert text.index("Many") < text.index("Few")


def test_the_filter_is_the_search_language(ann, watched):
    bury(group=group("Loud"), queue="webhooks")
    bury(group=group("Quiet"), queue="emails")
    text = text_of(ann.get("/groups/?q=queue:emails"))
    assert "Quiet" in text and "Loud" not in text


@pytest.mark.parametrize(
    "text",
    ["tenant:acme", "host:h-1*", "kwargs.id:7", "tenant:acme state:new", "-tenant:other queue:emails",
     "since:2h tenant:acme", "attempts:3", "answer tenant:acme", "tenant:acme OR queue:none", "state:recovered tenant:acme"],
)  # fmt: skip
def test_what_only_failures_have_finds_the_groups_of_those_that_match(ann, watched, text):
    one = {"queue": "emails", "state": "recovered"}
    bury(group=group("Loud"), tenant="acme", host="h-12", kwargs='{"id": 7}', attempts=3, **one)
    bury(group=group("Quiet"), tenant="other", host="x", kwargs='{"id": 8}', attempts=1, **one)
    page_text = text_of(ann.get("/groups/", {"q": text}))
    assert "Loud" in page_text and "Quiet" not in page_text and "matches the whole search" in page_text


@pytest.mark.parametrize(
    "text",
    [
        "tenant:nobody",
        "kwargs.id:9 answer",
        "tenant:acme state:resolved",
        "tenant:acme state:gone",
        "tenant:acme queue:x",
    ],
)
def test_a_search_of_groups_by_what_no_failure_has_answers_with_none(ann, watched, text):
    bury(group=group("Loud"), queue="emails", tenant="acme", kwargs='{"id": 7}')
    page_text = text_of(ann.get("/groups/", {"q": text, "state": "all"}))
    assert "Loud" not in page_text and "No matching groups" in page_text and "0 groups" in page_text


def test_states_of_groups_and_of_failures_may_be_named_together(ann, watched):
    bury(group=group("Fresh"), state="recovered")
    bury(group=group("Heavy", state="muted"))
    bury(group=group("Light", state="muted"), state="gone")
    text = text_of(ann.get("/groups/?q=state:new,dead"))
    assert "Fresh" in text and "Heavy" in text and "Light" not in text and "is not a state" not in text
    text = text_of(ann.get("/groups/?q=-state:new,dead"))
    assert "Light" in text and "Fresh" not in text and "Heavy" not in text


def test_groups_found_by_the_latest_failures_show_it(ann, watched, monkeypatch):
    monkeypatch.setattr(groups, "MATCHED", 2)
    bury(group=group("Old"), tenant="acme")
    bury(2, group=group("Young"), tenant="acme")
    text = text_of(ann.get("/groups/?q=tenant:acme"))
    assert "Young" in text and "Old" not in text and "at least 1 group" in text
    assert "Searched the latest 2 matching failures only" in text


def test_groups_by_text_that_no_index_has_show_how_far_it_was_searched_for(ann, watched, monkeypatch):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 2)
    bury(group=group("Old"), tenant="acme")
    bury(2, group=group("Young"), tenant="acme")
    text = text_of(ann.get("/groups/?q=tenant:acme message:*er"))
    assert "Young" in text and "Old" not in text and "Searched the latest 2 failures only" in text


def test_a_failure_out_of_sight_finds_no_group_by_its_tenant(vera, watched):
    where = group("Shared")
    bury(group=where, tenant="mine")
    bury(group=where, source="bank", tenant="theirs")
    assert "Shared" not in text_of(vera.get("/groups/?q=tenant:theirs"))
    assert "Shared" in text_of(vera.get("/groups/?q=tenant:mine"))


LONG = {
    "words": " OR ".join(f"w{n}" for n in range(600)),
    "queues": "queue:" + ",".join(f"q{n}" for n in range(1_000)),
    "replays": "replay:" + ",".join(str(n) for n in range(1, 900)),
    "odd replays": "replay:" + ",".join(str(n) for n in range(1, 1_500, 2)),
    "attempts": "attempts:" + ",".join(str(n) for n in range(1, 900)),
    "odd attempts": "-attempts:" + ",".join(str(n) for n in range(1, 1_500, 2)),
    "stacks": "trace:" + ",".join(f"f{n}" for n in range(700)),
    "hosts": "host:" + ",".join(f"*h{n}" for n in range(600)),
    "messages": " ".join(f'message:"m{n}","->{n}"' for n in range(99)),
}


@pytest.mark.parametrize("page", ["/groups/", "/failures/", "/failures/facets/"])
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_search_is_too_long_for_the_database(ann, watched, page, text):
    bury(group=group())
    assert ann.get(page, {"q": text[:4_000]}).status_code == 200


def test_a_filter_that_finds_nothing_shows_it_and_leads_back(ann, watched):
    bury(group=group())
    answer = ann.get("/groups/?q=zebra")
    assert "No matching groups" in text_of(answer) and b'href="/groups/">view all groups' in answer.content


def test_a_page_of_groups_leads_to_the_next_without_repeating(ann, watched):
    for n in range(60):
        bury(group=group(f"Error{n}x"))
    first = ann.get("/groups/").content.decode()
    following = html.unescape(re.search(r'href="([^"]+)" rel="next"', first)[1])
    second = ann.get(following).content.decode()
    named = [set(re.findall(r"Error\d+x", page)) for page in (first, second)]
    assert len(named[0]) == 50 and len(named[1]) == 10 and not named[0] & named[1]


def test_htmx_gets_the_part_and_the_back_button_the_page(ann, watched):
    bury(group=group())
    part = ann.get("/groups/", headers=HTMX).content.decode()
    page = ann.get("/groups/", headers=HTMX | {"HX-History-Restore-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<section id="groups"') and page.startswith("<!doctype html>")


def test_a_part_that_did_not_change_is_not_sent_again(ann, watched):
    bury(group=group(last_seen="2026-01-01T00:00Z", first_seen="2026-01-01T00:00Z"))
    first = ann.get("/groups/", headers=HTMX)
    assert ann.get("/groups/", headers=HTMX | {"If-None-Match": first["ETag"]}).status_code == 304
    bury(group=group("Another"))
    assert ann.get("/groups/", headers=HTMX | {"If-None-Match": first["ETag"]}).status_code == 200


def test_a_group_page_names_whom_it_hits_top_five_and_others(ann, watched):
    where = group()
    for n in range(7):
        bury(n + 1, group=where, tenant=f"tenant-{n}")
    text = text_of(ann.get(f"/groups/{where.fingerprint}/"))
    assert "tenant-6 7" in text and "tenant-2 3" in text and "tenant-1" not in text and "2 others 3" in text


def test_a_group_page_folds_library_frames_and_opens_the_applications(ann, watched):
    where = group()
    bury(group=where, trace=TRACE)
    page = ann.get(f"/groups/{where.fingerprint}/").content.decode()
    folded = re.search(r'<details class="library">.*?</details>', page, re.S)[0]
    assert "trace_task" in folded and "deliver" not in folded
    assert 'class="frames is-application"' in page and '<span class="k">raise</span>' in page


def test_replay_these_is_offered_to_operators_only(otto, vera, watched, shop):
    where = group()
    bury(3, group=where)
    address = f"/groups/{where.fingerprint}/"
    assert "Review and replay 3 jobs" in text_of(otto.get(address)) and "replay 3" not in text_of(vera.get(address))


def test_replay_these_leads_to_the_draft_of_this_group(otto, watched, shop):
    where = group()
    bury(3, group=where)
    page = otto.get(f"/groups/{where.fingerprint}/").content.decode()
    assert f'href="/replays/new/?q=group%3A{where.fingerprint}"' in page


def test_a_group_of_another_source_is_not_there(vera, watched):
    where = group()
    bury(group=where, source="bank")
    assert vera.get(f"/groups/{where.fingerprint}/").status_code == 404
    assert where.error_type not in text_of(vera.get("/groups/"))


def test_an_unknown_group_is_a_page_with_a_next_step(ann, watched):
    answer = ann.get("/groups/v1-nobody/")
    assert answer.status_code == 404 and "Group not found" in text_of(answer)


def test_the_list_queries_the_database_as_often_for_fifty_groups_as_for_one(
    ann, watched, django_assert_max_num_queries
):
    bury(group=group("First"))
    ann.get("/groups/")
    with django_assert_max_num_queries(12):
        ann.get("/groups/")
    for n in range(50):
        bury(group=group(f"Error{n}x"))
    with django_assert_max_num_queries(12):
        ann.get("/groups/")


def page_of(client, where, **parameters):
    return client.get(f"/groups/{where.fingerprint}/", parameters)


def test_a_group_page_shows_who_made_it_so_and_offers_the_way_back(otto, watched):
    from django.utils import timezone

    where = group(state="resolved", state_by="<ann>", state_since=timezone.now())
    bury(group=where)
    answer = page_of(otto, where)
    assert "resolved by <ann>" in text_of(answer) and b'value="reopen"' in answer.content
    assert b"<ann>" not in answer.content


def test_a_group_page_shows_after_what_it_came_back_and_where_it_was_first_seen(ann, watched):
    where = group(state="regressed", regressed_after="replay:12", first_release="2026.11.2")
    bury(group=where)
    page = page_of(ann, where)
    assert 'after <a href="/replays/12/">replay #12</a>' in page.content.decode() and "in 2026.11.2" in text_of(page)


def test_every_share_of_a_group_leads_to_exactly_as_many_failures(ann, watched):
    where = group()
    for n in range(4):
        bury(n + 1, group=where, tenant=f"tenant {n}", queue=f"queue-{n}", host=f"host-{n}", release=f"r{n}")
    bury(9, group=group("Other"), tenant="tenant 1")
    shares = re.findall(
        r'<a class="clip" href="([^"]+)"[^>]*><code>.*?</code></a><span class="number">([\d,]+)',
        page_of(ann, where).content.decode(),
    )
    assert len(shares) == 4 * 4 + 2
    assert all(count_of_link(ann, html.unescape(url)) == int(count) for url, count in shares)


def test_the_shares_of_a_group_without_open_jobs_lead_to_them_too(ann, watched):
    where = group()
    bury(3, group=where, state="recovered", tenant="a")
    answer = page_of(ann, where)
    url, count = re.findall(
        r'<a class="clip" href="([^"]+)"[^>]*><code>a</code></a><span class="number">(\d+)', answer.content.decode()
    )[0]
    assert count_of_link(ann, html.unescape(url)) == int(count) == 3 and "none open" in text_of(answer)


def test_what_was_counted_over_the_latest_shows_it(ann, watched, monkeypatch):
    monkeypatch.setattr("jobs_admin.groups.group_detail.SAMPLE", 4)
    where = group()
    bury(4, group=where, tenant="old"), bury(4, group=where, tenant="new")
    text = text_of(page_of(ann, where))
    assert "Tenants of the latest 4 open jobs new 100 %" in text and "old" not in text


def test_releases_come_in_the_order_of_their_appearance(ann, watched):
    from django.utils import timezone

    from jobs_admin.models import Release

    where, now = group(), timezone.now()
    for n, version in enumerate(("r9", "r10")):
        Release.objects.create(source="shop", version=version, at=now + timedelta(minutes=n))
        bury(n + 1, group=where, release=version)
    text = text_of(page_of(ann, where))
    assert text.index(" r9 ") < text.index(" r10 ")


def test_one_leafs_through_the_examples_of_a_group(ann, watched):
    where = group()
    pks = [one.pk for one in sorted(bury(3, group=where, message="m"), key=lambda f: f.first_job_id)]
    from jobs_admin.models import Failure

    pks = sorted(Failure.objects.values_list("pk", flat=True))
    page = page_of(ann, where, example=pks[1]).content.decode()
    assert f"failure {pks[1]}</a>" in page
    assert f"example={pks[0]}#trace" in page and f"example={pks[2]}#trace" in page
    assert 'rel="next"' not in page_of(ann, where, example=pks[2]).content.decode()


def test_an_example_of_another_group_or_source_is_not_shown(vera, watched):
    from jobs_admin.models import Failure

    where = group()
    (
        bury(group=where, message="mine"),
        bury(group=where, source="bank", message="theirs"),
        bury(group=group("O"), message="other"),
    )
    for message in ("theirs", "other"):
        text = text_of(page_of(vera, where, example=Failure.objects.get(message=message).pk))
        assert "mine" in text and message not in text


def test_what_failed_this_hour_is_a_bar_of_full_height_on_the_list_the_page_and_in_the_api(ann, watched):
    where = group()
    bury(group=where)
    now = timezone.now()
    counters.add_group_counts({(where.pk, now): [9, 1], (where.pk, now - timedelta(hours=3)): [5, 0]})
    (spark,) = re.findall(r'class="sparkline.*?<path d="([^"]*)"', ann.get("/groups/").content.decode(), re.DOTALL)
    assert [22 - int(top) for top in re.findall(r"V(\d+)h1", spark) if top != "22"] == [11, 22]
    (bars,) = re.findall(r'</path> ?<path d="(M[^"]*)"', page_of(ann, where).content.decode())
    assert [int(tall) for tall in re.findall(r"v-(\d+)h", bars)] == [500, 1000]
    bearer = {"Authorization": f"Bearer {create('me', 'viewer', '*')}"}
    (found,) = ann.get("/api/groups", headers=bearer).json()["items"]
    trend = found["trend"]
    assert sum(trend) == 15 and trend.index(10) - trend.index(5) == 3
    assert trend[-1] == 10 or trend[-2:] == [10, 0]  # an hour may begin meanwhile


def test_the_picture_of_thirty_days_has_a_bar_a_day(ann, watched):
    where = group()
    bury(group=where)
    answer = page_of(ann, where, span="30d")
    assert (
        "Day (UTC)" in text_of(answer)
        and answer.content.count(b" UTC&quot;") == 30
        and "Failed attempts per day, last 30 d" in text_of(answer)
    )


def test_a_note_is_shown_as_text_and_edited_in_place(otto, vera, watched):
    where = group(note="<b>bold</b> & \u202etext", runbook_url="https://wiki.example/x")
    bury(group=where)
    page = page_of(otto, where).content.decode()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; " in page and "<b>bold" not in page and "U+202E" in page
    assert 'rel="noreferrer noopener">https://wiki.example/x' in page and "<textarea" in page
    assert "<textarea" not in page_of(vera, where).content.decode()


def test_the_story_of_a_group_shows_acts_regressions_and_replays(otto, watched):
    from django.utils import timezone

    from jobs_admin.models import Replay, ReplayItem

    where = group(first_release="r1", first_seen=timezone.now() - timedelta(days=3))
    (one,) = bury(group=where)
    one.refresh_from_db() if one.pk else None
    replay = Replay.objects.create(scope_max_id=9, actor="ann", state="done", total=1, failed_again=1)
    from jobs_admin.models import Failure

    ReplayItem.objects.create(replay=replay, n=1, failure=Failure.objects.get(), run=2, state="failed_again")
    otto.post(f"/groups/{where.fingerprint}/change/", {"act": "resolve", "reason": "partner is back"})
    Group.objects.update(state="regressed", regressed_after=f"replay:{replay.pk}", state_since=timezone.now())
    otto.post(f"/groups/{where.fingerprint}/change/", {"act": "mute_count", "muted_until_count": "5"})
    text = text_of(otto.get(f"/groups/{where.fingerprint}/story/"))
    for message in (
        "muted by otto until", "Came back after replay #", "resolved by otto partner is back", "First seen in r1",
        f"Replayed by ann in replay #{replay.pk} : 0 of 1 succeeded, 1 failed again",
    ):  # fmt: skip
        assert message in text


def test_the_story_keeps_what_was_done_for_sources_out_of_sight(ann, vera, watched):
    where = group()
    bury(group=where), bury(group=where, source="bank")
    ann.post(f"/groups/{where.fingerprint}/change/", {"act": "resolve"})
    assert text_of(vera.get(f"/groups/{where.fingerprint}/story/")).count("resolved by ann") == 1


def test_groups_like_it_share_its_type_or_place_and_are_in_sight(vera, watched):
    where = group("A", culprit="x.py in f")
    bury(group=where)
    bury(group=group("B", culprit="x.py in f")), bury(group=group("A", "else")), bury(group=group("C"))
    bury(group=group("D", culprit="x.py in f"), source="bank")
    text = text_of(vera.get(f"/groups/{where.fingerprint}/story/"))
    assert "B no answer" in text and "same place in the code" in text and "A else" in text
    assert " C no answer" not in text and " D no answer" not in text


def test_a_group_page_queries_the_database_a_bounded_number_of_times(ann, watched, django_assert_max_num_queries):
    where = group()
    for n in range(20):
        bury(3, group=where, tenant=f"t{n}", queue=f"q{n}", task=f"task{n}", release=f"r{n}", host=f"h{n}")
    page_of(ann, where)
    with django_assert_max_num_queries(34):
        page_of(ann, where)


def test_a_little_of_all_dead_is_shown_as_text(ann, watched):
    bury(200, group=group("Common"))
    bury(1, group=group("Rare"))
    assert '<p class="sub-line" title="share of all dead jobs">&lt;1 %</p>' in ann.get("/groups/").content.decode()


def test_the_page_shows_that_words_find_parts_of_words_here_and_not_where_failures_are_queried(ann, watched):
    bury(group=group(), tenant="t")
    assert "also inside longer words" in text_of(ann.get("/groups/", {"q": "time"}))
    assert "inside longer words" not in text_of(ann.get("/groups/", {"q": "timeout tenant:t"}))


def test_what_distinguishes_a_part_of_a_split_is_first(ann, watched):
    long = "connection closed while sending to <email> " * 5
    for tenant in ("cobalt", "<b>onyx</b>"):
        bury(group=group("Closed", f"{long}(tenant: {tenant})"))
    page = ann.get("/groups/").content.decode()
    assert "<strong>Closed</strong> (tenant: cobalt) <code>connection" in page
    assert "<strong>Closed</strong> (tenant: &lt;b&gt;onyx&lt;/b&gt;) <code>connection" in page


def test_the_story_goes_on_under_a_new_name(otto, watched):
    where = group()
    bury(group=where)
    otto.post(f"/groups/{where.fingerprint}/change/", {"act": "resolve", "reason": "partner is back"})
    Group.objects.update(fingerprint="v3-new")
    assert "resolved by otto" not in text_of(otto.get("/groups/v3-new/story/"))
    GroupAlias.objects.create(fingerprint=where.fingerprint, group=where)
    assert "resolved by otto partner is back" in text_of(otto.get("/groups/v3-new/story/"))
