"""An act on a page whose session ended: nothing changes, and the login leads back to a page.

Made from the URLconf, so that an address which is added is tried too.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.test.utils import override_script_prefix

from dashboard.web.middleware.entrance import LOGGED_OUT, WAYS_IN
from dashboard.web.rights import ANYONE, addresses
from tests.kit.matrix import Asker, come, list_addresses, none_of, path_of, writes
from tests.kit.pages import HTMX

HERE = "http://testserver"
PAGE, ACT = {"Referer": f"{HERE}/groups/?q=x"}, {"Referer": f"{HERE}/failures/bulk/"}


def next_of(login: str) -> str:
    assert login.startswith("/login/?next=/"), login
    return parse_qs(urlsplit(login).query)["next"][0]


def test_no_act_and_no_part_requested_while_logged_out_changes_a_thing_or_leads_to_where_one_cannot_go(desk):
    out, found, led = Asker(Client()), [], set()
    for address in [one for one in list_addresses("page", "admin") if one.right != ANYONE]:
        for method in address.methods:
            with writes() as written:
                complete = out.request(method, address, desk.shop, **(PAGE if method == "GET" else ACT))
                part = out.request(method, address, desk.shop, **HTMX, **PAGE)
            if written or (complete.status_code, part.status_code) != (302, 401):
                found.append(f"{method} {address.route}: {complete.status_code}, {part.status_code}, {written[:1]}")
                continue
            ways = {next_of(complete["Location"]), next_of(part["Redrive-Login"])}
            # A page that can be looked at leads to itself, with what it was asked.
            led |= {way for way in ways if method != "GET" or not way.startswith(path_of(address, desk.shop))}
    # After an act or for a part: only the page that one was on, where that was told and can be looked at.
    assert led == {"/", "/groups/?q=x"}
    none_of(found)


def test_no_login_leads_to_an_address_that_only_takes_a_post(desk):
    person, found = come("root", staff=True), []
    for address in list_addresses("page", "admin"):
        where = path_of(address, desk.shop)
        led = person.get("/login/", {"next": where})["Location"]
        if led != (where if "GET" in address.methods and address.name not in WAYS_IN else "/"):
            found.append(f"{where} -> {led}")
    none_of(found)
    assert any("GET" not in address.methods for address in addresses())


@pytest.mark.parametrize("sent", ["HX-Current-URL", "Referer"])
@pytest.mark.parametrize(
    "page",
    ["https://evil.example/groups/", f"{HERE}//evil.example/", f"{HERE}/login/?next=/", f"{HERE}/nowhere/", "x:y"],
)
def test_who_acts_from_what_is_no_page_of_this_desk_is_led_to_the_overview(client, db, sent, page):
    answer = client.post("/failures/bulk/", headers={sent: page})
    assert answer["Location"] == "/login/?next=/"


def test_a_part_is_answered_with_the_sentence_and_the_way_to_the_login_not_with_the_login(client, db, caplog):
    answer = client.get("/failures/7/", headers=HTMX | {"HX-Current-URL": f"{HERE}/failures/?q=a%26b#x"})
    assert (answer.status_code, answer.content.decode()) == (401, LOGGED_OUT)
    assert answer["Redrive-Login"] == "/login/?next=/failures/%3Fq%3Da%2526b" and not caplog.records


def test_who_acts_without_javascript_reads_at_the_login_that_nothing_was_changed(client, db):
    answer = client.post("/alerts/5/acknowledge/", headers={"Referer": f"{HERE}/"}, follow=True)
    assert answer.redirect_chain == [("/login/?next=/", 302)] and LOGGED_OUT in answer.content.decode()


def test_a_form_whose_token_is_gone_with_the_session_shows_that_one_is_logged_out(db):
    strict, ours = Client(enforce_csrf_checks=True), {"Referer": f"{HERE}/groups/"}
    assert strict.post("/groups/bulk/", headers=ours)["Location"] == "/login/?next=/groups/"
    assert strict.post("/groups/bulk/", headers=ours | HTMX).status_code == 401
    foreign = strict.post("/groups/bulk/", headers={"Referer": "https://evil.example/"})
    assert foreign.status_code == 403 and b"not sent from this desk" in foreign.content


def test_below_a_prefix_the_login_leads_back_below_it(client, db):
    with override_script_prefix("/jobs/"):
        answer = client.post("/groups/bulk/", headers={"Referer": f"{HERE}/jobs/groups/?q=x"})
    assert answer["Location"] == "/jobs/login/?next=/jobs/groups/%3Fq%3Dx"
