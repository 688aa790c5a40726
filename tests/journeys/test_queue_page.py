"""From the list of queues to one of them over time: pointed at, zoomed into, as a table, and without a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.kit.page_checks import faults, opened

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk
PATH = "/queues/shop/webhooks/"


@pytest.fixture(scope="module")
def layout_faults(desk) -> None:
    """The queue was looked at for a while, and what was seen is folded: also into the steps of a week, which take longest."""

    def is_folded(days: int, step_s: int) -> bool:
        since = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        answer = desk.get("depth", source="shop", queue="webhooks", since=since)
        return bool(answer["step_s"] == step_s and answer["series"])

    desk.wait_until(lambda: is_folded(1, 300) and is_folded(7, 900), "looks are folded", within_s=600)


@pytest.fixture
def page(desk, browser, logged_in, layout_faults) -> Iterator:
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    yield page
    assert faults(page, "queue") == []
    page.context.close()


def drag(page, begin: float, end: float) -> None:
    box = page.locator(".plot").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * begin, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=4)
    page.mouse.up()


def test_the_list_leads_to_a_queue_and_its_span_is_one_click_away(page):
    page.goto("/queues/")
    page.get_by_role("link", name="webhooks", exact=True).first.click()
    page.wait_for_url(f"**{PATH}")
    page.locator(".range summary").click()
    page.get_by_role("link", name="Last 7 d", exact=True).click()
    page.wait_for_url(re.compile(r"span=7d"))
    assert page.locator('.range [aria-current="true"]', has_text="Last 7 d").count() == 1
    assert page.locator(".plot").count() == 3


def test_what_is_pointed_at_is_shown(page):
    page.goto(f"{PATH}?span=1h")
    at_rest = page.locator("[data-when]").first.inner_text()
    plot = page.locator(".plot").first
    # By the element, not by its place: what a refresh puts above it moves it.
    plot.hover(position={"x": plot.bounding_box()["width"] * 0.995, "y": 60})
    page.wait_for_function("document.querySelector('[data-when]').textContent.includes('UTC')")
    assert re.search(r"\d\d:\d\d:\d\d UTC", page.locator("[data-when]").first.inner_text()) and not at_rest
    assert page.locator(".pointed").count() == 3
    page.mouse.move(2, 2)
    page.wait_for_function("!document.querySelector('.pointed')")


def test_times_are_shown_in_the_local_zone_on_request_and_in_utc_again(desk, browser, logged_in, layout_faults):
    page = opened(browser, desk.url, "wide", storage_state=logged_in, timezone_id="Asia/Kolkata")
    page.goto(f"{PATH}?span=1h")
    switch = page.locator(".top > [data-zone-switch]")
    for name in ("IST", "UTC"):
        with page.expect_navigation():
            switch.click()
        assert switch.inner_text() == name
        plot = page.locator(".plot").first
        plot.hover(position={"x": plot.bounding_box()["width"] * 0.5, "y": 60})
        page.wait_for_function("document.querySelector('[data-when]').textContent")
        read = re.search(r"(\d\d):(\d\d):\d\d (\w+)", page.locator("[data-when]").first.inner_text())
        middle = datetime.now(UTC) - timedelta(minutes=30) + timedelta(hours=5.5 if name == "IST" else 0)
        off_min = (int(read[1]) * 60 + int(read[2]) - middle.hour * 60 - middle.minute) % 1440
        assert read[3] == name and min(off_min, 1440 - off_min) <= 10
        page.mouse.move(2, 2)
    assert faults(page, "queue") == []
    page.context.close()


def test_what_is_dragged_over_is_what_is_shown_and_back_is_back(page):
    page.goto(f"{PATH}?span=24h")
    drag(page, 0.5, 0.75)
    page.wait_for_url(re.compile(r"since=\d+&until=\d+"))
    requested = parse_qs(urlsplit(page.url).query)
    assert abs(int(requested["until"][0]) - int(requested["since"][0]) - 6 * 3600) < 900
    assert "1 min per step" in page.locator(".window").inner_text()
    page.go_back()
    page.wait_for_url(re.compile(r"span=24h"))
    drag(page, 0.5, 0.502)  # a click is no zoom
    assert "span=24h" in page.url


def test_the_picture_is_a_table_too(page):
    page.goto(f"{PATH}?span=1h")
    page.get_by_text("As a table").click()
    rows = page.locator("#depth-table tbody tr")
    assert rows.count() >= 1 and re.search(r"\d", rows.first.inner_text())


def test_a_line_can_be_left_out_and_come_back(page):
    page.goto(PATH)
    page.get_by_title(re.compile("^Hide ")).nth(1).click()
    page.wait_for_url(re.compile(r"hide=waiting"))
    assert page.locator("path.line-waiting").get_attribute("d") == ""
    page.get_by_title(re.compile("^Show ")).click()
    page.wait_for_url(lambda url: "hide" not in url)


def test_without_a_script_the_pictures_the_spans_and_the_table_are_there(desk, browser, logged_in, layout_faults):
    page = opened(browser, desk.url, "phone", storage_state=logged_in, java_script_enabled=False)
    page.goto(PATH)
    page.locator(".range summary").click()
    page.get_by_role("link", name="Last 1 h", exact=True).click()
    page.wait_for_url(re.compile(r"span=1h"))
    assert page.locator("path.line[d^=M]").count() >= 1
    page.get_by_text("As a table").click()
    assert page.locator("#depth-table tbody tr").first.is_visible()
    page.context.close()


@pytest.mark.parametrize("span", ["1h", "400d"])
def test_on_a_phone_it_fits(desk, browser, logged_in, layout_faults, span):
    page = opened(browser, desk.url, "phone", storage_state=logged_in)
    page.goto(f"{PATH}?span={span}")
    assert faults(page, "queue on a phone") == [] and page.get_by_role("link", name="Zoom in").is_visible()
    page.context.close()


def test_it_goes_on_by_itself(desk, browser, logged_in, layout_faults):
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    page.goto(f"{PATH}?span=1h")
    before = page.locator(".depth").get_attribute("data-chart")
    page.wait_for_function(
        "before => document.querySelector('.depth').dataset.chart !== before", arg=before, timeout=90_000, polling=250
    )
    page.context.close()
