"""An operator who manages accounts in Django's admin is not thereby allowed everything."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission

from jobs_admin.models import AuditEvent, Role
from tests.kit.browsing import Browser

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
WHEN = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}


@pytest.fixture
def keeper(django_user_model):
    """A member of staff with Django's permissions for accounts and groups, and no role."""
    user = django_user_model.objects.create_user("keeper", password=PASSWORD, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="auth"))
    client = Browser()
    client.force_login(user)
    return client


def page(name: str) -> str:
    return f"/admin/auth/user/{get_user_model().objects.get(username=name).pk}/change/"


def rights(name: str) -> tuple[bool, int, int]:
    user = get_user_model().objects.get(username=name)
    return user.is_superuser, user.groups.count(), user.user_permissions.count()


def test_no_one_makes_themselves_a_superuser(keeper):
    before, group = rights("keeper"), Group.objects.create(name="all")
    wish = {"is_superuser": "on", "groups": group.pk, "user_permissions": [1, 2], "is_active": "on", "is_staff": "on"}
    assert keeper.post(page("keeper"), {"username": "keeper", "last_name": "K", **WHEN, **wish}).status_code == 302
    assert rights("keeper") == before
    assert get_user_model().objects.get(username="keeper").last_name == "K"
    assert AuditEvent.objects.filter(act="user.change", actor="keeper").count() == 1


def test_the_rights_are_not_even_shown(keeper):
    shown = keeper.get(page("keeper")).content.decode()
    assert 'name="last_name"' in shown and 'name="is_superuser"' not in shown and 'name="groups"' not in shown


@pytest.mark.parametrize("verb", ["change", "password", "delete"])
@pytest.mark.parametrize("stronger", ["root", "amy", "gus"])
def test_who_may_do_more_is_left_alone(keeper, django_user_model, stronger, verb):
    django_user_model.objects.create_superuser("root", password=PASSWORD)
    Role.objects.create(user=django_user_model.objects.create_user("amy"), source="shop", role="viewer")
    gus = django_user_model.objects.create_user("gus")
    gus.user_permissions.set(Permission.objects.all())
    body = {"username": "taken", "password1": PASSWORD, "password2": PASSWORD, "post": "yes", **WHEN}
    address = page(stronger)
    if verb != "change":
        address = address.replace("/change/", f"/{verb}/")
    assert keeper.post(address, body).status_code == 403
    assert django_user_model.objects.filter(username=stronger).exists()


def test_groups_of_permissions_are_for_superusers(keeper):
    group = Group.objects.create(name="mine")
    assert keeper.post(f"/admin/auth/group/{group.pk}/change/", {"name": "mine", "permissions": [1]}).status_code == 403
    assert not group.permissions.exists()


def test_a_superuser_gives_rights(admin_client, django_user_model):
    django_user_model.objects.create_user("vic")
    wish = {"username": "vic", "is_superuser": "on", "is_active": "on", **WHEN}
    assert admin_client.post(page("vic"), wish).status_code == 302
    assert rights("vic")[0]
