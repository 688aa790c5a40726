"""Acts on many failures by the API and the terminal: what they change, in steps, and how it is undone."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from dashboard.failures import api as failures_api
from jobs_admin import config
from jobs_admin.management.commands import triage as triage_command
from jobs_admin.models import AuditEvent, Failure
from tests.conftest import forget_configuration
from tests.kit.failures import bury


def states() -> dict[str, int]:
    found = list(Failure.objects.values_list("state", flat=True))
    return {state: found.count(state) for state in sorted(set(found))}


def test_all_that_match_are_discarded_and_the_key_reverts_exactly_those(call_api, db):
    bury(5, queue="webhooks")
    bury(2, queue="emails")
    bury(1, queue="webhooks", state="discarded")
    body = {"act": "discard", "q": "queue:webhooks state:dead", "reason": "customer gone"}
    answer = call_api("POST", "failures/bulk", body, role="operator").json()
    key = answer.pop("key")
    assert answer == {"act": "discard", "matched": 5, "checked": 5, "changed": 5, "next": None}
    assert states() == {"dead": 2, "discarded": 6}
    undone = call_api("POST", "failures/undo", {"key": key}, role="operator").json()
    assert undone["changed"] == 5 and states() == {"dead": 7, "discarded": 1}
    again = call_api("POST", "failures/undo", {"key": key}, role="operator").json()
    assert again["changed"] == 0 and states() == {"dead": 7, "discarded": 1}


def test_those_of_given_ids_are_changed_and_the_others_are_counted(call_api, db):
    bury(2)
    bury(1, state="recovered")
    ids = sorted(Failure.objects.values_list("pk", flat=True))
    answer = call_api("POST", "failures/bulk", {"act": "discard", "failures": ids, "reason": "old"}).json()
    assert (answer["matched"], answer["changed"]) == (3, 2) and states() == {"discarded": 2, "recovered": 1}


def test_a_long_act_goes_on_by_next_and_only_for_the_token_that_began_it(call_api, db, monkeypatch):
    bury(1_100)
    monkeypatch.setattr(failures_api, "_STEP_S", 0.0)
    first = call_api("POST", "failures/bulk", {"act": "discard", "q": "state:dead", "reason": "old"}).json()
    assert first["changed"] == 500 and first["matched"] == 1_100 and first["next"]
    found, seen = first, [500]
    while found["next"]:
        found = call_api("POST", "failures/bulk/next", {"next": found["next"]}).json()
        seen.append(found["changed"])
    assert seen == [500, 1_000, 1_100] and states() == {"discarded": 1_100}
    for role, text in (("operator", first["next"]), ("admin", first["next"][:-2] + "xx")):
        stolen = call_api("POST", "failures/bulk/next", {"next": text}, role=role)
        assert stolen.status_code == 422 and "has expired or belongs to another token" in stolen.content.decode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"act": "discard", "reason": "x"}, "Give either q or failures"),
        ({"act": "discard", "q": "state:dead", "failures": [1], "reason": "x"}, "Give either q or failures"),
        ({"act": "discard", "q": "state:dead"}, "A reason is required to discard more than one job."),
        ({"act": "replay", "q": "state:dead", "reason": "x"}, "Input should be 'discard', 'restore' or 'readmit'."),
        ({"act": "discard", "q": " \t", "reason": "x"}, "The search is empty"),
    ],
)
def test_what_is_not_clear_changes_nothing(call_api, db, body, expected):
    bury(2)
    answer = call_api("POST", "failures/bulk", body)
    assert answer.status_code == 422 and expected in answer.content.decode() and states() == {"dead": 2}


def test_a_viewer_changes_nothing_and_an_operator_only_where_it_is_one(call_api, db):
    bury(2, source="shop")
    bury(3, source="bank")
    body = {"act": "discard", "q": "state:dead", "reason": "old"}
    assert call_api("POST", "failures/bulk", body, role="viewer").status_code == 403
    answer = call_api("POST", "failures/bulk", body, role="operator", source="bank").json()
    assert (answer["matched"], answer["changed"]) == (3, 3)
    assert set(Failure.objects.filter(state="dead").values_list("source", flat=True)) == {"shop"}


def test_facets_are_those_of_the_page(call_api, db):
    bury(3, queue="webhooks")
    bury(1, queue="emails")
    found = {one["field"]: one for one in call_api("GET", "failures/facets", q="state:dead").json()["facets"]}
    assert found["queue"]["values"] == [{"value": "webhooks", "count": 3}, {"value": "emails", "count": 1}]
    assert found["queue"]["counted_over"] is None


def run(*words: str, **options) -> str:
    out = io.StringIO()
    call_command("triage", *words, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


@pytest.mark.django_db
def test_the_terminal_discards_all_that_match_and_undoes_it():
    bury(4, queue="webhooks")
    bury(1, queue="emails")
    assert run("discard", "queue:webhooks", dry_run=True) == "At most 4 jobs would be changed. Nothing was changed.\n"
    with pytest.raises(CommandError, match="reason"):
        run("discard", "queue:webhooks")
    lines = run("discard", "queue:webhooks", reason="old").splitlines()
    assert lines[0] == "Discarded 4 of 4 jobs." and states() == {"dead": 1, "discarded": 4}
    assert run("undo", lines[1].split()[-1]) == "Reverted 4 of 4 jobs.\n" and states() == {"dead": 5}
    assert AuditEvent.objects.filter(act="failure.discard").get().actor.endswith("(terminal)")


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["", "  "])
def test_the_terminal_refuses_an_empty_search(query):
    bury(2)
    with pytest.raises(CommandError, match="The search is empty"):
        run("discard", query, reason="old")
    assert states() == {"dead": 2}


@pytest.mark.django_db
def test_an_act_that_is_cut_short_in_the_terminal_prints_the_key_that_undoes_it(settings, monkeypatch):
    bury(700)
    monkeypatch.setattr(triage_command, "_STEP_S", 0.0)
    errors, out = ReadOnlyAfterTheFirstLine(settings), io.StringIO()
    with pytest.raises(CommandError, match="ead-only"):
        call_command("triage", "discard", "state:dead", reason="old", stdout=out, stderr=errors)
    assert states() == {"dead": 200, "discarded": 500}
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": False}
    forget_configuration(config)
    assert run("undo", out.getvalue().split()[-1]) == "Reverted 500 of 500 jobs.\n"


class ReadOnlyAfterTheFirstLine(io.StringIO):
    def __init__(self, settings) -> None:
        super().__init__()
        self.settings = settings

    def write(self, text: str) -> int:
        self.settings.REDRIVE = self.settings.REDRIVE | {"READ_ONLY": True}
        forget_configuration(config)
        return super().write(text)


@pytest.mark.django_db
def test_restore_without_a_state_is_about_discarded_jobs():
    bury(2, queue="webhooks", state="discarded")
    bury(1, queue="webhooks")
    assert run("restore", "queue:webhooks", reason="wrong call").splitlines()[0] == "Restored 2 of 2 jobs."
    assert states() == {"dead": 3}
