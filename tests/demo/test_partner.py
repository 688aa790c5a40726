from __future__ import annotations

import httpx
import pytest

from demo import control


def post(service, path="/hook", body=None):
    return httpx.post(service.url + path, json=body or {}, timeout=60, trust_env=False)


def test_it_takes_hooks_mails_and_charges(service):
    assert post(service, "/hook").json() == {"accepted": True}
    assert post(service, "/mail").json() == {"accepted": True}
    assert post(service, "/charge", {"card": "card_visa"}).json()["receipt_id"]


def test_a_declined_card_and_a_charge_without_one_are_refused(service):
    assert post(service, "/charge", {"card": "card_declined"}).status_code == 402
    assert post(service, "/charge", {"amount": 1}).status_code == 422


def test_broken_it_cuts_the_connection_and_answers_503(service):
    control.set_mode(service.url, "outage")
    with pytest.raises(httpx.ReadError):
        post(service)
    assert post(service).status_code == 503


def test_slow_it_answers_after_the_shop_lost_patience(service):
    control.set_mode(service.url, "slow", delay_s=30)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(service.url + "/hook", json={}, timeout=0.1, trust_env=False)


def test_a_rate_limit_shows_when_to_come_back(service):
    control.set_mode(service.url, "rate_limit", limit=0.1)
    post(service)
    refused = post(service)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1


def test_it_shows_what_it_sees(service):
    post(service)
    seen = control.partner(service.url)
    assert seen["mode"] == "well"
    assert len(seen["series"]) == 60


def test_a_mode_that_is_not_is_refused_in_words(service):
    with pytest.raises(control.BadWish, match="Nothing was changed"):
        control.set_mode(service.url, "sulking")
    answer = httpx.put(service.url + "/mode", content=b"[", trust_env=False)
    assert answer.status_code == 422
    assert control.partner(service.url)["mode"] == "well"


def test_a_partner_that_is_away_is_shown_as_away(service):
    service.shutdown()
    service.server_close()
    with pytest.raises(control.DemoUnreachable):
        control.partner(service.url)


def test_the_warehouse_that_is_played_with_has_a_temper_of_its_own(service):
    control.set_mode(service.url + "/played", "outage")
    with pytest.raises(httpx.ReadError):
        post(service, "/played/hook")
    assert post(service, "/hook").status_code == 200
    assert control.partner(service.url)["mode"] == "well"
    control.set_mode(service.url + "/played", "well")
    assert post(service, "/played/hook").json() == {"accepted": True}
