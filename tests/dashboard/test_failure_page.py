"""One failure: its history however long, any attempt's traceback, arguments of any size, what differs."""

from __future__ import annotations

import hashlib
import io
import json
import re
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from jobs_admin import config
from jobs_admin.failures import explanations
from jobs_admin.models import Attempt, Failure, Payload, Replay, ReplayItem, Traceback
from tests.kit.failures import KWARGS, bury, dead
from tests.kit.pages import HTMX

TRACE = 'Traceback (most recent call last):\n  File "/app/{0}.py", line 7, in {0}\n    pay()\n{0}Error: no\n'


def attempts(failure: Failure, *places: tuple[int, int], **changes) -> list[Attempt]:
    """An attempt at each (run, attempt), all retried."""
    values = {"kind": "retry", "job_id": "j", "error_type": "TimeoutError", "message": "no answer", "delay_s": 30}
    values |= {"received_at": failure.failed_at} | changes
    made = Attempt.objects.bulk_create(
        Attempt(failure=failure, run=run, attempt=n, ended_at=failure.failed_at + timedelta(seconds=n), **values)
        for run, n in places
    )
    return list(Attempt.objects.filter(failure=failure).order_by("run", "attempt")) if made else []


def one(**changes) -> Failure:
    bury(**changes)
    return Failure.objects.latest("pk")


def get(client, name, *args, part=False, **query) -> str:
    answer = client.get(reverse(f"redrive:{name}", args=args), query, headers=HTMX if part else {})
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


def attempt_numbers(text: str) -> list[int]:
    """Return the numbers of the attempts that a page or part shows, in its order."""
    return [int(n) for n in re.findall(r'<span class="n">(\d+)</span>', text)]


def raw(pk: int, run: int, args, kwargs, **headers) -> None:
    """Keep this as the message of a run."""
    text = json.dumps({"args": args, "kwargs": kwargs, "headers": headers}).encode()
    body, digest = config.payload_keys().encrypt(text), hashlib.sha256(text).hexdigest()
    stored = {"body": body, "size": len(text), "sha256": digest, "is_whole": True}
    Payload.objects.update_or_create(failure_id=pk, run=run, defaults=stored)


# ---------- the timeline ----------


def test_a_hundred_attempts_are_folded_and_none_is_lost(ann):
    failure = one(attempts=100)
    attempts(failure, *((1, n) for n in range(1, 101)))
    text = get(ann, "failure-detail", failure.pk)
    assert attempt_numbers(text) == list(range(93, 101)) and "92 earlier attempts" in text
    url = re.search(r'href="(/failures/\d+/attempts/\?[^"]+)"', text)[1].replace("&amp;", "&")
    assert attempt_numbers(ann.get(url, headers=HTMX).content.decode()) == list(range(1, 93))


def test_thousands_of_attempts_are_reached_in_steps(ann):
    failure = one(attempts=1_300)
    attempts(failure, *((1, n) for n in range(1, 1_301)))
    text, seen = get(ann, "failure-detail", failure.pk), []
    seen += attempt_numbers(text)
    while found := re.search(r'hx-get="(/failures/\d+/attempts/\?[^"]+)"', text):
        text = ann.get(found[1].replace("&amp;", "&"), headers=HTMX).content.decode()
        seen += attempt_numbers(text)
    assert sorted(seen) == list(range(1, 1_301))


def test_runs_long_ago_are_a_line_each_that_opens(ann):
    failure = one(run=20)
    attempts(failure, *((run, 1) for run in range(1, 21)), kind="exception")
    text = get(ann, "failure-detail", failure.pk)
    assert [f"Run {n}</strong>" in text for n in range(1, 21)] == [True] * 20
    assert len(attempt_numbers(text)) == 8 and text.count(">1 attempt</a>") == 12
    assert attempt_numbers(get(ann, "failure-attempts", failure.pk, part=True, run=3)) == [1]


def test_two_rows_of_one_attempt_are_never_parted_by_the_fold(ann):
    failure = one(attempts=20)
    attempts(failure, *((1, n) for n in range(1, 21)))
    attempts(failure, *((1, n) for n in range(1, 21)), kind="lost")
    text = get(ann, "failure-detail", failure.pk)
    url = re.search(r'hx-get="(/failures/\d+/attempts/\?[^"]+)"', text)[1].replace("&amp;", "&")
    rest = attempt_numbers(ann.get(url, headers=HTMX).content.decode())
    assert sorted(attempt_numbers(text) + rest) == sorted([*range(1, 21), *range(1, 21)])


def test_an_attempt_shows_where_and_how_it_ran(ann):
    failure = one()
    facts = {"worker": "w@h1", "host": "h2", "release": "r7", "policy": "p@3", "duration_s": 1.5, "reason": "budget"}
    attempts(failure, (1, 1), **facts)
    text = get(ann, "failure-detail", failure.pk)
    for message in (
        "w@h1",
        "h2",
        "release r7",
        "/policies/p/versions/?after=4#v3",
        "took 1.5 s",
        "budget",
        "next attempt after 30 s",
    ):
        assert message in text, message


def test_each_attempt_has_its_own_traceback_and_error(ann):
    failure = one(trace=TRACE.format("late"))
    (attempt,) = attempts(failure, (1, 1), error_type="shop.EarlyError", message="the first said this")
    text = TRACE.format("early")
    stack = Traceback.objects.create(sha256=hashlib.sha256(text.encode()).hexdigest(), text=text)
    Attempt.objects.update(traceback=stack)
    page = get(ann, "failure-detail", failure.pk)
    assert "lateError" in page and "earlyError" not in page and f"/attempts/{attempt.pk}/" in page
    part = get(ann, "failure-attempt", failure.pk, attempt.pk, part=True)
    assert part.lstrip().startswith('<section id="told"') and "earlyError" in part and "the first said this" in part
    assert "early" in get(ann, "failure-text", failure.pk, "traceback", attempt=attempt.pk)
    complete = get(ann, "failure-attempt", failure.pk, attempt.pk)
    assert "<html" in complete and "earlyError" in complete and 'aria-current="true"' in complete


def test_an_attempt_of_another_failure_is_not_shown(ann, vera):
    mine, other = one(), one(source="bank")
    (attempt,) = attempts(other, (1, 1))
    for client in (ann, vera):
        for pk in (attempt.pk, 2**63, 10**18):
            assert client.get(reverse("redrive:failure-attempt", args=[mine.pk, pk])).status_code == 404
    assert vera.get(reverse("redrive:failure-attempt", args=[other.pk, attempt.pk])).status_code == 404


# ---------- arguments ----------


def test_what_was_cut_opens_in_full_from_the_message_with_its_secrets_hidden(ann, shop):
    (pk,) = dead(kwargs=json.dumps({"lines": [1, "… 4999 more …"]}))
    raw(pk, 1, [], {"lines": list(range(5_000)), "password": "hunter2"})
    assert "Show full arguments" in get(ann, "failure-detail", pk)
    part = get(ann, "failure-opened", pk, part=True, whole=1)
    assert "5,000 entries" in part and "[redacted]" in part and "hunter2" not in part
    inside = get(ann, "failure-opened", pk, part=True, whole=1, at="kwargs.0", **{"from": 4_900})
    assert "4999" in inside and inside.count("<li>") == 100
    assert "hunter2" not in get(ann, "failure-opened", pk, part=True, whole=1, at="kwargs.1")


def test_a_message_that_cannot_be_read_shows_why(ann, shop):
    (pk,) = dead(is_complete=False)
    answer = ann.get(reverse("redrive:failure-opened", args=[pk]), {"whole": 1})
    assert answer.status_code == 404 and "not stored completely" in answer.content.decode()
    config.payload_keys.cache_clear()


def test_a_message_whose_key_is_gone_shows_it(ann, shop, settings):
    from cryptography.fernet import Fernet

    (pk,) = dead()
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()
    answer = ann.get(reverse("redrive:failure-opened", args=[pk]), {"whole": 1})
    assert answer.status_code == 404 and "its key is missing" in answer.content.decode()


def test_arguments_are_found_by_path_or_value_and_secrets_are_not(ann, shop):
    (pk,) = dead()
    assert "kwargs.customer.name" in get(ann, "failure-opened", pk, part=True, find="ann")
    assert "kwargs.customer.id" in get(ann, "failure-opened", pk, part=True, find="CUSTOMER.ID")
    assert "No value with" in get(ann, "failure-opened", pk, part=True, find="s3cret", whole=1)


def test_a_copy_of_a_cut_job_is_made_of_the_complete_message(ann, shop):
    (pk,) = dead(args="[]", kwargs=json.dumps({"lines": [1, "… 3 more …"]}))
    raw(pk, 1, [], {"lines": [1, 2, 3, 4], "token": "s3cret"})
    text = get(ann, "failure-text", pk, "python")
    assert (
        '"lines": [1, 2, 3, 4]' in text and '"token": REDACTED' in text and "CUT" not in text and "s3cret" not in text
    )
    assert json.loads(get(ann, "failure-text", pk, "json"))["kwargs"] == {"lines": [1, 2, 3, 4], "token": "[redacted]"}


@pytest.mark.parametrize(("queue", "caveats", "named"), [("unknown", 64, False), ("unknown", 0, True), ("a", 64, True)])
def test_a_copy_names_no_queue_where_events_named_none(ann, shop, queue, caveats, named):
    (pk,) = dead(queue=queue, caveats=caveats)
    text = get(ann, "failure-text", pk, "python")
    assert (f'queue="{queue}"' in text) is named and "app.send_task(" in text and "celery -A PROJECT shell" in text


def test_a_large_copy_as_json_is_not_indented(ann, shop):
    (pk,) = dead(args="[]", kwargs=json.dumps({"lines": [1, "… 3 more …"]}))
    raw(pk, 1, [], {"lines": [0] * 100_000})
    assert len(get(ann, "failure-text", pk, "json")) < 400_000


def test_five_megabytes_cost_a_page_nothing(ann, shop):
    (pk,) = dead(kwargs=json.dumps({"lines": ["x" * 50] * 200 + ["… 99800 more …"]}))
    raw(pk, 1, [], {"lines": ["x" * 50] * 100_000})
    assert Payload.objects.get().size > 5_000_000
    assert len(get(ann, "failure-detail", pk)) < 60_000
    part = get(ann, "failure-opened", pk, part=True, whole=1, at="kwargs.0", **{"from": 99_990})
    assert part.count("<li>") == 10


# ---------- what differs ----------


@pytest.fixture
def replayed(ann, shop) -> Failure:
    """Failed in run 1, edited, and failed again in run 2."""
    (pk,) = dead(run=2)
    raw(pk, 1, [42, "EUR"], KWARGS | {"token": "s3cret"}, lang="py", retries=0)
    raw(pk, 2, [43, "EUR"], KWARGS | {"token": "0ther"}, lang="py", retries=2)
    failure = Failure.objects.get(pk=pk)
    attempts(failure, (1, 1), kind="exception", message="order 17 was refused", error_type="shop.Refused")
    attempts(failure, (2, 1), kind="exception", message="order 17 was declined", worker="w2")
    return failure


def test_what_differs_begins_with_whether_both_errors_are_one_group(ann, replayed):
    text = get(ann, "failure-diff", replayed.pk)
    assert text.index("Different fingerprints") < text.index("the type") < text.index("Outcome")
    Attempt.objects.filter(failure=replayed).update(
        error_type="shop.Refused", message="order 1 refused", traceback=None
    )
    assert "Same fingerprint" in get(ann, "failure-diff", replayed.pk)


def test_a_run_is_compared_with_the_one_before_it_in_everything_that_differs(ann, replayed):
    text = get(ann, "failure-diff", replayed.pk)
    for message in ("shop.Refused", "<mark>refused</mark>", "<mark>declined</mark>", "0: 43", "retries"):
        assert message in text, message
    assert "another value" in text and "s3cret" not in text and "0ther" not in text
    assert "The tracebacks are the same" in text or "Neither attempt has a traceback" in text


def test_sides_are_chosen_and_two_attempts_of_one_run_share_their_message(ann, replayed):
    first, second = Attempt.objects.order_by("run")
    attempts(replayed, (2, 2), kind="exception")
    third = Attempt.objects.latest("pk")
    assert "shop.Refused" not in get(ann, "failure-diff", replayed.pk, left=second.pk, right=third.pk)
    assert "Both attempts belong to run 2" in get(ann, "failure-diff", replayed.pk, left=second.pk, right=third.pk)
    assert "shop.Refused" in get(ann, "failure-diff", replayed.pk, left="1.1", right="2.2")
    assert "the same attempt" in get(ann, "failure-diff", replayed.pk, left=first.pk, right=first.pk)


def terminal(*arguments) -> str:
    out = io.StringIO()
    call_command("failure", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_the_api_and_a_terminal_compare_as_the_page_does(replayed, call_api):
    found = call_api("GET", f"failures/{replayed.pk}/compare").json()
    assert ((found["left"]["run"], found["right"]["run"]), found["is_one_group"]) == ((1, 2), False)
    assert found["group_parts"][0]["part"] == "the type"
    sections = {one["field"]: one for one in found["sections"]}
    assert list(sections) == ["message", "traceback", "args", "kwargs", "headers"]
    (message,) = sections["message"]["rows"]
    assert (message["left"], message["right"]) == ("order 17 was refused", "order 17 was declined")
    (changed,) = [row for row in sections["args"]["rows"] if row["change"] == "changed"]
    assert (changed["left"], changed["right"]) == ("0: 42", "0: 43")
    assert sections["traceback"]["is_same"] is True and "s3cret" not in json.dumps(found)
    assert json.loads(terminal("compare", replayed.pk, "--json")) == found
    text = terminal("compare", replayed.pk)
    assert (
        "Different fingerprints" in text and "+ order 17 was declined" in text and "- 0: 42" in text.replace("  ", " ")
    )
    same_run = call_api("GET", f"failures/{replayed.pk}/compare", left="2.1", right="2.1").json()
    assert [one["is_same"] for one in same_run["sections"]] == [True, True, None]
    assert "belong to run 2" in same_run["sections"][2]["why_not"]


def test_an_attempt_that_is_not_there_is_refused_by_the_api_and_a_terminal(replayed, call_api):
    answer = call_api("GET", f"failures/{replayed.pk}/compare", left="9.9")
    assert answer.status_code == 404 and "has no attempt 9.9" in answer.json()["error"]["message"]
    with pytest.raises(CommandError, match=f"Failure {replayed.pk} has no attempt 9.9."):
        terminal("compare", replayed.pk, "--left", "9.9")
    for act in ("show", "why", "compare"):
        with pytest.raises(CommandError, match="Failure 987654321 not found"):
            terminal(act, 987654321)
    alone = one()
    assert call_api("GET", f"failures/{alone.pk}/compare").status_code == 409
    with pytest.raises(CommandError, match="no failed attempts to compare"):
        terminal("compare", alone.pk)
    for call in ("why", "compare"):
        assert call_api("GET", f"failures/{replayed.pk}/{call}", role="admin", source="bank").status_code == 404


def test_reasons_are_the_decisions_the_advice_and_the_parts_of_the_group(replayed, call_api):
    Attempt.objects.filter(failure=replayed, run=1).update(
        kind="retry", policy="emails@3", reason="transient", delay_s=30.0
    )
    found = call_api("GET", f"failures/{replayed.pk}/why").json()
    first, second = found["decisions"]
    assert (first["kind"], first["policy"], first["reason"], first["delay_s"]) == ("retry", "emails@3", "transient", 30)
    assert (second["run"], second["kind"], found["advice"]) == (2, "exception", [])
    assert found["grouping"]["error_type"] and found["grouping"]["message"]
    assert json.loads(terminal("why", replayed.pk, "--json")) == found
    assert "retry by emails@3; next after 30 s: transient" in terminal("why", replayed.pk)
    never = one(kind="expired")
    (advice,) = call_api("GET", f"failures/{never.pk}/why").json()["advice"]
    assert (advice["code"], advice["message"]) == ("never_ran", explanations.explain_unread(never).what)
    assert f"→ {advice['fix']}" in terminal("why", never.pk)


def test_a_run_with_edited_arguments_is_marked(replayed, call_api):
    replay = Replay.objects.create(actor="ann", scope_max_id=replayed.pk, edit={"kwargs": {}}, reason="typo")
    sent = {"run": 2, "state": "failed_again", "sent_at": timezone.now(), "n": 1}
    ReplayItem.objects.create(replay=replay, failure=replayed, **sent)
    found = call_api("GET", f"failures/{replayed.pk}").json()
    assert [run["is_edited"] for run in found["runs"]] == [False, True]
    shown = json.loads(terminal("show", replayed.pk, "--json"))
    assert shown == found
    assert f"Run 2, sent by ann in replay #{replay.pk} with edited arguments: failed_again" in terminal(
        "show", replayed.pk
    )


def test_a_message_that_was_pruned_leaves_the_rest_to_be_compared(ann, replayed):
    Payload.objects.filter(run=1).delete()
    text = get(ann, "failure-diff", replayed.pk)
    assert "Run 1 has no stored message" in text and "<mark>declined</mark>" in text


@pytest.mark.parametrize(
    "query", [{"left": "x"}, {"left": "99999999999999999999"}, {"right": "0"}, {"left": str(2**63)}, {"left": "9.9"}]
)
def test_an_attempt_that_is_not_there_is_a_404(ann, replayed, query):
    assert ann.get(reverse("redrive:failure-diff", args=[replayed.pk]), query).status_code == 404


def test_a_job_without_attempts_shows_that_nothing_can_be_compared(ann):
    assert "The failure has no failed attempts to compare." in get(ann, "failure-diff", one().pk)


def test_a_single_attempt_is_compared_with_a_success_or_not_at_all(ann, call_api):
    alone = one()
    (failed,) = attempts(alone, (1, 1), kind="exception")
    sentence = "The failure has a single attempt: nothing to compare it with."
    assert sentence in get(ann, "failure-diff", alone.pk) and 'id="side-left"' not in get(ann, "failure-diff", alone.pk)
    answer = call_api("GET", f"failures/{alone.pk}/compare")
    assert answer.status_code == 409 and answer.json()["error"]["message"] == sentence
    with pytest.raises(CommandError, match="nothing to compare it with"):
        terminal("compare", alone.pk)
    _, success = attempts(alone, (2, 1), kind="success")
    found = call_api("GET", f"failures/{alone.pk}/compare").json()
    assert [found["left"]["id"], found["right"]["id"]] == [failed.pk, success.pk]


def test_what_an_observing_policy_would_have_done_names_how_to_apply_it(ann, call_api):
    failure = one()
    attempts(failure, (1, 1), kind="exception", policy="hooks@3", reason="would retry in 4 s")
    (advice,) = call_api("GET", f"failures/{failure.pk}/why").json()["advice"]
    assert advice["code"] == "policy_observes"
    assert advice["message"] == "Policy hooks@3 only observes, so it was not applied: it would retry in 4 s."
    assert f"→ {advice['fix']}" in terminal("why", failure.pk)


def test_a_placeholder_that_was_moved_is_refused_before_anything_is_sent(ann, shop):
    (pk,) = dead()
    edited = {"args": '["[redacted]"]', "kwargs": json.dumps(KWARGS), "step": "look"}
    answer = ann.post(reverse("redrive:failure-edit", args=[pk]), edited)
    assert answer.status_code == 409 and "a placeholder for a value that is not shown" in answer.content.decode()


def test_what_strangers_shown_is_escaped_in_every_part(ann, shop):
    evil = '<img src=x onerror=alert(1)>"\u202e'
    (pk,) = dead(run=2, args=json.dumps([evil, {evil: evil}]), kwargs="{}", message=evil, error_type=evil)
    for run in (1, 2):
        raw(pk, run, [evil, run], {evil: evil * run}, **{evil: evil * run})
    failure = Failure.objects.get(pk=pk)
    hostile = dict.fromkeys(("error_type", "message", "worker", "host", "release", "policy", "reason"), evil)
    attempts(failure, (1, 1), **hostile)
    attempts(failure, (2, 1), **hostile | {"message": evil * 2})
    first = Attempt.objects.first()
    pages = [get(ann, "failure-detail", pk), get(ann, "failure-attempt", pk, first.pk), get(ann, "failure-diff", pk)]
    pages += [get(ann, "failure-attempts", pk, run=1), get(ann, "failure-opened", pk, find=evil)]
    pages += [get(ann, "failure-opened", pk, whole=1), get(ann, "failure-opened", pk, at="args.1")]
    for text in pages:
        assert "<img src=x" not in text and "\u202e" not in text


def test_beside_the_list_the_part_of_a_failure_brings_its_row_along(ann):
    url = f"/failures/{bury()[0].pk}/"
    beside, alone = ("http://testserver/failures/?q=state:dead", f"http://testserver{url}")
    row = f'<template data-row-now><tr data-row="{url}">'
    assert row in ann.get(url, headers=HTMX | {"HX-Current-URL": beside}).content.decode()
    assert row not in ann.get(url, headers=HTMX | {"HX-Current-URL": alone}).content.decode()


def test_the_last_line_of_a_traceback_has_the_message(ann):
    trace = 'Traceback (most recent call last):\n  File "app.py", line 3, in main\n    fail()\nshop.Declined\n'
    (one,) = bury(1, trace=trace, error_type="shop.Declined", message="card <4242> declined")
    page = ann.get(f"/failures/{one.pk}/").content.decode()
    assert '<pre class="words">shop.Declined: card &lt;4242&gt; declined</pre>' in page
    assert (
        ann.get(f"/failures/{one.pk}/as/traceback/")
        .content.decode()
        .endswith("\nshop.Declined: card <4242> declined\n")
    )
