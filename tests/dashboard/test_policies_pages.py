"""Retry policies in the browser: the list, the editor, what it refuses, the history."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import policies
from jobs_admin.core import keys
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.fleet import heartbeats
from jobs_admin.models import Attempt, AuditEvent, Group, GroupCounter, PolicyVersion
from jobs_admin.models.access import ENGINE
from tests.kit.failures import bury
from tests.kit.fleet import reports
from tests.kit.groups import group
from tests.kit.pages import HTMX
from tests.kit.people import log_in

pytestmark = pytest.mark.django_db

MATCH = {"source": "shop", "task": "shop.deliver"}


@pytest.fixture(autouse=True)
def _store(watched):
    """The store answers."""


def publish(name: str = "webhooks", **changes):
    current = PolicyVersion.objects.filter(name=name, is_published=True).first()
    document = {"name": name, "match": MATCH, "max_attempts": 6} | changes
    return policies.publish(ENGINE, name, document, expected_version=current.version if current else None)


def typed(**changes: str) -> dict[str, str]:
    """The form of the editor; `__` stands for the dot in a name."""
    form = {"name": "webhooks", "match.source": "shop", "match.task": "shop.deliver", "mode": "observe"}
    form |= {"max_attempts": "6", "backoff.kind": "exponential", "backoff.first_delay_s": "5 s", "jitter.kind": "full"}
    return form | {"retry_after.respect": "on"} | {name.replace("__", "."): text for name, text in changes.items()}


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


# --- the list ----------------------------------------------------------------------------------------------------


def test_a_desk_without_policies_offers_every_preset_to_begin_with(vera):
    page = vera.get("/policies/").content.decode()
    assert "Tasks are retried by their own code" in page
    assert [name for name in PRESETS if f"/policies/new/?preset={name}" not in page] == []


def test_the_list_shows_what_is_in_force_for_what_and_who_runs_it(vera):
    publish(mode="enforce", backoff={"kind": "fixed", "first_delay_s": 60})
    text = text_of(vera.get("/policies/"))
    assert "shop.deliver of shop" in text and "enforce" in text
    assert "6 attempts over 5 min always 1 min, no jitter" in text
    assert "no matching guarded worker is active" in text


def test_a_policy_of_a_source_that_is_out_of_sight_is_not_there(django_user_model):
    publish()
    elsewhere = log_in(django_user_model, "eve", bank="admin")
    assert "/policies/webhooks/" not in elsewhere.get("/policies/").content.decode()
    for path in ("", "versions/"):
        assert elsewhere.get(f"/policies/webhooks/{path}").status_code == 404


def test_a_policy_that_observes_shows_how_many_attempts_it_would_have_changed(vera):
    publish(mode="observe")
    assert "no failed attempts evaluated yet" in text_of(vera.get("/policies/webhooks/"))
    for failure in bury(3):
        times = {"ended_at": failure.failed_at, "received_at": failure.failed_at}
        reason = "would retry in 12 s" if failure.pk % 3 else "would be dead: permanent"
        Attempt.objects.create(
            failure=failure, run=1, attempt=1, kind="exception", policy="webhooks@1", reason=reason, **times
        )
    text = text_of(vera.get("/policies/webhooks/"))
    assert "would have changed 2 of 3 failed attempts (2 retried instead of dead)" in text
    publish(mode="enforce")
    assert "would have changed" not in text_of(vera.get("/policies/webhooks/"))


# --- the editor --------------------------------------------------------------------------------------------------


def test_a_new_policy_begins_with_a_preset_and_for_the_task_of_a_link(vera):
    page = vera.get("/policies/new/?preset=payments&task=shop.billing.charge").content.decode()
    assert 'name="match.task" value="shop.billing.charge"' in page
    assert 'name="name" value="charge"' in page
    assert 'name="backoff.first_delay_s" value="1 min"' in page
    assert '<option value="escalate" selected>' in page


def test_the_editor_shows_which_outage_is_survived_and_when_it_gives_up(vera):
    publish(backoff={"kind": "linear", "first_delay_s": 30}, max_attempts=5)
    text = text_of(vera.get("/policies/webhooks/"))
    assert "Survives an outage of 5 min, not longer." in text
    assert "5 attempts; gives up after 5 min." in text


def test_an_edit_is_drawn_beside_what_is_in_force_and_nothing_is_stored(vera):
    publish(backoff={"kind": "fixed", "first_delay_s": 60})
    part = vera.post("/policies/webhooks/preview/", typed(begun="1", jobs="500"), headers=HTMX)
    text = text_of(part)
    assert part.status_code == 200 and "<html" not in part.content.decode()
    assert "Compared with v1, observed only: Survives an outage of 5 min" in text and "in force" not in text.lower()
    assert "Delays grow: fixed" not in text and "Backoff: delays grow fixed exponential" in text
    assert 'id="delays-table"' in part.content.decode() and 'id="herd-table"' in part.content.decode()
    assert PolicyVersion.objects.count() == 1 and not AuditEvent.objects.filter(act="policy.publish").exclude(
        actor="redrive"
    )


def test_the_herd_of_all_at_the_same_moment_is_shown_beside_one_that_is_spread(vera):
    publish(backoff={"kind": "fixed", "first_delay_s": 60})
    text = text_of(
        vera.post("/policies/webhooks/preview/", typed(backoff__first_delay_s="60", jobs="500"), headers=HTMX)
    )
    assert re.search(r"Peak [\d,]+ /s; v1, observed only: 500 \.", text)


def test_a_name_that_no_policy_may_have_is_refused_while_it_is_typed(vera):
    part = vera.post("/policies/new/preview/", typed(name="Not a name!"), headers=HTMX).content.decode()
    assert re.search(r'id="refused-p-name"[^>]*><p class="refusal"', part)
    assert 'class="verdict"' in part  # the preview ignores the name
    assert (
        '<p class="refusal"' not in vera.post("/policies/new/preview/", typed(name=""), headers=HTMX).content.decode()
    )


def test_without_scripts_the_preview_is_the_complete_page_with_what_was_typed(vera):
    answer = vera.post("/policies/new/preview/", typed(cap_s="10 min", reason="typed before"))
    page = answer.content.decode()
    assert "<html" in page and 'name="cap_s" value="10 min"' in page and 'value="typed before"' in page


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("max_attempts", "1e9", "This must be a whole number from 1 to 1,000"),
        ("max_attempts", "0", "This must be a whole number from 1 to 1,000"),
        ("backoff.first_delay_s", "NaN", "This must be a number from 0 to 2,592,000 seconds"),
        ("backoff.first_delay_s", "-5", "This must be a number from 0 to 2,592,000 seconds"),
        ("backoff.factor", "1e308", "This must be a number from 1 to 100"),
        ("cap_s", "1 s", "This must be at least the first delay (5 seconds)"),
        ("backoff.kind", "explosive", "This must be one of exponential"),
        ("expires_at", "soon", "This must be a time such as"),
    ],
)
def test_what_is_refused_is_beside_its_field_with_its_bound_and_nothing_is_lost(otto, field, text, message):
    form = typed(
        backoff__factor="2", cap_s="1 h", reason="because", note="what for", expires="at", expires_at="2026-12-01T10:00"
    )
    answer = otto.post("/policies/new/publish/", form | {field: text})
    page = answer.content.decode()
    assert answer.status_code == 422 and not PolicyVersion.objects.exists()
    slot = "refused-p-" + field.replace(".", "-").replace("_", "-")
    assert message in re.search(rf'id="{slot}".*?</div>', page)[0]
    assert f'value="{text}"' in page
    for stored in ('value="shop.deliver"', 'value="because"', 'value="what for"'):
        assert stored in page
    assert "The preview ignores them" in page  # and yet there is a picture
    assert 'class="bars"' in page


def test_what_is_refused_is_drawn_as_it_is_in_force(vera):
    publish(backoff={"kind": "fixed", "first_delay_s": 60}, max_attempts=9)
    form = typed(begun="1", max_attempts="abc", backoff__kind="fixed", backoff__first_delay_s="-1")
    text = text_of(vera.post("/policies/webhooks/preview/", form, headers=HTMX))
    assert "The preview uses the values of v1 for them." in text
    assert "always 1 min" in text and "9 attempts; gives up" in text


def test_all_that_is_wrong_is_shown_at_once_also_while_typing(vera):
    form = typed(max_attempts="0", cap_s="never", **{"class.error": "ValueError", "class.as": "sometimes"})
    part = vera.post("/policies/new/preview/", form, headers=HTMX).content.decode()
    refused = set(re.findall(r'id="(refused-[\w-]+)" data-refusals hx-swap-oob="morph"><p', part))
    assert refused == {"refused-p-max-attempts", "refused-p-cap-s", "refused-p-classes"}


def test_a_match_that_another_policy_has_is_refused_with_its_name(otto):
    publish("first", match=MATCH)
    answer = otto.post("/policies/new/publish/", typed(name="second"))
    assert answer.status_code == 422
    assert "first" in re.search(r'id="refused-p-match-task".*?</div>', answer.content.decode())[0]
    assert not PolicyVersion.objects.filter(name="second").exists()


def test_a_new_policy_under_a_name_that_is_in_force_is_refused_beside_the_name(otto):
    publish()
    answer = otto.post("/policies/new/publish/", typed(match__task="another"))
    assert answer.status_code == 409 and PolicyVersion.objects.count() == 1
    assert "is already in force" in re.search(r'id="refused-p-name".*?</div>', answer.content.decode())[0]


def test_the_name_of_a_page_is_refused(otto):
    answer = otto.post("/policies/new/publish/", typed(name="new"))
    assert (
        answer.status_code == 422
        and "refusal" in re.search(r'id="refused-p-name".*?</div>', answer.content.decode())[0]
    )


def test_publishing_puts_it_in_force_with_its_reason_and_its_end_and_offers_the_way_back(otto):
    begun = timezone.now()
    answer = otto.post(
        "/policies/new/publish/", typed(mode="enforce", reason="the partner asked", note="outages", expires="4h")
    )
    assert answer.status_code == 302 and answer["Location"] == "/policies/webhooks/"
    made = PolicyVersion.objects.get()
    assert (made.version, made.mode, made.reason, made.document["note"]) == (
        1,
        "enforce",
        "the partner asked",
        "outages",
    )
    assert abs(made.expires_at - begun - timedelta(hours=4)) < timedelta(minutes=1)
    text = text_of(otto.get(answer["Location"]))
    assert "Published webhooks v1. Decisions are applied" in text and "Undo" in text
    assert AuditEvent.objects.filter(actor="otto", act="policy.publish", allowed=True).exists()


def test_a_viewer_tries_out_and_cannot_publish(vera):
    publish()
    page = vera.get("/policies/webhooks/").content.decode()
    assert "Publishing needs the role operator" in page and ">Publish v2" not in page
    assert vera.post("/policies/webhooks/publish/", typed(begun="1")).status_code == 403
    assert PolicyVersion.objects.count() == 1


def test_an_operator_of_one_source_is_refused_what_matches_every_source(otto):
    answer = otto.post("/policies/new/publish/", typed(match__source="*"))
    assert answer.status_code == 403 and "operator on every source" in text_of(answer)
    assert not PolicyVersion.objects.exists()


# --- a stale edit ------------------------------------------------------------------------------------------------


def test_a_stale_edit_is_refused_with_the_difference_and_goes_on_on_request(otto):
    publish(max_attempts=6, cap_s=300)
    publish(max_attempts=6, cap_s=900, exhausted="escalate")  # somebody else, meanwhile
    form = typed(begun="1", max_attempts="9", cap_s="5 min", reason="mine")
    answer = otto.post("/policies/webhooks/publish/", form)
    text = text_of(answer)
    assert answer.status_code == 409 and PolicyVersion.objects.count() == 2
    assert "Max delay 5 min 15 min 5 min" in text  # begun from, in force, yours
    assert "Max attempts 6 6 9" in text
    page = answer.content.decode()
    assert 'name="begun" value="2"' in page and 'value="mine"' in page and 'value="9"' in page
    assert otto.post("/policies/webhooks/publish/", form | {"begun": "2"}).status_code == 302
    assert PolicyVersion.objects.get(version=3).document["cap_s"] == 300


def test_a_stale_edit_takes_over_what_it_did_not_change(otto):
    publish(max_attempts=6, cap_s=300, backoff={"kind": "exponential", "first_delay_s": 5}, jitter={"kind": "full"})
    publish(max_attempts=6, cap_s=900, backoff={"kind": "exponential", "first_delay_s": 5}, jitter={"kind": "full"})
    form = typed(begun="2", was="1", max_attempts="9", cap_s="5 min", step="merge")
    page = otto.post("/policies/webhooks/preview/", form).content.decode()
    assert 'name="max_attempts" value="9"' in page and 'name="cap_s" value="15 min"' in page


def test_an_edit_of_what_was_withdrawn_meanwhile_is_not_lost(otto):
    publish()
    policies.withdraw(ENGINE, "webhooks", expected_version=1)
    answer = otto.post("/policies/webhooks/publish/", typed(begun="1", max_attempts="9"))
    assert answer.status_code == 409 and 'value="9"' in answer.content.decode()


# --- the history -------------------------------------------------------------------------------------------------


def test_the_history_shows_what_each_version_changed_and_puts_one_back(otto):
    publish(max_attempts=6)
    publish(max_attempts=8, cap_s=600)
    text = text_of(otto.get("/policies/webhooks/versions/"))
    assert "Max attempts 6 8" in text and "Max delay – 10 min" in text and "v2 is observed only." in text
    answer = otto.post("/policies/webhooks/versions/1/put-back/", {"begun": "2", "reason": "it was right"})
    assert answer.status_code == 302
    made = PolicyVersion.objects.get(version=3)
    assert made.is_published and made.document["max_attempts"] == 6 and made.reason.endswith("it was right")


def test_what_is_put_back_over_a_newer_version_is_refused_with_a_sentence(otto):
    for attempts in (6, 7, 8):
        publish(max_attempts=attempts)
    otto.post("/policies/webhooks/versions/1/put-back/", {"begun": "2"})
    assert PolicyVersion.objects.count() == 3
    assert "Nothing was changed" in text_of(otto.get("/policies/webhooks/versions/"))


def test_two_versions_are_compared_field_by_field(vera):
    publish(max_attempts=6)
    publish(max_attempts=8)
    text = text_of(vera.get("/policies/webhooks/versions/?left=1&right=2"))
    assert "v1 and v2" in text and "Max attempts 6 8" in text
    assert vera.get("/policies/webhooks/versions/?left=1&right=99").status_code == 404


def test_a_policy_that_was_withdrawn_leads_to_its_history_and_can_be_put_back(otto):
    publish()
    otto.post("/policies/webhooks/withdraw/", {"begun": "1", "reason": "no longer"})
    assert otto.get("/policies/webhooks/")["Location"] == "/policies/webhooks/versions/"
    assert "Withdrawn: no version is in force" in text_of(otto.get("/policies/webhooks/versions/"))
    otto.post("/policies/webhooks/versions/1/put-back/", {"begun": "0"})
    assert PolicyVersion.objects.get(is_published=True).version == 2


# --- stored failures ---------------------------------------------------------------------------------------------


def test_the_backtest_shows_what_would_have_become_of_stored_failures(vera):
    bury(3)
    part = vera.post("/policies/new/backtest/", typed(), headers=HTMX)
    assert "3 matching jobs, 3 died." in text_of(part)


@pytest.mark.parametrize(
    ("lasted", "warning"), [(0, ""), (3, "Retries 2 → 3 (1.5×)."), (20, "Retries 2 → 9 (4.5×).")], ids=str
)
def test_a_policy_that_would_have_retried_more_than_happened_warns_above_the_comparison(vera, lasted, warning):
    now = timezone.now()
    began = now - timedelta(hours=2)
    of = group("TimeoutError")
    (failure,) = bury(1, group=of, failed_at=began)
    for n in range(3):
        at = began + timedelta(seconds=n)
        Attempt.objects.create(
            failure=failure, run=1, attempt=n + 1, kind="exception" if n == 2 else "retry", job_id="j",
            error_type="TimeoutError", ended_at=at, received_at=at,
        )  # fmt: skip
    for minute in range(lasted):
        at = began.replace(second=0, microsecond=0) + timedelta(minutes=minute)
        GroupCounter.objects.create(group=of, step=60, at=at, failed=1)
    edited = typed(max_attempts="10", backoff__kind="fixed", backoff__first_delay_s="1 min", jitter__kind="none")
    part = vera.post("/policies/new/backtest/", edited, headers=HTMX).content.decode()
    shown = re.search(r'<div id="more-retries".*?</div>', part, re.S)[0]
    assert 'hx-swap-oob="morph"' in shown and warning in shown and ("Retries " in shown) == bool(warning)
    assert ("of the jobs in the backtest than actually happened" in shown) == bool(warning)
    page = vera.post("/policies/new/preview/", edited).content.decode()
    assert page.count('<div id="more-retries" aria-live="polite"></div>') == 1  # filled by the backtest


def test_a_backtest_counts_what_would_still_be_retrying_as_such(vera):
    now = timezone.now()
    of = group("TimeoutError")
    (failure,) = bury(1, group=of, failed_at=now)
    Attempt.objects.create(
        failure=failure, run=1, attempt=1, kind="exception", job_id="j", error_type="TimeoutError", ended_at=now, received_at=now
    )  # fmt: skip
    GroupCounter.objects.create(group=of, step=60, at=now.replace(second=0, microsecond=0), failed=1)
    assert "1 would still be retrying" in text_of(vera.post("/policies/new/backtest/", typed(), headers=HTMX))


def test_a_backtest_counts_nothing_of_a_source_out_of_sight(django_user_model):
    bury(3)
    eve = log_in(django_user_model, "eve", bank="viewer")
    part = eve.post("/policies/new/backtest/", typed(match__source="*"), headers=HTMX)
    assert "No matching failures." in text_of(part)


# --- where it is led to from -------------------------------------------------------------------------------------


def test_a_group_leads_to_the_policy_that_decides_about_it_else_to_a_new_one(otto):
    (job,) = bury(group=(grouped := group()))
    Group.objects.filter(pk=grouped.pk).update(representative=job)
    page = otto.get(f"/groups/{grouped.fingerprint}/").content.decode()
    link = html.unescape(re.search(r'href="(/policies/new/of/[^"]+)"', page)[1])
    assert otto.get(link)["Location"] == "/policies/new/?task=shop.deliver&source=shop"
    publish(match={"source": "shop", "queue": "webhooks"})
    assert otto.get(link)["Location"] == "/policies/webhooks/"


def test_an_attempt_leads_to_the_version_that_decided_it(vera):
    publish()
    (job,) = bury()
    now = timezone.now()
    for n, policy in ((1, "webhooks@1"), (2, "../../admin@1")):
        Attempt.objects.create(
            failure=job, run=1, attempt=n, kind="exception", policy=policy, ended_at=now, received_at=now
        )
    page = vera.get(f"/failures/{job.pk}/").content.decode()
    assert '<a href="/policies/webhooks/versions/#v1">webhooks@1</a>' in page
    assert "policy ../../admin@1" in page
    assert 'id="v1"' in vera.get("/policies/webhooks/versions/").content.decode()


def test_the_palette_finds_a_policy_by_its_name(vera):
    publish()
    assert 'data-url="/policies/webhooks/"' in vera.get("/palette/?q=webh").content.decode()
    assert "/policies/webhooks/" not in vera.get("/palette/?q=emails").content.decode()


def test_the_audit_leads_to_the_history_of_what_was_published(ann):
    ann.post("/policies/new/publish/", typed())
    assert 'href="/policies/webhooks/versions/"' in ann.get("/audit/").content.decode()
    assert "You published the policy webhooks" in text_of(ann.get("/undo/"))


def test_publishing_what_is_in_force_already_makes_no_version(otto):
    form = typed(mode="enforce")
    otto.post("/policies/new/publish/", form)
    answer = otto.post("/policies/webhooks/publish/", form | {"begun": "1"}, follow=True)
    assert "No changes from v1, which stays in force." in text_of(answer)
    assert PolicyVersion.objects.count() == 1


def test_what_failed_is_offered_while_one_types_and_nothing_out_of_sight(vera):
    bury(error_type="shop.Unpaid", task="shop.charge", group=group("shop.Unpaid"))
    bury(source="bank", error_type="bank.Secret", task="bank.hidden", queue="vault", group=group("bank.Secret"))
    page = vera.get("/policies/new/").content.decode()
    offered = re.findall(r'<option value="([^"]+)"></option>', page)
    assert {"shop.charge", "webhooks", "shop"} <= set(offered)
    assert "shop.Unpaid" in offered
    assert not [one for one in offered if "bank" in one or "vault" in one]


def test_a_search_offers_no_policy_that_is_out_of_sight(vera):
    publish()
    publish("vault", match={"source": "bank"})
    offered = vera.get("/failures/complete/", {"q": "policy:", "at": "7"}).content.decode()
    assert "webhooks" in offered and "vault" not in offered


def test_starts_that_no_one_counted_stand_beside_who_runs_the_policy(vera, watched):
    publish(poison={"crashes": 3})
    heartbeats._last_heard.clear()
    now = timezone.now()
    word = {"source": "shop", "name": "w1", "boot": "b", "at": now.timestamp(), "queues": [], "uncounted": 1_200}
    watched.hset(keys.workers("shop"), "w1", json.dumps(word))
    heartbeats.count_heartbeats(now)
    for page in ("/policies/", "/policies/webhooks/"):
        assert "1,200 jobs started uncounted: the store did not answer" in text_of(vera.get(page))


def test_a_policy_that_files_lost_jobs_is_set_by_a_tick_and_shows_which_jobs_it_did_not_keep(otto, watched):
    page = text_of(otto.get("/policies/new/"))
    assert "Lost jobs" in page
    given = typed(name="kept", match__task="shop.kept", file_lost="on")
    assert otto.post("/policies/new/publish/", given).status_code == 302
    assert PolicyVersion.objects.get(name="kept").document["file_lost"] is True
    assert "checked" in otto.get("/policies/kept/").content.decode().partition('name="file_lost"')[2][:30]
    heartbeats._last_heard.clear()
    now = timezone.now()
    word = {
        "source": "shop",
        "name": "w1",
        "boot": "b",
        "at": now.timestamp(),
        "queues": [],
        "unkept": 7,
        "unplaced": 5,
    }
    watched.hset(keys.workers("shop"), "w1", json.dumps(word))
    heartbeats.count_heartbeats(now)
    text = text_of(otto.get("/policies/kept/"))
    assert "7 jobs started without a start record" in text and "5 jobs started without a policy: queue unknown" in text


def test_what_a_poison_pill_costs_is_drawn_beside_the_herd(vera):
    publish(poison={"crashes": 2}, mode="enforce")
    text = text_of(vera.post("/policies/webhooks/preview/", typed(begun="1", poison__crashes="5"), headers=HTMX))
    assert "Quarantined after 5 crashes ; v1, in force: 2 crashes" in text
    assert "10 s 50 s 20 s" in text and "1 min 5 min 2 min" in text


def test_a_pill_that_no_one_counts_costs_without_end(vera):
    assert "a redelivered job crashes a worker each time" in text_of(
        vera.post("/policies/new/preview/", typed(), headers=HTMX)
    )


def test_the_worst_minute_of_a_budget_is_shown(vera):
    text = text_of(
        vera.post("/policies/new/preview/", typed(budget__per_minute="100", budget__burst="10"), headers=HTMX)
    )
    assert "at most 110 retries/min for all jobs" in text


def test_the_editor_warns_of_tasks_that_get_attempts_which_they_do_not_have(vera, watched):
    reports(watched, None)
    text = text_of(vera.post("/policies/new/preview/", typed(match__task="shop.*", mode="enforce"), headers=HTMX))
    assert "This gives 1 task up to 6 attempts; it has no retries now: shop.send." in text
    alone = typed(
        match__task="shop.*", mode="enforce", leaves_retries="on", concurrency__key="tenant", concurrency__limit="2"
    )
    assert "This gives" not in text_of(vera.post("/policies/new/preview/", alone, headers=HTMX))


def test_a_policy_for_a_limit_alone_is_published_without_a_word_about_retries(otto):
    form = typed(leaves_retries="on", concurrency__key="tenant", concurrency__limit="2")
    text = text_of(otto.post("/policies/new/preview/", form))
    assert "Changes no retries." in text and "The task’s code decides how often a failed job is retried" in text
    assert otto.post("/policies/new/publish/", form).status_code == 302
    document = PolicyVersion.objects.get().document
    assert document["concurrency"] == {"key": "tenant", "limit": 2} and document["retries"] is False
    assert not {"max_attempts", "backoff", "retry_after"} & document.keys()
    page = otto.get("/policies/webhooks/").content.decode()
    assert re.search(r'name="leaves_retries" value="on" checked', page)
    assert "limits only retries left to the task’s own code" in text_of(otto.get("/policies/"))


def test_an_empty_editor_does_not_run_the_lint(ann):
    """The lint reads, among much else, which groups say that their error is permanent."""
    read = []
    for address in ("/policies/new/", "/policies/new/?task=shop.deliver"):
        with CaptureQueriesContext(connection) as queries:
            assert ann.get(address).status_code == 200
        read.append(sum("%permanent%" in one["sql"] for one in queries))
    assert read == [0, 1]
