from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from standardwebhooks import Webhook

from demo import control, pager, partner, story
from demo.story import Second, Side, Story
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import Role

pytestmark = [pytest.mark.server, pytest.mark.django_db]


@pytest.fixture
def demo(store, settings, service):
    """A desk with the demo: its broker, and its partner."""
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": settings.REDRIVE["REDIS_URL"]}
    settings.REDRIVE = settings.REDRIVE | {"DEMO_PARTNER_URL": service.url}
    control.broker.cache_clear()
    yield service
    control.broker.cache_clear()


def person(client, role, source="shop"):
    user = get_user_model().objects.create_user(role)
    Role.objects.create(user=user, source=source, role=role)
    client.force_login(user)
    return client


def test_the_partner_is_broken_and_fixed(client, demo):
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


def test_a_partner_that_is_away_is_shown_and_the_page_still_works(client, demo):
    person(client, "operator")
    demo.shutdown()
    demo.server_close()
    assert "partner does not answer" in client.get("/demo/").content.decode()
    assert "partner does not answer" in client.post("/demo/partner/", {"mode": "well"}, follow=True).content.decode()
    assert not AuditEvent.objects.exists()


@pytest.fixture
def player(demo, store):
    story.alive(store)


def test_an_incident_is_requested_once_and_audited(client, demo, player, store):
    person(client, "operator")
    client.post("/demo/incident/", {"wish": "play"})
    ticket = story.read(store).ticket
    assert ticket.name == "operator"
    assert "running already" in client.post("/demo/incident/", {"wish": "play"}, follow=True).content.decode()
    assert story.read(store).ticket == ticket
    client.post("/demo/incident/", {"wish": "stop"})
    assert list(AuditEvent.objects.order_by("pk").values_list("act", "object")) == [
        ("demo.incident", "play"),
        ("demo.incident", "stop"),
    ]


def test_no_incident_is_played_with_a_broken_partner_or_without_a_player(client, demo, store):
    person(client, "operator")
    assert "player is not running" in client.post("/demo/incident/", {"wish": "play"}, follow=True).content.decode()
    story.alive(store)
    control.set_mode(demo.url, "outage")
    assert "Fix the partner below" in client.post("/demo/incident/", {"wish": "play"}, follow=True).content.decode()
    assert story.read(store).ticket is None and not AuditEvent.objects.exists()


@pytest.mark.parametrize("wish", ["play", "stop", "sulk", ""])
def test_a_viewer_plays_nothing(client, demo, player, store, wish):
    person(client, "viewer")
    assert client.post("/demo/incident/", {"wish": wish}).status_code == 403
    assert story.read(store).ticket is None


def seconds(*requests: tuple[int, int]) -> list[Second]:
    return [Second(all_, refused, None if refused else 8.0 + n, 5) for n, (all_, refused) in enumerate(requests)]


def test_what_was_played_is_shown_with_its_figures(client, demo, player, store):
    person(client, "viewer")
    played = Story("abc", "ann", 1, began_at=1.0, jobs=5, after=0, act="held", outcome="played", ended_at=90.0)
    played.groups = [{"fingerprint": "v1-a", "title": "httpx.ReadError: <b>cut</b>", "state": "new"}]
    naive = Side(10.5, 0, replay=41, seconds=seconds((900, 870), (40, 40), (0, 0)), falls=[0.4], jobs=1234)
    naive.ended, naive.state, naive.failed_again = 12.0, "done", 1213
    careful = Side(40.0, 1, replay=42, seconds=seconds((8, 0), (9, 0)), jobs=1213, ended=38.2, state="done")
    careful.succeeded = 1213
    played.sides = {"at_once": naive, "careful": careful}
    story.close(store, played)  # as the version before it had an act with a breaker left it
    assert "Careful recovered all of them in 38 s." in client.get("/demo/").content.decode()
    on_hold = Side(90.0, 1, seconds=seconds((7, 0), (5, 0)), jobs=1234, ended=27.0, state="closed", succeeded=1234)
    played.sides["held"] = on_hold
    outages = (("dead", ((4936, 4936),)), ("held", ((31, 31),)))
    played.outages = {name: Side(1.0, 0, seconds=seconds(*counts)) for name, counts in outages}
    story.close(store, played)
    body = client.get("/demo/").content.decode()
    for figure in ("900", "910", "1,213 of 1,234", "never: 1,213 dead", "38 s", "↑ 900", "4,936", "31", "27 s"):
        assert figure in body, figure
    assert "Careful recovered all of them in 38 s. With the breaker no job died." in body
    assert 'href="/replays/41/"' in body and 'href="/replays/42/"' in body and "/groups/v1-a/" in body
    assert "<b>cut" not in body
    assert "Play" not in body.partition('<form class="actions"')[2]  # a viewer has no button


def test_a_replay_that_holds_itself_shows_why(client, demo, player, store):
    person(client, "viewer")
    ticket = story.request(store, 1, "ann")
    played = Story(ticket.id, "ann", 1, began_at=1.0, jobs=5, after=0, act="careful")
    played.sides = {"at_once": Side(1.0, 0, replay=41, ended=9.0), "careful": Side(30.0, 0, replay=42, state="held")}
    played.sides["careful"].said = "6 of 10 canary jobs failed again"
    story.write(store, played)
    body = client.get("/demo/").content.decode()
    assert (
        "Held: 6 of 10 canary jobs failed again" in body and body.count("not yet") == 2
    )  # it fell over, all recovered


def test_an_outage_with_a_breaker_is_described_while_it_lasts(client, demo, player, store):
    person(client, "viewer")
    ticket = story.request(store, 1, "ann")
    played = Story(
        ticket.id, "ann", 1, began_at=1.0, jobs=300, after=0, act="held", broken_at=2.0, broken_again_at=60.0
    )
    played.outages["held"] = Side(1.0, 0, seconds=seconds((9, 9)), on_hold=291)
    story.write(store, played)
    body = client.get("/demo/").content.decode()
    assert "9 requests reached the warehouse. 291 of 300 jobs are held, 0 dead." in body and "at 58 s" in body
    played.sides["held"] = Side(9.0, 0, jobs=291, state="half_open", succeeded=12)
    story.write(store, played)
    assert "The probe succeeded. Jobs are released while none fails: 12 of 291" in client.get("/demo/").content.decode()


def test_while_it_is_played_it_can_be_stopped_and_refreshes_fast(client, demo, player, store):
    person(client, "operator")
    assert 'value="play"' in client.get("/demo/").content.decode()
    story.request(store, 1, "ann")
    body = client.get("/demo/").content.decode()
    assert 'data-live="fast"' in body and 'value="stop"' in body and "Starting." in body


def test_without_the_demo_there_is_no_such_page(client, store):
    person(client, "operator")
    assert client.get("/demo/").status_code == 404
    assert client.post("/demo/partner/", {"mode": "outage"}).status_code == 404


def test_what_reached_the_pager_is_on_the_page_with_links_to_this_desk_alone(client, store, settings):
    secret = pager.new_secret()
    service = partner.Partner(pager_secret=secret).serve_in_thread()
    settings.REDRIVE = settings.REDRIVE | {
        "DEMO_BROKER_URL": settings.REDRIVE["REDIS_URL"],
        "DEMO_PARTNER_URL": service.url,
    }
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://desk.example"}
    now = datetime.now(UTC)
    notice = {"title": "Dead <b>", "url": "https://desk.example/alerts/7/", "replay_url": "https://elsewhere.example/"}
    notice |= {"metric": "quarantined", "failures_url": "https://desk.example/failures/?q=x"}
    body = json.dumps({"type": "alert.firing", "timestamp": now.isoformat(), "data": notice})
    signature = Webhook(secret).sign("alert-7-1", now, body)
    headers = {
        "webhook-id": "alert-7-1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    assert service.pager.take(headers, body.encode()) == 204
    page = person(client, "viewer").get("/demo/").content.decode()
    service.shutdown()
    service.server_close()
    assert 'href="/alerts/7/">Open</a>' in page and 'href="/failures/?q=x">Open quarantined jobs</a>' in page
    assert "elsewhere.example" not in page
    assert "Dead &lt;b&gt;" in page
