"""Django's admin: reports that could not be filed, and the audit of who may log in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Group as AccountGroup
from django.contrib.auth.models import Permission
from django.utils import timezone

from jobs_admin.db import audit
from jobs_admin.models import AuditEvent, Failure, Group, Unfiled

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)
UNFILED = "/admin/jobs_admin/unfiled/"


@pytest.fixture
def report():
    return Unfiled.objects.create(entry_id="1-0", received_at=NOW, why="no field <kind>", body=b"sealed", size=4321)


def audit_event(act):
    return AuditEvent.objects.get(act=act)


def test_a_report_that_could_not_be_filed_reports_why_and_how_large_it_was(as_, report):
    client = as_("admin", "*")
    listed, one = (client.get(f"{UNFILED}{path}").content.decode() for path in ("", f"{report.pk}/change/"))
    assert "no field &lt;kind&gt;" in listed and "4321" in listed
    assert "no field &lt;kind&gt;" in one and "sealed" not in one and 'name="_save"' not in one
    done = client.post(UNFILED, {"action": "discard", "_selected_action": [report.pk]}, follow=True).content.decode()
    assert "1 reports deleted." in done and not Unfiled.objects.exists()
    assert audit_event("reports.discard").after["reports"] == 1


@pytest.mark.parametrize(("role", "source"), [("admin", "shop"), ("operator", "*"), ("none", "*")])
def test_reports_of_no_source_are_for_admins_of_every_source(as_, report, role, source):
    assert as_(role, source).get(UNFILED).status_code == 403


def test_an_account_that_is_made_or_changed_or_deleted_is_written_down(as_, django_user_model):
    client = as_()
    words = {"username": "eve", "password1": "correct horse battery", "password2": "correct horse battery"}
    client.post("/admin/auth/user/add/", words | {"usable_password": "true"})
    eve = django_user_model.objects.get(username="eve")
    permission = Permission.objects.get(codename="view_role")
    dates = {"date_joined_0": "2026-11-21", "date_joined_1": "02:14:00"}
    changed = {"username": "eve", "is_active": "on", "is_superuser": "on", "user_permissions": [permission.pk], **dates}
    assert client.post(f"/admin/auth/user/{eve.pk}/change/", changed).status_code == 302
    client.post(f"/admin/auth/user/{eve.pk}/password/", {**words, "usable_password": "true"})
    client.post(f"/admin/auth/user/{eve.pk}/delete/", {"post": "yes"})
    assert audit_event("user.add").object == "user:eve" and not audit_event("user.add").after["is_superuser"]
    first = AuditEvent.objects.filter(act="user.change").earliest("id")
    assert first.after["is_superuser"] and first.after["permissions"] == ["jobs_admin.view_role"]
    assert AuditEvent.objects.filter(act="user.change").count() == 2  # the second is the password, which is not told
    assert audit_event("user.delete").before["is_superuser"] and audit.verify() is None
    assert "correct horse" not in str(list(AuditEvent.objects.values()))


def test_permissions_of_a_group_of_accounts_are_written_down(as_):
    client, group = as_(), AccountGroup.objects.create(name="ops")
    permission = Permission.objects.get(codename="change_user")
    client.post(f"/admin/auth/group/{group.pk}/change/", {"name": "ops", "permissions": [permission.pk]})
    assert audit_event("account-group.change").after["permissions"] == ["auth.change_user"]
    client.post(
        "/admin/auth/group/", {"action": "delete_selected", "_selected_action": [group.pk], "post": "yes", "index": "0"}
    )
    assert audit_event("account-group.delete").object == "account-group:ops"


UNSEEN = "\u202e\u2066\x1b[31m\x9b\ufeff"


def test_what_strangers_hide_in_their_text_is_shown_as_its_number(admin_client):
    now = timezone.now()
    group = Group.objects.create(
        fingerprint="v1-h", error_type="Err", message=f"m{UNSEEN}", culprit=f"c{UNSEEN}", first_seen=now, last_seen=now
    )
    times = {"first_failed_at": now, "failed_at": now, "received_at": now}
    failure = Failure.objects.create(
        source="shop", queue=f"q{UNSEEN}", task="t", state="dead", kind="exception", job_id="j", first_job_id="j",
        error_type="Err", message=f"m{UNSEEN}", group=group, **times,
    )  # fmt: skip
    for page in ("failure/", f"failure/{failure.pk}/change/", "group/", f"group/{group.pk}/change/"):
        shown = admin_client.get(f"/admin/jobs_admin/{page}").content.decode()
        assert "⟨U+202E⟩⟨U+2066⟩⟨U+001B⟩" in shown and not set(shown) & set(UNSEEN) - set("[31m"), page


def test_a_form_sends_back_the_note_that_it_was_given(admin_client):
    now = timezone.now()
    group = Group.objects.create(fingerprint="v1-h", error_type="E", note="a\u200db", first_seen=now, last_seen=now)
    Failure.objects.create(
        source="shop", queue="q", task="t", state="dead", kind="exception", job_id="j", first_job_id="j", group=group,
        first_failed_at=now, failed_at=now, received_at=now,
    )  # fmt: skip
    assert "a\u200db</textarea>" in admin_client.get(f"/admin/jobs_admin/group/{group.pk}/change/").content.decode()
