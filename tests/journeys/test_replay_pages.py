"""Failures and replays by hand, in a real browser on a whole desk."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from tests.kit.page_checks import expect, faults, faults_at_sizes, fields_under_the_bar

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk

DEAD = "/failures/?q=state:dead"


def test_a_selection_survives_paging_and_reaches_the_preview(page):
    page.goto(DEAD)
    for n in (0, 2):
        page.locator("[data-select]").nth(n).check()
    page.get_by_role("link", name=re.compile("^Older")).click()
    expect(page.locator("[data-picked]")).to_have_text("2 selected, 2 on other pages")
    page.locator("[data-select]").nth(0).check()
    page.get_by_role("button", name="Replay…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Replay 3 jobs")


def test_nothing_selected_offers_no_act_and_all_that_match_is_its_own_choice(page):
    page.goto(DEAD)
    replay = page.get_by_role("button", name="Replay…")
    expect(replay).to_be_disabled()
    page.get_by_label(re.compile("Select all")).check()
    expect(replay).to_be_enabled()


def test_a_failure_opens_beside_the_list_and_on_its_own_address(page):
    page.goto(DEAD)
    link = page.locator("a[data-panel]").first
    link.click()
    expect(page.locator("#detail #failure")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#detail #failure")).to_have_count(0)
    page.goto(link.get_attribute("href"))
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()


def test_beside_the_filters_the_list_shows_the_name_of_an_error_and_its_status(page):
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto("/failures/?q=error:HTTPStatusError state:dead")
    error = page.locator(".failures td.what").first
    name, message = error.get_by_role("link", name="HTTPStatusError"), error.locator(".message")
    assert name.evaluate("name => name.scrollWidth <= name.clientWidth")
    assert message.evaluate("text => text.clientHeight > 1.5 * parseFloat(getComputedStyle(text).lineHeight)")


def test_rows_are_walked_and_selected_by_keyboard(page):
    page.goto(DEAD)
    page.locator("[data-row]").first.wait_for()
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("[data-picked]")).to_have_text("1 selected")
    expect(page.locator("[data-row]").nth(1).locator("[data-select]")).to_be_checked()


def test_a_discard_is_undone_from_its_message(page):
    page.goto(DEAD)
    page.goto(page.locator("a[data-panel]").first.get_attribute("href"))
    page.locator("summary[data-key=d]").click()
    page.get_by_label("Reason").fill("a test order")
    page.get_by_role("button", name="Discard job").click()
    expect(page.locator(".failure-line .state")).to_have_text("discarded")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".failure-line .state")).to_have_text("dead")


def test_an_edit_is_refused_beside_its_field_shown_as_a_difference_and_sent(page):
    page.goto(DEAD)
    page.goto(page.locator("a[data-panel]").nth(3).get_attribute("href"))
    page.get_by_role("link", name=re.compile("Edit and replay")).click()
    shown = page.get_by_role("textbox", name=re.compile("^Keyword arguments"))  # not the difference named after it
    before = shown.input_value()
    page.get_by_label(re.compile("^Arguments")).fill("[1,")
    page.get_by_role("button", name="Review changes").click()
    expect(page.locator("#args-refused")).to_contain_text("Invalid JSON")
    page.get_by_label(re.compile("^Arguments")).fill('["edited by hand"]')
    page.get_by_role("button", name="Review changes").click()
    expect(page.locator("#args-refused")).to_contain_text("by position, not 1")  # the demo's tasks take names alone
    page.get_by_label(re.compile("^Arguments")).fill("[]")
    edited = re.sub(r'("tenant": )"[^"]*"', r'\1"edited by hand"', before)
    shown.fill(edited)
    page.get_by_role("button", name="Review changes").click()
    expect(page.locator("tr.is-changed").filter(has_text="edited by hand")).to_have_count(1)
    page.get_by_role("button", name="Back to editing").click()
    expect(shown).to_have_value(edited)


def test_what_is_typed_before_the_script_is_there_is_worked_out_too(page, desk):
    history_is_in(desk)
    script, row = re.compile(r"/js/replays\b.*\.js"), []
    page.route(script, lambda route: row.append(route))
    with page.expect_request(script):
        page.goto("/replays/new/?q=state:dead+age:>1h", wait_until="commit")
    page.get_by_label("Amount").fill("7")
    for route in row:
        route.continue_()
    expect(page.locator("dl.pairs")).to_contain_text("7/s")
    expect(page.get_by_role("radio", name="Steady")).to_be_checked()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_replay_is_previewed_started_paused_made_slower_and_cancelled(page, desk):
    history_is_in(desk)
    # Of long ago: nothing joins them between the preview and the start, whatever the shop does meanwhile.
    page.goto("/replays/new/?q=state:dead+age:>1h")
    expect(page.get_by_role("radio", name="Careful")).to_be_checked()  # more than 100 jobs
    page.get_by_label("Amount").fill("0.1")  # few are sent before Pause, however busy the machine: none may hold it
    expect(page.get_by_role("radio", name="Steady")).to_be_checked()
    expect(page.locator("dl.pairs dd").first).to_have_text("one every 10 s")
    page.get_by_label("Reason").fill("a journey")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    number = re.search(r"/replays/(\d+)/", page.url)[1]
    desk.wait_until(
        lambda: desk.get(f"replays/{number}")["counts"]["planned"] < desk.get(f"replays/{number}")["counts"]["total"],
        "the first is sent",
        90,
    )
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#replay-sentence")).to_contain_text("Paused:")
    page.get_by_role("button", name="Slower").click()
    expect(page.locator("#replay .facts")).to_contain_text("one every 15 s")
    page.get_by_label("Pace: amount").fill("0.05")
    page.get_by_role("button", name="Change pace").click()
    expect(page.locator("#replay .facts")).to_contain_text("one every 20 s")
    page.locator("#cancel-menu > summary").click()
    page.get_by_role("button", name=re.compile("^Cancel [\\d,]+ unsent job")).click()
    expect(page.locator("#replay-sentence")).to_contain_text("Cancelled:")


def history_is_in(desk):
    """The day before has been filed: there are hundreds to replay."""
    desk.wait_until(lambda: desk.get("failures", q="state:any")["count"] > 2000, "the history is in", within_s=60)


@pytest.fixture
def broken_partner(desk, logged_in, browser):
    """Break the demo's partner; at the end it is well again."""
    context = browser.new_context(base_url=desk.url, storage_state=logged_in)
    demo = context.new_page()
    demo.goto("/demo/")
    demo.get_by_role("button", name="Break", exact=True).click()
    expect(demo.get_by_role("button", name="Break", exact=True)).to_have_attribute("aria-pressed", "true")
    yield
    demo.goto("/demo/")
    demo.get_by_role("button", name="Fix", exact=True).click()
    expect(demo.get_by_role("button", name="Fix", exact=True)).to_have_attribute("aria-pressed", "true")
    context.close()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_careful_replay_is_held_by_itself_with_its_evidence_and_goes_on_on_request(page, desk, broken_partner):
    history_is_in(desk)
    page.goto("/replays/new/?q=state:dead+queue:webhooks+age:>1h")
    expect(page.get_by_role("radio", name="Careful")).to_be_checked()
    page.locator("#advanced > summary").click()
    page.get_by_label("Ramp from").fill("5")
    page.get_by_label("Canary", exact=True).fill("20")
    expect(page.locator(".choices")).to_contain_text("Starts with 20 jobs")
    start = page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs to webhooks$"))
    start.click()
    expect(page.get_by_label("Reason")).to_be_focused()  # it is empty: nothing is sent
    page.get_by_label("Reason").fill("is the partner back?")
    start.click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    sentence = page.locator("#replay-sentence")
    expect(sentence).to_contain_text(re.compile("Canary:|Held:"))
    number = re.search(r"/replays/(\d+)/", page.url)[1]
    answer = desk.wait_until(
        lambda: (found := desk.get(f"replays/{number}"))["state"] == "held" and found,
        "it is held",
        within_s=120,
        progress=lambda answer: answer["counts"],
    )
    # It follows by itself what happens: sent, failed again, held.
    expect(sentence).to_contain_text(re.compile(r"Held: \d+ of (the last \d+|\d+ canary) jobs failed again"))
    assert answer["state"] == "held" and answer["planned"] > 0 and answer["total"] - answer["planned"] <= 20
    row = page.locator("#held")
    expect(row).to_contain_text(f"{answer['evidence']['failed']} of the last {answer['evidence']['judged']}")
    expect(row.get_by_role("link").first).to_have_attribute("href", re.compile("^/groups/"))
    expect(page.locator(".bands .band-canary")).not_to_have_count(0)
    page.complaints = []
    assert faults_at_sizes(page, "held") == []
    page.get_by_role("button", name=re.compile("^Resume all")).click()
    expect(page.locator("#messages")).to_contain_text("Replay resumed.")
    page.locator("#cancel-menu > summary").click()
    page.get_by_role("button", name=re.compile("^Cancel [\\d,]+ unsent job")).click()
    expect(sentence).to_contain_text("Cancelled:", timeout=90_000)


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_options_typed_under_advanced_stay_and_are_sent(page, desk):
    page.goto("/replays/new/?q=state:dead+queue:emails+age:>1h")
    page.locator("#advanced > summary").click()
    page.get_by_label("Attempts per job").select_option("number")
    page.get_by_label("Attempts, as a number").fill("3")
    page.get_by_role("checkbox", name="tue").check()
    page.get_by_role("checkbox", name="wed").check()
    expect(page.locator("#advanced .refusal")).to_contain_text("a time of day")  # days without hours
    expect(page.get_by_role("button", name=re.compile("^Replay"))).to_be_disabled()
    page.complaints = []
    assert faults(page, "refused") == []
    page.get_by_label("Send only from").fill("00:00")
    page.get_by_label("until").fill("24:00")
    page.get_by_role("checkbox", name="tue").uncheck()
    page.get_by_role("checkbox", name="wed").uncheck()
    page.get_by_label("JSON Merge Patch").fill("{")
    page.get_by_label("Reason").click()
    expect(page.locator("#patch-refused")).to_contain_text("This is not JSON")
    page.get_by_label("JSON Merge Patch").fill('{"kwargs": {"note": "again"}}')
    page.get_by_label("Amount").fill("0.1")
    expect(page.locator("#changes")).to_contain_text("takes no argument 'note'")
    page.get_by_label("JSON Merge Patch").fill('{"kwargs": {"tenant": "again"}}')
    page.get_by_label("Reason").click()
    expect(page.locator("#changes ins").first).to_contain_text("again")
    expect(page.get_by_label("Attempts, as a number")).to_have_value("3")
    expect(page.locator("#advanced")).to_have_attribute("open", "")
    page.get_by_label("Reason").fill("three more tries")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs to emails$")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    answer = desk.get(f"replays/{re.search(r'/replays/(.+)/', page.url)[1]}")
    assert answer["options"] == {"attempts": 3, "patch": {"kwargs": {"tenant": "again"}}}
    assert answer["pace"]["window"] == {"from": "00:00", "to": "00:00"} and answer["pace"]["rate"] == 0.1
    page.locator("#cancel-menu > summary").click()
    page.get_by_role("button", name=re.compile("^Cancel [\\d,]+ unsent job")).click()
    expect(page.locator("#replay-sentence")).to_contain_text("Cancelled:")


def test_what_was_typed_stays_while_the_plan_is_worked_out_again(page):
    page.goto("/replays/new/?q=state:dead")
    page.get_by_label("Amount").fill("7")
    page.get_by_label("Reason").fill("typed meanwhile")
    expect(page.locator("dl.pairs dd").first).to_have_text("7/s")
    expect(page.get_by_label("Reason")).to_have_value("typed meanwhile")
    assert fields_under_the_bar(page) == {}


def test_the_default_pace_follows_the_ticked_groups_until_a_pace_is_chosen(page):
    page.goto("/replays/new/?q=task:shop.mailer.send_receipt state:dead")
    steady, careful = page.get_by_role("radio", name="Steady"), page.get_by_role("radio", name="Careful")
    permanent = page.locator("#groups li", has_text="permanent").filter(has_text="'email'").get_by_role("checkbox")
    for style in (careful, steady):
        page.get_by_role("button", name="None", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("No jobs can be replayed")
        expect(steady).to_be_checked()
        permanent.check()
        expect(page.get_by_role("heading", level=1)).to_contain_text("jobs to emails?")
        expect(style).to_be_checked()
        steady.check()
        expect(page.locator("dl.pairs dd").first).to_have_text("50/s")


def press_replay(part):
    """Replay the job shown in `part`, also where the page first warns that the job will probably fail again."""
    key = part.locator("[data-key=r]")
    key.wait_for()
    warns = key.evaluate("key => key.matches('summary')")
    key.click()
    if warns:
        part.get_by_role("button", name="Replay job anyway").click()


def test_enter_opens_the_row_that_was_walked_to_and_submits_nothing(page):
    page.goto(DEAD)
    page.locator("[data-row]").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#detail #failure")).to_be_visible()
    assert urlsplit(page.url).path == "/failures/"


def test_the_row_beside_it_shows_what_the_pane_shows_of_a_job_that_is_replayed(page):
    page.goto(DEAD)
    row = page.locator("[data-row]").first
    address = row.get_attribute("data-row")
    here = page.locator(f"[data-row='{address}']")  # the first row is another one once a job has died
    here.locator("a[data-panel]").click()
    expect(page.locator("#kin ul")).to_be_visible()
    press_replay(page.locator("#detail"))
    expect(page.locator("#detail .failure-line")).to_contain_text("run 2", timeout=120_000)
    # Both at one time: the job goes on.
    page.wait_for_function(
        """address => {
      const [pane, row] = ["#detail .failure-line > :first-child", `[data-row='${address}'] .col-state`]
        .map((part) => document.querySelector(part)?.textContent.trim());
      return pane && pane === row;
    }""",
        arg=address,
    )
    expect(here.locator(".col-attempts")).to_contain_text("run 2")
    expect(page.locator("#kin ul")).to_be_visible()


def test_a_count_beside_a_long_name_stays_in_its_column(page):
    page.goto(DEAD)
    over = (
        "all => all.filter(n => n.getBoundingClientRect().right > n.closest('.facets').getBoundingClientRect().right)"
    )
    page.locator(".facets a .number").nth(5).wait_for()  # they come after the list
    # A name longer than any of the demo's.
    page.locator(".facets .clip").first.evaluate("name => { name.textContent = 'shop.orders.'.repeat(20); }")
    assert page.locator(".facets a .number").evaluate_all(f"all => ({over})(all).length") == 0


def test_a_picture_reads_out_what_is_pointed_at_and_what_the_arrow_keys_come_to(page):
    page.goto("/")
    # A step that ends meanwhile would be another picture.
    page.evaluate("for (const part of document.querySelectorAll('[data-live]')) part.removeAttribute('data-live')")
    plot, note = page.locator("#failures-chart [data-plot]"), page.locator("#failures-chart .read-out")
    area, reported = plot.bounding_box(), "JSON.parse(document.querySelector('#failures-chart').dataset.chart)"
    latest = page.evaluate(
        f"{reported}.until - ({reported}.until - {reported}.since) / Object.values({reported}.series)[0].length"
    )
    last = datetime.fromtimestamp(latest, UTC).strftime("%m-%d %H:%M UTC")

    def under(part):
        page.mouse.move(area["x"] + area["width"] * part, area["y"] + 40)
        return note.inner_text()

    assert last in under(0.995)  # within its bar, not at the edge
    assert last not in under(0.5) and "webhooks" in under(0.5)
    page.mouse.move(2, 2)
    expect(note).to_have_count(0)
    page.locator("#main").focus()
    while not plot.evaluate("plot => plot === document.activeElement"):
        page.keyboard.press("Tab")
    assert last in note.inner_text() and last in plot.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowLeft")
    before = datetime.fromtimestamp(latest - 900, UTC).strftime("%m-%d %H:%M UTC")
    assert before in note.inner_text() and before in plot.get_attribute("aria-valuetext")
    page.keyboard.press("Home")
    assert plot.get_attribute("aria-valuenow") == "0"
    page.keyboard.press("Tab")
    expect(note).to_have_count(0)


def test_a_field_made_taller_by_hand_breaks_no_policy_when_an_edit_is_refused(page):
    page.goto(DEAD)
    page.goto(page.locator("a[data-panel]").nth(3).get_attribute("href") + "edit/")
    page.locator("#edit-kwargs").evaluate("field => { field.style.height = '420px'; }")
    page.get_by_label(re.compile("^Arguments")).fill("[1,")
    page.get_by_role("button", name="Review changes").click()
    expect(page.locator("#args-refused")).to_contain_text("Invalid JSON")
    page.wait_for_timeout(300)  # htmx settles; the fixture then asks the console


def test_a_failure_page_follows_its_replay_by_itself(page, desk):
    page.goto("/failures/?q=state:dead+queue:webhooks+age:>1h")
    page.goto(page.locator("a[data-panel]").first.get_attribute("href"))
    press_replay(page.locator("#failure"))
    expect(page.locator("#messages")).to_contain_text("Planned in replay #")
    expect(page.locator("[data-open]")).to_have_count(0, timeout=120_000)
    expect(page.locator(".run")).to_have_count(2)
    expect(page.locator(".failure-line .state")).not_to_have_text("replaying")


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_start_right_after_a_new_pace_is_not_lost_to_the_plan_being_worked_out(page):
    page.goto("/replays/new/?q=state:dead+queue:emails+age:>1h")
    page.get_by_label("Reason").fill("at once")
    # The answer to the new pace is late: the start overtakes it.
    page.route("**/replays/new/", lambda route: (page.wait_for_timeout(600), route.continue_()))
    page.get_by_label("Amount").fill("0.1")  # slow: it is not done before it is cancelled
    page.wait_for_timeout(300)
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    expect(page.locator("#replay .facts")).to_contain_text("one every 10 s")
    page.locator("#cancel-menu > summary").click()  # what comes after on this desk finds these jobs free
    page.get_by_role("button", name=re.compile("^Cancel [\\d,]+ unsent job")).click()
    expect(page.locator("#replay-sentence")).to_contain_text("Cancelled:")
