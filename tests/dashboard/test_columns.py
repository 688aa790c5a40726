"""The columns of the failure list are records: each has its header and its cells, in one order."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from django.urls import reverse

from dashboard.failures import columns
from dashboard.failures.columns import COLUMNS, Column
from tests.kit.failures import bury

ROOT = Path(__file__).resolve().parents[2]


def page_of(client):
    return client.get(reverse("redrive:failure-list")).content.decode()


def table_of(page):
    return re.search(r"<table class=\"list failures\".*?</table>", page, re.DOTALL)[0]


def test_headers_and_cells_stand_in_the_order_of_the_records(ann):
    bury(2)
    table = table_of(page_of(ann))
    heads = re.findall(r'<th scope="col" class="([^"]+)"(?: title="[^"]+")?>([^<]+)</th>', table)
    assert heads == [(column.css_class, column.label) for column in COLUMNS]
    for row in table.split("<tr data-row")[1:]:
        cells = [css for css in re.findall(r'<td class="([^"]+)">', row) if css != "pick"]
        assert cells == [column.css_class for column in COLUMNS]


@pytest.mark.parametrize("column", COLUMNS[1:], ids=lambda column: column.label)  # the error has the width that is left
def test_a_column_has_a_width_and_a_place_on_a_phone(column):
    css = (ROOT / "static/redrive/css/failures.css").read_text()
    (name,) = re.findall(r"col-\w+", column.css_class)
    assert f".failures .{name} {{ width: " in css
    phone = css.partition("@media (max-width: 640px)")[2]
    assert ("minor" in column.css_class.split()) != (f".failures td.{name} {{ grid-column: " in phone)


def test_the_example_of_the_how_to_works(ann, monkeypatch):
    page = (ROOT / "docs/how-to/add-a-list-column.md").read_text()
    cell, record, example = map(dedent, re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    names = dict(vars(columns))
    exec(cell, names)
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, *eval(f"[{record}]", names)))
    names = dict(globals())
    exec(example, names)
    names["test_the_worker_is_shown"](ann)


def test_text_of_a_cell_that_is_no_html_is_escaped(ann, monkeypatch):
    monkeypatch.setattr(columns, "COLUMNS", (Column("col-raw", "Raw", lambda row: row.failure.message),))
    bury(message="<script>alert(1)</script>")
    assert '<td class="col-raw">&lt;script&gt;alert(1)&lt;/script&gt;</td>' in page_of(ann)


def test_names_of_strangers_are_escaped_in_every_cell(ann):
    bury(
        error_type="<b>x", message="<b>x", task="<b>x", queue="<b>x", tenant="<b>x",
    )  # fmt: skip
    assert "<b>x" not in table_of(page_of(ann))
