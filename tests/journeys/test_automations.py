"""An automation is written, previewed on the stored day, enabled, acts, and is stopped, on real servers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.kit.page_checks import SIZES, expect, faults, fields_under_the_bar

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk


def check_page(page, name: str) -> None:
    """Check the page at both sizes; with PICTURES, a folder, store how it looks there."""
    for size, viewport in SIZES.items():
        page.set_viewport_size(viewport)
        assert faults(page, f"{name} {size}") == []
        if folder := os.environ.get("PICTURES"):
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=Path(folder) / f"{name}-{size}-{scheme}.png", full_page=True)
            page.emulate_media(color_scheme="light")
    page.set_viewport_size(SIZES["wide"])


def test_an_automation_is_previewed_enabled_acts_and_is_stopped(page, desk):
    page.complaints = []
    desk.wait_until(lambda: desk.get("failures", q="state:any")["count"] > 2_000, "the day is filed", within_s=90)
    page.goto("/automations/")
    expect(page.get_by_role("link", name="partner-is-back")).to_be_visible()
    check_page(page, "automations")
    page.goto("/automations/partner-is-back/")
    expect(page.locator("main")).to_contain_text("the automation would have acted")
    check_page(page, "example")
    page.goto("/automations/new/?source=shop&q=queue:webhooks")
    page.get_by_label("Name").fill("webhooks-back")
    page.get_by_label("No new failure for").fill("0 s")
    page.get_by_label("Maximum jobs per hour").fill("5")
    expect(page.locator("#outlook")).to_contain_text(re.compile(r"the automation would have acted [\d,]+ times?"))
    check_page(page, "form")
    assert fields_under_the_bar(page) == {}
    page.get_by_role("button", name="Save automation").click()
    expect(page.locator("#messages")).to_contain_text("saved, in dry run")
    page.locator("summary", has_text="Enable…").click()
    page.get_by_role("button", name="Enable webhooks-back").click()
    expect(page.locator("#messages")).to_contain_text("webhooks-back is live.")

    def find_act():
        items = desk.get("automations/webhooks-back/diary")["items"]
        return next((one for one in items if one["state"] == "done"), None)

    # Nothing of it moves before: it is due every ten seconds, and waits where the shop's reports are behind.
    act = desk.wait_until(find_act, "it acts", within_s=180)
    assert desk.get(f"replays/{act['replay']}")["reason"] == "Automation webhooks-back."
    page.goto("/automations/webhooks-back/")
    link = page.get_by_role("link", name=re.compile(rf"Replay #{act['replay']} of"))
    expect(link).to_be_visible()
    check_page(page, "live")
    link.click()
    expect(page.locator("main")).to_contain_text("started by the automation webhooks-back")
    page.goto("/automations/")
    page.locator("summary", has_text="Stop all…").click()
    page.get_by_role("button", name="Stop all automations").click()
    expect(page.locator("#messages")).to_contain_text("1 automation stopped.")
    assert {one["state"] for one in desk.get("automations")["items"]} == {"dry_run"}
