"""A job that ends every process which runs it, from the shop's queue into quarantine and out of it, in a real browser."""

from __future__ import annotations

import pytest

from tests.kit.page_checks import SIZES, expect, faults

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk
TENANT = "pill-journey"


@pytest.fixture
def pill(desk):
    """One that the shop is sent by hand, for a tenant of its own, once it is in quarantine: the failure, as the API has it."""
    desk.wait_until(lambda: desk.get("policies/scans")["workers"]["current"], "the worker runs the policy", within_s=60)
    desk.send("shop.reporting.read_scan", "reports", tenant=TENANT, scan=1, pages=4_000)
    query = f"tenant:{TENANT} state:any"

    def find_quarantined():
        return [one for one in desk.get("failures", q=query)["items"] if one["state"] == "quarantined"]

    (found,) = desk.wait_until(
        find_quarantined,
        "it is quarantined",
        within_s=90,
        progress=lambda answer: [(one["state"], one["attempts"], one["failed_at"]) for one in answer["items"]],
    )
    return found


def test_a_pill_is_seen_with_its_crashes_readmitted_and_put_aside(page, desk, pill):
    page.complaints = []
    page.goto("/quarantine/")
    row = page.locator(f"#held-{pill['id']}")
    expect(row).to_contain_text("3 crashes in")
    row.locator("details.crashes").evaluate("it => it.open = true")
    expect(row.locator(".crash-list li")).to_have_count(3)
    expect(row).to_contain_text("hard time limit exceeded")
    for name, size in SIZES.items():
        page.set_viewport_size(size)
        row.get_by_text("Discard…").click()
        place = row.locator(".menu-body").bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= size["width"]
        assert faults(page, f"quarantine {name}") == []
        page.keyboard.press("Escape")
    row.get_by_role("button", name="Readmit").click()
    expect(page.locator("#messages")).to_contain_text("Readmitted. The job is dead and can be replayed.")
    expect(row).to_have_count(0)
    assert desk.get(f"failures/{pill['id']}")["state"] == "dead"
