"""Policies from a terminal."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from jobs_admin import policies
from jobs_admin.models import AuditEvent, PolicyVersion
from jobs_admin.models.access import OPERATOR, Viewer
from tests.kit.fleet import reports

pytestmark = pytest.mark.django_db

ANN = Viewer("ann", {"*": OPERATOR})
EMAILS = {"match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4}


def run(*words):
    out = io.StringIO()
    call_command("policies", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.fixture
def publish(tmp_path):
    def published(*options, name="emails", **fields):
        file = tmp_path / "policy.json"
        file.write_text(json.dumps(EMAILS | fields))
        return run("publish", name, str(file), *options)

    return published


def refusal(act, *args, **fields):
    with pytest.raises(CommandError) as refused:
        act(*args, **fields)
    return str(refused.value)


def test_a_policy_is_published_from_a_file_and_audited_under_the_login(publish):
    assert "emails@1 is in force" in publish("--reason", "first")
    event = AuditEvent.objects.get()
    assert event.actor.endswith("(terminal)") and event.reason == "first"


def test_publishing_reports_which_tasks_get_attempts_that_they_do_not_have(store, tmp_path):
    reports(store, None)
    file, err = tmp_path / "policy.json", io.StringIO()
    file.write_text(json.dumps({"match": {"task": "shop.send"}, "mode": "enforce", "budget": {"per_minute": 30}}))
    call_command("policies", "publish", "brief", str(file), stdout=io.StringIO(), stderr=err)
    assert "note: This gives 1 task up to 5 attempts; it has no retries now: shop.send." in err.getvalue()


def test_what_is_published_again_changes_nothing(publish):
    publish()
    assert "Nothing was changed" in publish() and PolicyVersion.objects.count() == 1


def test_another_version_takes_its_place_only_when_it_is_named(publish):
    publish()
    assert "cap_s: was None, is None, yours 60" in refusal(publish, cap_s=60)
    assert "emails@2" in publish("--expected-version", "1", cap_s=60)
    assert "emails@3" in publish("--expected-version", "now", cap_s=90)


def test_all_that_is_wrong_is_reported_and_nothing_is_published(publish):
    error = refusal(publish, max_attempts=10**9, cap_s=-1)
    assert "max_attempts must be" in error and "cap_s must be" in error and "1,000" in error
    assert not PolicyVersion.objects.exists()


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "x").write_text("{")
    assert "is not JSON" in refusal(run, "publish", "emails", str(tmp_path / "x"))
    assert "cannot be read" in refusal(run, "publish", "emails", str(tmp_path / "none"))


def test_what_show_reports_can_be_published(publish, tmp_path):
    publish()
    (tmp_path / "copy.json").write_text(run("show", "emails"))
    assert "No changes from" in run("publish", "emails", str(tmp_path / "copy.json"))


def test_a_former_version_is_shown_and_put_back(publish):
    publish()
    publish("--expected-version", "1", max_attempts=9)
    assert json.loads(run("show", "emails", "--version", "1"))["max_attempts"] == 4
    assert "emails@3" in run("restore", "emails", "1")
    assert policies.get(ANN, "emails").policy.max_attempts == 4
    assert "emails@4" in run("put-back", "emails", "2"), "the name in earlier versions"


def test_a_policy_is_withdrawn(publish):
    publish()
    assert "withdrawn" in run("withdraw", "emails")
    assert "not found" in refusal(run, "withdraw", "emails")
    assert "Policy emails not found" in refusal(run, "show", "emails")


def test_the_list_has_each_policy_with_its_workers(publish):
    publish()
    heading, line = run("list").strip().split("\n")
    assert heading.startswith("POLICY") and line.split()[:5] == ["emails@1", "observe", "shop", "*", "shop.mail"]
