"""The second factor in a browser: set-up, recovery codes, both ways of logging in, and a session ended from afar."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pyotp
import pytest
from cryptography.fernet import Fernet
from django.contrib.auth import get_user_model
from django.utils import timezone

from jobs_admin import config
from jobs_admin.models import Role
from tests.kit.page_checks import expect, faults, opened
from tests.kit.people import PASSWORD

pytestmark = [pytest.mark.server, pytest.mark.browser]

RECOVERY_CODE = re.compile(r"(?:\w{4}-){3}\w{4}")


@pytest.fixture
def person(store, settings, transactional_db):
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()
    user = get_user_model().objects.create_user("ann", password=PASSWORD)
    Role.objects.create(user=user, source="*", role="operator")
    yield user
    config.payload_keys.cache_clear()


@pytest.fixture
def visit(browser, live_server, person):
    """Open another browser's page at the login, enter the password, and return the page."""

    def enter():
        page = opened(browser, live_server.url, "wide")
        page.goto("/login/?next=/account/")
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        return page

    return enter


def enter_code(page, code: str, label: str = "Code", button: str = "Log in") -> None:
    page.get_by_label(label).fill(code)
    page.get_by_role("button", name=button).click()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_person_sets_it_up_and_logs_in_with_codes_of_both_kinds_and_ends_a_session(visit):
    page = visit()
    page.get_by_label("Your password").wait_for()
    found = faults(page, "account without a second factor")
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Set up second factor").click()

    # The picture is drawn from the link; the key below it is the same.
    expect(page.get_by_role("img", name="QR code of the key").locator("svg")).to_be_visible()
    link = page.get_by_role("link", name="open the app").get_attribute("href")
    key = page.locator("code.key").inner_text().replace(" ", "")
    assert parse_qs(urlsplit(link).query)["secret"] == [key]
    app = pyotp.TOTP(key)
    found += faults(page, "set-up")
    enter_code(page, "12345", "Code from the app", "Set up second factor")
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed.")
    found += faults(page, "set-up refused")
    enter_code(page, app.at(timezone.now()), "Code from the app", "Set up second factor")

    recovery = RECOVERY_CODE.findall(page.locator("#codes").inner_text())
    assert len(recovery) == 10
    found += faults(page, "recovery codes")
    page.get_by_role("link", name="Continue").click()
    expect(page.get_by_text("10 recovery codes left.")).to_be_visible()
    assert not RECOVERY_CODE.search(page.content()), "shown once"
    found += faults(page, "account")

    page.get_by_role("button", name="Log out").first.click()
    page.wait_for_url("**/login/")

    phone = visit()
    phone.get_by_role("heading", name="Enter code").wait_for()
    found += faults(phone, "code")
    enter_code(phone, "000 000" if app.at(timezone.now()) != "000000" else "111 111")
    expect(phone.get_by_role("alert")).to_contain_text("You are not logged in.")
    found += faults(phone, "code refused")
    enter_code(phone, app.at(timezone.now(), counter_offset=1))  # the code of the set-up is used up
    phone.wait_for_url("**/account/")

    page = visit()
    enter_code(page, recovery[0].upper())
    page.wait_for_url("**/account/")
    expect(page.get_by_text("9 recovery codes left.")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="This session")).to_have_count(1)
    page.get_by_role("button", name="End session").click()
    expect(page.get_by_role("button", name="End session")).to_have_count(0)
    found += faults(page, "account after ending a session")
    phone.goto("/account/")
    phone.wait_for_url("**/login/?next=/account/")
    assert found == []
