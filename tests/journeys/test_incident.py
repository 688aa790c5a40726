"""The played incident: one button, and what the page tells of it is what happened."""

from __future__ import annotations

import json

import pytest

from demo import control

pytestmark = [pytest.mark.server, pytest.mark.browser, pytest.mark.timeout(300)]

ALL = "tenant:lighthouse state:any"


def press(page, name):
    with page.expect_response(lambda answer: answer.request.method == "POST" and "/demo/" in answer.url) as answered:
        page.get_by_role("button", name=name, exact=True).click()
    assert answered.value.status == 200


def left_as_it_was(desk):
    """Warehouse well, nothing open, nothing dead, its groups resolved."""
    made = json.loads((desk.folder / "up.json").read_text())
    assert control.partner(made["REDRIVE_DEMO_PARTNER_URL"] + "/played")["mode"] == "well"
    for state in ("dead", "retrying", "replaying"):
        assert desk.get("failures", q=f"tenant:lighthouse state:{state}")["count"] == 0
    groups = desk.get("groups", q=ALL)["items"]
    assert groups and {group["state"] for group in groups} == {"resolved"}
    assert {replay["state"] for replay in desk.get("replays")["items"]} <= {"done", "cancelled"}


def test_a_stopped_incident_leaves_the_desk_as_it_was(desk, page):
    desk.wait_until(lambda: desk.get("failures", q="state:dead")["count"] > 2000, "the history is in", within_s=60)
    page.goto("/demo/")
    press(page, "Play the incident")
    page.locator(".acts [aria-current=step]", has_text="A new group").wait_for(timeout=30_000)
    press(page, "Stop it")
    page.get_by_text("Stopped. What was broken is mended").wait_for(timeout=60_000)
    assert desk.get("failures", q=ALL)["count"] > 0
    left_as_it_was(desk)
