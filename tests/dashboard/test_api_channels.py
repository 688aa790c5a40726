"""Channels and deliveries by the API, as a program uses them."""

from __future__ import annotations

import hashlib
import json

import pytest
from django.test import Client
from django.utils import timezone
from standardwebhooks import Webhook

from jobs_admin.models import ApiToken, Channel, Delivery, Notice
from jobs_admin.notices import deliver, sealing
from tests.kit.endpoints import answering, opened
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.django_db

URL = "http://127.0.0.1:9/hook?token=very-secret"


@pytest.fixture(autouse=True)
def loopback(settings):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["127.0.0.1"]}


def bearer(role: str, source: str = "*"):
    text = f"token-{role}-{source}"
    ApiToken.objects.create(name=text, sha256=hashlib.sha256(text.encode()).hexdigest(), role=role, source=source)

    def call(method: str, path: str, body=None, status: int = 200):
        content = json.dumps({} if body is None else body)
        answer = Client().generic(
            method,
            f"/api/{path}",
            content,
            content_type="application/json",
            headers={"Authorization": f"Bearer {text}"},
        )
        assert answer.status_code == status, answer.content
        return answer.json() if answer.content else None

    return call


@pytest.fixture
def ann():
    return bearer("admin")


@pytest.fixture
def otto():
    return bearer("operator", "shop")


def test_a_channel_is_made_changed_rotated_and_deleted(ann):
    made = ann("POST", "channels", {"name": "pager", "kind": "webhook", "url": URL, "events": ["replay.held"]}, 201)
    assert sealing.is_signing_secret(made["secret"]) and made["url"] == URL and made["events"] == ["replay.held"]
    one = f"channels/{made['id']}"
    assert "secret" not in ann("GET", one) and ann("GET", "channels")["count"] == 1
    changed = ann("PUT", one, {**made, "events": [], "secret": ""})  # sent back as it came, but for what is to change
    assert changed["events"] == [] and changed["secret"] is None
    new = ann("POST", f"{one}/rotate", status=201)["secret"]
    assert sealing.unseal(Channel.objects.get().secrets) == [new, made["secret"]]
    assert ann("GET", one)["is_rotating"] and not ann("POST", f"{one}/end-rotation")["is_rotating"]
    assert ann("POST", f"{one}/enable", status=409)["error"]["code"] == "wrong_state"
    ann("DELETE", one, status=204)
    ann("GET", one, status=404)


def test_a_refusal_names_the_field_and_shows_how_to_allow_an_address(ann, settings):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": []}
    error = ann("POST", "channels", {"name": "x", "kind": "webhook", "url": URL}, 422)["error"]
    assert (error["code"], error["field"]) == ("invalid", "url")
    assert (
        "127.0.0.1 is not a public address (loopback)" in error["message"]
        and "REDRIVE_WEBHOOK_ALLOW" in error["message"]
    )
    assert (
        ann("POST", "channels", {"name": "x", "kind": "webhook", "url": URL, "hue": 1}, 422)["error"]["code"]
        == "invalid"
    )


def test_who_is_not_admin_of_every_source_sees_names_and_changes_nothing(ann, otto):
    ann("POST", "channels", {"name": "pager", "kind": "webhook", "url": URL}, 201)
    (seen,) = otto("GET", "channels")["items"]
    assert (seen["name"], seen["kind"], seen["url"], seen["to"]) == ("pager", "webhook", "", [])
    sam = bearer("admin", "shop")
    for method, path in (("POST", "channels"), ("PUT", f"channels/{seen['id']}"), ("DELETE", f"channels/{seen['id']}")):
        assert sam(method, path, {"name": "x", "kind": "webhook", "url": URL}, 403)["error"]["code"] == "forbidden"
    assert Channel.objects.get().name == "pager"


def test_a_test_arrives_and_its_delivery_shows_what_came_back(ann, otto):
    with opened(answering(200, b"<b>thanks</b>")) as (there,):
        made = ann("POST", "channels", {"name": "pager", "kind": "webhook", "url": there.url}, 201)
        begun = ann("POST", f"channels/{made['id']}/test", status=201)
        wait_until(lambda: not deliver(timezone.now()), "the delivery")
        Webhook(made["secret"]).verify(there.seen[0].body, there.seen[0].headers)
    found = ann("GET", f"deliveries/{begun['id']}")
    assert (found["state"], found["status"], found["type"], found["answer"]) == (
        "delivered",
        200,
        "ping",
        "<b>thanks</b>",
    )
    assert [one["status"] for one in found["log"]] == [200] and json.loads(found["request"])["type"] == "ping"
    assert otto("GET", f"deliveries/{begun['id']}")["answer"] == ""


def test_deliveries_are_filtered_paged_and_sent_again(ann, otto):
    channel = Channel.objects.create(name="pager", kind="webhook", url=URL)
    for n, source in enumerate(("shop", "shop", "bank")):
        reported = Notice.objects.create(key=f"k{n}", type="alert.firing", source=source, body={"title": "t"})
        Delivery.objects.create(notice=reported, channel=channel, state="parked" if n else "delivered")
    assert [one["key"] for one in otto("GET", "deliveries")["items"]] == ["k1", "k0"]
    assert [one["key"] for one in otto("GET", "deliveries?state=parked")["items"]] == ["k1"]
    page = ann("GET", f"deliveries?limit=2&channel={channel.pk}")
    assert page["count"] == 3 and [one["key"] for one in ann("GET", f"deliveries?after={page['next']}")["items"]] == [
        "k0"
    ]
    ann("GET", "deliveries?state=lost", status=422)
    ann("GET", "deliveries?channel=0", status=422)
    shop, bank = Delivery.objects.get(notice__key="k1"), Delivery.objects.get(notice__key="k2")
    assert otto("POST", f"deliveries/{shop.pk}/resend")["state"] == "waiting"
    otto("POST", f"deliveries/{bank.pk}/resend", status=404)
    bearer("viewer", "shop")("POST", f"deliveries/{shop.pk}/resend", status=403)
