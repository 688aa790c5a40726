"""On a phone: where a message stands, and where one goes on from after a refusal."""

from __future__ import annotations

import re

import pytest

from tests.kit.page_checks import PERMANENT, SIZES, expect, faults

pytestmark = [pytest.mark.server, pytest.mark.browser]  # the first one starts the desk

BOXES = """() => {
  const box = (one) => { const { top, bottom, left, right } = one.getBoundingClientRect(); return { top, bottom, left, right }; };
  const shown = [...document.querySelectorAll("main :is(:focus, .primary)")].filter((one) => one.tagName !== "H1").map(box);
  return { messages: box(document.querySelector("#messages")), bar: box(document.querySelector(".rail")),
           acts: shown.filter(({ top, bottom }) => top < innerHeight && bottom > 0), wide: innerWidth, high: innerHeight };
}"""


@pytest.fixture
def phone(page):
    page.complaints = []
    page.set_viewport_size(SIZES["phone"])
    return page


def on_each_other(one, other) -> bool:
    return all(one[a] < other[b] and other[a] < one[b] for a, b in (("top", "bottom"), ("left", "right")))


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_message_is_above_the_bar_and_covers_nothing_that_is_pressed_next(phone):
    phone.goto("/failures/?q=state:dead")
    phone.goto(phone.locator("a[data-panel]").last.get_attribute("href"))
    phone.locator("summary[data-key=d]").click()
    phone.get_by_label("Reason").fill("a test order")
    phone.get_by_role("button", name="Discard job").click()
    undo = phone.get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    seen = phone.evaluate(BOXES)
    message = seen["messages"]
    assert message["left"] >= 0 and message["right"] <= seen["wide"] and message["top"] >= seen["high"] / 2
    assert message["bottom"] <= seen["bar"]["top"] and seen["bar"]["bottom"] == seen["high"]
    assert not [one for one in seen["acts"] if on_each_other(one, message)]
    # The page's own end can be brought above it: once its last part has come, so that nothing lies under the message.
    expect(phone.locator("#kin[hx-trigger]")).to_have_count(0)
    # At the end of the page a link may lie half under the search bar, which stays at the top: this is about the message.
    phone.evaluate("document.querySelector('.top').style.position = 'static'")
    for _ in range(3):  # the page lives: what comes while it is looked at may push its end below the message again
        phone.wait_for_function("""() => {
          scrollTo(0, document.documentElement.scrollHeight);
          const bottom = document.querySelector("main").lastElementChild.getBoundingClientRect().bottom;
          return bottom <= document.querySelector("#messages").getBoundingClientRect().top;
        }""")
        if not (found := faults(phone, "a message on a phone")):
            break
    assert found == []
    undo.click()
    expect(phone.locator(".failure-line .state")).to_have_text("dead")


def test_the_warning_of_a_group_likely_to_fail_again_is_above_the_start_button(phone):
    phone.goto(f"/replays/new/?q={PERMANENT}")
    warning, start = phone.locator(".save-bar .likely"), phone.locator(".save-bar .start")
    expect(warning).to_contain_text("This group is likely to fail again: permanent")
    expect(warning).to_be_in_viewport(ratio=1)
    expect(start).to_be_in_viewport(ratio=1)
    above, below = warning.bounding_box(), start.bounding_box()
    assert above["y"] + above["height"] <= below["y"]


@pytest.mark.parametrize("size", SIZES)
def test_after_a_refused_start_one_goes_on_from_the_field_that_is_to_blame(page, size):
    page.set_viewport_size(SIZES[size])
    page.goto("/replays/new/?q=state:dead+age:>1h")
    page.get_by_role("radio", name="All at once").check()
    page.locator("#replay-confirm").wait_for()
    page.get_by_label("Reason").fill("to be refused")
    page.locator("#replay-confirm").fill("7")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    page.locator("#replay-confirm:focus[aria-invalid=true]").wait_for()
    expect(page.locator("#confirm-refused")).to_contain_text("enter the number of jobs")
    expect(page.locator("#replay-confirm")).to_be_in_viewport()
    page.get_by_label("Reason").fill("")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    expect(page.locator("#replay-reason")).to_be_focused()  # the browser asks for it: nothing is sent
    expect(page.locator("#replay-reason")).to_be_in_viewport()


def test_after_a_refused_policy_one_goes_on_from_its_field(phone):
    phone.goto("/policies/new/?preset=emails&task=shop.mailer.other")
    phone.get_by_label("Max attempts").fill("-3")
    expect(phone.locator("#refused-p-max-attempts")).not_to_be_empty()
    phone.get_by_role("button", name="Publish", exact=True).click()
    phone.locator("[name=max_attempts]:focus[aria-invalid=true]").wait_for()
    expect(phone.locator("[name=max_attempts]")).to_be_in_viewport()
