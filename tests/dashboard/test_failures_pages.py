from __future__ import annotations

import json

import pytest
from django.urls import reverse

from jobs_admin import replays
from jobs_admin.models import Attempt, AuditEvent, Failure, Replay
from jobs_admin.models.access import OPERATOR, Viewer
from tests.dashboard.conftest import HTMX, bury, group
from tests.dashboard.failing import ARGS, KWARGS, dead

BOB = Viewer("bob", {"*": OPERATOR})


def page(client, name, *args, **query):
    answer = client.get(reverse(name, args=args), query)
    return answer, answer.content.decode()


# ---------- the list ----------


def test_the_list_says_how_the_search_was_read_and_counts_what_matches(ann):
    bury(3, queue="emails")
    bury(2)
    answer, text = page(ann, "failure-list", q="queue:emails")
    assert "3 failures" in text and "queue emails" in text
    assert [row["queue"] for row in answer.context["rows"]] == ["emails"] * 3


def test_each_active_qualifier_is_a_chip_whose_link_takes_it_away(ann):
    bury()
    answer, _ = page(ann, "failure-list", q="queue:webhooks task:shop.deliver")
    first, second = answer.context["chips"]
    assert (first.text, first.url) == ("queue:webhooks", "/failures/?q=task%3Ashop.deliver")
    assert second.url == "/failures/?q=queue%3Awebhooks"


def test_without_a_state_the_default_states_are_a_chip_and_with_one_they_are_not(ann):
    bury()
    assert "open states only" in page(ann, "failure-list")[1]
    assert "open states only" not in page(ann, "failure-list", q="state:dead")[1]


def test_a_facet_narrows_the_search_and_a_facet_that_is_on_widens_it_again(ann):
    bury(2, queue="emails")
    bury(1)
    answer, _ = page(ann, "failure-list", q="timeout")
    queues = next(f for f in answer.context["facets"] if f.name == "queue").values
    assert [(v.value, v.count, v.is_on) for v in queues] == [("emails", 2, False), ("webhooks", 1, False)]
    on = next(f for f in ann.get(queues[0].url).context["facets"] if f.name == "queue").values
    assert [(v.value, v.is_on, v.url) for v in on] == [("emails", True, "/failures/?q=timeout")]


def test_following_a_facet_shows_exactly_as_many_as_it_counted(ann):
    bury(2, queue="emails", error_type="smtplib.SMTPServerDisconnected")
    bury(5)
    facets = page(ann, "failure-list")[0].context["facets"]
    for facet in facets:
        for value in facet.values:
            assert ann.get(value.url).context["page"].count == value.count, value


def test_pages_follow_each_other_without_a_row_twice_or_lost(ann):
    bury(120)
    seen, url = [], reverse("failure-list")
    while url:
        answer = ann.get(url)
        seen += [row["pk"] for row in answer.context["rows"]]
        url = answer.context["next_url"]
    assert len(seen) == len(set(seen)) == 120


def test_a_page_asks_the_database_the_same_number_of_times_for_one_row_and_for_many(ann, django_assert_max_num_queries):
    bury(60, group=group(), tenant="t1")
    with django_assert_max_num_queries(18):
        ann.get(reverse("failure-list"))
    with django_assert_max_num_queries(18):
        ann.get(reverse("failure-list"), {"q": "answer"})


def test_htmx_gets_only_the_part_and_the_back_button_the_page(ann):
    bury()
    url = reverse("failure-list")
    assert "<html" not in ann.get(url, headers=HTMX).content.decode()
    assert "<html" in ann.get(url, headers=HTMX | {"HX-History-Restore-Request": "true"}).content.decode()


def test_what_came_since_is_told_and_not_pushed_under_the_cursor(ann):
    bury(2)
    newest = page(ann, "failure-list")[0].context["newest"]
    assert "new failure" not in page(ann, "failure-newer", since=newest)[1].split('id="newer"')[-1]
    bury(3)
    answer = ann.get(reverse("failure-newer"), {"since": newest}, headers=HTMX)
    assert "3 new failures" in answer.content.decode()


def test_an_empty_list_says_why_and_where_to_look(ann):
    bury(state="recovered")
    assert "1 recovered" in page(ann, "failure-list", q="queue:webhooks")[1]


def test_any_string_is_a_search_and_none_is_an_error(ann):
    bury()
    for text in ('"', "(((", "state:", "-", "\u202e<script>alert(1)</script>", "x" * 5000, "age:<9999999d"):
        answer, said = page(ann, "failure-list", q=text)
        assert answer.status_code == 200 and "<script>alert" not in said


def test_a_viewer_sees_the_list_without_acts(vera):
    bury()
    answer, text = page(vera, "failure-list")
    assert answer.status_code == 200 and "Discard" not in text


def test_a_stranger_sees_no_failure_of_a_source_without_a_role(vera):
    (failure,) = bury(source="bank")
    assert page(vera, "failure-list")[0].context["rows"] == []
    assert page(vera, "failure-detail", failure.pk)[0].status_code == 404


# ---------- one failure ----------


def test_an_unknown_failure_is_a_404_page(ann):
    assert page(ann, "failure-detail", 999_999)[0].status_code == 404


def test_the_page_tells_error_arguments_traceback_and_what_was_hidden(ann, shop):
    (pk,) = dead(trace='Traceback (most recent call last):\n  File "/app/pay.py", line 7, in charge\n    pay()\nE: x')
    _, text = page(ann, "failure-detail", pk)
    for said in ("TimeoutError", "no answer", "app/pay.py", "customer", "1 value hidden", "Edit and replay"):
        assert said in text, said


def test_what_a_job_says_is_shown_and_never_obeyed(ann, shop):
    evil = '<img src=x onerror=alert(1)> \u202e{{ 7|add:"7" }}'
    (pk,) = dead(message=evil, task=evil, tenant=evil, args=json.dumps([evil]), trace=evil, error_type=evil)
    for text in (page(ann, "failure-detail", pk)[1], page(ann, "failure-list")[1]):
        assert "<img src=x" not in text and "\u202e" not in text and "U+202E" in text


def test_every_attempt_of_every_run_stands_on_the_timeline_with_the_wait_that_followed(ann):
    (failure,) = bury(run=2, state="dead")
    failure = Failure.objects.get(first_job_id=failure.first_job_id)
    for run, attempt, kind in ((1, 1, "retry"), (1, 2, "exception"), (2, 1, "exception")):
        Attempt.objects.create(
            failure=failure, run=run, attempt=attempt, kind=kind, job_id="j", error_type="TimeoutError",
            ended_at=failure.failed_at, received_at=failure.failed_at, duration_s=1.5,
            delay_s=30 if kind == "retry" else None,
        )  # fmt: skip
    answer, text = page(ann, "failure-detail", failure.pk)
    assert [(run.n, len(run.attempts)) for run in answer.context["runs"]] == [(1, 2), (2, 1)]
    assert "then waited 30 s" in text and "took 1.5 s" in text


def test_a_failure_page_asks_the_database_a_handful_of_times(ann, shop, django_assert_max_num_queries):
    (pk,) = dead(trace="Traceback\nx", group=group())
    with django_assert_max_num_queries(8):
        ann.get(reverse("failure-detail", args=[pk]))


def test_large_arguments_come_in_pieces(ann, shop):
    (pk,) = dead(args=json.dumps([list(range(5_000))]), kwargs="{}")
    _, text = page(ann, "failure-detail", pk)
    assert "5,000 entries" in text and text.count("<li>") < 300
    _, part = page(ann, "failure-opened", pk, at="/args/0")
    assert "4,800 more" in part
    assert page(ann, "failure-opened", pk, at="/args/0/9999")[0].status_code == 404


def test_arguments_that_are_no_json_are_shown_as_they_are_and_cannot_be_edited(ann, shop):
    (pk,) = dead(args='[1, "cut here', kwargs="")
    _, text = page(ann, "failure-detail", pk)
    assert "cut here" in text and "Edit and replay" not in text
    assert ann.get(reverse("failure-edit", args=[pk])).status_code == 409


def test_the_copies_are_plain_text(ann, shop):
    (pk,) = dead(trace="Traceback: here")
    for form, said in (("python", "shop.deliver"), ("json", '"task": "shop.deliver"'), ("traceback", "here")):
        answer, text = page(ann, "failure-text", pk, form)
        assert said in text and answer["Content-Type"].startswith("text/plain")


# ---------- acts ----------


def test_one_job_is_replayed_by_a_plain_form_and_the_page_says_where(ann, shop):
    (pk,) = dead()
    answer = ann.post(reverse("failure-replay", args=[pk]), follow=True)
    assert Replay.objects.get().total == 1
    said = answer.content.decode()
    assert f"Planned in replay #{Replay.objects.get().pk}" in said and "within seconds" in said


def test_the_second_operator_is_told_who_and_when_and_nothing_is_sent_twice(ann, shop):
    (pk,) = dead()
    replays.start(BOB, replays.draft(BOB, selection=[pk]))
    assert "bob" in page(ann, "failure-detail", pk)[1]
    answer = ann.post(reverse("failure-replay", args=[pk]))
    assert answer.status_code == 409 and "bob is replaying it already" in answer.content.decode()
    assert Replay.objects.filter(total__gt=0).count() == 1


def test_a_get_replays_nothing_and_a_viewer_may_not(ann, vera, shop):
    (pk,) = dead()
    assert ann.get(reverse("failure-replay", args=[pk])).status_code == 405
    assert vera.post(reverse("failure-replay", args=[pk])).status_code == 403
    assert not Replay.objects.exists()


def test_an_edit_shows_what_changes_before_it_goes_and_sends_what_was_shown(ann, shop):
    (pk,) = dead()
    url = reverse("failure-edit", args=[pk])
    edited = {"args": "[43]", "kwargs": json.dumps(KWARGS), "reason": "typo"}
    text = ann.post(url, edited | {"step": "look"}).content.decode()
    assert "42" in text and "43" in text and "is-removed" in text and not Replay.objects.exists()
    ann.post(url, edited | {"step": "send"})
    assert Replay.objects.get().edit["args"] == [43]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ("[1,", "{}", "line 1, column"),
        ('{"a": 1}', "{}", "JSON list"),
        ("[]", "[]", "JSON object"),
        ("[NaN]", "{}", "NaN is not a JSON value"),
        ("[" * 20_000, "{}", "not JSON"),
    ],
)
def test_arguments_that_are_not_json_are_refused_beside_their_field(ann, shop, args, kwargs, said):
    (pk,) = dead()
    answer = ann.post(reverse("failure-edit", args=[pk]), {"args": args, "kwargs": kwargs, "step": "look"})
    text = answer.content.decode()
    assert answer.status_code == 422 and said in text and 'aria-invalid="true"' in text
    assert not Replay.objects.exists()


def test_an_edit_that_changes_nothing_goes_as_it_came(ann, shop):
    (pk,) = dead()
    same = {"args": json.dumps(ARGS), "kwargs": json.dumps(KWARGS)}
    url = reverse("failure-edit", args=[pk])
    assert "Nothing is changed" in ann.post(url, same | {"step": "look"}).content.decode()
    ann.post(url, same | {"step": "send"})
    assert Replay.objects.get().edit is None


def test_a_discard_can_be_undone_from_its_message(ann, shop):
    (pk,) = dead()
    answer = ann.post(reverse("failure-discard", args=[pk]), {"reason": "test order"}, follow=True)
    assert Failure.objects.get().state == "discarded" and "Undo" in answer.content.decode()
    ann.post(reverse("failure-restore", args=[pk]))
    assert Failure.objects.get().state == "dead"
    assert set(AuditEvent.objects.values_list("act", flat=True)) >= {"failure.discard", "failure.restore"}


def test_a_selection_over_pages_is_discarded_whole_and_undone_whole(ann, shop):
    ids = dead(5)
    chosen = {"selection": [str(ids[0]), ",".join(map(str, ids[1:4]))], "act": "discard", "reason": "tests"}
    answer = ann.post(reverse("failure-bulk"), chosen, follow=True)
    assert "Discarded 4 jobs" in answer.content.decode()
    undo = {"act": "restore", "selection": ",".join(map(str, ids[:4])), "back": "/failures/?q=x"}
    assert ann.post(reverse("failure-bulk"), undo).url == "/failures/?q=x"
    assert Failure.objects.filter(state="dead").count() == 5


def test_nothing_selected_discards_nothing_and_says_so(ann, shop):
    dead(2)
    answer = ann.post(reverse("failure-bulk"), {"act": "discard", "q": ""}, follow=True)
    assert "Nothing was selected" in answer.content.decode()
    assert Failure.objects.filter(state="dead").count() == 2


def test_all_that_match_is_its_own_choice_and_takes_only_what_matches(ann, shop):
    dead(3, queue="emails")
    dead(2)
    chosen = {"everything": "1", "q": "queue:emails", "act": "discard", "reason": "old"}
    ann.post(reverse("failure-bulk"), chosen)
    assert Failure.objects.filter(state="discarded", queue="emails").count() == 3
    assert Failure.objects.filter(state="dead").count() == 2


def test_the_way_back_leads_to_no_other_site(ann):
    answer = ann.post(reverse("failure-bulk"), {"act": "discard", "back": "https://evil.example/"})
    assert answer.url == "/failures/"


def test_a_failure_on_its_way_looks_after_itself_and_one_that_rests_does_not(ann, shop):
    (pk,) = dead()
    url = reverse("failure-detail", args=[pk])
    is_live = f'id="failure" class="failure" data-failure="{pk}" data-live'
    assert is_live not in ann.get(url).content.decode()
    ann.post(reverse("failure-replay", args=[pk]))
    assert is_live in ann.get(url).content.decode()
    (retrying,) = bury(state="retrying")
    pk = Failure.objects.get(first_job_id=retrying.first_job_id).pk
    assert f'data-failure="{pk}" data-live' in ann.get(reverse("failure-detail", args=[pk])).content.decode()
