"""On a phone no label of these pages is cut, covers another or runs out of the page, whatever the names are."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from jobs_admin.models import Replay, Source
from jobs_admin.models.access import ENGINE
from jobs_admin.trust import source_keys
from tests.kit.groups import group
from tests.kit.page_checks import faults, opened
from tests.kit.replays import create_replay_on_hold, moved, running
from tests.kit.signed_reports import end_unsigned, entry, file, forged

pytestmark = [pytest.mark.server, pytest.mark.browser]

QUEUE = "a_queue_with_a_long_name_for_invoices.high"
# Texts as they are seen: of closed menus and of what only screen readers read there are none.
CUT = """() => {
  const seen = (e) => e.checkVisibility({ visibilityProperty: true })
    && !e.closest(".unseen-label, thead") && getComputedStyle(e).clipPath === "none";
  const all = [...document.querySelectorAll("main *")].filter(seen);
  const found = all.filter((e) => {
    const { overflowX } = getComputedStyle(e);
    return e.textContent.trim() && (e.getBoundingClientRect().right > innerWidth + 1
      || (["hidden", "clip"].includes(overflowX) && e.scrollWidth > e.clientWidth + 1));
  }).map((e) => `cut: ${e.textContent.trim().slice(0, 60)}`);
  const texts = [];
  for (const e of all) for (const node of e.childNodes) {
    if (node.nodeType !== Node.TEXT_NODE || !node.textContent.trim() || e.closest("svg, option")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 1) texts.push([box, node.textContent.trim().slice(0, 40), e]);
  }
  texts.forEach(([a, one, e], n) => texts.slice(n + 1).forEach(([b, other, f]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const inBar = !e.closest('.save-bar') !== !f.closest('.save-bar'); // it stays in view above what is scrolled
    if (!inBar && !e.contains(f) && !f.contains(e) && wide > 2 && high > 4) found.push(`on each other: ${one} | ${other}`);
  }));
  return found;
}"""


@pytest.fixture
def phone(watched, shop, transactional_db, live_server, browser):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("first", password="x"))
    page = opened(browser, live_server.url, "phone")
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}
    page.context.add_cookies([cookie])
    yield page
    page.context.close()


def refused() -> None:
    """Reports of a known and an unknown source, of sources with long names, with and without keys."""
    key = source_keys.create(ENGINE, "shop")
    for name in ("shop", "bank", "a-source-with-a-rather-long-name-of-its-own"):
        Source.objects.get_or_create(name=name)
    Source.objects.filter(name="shop").update(signed_since=timezone.now() - timedelta(days=3))
    end_unsigned()
    file(*(entry(f"j{n}") for n in range(3)), *forged(key).values(), entry("x1", source="new-and-unknown-source"))


def layout_faults(page, url: str) -> list[str]:
    page.goto(url, wait_until="load")
    found = faults(page, url) + page.evaluate(CUT)
    if shots := os.environ.get("SHOTS"):
        page.screenshot(path=f"{shots}{url.partition('?')[0].replace('/', '-')}.png", full_page=True)
    return found


def test_sources_and_their_menus(phone):
    refused()
    assert layout_faults(phone, "/sources/") == []
    assert "Signed since 3 d ago" in phone.evaluate(
        """() => [...document.querySelectorAll("td[data-label]")].map(
            (e) => getComputedStyle(e, "::before").content.replaceAll('"', "") + e.textContent).join(" ")"""
    )
    for menu in phone.locator("main details.menu > summary").all():
        menu.click()
        body = phone.locator("main details[open] > .menu-body")
        box = body.bounding_box()
        assert (
            box["x"] >= 0 and box["x"] + box["width"] <= 390 and body.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        )
        menu.click()


@pytest.mark.long("Drives a browser through pages of a running server.")
def test_a_replay_and_its_preview(phone):
    stopped = create_replay_on_hold(
        others=30, kind="canary", failed=2, judged=5, limit=0.2, unsettled=3, succeeded=0, failed_again=0
    )
    replay = running(20, queue=QUEUE)
    error = group("shop.x.PaymentGatewayTimeoutError", "no answer from a very long host name")
    for n in range(1, 9):
        moved(replay, n, "failed_again", outcome="TimeoutError: no answer from api.example.com:443", failed_group=error)
    moved(replay, 9, "uncertain", outcome="No news within 30 min of sending.")
    refused()
    Replay.objects.filter(pk=replay.pk).update(to_queue="other-queue", attempts="kept")
    pages = [f"/replays/{stopped.pk}/", f"/replays/{replay.pk}/", "/replays/", "/replays/new/?q=state:dead"]
    running(3, queue=QUEUE)
    assert [fault for url in pages for fault in layout_faults(phone, url)] == []
