"""From a failure to its trace and its Sentry event, and from a group to its issue: each opens beside the desk."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from jobs_admin.models import Failure, Group
from tests.kit.page_checks import SIZES, expect, faults, opened
from tests.kit.reports import file, report

pytestmark = [pytest.mark.server, pytest.mark.browser]

TRACE, EVENT = "4bf92f3577b34da6a3ce929d0e0e4736", "0123456789abcdef" * 2
# The browser of a test reaches nothing but this machine: these pages of another origin are the desk's own.
TOOLS = "http://localhost:{port}/healthz"


@pytest.fixture
def page(watched, shop, transactional_db, live_server, browser, settings):
    tools = TOOLS.format(port=live_server.thread.port)
    settings.REDRIVE = settings.REDRIVE | {
        "TRACE_URL": f"{tools}?trace={{trace_id}}",
        "LOGS_URL": f"{tools}?logs={{task}}&from={{from}}",
        "SENTRY_URL": f"{tools}?event={{event_id}}",
        "ISSUE_URL": f"{tools}?title={{title}}&body={{body}}",
    }
    file(report("j1", event_id=EVENT, headers=json.dumps({"traceparent": f"00-{TRACE}-{'1' * 16}-01"})))
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("first", password="x"))
    page = opened(browser, live_server.url, "wide")
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    yield page
    page.context.close()


def opened_by(page, link) -> str:
    """Return the URL of the new tab. It has no way back to the page, and no address of it."""
    with page.context.expect_page() as tab:
        link.click()
    tab = tab.value
    tab.wait_for_load_state()
    assert tab.evaluate("[window.opener, document.referrer]") == [None, ""]
    url = tab.url
    tab.close()
    return url


@pytest.mark.long("Drives a browser through pages of a running server, at two sizes.")
def test_from_a_failure_to_its_tools_and_from_a_group_to_its_issue(page):
    failure, group = Failure.objects.get(), Group.objects.get()
    page.goto(f"/failures/{failure.pk}/")
    found = [
        opened_by(page, page.get_by_role("link", name=name)) for name in (TRACE, re.compile(r"Open\s+logs"), EVENT)
    ]
    assert [url.partition("/healthz?")[2].partition("&")[0] for url in found] == [
        f"trace={TRACE}", "logs=shop.send", f"event={EVENT}",
    ]  # fmt: skip
    assert faults(page, "a failure with links") == []
    page.set_viewport_size(SIZES["phone"])
    assert faults(page, "a failure with links on a phone") == []
    page.set_viewport_size(SIZES["wide"])

    page.goto("/failures/")
    page.get_by_role("searchbox").first.fill(TRACE)
    page.keyboard.press("Enter")
    expect(page.locator("[data-row]")).to_have_count(1)

    page.goto(f"/groups/{group.fingerprint}/")
    assert "title=shop.Refused" in opened_by(page, page.get_by_role("link", name="Create issue"))
    page.get_by_text("Add issue").click()
    page.get_by_label("Issue URL").fill("javascript:alert(1)")
    page.get_by_role("button", name="Save issue").click()
    expect(page.get_by_text("The URL must start with http or https")).to_be_visible()
    issue = f"{TOOLS.format(port=page.url.split(':')[2].split('/')[0])}?issue=17"
    page.get_by_text("Add issue").click()
    page.get_by_label("Issue URL").fill(issue)
    page.get_by_role("button", name="Save issue").click()
    expect(page.get_by_text("Issue saved.")).to_be_visible()
    assert opened_by(page, page.get_by_role("link", name=issue)) == issue
    assert faults(page, "a group with an issue") == []
    page.goto("/groups/")
    assert opened_by(page, page.get_by_role("link", name="issue of shop.Refused")) == issue
    assert faults(page, "groups with an issue") == []
