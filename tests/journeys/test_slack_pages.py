"""The link between an account and Slack in a browser: from the code to the end of the link."""

from __future__ import annotations

import pytest

from jobs_admin.models import SlackLink
from tests.kit.page_checks import expect, faults_at_sizes, opened
from tests.kit.people import PASSWORD
from tests.kit.slack import MEMBER, person, slack

__all__ = ["slack"]

pytestmark = [pytest.mark.server, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_person_links_a_slack_user_and_ends_the_link(slack, browser, live_server):
    person("ann")
    page = opened(browser, live_server.url, "wide")
    page.goto("/login/?next=/account/")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()

    page.get_by_text("Not linked.").wait_for()
    found = faults_at_sizes(page, "account without a link")
    page.get_by_role("button", name="Create code").click()
    code = page.locator("#slack-code").inner_text().removeprefix("/redrive ")
    found += faults_at_sizes(page, "account with a code")
    assert slack.command(code, name="ann.of.the.night.shift")[0] == 200

    page.get_by_role("link", name="reload this page").click()
    panel = page.locator("#slack")
    expect(panel).to_contain_text(f"ann.of.the.night.shift ({MEMBER}")
    found += faults_at_sizes(page, "account with a Slack user to confirm")
    panel.get_by_label("Your password").fill("wrong")
    panel.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Wrong password. Nothing was changed.")).to_be_visible()
    panel.get_by_label("Your password").fill(PASSWORD)
    panel.get_by_role("button", name="Confirm").click()
    expect(panel).to_contain_text("can approve and reject replays as you")
    found += faults_at_sizes(page, "account with a link")
    assert SlackLink.objects.get().linked_at is not None
    panel.get_by_role("button", name="Unlink").click()
    expect(panel).to_contain_text("Not linked.")
    assert found == [] and not SlackLink.objects.exists()
