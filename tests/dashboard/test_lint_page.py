"""The page of lint and its call: findings with their evidence, the check, and four ways of having nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.lint import GROWTH
from jobs_admin.core.lint.configuration import App, Configuration, RetryCall, Task, document
from jobs_admin.core.lint.options import FoundOptions, Options, SampledQueue
from jobs_admin.core.lint.options import document as in_text
from jobs_admin.core.policy import document as normal_form
from jobs_admin.core.policy import parse
from jobs_admin.models import PolicyVersion, Worker
from tests.kit.pages import text_of
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]

HOSTILE = "a<script>x</script>\u202e"
SOUND = Task(
    "shop.mail",
    "emails",
    max_retries=8,
    autoretry_for=("smtplib.SMTPException",),
    retry_backoff=5,
    retry_backoff_max=300,
)
FIXED = Task("shop.hook", "webhooks", max_retries=9, calls=(RetryCall("self.retry(countdown=60)", "60"),))


@pytest.fixture
def fleet(watched):
    """Report the configuration of a worker of the shop."""

    def report(*tasks: Task, ago=0.0, digest="0" * 32, name="w1", source="shop"):
        seen = timezone.now() - timezone.timedelta(seconds=ago)
        message = {"source": source, "name": name, "at": seen.timestamp(), "mode": "enforce", "configuration": digest}
        watched.hset(keys.workers(source), name, json.dumps(message))
        watched.set(
            keys.configuration(source, digest), document(Configuration(source, App("redis", "m", 3600), tasks=tasks))
        )
        Worker.objects.create(source=source, name=name, boot="1", seen_at=seen)

    return report


def publish(name: str = "emails", source: str = "shop") -> None:
    policy = parse({"name": name, "match": {"source": source, "task": "x"}, "backoff": {"kind": "fixed", "first_delay_s": 90}, "max_attempts": 9,
                    "classes": [{"error": "ValueError", "as": "permanent"}]})  # fmt: skip
    PolicyVersion.objects.create(
        version=1, document=normal_form(policy), published_at=timezone.now(), published_by="ann"
    )


def test_a_finding_is_shown_with_evidence_quote_fix_and_source(ann, fleet):
    fleet(SOUND, FIXED)
    text = text_of(ann.get("/policies/lint/"))
    assert "2 tasks of 1 live worker, " in text
    assert re.search(
        r"Findings .* high 1 .*Retries without exponential backoff high shop · shop\.hook Every wait is the same: 1 min\.",
        text,
    )
    assert "self.retry(countdown=60), max_retries=9" in text
    assert "Fix Set retry_backoff" in text and "CWE-770, CWE-400" in text


def test_the_check_shows_its_verdicts_and_counts_by_kind(ann, fleet):
    fleet(SOUND, FIXED, Task("shop.plain", "emails"))
    text = text_of(ann.get("/policies/lint/"))
    assert "Failed: 1 of 2 retry configurations break the rule." in text
    assert re.search(r"pass 1 fail 1 not applicable 1 cannot tell 0 exponential 1 fixed 1", text)
    assert text.index("Every wait is the same") < text.index("Waits at least double (5 s, 10 s")
    assert "Not applicable: 1" in text and "Not retried: no autoretry_for" in text


def test_where_nothing_is_wrong_it_shows_what_was_checked(ann, fleet):
    fleet(SOUND)
    page = ann.get("/policies/lint/")
    assert 'data-designed="none-found"' in page.content.decode()
    assert "No findings 1 task of 1 live worker" in text_of(page)
    assert "Passed: no retry configuration breaks the rule." in text_of(page)


def test_where_there_is_nothing_to_judge_it_shows_what_would_change_that(ann, watched):
    page = ann.get("/policies/lint/")
    assert 'data-designed="empty"' in page.content.decode()
    assert "Nothing to check yet." in text_of(page)


def test_where_no_one_lives_what_is_shown_is_called_stale(ann, fleet):
    fleet(SOUND, ago=600)
    page = ann.get("/policies/lint/")
    assert 'data-designed="stale"' in page.content.decode()
    assert "No active workers of shop. Checked with the settings last reported 10 min ago ." in text_of(page)


def test_where_the_store_is_away_policies_are_judged_and_that_is_shown(ann, watched, settings):
    publish()
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    page = ann.get("/policies/lint/")
    assert 'data-designed="unreachable"' in page.content.decode()
    assert "Only policies were checked" in text_of(page) and "policy emails Every wait is the same" in text_of(page)


def test_what_a_worker_shows_is_shown_and_never_obeyed(ann, fleet):
    fleet(Task(HOSTILE, HOSTILE, max_retries=9, calls=(RetryCall(HOSTILE, "60"),)))
    page = ann.get("/policies/lint/").content.decode()
    assert "<script>x" not in page and "\u202e" not in page and "U+202E" in page


def test_a_rule_that_is_broken_in_many_places_is_cut_and_counted(ann, fleet):
    many = [Task(f"t{n:03}", "q", max_retries=9, calls=FIXED.calls) for n in range(300)]
    fleet(*many)
    text = text_of(ann.get("/policies/lint/"))
    assert "and 275 more places" in text and "and 100 more: python3 manage.py policies lint --json lists all" in text


def test_findings_of_sources_out_of_sight_are_not_shown(vera, fleet):
    fleet(FIXED)
    fleet(Task("bank.secret", "vault", max_retries=9, calls=FIXED.calls), source="bank", name="b1", digest="1" * 32)
    publish("vault", source="bank")
    text = text_of(vera.get("/policies/lint/"))
    assert "shop.hook" in text and "bank" not in text and "vault" not in text


def test_the_call_answers_as_the_command_does(call_api, fleet):
    fleet(SOUND, FIXED)
    publish()
    answer = call_api("GET", "policies/lint", role="viewer").json()
    assert (answer["counts"], answer["policies"], answer["tasks"], answer["workers"]) == (
        {"high": 2, "medium": 0, "low": 1},
        1,
        2,
        1,
    )
    first = answer["findings"][1]
    assert first["id"] == GROWTH and first["where"] == "shop · shop.hook"
    assert first["at"] == {"source": "shop", "queue": "webhooks", "task": "shop.hook", "policy": ""}
    assert answer["check"]["kinds"] == {"exponential": 1, "fixed": 2}
    assert [one["verdict"] for one in answer["check"]["verdicts"]] == ["fail", "fail", "pass"]
    assert answer["reservations"] == []


LYING = Options(
    "hooks", "hook", '{"attempts": 3, "removeOnFail": true}', attempts=3, keeps=0, jobs=2, sample_size=9, example="42"
)


def lie(store, *options: Options, source="shop", ago=0.0):
    some = FoundOptions(source, timezone.now().timestamp() - ago, options, (SampledQueue("hooks", 9, 45_000, 3),))
    store.set(keys.options(source), in_text(some))


def test_options_of_jobs_that_lie_in_queues_are_quoted_with_how_many_have_them(ann, watched, settings):
    lie(watched, LYING)
    text = text_of(ann.get("/policies/lint/"))
    assert "1 set of options of 9 queued jobs, " in text
    assert "Retries are immediate. 2 of 9 jobs checked in hooks, latest 42." in text
    assert "Dead jobs are deleted." in text and LYING.quoted in text


def test_what_was_in_queues_a_while_ago_is_called_stale_and_names_are_never_obeyed(ann, watched):
    lie(watched, replace(LYING, task=HOSTILE, quoted=HOSTILE, example=HOSTILE), ago=3600)
    page = ann.get("/policies/lint/")
    assert "Queued jobs of shop were last checked 1 h ago" in text_of(page)
    assert "<script>x" not in page.content.decode() and "\u202e" not in page.content.decode()


def test_queues_of_sources_out_of_sight_are_not_shown(vera, watched):
    lie(watched, LYING, source="bank")
    assert "hooks" not in text_of(vera.get("/policies/lint/"))


def test_the_call_enumerates_options_and_shows_how_many_jobs_were_checked(call_api, watched):
    lie(watched, LYING)
    answer = call_api("GET", "policies/lint", role="viewer").json()
    assert answer["options"] == [
        {"source": "shop", "queue": "hooks", "task": "hook", "quoted": LYING.quoted, "jobs": 2, "looked_at": 9, "in_queue": 45_000, "example": "42"}
    ]  # fmt: skip
    assert answer["reservations"] == [
        "9 of 45,000 jobs in the queues of shop were checked: the latest, and others in turn."
    ]
