"""From the link of a notice to the act, at night: real rows, judged by the engine, in a real browser.

The watch does not run here: its steps are taken one by one, with a time of their own.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone

from jobs_admin import alerts, config
from jobs_admin.core import keys
from jobs_admin.models import Alert, AlertEvent, Replay, Rule, Silence
from jobs_admin.models.access import Viewer
from jobs_admin.queues import sampling
from tests.kit.alerts import episode, rule
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.page_checks import SIZES, expect, faults_at_sizes, opened
from tests.kit.people import log_in
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.browser]

DEAD = 143
PASSWORD = "correct horse battery"


@pytest.fixture
def shop(store, settings, tmp_path, transactional_db):
    """A source in this process, and a watch that is alive while the test looks."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    for step in ("ingest", "sample", "judge"):
        store.hset(keys.steps(), step, json.dumps({"at": timezone.now().timestamp() + 200}))
    return "shop"


@pytest.fixture
def people(django_user_model, shop):
    """Otto operates the shop, Vera looks on."""
    return {
        name: log_in(django_user_model, name, shop=role) for name, role in (("otto", "operator"), ("vera", "viewer"))
    }


@pytest.fixture
def alert(people) -> Alert:
    """143 jobs of emails died; a look and a judgement every ten seconds, until it has fired."""
    Rule.objects.all().delete()  # those of the first minute stand only before the first test of this kind
    of = alerts.save_rule(
        Viewer("ann", {"*": "admin"}),
        {"name": "Dead Letter Queue Growing", "metric": "dead", "threshold": 100, "for_s": 60},
    )
    now = timezone.now()
    began = now - timedelta(seconds=100)
    died = began - timedelta(seconds=20)
    found = group("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed")
    bury(DEAD, queue="emails", group=found, failed_at=died, first_failed_at=died)
    for s in range(0, 101, 10):
        sampling.sample(began + timedelta(seconds=s))
        alerts.judge(began + timedelta(seconds=s))
    found = Alert.objects.get(rule=of)
    assert (found.state, found.subject, found.value) == ("firing", "emails", DEAD)
    return found


def at(alert: Alert) -> str:
    return f"/alerts/{alert.pk}/"


def come_in(page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(lambda url: "/login" not in url, wait_until="load")


@pytest.mark.long("Drives a browser through pages of a running server.")
@pytest.mark.parametrize("size", SIZES)
def test_from_the_link_through_the_login_to_acknowledged_silenced_and_a_draft(live_server, browser, alert, size):
    page = opened(browser, live_server.url, size)
    page.goto(at(alert))
    page.wait_for_url(re.compile(r"/login/\?next="))
    come_in(page, "otto")
    page.wait_for_url(re.compile(rf"{at(alert)}$"))
    assert page.locator("h1").inner_text() == "emails has 143 dead jobs (threshold: 100)"
    assert "Not acknowledged." in page.inner_text("#alert")
    assert "SMTPServerDisconnected" in page.inner_text("#alert")
    assert page.locator("#metric-chart path.threshold").count() == 1

    page.get_by_label("Comment, optional").fill("I look at the mail server")
    page.get_by_role("button", name="Acknowledge").click()
    page.locator(".alert-stands", has_text="Acknowledged by otto.").wait_for()
    assert page.locator("[data-key=a]").count() == 0
    assert page.get_by_role("button", name="Undo acknowledgement").count() == 1
    assert "I look at the mail server" in page.inner_text(".alert-story")

    page.locator("#silence-menu summary").first.click()
    page.get_by_label("Reason (required)").fill("the provider knows")
    page.get_by_role("button", name=re.compile("^4 h")).click()
    banner = page.locator(".alert-head .banner", has_text="the provider knows")
    end, room = banner.get_by_role("button", name="End silence").bounding_box(), banner.bounding_box()
    assert room["x"] <= end["x"] and end["x"] + end["width"] <= room["x"] + room["width"]
    made = Silence.objects.get()
    assert made.matchers == {"rule": "Dead Letter Queue Growing", "source": "shop", "queue": "emails"}

    page.get_by_role("link", name="Review and replay 143 emails jobs").click()
    page.wait_for_url(re.compile(r"/replays/new/\?q="))
    requested = parse_qs(urlsplit(page.url).query)["q"][0]
    assert "queue:emails" in requested and re.search(r"since:20\d\d-\d\d-\d\dT", requested)
    page.get_by_role("button", name=re.compile("^Replay 143 jobs to emails")).wait_for()
    assert not Replay.objects.exclude(state="draft").exists()
    page.go_back()
    page.get_by_role("link", name="Open failures").click()
    page.locator("tbody tr").first.wait_for()
    assert "143" in page.inner_text("main") and page.complaints == []
    page.context.close()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_by_keyboard_alone(live_server, browser, alert):
    page = opened(browser, live_server.url, "wide")
    page.goto("/login/")
    come_in(page, "otto")
    for key in ("g", "l"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile(r"/alerts/$"))
    for key in ("j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile(rf"{at(alert)}$"))
    # `a` after `g` is a page that Otto has not: it acknowledges nothing. Nor does an `a` that is typed.
    for key in ("g", "a"):
        page.keyboard.press(key)
    page.focus("#ack-comment")
    page.keyboard.type("a")
    page.keyboard.press("Escape")
    assert Alert.objects.get(pk=alert.pk).state == "firing"
    page.wait_for_timeout(1600)  # no page is waited for any more
    page.keyboard.press("a")
    page.locator(".alert-stands", has_text="Acknowledged by otto.").wait_for()
    page.wait_for_load_state()  # its scripts hear keys
    page.keyboard.press("r")
    page.wait_for_url(re.compile(r"/replays/new/\?q="))
    page.go_back()
    page.keyboard.press("Control+k")
    page.keyboard.type("silen")
    page.keyboard.press("Enter")
    page.locator("#silence-menu[open]").wait_for()
    assert page.complaints == []
    page.context.close()


def test_who_only_views_is_shown_why(live_server, browser, alert):
    page = opened(browser, live_server.url, "phone")
    page.goto(at(alert))
    come_in(page, "vera")
    page.locator(".why-not", has_text="need the role operator on shop").wait_for()
    assert page.get_by_role("button", name="Acknowledge").count() == 0
    assert page.locator("#silence-menu").count() == 0 and page.locator('a[href*="/replays/new/"]').count() == 0
    page.context.close()


def test_what_becomes_of_it_is_shown_without_a_reload_and_what_is_typed_stays(live_server, browser, alert):
    page = opened(browser, live_server.url, "wide")
    page.goto(at(alert))
    come_in(page, "otto")
    page.fill("#ack-comment", "half a sen")
    page.evaluate("window.stays = document.querySelector('#ack-comment')")
    alerts.acknowledge(Viewer("ann", {"*": "admin"}), alert.pk, "on it")
    page.locator(".alert-story", has_text="on it").wait_for(timeout=60_000)
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
    page.context.close()


def test_acknowledged_from_the_overview_it_stays_there(live_server, browser, alert):
    page = opened(browser, live_server.url, "phone")
    page.goto("/login/")
    come_in(page, "otto")
    page.get_by_role("button", name="Acknowledge").click()
    page.locator(".alert-who", has_text="acknowledged by otto").wait_for()
    assert urlsplit(page.url).path == "/" and page.complaints == []
    page.context.close()


def test_a_silence_shows_what_it_fits_as_it_is_typed_and_is_ended_early(live_server, browser, alert):
    page = opened(browser, live_server.url, "wide")
    page.goto("/login/?next=/alerts/silences/")
    come_in(page, "otto")
    page.get_by_label("Source").fill("shop")
    page.get_by_label("Queue").fill("em*")
    page.locator("#fitting", has_text="Silences 1 open alert now").wait_for()
    page.get_by_label("Queue").fill("nothing")
    page.locator("#fitting", has_text="No open alerts match now").wait_for()
    page.get_by_label("Reason (required)").press("Tab")  # left empty
    page.locator("#refused-comment", has_text="Enter a reason").wait_for()
    page.get_by_label("Duration").select_option("until")
    page.get_by_label("Until").fill("2020-01-01T10:00")
    page.locator("#refused-until", has_text="must be after the start").wait_for()
    page.get_by_label("Duration").select_option("until tomorrow 09:00")
    page.locator("#silence-end", has_text="09:00 UTC").wait_for()
    page.get_by_label("Reason (required)").fill("the database moves")
    page.get_by_role("button", name="Create silence").click()
    page.locator("table.silences", has_text="the database moves").wait_for()
    page.get_by_role("button", name="End silence").click()
    page.get_by_role("heading", name="Ended silences").wait_for()
    assert Silence.objects.get().ended_by == "otto" and page.complaints == []
    page.context.close()


def test_without_javascript_it_is_acknowledged_and_silenced(live_server, browser, alert):
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    page = context.new_page()
    page.goto(at(alert))
    come_in(page, "otto")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#alert")).to_contain_text("Acknowledged by otto.")
    page.click("#silence-menu summary")
    page.fill("#silence-comment", "known")
    page.get_by_role("button", name=re.compile("^1 h")).click()
    expect(page.locator("#alert")).to_contain_text("Silenced until")
    assert Silence.objects.count() == 1
    context.close()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_pages_full_of_alerts_fit_and_are_accessible(live_server, browser, people, alert):
    """Two weeks of hundreds of episodes, dozens of them open."""
    by = {"metric": "oldest_dead_s", "threshold": 3600, "severity": "info"}
    rules = [
        Rule.objects.get(),
        rule("Old jobs", **by),
        rule("Poison", metric="quarantined", threshold=0, severity="critical"),
    ]
    for n in range(240):
        episode(f"queue-{n % 17}", of=rules[n % 3], state="resolved", ago_s=3_000 + n * 5_000, lasted_s=600 + n * 20)
    for n in range(40):
        state = ("firing", "acknowledged", "silenced", "pending")[n % 4]
        last = episode(f"{'a-queue-with-a-very-long-name-' * 3}{n}", of=rules[n % 3], state=state, ago_s=120 + n * 60)
    now = timezone.now()
    for n in range(3):
        Silence.objects.create(matchers={"source": "shop", "queue": f"{'long' * 20}{n}"}, author="otto", comment="because " * 20, starts_at=now, ends_at=now + timedelta(hours=n))  # fmt: skip
    page = opened(browser, live_server.url, "wide")
    page.goto("/login/")
    come_in(page, "otto")
    found = []
    addresses = ("/", "/alerts/", "/alerts/?state=resolved&span=90d", "/alerts/?source=nothing", at(alert), at(last), "/alerts/silences/?queue=*", "/alerts/silences/")  # fmt: skip
    for address in addresses:
        page.goto(address, wait_until="load")
        found += faults_at_sizes(page, address)
    page.goto(at(alert))
    page.locator("#silence-menu summary").first.click()
    found += faults_at_sizes(page, "the menu")
    page.context.close()
    assert found == [], "\n".join(["", *found])
    assert AlertEvent.objects.count() > 700
