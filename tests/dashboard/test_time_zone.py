"""Pages are in UTC, or in the zone that their reader chose; what others read stays in UTC."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.http import QueryDict
from django.utils import timezone

from dashboard.policies.changes import editor_text
from dashboard.policies.forms import Draft
from dashboard.retries.forms import Change
from dashboard.web import charts, figures, moments
from dashboard.web.moments import COOKIE
from jobs_admin.models import Failure, Group, Silence
from tests.kit.failures import bury
from tests.kit.groups import group

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]

AT = datetime(2026, 7, 3, 22, 30, 5, tzinfo=UTC)  # 00:30 of the next day in Berlin, 04:00 in Kolkata


def page(client, path):
    return html.unescape(client.get(path).content.decode())


def test_a_time_is_that_of_the_zone_with_its_name_and_the_same_for_programs():
    now = AT + timedelta(minutes=5)
    assert (
        figures.clock(AT, now=now)
        == '<time datetime="2026-07-03T22:30:05Z" title="2026-07-03 22:30:05 UTC">22:30</time>'
    )
    with timezone.override("Europe/Berlin"):
        assert 'datetime="2026-07-03T22:30:05Z" title="2026-07-04 00:30:05 CEST">00:30<' in figures.clock(AT, now=now)
        assert ">4 Jul 00:30<" in figures.clock(AT, now=now + timedelta(days=1))
        assert moments.dated(AT, now) == "4 Jul 00:30 CEST"
    with timezone.override("America/Sao_Paulo"):  # a zone without letters
        assert moments.dated(AT, now) == "3 Jul 19:30 UTC-03:00"


def test_sentences_of_the_engine_have_their_times_in_the_zone_of_the_page():
    text = "failing since 22:30 UTC; oldest from 1 Jan 23:12 UTC; seen 2026-07-03 22:30:05 UTC; 5 Nov 2025 02:07 UTC"
    assert moments.in_zone(text, AT) == text
    with timezone.override("Europe/Berlin"):
        assert moments.in_zone(text, AT) == (
            "failing since 00:30 CEST; oldest from 2 Jan 00:12 CET; seen 2026-07-04 00:30:05 CEST; 5 Nov 2025 03:07 CET"
        )
        assert moments.in_zone("31 Dec 23:12 UTC", AT.replace(month=1)) == "1 Jan 00:12 CET"
        assert moments.in_zone("99 Jan 25:00 UTC and 12:00 CET", AT) == "99 Jan 25:00 UTC and 12:00 CET"


def test_the_headline_of_the_overview_is_in_the_zone_of_its_reader(ann, watched):
    bury()
    ann.cookies[COOKIE] = "Asia/Kolkata"
    assert re.search(r"1 dead job, from (\d+ \w+ )?\d\d:\d\d IST", page(ann, "/"))


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def test_a_field_reads_back_what_it_shows(name):
    minute = AT.replace(second=0)
    with timezone.override(name):
        assert moments.from_field(moments.as_field(minute)) == minute
        assert moments.from_field("2026-07-03T22:30Z") == minute  # a text that names its zone is of that
        text = Draft.from_document({"name": "a", "expires_at": "2026-07-03T22:30:05Z"}).texts["expires_at"]
        assert moments.from_field(text) == AT
        assert editor_text("expires_at", "2026-07-03T22:30:05Z") == text.replace("T", " ") + f" {moments.zone_name(AT)}"
        change = Change({"how": "moment", "due_at": moments.as_field(minute)}).document
        assert datetime.fromisoformat(change["due_at"]) == minute
        assert Change({"how": "moment", "due_at": "soon"}).document["due_at"] == "soon"  # for the refusal


@pytest.mark.parametrize(
    ("name", "day"), [("UTC", 3), ("Asia/Kolkata", 4), ("Europe/Berlin", 4), ("America/Los_Angeles", 3)]
)
def test_an_axis_has_round_times_of_the_zone(name, day):
    with timezone.override(name):
        noon = moments.local(AT).replace(hour=12, minute=0, second=0)
        hours = [tick.words for tick in charts.Times.between(noon - timedelta(days=1), noon).ticks()]
        days = [tick.words for tick in charts.Times.between(noon - timedelta(days=6), noon).ticks()]
    assert hours == ["16:00", "20:00", f"{day} Jul", "04:00", "08:00"]
    assert days[-3:] == [f"{day - 2} Jul", f"{day - 1} Jul", f"{day} Jul"]


def test_days_of_an_axis_begin_at_midnight_after_a_change_of_clocks():
    with timezone.override("Europe/Berlin"):
        until = datetime(2026, 10, 28, 11, tzinfo=UTC)
        scale = charts.Times.between(until - timedelta(days=7), until)
        ticks = {tick.words: tick.x for tick in scale.ticks()}
        assert list(ticks) == [f"{day} Oct" for day in range(22, 29)]
        assert ticks["26 Oct"] == scale.per_cent(datetime(2026, 10, 25, 23, tzinfo=UTC))


def test_a_time_that_the_clocks_skip_is_as_much_later_and_one_that_comes_twice_is_the_first():
    with timezone.override("Europe/Berlin"):
        skipped, twice = moments.from_field("2027-03-28T02:30"), moments.from_field("2026-10-25T02:30")
        assert moments.as_field(skipped) == "2027-03-28T03:30" and twice == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        document = Draft.from_form(QueryDict("expires=at&expires_at=2027-03-28T02:30")).document(AT)
        assert datetime.fromisoformat(document["expires_at"]) == skipped


def test_an_open_page_stays_in_its_zone_when_another_tab_switches(ann):
    ann.cookies[COOKIE] = "Asia/Kolkata"
    ends = (timezone.now() + timedelta(days=2)).astimezone(UTC).replace(second=0, microsecond=0)
    form = {"source": "shop", "comment": "c", "for": "until", "until": f"{ends:%Y-%m-%dT%H:%M}", "time_zone": "UTC"}
    ann.post("/alerts/silences/save/", form)
    assert Silence.objects.get().ends_at == ends
    part = ann.get("/alerts/silences/", headers={"X-Time-Zone": "Europe/Berlin"}).content.decode()
    assert 'data-zone-name="CE' in part


def test_every_page_follows_the_cookie_and_one_that_names_no_zone_is_utc(ann):
    bury(3)
    Failure.objects.update(failed_at=timezone.now() - timedelta(minutes=1))
    for value, shown in (("Europe/Berlin", "CE"), ("Asia/Kolkata", "IST"), ("", "UTC")):
        ann.cookies[COOKIE] = value
        for path in (
            "/",
            "/groups/",
            "/alerts/",
            "/alerts/silences/",
            "/queues/shop/emails/",
            "/incidents/",
            "/policies/new/",
        ):
            text = page(ann, path)
            assert f'data-zone-name="{shown}' in text, (value, path)
            assert not value or text.count("UTC") == text.count("between UTC and"), (value, path)
    for value in (
        "../../etc/passwd",
        "/etc/passwd",
        "Europe",
        "x" * 4_000,
        "zone.tab",
        "localtime",
        "Factory",
        "posix/Europe/Berlin",
        "UTC\\0",
        "é",
    ):
        ann.cookies[COOKIE] = value
        assert 'data-zone="UTC" data-zone-name="UTC"' in page(ann, "/"), value


def test_a_form_is_read_in_the_zone_of_its_page(ann):
    ann.cookies[COOKIE] = "Asia/Kolkata"
    ends = (timezone.now() + timedelta(days=2)).astimezone(UTC).replace(hour=6, minute=30, second=0, microsecond=0)
    typed = f"{ends:%Y-%m-%d}T12:00"
    ann.post("/alerts/silences/save/", {"source": "shop", "comment": "c", "for": "until", "until": typed})
    assert Silence.objects.get().ends_at == ends
    assert f"{ends.day} {ends:%b} 12:00</time>" in page(ann, "/alerts/silences/")
    bury(group=(where := group("Broken")))
    ann.post(f"/groups/{where.fingerprint}/change/", {"act": "mute_until", "muted_until": typed})
    assert Group.objects.get().muted_until == ends


def test_what_others_read_is_in_utc(ann, client, call_api):
    ann.cookies[COOKIE] = "Asia/Kolkata"
    bury(3)
    now = timezone.now().astimezone(UTC).replace(second=0, microsecond=0)
    with timezone.override("Asia/Kolkata"):
        typed = {"since": moments.as_field(now - timedelta(hours=1)), "until": moments.as_field(now)}
    shared = ann.get("/incidents/", {"source": "shop", "time_zone": "Asia/Kolkata", **typed})
    # An address that is of the same time for everyone.
    assert shared.status_code == 302 and "time_zone" not in shared.url
    assert f"{now - timedelta(hours=1):%H}%3A{now:%M}" in shared.url and shared.url.count("Z") == 2
    text = ann.get(shared.url.replace("/incidents/", "/incidents/as/markdown/")).content.decode()
    assert "All times are UTC." in text and f"{now:%H:%M} UTC" in text
    assert call_api("GET", "failures").json()["items"][0]["failed_at"].endswith("Z")
    call = f"incident?source=shop&since={now - timedelta(hours=1):%Y-%m-%dT%H:%M}&until={now:%Y-%m-%dT%H:%M}"
    first = call_api("GET", call)
    client.cookies[COOKIE] = "Asia/Kolkata"
    assert first.status_code == 200 and call_api("GET", call).json() == first.json()
