"""A GET changes nothing, whoever sends it and however: a person, htmx, HEAD, a browser that fetches ahead.

And where nothing may be changed at all, no address lets a change through.
"""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.web.middleware.read_only import HARMLESS
from dashboard.web.rights import ANYONE
from jobs_admin import config
from tests.kit import endurance
from tests.kit.matrix import IN, Asker, body_of, come, digest, keys_of, list_addresses, none_of, really, token, writes

HOW = {
    "plainly": {},
    "as htmx": {"HX-Request": "true"},
    "ahead": {"Sec-Purpose": "prefetch;prerender", "Purpose": "prefetch", "X-Moz": "prefetch"},
}


@pytest.fixture
def root(desk):
    return {
        "page": Asker(come("root", staff=True)),
        "api": Asker(Client(), token("root")),
    } | {"admin": None}


def asker_of(root, address):
    return root["api" if address.kind == "api" else "page"]


@pytest.mark.long("Asks for every address twice and compares all rows and keys.")
@pytest.mark.parametrize("how", HOW)
def test_no_get_and_no_head_changes_a_row_or_a_key(desk, root, watched, how):
    found, before, keys = [], digest(), keys_of(watched)
    for address in list_addresses("page", "api", "admin"):
        for method in ("GET", "HEAD") if how == "plainly" or endurance.IS_ON else ("GET",):
            with writes() as written:
                answer = asker_of(root, address).request(method, address, desk.shop, **HOW[how])
            if written:
                found.append(f"{method} {address.route} writes: {written[0]}")
            # What changes nothing because it is not answered proves nothing.
            if "GET" in address.methods and address.right != "nobody" and address.kind == "page":
                if answer.status_code not in {200, 204, 302}:
                    found.append(f"{method} {address.route} answers {answer.status_code}")
                body_of(answer)
    none_of(found)
    assert digest() == before and keys_of(watched) == keys


COMING_AND_GOING = {"login", "login-code", "login-set-up", "logout", "admin:login", "admin:logout"}


def test_a_read_only_desk_lets_no_change_through_any_address(desk, root, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    found, before = [], digest()
    for address in list_addresses("page", "api", "admin"):
        for method in set(address.methods) - {"GET"}:
            if address.name in COMING_AND_GOING:
                continue
            with writes("jobs_admin_auditevent") as written:
                answer = asker_of(root, address).request(method, address, desk.shop)
            body = body_of(answer)
            is_refused = answer.status_code == 403 and config.READ_ONLY.split(" (")[0] in body
            if not is_refused and address.name not in HARMLESS:  # which may answer, and write nothing
                found.append(f"{method} {address.route} answers {answer.status_code}")
            if written:
                found.append(f"{method} {address.route} writes: {written[0]}")
    none_of(found)
    after = digest()
    changed = {table for table in before if before[table] != after[table]}
    assert changed <= {"jobs_admin_auditevent"}


def test_a_read_only_desk_can_be_checked_everywhere(desk, root, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    answers = {
        a.route: really(asker_of(root, a).request("GET", a, desk.shop))
        for a in list_addresses("page")
        if "GET" in a.methods
    }
    assert {route for route, is_ in answers.items() if is_ != IN} == set()
    assert all(a.right == ANYONE or a.methods for a in list_addresses("page"))
