from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model

from demo import control
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import Role

pytestmark = [pytest.mark.server, pytest.mark.django_db]


@pytest.fixture
def demo(store, settings, service):
    """A desk with the demo: its broker, and its partner."""
    settings.REDRIVE_DEMO_BROKER_URL = settings.REDRIVE_REDIS_URL
    settings.REDRIVE_DEMO_PARTNER_URL = service.url
    control.broker.cache_clear()
    yield service
    control.broker.cache_clear()


def person(client, role, source="shop"):
    user = get_user_model().objects.create_user(role)
    Role.objects.create(user=user, source=source, role=role)
    client.force_login(user)
    return client


def test_the_partner_is_broken_and_mended(client, demo):
    person(client, "operator")
    client.post("/demo/partner/", {"mode": "outage"})
    assert control.partner(demo.url)["mode"] == "outage"
    assert "answers 503 or cuts the connection" in client.get("/demo/").content.decode()
    client.post("/demo/partner/", {"mode": "well"})
    assert control.partner(demo.url)["mode"] == "well"


def test_the_load_is_set(client, demo, store):
    person(client, "operator")
    client.post("/demo/load/", {"rate": "25"})
    assert control.load(store).rate == 25


def test_a_change_is_audited_and_without_htmx_leads_back_to_the_page(client, demo):
    person(client, "operator")
    answer = client.post("/demo/partner/", {"mode": "slow", "delay_s": "3"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/demo/")
    event = AuditEvent.objects.get()
    assert (event.act, event.object, event.source) == ("demo.partner", "slow", "shop")


def test_htmx_gets_the_part_and_the_message(client, demo):
    person(client, "operator")
    body = client.post("/demo/partner/", {"mode": "slow"}, headers={"HX-Request": "true"}).content.decode()
    assert body.lstrip().startswith('<div id="demo"')
    assert "answers later than the shop waits" in body


@pytest.mark.parametrize(
    ("path", "wish"),
    [("/demo/partner/", {"mode": "sulking"}), ("/demo/load/", {"rate": "fast"}), ("/demo/load/", {"rate": "-3"})],
)
def test_nonsense_is_refused_in_words_and_not_audited(client, demo, path, wish):
    person(client, "operator")
    answer = client.post(path, wish, follow=True)
    assert "Nothing was changed" in answer.content.decode()
    assert not AuditEvent.objects.exists()


def test_a_viewer_sees_and_changes_nothing(client, demo):
    person(client, "viewer")
    assert 'name="mode"' not in client.get("/demo/").content.decode()
    assert client.post("/demo/partner/", {"mode": "outage"}).status_code == 403
    assert control.partner(demo.url)["mode"] == "well"


def test_an_operator_of_another_source_changes_nothing(client, demo):
    person(client, "operator", source="elsewhere")
    assert client.post("/demo/load/", {"rate": "50"}).status_code == 404


def test_who_has_no_role_on_the_shop_does_not_see_its_partner(client, demo):
    person(client, "admin", source="elsewhere")
    answer = client.get("/demo/")
    assert answer.status_code == 404 and b"Partner" not in answer.content


def test_a_get_changes_nothing(client, demo):
    person(client, "operator")
    assert client.get("/demo/partner/?mode=outage").status_code == 405
    assert control.partner(demo.url)["mode"] == "well"


def test_a_partner_that_is_away_is_said_and_the_page_still_works(client, demo):
    person(client, "operator")
    demo.shutdown()
    demo.server_close()
    assert "partner does not answer" in client.get("/demo/").content.decode()
    assert "partner does not answer" in client.post("/demo/partner/", {"mode": "well"}, follow=True).content.decode()
    assert not AuditEvent.objects.exists()


def test_without_the_demo_there_is_no_such_page(client, store):
    person(client, "operator")
    assert client.get("/demo/").status_code == 404
    assert client.post("/demo/partner/", {"mode": "outage"}).status_code == 404
