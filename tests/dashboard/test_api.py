from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.urls import get_resolver

from jobs_admin.management.commands.token import create, revoke
from jobs_admin.models import Attempt, AuditEvent, Group, Replay, ReplayItem, Traceback
from tests.kit.failures import STARTED_AT, dead_emails
from tests.kit.fleet import reports
from tests.kit.searching import bury

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]


@pytest.fixture
def group():
    return Group.objects.create(
        fingerprint="v1-a", error_type="KeyError", message="<str>", first_seen=STARTED_AT, last_seen=STARTED_AT, count=3
    )


# --- who may call -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "nonsense", "é"])
def test_a_call_without_a_token_in_force_is_refused_in_one_shape(call_api, token):
    response = call_api("GET", "failures", token=token)
    assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "unauthorized"


def test_a_revoked_token_opens_nothing(call_api):
    token = create("ci", "admin")
    assert call_api("GET", "failures", token=token).status_code == 200
    revoke("ci")
    assert call_api("GET", "failures", token=token).status_code == 401


def test_a_session_does_not_open_the_api(client, django_user_model):
    client.force_login(django_user_model.objects.create_superuser("root"))
    assert client.get("/api/failures").status_code == 401


def test_a_token_of_one_source_sees_and_changes_nothing_else(call_api, group):
    (mine,), (other,) = dead_emails(group=group), dead_emails(source="bank")
    assert [i["id"] for i in call_api("GET", "failures", role="operator", source="shop").json()["items"]] == [mine.pk]
    for method, path in (("GET", f"failures/{other.pk}"), ("POST", f"failures/{other.pk}/discard")):
        body = {"reason": "r"} if method == "POST" else None
        assert call_api(method, path, body, role="operator", source="shop").status_code == 404
    assert call_api("GET", "queues", role="viewer", source="bank").json()["count"] == 1


ACTS = [
    ("POST", "failures/{f}/replay", {"reason": "r"}),
    ("POST", "failures/{f}/discard", {"reason": "r"}),
    ("POST", "failures/{f}/restore", {"reason": "r"}),
    ("PATCH", "groups/v1-a", {"note": "n"}),
    ("POST", "replays", {"q": "", "reason": "r"}),
    ("POST", "replays/preview", {"q": ""}),
    ("POST", "replays/{r}/pause", {}),
    ("POST", "replays/{r}/resume", {}),
    ("POST", "replays/{r}/cancel", {}),
    ("PATCH", "replays/{r}", {"pace": {"style": "steady", "rate": 5}}),
    ("POST", "replays/{r}/items/1/resolve", {"as": "ran"}),
    ("GET", "audit", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ACTS)
def test_a_viewers_token_changes_nothing(call_api, group, method, path, body):
    (failure,) = dead_emails(group=group)
    replay = Replay.objects.create(scope_max_id=1, actor="ann", state="running")
    response = call_api(method, path.format(f=failure.pk, r=replay.pk), body, role="viewer")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(("method", "path", "body"), [a for a in ACTS if a[0] != "GET" and "preview" not in a[1]])
def test_a_read_only_desk_changes_nothing(call_api, settings, group, method, path, body):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    response = call_api(method, path.format(f=1, r=1), body)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "read_only")


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "nothing/here", None, 404, "not_found"),
        ("GET", "failures/999", None, 404, "not_found"),
        ("GET", "failures/x", None, 422, "invalid"),
        ("GET", f"failures/{10**30}", None, 422, "invalid"),
        ("GET", "replays/999", None, 404, "not_found"),
        ("GET", "groups/v1-none", None, 404, "not_found"),
        ("DELETE", "failures", None, 405, "method_not_allowed"),
        ("PUT", "replays/1", {}, 405, "method_not_allowed"),
        ("POST", "replays", {"q": "", "raeson": "r"}, 422, "invalid"),
        ("POST", "replays", {"q": "", "pace": {"style": "steady", "rate": -1}, "reason": "r"}, 422, "bad_pace"),
        ("POST", "replays", {"reason": "no scope at all"}, 422, "invalid"),
        ("POST", "replays", {"q": "", "ids": [1], "reason": "r"}, 422, "invalid"),
        ("POST", "replays", {"ids": [], "reason": "r"}, 422, "invalid"),
        ("POST", "failures/999/replay", {"reason": "r"}, 404, "not_found"),
        ("POST", "replays/preview", [], 422, "invalid"),
    ],
)
def test_every_error_has_the_same_shape(call_api, method, path, body, status, code):
    response = call_api(method, path, body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"] and response.headers["Cache-Control"] == "no-store"


def test_a_word_of_few_errors_has_the_name_with_many_jobs_near_it(call_api):
    bury(3, error_type="KeyError", message="no refund"), bury(7, task="shop.billing.refund")
    found = call_api("GET", "failures", q="refund", limit=2).json()
    assert found["count"] == 3
    assert [(one["q"], one["count"]) for one in found["near"]] == [("task:shop.billing.refund", 7)]
    assert call_api("GET", "failures", q="refund", limit=2, after=found["next"]).json()["near"] == []
    assert call_api("GET", "failures", q="task:shop.billing.refund").json()["near"] == []


def test_what_is_no_json_is_refused(client):
    headers = {"Authorization": f"Bearer {create('ci', 'admin')}"}
    response = client.post("/api/replays", data="{", content_type="application/json", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_json")


@pytest.mark.parametrize(("name", "value"), [("limit", "0"), ("limit", "501"), ("limit", "x"), ("after", "x" * 101)])
def test_a_parameter_out_of_bounds_is_named(call_api, name, value):
    response = call_api("GET", "failures", **{name: value})
    assert (response.status_code, response.json()["error"]["field"]) == (422, name)


# --- reading ----------------------------------------------------------------------------------------------------


def test_failures_are_listed_page_by_page(call_api, group):
    dead_emails(5, group=group, priority=3), dead_emails(1, state="recovered")
    first = call_api("GET", "failures", limit=3).json()
    rest = call_api("GET", "failures", limit=3, after=first["next"]).json()
    assert [len(first["items"]), len(rest["items"]), first["count"], rest["next"]] == [3, 2, 5, None]
    assert first["items"][0]["priority_level"] == "high"
    assert first["items"][0]["fingerprint"] == "v1-a" and first["count_is_capped"] is False
    assert first["reading"].startswith("state dead")
    assert {
        "id", "source", "queue", "task", "job_id", "run", "state", "error_type", "message", "fingerprint", "attempts",
        "max_attempts", "due_at", "first_failed_at", "failed_at", "worker", "tenant", "priority", "release",
    } <= set(first["items"][0])  # fmt: skip


def test_an_unknown_qualifier_is_text_with_a_hint(call_api):
    assert "“foo:”" in call_api("GET", "failures", q="foo:bar").json()["hints"][0]


def test_a_failure_comes_with_its_runs_arguments_and_stack(call_api, group):
    stack = Traceback.objects.create(sha256="0", text="Traceback …")
    (one,) = dead_emails(group=group, args="[1]", kwargs='{"a": "***"}', headers="cut {", traceback=stack, run=2)
    replay = Replay.objects.create(scope_max_id=1, actor="ann")
    item = ReplayItem.objects.create(replay=replay, n=1, failure=one, run=2)
    for run, at in ((1, 1), (1, 2), (2, 1)):
        Attempt.objects.create(
            failure=one, run=run, attempt=at, kind="exception", job_id=f"j{run}", ended_at=STARTED_AT, received_at=STARTED_AT,
            item=item if run == 2 else None, group=group,
        )  # fmt: skip
    found = call_api("GET", f"failures/{one.pk}").json()
    assert [(r["run"], r["job_id"], r["replay"], len(r["attempts"])) for r in found["runs"]] == [
        (1, "j1", None, 2),
        (2, "j2", replay.pk, 1),
    ]
    assert [(r["by"], r["outcome"]) for r in found["runs"]] == [(None, None), ("ann", "planned")]
    assert (found["args"], found["kwargs"], found["headers"]) == ([1], {"a": "***"}, "cut {")
    assert found["traceback"] == "Traceback …" and found["url"].endswith(f"/failures/{one.pk}/")


def test_a_program_is_shown_where_changed_arguments_are_not_checked(call_api, store):
    one, another = dead_emails(2, task="shop.send")
    edit = {"patch": {"kwargs": {"order": 42}}, "accept": ["unguarded"]}
    assert call_api("GET", f"failures/{one.pk}").json()["takes"] == []
    message = "Live workers of shop report no signature of shop.send: the changed arguments are checked only when the job runs."
    assert call_api("POST", f"failures/{one.pk}/replay", edit).json()["warnings"] == [message]
    reports(store, "order, to=")
    assert call_api("GET", f"failures/{another.pk}").json()["takes"] == ["(order, to=…)"]
    assert call_api("POST", f"failures/{another.pk}/replay", edit).json()["warnings"] == []
    assert call_api("GET", f"replays/{Replay.objects.latest('pk').pk}").json()["warnings"] == []


def test_a_run_of_which_nothing_came_home_shows_who_sent_it_and_that(call_api):
    (one,) = dead_emails(run=2, state="replaying")
    replay = Replay.objects.create(scope_max_id=1, actor="ann")
    ReplayItem.objects.create(
        replay=replay, n=1, failure=one, run=2, state="uncertain", job_id="j2", sent_at=STARTED_AT
    )
    (run,) = call_api("GET", f"failures/{one.pk}").json()["runs"]
    assert (run["run"], run["replay"], run["by"], run["outcome"]) == (2, replay.pk, "ann", "uncertain")
    assert run["sent_at"] and run["attempts"] == []


def test_arguments_nested_too_deep_are_shown_as_text(call_api):
    (one,) = dead_emails(args="[" * 20_000 + "]" * 20_000)
    assert isinstance(call_api("GET", f"failures/{one.pk}").json()["args"], str)


def test_groups_and_queues_are_listed(call_api, group):
    dead_emails(3, group=group)
    (listed,) = call_api("GET", "groups", q="keyerror", order="dead").json()["items"]
    detail = call_api("GET", "groups/v1-a").json()
    assert (listed["title"], listed["dead"], listed["queues"]) == ("KeyError: <str>", 3, ["emails"])
    assert detail["by_queue"] == [{"value": "emails", "count": 3}] and detail["share_of_dead"] == 1
    (queue,) = call_api("GET", "queues").json()["items"]
    assert (queue["source"], queue["queue"], queue["dead"], queue["reachable"]) == ("shop", "emails", 3, None)


# --- acting -----------------------------------------------------------------------------------------------------


def test_a_failure_is_discarded_and_restored_with_a_record(call_api):
    (one,) = dead_emails()
    assert call_api("POST", f"failures/{one.pk}/discard", {"reason": "junk"}).json()["state"] == "discarded"
    assert call_api("POST", f"failures/{one.pk}/discard", {"reason": "junk"}).status_code == 409
    assert call_api("POST", f"failures/{one.pk}/restore", {"reason": "sorry"}).json()["state"] == "dead"
    acts = [row["act"] for row in call_api("GET", "audit").json()["items"]]
    assert acts[:2] != [] and {"failure.discard", "failure.restore"} <= set(acts)


def test_what_was_previewed_is_started_and_can_be_paused_paced_and_cancelled(call_api):
    dead_emails(4), dead_emails(2, state="retrying"), dead_emails(1, payload=False)
    seen = call_api("POST", "replays/preview", {"q": "queue:emails", "pace": {"style": "steady", "rate": 2}}).json()
    assert (seen["matched"], seen["replayable"], sum(b["count"] for b in seen["blocked"])) == (7, 4, 3)
    assert seen["by_queue"] == [{"value": "emails", "count": 4}] and seen["sample"][0]["queue"] == "emails"
    body = {"q": seen["q"], "pace": seen["pace"], "reason": "fixed", "snapshot": seen["snapshot"]}
    started = call_api("POST", "replays", body)
    assert started.status_code == 201, started.json()
    found = started.json()
    assert (found["state"], found["total"], found["counts"]["planned"]) == ("running", 4, 4)
    path = f"replays/{found['id']}"
    assert call_api("POST", f"{path}/pause", {}).json()["state"] == "paused"
    assert call_api("PATCH", path, {"pace": {"style": "steady", "rate": 9}}).json()["pace"]["rate"] == 9
    assert [item["due_at"] for item in call_api("GET", f"{path}/items").json()["items"]] == [None] * 4
    assert call_api("POST", f"{path}/resume", {"reason": "ok"}).json()["rate_now"] == 0  # nobody sends
    items = call_api("GET", f"{path}/items", limit=3).json()
    assert (len(items["items"]), items["count"], items["items"][0]["state"]) == (3, 4, "planned")
    due = [datetime.fromisoformat(item["due_at"]) for item in items["items"]]
    assert [(after - due[0]).total_seconds() for after in due] == pytest.approx([0, 1 / 9, 2 / 9], abs=0.001)
    assert call_api("GET", "replays").json()["count"] == 1
    assert call_api("POST", f"{path}/cancel", {}).json()["counts"]["cancelled"] == 4
    assert call_api("POST", f"{path}/pause", {}).status_code == 409


def test_the_second_of_two_is_shown_who_and_when(call_api):
    (one,) = dead_emails()
    first = call_api("POST", f"failures/{one.pk}/replay", {"reason": "r"})
    second = call_api("POST", f"failures/{one.pk}/replay", {"reason": "r"}, role="operator")
    assert (first.status_code, second.status_code) == (201, 409)
    answer = second.json()["error"]
    assert (answer["code"], answer["replay"], answer["by"]) == ("already_open", first.json()["id"], "token admin of *")
    assert datetime.fromisoformat(answer["since"]) > STARTED_AT


def test_the_same_idempotency_key_starts_one_replay(call_api):
    dead_emails(2)
    token, body = create("ci", "operator"), {"q": "queue:emails", "reason": "r", "idempotency_key": "k"}
    first, second = (call_api("POST", "replays", body, token=token) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"] and Replay.objects.count() == 1
    other = call_api("POST", "replays", body | {"q": "queue:webhooks"}, token=token)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    assert "Nothing was changed." in other.json()["error"]["message"]


def test_a_misspelt_option_is_refused_by_its_name(call_api):
    dead_emails(1)
    refused = call_api("POST", "replays", {"q": "queue:emails", "reason": "r", "accept_ungarded": True})
    assert refused.status_code == 422 and "accept_ungarded" in refused.json()["error"]["field"]
    assert not Replay.objects.exists()


def test_an_uncertain_item_is_settled_by_a_persons_word(call_api):
    (one,) = dead_emails(state="replaying")
    replay = Replay.objects.create(scope_max_id=1, actor="ann", state="running", total=1, uncertain=1)
    ReplayItem.objects.create(replay=replay, n=1, failure=one, run=2, state="uncertain")
    path = f"replays/{replay.pk}/items/1/resolve"
    assert call_api("POST", path, {"as": "maybe"}).status_code == 422
    assert call_api("POST", path, {"as": "ran"}).json()["state"] == "succeeded"


def test_a_group_is_resolved_noted_and_given_to_a_person(call_api, group, django_user_model):
    dead_emails(group=group)
    django_user_model.objects.create_user("ann")
    changes = {"state": "resolved", "note": "fixed\0", "assignee": "ann", "runbook_url": "https://wiki.example.com/x"}
    found = call_api("PATCH", "groups/v1-a", changes).json()
    assert (found["state"], found["assignee"], found["note"]) == ("resolved", "ann", "fixed␀")
    assert call_api("PATCH", "groups/v1-a", {"assignee": ""}).json()["assignee"] is None
    event = AuditEvent.objects.filter(act="group.change").order_by("id").first()
    assert event.before["state"] == "new" and event.after["state"] == "resolved"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"state": "new"}, "state"),
        ({"runbook_url": "javascript:alert(1)"}, "runbook_url"),
        ({"assignee": "nobody"}, "assignee"),
        ({"state": "muted", "muted_until": "2020-01-01T00:00Z"}, "muted_until"),
        ({"muted_until": (STARTED_AT + timedelta(days=1)).isoformat()}, "muted_until"),
    ],
)
def test_a_change_that_cannot_be_names_its_field(call_api, group, changes, field):
    dead_emails(group=group)
    response = call_api("PATCH", "groups/v1-a", changes)
    assert (response.status_code, response.json()["error"]["field"]) == (422, field)
    assert Group.objects.get().state == "new"


def test_a_group_of_two_sources_takes_both_roles(call_api, group):
    dead_emails(group=group), dead_emails(group=group, source="bank")
    assert call_api("PATCH", "groups/v1-a", {"note": "n"}, role="operator", source="shop").status_code == 403
    assert AuditEvent.objects.filter(act="group.change", allowed=False).exists()


def test_the_audit_is_for_admins_and_of_one_source_for_its_admin(call_api):
    (one,), (other,) = dead_emails(), dead_emails(source="bank")
    for failure in (one, other):
        call_api("POST", f"failures/{failure.pk}/discard", {"reason": "r"})
    shown = call_api("GET", "audit", role="admin", source="bank").json()
    assert {row["source"] for row in shown["items"]} == {"bank"} and shown["count"] == len(shown["items"])
    assert call_api("GET", "audit", role="operator").status_code == 403


# --- the description --------------------------------------------------------------------------------------------


def test_the_description_names_every_call_and_the_errors(call_api):
    described = call_api("GET", "openapi.json").json()
    assert {
        "/api/queues", "/api/failures", "/api/failures/{failure_id}", "/api/failures/{failure_id}/replay",
        "/api/groups/{fingerprint}", "/api/replays/preview", "/api/replays/{replay_id}/items/{n}/resolve", "/api/audit",
    } <= set(described["paths"])  # fmt: skip
    assert "409" in described["paths"]["/api/replays"]["post"]["responses"]


def test_every_address_of_the_api_declares_its_right():
    (desk,) = [p for p in get_resolver().url_patterns if p.app_name == "redrive"]
    (api,) = [p for p in desk.url_patterns if str(p.pattern) == "api/"]
    views = [p.callback for p in api.url_patterns]
    assert len(views) >= 15 and all(view.is_call and not view.login_required for view in views)
