"""The columns of the failure list are records: each has its header and its cells, in one order."""

from __future__ import annotations

import re

from django.urls import reverse

from dashboard.failures import columns
from dashboard.failures.columns import COLUMNS, Column
from tests.kit.failures import bury


def page_of(client):
    return client.get(reverse("redrive:failure-list")).content.decode()


def table_of(page):
    return re.search(r"<table class=\"list failures\".*?</table>", page, re.DOTALL)[0]


def test_headers_and_cells_stand_in_the_order_of_the_records(ann):
    bury(2)
    table = table_of(page_of(ann))
    heads = re.findall(r'<th scope="col" class="([^"]+)"(?: title="[^"]+")?>([^<]+)</th>', table)
    assert heads == [(column.look, column.label) for column in COLUMNS]
    for row in table.split("<tr data-row")[1:]:
        cells = [look for look in re.findall(r'<td class="([^"]+)">', row) if look != "pick"]
        assert cells == [column.look for column in COLUMNS]


def test_text_of_a_cell_that_is_no_html_is_escaped(ann, monkeypatch):
    monkeypatch.setattr(columns, "COLUMNS", (Column("col-raw", "Raw", lambda row: row.failure.message),))
    bury(message="<script>alert(1)</script>")
    assert '<td class="col-raw">&lt;script&gt;alert(1)&lt;/script&gt;</td>' in page_of(ann)


def test_names_of_strangers_are_escaped_in_every_cell(ann):
    bury(
        error_type="<b>x", message="<b>x", task="<b>x", queue="<b>x", tenant="<b>x",
    )  # fmt: skip
    assert "<b>x" not in table_of(page_of(ann))
