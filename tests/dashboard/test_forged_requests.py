"""Forged requests of a browser, methods that no view declares, and rights that were revoked meanwhile.

Made from the URLconf, so that an address which is added is tried too.
"""

from __future__ import annotations

import json

import pytest
from django.test import Client

from dashboard.web.rights import ANYONE, Address
from jobs_admin.models import ApiToken, Role
from jobs_admin.models.access import OPERATOR, RANK
from tests.kit import endurance
from tests.kit.matrix import (
    Asker,
    come,
    digest,
    form_for,
    keys_of,
    list_addresses,
    none_of,
    path_of,
    token,
    undone,
    writes,
)

EVERY_METHOD = ("OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "POST")


def acts(*kinds: str) -> list[tuple[Address, str]]:
    return [(address, method) for address in list_addresses(*kinds) for method in address.methods if method != "GET"]


def test_no_form_is_taken_that_a_page_of_ours_did_not_send(desk):
    person, found = come("root", staff=True), []
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = person.cookies
    for address, method in acts("page", "admin"):
        for headers in ({"HX-Request": "true"}, {"Origin": "https://evil.example", "X-CSRFToken": "a" * 64}):
            with undone(), writes() as written:
                path = path_of(address, desk.shop)
                answer = strict.generic(method, path, json.dumps({}), "application/json", headers=headers)
                formed = strict.post(path, form_for(address, desk.shop), headers=headers)
            if {answer.status_code, formed.status_code} != {403} or written:
                found.append(f"{method} {address.route}: {answer.status_code}, {formed.status_code}, {written[:1]}")
    none_of(found)


def test_a_call_of_the_api_is_not_made_by_a_person_who_is_logged_in(desk):
    asker, found = Asker(come("root", staff=True)), []
    for address in list_addresses("api"):
        for method in address.methods:
            with undone(), writes() as written:
                status = asker.request(method, address, desk.shop).status_code
            if written or status != (404 if address.right == ANYONE else 401):
                found.append(f"{method} {address.route}: {status}")
    none_of(found)


@pytest.mark.long("Asks every address by every method that it does not declare.")
def test_a_method_that_no_address_declares_changes_nothing(desk, watched):
    page, call, found = come("root", staff=True), Client(headers={"Authorization": f"Bearer {token('root')}"}), []
    declared: dict[str, set[str]] = {}
    for address in list_addresses("page", "api", "admin"):
        declared.setdefault(address.route, set()).update(address.methods)
    before, keys = digest(), keys_of(watched)
    for n, address in enumerate(list_addresses("page", "api", "admin")):
        undeclared = [method for method in EVERY_METHOD if method not in declared[address.route]]
        if not endurance.IS_ON:  # POST, and one of the others, each in its turn
            others = [method for method in undeclared if method != "POST"]
            undeclared = [*(set(undeclared) - set(others)), others[n % len(others)]]
        for method in undeclared:
            client, path = (call if address.kind == "api" else page), path_of(address, desk.shop)
            with writes("jobs_admin_auditevent") as written:  # that it was refused is written down
                answer = client.generic(method, path, json.dumps({"reason": "because"}), "application/json")
            if written or answer.status_code >= 500:
                found.append(f"{method} {address.route} answers {answer.status_code}: {written[:1]}")
    none_of(found)
    after = digest()
    assert {table for table in before if before[table] != after[table]} <= {"jobs_admin_auditevent"}
    assert keys_of(watched) == keys


@pytest.mark.parametrize("left", [None, "viewer"])
def test_who_lost_a_role_acts_no_more_though_pages_still_remember_it(desk, left):
    client, found = come("operator"), []
    asker, mine = Asker(client), Role.objects.filter(user__username="p-operator")
    assert client.get("/failures/").status_code == 200
    # As another process does: what this one remembers is not told of it.
    mine._raw_delete("default") if left is None else mine.update(role=left)
    for address, method in acts("page"):
        if RANK.get(address.right_to(method), 0) < RANK[OPERATOR]:
            continue
        with undone(), writes("jobs_admin_auditevent") as written:
            status = asker.request(method, address, desk.shop).status_code
        if written or status != 403:
            found.append(f"{method} {address.route}: {status} {written[:1]}")
    none_of(found)


def test_a_token_that_is_revoked_calls_no_more(desk):
    asker, found = Asker(Client(), token("operator")), []
    ApiToken.objects.filter(name__contains="operator").update(revoked_at="2026-01-01T00:00Z")
    for address in list_addresses("api"):
        for method in address.methods:
            with undone(), writes() as written:
                status = asker.request(method, address, desk.shop).status_code
            if written or status != (404 if address.right == ANYONE else 401):
                found.append(f"{method} {address.route}: {status}")
    none_of(found)
