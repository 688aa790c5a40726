"""A queue is paused and resumed on its page, with real workers: none of its jobs starts in between."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.kit.page_checks import faults, opened

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk
PATH = "/queues/shop/reports/"


@pytest.fixture
def page(desk, browser, logged_in) -> Iterator:
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    yield page
    page.context.close()


def test_a_queue_is_paused_and_resumed_and_its_jobs_wait_meanwhile(desk, page):
    page.goto(PATH)
    page.locator("#pause-menu > summary").click()
    page.get_by_label("Reason (required)").fill("The partner is down")
    page.get_by_role("button", name="15 min").click()
    banner = page.locator(".banner", has_text="The partner is down")
    banner.wait_for()
    assert page.locator(".toast", has_text="Paused reports until").count() == 1
    in_force = re.compile(r"In force in (\d+) of \1 worker")
    desk.wait_until(lambda: (page.reload(), in_force.search(banner.inner_text()))[1], "the workers obey", 30)
    assert faults(page, "queue") == []
    desk.send("shop.report", "reports", day=1)
    time.sleep(2)
    waiting = [one["waiting"] for one in desk.get("queues", limit=500)["items"] if one["queue"] == "reports"]
    assert waiting
    page.goto("/queues/")
    assert page.locator("tr", has_text="reports").get_by_text("paused").count() == 1
    page.goto("/pauses/")
    assert page.get_by_text("The partner is down").count() == 1
    assert faults(page, "pauses") == []
    page.goto(PATH)
    banner.get_by_role("button", name="Resume").click()
    page.locator(".toast", has_text="Resumed reports").wait_for()
    assert banner.count() == 0
    assert desk.get("pauses")["count"] == 0
    assert desk.get("pauses", ended="true")["items"][0]["resumed_by"]
