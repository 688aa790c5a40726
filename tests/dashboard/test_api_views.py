from __future__ import annotations

import csv
import json

import pytest

from jobs_admin.management.commands.token import create
from jobs_admin.models import ApiToken, AuditEvent, Failure, SavedView
from tests.kit.failures import bury

pytestmark = pytest.mark.django_db


@pytest.fixture
def call_api(client):
    """A call by a program with a role."""

    def call(method, path, body=None, *, role="operator", source="*", **query):
        ApiToken.objects.filter(name=f"{role} of {source}").delete()
        headers = {"Authorization": f"Bearer {create(f'{role} of {source}', role, source)}"}
        content = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return client.generic(method, f"/api/{path}", **content, headers=headers, query_params=query or None)

    return call


def test_a_program_saves_changes_reads_and_deletes_a_view(call_api):
    bury(2)
    made = call_api("POST", "views", {"name": "Dead now", "q": "state:dead age:<1h"})
    assert made.status_code == 201
    view = made.json()
    assert (view["q"], view["count"], view["owner"], view["is_shared"]) == ("state:dead age:<1h", 2, None, True)
    assert call_api("PATCH", f"views/{view['id']}", {"q": "state:gone"}).json()["count"] == 0
    (listed,) = call_api("GET", "views", role="viewer").json()["items"]
    assert listed["q"] == "state:gone" and listed["url"].endswith("/failures/?q=state%3Agone")
    assert call_api("DELETE", f"views/{view['id']}").status_code == 204
    assert not SavedView.objects.exists() and AuditEvent.objects.filter(act__startswith="view.").count() == 3


def test_a_viewer_saves_no_view_and_a_name_is_taken_once(call_api):
    assert call_api("POST", "views", {"name": "A"}, role="viewer").status_code == 403
    call_api("POST", "views", {"name": "A"})
    answer = call_api("POST", "views", {"name": "A"})
    assert answer.status_code == 409 and answer.json()["error"] | {"message": ""} == {
        "code": "taken",
        "message": "",
        "field": "name",
    }


def test_somebodys_own_view_is_not_there_for_a_program(call_api, django_user_model):
    own = SavedView.objects.create(name="Mine", query="x", owner=django_user_model.objects.create_user("ann"))
    assert call_api("GET", "views").json()["items"] == []
    assert call_api("DELETE", f"views/{own.pk}").status_code == 404
    own.is_shared = True
    own.save()
    assert call_api("DELETE", f"views/{own.pk}").status_code == 403


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_search_is_exported_by_a_get_that_changes_nothing(call_api, form):
    bury(3)
    bury(1, source="bank")
    answer = call_api("GET", "failures/export", role="viewer", source="shop", q="state:dead", form=form)
    text = answer.getvalue().decode()
    assert answer.status_code == 200 and text.count("shop.deliver") == 3 and "bank" not in text
    some = call_api("GET", "failures/export", role="viewer", form=form, columns="task, id").getvalue().decode()
    assert some.startswith({"jsonl": '{"id":', "csv": "id,source,queue,task\r\n"}[form])
    if form == "csv":
        few = call_api("GET", "failures/export", role="viewer", form=form, columns="task").getvalue().decode()
        assert {len(row) for row in csv.reader(few.splitlines())} == {4}
    assert not AuditEvent.objects.exclude(act__startswith="token").exists()


def test_an_unknown_form_and_a_caller_without_a_token_are_refused(call_api, client):
    assert call_api("GET", "failures/export", form="xls").status_code == 422
    refused = call_api("GET", "failures/export", columns="id,nothing")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "columns")
    assert client.get("/api/failures/export").status_code == 401


def test_a_quarantined_job_shows_its_crashes_and_is_readmitted_once(call_api):
    crash = {"how": "killed", "at": 999.0, "seen_at": 1000.0, "worker": "w1@a", "said": "signal 9", "alone": True}
    bury(1, state="quarantined", crashes=json.dumps([crash]))
    pk = Failure.objects.get().pk
    (reported,) = call_api("GET", f"failures/{pk}", role="viewer").json()["crashes"]
    assert reported == {
        "how": "killed",
        "seen_at": "1970-01-01T00:16:40Z",
        "worker": "w1@a",
        "said": "signal 9",
        "alone": True,
        "beside": 0,
    }
    assert call_api("POST", f"failures/{pk}/readmit", {"reason": "fixed"}, role="viewer").status_code == 403
    assert call_api("POST", f"failures/{pk}/readmit", {"reason": "fixed"}).json()["state"] == "dead"
    assert call_api("POST", f"failures/{pk}/readmit", {}).status_code == 409
