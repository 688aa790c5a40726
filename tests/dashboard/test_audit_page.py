from __future__ import annotations

import json

import pytest
from django.db import transaction

from jobs_admin.db import audit
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import EVERY_SOURCE, Viewer
from tests.kit.browsing import Browser

pytestmark = pytest.mark.django_db
OTTO = Viewer("otto", {EVERY_SOURCE: "operator"})


@transaction.atomic
def acted(act="replay.start", **fields):
    return audit.record(OTTO, act, **{"object": "replay:12", "source": "shop", **fields})


def test_an_admin_sees_who_did_what_why_and_what_changed(ann):
    acted(reason="the partner is back", before={"rate": 5}, after={"rate": 50})
    text = ann.get("/audit/").content.decode()
    for word in ("otto", "replay.start", 'href="/replays/12/"', "the partner is back", "&quot;rate&quot;: 50"):
        assert word in text


def test_a_refused_act_is_marked(ann):
    acted("failure.discard", allowed=False)
    assert "refused" in ann.get("/audit/").content.decode()


def test_it_is_narrowed_by_act_and_object(ann):
    acted("replay.start")
    acted("failure.discard", object="failure:7")
    shown = ann.get("/audit/", {"act": "replay"}).content.decode()
    assert "replay.start" in shown and "failure.discard" not in shown
    assert "failure.discard" in ann.get("/audit/", {"object": "failure:7"}).content.decode()
    assert "No matching actions." in ann.get("/audit/", {"object": "failure:8"}).content.decode()


def test_next_leads_on_and_keeps_the_filter(ann):
    for n in range(60):
        acted(reason=f"reason {n:03}")
    first = ann.get("/audit/", {"act": "replay"})
    assert "reason 010" in first.content.decode() and "reason 009" not in first.content.decode()
    assert "reason 009" in ann.get("/audit/" + first.context["next_url"]).content.decode()


def test_an_admin_of_one_source_sees_what_belongs_to_it(django_user_model):
    from tests.kit.people import log_in

    acted(reason="of the shop")
    acted(reason="of another", source="other")
    text = log_in(django_user_model, "una", shop="admin").get("/audit/").content.decode()
    assert "of the shop" in text and "of another" not in text


def test_an_auditor_sees_the_audit_of_their_source_and_acts_on_nothing(django_user_model):
    from tests.kit.people import log_in

    acted(reason="of the shop")
    acted(reason="of another", source="other")
    client = log_in(django_user_model, "aud", shop="auditor")
    text = client.get("/audit/").content.decode()
    assert "of the shop" in text and "of another" not in text
    assert 'href="/audit/"' in client.get("/").content.decode() and "/sources/" not in text
    assert client.post("/alerts/silences/save/", {"source": "shop", "for": "3600"}).status_code == 403
    assert not AuditEvent.objects.filter(act="silence.create", allowed=True).exists()


def test_the_audit_is_read_by_the_role_on_every_source_beside_another_on_one():
    acted(reason="of the shop")
    acted(reason="of another", source="other")

    def find_sources(**roles: str) -> set[str]:
        viewer = Viewer("una", {EVERY_SOURCE if name == "every" else name: role for name, role in roles.items()})
        return {row.source for row in audit.list_events(viewer).rows}

    assert find_sources(every="auditor", shop="operator") == {"shop", "other"}
    assert find_sources(every="operator", other="auditor") == {"other"}
    assert find_sources(every="operator", shop="viewer") == set()


def test_the_api_exports_with_the_roles_of_the_token_and_changes_nothing(call_api):
    acted(), acted(source="bank", reason="of the bank")
    text = call_api("GET", "audit/export", role="auditor", source="shop", act="replay").getvalue().decode()
    assert [json.loads(line).get("source") for line in text.splitlines()] == ["shop", None]
    assert call_api("GET", "audit/export", role="operator").status_code == 403
    assert call_api("GET", "audit/export", role="auditor", after="-1").status_code == 422
    assert not AuditEvent.objects.filter(act="audit.export").exists()


def test_an_operator_is_shown_that_it_needs_an_admin(otto):
    assert otto.get("/audit/").status_code == 403


def test_a_stranger_gets_the_login():
    assert Browser().get("/audit/").status_code == 302


def test_hostile_text_is_shown_not_obeyed(ann):
    acted(reason="<script>alert(1)</script>", object='group:"><img src=x onerror=alert(1)>')
    text = ann.get("/audit/").content.decode()
    assert "<script>alert" not in text and "<img src=x" not in text
