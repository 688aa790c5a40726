"""Feedback of a page: an act under way, and a desk that does not answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.kit.browser import WITHIN_S

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk

# Every page that refreshes itself; `/audit/` and the others for an admin.
LIVE = (
    "/", "/failures/?q=state:dead", "/groups/", "/replays/", "/retries/", "/policies/", "/sources/", "/workers/", "/queues/", "/alerts/",
    "/audit/", "/quarantine/",
)  # fmt: skip
BUSY = "button[aria-busy=true]"


@pytest.fixture
def page(desk, browser, logged_in):
    """A page of an admin, whose console may complain: answers are withheld here."""
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(WITHIN_S * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def withheld(page) -> Iterator[Callable[[str], list]]:
    """POSTs to addresses that contain the text are withheld and collected, until each is continued."""

    collected: list[list] = []

    def withhold(text: str) -> list:
        routes: list = []
        collected.append(routes)

        def handle(route) -> None:
            if route.request.method == "POST":
                routes.append(route)
            else:
                route.continue_()

        page.route(re.compile(re.escape(text)), handle)
        return routes

    yield withhold
    for route in [one for routes in collected for one in routes]:
        with suppress(Exception):  # it was answered
            route.abort()


def wait_for(page, truth: Callable[[], object], what: str) -> None:
    for _ in range(WITHIN_S * 20):
        if truth():
            return
        page.wait_for_timeout(50)
    raise AssertionError(what)


def refresh(page) -> None:
    page.evaluate("htmx.trigger(document.querySelector('[data-live]'), 'redrive:tick')")


def open_discard(page):
    """The button that discards the first job of the list, with its reason typed."""
    page.goto("/failures/?q=state:dead+queue:webhooks")
    page.locator("[data-select]").first.check()
    page.locator("[data-key=d]").first.click()
    page.locator("#bulk-reason").fill("because")
    return page.locator("button[value=discard]")


def test_a_second_press_sends_nothing_and_the_button_is_busy_until_the_answer(page, withheld):
    button, routes = open_discard(page), withheld("/failures/bulk/")
    button.click()
    page.locator("button[value=discard][aria-busy=true][aria-disabled=true]").wait_for()
    button.click(force=True)
    page.locator("#bulk-reason").press("Enter")
    page.wait_for_timeout(300)
    assert len(routes) == 1
    routes[0].continue_()
    page.get_by_text("Discarded 1 job.").wait_for()
    assert not page.locator(BUSY).count() and len(routes) == 1
    undone = withheld("/failures/undo/")
    undo = page.get_by_role("button", name="Undo")
    undo.dblclick()
    wait_for(page, lambda: undone, "the undo is sent")
    undone[0].abort()  # the network is lost on the way: the undo is still offered
    page.locator(".toast", has_text="The desk is unreachable.").wait_for()
    undo.click()
    wait_for(page, lambda: len(undone) == 2, "the undo is sent again")
    undone[1].continue_()
    page.get_by_text("Undid 1 job.").wait_for()


def test_a_form_without_htmx_is_sent_once_too(page, withheld):
    page.goto("/failures/?q=state:dead+queue:webhooks")
    routes = withheld("/views/save/")
    page.locator("summary", has_text="Save…").click()
    page.get_by_label("View name").fill("Pressed twice")
    # Playwright waits for a page that is on its way: both presses, and what is seen between them, come from the page itself.
    seen: list[str] = []
    page.on("console", lambda message: seen.append(message.text) if message.text.startswith("pressed") else None)
    page.evaluate("""() => {
        const button = [...document.querySelectorAll('button')].find((one) => one.textContent === 'Save view');
        setTimeout(() => button.click(), 50);
        setTimeout(() => {
            const busy = button.getAttribute('aria-busy');
            button.click();
            console.log(`pressed again, busy: ${busy}`);
        }, 500);
    }""")
    wait_for(page, lambda: routes and seen, "the form is sent, and the button is pressed again")
    page.wait_for_timeout(300)
    assert len(routes) == 1 and seen == ["pressed again, busy: true"]
    routes[0].continue_()
    page.locator(".toast", has_text="Saved as “Pressed twice”.").wait_for()
    assert len(routes) == 1


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (lambda route: route.abort(), "The desk is unreachable."),
        (lambda route: route.fulfill(status=500, content_type="text/html", body="<p>"), "The request failed (HTTP 500)."),
        (lambda route: route.fulfill(status=503, content_type="text/plain", body="The database is full."), "database is full"),
    ],
)  # fmt: skip
def test_after_an_error_the_button_can_be_pressed_again(page, withheld, fail, text):
    button, routes = open_discard(page), withheld("/failures/bulk/")
    button.click()
    wait_for(page, lambda: routes, "the act is sent")
    page.locator(BUSY).wait_for()
    fail(routes[0])
    page.locator(".toast.is-error", has_text=text).wait_for()
    assert not page.locator(f"{BUSY}, button[aria-disabled=true]").count()
    assert page.locator("#bulk-reason").input_value() == "because"
    button.click()
    wait_for(page, lambda: len(routes) == 2, "the act is sent again")


def test_a_long_act_is_announced_once_and_one_can_stop_waiting(page, withheld):
    button, routes = open_discard(page), withheld("/failures/bulk/")
    page.evaluate("""() => { window.texts = new Set(); new MutationObserver(() => {
        for (const one of document.querySelectorAll('#messages p')) texts.add(one.textContent);
    }).observe(document.querySelector('#messages'), { childList: true, subtree: true }); }""")
    button.click()
    notice = page.locator(".toast", has_text="“Discard 1 job” is taking longer than usual.")
    notice.wait_for()
    clock = notice.locator("[aria-hidden=true]")
    before = clock.inner_text()
    wait_for(page, lambda: clock.inner_text() != before, "the seconds are counted")
    assert page.evaluate("[...texts]") == ["“Discard 1 job” is taking longer than usual."]
    notice.get_by_role("button", name="Stop waiting").click()
    page.locator(".toast", has_text="Stopped waiting for “Discard 1 job”. Check whether").wait_for()
    assert not page.locator(BUSY).count() and len(routes) == 1


def test_an_export_is_sent_once_and_its_start_is_announced(page):
    page.goto("/failures/?q=state:dead+queue:webhooks")
    page.locator("summary", has_text="Export…").click()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    button = page.get_by_role("button", name="Export CSV")
    with page.expect_download() as download:
        button.dblclick(no_wait_after=True)
    page.locator(".toast", has_text="“Export CSV” started.").wait_for()
    assert len(sent) == 1 and download.value.suggested_filename.endswith(".csv")
    assert not page.locator(BUSY).count()


def test_a_spinner_does_not_turn_where_motion_is_unwanted(page, withheld):
    button, _ = open_discard(page), withheld("/failures/bulk/")
    button.click()
    page.locator(BUSY).wait_for()
    name = "getComputedStyle(document.querySelector('button[aria-busy=true]'), '::before').animationName"
    page.wait_for_function(f"{name} === 'turn'")
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_function(f"{name} === 'none'")


@pytest.mark.long("Opens each page that refreshes itself, with and without a connection.")
def test_each_live_page_shows_that_it_is_not_updated_and_recovers(page):
    banner = page.locator("#lateness", has_text=re.compile(r"Not updated since \d\d:\d\d .+ Trying again\. ?Reload"))
    for address in LIVE:
        page.goto(address)
        if "/failures/" in address:
            page.locator("#views:not([hx-get])").wait_for()  # they come after the page
        page.context.set_offline(True)
        # The answer to a request that is under way would change the text.
        page.wait_for_function("!document.querySelector('[data-live].htmx-request')")
        before = page.locator("main").inner_text()
        refresh(page)
        banner.wait_for()
        assert page.locator("main").inner_text()[:40] == before[:40], address  # what is known stays
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert banner.evaluate("one => one.getBoundingClientRect().top") >= 0, address
        page.context.set_offline(False)
        refresh(page)
        page.wait_for_selector("#lateness:empty", state="attached")


def test_an_unreachable_database_and_an_ended_session_are_announced_once(page):
    page.goto("/groups/")
    page.evaluate("""() => { window.changes = 0; new MutationObserver(() => { changes += 1; })
        .observe(document.querySelector('#lateness'), { childList: true, characterData: true, subtree: true }); }""")
    answers = [
        {"status": 503, "content_type": "text/plain; charset=utf-8", "body": "The desk's database is unreachable."}
    ]
    page.route(re.compile("/groups/"), lambda route: route.fulfill(**answers[0]))
    refresh(page)
    banner = page.locator("#lateness[role=status]")
    page.locator("#lateness", has_text="The desk's database is unreachable.").wait_for()
    for _ in range(3):
        with page.expect_response(re.compile("/groups/")):
            refresh(page)
    page.wait_for_timeout(200)
    assert page.evaluate("changes") == 1 and banner.get_by_role("button", name="Reload").count() == 1
    answers[0] = {
        "status": 401,
        "headers": {"Redrive-Login": "/login/?next=/groups/"},
        "content_type": "text/plain",
        "body": "out",
    }
    refresh(page)
    page.locator("#lateness", has_text="You are logged out.").wait_for()
    assert banner.get_by_role("link", name="Log in").get_attribute("href") == "/login/?next=/groups/"
    page.unroute(re.compile("/groups/"))
    refresh(page)
    page.wait_for_selector("#lateness:empty", state="attached")
