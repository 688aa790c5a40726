"""The desk by keyboard alone: no mouse is touched from the overview to an edit and back."""

from __future__ import annotations

import re

import pytest

from tests.kit.browser import WITHIN_S, complaints_of
from tests.kit.page_checks import PERMANENT

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk


@pytest.fixture
def page(desk, browser, logged_in):
    desk.wait_until(lambda: desk.get("failures", q="state:any")["count"] > 2000, "the history is in", within_s=60)
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, viewport={"width": 1100, "height": 900})
    context.set_default_timeout(WITHIN_S * 1000)
    page = context.new_page()
    page.complaints = complaints_of(page)
    yield page
    assert page.complaints == []
    context.close()


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_from_the_overview_to_an_edit_and_back(page):
    page.goto("/")
    press(page, "g", "u")
    page.wait_for_url("**/groups/")
    press(page, "j", "j", "k", "Enter")
    page.wait_for_url(re.compile(r"/groups/v\d+-"))
    group = page.url
    press(page, "g", "f")
    page.wait_for_url("**/failures/")
    press(page, "/")
    page.keyboard.type("state:dead queue:webhooks")
    press(page, "Enter")
    page.wait_for_url(re.compile(r"q=state"))
    press(page, "Escape", "Escape", "j", "Enter")  # the first one may close what completes the search
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    failure = page.url
    press(page, "e")
    page.wait_for_url(re.compile(r"/failures/\d+/edit/$"))
    page.go_back()
    page.wait_for_url(failure)
    press(page, "d")
    assert focused(page) == "discard-reason"
    press(page, "Escape", "Escape")
    page.go_back()
    page.wait_for_url(re.compile(r"q=state"))
    assert group != failure


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_menu_without_a_field_has_the_focus_on_its_first_button(page):
    page.goto(f"/failures/?q={PERMANENT}")
    page.goto(page.locator("main a.row-link").first.get_attribute("href"))
    press(page, "r")
    assert focused(page) == "Replay job anyway"
    press(page, "Escape")
    assert focused(page) == "Replay…"
    press(page, "Enter")
    page.wait_for_function("document.activeElement.textContent.trim() === 'Replay job anyway'")


_FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const at = one.getBoundingClientRect(), style = getComputedStyle(one);
  return {
    name: `<${one.tagName.toLowerCase()}> ${(one.getAttribute('aria-label') || one.textContent.trim() || one.name || '').slice(0, 40)}`,
    top: at.top + scrollY, left: at.left, isMain: Boolean(one.closest('main')), isBar: Boolean(one.closest('.save-bar, .looked')),
    isSeen: style.outlineStyle !== 'none' || style.boxShadow !== 'none' || one.type?.startsWith('datetime'),  // its parts show it
  };
}"""
MOST_STOPS = 70


@pytest.mark.long("Drives a browser through pages of a running server.")
@pytest.mark.parametrize(
    "address", ["/", "/alerts/silences/", "/replays/new/?q=state:dead", "/policies/new/", "failure", "group"]
)
def test_tab_follows_the_order_of_reading_and_escape_closes_menus(page, address):
    """From one stop to the next it goes down, or right to another column; what has the focus shows it."""
    page.goto({"failure": "/failures/?q=state:dead", "group": "/groups/"}.get(address, address))
    if address in {"failure", "group"}:
        page.goto(page.locator("main a.row-link, main a.group-title").first.get_attribute("href"))
    page.wait_for_load_state("networkidle")
    # A line that leaves meanwhile would move all below it up.
    page.evaluate("for (const part of document.querySelectorAll('[data-live]')) part.removeAttribute('data-live')")
    before, found, stops = None, [], 0
    for _ in range(MOST_STOPS):
        press(page, "Tab")
        if (at := page.evaluate(_FOCUSED)) is None:
            break
        stops += 1
        if not at["isSeen"]:
            found.append(f"{at['name']} has the focus and does not show it")
        is_within = before and before["isMain"] and at["isMain"] and not (before["isBar"] or at["isBar"])
        if is_within and at["top"] < before["top"] - 6 and at["left"] <= before["left"]:
            found.append(f"{before['name']} goes back to {at['name']}")
        before = at
    assert found == [] and stops > 15
    for menu in page.locator("main details.menu > summary:not([aria-disabled=true])").all():
        if menu.is_visible():
            menu.focus()
            press(page, "Enter")
            assert menu.evaluate("one => one.parentElement.open"), menu.inner_text()
            press(page, "Escape")
            assert menu.evaluate("one => !one.parentElement.open && document.activeElement === one"), menu.inner_text()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_the_palette_goes_does_and_searches(page):
    page.goto("/failures/?q=state:dead+queue:webhooks")
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    press(page, "Control+k")
    page.locator("#palette-more [role=option]").first.wait_for()
    assert focused(page) == "palette-field"
    chosen = page.locator("#palette [aria-selected=true]")
    assert chosen.count() == 1
    assert page.locator("#palette-field").get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    page.keyboard.type("edit rep")
    assert "Edit and replay" in chosen.inner_text()
    press(page, "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/edit/$"))
    press(page, "Control+k")
    page.keyboard.type("audi")
    press(page, "Enter")
    page.wait_for_url("**/audit/")
    press(page, "Control+k")
    page.keyboard.type("no page is called so")
    press(page, "Enter")
    page.wait_for_url(re.compile(r"/failures/\?q=no\+page"))
    press(page, "Control+k", "Escape")
    assert not page.evaluate("document.querySelector('#palette').open")


@pytest.fixture
def late(page):
    """The palette's script does not come until it is let through: `late()`, or `late(False)`: it never comes."""
    routes = []
    page.route(re.compile(r"/js/palette[^/]*\.js"), lambda route: routes.append(route))

    def let(through: bool = True) -> None:
        for _ in range(WITHIN_S * 20):
            if routes:
                break
            page.wait_for_timeout(50)
        (route,) = routes
        route.continue_() if through else route.abort()

    return let


@pytest.mark.parametrize(
    ("pressed", "where"),
    [
        (["q", "u", "e", "Enter"], r"/queues/$"),
        (["q", "u", "e", "Enter", "x", "Enter"], r"/queues/$"),
        (["ArrowDown", "ArrowUp", "q", "u", "e", "Enter"], r"/queues/$"),
        (["q", "Escape", "Control+k", "a", "u", "d", "i", "Enter"], r"/audit/$"),
        (["z", "z", "z", "Enter"], r"/failures/\?q=zzz$"),
    ],
)
def test_what_is_pressed_before_the_palettes_script_is_here_is_done_when_it_is(page, late, pressed, where):
    page.goto("/")
    press(page, "Control+k", *pressed)
    page.wait_for_timeout(300)
    assert page.evaluate("location.pathname + location.search") == "/"
    late()
    page.wait_for_url(re.compile(where))


def test_a_palette_that_was_left_before_its_script_is_here_does_nothing(page, late):
    page.goto("/")
    press(page, "Control+k", "q", "u", "e", "Enter", "Escape")
    late()
    page.wait_for_timeout(500)
    assert page.evaluate("location.pathname") == "/" and not page.locator("#palette[open]").count()
    press(page, "Control+k")
    page.locator("#palette-more [role=option]").first.wait_for()
    assert page.locator("#palette-field").input_value() == ""


def test_a_palette_whose_script_never_comes_searches(page, late):
    page.goto("/")
    press(page, "Control+k", "q", "u", "e", "Enter")
    late(False)
    page.wait_for_url(re.compile(r"/failures/\?q=que$"))
    page.complaints[:] = [message for message in page.complaints if "ERR_FAILED" not in message]


def test_the_palettes_script_comes_without_a_request(page):
    with page.expect_response(re.compile(r"/js/palette[^/]*\.js")):
        page.goto("/")


def test_the_palette_leads_to_a_group_by_what_it_is_called(page):
    page.goto("/")
    press(page, "Control+k")
    option = page.locator("#palette-group-1")
    option.wait_for()
    words = option.locator("span").inner_text().partition("<")[0]  # half of a placeholder is no word of it
    page.keyboard.insert_text(words[:40])  # at once: an answer to half of it need not have the group
    press(page, "Enter")
    page.wait_for_url(re.compile(r"/groups/v\d+-"))
    assert words.split()[0] in page.locator("h1").inner_text()


def test_what_was_typed_into_the_palette_is_chosen_in_the_moment_in_which_it_comes(page):
    page.goto("/")
    press(page, "Control+k")
    option = page.locator("#palette-group-1")
    option.wait_for()
    words = option.locator("span").inner_text().partition("<")[0]  # half of a placeholder is no word of it
    page.evaluate("""document.addEventListener("htmx:afterSwap", (event) => {
        if (event.detail.target.id === "palette-more") document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
    })""")
    page.keyboard.insert_text(words[:40])  # at once: the answer to its first letters would be chosen from as well
    page.wait_for_url(re.compile(r"/groups/v\d+-"))


def test_what_an_arrow_chose_in_the_palette_stays_chosen_when_more_comes(page):
    page.goto("/")
    press(page, "Control+k")
    page.locator("#palette-group-1").wait_for()
    # Of this answer: the first one may yet settle, and the page's own parts come anew meanwhile.
    page.evaluate("""document.addEventListener("htmx:afterSettle", ({ detail }) => {
        if (detail.xhr?.responseURL.includes("/palette/?q=")) document.body.dataset.settled = 1;
    })""")
    chosen = page.locator("#palette [aria-selected=true]")
    with page.expect_response(re.compile(r"/palette/\?q=")) as coming:
        page.keyboard.type("e")
        # To a place: which groups the answer brings is the desk's to say, and one that is not among them cannot stay.
        press(page, "ArrowUp")
        while (chosen.get_attribute("id") or "").startswith("palette-group"):
            press(page, "ArrowUp")
        words = chosen.inner_text()
    coming.value.finished()
    page.locator("body[data-settled]").wait_for()
    assert chosen.inner_text() == words


def test_the_palette_does_what_a_group_page_offers(page):
    page.goto("/groups/")
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/groups/v\d+-"))
    press(page, "Control+k")
    chosen = page.locator("#palette [aria-selected=true]")
    for words in ("resolve", "assign", "merge"):
        page.locator("#palette-field").fill(words)
        assert chosen.inner_text().lower().startswith(words)
    page.locator("#palette-field").fill("mute")
    press(page, "Enter")
    assert page.locator("#acts details.menu[open] summary").inner_text().strip() == "Mute until…"


def test_the_help_opens_by_a_question_mark_and_closes_by_escape(page):
    page.goto("/queues/")
    press(page, "?")
    page.locator("#keyboard[open]").wait_for()
    assert "palette" in page.locator("#keyboard").inner_text()
    press(page, "Escape")
    page.locator("#keyboard:not([open])").wait_for(state="attached")


def test_a_key_that_is_typed_into_a_field_is_text(page):
    page.goto("/failures/")
    press(page, "/")
    page.keyboard.type("a ? g r j")
    assert page.locator("#search").input_value().endswith("a ? g r j")
    press(page, "Escape", "Escape")  # the first one may close what completes the search
    assert focused(page) != "search"


def test_an_attempts_traceback_and_a_branch_of_arguments_open_without_a_mouse(page):
    page.goto("/failures/?q=attempts:>=2+state:dead")  # of one that is retried, an attempt may come meanwhile
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    page.locator("[data-chooses]").first.focus()
    press(page, "Enter")
    page.locator("#told h2", has_text="attempt 1").wait_for()
    assert page.locator("[data-chooses][aria-current]").count() == 1
    page.locator(".find-in input").focus()
    page.keyboard.type("a")
    press(page, "Enter")
    page.locator("#arguments [role=status]").wait_for()


def test_what_is_typed_stays_while_its_page_refreshes_itself(page):
    """A failure that is retried refreshes itself: the menu that is open, and the reason in it, stay."""
    page.goto("/failures/?q=state:dead")
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    press(page, "d")
    page.keyboard.type("because")
    page.evaluate(
        """() => { const part = document.querySelector('#failure'); part.dataset.live = '';
        part.setAttribute('hx-get', location.pathname); part.setAttribute('hx-trigger', 'redrive:tick');
        part.setAttribute('hx-swap', 'morph:outerHTML'); htmx.process(part); }"""
    )
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        page.evaluate("htmx.trigger('#failure', 'redrive:tick')")
    page.wait_for_timeout(300)
    assert page.locator("#discard-reason").input_value() == "because" and focused(page) == "discard-reason"


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_session_that_ended_costs_nothing_that_was_typed(desk, browser, logged_in):
    """An act after a logout stays where it is, as a part and as a form; after a login in another tab it is done."""
    context = browser.new_context(base_url=desk.url, storage_state=logged_in)
    context.set_default_timeout(WITHIN_S * 1000)
    page = context.new_page()
    page.goto("/failures/?q=state:dead+queue:webhooks")
    page.locator("#views:not([hx-get])").wait_for()  # what is fetched after the page has come, too
    context.clear_cookies()
    page.locator("#lateness", has_text="logged out").wait_for()
    rows = page.locator("[data-select]").count()
    page.locator("[data-select]").first.check()
    page.locator("[data-key=d]").first.click()
    page.locator("#bulk-reason").fill("because")
    page.get_by_role("button", name="Discard 1").click()
    login = page.locator(".toast", has_text="Nothing was changed").get_by_role("link", name="Log in")
    login.wait_for()
    page.locator("summary", has_text="Save…").click()
    page.get_by_label("View name").fill("Typed before")
    page.get_by_role("button", name="Save view").click()
    assert page.url.endswith("webhooks") and not page.locator("#id_password").count()
    assert page.locator("[data-select]").count() == rows and page.locator("[data-select]:checked").count() == 1
    with context.expect_page() as opened:
        login.click()
    opened.value.get_by_label("Name").fill("admin")
    opened.value.get_by_label("Password").fill(desk.password)
    opened.value.get_by_role("button", name="Log in").click()
    opened.value.wait_for_url("**/failures/?q=*")
    opened.value.close()
    page.locator(".toast", has_text="logged in again").wait_for()
    assert page.locator("#bulk-reason").input_value() == "because"
    page.locator("summary", has_text="Save…").click()
    assert page.get_by_label("View name").input_value() == "Typed before"
    page.get_by_role("button", name="Save view").click()
    page.locator(".toast", has_text="Typed before").wait_for()
    context.close()


def test_enter_in_a_field_with_a_button_of_its_own_presses_that_one(page):
    page.goto("/groups/?state=ongoing")
    page.locator("a.group-title").last.focus()
    press(page, "Enter")
    page.locator("summary", has_text="Mute until").focus()
    press(page, "Enter")
    page.locator("#one-count").fill("12345")
    press(page, "Enter")
    page.get_by_text("muted", exact=False).first.wait_for()
    page.locator("button", has_text="Reopen").wait_for()


def test_a_row_is_edited_from_the_list_and_what_is_refused_has_the_focus(page):
    page.goto("/failures/?q=state:dead+queue:webhooks")
    press(page, "j", "e")
    page.wait_for_url(re.compile(r"/failures/\d+/edit/$"))
    page.locator("#edit-kwargs:focus").wait_for()  # the browser gives it when it first draws the page
    page.locator("#edit-args").fill("[1, ")
    page.locator("button", has_text="Review changes").press("Enter")
    page.locator("#args-refused").wait_for()
    page.locator("#edit-args:focus").wait_for()
    page.complaints[:] = [message for message in page.complaints if "422" not in message]


def test_arguments_are_found_as_they_are_pasted(page):
    page.goto("/failures/?q=state:dead+queue:webhooks")
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    page.locator(".find-in input").fill("tenant")
    page.locator("#arguments [role=status]").wait_for()
    assert page.locator(".find-in input").input_value() == "tenant"


def test_after_an_act_on_a_failures_page_its_title_has_the_focus(page):
    page.goto("/failures/?q=state:dead+queue:emails")
    press(page, "j", "Enter")
    page.wait_for_url(re.compile(r"/failures/\d+/$"))
    title = page.locator("h1").inner_text()
    press(page, "d")
    page.keyboard.type("because")
    press(page, "Enter")
    page.locator(".failure-line", has_text="discarded").wait_for()
    page.locator("h1:focus").wait_for()
    assert focused(page) == title
