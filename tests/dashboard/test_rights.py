"""Every address of the URLconf, asked for by everybody: who is let in is what its declared right says, and no more."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client
from django.urls import include, path
from django.views.decorators.http import require_safe

from dashboard import routes
from dashboard.web import rights
from dashboard.web.access import can
from dashboard.web.rights import ANYONE, NO_ROLE, PERMISSION, STAFF, USER, Address, addresses
from jobs_admin.models import ApiToken
from jobs_admin.models.access import ADMIN_OF_ALL, INCLUDES, OPERATOR
from tests.kit.matrix import (
    CANARY,
    IN,
    LOGIN,
    MISSING,
    NUMBER,
    PEOPLE,
    REFUSED,
    SHOP,
    TOKEN,
    Asker,
    Desk,
    body_of,
    come,
    has_object,
    is_of_desk,
    is_of_person,
    list_addresses,
    none_of,
    really,
    token,
    undone,
    writes,
)  # fmt: skip

PINNED = Path(__file__).resolve().parents[1] / "pinned/rights.md"
LEAKS = re.compile(rf"{CANARY}|{NUMBER}|{NUMBER:,}", re.IGNORECASE)


def expected(address: Address, method: str, person: str) -> str:
    """Return the expected answer to a person by the declared right, for an address about the shop."""
    right = address.right_to(method)
    if address.kind == "api":
        return _of_call(address, method, right, person)
    roles = PEOPLE[person]
    if address.name == "slack":
        return REFUSED  # admits a signature of Slack, and no person
    if right == ANYONE:
        return IN
    if roles is None:
        return LOGIN
    if right in {USER, STAFF}:
        return IN
    if right not in INCLUDES:
        is_allowed = {ADMIN_OF_ALL: person == "root", PERMISSION: person == "root", NO_ROLE: False}[right]
        return IN if is_allowed else REFUSED
    if not any(right in INCLUDES[role] for role in roles.values()):
        return REFUSED
    of_desk = is_of_desk(address) and address.kind == "page"
    if ((is_of_person(address) and "<" in address.route) or of_desk) and method != "GET":
        return IN if person == "root" else REFUSED  # its owner, and an admin of every source
    if not has_object(address) or person == "root":
        return IN
    if SHOP not in roles:
        return MISSING
    return IN if right in INCLUDES[roles[SHOP]] else REFUSED


def _of_call(address: Address, method: str, right: str, person: str) -> str:
    roles = PEOPLE[person]
    if right == ANYONE:
        return MISSING  # no call is there
    if not roles:
        return TOKEN
    (source, role), *_ = roles.items()
    of_all = (is_of_person(address) and "<" in address.route) or is_of_desk(address)
    if right not in INCLUDES[role] or (of_all and method != "GET" and source != "*"):
        return REFUSED
    return MISSING if has_object(address) and source not in {SHOP, "*"} else IN


def faults(asker: Asker, desk: Desk, person: str, wanted: list[Address]) -> list[str]:
    found = []
    for address in wanted:
        for method in address.methods:
            should = expected(address, method, person)
            with undone(), writes("jobs_admin_auditevent") as written:
                answer = asker.request(method, address, desk.shop)
            is_, body = really(answer), body_of(answer).replace(answer.request["PATH_INFO"], "")
            if should != IN and written:
                found.append(f"{method} {address.route}: {is_}, and yet something was written: {written[0]}")
            if not fits(address, should, is_, person):
                found.append(f"{method} {address.route} ({address.name}): {is_} ({answer.status_code}), not {should}")
            if SHOP not in (PEOPLE[person] or {}) and person != "root" and (leak := LEAKS.search(body)):
                near = body[max(0, leak.start() - 90) : leak.end() + 30]
                found.append(f"{method} {address.route} ({address.name}) tells {near!r}")
    return found


def fits(address: Address, should: str, really: str, person: str) -> bool:
    if really == should:
        return True
    if address.kind == "admin":
        # Django's admin asks for the record first, or for the right first; and what it has of others may be empty.
        lenient = {REFUSED, MISSING} | ({IN} if address.right in {STAFF, PERMISSION} and should == IN else set())
        return {should, really} <= lenient
    # Where somebody may look at a thing but not act on it, its page says so: with 409 or a word, and nothing is changed.
    return (person == "mixed" or is_of_person(address)) and should == REFUSED and really == IN


@pytest.mark.parametrize("person", PEOPLE)
def test_each_page_lets_in_whom_its_right_names_and_shows_the_others_nothing(desk, person):
    none_of(faults(Asker(come(person)), desk, person, list_addresses("page")))


@pytest.mark.parametrize("person", [name for name in PEOPLE if name != "mixed"])
def test_each_call_lets_in_the_tokens_that_its_right_names_and_shows_the_others_nothing(desk, person):
    none_of(faults(Asker(come(person), token(person)), desk, person, list_addresses("api")))


@pytest.mark.parametrize("person", PEOPLE)
def test_each_address_of_the_admin_lets_in_the_staff_that_its_right_names(desk, person):
    none_of(faults(Asker(come(person, staff=True)), desk, person, list_addresses("admin")))


def test_a_token_limited_to_calls_makes_only_these_whatever_its_role(desk):
    asker, found = Asker(Client(), token("root")), []
    ApiToken.objects.filter(name="t-root").update(calls="report_release list_*")
    for address in list_addresses("api"):
        if address.right == ANYONE:
            continue
        # The description of all calls is for every token.
        is_meant = re.match(r"api:(report_release|list_.*|openapi-json)\Z", address.name) is not None
        for method in address.methods:
            with undone(), writes("jobs_admin_auditevent") as written:
                answer = really(asker.request(method, address, desk.shop))
            if (answer != REFUSED) != is_meant or (written and not is_meant):
                found.append(f"{method} {address.route} ({address.name}): {answer} {written[:1]}")
    none_of(found)


def test_what_belongs_to_two_sources_shows_only_of_the_one_that_may_be_seen(desk):
    page, call = Asker(come("elsewhere", staff=True)), Asker(Client(), token("elsewhere"))
    rows = replace(desk.bank, failure=desk.of_shared, group=desk.shared, replay=desk.both, paused=desk.both)
    rows.more.update(failure=desk.of_shared, group=desk.shared, replay=desk.both)
    found = []
    for address in addresses():
        if "GET" in address.methods and not address.name.startswith("demo"):
            answer = (call if address.kind == "api" else page).request("GET", address, rows)
            if leak := LEAKS.search(body := body_of(answer)):
                found.append(f"{address.route} tells {body[max(0, leak.start() - 90) : leak.end() + 30]!r}")
            if has_object(address) and address.right in {"viewer", "operator"} and answer.status_code not in {200, 409}:
                found.append(f"{address.route} answers {answer.status_code}")
    none_of(found)


# --- the pinned table --------------------------------------------------------------------------------------------------

_WORDS = {
    "yes": "yes",
    LOGIN: "log in",
    REFUSED: "403",
    MISSING: "404",
    TOKEN: "401",
}
_COLUMNS = ("nobody", "no role", "viewer", "auditor", "operator", "admin", "elsewhere")
_HEADINGS = ("not logged in", "no role", "viewer", "auditor", "operator", "admin", "admin elsewhere")


def table(wanted: list[Address]) -> list[str]:
    """A row for each address and method, by address: the API and the admin are declared in the order of their first import."""
    lines = [f"| address | method | right | {' | '.join(_HEADINGS)} |", "|---" * (3 + len(_HEADINGS)) + "|"]
    for address in sorted(wanted, key=lambda one: (one.route, one.methods)):
        route = re.sub(r"\(\?P(<\w+>)(?:[^()]|\([^()]*\))*\)", r"\1", address.route).removesuffix("$")
        for method in address.methods:
            right = address.right_to(method)
            answers = " | ".join(_WORDS[expected(address, method, person)] for person in _COLUMNS)
            lines.append(f"| `{route}` | {method} | {right} | {answers} |")
    return lines


_INTRODUCTION = """# The right of each address

Pinned: `WRITE_PINS=1 python3 manage.py test tests/dashboard/test_rights.py -k pinned` writes a change that is meant. People read
[rights](../../docs/rights.md).

*viewer*, *auditor*, *operator* and *admin* hold that role on the source that the request is about, *admin elsewhere* is admin of another source
only. *admin of all* is admin of every source; *permission* is one of Django's own, which superusers hold; *nobody* includes superusers.
Of a saved view the table is about another person's.
"""
_PARTS = {"Pages": "page", "API, by token": "api", "Django's admin, by staff": "admin"}


def right_of_each_address() -> str:
    parts = [f"## {title}\n\n" + "\n".join(table(list_addresses(kind))) + "\n" for title, kind in _PARTS.items()]
    return "\n".join([_INTRODUCTION, *parts])


def test_the_pinned_table_has_the_declared_right_of_each_address():
    found = right_of_each_address()
    if os.environ.get("WRITE_PINS"):
        PINNED.write_text(found)
    assert PINNED.read_text() == found, (
        f"If the change is meant, write it as {PINNED.name} says, and check docs/rights.md."
    )


# --- an address without a right ----------------------------------------------------------------------------------


@require_safe
def unsaid(request):
    raise AssertionError("never asked")


@can(OPERATOR)
def any_method(request):
    raise AssertionError("never asked")


added = [path("unsaid/", unsaid, name="unsaid"), path("any/", any_method, name="any-method")]
urlpatterns = [path("", include(([*routes.urlpatterns, *added], "redrive"))), path("of-a-host/", unsaid)]


def test_an_address_that_declares_no_right_or_no_methods_keeps_the_desk_from_starting(settings):
    assert rights.every_address_declares_its_right() == []
    settings.ROOT_URLCONF = __name__
    found = {(error.id, error.msg.split()[0]) for error in rights.every_address_declares_its_right()}
    assert found == {("redrive.E001", "/unsaid/"), ("redrive.E002", "/any/")}


def test_a_call_of_the_api_that_declares_no_right_is_closed_to_everybody(rf, db):
    from ninja.operation import PathView

    from dashboard.web.api.errors import door

    def call(request):
        raise AssertionError("never asked")

    made = PathView()
    made.add_operation("", ["GET"], call)
    requested = rf.get("/", headers={"Authorization": f"Bearer {token('root')}"})
    requested.resolver_match = None
    assert door(made.get_view())(requested).status_code == 403
