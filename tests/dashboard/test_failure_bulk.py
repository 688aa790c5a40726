from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.failures import bulk_views as failure_bulk
from jobs_admin.failures import triage
from jobs_admin.models import Failure, Group
from tests.kit.failures import dead
from tests.kit.groups import group


def test_a_selection_over_pages_is_discarded_in_full_and_undone_in_full(ann, shop):
    ids = dead(5)
    chosen = {"selection": [str(ids[0]), ",".join(map(str, ids[1:4]))], "act": "discard", "reason": "tests"}
    answer = ann.post(reverse("redrive:failure-bulk"), chosen, follow=True)
    assert "Discarded 4 jobs" in answer.content.decode()
    undo = {"act": "restore", "selection": ",".join(map(str, ids[:4])), "back": "/failures/?q=x"}
    assert ann.post(reverse("redrive:failure-bulk"), undo).url == "/failures/?q=x"
    assert Failure.objects.filter(state="dead").count() == 5


def test_nothing_selected_discards_nothing_and_shows_it(ann, shop):
    dead(2)
    answer = ann.post(reverse("redrive:failure-bulk"), {"act": "discard", "q": ""}, follow=True)
    assert "No jobs selected" in answer.content.decode()
    assert Failure.objects.filter(state="dead").count() == 2


def test_all_that_match_is_its_own_choice_and_takes_only_what_matches(ann, shop):
    dead(3, queue="emails")
    dead(2)
    chosen = {"everything": "1", "q": "queue:emails", "act": "discard", "reason": "old"}
    ann.post(reverse("redrive:failure-bulk"), chosen)
    assert Failure.objects.filter(state="discarded", queue="emails").count() == 3
    assert Failure.objects.filter(state="dead").count() == 2


def test_the_way_back_leads_to_no_other_site(ann):
    answer = ann.post(reverse("redrive:failure-bulk"), {"act": "discard", "back": "https://evil.example/"})
    assert answer.url == "/failures/"


def undo_key(answer):
    return field(answer, "key")


def field(answer, name):
    return answer.content.decode().split(f'name="{name}" value="')[1].split('"')[0]


@pytest.fixture
def small_steps(monkeypatch):
    """Ten jobs a transaction, one transaction a step."""
    monkeypatch.setattr(failure_bulk, "STEP_S", 0)
    monkeypatch.setattr(triage, "_AT_ONCE", 10)


def gone_on_with(client, answer):
    """Return the number of jobs checked by each step, and the answer after the last."""
    checked = []
    while answer.status_code == 200:
        checked.append(answer.context["checked"])
        answer = client.post(reverse("redrive:failure-sweep"), {"sweep": field(answer, "sweep"), "q": ""})
    return checked, answer


def test_a_large_act_shows_its_progress_and_goes_on_until_it_is_done_and_is_undone_so(ann, shop, small_steps):
    dead(25)
    everything = {"everything": "1", "q": "", "act": "discard", "reason": "x"}
    answer = ann.post(reverse("redrive:failure-bulk"), everything)
    progress = r"Discarding 10 of 25.*Discarded 10 jobs so far\. About \d+ s left\."
    assert re.search(progress, answer.content.decode(), re.S)
    checked, answer = gone_on_with(ann, answer)
    assert checked == [10, 20] and Failure.objects.filter(state="discarded").count() == 25
    answer = ann.post(reverse("redrive:failure-undo"), {"key": undo_key(ann.get(answer.url))})
    assert "Undoing" in answer.content.decode()
    gone_on_with(ann, answer)
    assert Failure.objects.filter(state="dead").count() == 25


def test_a_large_act_can_be_stopped_and_shows_how_far_it_came(ann, shop, small_steps):
    dead(25)
    answer = ann.post(reverse("redrive:failure-bulk"), {"everything": "1", "q": "", "act": "discard", "reason": "x"})
    token = field(answer, "sweep")
    answer = ann.post(reverse("redrive:failure-sweep"), {"sweep": token, "stop": "1"}, follow=True)
    assert "Stopped. Discarded 10 jobs." in answer.content.decode()


def test_the_steps_of_an_act_belong_to_who_began_it(ann, otto, shop, small_steps):
    dead(25)
    answer = ann.post(reverse("redrive:failure-bulk"), {"everything": "1", "q": "", "act": "discard", "reason": "x"})
    token = field(answer, "sweep")
    for stolen in (token, "nonsense"):
        answer = otto.post(reverse("redrive:failure-sweep"), {"sweep": stolen}, follow=True)
        assert "belongs to another user" in answer.content.decode()
    assert Failure.objects.filter(state="discarded").count() == 10


def test_what_came_after_the_page_was_shown_is_not_caught(ann, shop):
    ids = dead(3)
    dead(2)
    chosen = {"everything": "1", "q": "queue:webhooks", "act": "discard", "reason": "old", "highest": ids[-1]}
    ann.post(reverse("redrive:failure-bulk"), chosen)
    assert Failure.objects.filter(state="discarded").count() == 3


def test_an_act_of_htmx_answers_with_the_list_as_it_is_now(ann, shop):
    ids = dead(3)
    headers = {"HX-Request": "true", "HX-Target": "results"}
    chosen = {"selection": [str(ids[0])], "act": "discard", "q": "queue:webhooks"}
    answer = ann.post(reverse("redrive:failure-bulk"), chosen, headers=headers)
    text = answer.content.decode()
    assert 'id="results"' in text and "<html" not in text and "2 failures" in text and "Undo" in text
    assert answer["HX-Push-Url"] == "/failures/?q=queue%3Awebhooks"
    answer = ann.post(
        reverse("redrive:failure-undo"), {"key": undo_key(answer), "q": "queue:webhooks"}, headers=headers
    )
    assert "3 failures" in answer.content.decode()


@pytest.mark.parametrize("chosen", [{}, {"everything": "1"}, {"everything": "1", "q": "*imeout", "reason": "x"}])
def test_a_refused_act_of_htmx_leaves_the_list_as_it_is(ann, shop, chosen):
    dead(2)
    headers = {"HX-Request": "true", "HX-Target": "results"}
    answer = ann.post(reverse("redrive:failure-bulk"), {"act": "discard"} | chosen, headers=headers)
    assert (answer.status_code, answer["HX-Reswap"]) == (422, "none")
    text = answer.content.decode()
    assert "toast" in text and 'id="results"' not in text and Failure.objects.filter(state="dead").count() == 2


def test_an_act_that_moved_nothing_does_not_count_as_done(ann, shop):
    (pk,) = dead(1, state="recovered")
    headers = {"HX-Request": "true", "HX-Target": "results"}
    answer = ann.post(reverse("redrive:failure-bulk"), {"act": "discard", "selection": pk}, headers=headers)
    assert answer.status_code == 409 and "No job was discarded" in answer.content.decode()


@pytest.mark.parametrize("text", ["x" * 20_000, "\U0001f600" * 5_000])
def test_a_search_too_long_for_an_address_is_refused_with_a_sentence(ann, shop, text):
    dead(1)
    chosen = {"everything": "1", "act": "discard", "reason": "x", "q": text}
    answer = ann.post(reverse("redrive:failure-bulk"), chosen, follow=True)
    assert answer.status_code == 200 and "longer than 4,000 characters" in answer.content.decode()
    answer = ann.post(reverse("redrive:view-save"), {"name": "x", "query": text})
    assert answer.status_code == 422 and "too long" in answer.content.decode()


def test_the_quarantined_are_readmitted_and_the_discarded_restored_from_the_list(ann, shop):
    (ill,), (gone,) = dead(1, state="quarantined"), dead(1, state="discarded")
    ann.post(reverse("redrive:failure-bulk"), {"selection": [str(ill)], "act": "readmit"})
    ann.post(reverse("redrive:failure-bulk"), {"selection": [str(gone)], "act": "restore"})
    assert Failure.objects.filter(state="dead").count() == 2


def test_readmit_is_offered_where_the_page_or_the_search_has_some_in_quarantine(ann, shop):
    def is_offered(q: str = "") -> bool:
        return 'value="readmit"' in ann.get("/failures/", {"q": q}).content.decode()

    dead(2, queue="emails")
    assert not is_offered() and is_offered("state:dead,quarantined")
    dead(1, state="quarantined", queue="pdf")
    assert is_offered() and not is_offered("queue:emails") and not is_offered("-state:quarantined")


def test_an_act_that_is_not_known_changes_nothing(ann, shop):
    ids = dead(1)
    answer = ann.post(reverse("redrive:failure-bulk"), {"selection": ids, "act": "explode"}, follow=True)
    assert "Unknown action" in answer.content.decode() and Failure.objects.get().state == "dead"


def test_the_groups_of_the_chosen_are_resolved_with_a_way_back(ann, shop):
    one, other = group("KeyError", "x"), group("ValueError", "y")
    ids = dead(2, group=one) + dead(1, group=other)
    chosen = {"selection": [str(pk) for pk in ids[:2]], "act": "resolve", "q": ""}
    answer = ann.post(reverse("redrive:failure-bulk"), chosen, follow=True)
    assert "Resolved 1 group" in answer.content.decode() and "Undo" in answer.content.decode()
    assert (Group.objects.get(pk=one.pk).state, Group.objects.get(pk=other.pk).state) == ("resolved", "new")
    ann.post(reverse("redrive:failure-bulk"), {"everything": "1", "act": "mute_day", "q": f"group:{other.fingerprint}"})
    assert Group.objects.get(pk=other.pk).state == "muted"


def test_groups_are_not_acted_on_by_a_search_that_checked_the_latest_only(ann, shop):
    one = group("KeyError", "timeout")
    dead(2, group=one)
    chosen = {"everything": "1", "act": "resolve", "q": "*imeout"}
    answer = ann.post(reverse("redrive:failure-bulk"), chosen, follow=True)
    assert "alone cannot use an index" in answer.content.decode()
    assert Group.objects.get(pk=one.pk).state == "new"


def test_groups_that_came_after_the_page_was_shown_are_left_alone(ann, shop):
    one, other = group("KeyError", "x"), group("ValueError", "y")
    ids = dead(1, group=one)
    dead(1, group=other)
    ann.post(reverse("redrive:failure-bulk"), {"everything": "1", "act": "resolve", "q": "", "highest": ids[0]})
    assert [Group.objects.get(pk=g.pk).state for g in (one, other)] == ["resolved", "new"]


def test_relative_times_are_those_that_the_page_showed(ann, shop):
    old, new = dead(2)
    shown = timezone.now() - timedelta(hours=3)
    Failure.objects.filter(pk=old).update(failed_at=shown - timedelta(minutes=30))
    Failure.objects.filter(pk=new).update(failed_at=shown - timedelta(hours=2))
    chosen = {"everything": "1", "act": "discard", "q": "age:<1h", "shown_at": int(shown.timestamp())}
    ann.post(reverse("redrive:failure-bulk"), chosen)
    assert list(Failure.objects.filter(state="discarded").values_list("pk", flat=True)) == [old]


def test_a_viewer_acts_on_nothing(vera, shop):
    ids = dead(1)
    for name in ("failure-bulk", "failure-sweep", "failure-undo"):
        assert vera.post(reverse(f"redrive:{name}"), {"selection": ids, "act": "discard"}).status_code == 403
