"""Every page of a whole desk, as it is looked at: in light and dark, on a wide screen and on a phone.

The pages are those of the URLconf: a new one is looked at without being named here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from dashboard.web.routing import name_of
from tests.kit.browser import ROOT, WITHIN_S
from tests.kit.matrix import Rows, path_of
from tests.kit.page_checks import SIZES, faults_at_sizes, first_link, opened, pages

pytestmark = [pytest.mark.server, pytest.mark.browser]

PARTS = 6  # of the pages: each is measured within minutes, on a busy machine too

# What a page is asked, beside nothing: its other faces.
FACES = {
    "group-list": ("", "?by=queue", "?by=tenant", "?by=release", "?q=nothing+is+called+this", "?state=muted"),
    "failure-list": (
        "",
        "?q=nothing+is+called+this",
        "?q=queue:webhooks+-tenant:nobody+age:<30d",
        "?q=ReadTimeout+state:any",
    ),
    "dependency-detail": ("", "?span=30d"),
    "failure-facets": ("?q=queue:webhooks",),
    "failure-opened": ("", "?find=a"),
    "replay-new": (
        "?q=state%3Adead",
        "?q=nothing+is+called+this",
        "?q=state:dead+queue:webhooks&style=at_once&patch={%22kwargs%22:{%22dry_run%22:true}}&accept=expired",
    ),
    "reschedule-new": ("", "?q=state:retrying"),
    "audit-list": ("", "?act=nothing"),
    "queue-detail": (
        "?span=1h",
        "?span=400d&hide=dead,waiting",
        "?since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z",
    ),
    "incident": (
        "",
        "?source=shop&queue=webhooks&until=2100-01-01",
        "?source=shop&since=2001-01-01&until=2001-01-02",
    ),
    "automation-new": ("", "?source=shop&q=queue:webhooks"),
    "alert-rules": ("", "?q=nothing+is+called+this"),
    "alert-rule-new": ("", "?metric=oldest_dead_s&threshold=1+min", "?metric=quarantined&threshold=0"),
    "channel-new": ("", "?kind=slack", "?kind=pagerduty", "?kind=email"),
    "delivery-list": ("", "?state=parked", "?alert=1"),
    "alert-list": ("", "?state=firing&span=24h", "?source=nothing"),
    "silence-list": ("", "?queue=*"),
    "policy-new": ("", "?preset=sidekiq&task=shop.hooks.deliver"),
    "policy-detail": ("", "?mode=enforce", "?from=1"),
    "policy-versions": ("", "?left=1&right=2"),
}


@pytest.fixture(scope="module")
def rows(desk, browser, logged_in) -> Iterator[Rows]:
    """One of each noun that the desk has, as its own links name them."""
    desk.wait_until(lambda: desk.get("failures", q="state:any")["count"] > 2000, "the history is in", within_s=60)
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    failure = int(first_link(page, "/failures/?q=attempts:>=3+state:any", r"^/failures/(\d+)/$")[1])
    of_failure = first_link(page, f"/failures/{failure}/", rf"^/failures/{failure}/attempts/(\d+)/")
    group = first_link(page, "/groups/", r"^/groups/(v\d+-[0-9a-f]+)/$")[1]
    dependency = first_link(page, "/dependencies/", r"^/dependencies/([^/]+)/$")[1]
    replay = int(re.search(r"\d+", a_replay(page))[0])
    page.context.close()
    attempts = SimpleNamespace(latest=lambda by: SimpleNamespace(pk=int(of_failure[1])))
    answer = desk.get(f"failures/{failure}")
    job = SimpleNamespace(pk=failure, attempt_set=attempts, source=answer["source"], queue=answer["queue"])
    run = SimpleNamespace(pk=replay)
    more = {"dependency": name_of(dependency), "reschedule": SimpleNamespace(pk=a_reschedule(desk))}
    more |= {"automation": SimpleNamespace(name=desk.get("automations")["items"][0]["name"])}  # the demo's
    more |= {"savedview": SimpleNamespace(pk=a_view(desk)), "policyversion": SimpleNamespace(name=a_policy(desk))}
    alerting = an_alert(desk)
    more |= {noun: SimpleNamespace(pk=number) for noun, number in alerting.items()}
    yield Rows(job, job, job, SimpleNamespace(fingerprint=group), run, run, SimpleNamespace(n=1), more)
    # Whoever comes after on this desk finds these jobs free.
    assert call_api(desk, f"replays/{replay}/cancel", {})["state"] == "cancelled"
    call_api(desk, "policies/looked-at", {}, "DELETE")
    for noun in ("rule", "channel"):
        call_api(desk, f"{noun}s/{alerting[noun]}", {}, "DELETE")


def an_alert(desk) -> dict[str, int]:
    """A rule that fires at once, its alert, and a channel without a server, with a test that failed there."""
    hook = {"name": "looked-at", "kind": "webhook", "url": "http://127.0.0.1:9/hook", "events": ["replay.held"]}
    channel = call_api(desk, "channels", hook)["id"]
    message = {"name": "Looked at", "metric": "dead", "source": "shop", "queue": "webhooks", "threshold": 0, "for_s": 0}
    rule = call_api(desk, "rules", message)["id"]
    (alert,) = desk.wait_until(lambda: desk.get("alerts", rule="Looked at")["items"], "it fires", within_s=60)
    delivery = call_api(desk, f"channels/{channel}/test", {})["id"]
    return {"rule": rule, "alert": alert["id"], "channel": channel, "delivery": delivery}


def a_replay(page) -> str:
    """The address of a replay that is under way: slow enough to be looked at, and to leave its jobs to other journeys."""
    page.goto("/replays/new/?q=state:dead+age:>1h")
    page.get_by_label("Amount").fill("0.1")
    page.locator("dl.pairs dd", has_text="one every 10 s").first.wait_for()
    page.get_by_label("Reason").fill("to be looked at")
    page.get_by_role("button", name=re.compile(r"^Replay [\d,]+ jobs? to ")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    return re.search(r"/replays/\d+/", page.url)[0]


def a_view(desk) -> int:
    return call_api(desk, "views", {"name": "Dead webhooks", "q": "state:dead queue:webhooks"})["id"]


def a_reschedule(desk) -> int:
    """A rescheduling that was carried out: the shop's workers hold their retries themselves, so none can be started here."""
    script = (
        "from jobs_admin.models import Reschedule as R; from django.utils.timezone import now; print('#', R.objects.create("
        "source='shop', state='done', query='state:retrying', scope_max_id=1, below=0, change={'max_attempts': 9}, actor='ann', "
        "reason='to be looked at', created_at=now(), ended_at=now(), matched=9, changed=8, left=1).pk)"
    )
    environment = os.environ | {"REDRIVE_DATA": str(desk.folder)}
    command = [sys.executable, "manage.py", "shell", "-c", script]
    message = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    return int(message.rpartition("#")[2])


def a_policy(desk) -> str:
    """One that observes, in its second version."""
    match = {"source": "shop", "task": "shop.reporting.*"}
    for number, attempts in enumerate((5, 9)):
        document = {"match": match, "max_attempts": attempts, "cap_s": 600, "budget": {"per_minute": 60}, "breaker": {}}
        call_api(
            desk, "policies/looked-at", document | {"expected_version": number, "reason": "to be looked at"}, "PUT"
        )
    return "looked-at"


def call_api(desk, path: str, body: dict, method: str = "POST") -> dict:
    """Return the API's answer to a change."""
    headers = {"Authorization": f"Bearer {desk.token}"}
    answer = httpx.request(
        method, f"{desk.url}/api/{path}", json=body, headers=headers, timeout=WITHIN_S, trust_env=False
    )
    return answer.raise_for_status().json() if answer.content else {}


@pytest.mark.long("Measures every page in a browser in two sizes and both themes.")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_fits_is_accessible_and_breaks_no_policy(desk, browser, logged_in, rows, part):
    page = opened(browser, desk.url, "wide", storage_state=logged_in)
    found = []
    for address in pages()[part::PARTS]:
        for face in FACES.get(address.name, ("",)):
            page.goto(path_of(address, rows) + face, wait_until="load")
            found += faults_at_sizes(page, f"{address.name}{face}")
    page.goto("/groups/v2-nobody/")
    found += faults_at_sizes(page, "not found")
    page.context.close()
    assert found == [], "\n".join(["", *found])


@pytest.fixture(scope="module")
def stranger(desk):
    """The name and password of a user who may log in and has no role."""
    script = "from django.contrib.auth import get_user_model as m; m().objects.create_user('stranger', password='no role at all')"
    environment = os.environ | {"REDRIVE_DATA": str(desk.folder)}
    subprocess.run([sys.executable, "manage.py", "shell", "-c", script], cwd=ROOT, env=environment, check=True)
    return "stranger", "no role at all"


def test_the_login_and_a_refusal_fit_and_are_accessible(desk, browser, stranger):
    page = opened(browser, desk.url, "wide")
    page.goto("/login/")
    found = faults_at_sizes(page, "login")
    page.get_by_label("Name").fill(stranger[0])
    page.get_by_label("Password").fill(stranger[1])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Not allowed").wait_for()
    page.complaints[:] = [message for message in page.complaints if "403" not in message]
    found += faults_at_sizes(page, "refused")
    page.context.close()
    assert found == [], "\n".join(["", *found])


def test_a_live_part_keeps_the_picture_the_focus_and_what_was_opened(page):
    page.goto("/")
    page.hover("#failures-chart svg")
    page.wait_for_selector("#failures-chart .pointed")
    page.click("#failures-table summary")
    page.focus(".group-title >> nth=2")
    page.evaluate("window.before = [document.querySelector('#failures-chart svg'), document.activeElement]")
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        pass
    page.wait_for_timeout(300)
    assert page.evaluate("window.before[0].isConnected && document.activeElement === window.before[1]")
    assert page.evaluate("document.querySelector('#failures-table').open")


def test_an_answer_that_is_late_is_shown_and_no_number_becomes_zero(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in)
    page = context.new_page()
    page.goto("/queues/")
    names = page.locator("#queues .row-link").all_inner_texts()
    context.set_offline(True)
    page.locator("#lateness", has_text="Not updated since").wait_for(timeout=90_000)
    assert names and page.locator("#queues .row-link").all_inner_texts() == names
    context.set_offline(False)
    page.wait_for_selector("#lateness:empty", state="attached", timeout=90_000)
    context.close()


def test_the_keyboard_goes_everywhere(page):
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_url("**/groups/")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/v*-*/")
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
    page.locator("#groups", has_text="No matching groups").wait_for()
    page.click("text=view all groups")
    page.click(".group-title >> nth=0")
    page.wait_for_url("**/groups/v*-*/")
    context.close()


def test_a_phone_loses_no_column_of_a_queue(page):
    page.goto("/queues/")
    wide = page.locator("#queues tbody tr").first.inner_text().split()
    page.set_viewport_size(SIZES["phone"])
    narrow = page.locator("#queues tbody tr >> nth=0").inner_text() + page.locator("#queues tr.rest").first.inner_text()
    assert all(words in narrow for words in ("active", "delayed", "retrying", "succeeded/min", "guarded"))
    assert wide[0] in narrow and page.locator("#queues tr.rest").first.is_visible()
    # On a low screen the account menu scrolls to its last button.
    page.set_viewport_size({"width": 390, "height": 480})
    page.click(".account > summary")
    page.click(".account button:has-text('Log out')", trial=True)


def test_what_a_failures_page_offers_works_without_javascript(desk, browser, logged_in):
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/failures/?q=attempts:>=2+state:dead")
    page.locator("main a.row-link").first.click()
    page.wait_for_url(re.compile(r"/failures/\d+/"))
    at = page.url
    page.fill(".find-in input", "tenant")
    page.press(".find-in input", "Enter")
    page.wait_for_url(re.compile(r"/opened/\?find=tenant"))
    page.goto(at)
    page.click("text=Copy as Python call")
    page.wait_for_url(re.compile(r"/as/python/$"))
    page.goto(at)
    page.click("text=Compare attempts")
    page.wait_for_url(re.compile(r"/diff/"))
    context.close()
