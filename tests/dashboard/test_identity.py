"""The cached user of requests that only read: no one sees another's name, no one acts with a lost role."""

from __future__ import annotations

import time

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test.utils import CaptureQueriesContext

from dashboard.web.middleware import identity
from jobs_admin.models import Role
from tests.kit.failures import bury
from tests.kit.people import log_in


@pytest.fixture(autouse=True)
def empty_cache():
    identity.forget()
    yield
    identity.forget()


def reading(connection, client, path="/failures/"):
    with CaptureQueriesContext(connection) as requested:
        assert client.get(path).status_code == 200
    return [one["sql"] for one in requested if is_from(one["sql"], "django_session", "auth_user")]


def is_from(sql: str, *tables: str) -> bool:
    """Return whether it reads one of the tables first, not the owner of what it reads."""
    return any(f'FROM "{table}"' in sql for table in tables)


def test_a_second_check_requests_neither_session_nor_user_nor_roles(vera, watched):
    from django.db import connection

    assert len(reading(connection, vera)) == 2
    with CaptureQueriesContext(connection) as requested:
        vera.get("/failures/")
    tables = ("django_session", "auth_user", "jobs_admin_role")
    assert [one["sql"] for one in requested if is_from(one["sql"], *tables)] == []


def test_after_the_moment_everything_is_queried_again(vera, watched, monkeypatch):
    from django.db import connection

    vera.get("/failures/")
    monkeypatch.setattr(identity, "REMEMBERED_S", 0.01)
    time.sleep(0.02)
    assert len(reading(connection, vera)) == 2


def test_each_page_shows_the_name_and_places_of_its_viewer(ann, vera, watched):
    for _ in range(2):
        admins, viewers = ann.get("/failures/").content.decode(), vera.get("/failures/").content.decode()
        assert "Logged in as ann" in admins and 'href="/audit/"' in admins and "vera" not in admins
        assert "Logged in as vera" in viewers and 'href="/audit/"' not in viewers and "Logged in as ann" not in viewers


def test_who_has_left_sees_nothing_more(vera, watched):
    vera.get("/failures/")
    key = vera.cookies["sessionid"].value
    vera.post("/logout/")
    vera.cookies["sessionid"] = key
    assert vera.get("/failures/").status_code == 302


def test_an_ended_session_and_an_inactive_user_see_nothing_more(vera, otto, watched):
    vera.get("/failures/"), otto.get("/failures/")
    Session.objects.get(session_key=vera.cookies["sessionid"].value).delete()
    user = get_user_model().objects.get(username="otto")
    user.is_active = False
    user.save()
    assert vera.get("/failures/").status_code == otto.get("/failures/").status_code == 302


def test_a_role_that_is_taken_away_shows_at_once_in_this_process(vera, watched):
    assert vera.get("/failures/").status_code == 200
    Role.objects.all().delete()
    assert vera.get("/failures/").status_code == 403


def test_another_process_may_take_a_role_away_and_no_act_of_this_one_believes_its_memory(otto, shop, watched):
    (failure,) = bury(1)
    otto.get("/failures/")
    Role.objects.update(role="viewer")  # tells no signal, as nothing that another process does
    assert otto.get("/failures/").status_code == 200
    assert otto.post(f"/failures/{failure.pk}/discard/", {"reason": "x"}).status_code == 403


def test_what_a_page_does_to_its_user_is_its_own(rf, ann, django_user_model):
    ann.get("/failures/")
    key = ann.cookies["sessionid"].value
    row = identity._known[key].user
    assert row.username == "ann" and "_perm_cache" not in vars(row)


def test_two_people_in_one_browser_after_each_other_are_two(client, db, django_user_model, watched):
    first = log_in(django_user_model, "first", every="admin")
    second = log_in(django_user_model, "second", every="viewer")
    first.get("/failures/")
    first.cookies["sessionid"] = second.cookies["sessionid"].value
    assert "Logged in as second" in first.get("/failures/").content.decode()
