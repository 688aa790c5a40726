"""The page of an incident on a desk at work: from an alert to the file for the post-mortem, with and without a script.

The played incident of the demo is another thing (`test_incident.py`).
"""

from __future__ import annotations

import json

import pytest

from tests.kit.page_checks import SIZES, faults_at_sizes, opened

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk


@pytest.fixture
def alert(desk):
    """The demo's history leaves hundreds of dead jobs: a rule of every installation fires within a minute and a half."""
    fired = desk.wait_until(
        lambda: [one for one in desk.get("alerts", source="shop")["items"] if one["fired_at"] and one["queue"]],
        "an alert fires",
        within_s=150,
    )
    return fired[0]


def test_an_alert_leads_to_its_incident_and_that_to_a_post_mortem(desk, browser, logged_in, alert):
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    page.goto(f"/alerts/{alert['id']}/")
    page.get_by_role("link", name="Incident page").click()
    page.get_by_role("heading", name=f"Incident: {alert['queue']} of shop").wait_for()
    page.locator(".incident-story li", has_text="fired").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Markdown").click()
    text = saved.value.path().read_text()
    assert saved.value.suggested_filename.endswith(".md") and f"# Incident: {alert['queue']} of shop" in text
    with page.expect_download() as saved:
        page.get_by_role("link", name="JSON").click()
    answer = json.loads(saved.value.path().read_text())
    assert "fired" in {one["what"] for one in answer["timeline"]} and answer["url"].startswith(desk.url)
    page.context.close()


@pytest.mark.parametrize("size", SIZES)
def test_it_is_read_on_a_phone_and_without_a_script(desk, browser, logged_in, alert, size):
    page = opened(browser, desk.url, size, storage_state=logged_in, java_script_enabled=False)
    page.goto("/incidents/")
    page.get_by_label("Source").fill("shop")
    page.get_by_label("Queue").fill(alert["queue"])
    page.get_by_label("From UTC").fill("")
    page.get_by_label("To UTC").fill("")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("heading", name=f"Incident: {alert['queue']} of shop").wait_for()
    page.locator("#incident-table summary").click()
    assert page.locator("#incident-table tbody tr").first.is_visible()
    page.context.close()


@pytest.mark.long("Measures a page in a browser in two sizes and both themes.")
def test_it_fits_and_is_accessible_in_both_themes(desk, browser, logged_in, alert):
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    page.goto(f"/incidents/?source=shop&queue={alert['queue']}")
    page.locator("#incident-table summary").click()
    found = faults_at_sizes(page, "incident")
    page.context.close()
    assert found == []
