"""The shell: the time range of the charts, the source of a page, and the bell."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.web import time_range
from jobs_admin.desk import overview
from jobs_admin.models import Pause, Replay, Source
from tests.kit.alerts import episode
from tests.kit.depths import create_samples, roll
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.pages import HTMX, text_of
from tests.kit.people import log_in


def menu(page: str, name: str) -> dict[str, str]:
    """Return words -> address of a menu of the shell, and the current one under ""."""
    found = re.search(rf'aria-label="{name}">(.*?)</nav>', page, re.DOTALL)
    if not found:
        return {}
    links = re.findall(r'href="([^"]*)"\s*(aria-current="true")?>([^<]*)</a>', found[1])
    return {words: html.unescape(url) for url, _, words in links} | {
        "": next((w for _, is_on, w in links if is_on), "")
    }


@pytest.fixture
def sampled(watched):
    """A queue with samples of three hours, and dead jobs."""
    now = timezone.now().replace(microsecond=0)
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=now)
    create_samples(now - timedelta(hours=3), 1080)
    roll(now)
    bury(3, queue="emails")
    return reverse("redrive:queue-detail", args=["shop", "emails"])


def test_the_ranges_end_with_the_first_that_contains_all_data():
    now = timezone.now()
    assert time_range.with_data(now - timedelta(hours=3), now) == ["1h", "6h"]
    assert time_range.with_data(None, now)[-1] == "400d"


def test_a_range_is_the_same_on_all_pages_until_another_is_chosen(ann, sampled):
    ranges = menu(ann.get("/").content.decode(), "Time range")
    assert list(ranges) == ["Last 1 h", "Last 6 h", ""] and ranges[""] == "Last 6 h"
    chosen = ann.get("/" + ranges["Last 1 h"].removeprefix("/"))
    assert menu(chosen.content.decode(), "Time range")[""] == "Last 1 h" and "last 1 h" in text_of(chosen)
    cookie = chosen.cookies["redrive-time-range"]
    assert (cookie.value, cookie["samesite"], cookie["httponly"]) == ("1h", "Lax", True)
    assert menu(ann.get(sampled).content.decode(), "Time range")[""] == "Last 1 h"
    # A range in another link was chosen by no one, and an open page stays as it is.
    assert "redrive-time-range" not in ann.get("/", {"span": "6h"}).cookies
    refreshed = ann.get("/", {"span": "6h"}, headers=HTMX)
    assert "redrive-time-range" not in refreshed.cookies
    assert menu(ann.get("/").content.decode(), "Time range")[""] == "Last 1 h"


def test_an_unknown_range_is_the_usual_one(ann, sampled):
    answer = ann.get("/", {"span": "7w"})
    assert menu(answer.content.decode(), "Time range")[""] == "Last 6 h" and not answer.cookies.get(
        "redrive-time-range"
    )


def test_an_alert_is_shown_with_the_time_around_it_and_with_ranges_that_contain_it(ann, sampled):
    page = reverse("redrive:alert-detail", args=[episode("emails", ago_s=5400).pk])
    ann.get("/", {"span": "1h", "remember": "1"})
    ranges = menu(ann.get(page).content.decode(), "Time range")
    assert list(ranges) == ["Around the alert", "Last 6 h", ""] and ranges[""] == "Around the alert"
    assert "last 6 h" in text_of(ann.get(ranges["Last 6 h"]))


def test_a_running_replay_shows_its_latest_hours(ann, watched):
    replay = Replay.objects.create(
        scope_max_id=1, actor="ann", state="running", started_at=timezone.now() - timedelta(hours=8)
    )
    page = reverse("redrive:replay-detail", args=[replay.pk])
    assert list(menu(ann.get(page).content.decode(), "Time range")) == ["Since its start", "Last 1 h", "Last 6 h", ""]
    Replay.objects.update(state="done")
    assert not menu(ann.get(page).content.decode(), "Time range")


def test_a_page_shows_one_source_and_its_links_keep_it(ann, watched, sources):
    both = group()
    bury(2, group=both), bury(5, source="bank", queue="wires", group=both)
    episode("wires", source="bank", acknowledged_by="ann")
    for n in range(13):
        bury(source="bank", queue=f"q{n}")
    page = ann.get("/").content.decode()
    assert f'href="/replays/new/?q=group%3A{both.fingerprint}+state%3Adead"' in page
    assert "wires" in page and "webhooks" in page
    found = menu(page, "Source")
    assert list(found) == ["All sources", "bank", "shop", ""] and found[""] == "All sources"
    only = ann.get(found["bank"]).content.decode()
    assert "wires" in only and "webhooks" not in text_of(ann.get(found["bank"])) and menu(only, "Source")[""] == "bank"
    assert 'href="/queues/?source=bank"' in only and 'href="/failures/?q=source%3Abank"' in only
    assert f'href="/replays/new/?q=source%3Abank+group%3A{both.fingerprint}+state%3Adead"' in only
    # So do the links beside its numbers.
    for url in (
        "/failures/?q=state%3Adead+source%3Abank",
        "/groups/?q=source%3Abank",
        "/alerts/?source=bank",
        "/queues/?source=bank",
    ):
        assert only.partition("<main")[2].count(f'href="{url}"') == 1, url
    live = re.search(r'id="overview"[^>]*hx-get="([^"]*)"', only)[1]
    assert parse_qs(urlsplit(html.unescape(live)).query)["source"] == ["bank"]
    episode("webhooks")
    Pause.objects.create(source="shop", queue="webhooks", reason="x", created_at=timezone.now(), created_by="ann")
    assert all("webhooks" in text_of(ann.get(place)) for place in ("/queues/", "/alerts/", "/pauses/"))
    for place in ("/queues/", "/workers/", "/replays/", "/alerts/", "/pauses/", "/breakers/"):
        page = ann.get(place, {"source": "bank"})
        assert menu(page.content.decode(), "Source")[""] == "bank" and "webhooks" not in text_of(page)
    # A choice in the time range's menu is none of the source's.
    page = ann.get("/", {"span": "1h", "remember": "1"}).content.decode()
    assert menu(page, "Source")["bank"] == "/?span=1h&source=bank"


def test_the_alerts_of_one_source_offer_to_search_the_others_of_the_viewer(watched, sources, django_user_model):
    eve = log_in(django_user_model, "eve", shop="viewer", bank="viewer")
    assert '<option value="shop">' in eve.get("/alerts/", {"source": "bank"}).content.decode()


def test_lists_of_a_search_have_the_source_in_their_search(ann, watched, sources):
    bury(2), bury(5, source="bank", queue="wires")
    found = menu(ann.get("/failures/", {"q": "source:shop queue:webhooks", "after": "9"}).content.decode(), "Source")
    assert found[""] == "shop" and parse_qs(urlsplit(found["bank"]).query) == {"q": ["queue:webhooks source:bank"]}
    assert parse_qs(urlsplit(found["All sources"]).query) == {"q": ["queue:webhooks"]}


@pytest.mark.parametrize(
    ("search", "current", "shown"),
    [
        ("source:bank,shop", "", "Several sources"),
        ("source:b*", "", "Several sources"),
        ("-source:bank", "", "Several sources"),
        ("source:bnak", "", "Several sources"),
        ("queue:wires", "All sources", "All sources"),
    ],
)
def test_a_search_for_several_sources_is_called_so(ann, watched, sources, search, current, shown):
    page = ann.get("/failures/", {"q": search})
    assert menu(page.content.decode(), "Source")[""] == current and f"Source: {shown} " in text_of(page)
    assert 'href="/queues/"' in page.content.decode()


def test_a_search_in_place_brings_the_menus_of_its_source(ann, watched, sources):
    bury(2)
    for path, target in (("/failures/", "results"), ("/groups/", "groups")):
        part = {**HTMX, "HX-Target": target}
        page = ann.get(path, {"q": "timeout"}, headers=part).content.decode()
        assert menu(page, "Source")["bank"] == f"{path}?q=timeout+source%3Abank"
        places = re.findall(r'id="(source-[a-z]+)"\s+hx-swap-oob="true"', page)
        assert places == ["source-menu", "source-choices"]
        # Those of the page itself; a part that refreshes itself leaves a menu that is open.
        assert page.count("source%3Abank") == 2
        assert all(ann.get(path).content.decode().count(f'id="{name}"') == 1 for name in places)
        assert "source-menu" not in ann.get(path, headers=part | {"HX-Trigger": target}).content.decode()


def test_groups_by_queue_have_no_switcher(ann, watched, sources):
    assert menu(ann.get("/groups/").content.decode(), "Source")
    assert not menu(ann.get("/groups/", {"by": "queue"}).content.decode(), "Source")


def test_a_source_out_of_sight_is_neither_offered_nor_shown(vera, watched, sources):
    bury(2), bury(5, source="bank", queue="wires")
    page = vera.get("/", {"source": "bank"})
    assert not menu(page.content.decode(), "Source") and "wires" not in text_of(page) and "webhooks" in text_of(page)


def test_a_source_that_is_not_known_is_not_chosen(ann, watched, sources):
    bury(2)
    page = ann.get("/", {"source": "shpo"}).content.decode()
    assert "webhooks" in page and "shpo" not in page and menu(page, "Source")[""] == "All sources"


def test_the_bell_counts_what_happened_since_the_last_visit(ann, vera, watched):
    assert "Nothing new." in text_of(ann.get("/activity/"))
    del ann.cookies["redrive-seen-until"]
    alert, found = episode("webhooks"), group()
    bury(group=found)
    Replay.objects.create(scope_max_id=1, actor="ann", state="held", state_since=timezone.now())
    assert "Activity, 3 new" in text_of(ann.get("/groups/"))
    page = text_of(ann.get("/activity/"))
    assert "firing" in page and "held" in page and "TimeoutError: no answer" in page
    assert reverse("redrive:alert-detail", args=[alert.pk]) in ann.get("/activity/").content.decode()
    again = text_of(ann.get("/activity/"))
    assert (
        "Nothing new." in again
        and "Earlier" in again
        and "new" not in re.search("Activity.{0,8}", text_of(ann.get("/groups/")))[0]
    )
    # A replay of no visible job is no event of this viewer.
    assert "replay #" not in text_of(vera.get("/activity/"))
    # Another person in this browser has not been there.
    vera.cookies["redrive-seen-until"] = ann.cookies["redrive-seen-until"].value
    assert "Activity, 1 new" in text_of(vera.get("/groups/"))


def test_the_bell_counts_all_sources_on_a_page_of_one(ann, watched, sources):
    for n in range(100):
        episode(f"q{n}")
        if n in (0, 98):
            overview.forget()
            assert f"Activity, {n + 1} new" in text_of(ann.get("/queues/", {"source": "bank"}))
    overview.forget()
    assert "Activity, 99+ new" in text_of(ann.get("/queues/", {"source": "bank"}))


@pytest.mark.parametrize("query", ["(queue:a", "since:never", "args.id:", '"', "queue:" + "x" * 3_000])
@pytest.mark.parametrize("path", ["/failures/", "/groups/", "/replays/", "/"])
def test_what_cannot_be_read_as_a_search_ends_no_page(ann, shop_and_web, watched, path, query):
    assert ann.get(path, {"q": query, "source": query}).status_code < 500


def test_an_address_that_does_not_exist_has_the_shell(ann, shop_and_web, watched):
    answer = ann.get("/nothing/is/called/this/")
    assert answer.status_code == 404 and "Activity" in text_of(answer)
