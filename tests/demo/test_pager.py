"""The shop's pager takes what the desk signed, each id once, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx
import pytest
from standardwebhooks import Webhook

from demo import control, pager, partner

SECRET = pager.new_secret()


@pytest.fixture
def service():
    running = partner.Partner(pager_secret=SECRET).serve_in_thread()
    yield running
    running.shutdown()
    running.server_close()


def page(service, key="alert-7-1", secret=SECRET, **data):
    now = datetime.now(UTC)
    body = json.dumps({"type": "alert.firing", "timestamp": now.isoformat(), "data": {"title": "Dead", **data}})
    headers = {
        "webhook-id": key,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(key, now, body),
    }
    return httpx.post(service.url + "/pager", content=body, headers=headers, trust_env=False).status_code


def test_what_is_signed_is_taken_the_latest_first(service):
    assert page(service, "alert-7-1") == 204
    assert page(service, "alert-8-1", url="http://desk/alerts/8/") == 204
    seen = control.pages(service.url)
    assert [one["id"] for one in seen["pages"]] == ["alert-8-1", "alert-7-1"]
    assert seen["pages"][0]["url"] == "http://desk/alerts/8/"


def test_one_id_is_one_page_however_often_it_comes(service):
    for _ in range(3):
        assert page(service) == 204
    (one,) = control.pages(service.url)["pages"]
    assert one["times"] == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_what_is_not_signed_is_refused_and_not_read(service, body):
    assert httpx.post(service.url + "/pager", content=body, trust_env=False).status_code == 401
    assert page(service, secret=pager.new_secret()) == 401
    assert control.pages(service.url) == {"pages": [], "refused": 2}


def test_it_keeps_the_last_twenty(service):
    for n in range(25):
        page(service, f"alert-{n}-1")
    pages = [one["id"] for one in control.pages(service.url)["pages"]]
    assert pages == [f"alert-{n}-1" for n in range(24, 4, -1)]


def test_it_answers_while_the_partner_is_down(service):
    control.set_mode(service.url, "outage")
    assert page(service) == 204
