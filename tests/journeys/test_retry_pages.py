"""Waiting retries of a jobs table are given another curve in a real browser, on a wide screen and on a phone."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from jobs_admin import config
from jobs_admin.models import Failure
from jobs_admin.retries import pulling
from tests.kit.jobs_tables import OnSQLite
from tests.kit.page_checks import SIZES, expect, faults, opened
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.server, pytest.mark.browser]


@pytest.fixture
def table(settings, tmp_path, store, transactional_db):
    made = OnSQLite(tmp_path / "shop.db")
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.shop]\nbackend = "jobs_table"\nurl = "{made.url}"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    for n in range(40):
        made.enqueue(f"j{n}", max_attempts=9)
        [made.fail(f"j{n}") for _ in range(1 + n % 5)]
    while pulling.pull("shop", "test"):
        pass
    yield made
    made.close()
    config.adapter("shop").close()
    forget_configuration(config)


@pytest.mark.long("Drives a browser through pages of a running server.")
@pytest.mark.parametrize("size", SIZES)
def test_retries_get_another_curve_and_have_it_taken_back(table, live_server, browser, size):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("first", password="x"))
    page = opened(browser, live_server.url, size)
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    page.goto(f"/failures/{Failure.objects.latest('pk').pk}/")
    page.get_by_role("link", name="Reschedule…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Reschedule 1 retry?")
    page.get_by_role("link", name="all waiting retries there").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Reschedule 40 retries?")
    found = faults(page, f"reschedule {size}")
    page.get_by_label("First wait").fill("a while")
    page.get_by_role("button", name="Recalculate").click()
    expect(page.locator("#retry-first-refused")).to_be_visible()
    page.complaints.clear()  # the browser notes each answer of 422
    found += faults(page, f"reschedule refused {size}")
    page.get_by_label("First wait").fill("1 min")
    page.get_by_role("button", name="Recalculate").click()
    expect(page.get_by_role("group", name="Waits by attempt").locator("tbody tr").last).to_contain_text("16 min")
    page.get_by_label("Reason").fill("linear is too quick")
    page.get_by_role("button", name="Reschedule 40 retries").click()
    page.wait_for_url(re.compile(r"/retries/\d+/$"))
    pulling.pull("shop", "test")
    expect(page.locator("h1")).to_have_text("40 retries rescheduled")
    page.complaints.clear()
    found += faults(page, f"rescheduled {size}")
    page.get_by_text("Undo…").click()
    with page.expect_navigation():
        page.get_by_role("button", name="Restore previous schedule").click()
    pulling.pull("shop", "test")
    expect(page.locator("h1")).to_have_text("40 retries restored")
    page.context.close()
    assert found == [], "\n".join(["", *found])
