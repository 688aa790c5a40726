"""A queue is paused and resumed on its page, with real workers: none of its jobs starts in between."""

from __future__ import annotations

import pytest

from tests.kit.page_checks import SIZES, expect, faults

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk
PATH = "/queues/shop/reports/"


def waiting(desk) -> int:
    found = [one["waiting"] for one in desk.get("queues", limit=500)["items"] if one["queue"] == "reports"]
    return (found or [0])[0] or 0


def test_a_queue_is_paused_and_resumed_and_its_jobs_wait_meanwhile(page, desk):
    page.complaints = []
    page.goto(PATH)
    page.locator("#pause-menu > summary").click()
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        place = page.locator("#pause-menu .menu-body").bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= size["width"], name
    page.get_by_label("Reason (required)").fill("The partner is down")
    page.get_by_role("button", name="15 min").click()
    expect(page.locator("#messages")).to_contain_text("Paused reports until")
    banner = page.locator(".banner", has_text="The partner is down")
    expect(banner).to_contain_text("Paused by")
    desk.wait_until(lambda: desk.get("pauses")["items"][0]["workers"]["in_force"], "the workers obey", within_s=90)
    page.reload()
    expect(banner).to_contain_text("In force in ")
    desk.send("shop.reporting.read_scan", "reports", tenant="pause-journey", scan=1, pages=1)
    desk.wait_until(lambda: waiting(desk) >= 1, "the job is seen to wait", within_s=90)
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        assert faults(page, f"paused queue {name}") == []
    page.goto("/queues/")
    expect(page.locator("tr", has=page.get_by_role("link", name="reports", exact=True)).first).to_contain_text("paused")
    page.goto("/")
    expect(page.locator(".banner", has_text="Paused: queue reports until ")).to_have_count(1)
    page.goto("/pauses/")
    expect(page.get_by_text("The partner is down")).to_have_count(1)
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        assert faults(page, f"pauses {name}") == []
    page.goto(PATH)
    banner.get_by_role("button", name="Resume").click()
    expect(page.locator("#messages")).to_contain_text("Resumed reports.")
    expect(banner).to_have_count(0)
    desk.wait_until(lambda: waiting(desk) == 0, "the job has started", within_s=90)
    (ended,) = desk.get("pauses", ended="true")["items"]
    assert ended["resumed_by"] and desk.get("pauses")["count"] == 0
