"""Channels and deliveries in the browser: health, secrets shown once, a test, sending again, and what others see."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.utils import timezone
from standardwebhooks import Webhook

from jobs_admin import alerts, config, notices
from jobs_admin.models import AuditEvent, Channel, Delivery, Notice
from jobs_admin.models.access import ENGINE
from jobs_admin.notices import sealing
from tests.kit.pages import HTMX
from tests.kit.people import log_in
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:9/hook"


@pytest.fixture(autouse=True)
def _keys(watched, settings):
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["127.0.0.0/8"]}
    forget_configuration(config)
    yield
    forget_configuration(config)


def channel(name: str = "ops", **changes) -> Channel:
    made = notices.save_channel(ENGINE, {"name": name, "kind": "webhook", "url": URL} | changes).channel
    return Channel.objects.get(pk=made.pk)


def delivery(row: Channel, state: str = "parked", source: str = "shop", **changes) -> Delivery:
    now = timezone.now()
    title = changes.pop("title", "Dead Letter Queue Growing")
    number = Notice.objects.count()
    notice = Notice.objects.create(key=f"k-{number}", type="alert.firing", source=source, body={"title": title})
    values = {
        "request": '{"type": "alert.firing"}',
        "status": 500,
        "answer": "",
        "error": "",
        "tries": 1,
        "tried_at": now,
    }
    return Delivery.objects.create(notice=notice, channel=row, state=state, **values | changes)


def text_of(answer) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode())))


# --- the list ----------------------------------------------------------------------------------------------------


def test_a_desk_without_channels_shows_that_nothing_leaves_it(ann, vera):
    assert "No channels: no notifications are sent." in text_of(ann.get("/alerts/channels/"))
    assert "Create channel" not in vera.get("/alerts/channels/").content.decode()


def test_the_list_shows_how_each_channel_is(ann):
    row = channel(events=["replay.held"])
    Channel.objects.filter(pk=row.pk).update(failures=3)
    delivery(row, "delivered", status=204)
    alerts.save_rule(ENGINE, {"name": "Tells ops", "metric": "dead", "threshold": 1, "channels": ["ops"]})
    text = text_of(ann.get("/alerts/channels/"))
    assert "3 failed tries in a row" in text and "also on: held replays" in text
    assert "delivered" in text and "1 rule Tells ops" in text and "http://127.0.0.1:9" in text
    Channel.objects.filter(pk=row.pk).update(disabled_at=timezone.now(), why_disabled="The endpoint answered 410.")
    assert "disabled The endpoint answered 410." in text_of(ann.get("/alerts/channels/"))


def test_where_a_channel_leads_is_shown_to_admins_of_every_source_only(vera, otto, django_user_model):
    row = channel("ops", url="http://127.0.0.1:9/zircon")
    made = delivery(row, answer="zircon answer", error="zircon error")
    admin_of_one = log_in(django_user_model, "ada", shop="admin")
    for person in (vera, otto, admin_of_one):
        for path in ("channels/", f"channels/{row.pk}/", "deliveries/", f"deliveries/{made.pk}/"):
            page = person.get(f"/alerts/{path}").content.decode()
            assert "zircon" not in page and "127.0.0.1:9" not in page and "ops" in page


@pytest.mark.parametrize("act", ["change", "rotate", "end-rotation", "enable", "test", "delete"])
def test_the_admin_of_one_source_changes_no_channel(act, django_user_model):
    row = channel()
    before = Channel.objects.values().get()
    ada = log_in(django_user_model, "ada", shop="admin")
    assert ada.post(f"/alerts/channels/{row.pk}/{act}/", {"name": "mine"}).status_code == 403
    assert ada.get("/alerts/channels/new/").status_code == 403
    assert Channel.objects.values().get() == before and not Delivery.objects.exists()
    assert AuditEvent.objects.filter(actor="ada", allowed=False).exists()


# --- making one, and its secret ----------------------------------------------------------------------------------


def shown_secret(answer) -> str:
    found = re.search(r'id="the-secret"[^>]*>([^<]+)<', answer.content.decode())
    return found[1] if found else ""


def test_a_webhooks_secret_is_made_shown_once_and_signs(ann):
    answer = ann.post(
        "/alerts/channels/create/", {"name": "ops", "kind": "webhook", "url": URL, "events": ["replay.done"]}
    )
    secret = shown_secret(answer)
    row = Channel.objects.get()
    assert secret.startswith("whsec_") and sealing.unseal(row.secrets) == [secret] and row.events == ["replay.done"]
    assert f'data-now-at="/alerts/channels/{row.pk}/"' in answer.content.decode()
    assert secret not in ann.get(f"/alerts/channels/{row.pk}/").content.decode()
    assert secret not in json.dumps(list(AuditEvent.objects.values("before", "after")))
    now = timezone.now()
    assert Webhook(secret).sign("id", now, "{}").startswith("v1,")


def test_the_new_secret_of_a_rotation_is_shown_once_and_two_sign_until_it_is_ended(ann):
    row = channel()
    [before] = sealing.unseal(row.secrets)
    answer = ann.post(f"/alerts/channels/{row.pk}/rotate/")
    row.refresh_from_db()
    assert sealing.unseal(row.secrets) == [shown_secret(answer), before]
    assert "End rotation" in text_of(answer) and "two signatures" in text_of(answer)
    again = ann.post(f"/alerts/channels/{row.pk}/rotate/", follow=True)
    assert "End it first" in text_of(again) and not shown_secret(again)
    ann.post(f"/alerts/channels/{row.pk}/end-rotation/")
    row.refresh_from_db()
    assert sealing.unseal(row.secrets) == [shown_secret(answer)]


@pytest.mark.parametrize(
    ("form", "place", "message"),
    [
        ({"name": ""}, "c-name", "a name of 1 to 100"),
        ({"kind": "pigeon"}, "c-kind", "one of webhook"),
        ({"url": "http://10.1.2.3/"}, "c-url", "not a public address"),
        ({"url": ""}, "c-url", "Enter a URL"),
        ({"secret": "short"}, "c-secret", "whsec_"),
        ({"kind": "pagerduty", "routing_key": "x"}, "c-routing-key", "32 letters and digits"),
        ({"kind": "pagerduty", "url": ""}, "c-routing-key", "routing key"),
        ({"events": ["nothing"]}, "c-events", "Unknown event"),
    ],
)
def test_what_is_refused_is_beside_its_field(ann, form, place, message):
    answer = ann.post("/alerts/channels/create/", {"name": "my ops", "kind": "webhook", "url": URL} | form)
    page = answer.content.decode()
    assert answer.status_code == 422 and not Channel.objects.exists()
    slot = re.search(rf'id="refused-{place}"[^>]*>(.*?)</div>', page, re.S)[1]
    assert message in html.unescape(slot)
    assert form.get("name") == "" or 'value="my ops"' in page


def test_a_secret_that_was_typed_is_not_sent_back(ann):
    typed = "whsec_" + "A" * 43 + "="
    answer = ann.post("/alerts/channels/create/", {"name": "", "kind": "webhook", "url": URL, "secret": typed})
    assert answer.status_code == 422 and typed not in answer.content.decode()


def test_slacks_address_is_a_secret_and_is_stored_where_nothing_is_typed(ann):
    slack = "http://127.0.0.1:9/services/T0/B0/zircon"
    ann.post("/alerts/channels/create/", {"name": "chat", "kind": "slack", "url": slack})
    row = Channel.objects.get()
    assert "zircon" not in ann.get(f"/alerts/channels/{row.pk}/").content.decode()
    ann.post(f"/alerts/channels/{row.pk}/change/", {"name": "the chat", "url": ""})
    row.refresh_from_db()
    assert row.name == "the chat" and sealing.unseal(row.secrets) == [slack]


def test_a_channel_that_a_rule_notifies_is_not_deleted(ann):
    row = channel()
    made = alerts.save_rule(ENGINE, {"name": "Tells ops", "metric": "dead", "threshold": 1, "channels": ["ops"]})
    assert "Used by 1 rule" in text_of(ann.get(f"/alerts/channels/{row.pk}/"))
    answer = ann.post(f"/alerts/channels/{row.pk}/delete/", follow=True)
    assert "Change them first" in text_of(answer) and Channel.objects.exists()
    alerts.delete_rule(ENGINE, made.pk)
    ann.post(f"/alerts/channels/{row.pk}/delete/")
    assert not Channel.objects.exists()


def test_a_disabled_channel_shows_why_and_is_enabled_again(ann):
    row = channel()
    Channel.objects.filter(pk=row.pk).update(disabled_at=timezone.now(), why_disabled="The endpoint answered 410 Gone.")
    assert "The endpoint answered 410 Gone." in text_of(ann.get(f"/alerts/channels/{row.pk}/"))
    ann.post(f"/alerts/channels/{row.pk}/enable/")
    assert Channel.objects.get().disabled_at is None


# --- a test ------------------------------------------------------------------------------------------------------


def test_a_test_is_sent_and_what_came_back_arrives_by_itself(ann):
    row = channel()
    answer = ann.post(f"/alerts/channels/{row.pk}/test/")
    sent = Delivery.objects.get()
    assert answer["Location"] == f"/alerts/channels/{row.pk}/?test={sent.pk}#test"
    page = ann.get(answer["Location"]).content.decode()
    assert (
        f'data-live="fast" hx-get="/alerts/deliveries/{sent.pk}/"' in page
        and "The response appears here within seconds" in page
    )
    Delivery.objects.filter(pk=sent.pk).update(
        state="delivered", status=204, took_ms=31, tries=1, tried_at=timezone.now(), delivered_at=timezone.now()
    )
    part = ann.get(f"/alerts/deliveries/{sent.pk}/", headers=HTMX).content.decode()
    assert "<html" not in part and "data-live" not in part
    assert "204" in part and "31 ms" in part and "delivered" in part


def test_the_test_of_another_channel_is_not_shown(ann):
    one, other = channel("one"), channel("other")
    made = delivery(other, title="of the other")
    assert "of the other" not in text_of(ann.get(f"/alerts/channels/{one.pk}/?test={made.pk}"))
    assert ann.get(f"/alerts/channels/{one.pk}/?test=x").status_code == 200


# --- deliveries --------------------------------------------------------------------------------------------------


def test_deliveries_are_narrowed_by_channel_and_state(vera):
    one, other = channel("one"), channel("other")
    delivery(one, title="first"), delivery(one, "delivered", title="second"), delivery(other, title="third")
    every = text_of(vera.get("/alerts/deliveries/"))
    assert "3 deliveries" in every and all(word in every for word in ("first", "second", "third"))
    narrowed = text_of(vera.get(f"/alerts/deliveries/?channel={one.pk}&state=parked"))
    assert "first" in narrowed and "second" not in narrowed and "third" not in narrowed
    assert "No matching deliveries" in text_of(vera.get("/alerts/deliveries/?channel=nonsense"))


def test_deliveries_have_pages(vera):
    row = channel()
    for n in range(55):
        delivery(row, title=f"told {n:02}")
    page = vera.get("/alerts/deliveries/").content.decode()
    assert "told 54" in page and "told 04" not in page
    following = html.unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])
    assert "told 04" in vera.get(f"/alerts/deliveries/{following}").content.decode()


def test_a_delivery_of_a_source_that_is_out_of_sight_is_not_there(vera):
    hidden = delivery(channel(), source="bank", title="zircon")
    assert "zircon" not in text_of(vera.get("/alerts/deliveries/"))
    assert vera.get(f"/alerts/deliveries/{hidden.pk}/").status_code == 404


def test_what_was_sent_is_indented_to_be_read_and_is_as_it_was_sent_too(ann):
    sent = '{"type":"alert.firing","data":{"title":"Grün <b>"}}'
    page = html.unescape(ann.get(f"/alerts/deliveries/{delivery(channel(), request=sent).pk}/").content.decode())
    assert '{\n  "type": "alert.firing",\n  "data": {\n    "title": "Grün <b>"' in page and sent in page
    mail = delivery(channel("mail"), request="Subject\n\nBody")
    page = ann.get(f"/alerts/deliveries/{mail.pk}/").content.decode()
    assert "Subject\n\nBody" in page and 'id="as-sent"' not in page


def test_a_delivery_shows_what_was_sent_what_came_back_and_every_try(ann):
    log = [{"at": "2026-11-22T02:07:00+00:00", "status": None, "error": "no answer within 10 s", "took_ms": 10000}]
    answer = "<script>alert(1)</script>\x1b[31m"
    made = delivery(
        channel(),
        "waiting",
        answer=answer,
        error="HTTP 500",
        log=log,
        next_try_at=timezone.now() + timedelta(minutes=5),
    )
    page = ann.get(f"/alerts/deliveries/{made.pk}/").content.decode()
    assert "&lt;script&gt;" in page and "<script>alert" not in page and "U+001B" in page
    text = text_of(ann.get(f"/alerts/deliveries/{made.pk}/"))
    assert '{"type": "alert.firing"}' in text and "22 Nov 02:07:00 no answer within 10 s, after 10 s" in text
    assert "Next try in 4 min" in text


def test_it_is_sent_again_by_an_operator_of_its_source_and_not_by_a_viewer(otto, vera):
    made = delivery(channel())
    assert "Send again" not in vera.get(f"/alerts/deliveries/{made.pk}/").content.decode()
    assert vera.post(f"/alerts/deliveries/{made.pk}/send-again/").status_code == 403
    answer = otto.post(f"/alerts/deliveries/{made.pk}/send-again/", follow=True)
    made.refresh_from_db()
    assert made.state == "waiting" and "Sending again to ops" in text_of(answer)


def test_what_is_being_sent_or_goes_to_a_disabled_channel_is_refused_in_words(otto):
    row = channel()
    made = delivery(row, "sending")
    assert "The delivery is being sent" in text_of(otto.post(f"/alerts/deliveries/{made.pk}/send-again/", follow=True))
    Channel.objects.filter(pk=row.pk).update(disabled_at=timezone.now())
    assert "Enable it first" in text_of(otto.post(f"/alerts/deliveries/{made.pk}/send-again/", follow=True))


# --- checks while it is filled in --------------------------------------------------------------------------------


def test_a_channel_is_checked_as_it_is_filled_in_and_nothing_is_changed(ann, otto):
    row = channel()
    form = {"channel": str(row.pk), "name": "ops", "url": "ftp://hooks.example/"}
    part = ann.post("/alerts/channels/check/", form).content.decode()
    assert re.search(r'id="refused-c-url"[^>]*hx-swap-oob="morph"><p class="refusal"', part)
    assert "1 unsaved change<" in part and f'href="/alerts/channels/{row.pk}/"' in part
    fixed = ann.post("/alerts/channels/check/", form | {"url": "https://hooks.example/"}).content.decode()
    assert '<p class="refusal"' not in fixed and "1 unsaved change<" in fixed
    assert "unsaved change" not in ann.post("/alerts/channels/check/", form | {"url": URL}).content.decode()
    # An empty field is not refused before it is left.
    new = ann.post("/alerts/channels/check/", {"kind": "webhook", "name": "", "url": ""}).content.decode()
    assert '<p class="refusal"' not in new and "New, unsaved" in new
    row.refresh_from_db()
    assert row.url == URL and Channel.objects.count() == 1
    assert otto.post("/alerts/channels/check/", form).status_code == 403


def test_a_kind_that_the_desk_cannot_send_is_refused_when_it_is_chosen(ann):
    page = ann.get("/alerts/channels/new/?kind=email").content.decode()
    assert "No mail server is configured. Set EMAIL_URL, such as smtps://" in page
    assert "No mail server" not in ann.get("/alerts/channels/new/?kind=slack").content.decode()
