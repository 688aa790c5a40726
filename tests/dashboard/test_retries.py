"""Retries that wait in a jobs table: looked at, changed, and taken back on pages and by the API."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model

from dashboard.failures import listing as failure_list
from dashboard.retries import views as retry_views
from jobs_admin import config
from jobs_admin.core.query import parse
from jobs_admin.models import ApiToken, Failure, Reschedule, Role
from jobs_admin.retries import pulling
from tests.kit.jobs_tables import OnSQLite
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db

CURVE = {
    "how": "curve",
    "kind": "exponential",
    "first_delay_s": "30 s",
    "factor": "2",
    "jitter": "none",
    "max_attempts": "",
}


@pytest.fixture
def table(settings, tmp_path, store):
    made = OnSQLite(tmp_path / "shop.db")
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.shop]\nbackend = "jobs_table"\nurl = "{made.url}"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    for n in (1, 2, 3):
        made.enqueue(f"j{n}", max_attempts=9)
        [made.fail(f"j{n}", "TimeoutError: <b>slow</b>") for _ in range(n)]
    pulling.pull("shop", "test")
    yield made
    made.close()
    config.adapter("shop").close()
    forget_configuration(config)


@pytest.fixture
def olga(client):
    user = get_user_model().objects.create_user("olga", password="x")
    Role.objects.create(user=user, source="shop", role="operator")
    client.force_login(user)
    return client


def text_of(answer):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def test_a_waiting_job_leads_to_the_page_where_that_is_changed(table, olga):
    failure = Failure.objects.get(job_id="j2")
    page = olga.get(f"/failures/{failure.pk}/").content.decode()
    assert f"/retries/reschedule/?selection={failure.pk}" in page
    assert 'href="/retries/"' in page
    checked = olga.get(f"/retries/reschedule/?selection={failure.pk}")
    assert checked.status_code == 200 and "Reschedule 1 retry?" in text_of(checked)
    assert not Reschedule.objects.exists()


@pytest.mark.parametrize(
    ("source", "is_offered"),
    [("source:shop", True), ("source:sh*", True), ("source:node", False), ("-source:shop", False)],
)
def test_when_retries_run_is_offered_where_a_source_of_the_list_is_shown(table, source, is_offered):
    assert failure_list.acts(parse(f"{source} state:retrying"), []).reschedule == is_offered


def test_what_is_selected_on_the_list_is_brought_there(table, olga):
    listed = olga.get("/failures/", {"q": "state:retrying"}).content.decode()
    assert 'formaction="/retries/reschedule/"' in listed and 'href="/retries/"' in listed
    assert "/retries/reschedule/" not in olga.get("/failures/").content.decode()
    chosen = [Failure.objects.get(job_id=name).pk for name in ("j1", "j3")]
    checked = olga.post(
        "/retries/reschedule/", {"step": "preview", "q": "state:retrying", "selection": chosen, "reason": ""}
    )
    assert "Reschedule 2 retries?" in text_of(checked) and not Reschedule.objects.exists()
    all_of_it = olga.post("/retries/reschedule/", {"step": "preview", "q": "state:retrying", "everything": "1"})
    assert "Reschedule 3 retries?" in text_of(all_of_it)


def test_all_that_wait_are_shown_before_and_after_then_changed_and_taken_back(table, olga, monkeypatch):
    checked = olga.get("/retries/reschedule/", {"q": "state:retrying"} | CURVE)
    text = text_of(checked)
    assert "Reschedule 3 retries?" in text and "3 1 90 s 2 min" in text.replace("1 min 30 s", "90 s")
    assert (
        re.search(r"Retries over time retries per [\d.]+ (ms|s|min)", text)
        and "more" not in text.partition("As a table")[2]
    )
    monkeypatch.setattr(retry_views, "MOST_ROWS", 1)
    text = text_of(olga.get("/retries/reschedule/", {"q": "state:retrying"} | CURVE))
    assert re.search(r"and \d more", text.partition("As a table")[2])
    form = dict(CURVE, q="state:retrying", highest=Failure.objects.latest("pk").pk, step="start")
    refused = olga.post("/retries/reschedule/", form)
    assert refused.status_code == 422 and "needs a reason" in text_of(refused)
    done = olga.post("/retries/reschedule/", form | {"reason": "linear is too quick"})
    planned = Reschedule.objects.get()
    assert done.status_code == 302 and done["Location"] == f"/retries/{planned.pk}/"
    assert table.row("j3", "unixepoch(scheduled_at) - unixepoch(created_at) < 100") == 1  # no page talks to a queue
    pulling.pull("shop", "test")
    detail = olga.get(f"/retries/{planned.pk}/")
    assert "3 retries rescheduled" in text_of(detail) and "linear is too quick" in text_of(detail)
    assert "waits exponential from 30 s" in text_of(olga.get("/retries/"))
    back = olga.post(f"/retries/{planned.pk}/undo/", {"reason": ""})
    assert back.status_code == 302
    pulling.pull("shop", "test")
    assert "3 retries restored" in text_of(olga.get(back["Location"]))
    again = olga.post(f"/retries/{planned.pk}/undo/", {})
    assert again.status_code == 409 and "already undone" in text_of(again)


@pytest.mark.parametrize(("changed", "text"), [
    ({"first_delay_s": "soon"}, "first_delay_s"), ({"factor": "0"}, "factor"), ({"how": "moment", "due_at": "tomorrow"}, "due_at must be"),
    ({"max_attempts": "many"}, "max_attempts must be"), ({"how": "keep"}, "Give at least one of due_at"),
])  # fmt: skip
def test_what_cannot_be_is_shown_beside_its_field_and_nothing_is_changed(table, olga, changed, text):
    answer = olga.post("/retries/reschedule/", CURVE | {"q": "", "step": "start", "reason": "x"} | changed)
    assert answer.status_code == 422 and text in text_of(answer)
    assert not Reschedule.objects.exists()


def test_without_a_search_nothing_is_meant(table, olga):
    assert "No retries selected" in text_of(olga.get("/retries/reschedule/"))
    assert "None of these jobs is waiting" in text_of(olga.get("/retries/reschedule/", {"q": "queue:nothing"}))


def test_programs_do_the_same(table, client):
    import hashlib

    ApiToken.objects.create(
        name="t", sha256=hashlib.sha256(b"secret-token").hexdigest(), role="operator", source="shop"
    )

    def call(method, path, body=None):
        more = {"data": body, "content_type": "application/json"} if body is not None else {}
        return getattr(client, method)(f"/api/{path}", headers={"Authorization": "Bearer secret-token"}, **more)

    change = {"curve": {"backoff": {"kind": "exponential", "first_delay_s": 30, "factor": 2}}, "max_attempts": 12}
    seen = call("post", "retries/preview", {"q": "state:retrying", "change": change}).json()
    assert (seen["matched"], [line["attempts"] for line in seen["lines"]]) == (3, [1, 2, 3])
    assert round(seen["lines"][2]["after_s"][0]) == 120
    made = call("post", "retries", {"q": "state:retrying", "change": change, "reason": "x", "highest": seen["highest"]})
    assert made.status_code == 201 and made.json()["state"] == "planned"
    pulling.pull("shop", "test")
    one = call("get", f"retries/{made.json()['id']}").json()
    assert (one["state"], one["changed"], one["change"]["max_attempts"]) == ("done", 3, 12)
    assert call("get", "retries").json()["count"] == 1
    assert call("post", f"retries/{one['id']}/undo", {}).status_code == 201
    refused = call("post", "retries", {"q": "", "change": {"due_at": "tomorrow"}})
    assert refused.status_code == 422 and refused.json()["error"]["field"] == "due_at"
    assert call("get", "retries/99999").status_code == 404
