"""From jobs that die in a real worker to the replay that is drafted: the request is signed, and its link lands on the act."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.kit.browser import WITHIN_S, complaints_of
from tests.kit.page_checks import expect
from tests.kit.receiver import Receiver

pytestmark = [pytest.mark.server]

TENANT = "alert-path"
JOBS = 7
FOR_S = 3


def get_acknowledged(desk):
    return {one["id"] for one in desk.get("alerts")["items"] if one["state"] == "acknowledged"}


@pytest.fixture
def receiver():
    running = Receiver()
    threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def call_api(desk, method, path, body=None):
    answer = httpx.request(
        method,
        f"{desk.url}/api/{path}",
        json=body,
        headers={"Authorization": f"Bearer {desk.token}"},
        timeout=60,
        trust_env=False,
    )
    assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
    return answer.json() if answer.content else None


@pytest.fixture
def watched(desk, receiver):
    """A channel to the receiver, and a rule that calls it; both gone afterwards."""
    address = f"http://127.0.0.1:{receiver.server_address[1]}/"
    channel = call_api(
        desk, "POST", "channels", {"name": TENANT, "kind": "webhook", "url": address, "secret": receiver.secret}
    )
    message = {
        "name": TENANT,
        "metric": "dead",
        "source": "shop",
        "tenant": TENANT,
        "threshold": JOBS - 1,
        "for_s": FOR_S,
    }
    rule = call_api(desk, "POST", "rules", {**message, "severity": "critical", "channels": [TENANT]})
    yield
    call_api(desk, "DELETE", f"rules/{rule['id']}")
    call_api(desk, "DELETE", f"channels/{channel['id']}")


@pytest.mark.long("Waits for an alert of failing jobs, and follows its link in a browser.")
def test_dead_jobs_call_a_person_whose_link_lands_on_the_act(desk, browser, receiver, watched):
    for n in range(JOBS):
        desk.send("shop.billing.forecast", "payments", tenant=TENANT, account=n, takings=[])
    dead = f"tenant:{TENANT} state:dead"
    desk.wait_until(lambda: desk.get("failures", q=dead)["count"] == JOBS, "the jobs are dead", within_s=90)
    desk.wait_until(lambda: receiver.told or receiver.refused, "somebody is called", within_s=90)
    assert receiver.refused == []
    key, reported = receiver.told[0]
    about = reported["data"]
    assert (reported["type"], about["queue"], about["value"], about["threshold"]) == (
        "alert.firing",
        "payments",
        JOBS,
        JOBS - 1,
    )
    assert key.startswith("alert-")

    before = get_acknowledged(desk)
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    complaints = complaints_of(page)
    for _ in range(3):  # a chat program looks at the link first
        assert httpx.get(about["url"], timeout=WITHIN_S, trust_env=False).status_code in (302, 200)
        assert httpx.get(about["replay_url"], timeout=WITHIN_S, trust_env=False).status_code in (302, 200)
    page.goto(about["url"])
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(desk.password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(about["url"])
    expect(page.locator("h1")).to_contain_text("payments")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#alert")).to_contain_text("acknowledged")
    page.locator(".why-act a[data-key=r]").click()
    expect(page.get_by_role("button", name=f"Replay {JOBS} jobs")).to_be_visible()
    assert complaints == []
    context.close()
    # One of before may be resolved meanwhile.
    assert get_acknowledged(desk) - before == {int(about["url"].rstrip("/").rpartition("/")[2])}
    # What came later is not in the link: it shows those that the alert was about.
    desk.send("shop.billing.forecast", "payments", tenant=TENANT, account=99, takings=[])
    desk.wait_until(lambda: desk.get("failures", q=dead)["count"] == JOBS + 1, "one more is dead", within_s=90)
    requested = httpx.URL(about["failures_url"]).params["q"]
    assert desk.get("failures", q=requested)["count"] == JOBS
