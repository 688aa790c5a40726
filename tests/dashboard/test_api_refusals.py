"""Every refusal of the API has one shape, and one of a changing call is written down."""

from __future__ import annotations

import pytest

from jobs_admin import failures
from jobs_admin.models import AuditEvent, Replay
from tests.kit.failures import dead_emails

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]


def refused():
    return list(AuditEvent.objects.filter(allowed=False).values_list("actor", "act", "source"))


@pytest.fixture
def replay():
    return Replay.objects.create(scope_max_id=0, actor="ann")


def test_a_changing_call_above_the_tokens_role_is_written_down(call_api):
    [failure] = dead_emails()
    assert call_api("POST", f"failures/{failure.pk}/discard", {}, role="viewer").status_code == 403
    assert refused() == [("token viewer of *", "api:discard_failure", "")]


def test_a_call_to_read_above_the_tokens_role_is_not(call_api):
    assert call_api("GET", "audit", role="viewer").status_code == 403
    assert refused() == []


def test_a_changing_call_to_a_read_only_desk_is_written_down(call_api, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    [failure] = dead_emails()
    answer = call_api("POST", f"failures/{failure.pk}/discard", {}, role="operator")
    assert answer.json()["error"]["code"] == "read_only"
    assert refused() == [("token operator of *", "api:discard_failure", "")]


def test_what_breaks_is_shown_in_the_same_shape_and_logged(call_api, monkeypatch, caplog):
    def break_down(*arguments, **more):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(failures, "search", break_down)
    answer = call_api("GET", "failures")
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "failed"
    assert "secret" not in answer.content.decode() and "ZeroDivisionError" in caplog.text


def test_an_item_that_is_not_there_is_not_found(call_api, replay):
    answer = call_api("POST", f"replays/{replay.pk}/items/999/resolve", {"as": "ran"})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_a_state_that_no_item_can_have_is_refused_by_name(call_api, replay):
    answer = call_api("GET", f"replays/{replay.pk}/items", state="zzz")
    assert answer.status_code == 422 and answer.json()["error"]["field"] == "state"
    assert call_api("GET", f"replays/{replay.pk}/items", state="planned").status_code == 200


@pytest.mark.parametrize("call", ["failures", "groups", "replays", "audit", "queues"])
def test_a_cursor_that_is_none_is_refused_and_not_page_one(call_api, call):
    answer = call_api("GET", call, after="zzz")
    assert answer.status_code == 422 and answer.json()["error"]["field"] == "after"
    assert call_api("GET", call, after="").status_code == 200


def test_the_description_of_all_calls_needs_a_token(call_api):
    assert call_api("GET", "openapi.json", token="").status_code == 401
    assert call_api("GET", "openapi.json", role="viewer").json()["openapi"].startswith("3.")


@pytest.mark.parametrize("path", ["", "nope", "failures/nope/more"])
def test_an_unknown_address_is_not_found_in_the_same_shape(call_api, path):
    answer = call_api("GET", path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_without_a_token_no_one_hears_which_methods_there_are(call_api):
    answer = call_api("DELETE", "failures", token="")
    assert answer.status_code == 401 and "Allow" not in answer.headers
    assert call_api("DELETE", "failures").status_code == 405


def test_queues_come_page_by_page(call_api):
    dead_emails(queue="a"), dead_emails(2, queue="b")
    first = call_api("GET", "queues", limit=1).json()
    assert ([row["queue"] for row in first["items"]], first["count"]) == (["b"], 2)
    second = call_api("GET", "queues", limit=1, after=first["next"]).json()
    assert ([row["queue"] for row in second["items"]], second["next"]) == (["a"], None)
