"""A read-only desk: nothing is changed by any door, and everything can be looked at."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from jobs_admin.management.commands.token import create
from jobs_admin.models import ApiToken, AuditEvent, Replay, Role
from tests.kit.browsing import Browser
from tests.kit.failures import bury

pytestmark = pytest.mark.django_db


@pytest.fixture
def token(db):
    return create("ci", "operator")


@pytest.fixture(autouse=True)
def read_only(token, watched, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}


@pytest.fixture
def root(db):
    user = get_user_model().objects.create_superuser("root", password="correct horse battery")
    client = Browser()
    client.force_login(user)
    return client


def call(path: str, token: str, body: str = '{"q": ""}'):
    return Browser().post(
        f"/api/{path}", data=body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )


def test_djangos_own_forms_change_nothing_either_and_the_try_is_written_down(root):
    answer = root.post("/admin/jobs_admin/role/add/", {"user": 1, "source": "*", "role": "admin"})
    assert answer.status_code == 403 and b"read-only" in answer.content
    password = "correct horse battery"
    new = {"username": "eve", "password1": password, "password2": password, "usable_password": "true"}
    assert root.post("/admin/auth/user/add/", new).status_code == 403
    assert not Role.objects.exists() and not get_user_model().objects.filter(username="eve").exists()
    assert AuditEvent.objects.filter(actor="root", act="admin:jobs_admin_role_add", allowed=False).count() == 1


def test_people_come_and_go(root):
    assert root.post("/logout/").status_code == 302
    root.post("/login/", {"username": "root", "password": "correct horse battery"})
    assert root.get("/").status_code == 200


def test_a_page_previews_a_replay_and_starts_none(otto, shop):
    bury(2)
    checked = otto.post("/replays/new/", {"q": "queue:webhooks", "step": "preview"})
    assert checked.status_code == 200
    assert otto.post("/replays/new/", {"q": "queue:webhooks", "step": "start", "reason": "r"}).status_code == 403
    assert not Replay.objects.exists()


def test_a_program_previews_a_replay_and_starts_none(token, shop):
    bury(2)
    assert call("replays/preview", token).json()["matched"] == 2
    refused = call("replays", token, '{"q": "", "reason": "r"}')
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")


def test_a_program_without_a_token_hears_of_the_token_first():
    assert call("replays", "none").status_code == 401


def test_the_terminal_makes_and_revokes_no_token():
    with pytest.raises(CommandError, match="read-only"):
        call_command("token", "create", "new", "--role", "viewer")
    with pytest.raises(CommandError, match="read-only"):
        call_command("token", "revoke", "ci")
    assert ApiToken.objects.filter(revoked_at=None).count() == 1


def test_the_terminal_previews_a_replay_and_starts_none(shop, capsys):
    bury(1)
    call_command("replay", "", "--dry-run")
    assert "1 match" in capsys.readouterr().out
    with pytest.raises(CommandError, match="read-only"):
        call_command("replay", "")
    assert not Replay.objects.exists()
