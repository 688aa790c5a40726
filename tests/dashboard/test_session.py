from __future__ import annotations

import pytest

from tests.kit.people import PASSWORD


@pytest.fixture
def user(db, django_user_model):
    return django_user_model.objects.create_user("ann", password=PASSWORD)


def test_the_right_password_leads_to_where_one_wanted_to_go(client, user):
    answer = client.post("/login/", {"username": "ann", "password": PASSWORD, "next": "/groups/"})
    assert answer.status_code == 302 and answer["Location"] == "/groups/"


@pytest.mark.parametrize("next_", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_the_login_never_leads_to_another_site(client, user, next_):
    answer = client.post("/login/", {"username": "ann", "password": PASSWORD, "next": next_})
    assert answer["Location"] == "/"


def test_a_wrong_password_gets_a_sentence(client, user):
    answer = client.post("/login/", {"username": "ann", "password": "wrong"})
    assert answer.status_code == 200 and b"Wrong username or password" in answer.content


def test_ten_wrong_passwords_lock_the_name_and_show_for_how_long(client, user):
    answers = [client.post("/login/", {"username": "ann", "password": "wrong"}) for _ in range(11)]
    assert answers[-1].status_code == 429 and b"locked for 15 minutes" in answers[-1].content
    right = client.post("/login/", {"username": "ann", "password": PASSWORD})
    assert right.status_code == 429


def test_leaving_is_a_post_and_ends_the_session(client, user):
    client.force_login(user)
    assert client.get("/logout/").status_code == 405
    client.post("/logout/")
    assert client.get("/").status_code == 302


def test_a_name_of_markup_is_shown_as_text(client, db, django_user_model):
    client.force_login(django_user_model.objects.create_superuser("<b>ann", password=PASSWORD))
    assert b"<b>ann" not in client.get("/groups/").content


def test_another_password_ends_every_session_of_the_person(client, user):
    user.redrive_roles.create(source="*", role="admin")
    client.post("/login/", {"username": "ann", "password": PASSWORD})
    assert client.get("/groups/").status_code == 200
    user.set_password("another-" + PASSWORD)
    user.save()
    assert client.get("/groups/")["Location"] == "/login/?next=/groups/"
