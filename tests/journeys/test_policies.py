"""A retry policy from its first draft to the way back, in a real browser on a whole desk."""

from __future__ import annotations

import re

import pytest

from tests.kit.page_checks import expect, faults_at_sizes, fields_under_the_bar, opened

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk

SHOWN = "#outlook .verdict"


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_policy_is_drawn_while_it_is_typed_published_made_stricter_and_put_back(page, desk):
    page.complaints = []
    desk.wait_until(
        lambda: desk.get("failures", q="task:shop.hooks.deliver")["count"] > 100, "the history is in", within_s=60
    )
    page.goto("/policies/new/?task=shop.hooks.deliver&preset=webhooks")
    expect(page.locator("#backtest")).to_contain_text(re.compile(r"[\d,]+ matching jobs?"), timeout=90_000)

    # Typed: the words and the picture follow, and what is typed stays.
    page.get_by_label("Max attempts").fill("8")
    expect(page.locator(SHOWN)).to_contain_text("8 attempts")
    expect(page.locator("#outlook .bars .band")).to_have_count(7)
    page.get_by_label("Delays grow").select_option("table")
    expect(page.get_by_label("First delay")).to_be_hidden()
    page.get_by_label("Delays", exact=True).fill("1 s, 30 s, 2 min")
    expect(page.locator("#outlook header")).to_contain_text("1 s, 30 s, 2 min")
    page.get_by_label("Delays grow").select_option("exponential")

    # Refused beside its field while it is typed, and gone when it is mended.
    page.get_by_label("Max delay").fill("1 s")
    refused = page.locator("#refused-p-cap-s")
    expect(refused).to_contain_text("at least the first delay")
    expect(page.get_by_label("Max delay")).to_have_attribute("aria-invalid", "true")
    assert faults_at_sizes(page, "refused") == []
    page.get_by_label("Max delay").fill("10 min")
    expect(refused).to_be_empty()

    # Another error, by its button.
    rows = page.get_by_label("Error class")
    before = rows.count()
    page.get_by_role("button", name="Add error").click()
    expect(rows).to_have_count(before + 1)
    page.get_by_label("Name", exact=True).fill("journey")
    page.get_by_label(re.compile("^Reason for change")).fill("a journey")
    page.get_by_role("button", name="Publish", exact=True).click()
    page.wait_for_url("**/policies/journey/")
    expect(page.locator("#messages")).to_contain_text("Published journey v1. Decisions are recorded, not applied")
    answer = desk.get("policies/journey")
    assert (answer["version"], answer["mode"], answer["max_attempts"]) == (1, "observe", 8)

    # The edit stands beside what is in force, and says what changes.
    page.get_by_label("Max attempts").fill("3")
    expect(page.locator("#outlook .changes")).to_contain_text("Max attempts")
    expect(page.locator("#outlook .lane")).to_have_count(2)
    expect(page.locator("#unsaved")).to_contain_text("1 unpublished change")
    assert fields_under_the_bar(page) == {}
    page.locator("#herd-jobs").fill("45000")
    expect(page.locator("#outlook .herd .said")).to_contain_text(re.compile(r"Peak [\d,]{5,}"))
    for table in page.locator("#outlook .as-table > summary").all():
        table.click()
    page.get_by_label(re.compile("^Enforce")).check()
    expect(page.locator("#unsaved")).to_contain_text("2 unpublished changes")
    expect(page.locator("#unsaved")).to_contain_text("Mode: enforce")
    assert faults_at_sizes(page, "edited") == []
    page.get_by_role("button", name="Publish v2 of journey").click()
    expect(page.locator("#messages")).to_contain_text("Published journey v2. Decisions are applied")

    # And back, from the history.
    page.get_by_role("link", name="Versions").click()
    page.locator("#v1 summary").click()
    page.get_by_role("button", name="Restore v1 in mode observe").click()
    page.wait_for_url("**/policies/journey/")
    assert desk.get("policies/journey")["version"] == 3
    page.locator("summary", has_text="Withdraw").click()
    page.get_by_role("button", name="Withdraw journey").click()
    expect(page.locator("#messages")).to_contain_text("journey is no longer in force.")


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_job_obeys_what_was_published_a_stale_edit_is_shown_and_one_for_a_time_shows_when_it_reverts(
    page, desk, browser, logged_in
):
    page.goto("/policies/new/?task=shop.billing.forecast&preset=fixed")
    page.get_by_label("Name", exact=True).fill("obeyed")
    page.get_by_label("First delay").fill("100 ms")
    page.get_by_label(re.compile("^Enforce")).check()
    page.get_by_role("button", name="Publish", exact=True).click()
    page.wait_for_url("**/policies/obeyed/")
    expect(page.locator("#in-force")).to_contain_text(re.compile("(?<!of )1 worker on v1"), timeout=90_000)
    assert attempts_of_a_job(desk, "obey-1") == ["obeyed@1"] * 3

    stale = opened(browser, desk.url, "wide", storage_state=logged_in)
    stale.goto("/policies/obeyed/")
    page.get_by_label("Max attempts").fill("2")
    page.get_by_role("button", name="Publish v2 of obeyed").click()
    expect(page.locator("#in-force")).to_contain_text(re.compile("(?<!of )1 worker on v2"), timeout=90_000)
    assert attempts_of_a_job(desk, "obey-2") == ["obeyed@2"] * 2

    # Somebody else began at v1: nothing is published, what differs is told, and what they did not touch can be taken over.
    stale.get_by_label("Max delay").fill("5 min")
    stale.get_by_role("button", name="Publish v2 of obeyed").click()
    expect(stale.locator(".stale")).to_contain_text("admin published version 2 after version 1. Nothing was changed")
    assert desk.get("policies/obeyed")["version"] == 2
    assert faults_at_sizes(stale, "stale") == []
    stale.get_by_role("button", name="Merge changes").click()
    expect(stale.get_by_label("Max attempts")).to_have_value("2")
    expect(stale.get_by_label("Max delay")).to_have_value("5 min")
    stale.get_by_label("Auto-revert").select_option(label="in 1 hour")
    stale.get_by_role("button", name="Publish v3 of obeyed").click()
    expect(stale.locator("#in-force")).to_contain_text(re.compile(r"reverts in (59 min|1 h)"))
    expect(stale.locator("#publish")).to_contain_text("v3 is in force again, or an earlier version")
    answer = desk.get("policies/obeyed")
    assert (answer["version"], answer["max_attempts"], answer["cap_s"], answer["reverts_to"]) == (3, 2, 300, 2)
    assert faults_at_sizes(stale, "for a time") == []
    stale.context.close()


def attempts_of_a_job(desk, tenant):
    """Sends a job that fails whenever it is tried: by which policy each attempt was judged, when it is dead."""
    desk.send("shop.billing.forecast", "payments", tenant=tenant, account=1, takings=[])
    query = f"tenant:{tenant} state:dead"
    (dead,) = desk.wait_until(lambda: desk.get("failures", q=query)["items"], "the job is dead", within_s=90)
    (run,) = desk.get(f"failures/{dead['id']}")["runs"]
    return [attempt["policy"] for attempt in run["attempts"]]


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_policy_is_tried_out_and_published_without_scripts(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/policies/new/?preset=emails&task=shop.mailer.relay")
    page.fill("[name=max_attempts]", "6")
    page.click("text=Recalculate")
    expect(page.locator(SHOWN)).to_contain_text("6 attempts")
    page.fill("[name=name]", "plain")
    page.click(".save-bar button.primary")
    page.wait_for_url("**/policies/plain/")
    page.goto("/policies/plain/versions/")
    assert "First version." in page.content()
    page.goto("/policies/plain/")
    page.click("summary:has-text('Withdraw')")
    page.click("text=Withdraw plain")
    expect(page.locator("#messages")).to_contain_text("plain is no longer in force.")
    context.close()
