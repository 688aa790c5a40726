"""An outage is seen on the desk, and the breaker is forced closed, open and back to automatic on its page."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
import redis

from jobs_admin.core import keys
from tests.kit import breakers
from tests.kit.browser import WITHIN_S
from tests.kit.page_checks import SIZES, expect, faults

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk
SOURCE, NAME = "outlet", "depot"  # a source whose only worker is a heartbeat: no other hand writes its breaker
PATH = f"/breakers/{SOURCE}/{NAME}/"
NARROW = {"smallest": {"width": 320, "height": 640}} | SIZES


@pytest.fixture
def store(desk):
    made = json.loads((desk.folder / "up.json").read_text())
    with redis.Redis.from_url(made["REDRIVE_REDIS_URL"]) as client:
        yield client


@pytest.fixture
def policy(desk, store):
    beat = {"name": "w1", "boot": "b", "mode": "enforce", "queues": ["orders"], "breakers": [NAME]}
    is_over = threading.Event()

    def send_heartbeats():  # a busy desk may come to it when a single one has expired
        while not is_over.wait(1):
            store.hset(keys.workers(SOURCE), "w1", json.dumps(beat | {"at": time.time()}))

    sender = threading.Thread(target=send_heartbeats)
    sender.start()
    address, headers = f"{desk.url}/api/policies/orders", {"Authorization": f"Bearer {desk.token}"}
    match = {"source": SOURCE, "queue": "orders", "task": "*"}
    document = {"match": match, "mode": "enforce", "breaker": {"dependency": NAME}}
    body = document | {"expected_version": 0, "reason": "outages"}
    made = httpx.put(address, json=body, headers=headers, timeout=WITHIN_S, trust_env=False)
    assert made.is_success, made.text
    desk.wait_until(
        lambda: any(one["source"] == SOURCE for one in desk.get("breakers")["items"]),
        "the source is known",
        within_s=60,
    )
    yield document
    is_over.set()
    sender.join()
    store.delete(keys.breakers(SOURCE))
    gone = httpx.request("DELETE", address, json={}, headers=headers, timeout=WITHIN_S, trust_env=False)
    assert gone.is_success, gone.text


def check(page, name: str) -> None:
    for size_name, size in NARROW.items():
        page.set_viewport_size(size)
        assert faults(page, f"{name} {size_name}") == []
    page.set_viewport_size(SIZES["wide"])


def test_an_outage_is_seen_and_its_breaker_forced_closed_open_and_automatic(page, desk, store, policy):
    page.complaints = []
    breaker = breakers.opened(NAME, at=time.time() - 300, on_hold=1_243)
    breakers.store(store, breaker, SOURCE)
    desk.wait_until(lambda: desk.get(f"breakers/{NAME}")["history"], "watch has recorded the opening", within_s=90)
    page.goto("/")
    banner = page.locator(".banner", has_text="depot has been down since")
    expect(banner).to_contain_text("1,243 jobs held, none dead")
    banner.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("depot has been down since")
    expect(page.locator("#breaker")).to_contain_text("TimeoutError: partner.example")
    expect(page.locator("#breaker")).to_contain_text(
        "If forced closed now: 1,243 jobs would start at the careful pace."
    )
    check(page, "open breaker")
    breaker.tick(time.time(), 1_200)
    breakers.store(store, breaker, SOURCE)
    expect(page.locator("h1")).to_contain_text("1,200 jobs held", timeout=90_000)  # without a reload

    page.locator("#closed-menu > summary").click()
    for size in NARROW.values():
        page.set_viewport_size(size)
        place = page.locator("#closed-menu .menu-body").bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= size["width"], size
    page.locator("#closed-reason").fill("It answers")
    page.get_by_role("button", name="Start jobs for 15 min").click()
    expect(page.locator("#messages")).to_contain_text("depot is forced closed")
    expect(page.locator("h1")).to_contain_text("depot is forced closed by")
    check(page, "breaker forced closed")

    page.get_by_role("button", name="Return to automatic").click()
    expect(page.locator("#messages")).to_contain_text("depot is automatic again.")
    expect(page.get_by_role("button", name="Return to automatic")).to_have_count(0)

    page.locator("#open-menu > summary").click()
    page.locator("#open-reason").fill("Maintenance")
    page.get_by_role("button", name="Hold until changed").click()
    expect(page.locator("h1")).to_contain_text("depot is forced open by")
    assert breakers.stored(store, NAME, SOURCE).forced["reason"] == "Maintenance"
    page.goto("/breakers/")
    expect(page.locator("tr", has_text=NAME)).to_contain_text("open")
    check(page, "breakers")
    page.goto(PATH)
    page.get_by_role("button", name="Return to automatic").click()
    expect(page.locator("#messages")).to_contain_text("depot is automatic again.")
    expect(page.locator("#breaker")).to_contain_text("Forced open by")


def test_a_breaker_is_forced_without_javascript(browser, logged_in, desk, store, policy):
    breakers.store(store, breakers.opened(NAME, on_hold=5), SOURCE)
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(PATH)
    page.locator("#closed-menu > summary").click()
    page.locator("#closed-reason").fill("It answers")
    page.get_by_role("button", name="Start jobs for 1 h").click()
    expect(page.locator("h1")).to_contain_text("depot is forced closed by")
    assert breakers.stored(store, NAME, SOURCE).forced["as"] == "closed"
    context.close()
