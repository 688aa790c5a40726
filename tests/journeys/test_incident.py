"""The played incident: one button, and the page reports what happened."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from demo import control, story
from tests.kit.page_checks import faults, opened
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.browser]

ALL = "tenant:lighthouse state:any"


def press(page, name):
    with page.expect_response(lambda answer: answer.request.method == "POST" and "/demo/" in answer.url) as answered:
        page.get_by_role("button", name=name, exact=isinstance(name, str)).click()
    assert answered.value.status == 200


def player(desk):
    """The process that plays on this desk."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it ended meanwhile
            if not entry.name.isdigit() or b"demo.play" not in (entry / "cmdline").read_bytes():
                continue
            if str(desk.folder).encode() in (entry / "environ").read_bytes():
                return int(entry.name)
    raise AssertionError("nobody plays")


def come_to(desk, is_there):
    """Wait until the story is there."""
    wait_until(lambda: is_there(story.read(desk.demo_broker()).story), "the story goes on", within_s=250, every_s=1)


def warehouse(desk):
    """Return the state of the played incident's partner."""
    made = json.loads((desk.folder / "up.json").read_text())
    return control.partner(made["REDRIVE_DEMO_PARTNER_URL"] + "/played")


def left_as_it_was(desk):
    """Warehouse well, nothing open, nothing dead, its groups resolved."""
    assert warehouse(desk)["mode"] == "well"
    for state in ("dead", "retrying", "replaying"):
        assert desk.get("failures", q=f"tenant:lighthouse state:{state}")["count"] == 0
    groups = desk.get("groups", q=ALL)["items"]
    assert groups and {group["state"] for group in groups} == {"resolved"}
    mine = [replay for replay in desk.get("replays")["items"] if replay["reason"].startswith("Incident demo")]
    assert {replay["state"] for replay in mine} <= {"done", "cancelled"}


@pytest.mark.endurance
@pytest.mark.long("Plays the demo's incident on a desk of its own, in a browser.")
def test_a_stopped_incident_leaves_the_desk_as_it_was(desk, page):
    desk.wait_until(lambda: desk.get("failures", q="state:any")["count"] > 2000, "the history is in", within_s=60)
    page.goto("/demo/")
    press(page, "Fix")  # whatever another journey left
    press(page, re.compile("^Run "))
    page.locator(".acts [aria-current=step]", has_text="A new group").wait_for(timeout=120_000)
    press(page, "Stop incident")
    page.get_by_text("Stopped. The warehouse is fixed").wait_for(timeout=120_000)
    assert desk.get("failures", q=ALL)["count"] > 0
    left_as_it_was(desk)


@pytest.mark.timeout(1800)  # a busy machine plays it slowly: the waits end it where nothing moves
@pytest.mark.long("Plays the demo's incident on a desk of its own, in a browser.")
def test_the_incident_is_played_to_its_end_and_shown_as_it_was(desk, page, browser, logged_in):
    before, after = desk.get("failures", q=f"{ALL} task:shop.hooks.order_pickup")["count"], warehouse(desk)["falls"]
    page.goto("/demo/")
    press(page, re.compile("^Run "))
    page.locator(".acts [aria-current=step]", has_text="Alert fires").wait_for(timeout=200_000)
    # Who plays is killed, and the page is loaded anew: it goes on.
    os.kill(player(desk), signal.SIGKILL)
    page.reload()
    page.locator(".acts [aria-current=step]", has_text="Careful").wait_for(timeout=200_000)
    # Nobody looks meanwhile: a page that is drawn anew each second costs as much as all that it shows.
    page.goto("about:blank")
    come_to(desk, lambda found: found.act == "held")
    page.goto("/demo/")
    page.locator(".acts [aria-current=step]", has_text="Held").wait_for()
    page.goto("about:blank")
    come_to(desk, lambda found: found.is_over)
    page.goto("/demo/")
    page.get_by_role("button", name="Run again").wait_for()
    assert page.locator("[data-incident]").get_attribute("data-incident") == "over"
    moral = page.locator(".incident-told").inner_text()
    assert "Careful recovered all of them" in moral and "With the breaker no job died." in moral

    # The figures are those of the replays, and of the partner.
    naive, careful = (
        desk.get(f"replays/{re.search(r'[0-9]+', link.get_attribute('href'))[0]}")
        for link in page.locator(".side h3 a").all()
    )
    text = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator(".figures tbody tr").all()
    }
    assert naive["reason"].endswith("everything at once") and naive["state"] == careful["state"] == "done"
    assert naive["counts"]["failed_again"] >= naive["counts"]["total"] * 0.5
    assert careful["counts"]["succeeded"] == careful["counts"]["total"] == naive["counts"]["failed_again"]
    assert text["Failed again"][:2] == [
        f"{replay['counts']['failed_again']} of {replay['counts']['total']}" for replay in (naive, careful)
    ]
    # As often as the partner itself counted: more than twice where a slow machine draws the retries out.
    falls = warehouse(desk)["falls"] - after
    assert falls > 0 and text["Fell over"] == [{1: "once", 2: "twice"}.get(falls, f"{falls} times"), "never", "never"]
    down = [int(figure.replace(",", "")) for figure in text["Requests while down again"]]
    # Celery tries each job four times: that is the trap.
    assert down[0] >= 3 * naive["counts"]["failed_again"] and down[1:] == [0, 0]
    outage = [int(figure.replace(",", "")) for figure in text["Requests during the outage"]]
    assert outage[0] == outage[1] >= 4 * naive["counts"]["total"] and 5 <= outage[2] <= 100
    assert text["All recovered after"][0].startswith("never")
    assert all(re.match(r"\d[\d.]* (s|min)\b", after) for after in text["All recovered after"][1:])
    failed = desk.get("failures", q=f"{ALL} task:shop.hooks.order_pickup")["count"]
    assert failed == before + naive["counts"]["total"]
    left_as_it_was(desk)

    # And the page can be looked at: both sizes, both themes.
    found = []
    for size in ("wide", "phone"):
        seen = opened(browser, desk.url, size, storage_state=logged_in)
        seen.goto("/demo/")
        seen.locator(".side").first.wait_for()
        found += faults(seen, f"/demo/ {size}")
        seen.context.close()
    assert not found, "\n".join(found)
