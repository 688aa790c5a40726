from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse

from jobs_admin.ingest import indexing
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.pages import HTMX


def page(client, name, *args, **query):
    answer = client.get(reverse(f"redrive:{name}", args=args), query)
    return answer, answer.content.decode()


def facets_of(client, url):
    """The facets beside the list at `url`."""
    return page(client, "failure-facets", q=parse_qs(urlsplit(url).query).get("q", [""])[0])[0].context["facets"]


def test_the_list_shows_how_the_search_was_read_and_counts_what_matches(ann):
    bury(3, queue="emails")
    bury(2)
    answer, text = page(ann, "failure-list", q="queue:emails")
    assert "3 failures" in text and "queue emails" in text
    assert [row.queue for row in answer.context["page"].rows] == ["emails"] * 3


def test_each_active_qualifier_is_a_chip_whose_link_takes_it_away(ann):
    bury()
    answer, _ = page(ann, "failure-list", q="queue:webhooks task:shop.deliver")
    first, second = answer.context["head"].chips
    assert (first.text, first.url) == ("queue:webhooks", "/failures/?q=task%3Ashop.deliver")
    assert second.url == "/failures/?q=queue%3Awebhooks"


def test_without_a_state_the_default_states_are_a_chip_and_with_one_they_are_not(ann):
    bury()
    assert "open states only" in page(ann, "failure-list")[1]
    assert "open states only" not in page(ann, "failure-list", q="state:dead")[1]


def test_a_facet_narrows_the_search_and_a_facet_that_is_on_widens_it_again(ann):
    bury(2, queue="emails")
    bury(1)
    answer, _ = page(ann, "failure-facets", q="timeout")
    queues = next(f for f in answer.context["facets"] if f.name == "queue").values
    assert [(v.value, v.count, v.is_on) for v in queues] == [("emails", 2, False), ("webhooks", 1, False)]
    on = next(f for f in facets_of(ann, queues[0].url) if f.name == "queue").values
    assert [(v.value, v.is_on, v.url) for v in on] == [("emails", True, "/failures/?q=timeout")]


def test_following_a_facet_shows_exactly_as_many_as_it_counted(ann):
    bury(2, queue="emails", error_type="smtplib.SMTPServerDisconnected")
    bury(5)
    facets = page(ann, "failure-facets")[0].context["facets"]
    for facet in facets:
        for value in facet.values:
            assert ann.get(value.url).context["page"].count.number == value.count, value


def test_pages_follow_each_other_without_a_row_twice_or_lost(ann):
    bury(120)
    seen, url = [], reverse("redrive:failure-list")
    while url:
        answer = ann.get(url)
        seen += [row.pk for row in answer.context["page"].rows]
        url = answer.context["paths"].older
    assert len(seen) == len(set(seen)) == 120


def test_a_page_queries_the_database_the_same_number_of_times_for_one_row_and_for_many(
    ann, django_assert_max_num_queries
):
    bury(60, group=group(), tenant="t1")
    with django_assert_max_num_queries(19):
        ann.get(reverse("redrive:failure-list"))
    with django_assert_max_num_queries(19):
        ann.get(reverse("redrive:failure-list"), {"q": "answer"})


def test_htmx_gets_only_the_part_and_the_back_button_the_page(ann):
    bury()
    url = reverse("redrive:failure-list")
    assert "<html" not in ann.get(url, headers=HTMX).content.decode()
    assert "<html" in ann.get(url, headers=HTMX | {"HX-History-Restore-Request": "true"}).content.decode()


def test_what_came_since_is_shown_and_not_pushed_under_the_cursor(ann):
    bury(2)
    latest = page(ann, "failure-list")[0].context["latest"]
    assert "new failure" not in page(ann, "failure-newer", since=latest)[1].split('id="newer"')[-1]
    bury(3)
    answer = ann.get(reverse("redrive:failure-newer"), {"since": latest}, headers=HTMX)
    assert "3 new failures" in answer.content.decode()


def test_an_empty_list_shows_why_and_where_to_check(ann):
    bury(state="recovered")
    assert "1 recovered" in page(ann, "failure-list", q="queue:webhooks")[1]


def test_an_empty_list_offers_what_is_near_with_its_count_and_each_offer_finds_that_many(ann):
    bury(3, task="shop.webhooks.deliver")
    answer, text = page(ann, "failure-list", q="shop.webhooks.deliver")
    assert "Did you mean:" in text and "task:shop.webhooks.deliver" in text
    assert [(one.count, ann.get(one.url).context["page"].count.number) for one in answer.context["near"]] == [("3", 3)]


def test_the_number_of_a_failure_leads_to_it_and_what_has_nothing_near_shows_it(ann):
    (failure,) = bury(state="recovered")
    assert f'href="/failures/{failure.pk}/"' in page(ann, "failure-list", q=str(failure.pk))[1]
    assert "No similar search has results" in page(ann, "failure-list", q="zzz")[1]


def test_any_string_is_a_search_and_none_is_an_error(ann):
    bury()
    for text in ('"', "(((", "state:", "-", "\u202e<script>alert(1)</script>", "x" * 5000, "age:<9999999d"):
        answer, message = page(ann, "failure-list", q=text)
        assert answer.status_code == 200 and "<script>alert" not in message


def test_a_viewer_sees_the_list_without_acts(vera):
    bury()
    answer, text = page(vera, "failure-list")
    assert answer.status_code == 200 and "Discard" not in text


def test_a_stranger_sees_no_failure_of_a_source_without_a_role(vera):
    (failure,) = bury(source="bank")
    assert page(vera, "failure-list")[0].context["rows"] == []
    assert page(vera, "failure-detail", failure.pk)[0].status_code == 404


def test_the_list_queries_the_database_five_times_and_its_facets_come_after_it(ann, django_assert_max_num_queries):
    bury(60, group=group(), tenant="t1")
    ann.get(reverse("redrive:failure-list"))  # who asks is remembered for a moment
    with django_assert_max_num_queries(5):
        text = ann.get(reverse("redrive:failure-list")).content.decode()
    assert 'hx-get="/failures/facets/?q="' in text and 'hx-trigger="load"' in text


def test_a_facet_can_be_left_out_too(ann):
    bury(2, queue="emails")
    bury(3)
    queues = next(f for f in page(ann, "failure-facets")[0].context["facets"] if f.name == "queue").values
    assert [(v.value, v.but_url) for v in queues] == [
        ("webhooks", "/failures/?q=-queue%3Awebhooks"),
        ("emails", "/failures/?q=-queue%3Aemails"),
    ]
    assert ann.get(queues[0].but_url).context["page"].count.number == 2


def test_a_term_can_be_turned_round_where_the_language_can_express_that(ann):
    bury()
    chips = page(ann, "failure-list", q="queue:a -task:b time*out")[0].context["head"].chips
    assert [(c.verb, c.search_text) for c in chips] == [("is", "queue:a"), ("not", "task:b"), ("has", "time*out")]
    assert parse_qs(urlsplit(chips[0].opposite).query)["q"] == ["-queue:a -task:b time*out"]
    assert parse_qs(urlsplit(chips[1].opposite).query)["q"] == ["queue:a task:b time*out"]


def test_one_goes_back_through_the_pages_as_one_came(ann):
    bury(170)
    urls = [reverse("redrive:failure-list")]
    while older := ann.get(urls[-1]).context["paths"].older:
        urls.append(older)
    seen = [[row.pk for row in ann.get(url).context["page"].rows] for url in urls]
    back = [urls[-1]]
    while newer := ann.get(back[-1]).context["paths"].newer:
        back.append(newer)
    assert [[row.pk for row in ann.get(url).context["page"].rows] for url in back] == seen[::-1]


@pytest.mark.parametrize("back", ["x", "1.2.x", "9" * 40, "." * 5000, "-1", "²"])
def test_no_trail_breaks_a_page(ann, back):
    bury()
    assert ann.get(reverse("redrive:failure-list"), {"after": "5", "back": back}).status_code == 200


def test_what_is_typed_is_completed_by_qualifiers_and_by_values(ann):
    bury(2, queue="emails")
    answer = ann.get(reverse("redrive:failure-complete"), {"q": "timeout que", "at": "11"}, headers=HTMX)
    assert 'data-start="8"' in answer.content.decode() and 'data-text="queue:"' in answer.content.decode()
    answer = ann.get(reverse("redrive:failure-complete"), {"q": "queue:em", "at": "8"}, headers=HTMX)
    assert 'data-text="emails"' in answer.content.decode() and "<html" not in answer.content.decode()


@pytest.mark.parametrize("at", ["", "-1", "x", "99999", "999999999999", "²"])
def test_completion_has_any_caret(ann, at):
    assert ann.get(reverse("redrive:failure-complete"), {"q": "queue:", "at": at}).status_code == 200


def test_a_stranger_is_offered_nothing_of_other_sources(vera):
    bury(2, source="bank", queue="vault")
    answer = vera.get(reverse("redrive:failure-complete"), {"q": "queue:va", "at": "8"})
    assert "vault" not in answer.content.decode().split("data-completions")[1]


def test_names_that_want_to_be_markup_are_text_in_every_part(ann):
    evil = "\"><img src=x onerror=alert(1)>\u202e'&"
    bury(1, queue=evil, task=evil, tenant=evil, error_type=evil, message=evil, group=group(evil, evil))
    for name, query in (
        ("failure-list", {}),
        ("failure-list", {"q": evil}),
        ("failure-facets", {}),
        ("failure-complete", {"q": "queue:", "at": "6"}),
        ("failure-complete", {"q": "group:", "at": "6"}),
    ):
        text = page(ann, name, **query)[1]
        assert "<img src=x" not in text, name


def test_a_search_that_only_checked_the_latest_shows_it(ann, monkeypatch):
    from jobs_admin.search import failure_search

    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 3)
    bury(5, message="xtimeoutx")
    assert "Searched the latest 3 matching failures only" in page(ann, "failure-list", q="message:*me*")[1]


def test_the_help_has_the_language_and_every_example_is_a_search_that_leaves_no_hint(ann):
    answer, text = page(ann, "search-help")
    for chapter in answer.context["chapters"]:
        for one in chapter.examples:
            assert ann.get(one.url).context["page"].hints == (), one.text
    assert "connection refused" in text


def test_an_act_on_all_that_match_shows_its_number_and_where_it_may_be_fewer(ann):
    bury(3)
    assert 'data-all-jobs="3 jobs"' in page(ann, "failure-list", q="state:dead")[1]
    assert 'data-all-jobs="up to 3 jobs"' in page(ann, "failure-list", q="timeout")[1]


def test_what_all_facets_were_counted_over_is_shown_once(ann, monkeypatch):
    bury(5, tenant="t")
    monkeypatch.setattr("jobs_admin.failures.FACETED", 2)
    assert page(ann, "failure-facets", q="timeout")[1].count("latest 2") == 1
    assert page(ann, "failure-facets", q="queue:webhooks")[1].count("latest 2") == 1  # of tenants alone


def test_what_another_tool_would_understand_is_offered_as_a_link(ann):
    bury(2, queue="emails")
    _, text = page(ann, "failure-list", q="queue:emails|webhooks")
    assert "Did you mean" in text and 'href="/failures/?q=queue%3Aemails%2Cwebhooks"' in text
    assert "Did you mean" not in page(ann, "failure-list", q="queue:emails")[1]
    _, text = page(ann, "failure-list", q="kwargs.amount:>500")
    assert "takes no &gt; or &lt;" in text and 'href="/failures/?q=kwargs.amount%3A%2A"' in text


def test_a_pasted_line_of_a_log_opens_its_job_and_else_becomes_task_and_error(ann):
    line = "Task shop.deliver[5f1c2a7e-1111-4222-8333-123456789abc] raised unexpected: KeyError('foo')"
    (one,) = bury(task="shop.deliver", error_type="KeyError", message="'foo'")
    answer, _ = page(ann, "failure-list", q=line)
    assert answer.status_code == 302
    assert parse_qs(urlsplit(answer.url).query)["q"] == ["task:shop.deliver \"KeyError('foo')\""]
    chips = ann.get(answer.url).context["head"].chips
    assert [chip.text for chip in chips] == ["task:shop.deliver", "\"KeyError('foo')\""]
    type(one).objects.filter(pk=one.pk).update(job_id="5f1c2a7e-1111-4222-8333-123456789abc")
    indexing.index(type(one).objects.all())
    answer, _ = page(ann, "failure-list", q=line)
    assert answer.url == reverse("redrive:failure-detail", args=[one.pk])
    assert "Matched from the pasted text" in ann.get(answer.url).content.decode()
    swapped = ann.get(reverse("redrive:failure-list"), {"q": line}, headers=HTMX)
    assert swapped["HX-Redirect"] == reverse("redrive:failure-detail", args=[one.pk])


def test_classes_of_one_name_are_distinguished_in_rows_and_facets(ann):
    types = ["_csv.Error", "requests.exceptions.HTTPError", "urllib.error.HTTPError", "smtplib.SMTPServerDisconnected"]
    for error_type in types:
        bury(error_type=error_type, group=group(error_type))
    _, text = page(ann, "failure-list")
    for name in ("_csv.Error", "requests.HTTPError", "urllib.HTTPError", ">SMTPServerDisconnected<"):
        assert name in text
    (errors,) = [facet for facet in facets_of(ann, "/failures/?q=") if facet.name == "error"]
    shown = {one.shown for one in errors.values}
    assert shown == {"_csv.Error", "requests.HTTPError", "urllib.HTTPError", "SMTPServerDisconnected"}
