"""Every page of a whole desk, as it is looked at: in light and dark, on a wide screen and on a phone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.journeys.conftest import ROOT

pytestmark = [pytest.mark.server, pytest.mark.browser]

SIZES = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
PAGES = {
    "overview": "/",
    "groups": "/groups/",
    "failures": "/failures/",
    "failures-none": "/failures/?q=nothing+is+called+this",
    "replays": "/replays/",
    "replay-new": "/replays/new/?q=state%3Adead",
    "queues": "/queues/",
    "audit": "/audit/",
    "demo": "/demo/",
    "not-found": "/groups/v1-nobody/",
}
# Rules of the levels that count: WCAG 2.2 A and AA.
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


@pytest.fixture(params=[(theme, size) for theme in ("light", "dark") for size in SIZES], ids="-".join)
def look(request, desk, browser, logged_in):
    """A browser in one theme and size; what it complains of is collected."""
    theme, size = request.param
    context = browser.new_context(
        base_url=desk.url, storage_state=logged_in, viewport=SIZES[size], color_scheme=theme, reduced_motion="reduce"
    )
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
    page.theme, page.size = theme, size
    page.named = f"{theme}-{size}"
    yield page
    context.close()


@pytest.fixture(scope="module")
def addresses(desk, browser, logged_in):
    """All pages, with one group, one failure and one replay that exist."""
    desk.wait_until(lambda: desk.get("failures", q="state:dead")["count"] > 2000, "the history is in", within_s=60)
    context = browser.new_context(base_url=desk.url, storage_state=logged_in)
    page = context.new_page()
    found = dict(PAGES)
    for name, where, pattern in (
        ("group", "/groups/", r"^/groups/v1-[0-9a-f]+/$"),
        ("failure", "/failures/", r"^/failures/\d+/$"),
    ):
        page.goto(where)
        links = page.eval_on_selector_all("main a[href]", "all => all.map(a => a.getAttribute('href'))")
        found[name] = next(link for link in links if re.match(pattern, link))
    found["edit"] = f"{found['failure']}edit/"
    found["replay"] = a_replay(page)
    context.close()
    return found


def a_replay(page) -> str:
    """The address of a replay that is under way: slow enough to be looked at."""
    page.goto("/replays/new/?q=state:dead+age:>1h")
    page.get_by_label("How many").fill("2")
    page.locator("dl.pairs", has_text="at most 2 in any second").wait_for()
    page.get_by_label("Why").fill("to be looked at")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    return re.search(r"/replays/\d+/", page.url)[0]


def faults(page, name: str) -> list[str]:
    """What is wrong with the page as it stands, in words."""
    from axe_playwright_python.sync_playwright import Axe

    found = [f"{name}: console: {said}" for said in page.complaints if not (name == "not-found" and "404" in said)]
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if over > 0:
        found.append(f"{name}: scrolls sideways by {over} px")
    for broken in Axe().run(page, options=RULES).response["violations"]:
        where = ", ".join(str(node["target"][0]) for node in broken["nodes"][:3])
        found.append(f"{name}: {broken['id']}: {where}")
    return found


def test_every_page_fits_is_accessible_and_breaks_no_policy(look, addresses, tmp_path):
    found = []
    for name, path in addresses.items():
        look.complaints.clear()
        look.goto(path, wait_until="load")
        look.screenshot(path=tmp_path / f"{name}-{look.named}.png", full_page=True)
        found += faults(look, name)
    assert found == []


@pytest.fixture(scope="module")
def stranger(desk):
    """The name and password of somebody who may log in and has no role."""
    script = "from django.contrib.auth import get_user_model as m; m().objects.create_user('stranger', password='no role at all')"
    environment = os.environ | {"REDRIVE_DATA": str(desk.folder)}
    subprocess.run([sys.executable, "manage.py", "shell", "-c", script], cwd=ROOT, env=environment, check=True)
    return "stranger", "no role at all"


def test_the_login_and_a_refusal_fit_and_are_accessible(desk, browser, stranger):
    found = []
    for theme, size in ((theme, size) for theme in ("light", "dark") for size in SIZES):
        context = browser.new_context(base_url=desk.url, viewport=SIZES[size], color_scheme=theme)
        page = context.new_page()
        page.complaints = []
        page.on("console", lambda said, page=page: page.complaints.append(said.text) if said.type == "error" else None)
        page.goto("/login/")
        found += faults(page, f"login {theme} {size}")
        page.get_by_label("Name").fill(stranger[0])
        page.get_by_label("Password").fill(stranger[1])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Not allowed").wait_for()
        page.complaints[:] = [said for said in page.complaints if "403" not in said]
        found += faults(page, f"refused {theme} {size}")
        context.close()
    assert found == []


def test_a_live_part_keeps_the_picture_the_focus_and_what_was_opened(page):
    page.goto("/")
    page.wait_for_selector("#failures-chart canvas")
    page.click("#failures-table summary")
    page.focus(".group-title >> nth=2")
    page.evaluate("window.before = [document.querySelector('#failures-chart canvas'), document.activeElement]")
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        pass
    page.wait_for_timeout(300)
    assert page.evaluate("window.before[0].isConnected && document.activeElement === window.before[1]")
    assert page.evaluate("document.querySelector('#failures-table').open")


def test_an_answer_that_is_late_is_said_and_no_number_becomes_nought(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in)
    page = context.new_page()
    page.goto("/queues/")
    names = page.locator("#queues .row-link").all_inner_texts()
    context.set_offline(True)
    page.locator("#lateness", has_text="reconnecting").wait_for(timeout=15_000)
    assert names and page.locator("#queues .row-link").all_inner_texts() == names
    context.set_offline(False)
    page.wait_for_selector("#lateness:empty", state="attached", timeout=15_000)
    context.close()


def test_the_keyboard_goes_everywhere(page):
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_url("**/groups/")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/v1-*/")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.evaluate("document.querySelector('#keyboard').open")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("que")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/")


def test_light_or_dark_is_remembered(page):
    page.goto("/queues/")
    page.click("[data-theme-switch]")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_without_javascript_the_pages_lead_on(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/groups/")
    page.fill("#filter", "zebra")
    page.press("#filter", "Enter")
    assert "No group matches" in page.inner_text("#groups")
    page.click("text=see every group")
    page.click(".group-title >> nth=0")
    assert page.url.startswith(f"{desk.url}/groups/v1-")
    context.close()
