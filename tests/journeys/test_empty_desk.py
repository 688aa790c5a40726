"""A desk on its first day: each page of the URLconf without failures, without answers and without acts."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from jobs_admin.models import Source
from tests.kit.page_checks import SIZES, faults_at_sizes, opened, pages

pytestmark = [pytest.mark.server, pytest.mark.browser]

# What a whole page says, beside its name, where it has nothing to show.
WORDS = {
    "overview": "No source yet",
    "group-list": "its group appears here within seconds",
    "failure-list": "No failures yet",
    "view-list": "No saved views yet",
    "replay-list": "No replays yet",
    "reschedule-list": "No rescheduled retries yet",
    "group-rules": "No grouping rules",
    "queue-list": "No source yet",
    "audit-list": "No changes yet",
    "activity": "Nothing new",
}


@pytest.fixture
def session(store, transactional_db) -> dict:
    """The cookies of a browser whose user may see everything."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("first", password="x"))
    return {"name": "sessionid", "value": client.cookies["sessionid"].value}


def on_its_own() -> list:
    """Pages that need nothing to be there; the demo's is there in its own desk only."""
    return [a for a in pages() if "<" not in a.route and "(?P" not in a.route and not a.name.startswith("demo")]


@pytest.mark.long("Starts a desk and measures its pages in a browser.")
def test_an_empty_desk_shows_it_on_every_page(session, live_server, browser):
    page = opened(browser, live_server.url, "wide")
    page.context.add_cookies([session | {"url": live_server.url}])
    found = []
    for address in on_its_own():
        page.goto(address.route, wait_until="load")
        found += faults_at_sizes(page, address.name)
        words = WORDS.get(address.name, "")
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            if words not in page.inner_text("main"):
                found.append(f"{address.name} {size}: does not say {words!r}: {page.inner_text('main')[:200]!r}")
        page.set_viewport_size(SIZES["wide"])
    page.context.close()
    assert found == [], "\n".join(["", *found])


@pytest.mark.long("Measures pages of a running server in a browser.")
def test_a_source_that_does_not_answer_is_shown_with_what_to_do(session, live_server, browser):
    now = timezone.now()
    Source.objects.create(
        name="shop", is_configured=True, is_reachable=False, why_unreachable="Connection refused", sampled_at=now, changed_at=now
    )  # fmt: skip
    found = []
    page = opened(browser, live_server.url, "wide")
    page.context.add_cookies([session | {"url": live_server.url}])
    for path in ("/", "/queues/"):
        page.goto(path)
        found += faults_at_sizes(page, f"unreachable {path}")
        for size in SIZES.values():
            page.set_viewport_size(size)
            assert all(words in page.inner_text("main") for words in ("unreachable", "Connection refused"))
        page.set_viewport_size(SIZES["wide"])
    page.context.close()
    assert found == [], "\n".join(["", *found])
