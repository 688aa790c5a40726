"""The same failures by queue, tenant and release."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin.failures import open_by
from jobs_admin.models import Release
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.pages import HTMX, count_of_link, text_of


def rows(answer) -> list[list[str]]:
    body = re.search(r"<tbody data-rows>(.*?)</tbody>", answer.content.decode(), re.S)[1]
    return [
        [
            " ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split())
            for cell in re.findall(r"<td.*?</td>", row, re.S)
        ]
        for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


def some():
    loud, quiet = group("Loud"), group("Quiet")
    bury(5, group=loud, queue="emails", tenant="acme", release="r1")
    bury(2, group=quiet, queue="emails", tenant="acme", release="r2")
    bury(1, group=quiet, queue="reports", tenant="", release="r2", state="retrying")
    bury(4, group=quiet, queue="reports", tenant="acme", state="recovered")


def test_queues_are_counted_exactly_and_the_fullest_come_first(ann, watched):
    some()
    assert [row[:5] for row in rows(ann.get("/groups/?by=queue"))] == [
        ["emails", "7", "7", "2", "Loud no answer 71 % of open jobs"],
        ["reports", "1", "0", "1", "Quiet no answer 100 % of open jobs"],
    ]


def test_tenants_are_counted_and_those_that_name_none_come_last(ann, watched):
    some()
    found = rows(ann.get("/groups/?by=tenant"))
    assert [row[:4] for row in found] == [["acme", "7", "7", "2"], ["no tenant", "1", "0", "1"]]


def test_releases_come_the_latest_first(ann, watched):
    some()
    for n, version in enumerate(("r1", "r2")):
        Release.objects.create(source="shop", version=version, at=timezone.now() + timedelta(hours=n))
    assert [row[0] for row in rows(ann.get("/groups/?by=release"))] == ["r2", "r1"]


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_each_number_is_what_its_link_shows(ann, watched, by):
    some()
    page = ann.get(f"/groups/?by={by}").content.decode()
    opened = re.findall(r'row-link mono clip" href="([^"]+)".*?<td class="number">([\d,]+)</td>', page, re.S)
    dead = re.findall(r'count-of-state" href="([^"]+)">([\d,]+)</a>', page)
    assert opened and all(count_of_link(ann, html.unescape(url)) == int(n) for url, n in opened + dead)


def test_what_was_counted_over_the_latest_shows_it(ann, watched, monkeypatch):
    monkeypatch.setattr(open_by, "SAMPLE", 4)
    some()
    answer = ann.get("/groups/?by=tenant")
    assert "Counts cover the latest 4 open failures" in text_of(answer) and rows(answer)[0][1] == "3 75 %"


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_sources_out_of_sight_are_not_counted(vera, watched, by):
    some()
    bury(50, group=group("Hidden"), source="bank", queue="secret", tenant="secret", release="secret")
    answer = vera.get(f"/groups/?by={by}")
    assert "secret" not in text_of(answer) and "Hidden" not in text_of(answer)


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_a_desk_where_nothing_is_open_shows_it(ann, watched, by):
    assert "No open failures." in text_of(ann.get(f"/groups/?by={by}"))


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_names_of_strangers_are_shown_not_obeyed(ann, watched, by):
    bury(group=group("<i>E</i>"), **{by: "<script>alert(1)</script>\u202e"})
    page = ann.get(f"/groups/?by={by}").content.decode()
    assert "<script>alert" not in page and "<i>E" not in page and "\u202e" not in page


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_the_part_alone_comes_for_htmx_and_not_twice(ann, watched, by):
    bury(group=group(), failed_at=timezone.now() - timedelta(days=3), **{by: "x"})
    first = ann.get(f"/groups/?by={by}", headers=HTMX)
    assert first.content.lstrip().startswith(b'<section id="by"')
    assert ann.get(f"/groups/?by={by}", headers=HTMX | {"If-None-Match": first["ETag"]}).status_code == 304


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_a_row_more_costs_no_query_more(db, by, django_assert_max_num_queries):
    for n in range(60):
        bury(group=group(f"E{n}"), queue=f"q{n}", tenant=f"t{n}", release=f"r{n}")
    with django_assert_max_num_queries(4):
        found = open_by.open_by(ENGINE, by)
    assert (len(found.rows), found.others, found.open) == (50, 10, 60)


@pytest.mark.parametrize("by", open_by.FIELDS)
def test_a_viewer_without_roles_finds_nothing(db, by):
    some()
    assert open_by.open_by(Viewer("nobody", {}), by).rows == []
