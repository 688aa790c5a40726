from __future__ import annotations

import json
import re

import pytest
from django.urls import reverse

from jobs_admin import replays
from jobs_admin.models import Attempt, AuditEvent, Failure, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import Caveat
from tests.kit.failures import ARGS, KWARGS, bury, dead
from tests.kit.groups import group
from tests.kit.pages import carried, text_of

BOB = Viewer("bob", {"*": OPERATOR})


def page(client, name, *args, **query):
    answer = client.get(reverse(f"redrive:{name}", args=args), query)
    return answer, answer.content.decode()


# ---------- one failure ----------


def test_an_unknown_failure_is_a_404_page(ann):
    assert page(ann, "failure-detail", 999_999)[0].status_code == 404


def test_the_page_shows_error_arguments_traceback_and_what_was_hidden(ann, shop):
    (pk,) = dead(trace='Traceback (most recent call last):\n  File "/app/pay.py", line 7, in charge\n    pay()\nE: x')
    _, text = page(ann, "failure-detail", pk)
    for message in ("TimeoutError", "no answer", "app/pay.py", "customer", "1 value hidden", "Edit and replay"):
        assert message in text, message


def test_what_a_job_shows_is_shown_and_never_obeyed(ann, shop):
    evil = '<img src=x onerror=alert(1)> \u202e{{ 7|add:"7" }}'
    (pk,) = dead(message=evil, task=evil, tenant=evil, args=json.dumps([evil]), trace=evil, error_type=evil)
    for text in (page(ann, "failure-detail", pk)[1], page(ann, "failure-list")[1]):
        assert "<img src=x" not in text and "\u202e" not in text and "U+202E" in text


def test_every_attempt_of_every_run_is_on_the_timeline_with_the_wait_that_followed(ann):
    (failure,) = bury(run=2, state="dead")
    failure = Failure.objects.get(first_job_id=failure.first_job_id)
    for run, attempt, kind in ((1, 1, "retry"), (1, 2, "exception"), (2, 1, "exception")):
        Attempt.objects.create(
            failure=failure, run=run, attempt=attempt, kind=kind, job_id="j", error_type="TimeoutError",
            ended_at=failure.failed_at, received_at=failure.failed_at, duration_s=1.5,
            delay_s=30 if kind == "retry" else None,
        )  # fmt: skip
    answer, text = page(ann, "failure-detail", failure.pk)
    assert [(run.n, len(run.rows)) for run in answer.context["runs"]] == [(1, 2), (2, 1)]
    assert "next attempt after 30 s" in text and "took 1.5 s" in text
    assert f'href="{reverse("redrive:failure-diff", args=[failure.pk])}">Compare attempts</a>' in text


def test_a_failure_page_queries_the_database_a_handful_of_times(ann, shop, django_assert_max_num_queries):
    (pk,) = dead(trace="Traceback\nx", group=group())
    with django_assert_max_num_queries(16):
        ann.get(reverse("redrive:failure-detail", args=[pk]))


def test_large_arguments_come_in_pieces(ann, shop):
    (pk,) = dead(args=json.dumps([list(range(5_000))]), kwargs="{}")
    _, text = page(ann, "failure-detail", pk)
    assert "5,000 entries" in text and text.count("<li>") < 300
    _, part = page(ann, "failure-opened", pk, at="args.0")
    assert "4,800 more" in part
    assert page(ann, "failure-opened", pk, at="args.0.9999")[0].status_code == 404


def test_arguments_that_are_no_json_are_shown_as_they_are_and_cannot_be_edited(ann, shop):
    (pk,) = dead(args='[1, "cut here', kwargs="")
    _, text = page(ann, "failure-detail", pk)
    assert "cut here" in text and "Edit and replay" not in text
    assert ann.get(reverse("redrive:failure-edit", args=[pk])).status_code == 409


def test_the_copies_are_plain_text(ann, shop):
    (pk,) = dead(trace="Traceback: here")
    for form, message in (("python", "app.send_task("), ("json", '"task": "shop.deliver"'), ("traceback", "here")):
        answer, text = page(ann, "failure-text", pk, form)
        assert message in text and answer["Content-Type"].startswith("text/plain")


# ---------- acts ----------


def test_one_job_is_replayed_by_a_plain_form_and_the_page_shows_where(ann, shop):
    (pk,) = dead()
    answer = ann.post(reverse("redrive:failure-replay", args=[pk]), follow=True)
    assert Replay.objects.get().total == 1
    text = answer.content.decode()
    assert f"Planned in replay #{Replay.objects.get().pk}" in text and "within seconds" in text


def test_one_job_of_a_dangerous_task_waits_for_a_second_person_and_the_page_shows_it(ann, shop, settings):
    (pk,) = dead(task="billing.charge")
    settings.REDRIVE = settings.REDRIVE | {"DANGEROUS_TASKS": ["billing.*"]}
    text = ann.post(reverse("redrive:failure-replay", args=[pk]), follow=True).content.decode()
    assert Replay.objects.get().state == "awaiting_approval"
    assert "Another operator must approve it before the job is sent." in text and "within seconds" not in text


def test_the_second_operator_is_shown_who_and_when_and_nothing_is_sent_twice(ann, shop):
    (pk,) = dead()
    replays.start(BOB, replays.draft(BOB, selection=[pk]))
    assert "bob" in page(ann, "failure-detail", pk)[1]
    answer = ann.post(reverse("redrive:failure-replay", args=[pk]))
    assert answer.status_code == 409 and "bob is already replaying this job" in answer.content.decode()
    assert Replay.objects.filter(total__gt=0).count() == 1


def test_a_get_replays_nothing_and_a_viewer_may_not(ann, vera, shop):
    (pk,) = dead()
    assert ann.get(reverse("redrive:failure-replay", args=[pk])).status_code == 405
    assert vera.post(reverse("redrive:failure-replay", args=[pk])).status_code == 403
    assert not Replay.objects.exists()


def test_an_edit_shows_what_changes_before_it_goes_and_sends_what_was_shown(ann, shop):
    (pk,) = dead()
    url = reverse("redrive:failure-edit", args=[pk])
    edited = {"args": "[43]", "kwargs": json.dumps(KWARGS), "reason": "typo"}
    text = ann.post(url, edited | {"step": "look"}).content.decode()
    assert "42" in text and "43" in text and "is-changed" in text and not Replay.objects.exists()
    ann.post(url, edited | {"step": "send"})
    assert Replay.objects.get().edit["args"] == [43]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ("[1,", "{}", "line 1, column"),
        ('{"a": 1}', "{}", "JSON list"),
        ("[]", "[]", "JSON object"),
        ("[NaN]", "{}", "NaN is not a JSON value"),
        ("[" * 20_000, "{}", "Invalid JSON"),
    ],
)
def test_arguments_that_are_not_json_are_refused_beside_their_field(ann, shop, args, kwargs, message):
    (pk,) = dead()
    answer = ann.post(reverse("redrive:failure-edit", args=[pk]), {"args": args, "kwargs": kwargs, "step": "look"})
    text = answer.content.decode()
    assert answer.status_code == 422 and message in text and 'aria-invalid="true"' in text
    assert not Replay.objects.exists()


def test_an_edit_that_changes_nothing_goes_as_it_came(ann, shop):
    (pk,) = dead()
    same = {"args": json.dumps(ARGS), "kwargs": json.dumps(KWARGS)}
    url = reverse("redrive:failure-edit", args=[pk])
    assert "No changes, except possibly key order" in ann.post(url, same | {"step": "look"}).content.decode()
    ann.post(url, same | {"step": "send"})
    assert Replay.objects.get().edit is None


def test_a_discard_can_be_undone_from_its_message(ann, shop):
    (pk,) = dead()
    answer = ann.post(reverse("redrive:failure-discard", args=[pk]), {"reason": "test order"}, follow=True)
    assert Failure.objects.get().state == "discarded" and "Undo" in answer.content.decode()
    ann.post(reverse("redrive:failure-restore", args=[pk]))
    assert Failure.objects.get().state == "dead"
    assert set(AuditEvent.objects.values_list("act", flat=True)) >= {"failure.discard", "failure.restore"}


def test_a_quarantined_failure_is_readmitted_from_its_page_and_taken_back(ann, shop):
    (pk,) = dead(1, state="quarantined", reason="killed 3 workers")
    url = reverse("redrive:failure-readmit", args=[pk])
    assert url in ann.get(reverse("redrive:failure-detail", args=[pk])).content.decode()
    answer = ann.post(url, follow=True)
    assert Failure.objects.get().state == "dead" and "Job readmitted" in answer.content.decode()
    ann.post(
        reverse("redrive:failure-undo"), {"key": answer.content.decode().split('name="key" value="')[1].split('"')[0]}
    )
    assert (Failure.objects.get().state, Failure.objects.get().reason) == ("quarantined", "killed 3 workers")


def test_a_restore_can_be_taken_back(ann, shop):
    (pk,) = dead(1, state="discarded")
    answer = ann.post(reverse("redrive:failure-restore", args=[pk]), follow=True)
    ann.post(
        reverse("redrive:failure-undo"), {"key": answer.content.decode().split('name="key" value="')[1].split('"')[0]}
    )
    assert Failure.objects.get().state == "discarded"


def test_what_is_not_in_quarantine_is_not_readmitted(ann, shop):
    (pk,) = dead()
    answer = ann.post(reverse("redrive:failure-readmit", args=[pk]))
    assert answer.status_code == 409 and "no longer in quarantine" in answer.content.decode()


def test_a_failure_on_its_way_recovers_and_one_that_rests_does_not(ann, shop):
    (pk,) = dead()
    url = reverse("redrive:failure-detail", args=[pk])
    is_live = f'id="failure" class="failure" data-failure="{pk}" data-live'
    assert is_live not in ann.get(url).content.decode()
    ann.post(reverse("redrive:failure-replay", args=[pk]))
    assert is_live in ann.get(url).content.decode()
    (retrying,) = bury(state="retrying")
    pk = Failure.objects.get(first_job_id=retrying.first_job_id).pk
    assert f'data-failure="{pk}" data-live' in ann.get(reverse("redrive:failure-detail", args=[pk])).content.decode()


def test_a_replay_that_is_likely_to_fail_again_gives_the_reason_and_is_confirmed_once(ann, shop):
    (fine,), (bug,) = dead(), dead(1, group=group("KeyError", "sku", fingerprint="v1-key"))
    (muted,) = dead(1, group=group("shop.Known", "slow", state="muted", state_by="ann"))
    pages = {pk: text_of(ann.get(reverse("redrive:failure-detail", args=[pk]))) for pk in (fine, bug, muted)}
    assert "Replay sends the job at once. Replay Edit" in pages[fine] and "likely to fail" not in pages[fine]
    reason = "Its group is likely to fail again: permanent: KeyError is an error of code or data."
    # The reason once; the button opens a menu, and sends nothing at once.
    assert f"{reason} Replay… Replay job anyway Edit" in pages[bug] and pages[bug].count(reason) == 1
    assert "Its group is muted by ann. Replay… Replay job anyway Edit" in pages[muted]
    assert not any("at once" in pages[pk] or "ikely to fail" in pages[muted] for pk in (bug, muted))
    ann.post(reverse("redrive:failure-replay", args=[bug]))
    assert Replay.objects.get().total == 1


def test_a_job_whose_last_replay_failed_with_the_same_error_is_replayed_only_after_a_warning(ann, shop):
    (pk,) = dead(1, group=group("shop.PartnerDown", "down"))
    url = reverse("redrive:failure-detail", args=[pk])
    ann.post(reverse("redrive:failure-replay", args=[pk]))
    failure = Failure.objects.get(pk=pk)
    again = ReplayItem.objects.filter(failure=pk)
    again.update(state="failed_again", first_ok=False, first_group=failure.group_id)
    Failure.objects.filter(pk=pk).update(state="dead")
    assert "Its last replay failed with the same error. Replay… Replay job anyway" in text_of(ann.get(url))
    again.update(first_group=group("shop.Other", "else", fingerprint="v1-else"))
    assert "Replay sends the job at once." in text_of(ann.get(url))


def test_a_job_that_could_be_accepted_is_refused_with_the_way_to_accept_it(ann, shop):
    (pk,) = dead(1, caveats=Caveat.CHORD)
    answer = ann.post(f"/failures/{pk}/replay/")
    page = answer.content.decode()
    assert answer.status_code == 409 and "member of a chord" in page and "Nothing was changed." in page
    (way,) = set(re.findall(r'href="(/replays/new/[^"]+)"', page))
    checked = ann.get(way)
    assert (
        "No jobs can be replayed" in checked.content.decode()
        and 'name="accept" value="chord"' in checked.content.decode()
    )
    form = carried(checked) | {"accept": "chord", "style": "steady", "amount": "50"}
    ready = ann.post("/replays/new/", form)
    assert "Replay 1 job to webhooks" in ready.content.decode()
    ann.post("/replays/new/", carried(ready) | {"accept": "chord", "style": "steady", "amount": "50", "step": "start"})
    assert Replay.objects.get().total == 1


def test_a_job_that_nothing_lets_go_is_refused_without_a_way(ann, shop):
    (pk,) = dead(1, is_complete=False)
    page = ann.post(f"/failures/{pk}/replay/").content.decode()
    assert "truncated" in page and "/replays/new/?selection" not in page
