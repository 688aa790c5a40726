"""A rule is made with its preview, a channel with a test that arrives: in a browser, against a receiver that verifies."""

from __future__ import annotations

import re
import threading

import httpx
import pytest

from tests.kit.page_checks import expect, faults_at_sizes, fields_under_the_bar, opened
from tests.kit.receiver import Receiver

pytestmark = [pytest.mark.server, pytest.mark.browser]

VERDICT = "#outlook .verdict"


@pytest.fixture
def receiver():
    """A receiver of webhooks, which has no secret before one is set."""
    running = Receiver()
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def call_api(desk, method, path):
    headers = {"Authorization": f"Bearer {desk.token}"}
    return httpx.request(method, f"{desk.url}/api/{path}", headers=headers, timeout=60, trust_env=False)


def layout_faults(page, name):
    """Nothing is wrong with the page as it stands, at both sizes, in light and dark."""
    assert faults_at_sizes(page, name) == []


def save_without_channel(page):
    """Save the rule without a channel: it is asked about once, in the page."""
    for box in page.locator("[name=channels]").all():
        box.uncheck()
    page.get_by_role("button", name="Save rule").click()
    page.locator(".save-bar a:focus", has_text="Select channels").wait_for()
    page.get_by_role("button", name="Save anyway").click()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_rule_is_previewed_while_it_is_typed_refused_beside_its_field_and_saved(page, desk):
    page.complaints = []
    desk.wait_until(
        lambda: desk.get("depth", source="shop", queue="webhooks")["series"], "samples are there", within_s=60
    )
    page.goto("/alerts/rules/")
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Source", exact=True).fill("shop")
    page.get_by_label("Fires above").fill("0")
    page.get_by_label("For at least").fill("0")
    expect(page.locator(VERDICT)).to_contain_text(
        re.compile(r"Would have fired (once|twice|\d+ times) in the last week")
    )
    expect(page.locator("#outlook .has-fired path").first).to_be_attached()
    page.locator("#episodes-table summary").click()
    expect(page.locator("#episodes-table tbody tr").first).to_be_visible()
    layout_faults(page, "drawn")
    assert fields_under_the_bar(page) == {}

    # A bound is missed: said beside its field while it is typed, and gone when it is mended.
    page.get_by_label("For at least").fill("3 d")
    refused = page.locator("#refused-p-for-s")
    expect(refused).to_contain_text("from 0 to 86,400 seconds, a day")
    expect(page.get_by_label("For at least")).to_have_attribute("aria-invalid", "true")
    layout_faults(page, "refused")
    page.get_by_label("Fires above").fill("1000000")
    page.get_by_label("For at least").fill("1 min")
    expect(refused).to_be_empty()
    expect(page.locator(VERDICT)).to_contain_text("Would not have fired in the last week")

    # What means nothing for a metric is not there.
    expect(page.get_by_label("Tenant", exact=True)).to_be_visible()
    page.get_by_label("Metric", exact=True).select_option(label="Age of the oldest dead job")
    expect(page.get_by_label("Tenant", exact=True)).to_be_hidden()
    expect(page.locator("#unit-p-threshold")).to_have_text(re.compile("e.g. 90 s"), use_inner_text=True)
    page.get_by_label("Metric", exact=True).select_option(label="Dead jobs")

    # Saved without a name: nothing is lost. With one: it stands in the list and says what it says.
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#refused-p-name")).to_contain_text("Enter a name")
    expect(page.get_by_label("Fires above")).to_have_value("1000000")
    page.get_by_label("Name", exact=True).fill("Journey of a rule")
    save_without_channel(page)
    page.wait_for_url(re.compile(r"/alerts/rules/\d+/$"))
    (made,) = [one for one in desk.get("rules")["items"] if one["name"] == "Journey of a rule"]
    assert (made["threshold"], made["for_s"], made["source"]) == (1_000_000, 60, "shop")
    page.goto("/alerts/rules/")
    row = page.locator("tr", has_text="Journey of a rule")
    expect(row).to_contain_text("dead jobs of any queue in shop above 1,000,000 for 1 min")
    row.get_by_role("button", name="Disable").click()
    expect(page.locator("tr", has_text="Journey of a rule")).to_contain_text("disabled")
    page.get_by_role("link", name="Journey of a rule").click()
    page.locator("summary", has_text="Delete").click()
    layout_faults(page, "a rule")
    page.get_by_role("button", name="Delete Journey of a rule").click()
    expect(page.locator("#messages")).to_contain_text("deleted.")


def test_a_rule_is_previewed_and_saved_without_scripts(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/alerts/rules/new/?source=shop")
    page.fill("[name=name]", "Plain rule")
    page.fill("[name=threshold]", "1000000")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.locator(VERDICT)).to_contain_text("Would not have fired")
    assert page.input_value("[name=name]") == "Plain rule"
    page.click("#save button.primary")
    page.wait_for_url(re.compile(r"/alerts/rules/\d+/$"))
    number = re.search(r"/alerts/rules/(\d+)/$", page.url)[1]
    context.close()
    assert call_api(desk, "DELETE", f"rules/{number}").is_success


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_channel_is_made_its_secret_shown_once_and_a_test_arrives(page, desk, receiver):
    page.complaints = []
    page.goto("/alerts/channels/")
    page.get_by_role("link", name="New channel").click()
    page.get_by_label("Name", exact=True).press("Tab")  # left empty
    expect(page.locator("#refused-c-name")).to_contain_text("Enter a name.")
    page.get_by_label("Name", exact=True).fill("journey hook")
    expect(page.locator("#refused-c-name")).to_be_empty()
    page.get_by_label("URL").fill("ftp://hooks.example")
    page.get_by_label("URL").press("Tab")
    expect(page.locator("#refused-c-url")).not_to_be_empty()
    expect(page.get_by_label("URL")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("URL").fill("http://169.254.169.254/latest")
    page.get_by_role("button", name="Create channel").click()
    expect(page.locator("#refused-c-url")).to_contain_text("not a public address")
    page.complaints[:] = [message for message in page.complaints if "422" not in message]
    layout_faults(page, "refused channel")
    page.get_by_label("URL").fill(f"http://127.0.0.1:{receiver.server_address[1]}/hook")
    page.get_by_role("button", name="Create channel").click()
    receiver.secret = page.locator("#the-secret").inner_text()
    assert receiver.secret.startswith("whsec_")
    layout_faults(page, "secret")
    assert re.search(r"/alerts/channels/\d+/$", page.url)  # loading it again makes nothing, and shows no secret
    page.reload()
    expect(page.locator("#the-secret")).to_have_count(0)

    page.get_by_role("button", name="Send test").click()
    result = page.locator("#test .result")
    expect(result).to_contain_text("delivered", timeout=90_000)
    expect(result).to_contain_text("204")
    expect(result).to_contain_text(" ms")
    expect(page.locator("#recent li").first).to_contain_text("delivered")  # by itself, as does the line below the name
    expect(page.locator("#stands")).to_contain_text("last delivery delivered")
    (key, reported), refused = receiver.told[0], receiver.refused
    assert refused == [] and key.startswith("ping-") and reported["type"] == "ping"
    layout_faults(page, "tested")

    # Two secrets while it is rotated: the receiver goes on with the old one, and takes the new one.
    page.get_by_role("button", name="Rotate secret").click()
    new = page.locator("#the-secret").inner_text()
    assert new != receiver.secret
    for secret in (receiver.secret, new):
        receiver.secret, before = secret, len(receiver.told)
        page.get_by_role("button", name="Send test").click()
        # The page still tells of the test before.
        desk.wait_until(lambda n=before: len(receiver.told) > n or receiver.refused, "the test arrives", within_s=90)
        expect(page.locator("#test .result")).to_contain_text("delivered", timeout=90_000)
        assert len(receiver.told) == before + 1 and receiver.refused == []
    page.get_by_role("button", name="End rotation").click()
    expect(page.locator("#messages")).to_contain_text("Only the new secret signs")

    # Sent again: the same id.
    page.locator("#test").get_by_role("link", name="Full details").or_(page.locator(".recent a").first).first.click()
    page.wait_for_url(re.compile(r"/alerts/deliveries/\d+/$"))
    layout_faults(page, "a delivery")
    before = len(receiver.told)
    page.get_by_role("button", name="Send again").click()
    desk.wait_until(lambda: len(receiver.told) > before, "it is sent again", within_s=90)
    assert receiver.told[-1][0] in {key for key, _ in receiver.told[:before]}
    page.goto("/alerts/deliveries/")
    layout_faults(page, "deliveries")
    page.goto("/alerts/channels/")
    page.get_by_role("link", name="journey hook").click()
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete journey hook").click()
    expect(page.locator("#messages")).to_contain_text("deleted.")


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_runbook_is_added_changed_and_deleted(page):
    page.complaints = []
    page.goto("/alerts/runbooks/")
    page.get_by_label(re.compile("^Task")).fill("journey.*")
    page.get_by_label("Runbook", exact=True).last.fill("https://wiki.example/journey")
    page.get_by_role("button", name="Save").click()
    row = page.locator("tr", has_text="journey.*")
    expect(row).to_contain_text("https://wiki.example/journey")
    layout_faults(page, "runbooks")
    row.locator("summary").click()
    row.get_by_role("button", name="Delete").click()
    expect(page.locator("#messages")).to_contain_text("deleted.")


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_stale_edit_of_a_rule_is_shown(page, desk, browser, logged_in):
    page.goto("/alerts/rules/new/?source=shop&threshold=900000")
    page.get_by_label("Name", exact=True).fill("Edited by two")
    save_without_channel(page)
    page.wait_for_url(re.compile(r"/alerts/rules/\d+/$"))
    number = re.search(r"/(\d+)/$", page.url)[1]
    other = opened(browser, desk.url, "wide", storage_state=logged_in)
    other.goto(page.url)
    page.get_by_label("Fires above").fill("800000")
    expect(page.locator("#unsaved")).to_contain_text("1 unsaved change")
    page.get_by_role("link", name="Discard changes").click()
    expect(page.get_by_label("Fires above")).to_have_value("900000")
    page.get_by_label("Fires above").fill("800000")
    page.get_by_role("button", name="Save rule").click()
    expect(page.locator("#messages")).to_contain_text("saved.")
    other.get_by_label("Fires above").fill("700000")
    other.get_by_role("button", name="Save rule").click()
    expect(other.locator(".stale")).to_contain_text("admin changed this rule")
    other.complaints[:] = [message for message in other.complaints if "409" not in message]
    layout_faults(other, "stale")
    assert call_api(desk, "GET", f"rules/{number}").json()["threshold"] == 800_000
    other.context.close()
    assert call_api(desk, "DELETE", f"rules/{number}").is_success
