"""The columns of the failure list are records: each has its header and its cells, in one order."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from django.urls import reverse

from dashboard.failures import columns
from dashboard.failures.columns import COLUMNS, Column
from jobs_admin.failures import exporting
from jobs_admin.models import AuditEvent, Failure, ListColumns
from tests.kit.failures import bury

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = sum(column.is_default for column in COLUMNS)


def page_of(client):
    return client.get(reverse("redrive:failure-list")).content.decode()


def table_of(page):
    return re.search(r"<table class=\"list failures\".*?</table>", page, re.DOTALL)[0]


def test_headers_and_cells_stand_in_the_order_of_the_records(ann):
    bury(2)
    table = table_of(page_of(ann))
    heads = re.findall(r'<th scope="col" class="([^"]+)"(?: title="[^"]+")?>([^<]+)</th>', table)
    shown = [column for column in COLUMNS if column.is_default]
    assert heads == [(column.css_class, column.label) for column in shown]
    for row in table.split("<tr data-row")[1:]:
        cells = [css for css in re.findall(r'<td class="([^"]+)">', row) if css != "pick"]
        assert cells == [column.css_class for column in shown]


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
    (column,) = eval(f"[{record}]", names)
    assert column.fields and {*column.fields} <= {*exporting.COLUMNS}
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, column))
    names = dict(globals())
    exec(example, names)
    names["test_the_host_is_shown"](ann)


def labels_of(page: str) -> list[str]:
    return re.findall(r'<th scope="col" class="[^"]+"(?: title="[^"]+")?>([^<]+)</th>', table_of(page))


def choose(client, *names: str, **more: str):
    return client.post(reverse("redrive:failure-columns-save"), {"column": names, "q": "state:dead"} | more)


def test_a_person_chooses_columns_and_keeps_them(ann, otto):
    bury(release="v7", worker="celery@one")
    page = ann.get(reverse("redrive:failure-columns"), {"q": "state:dead"}).content.decode()
    on = re.findall(r'value="([a-z]+)"\s+checked', page)
    assert on == [column.name for column in COLUMNS[1:] if column.is_default]
    assert choose(ann, "release", "job", "no_such_column")["Location"] == "/failures/?q=state%3Adead"
    assert labels_of(page_of(ann)) == ["Error", "Release", "Job ID"] and ">v7</span>" in page_of(ann)
    assert len(labels_of(page_of(otto))) == DEFAULTS, "the choice is one person's"
    event = AuditEvent.objects.get(act="columns.choose")
    assert (event.actor, event.before["names"]) == ("ann", []) and "release" in event.after["names"]
    choose(ann, "release", reset="1")
    assert len(labels_of(page_of(ann))) == DEFAULTS


def test_columns_beyond_the_most_are_refused_and_the_default_ones_are_no_choice(ann):
    bury()
    choose(ann, *[column.name for column in COLUMNS[1:]])
    assert (
        "Choose at most 8 columns." in ann.get("/failures/").content.decode()
        and len(labels_of(page_of(ann))) == DEFAULTS
    )
    choose(ann, *[column.name for column in COLUMNS[1:] if column.is_default])
    assert not ListColumns.objects.exists()


def test_a_saved_view_carries_its_columns_to_its_readers(ann, otto, call_api):
    bury(60, worker="celery@one")
    choose(ann, "worker", "state")
    tabs = ann.get("/views/tabs/?q=state:dead").content.decode()
    columns_of = re.search(r'name="columns" value="([^"]+)"', tabs)[1]
    form = {"name": "Workers", "query": "state:dead", "columns": columns_of, "is_shared": "1"}
    url = ann.post(reverse("redrive:view-save"), form)["Location"]
    assert labels_of(otto.get(url).content.decode()) == ["Error", "State", "Worker"]
    older = re.search(r'href="([^"]+)" rel="next"', otto.get(url).content.decode())[1]
    assert labels_of(otto.get(older.replace("&amp;", "&")).content.decode()) == ["Error", "State", "Worker"]
    (view,) = call_api("GET", "views").json()["items"]
    assert view["columns"] == ["error", "worker", "state"] and "columns=error%2Cworker%2Cstate" in view["url"]
    assert len(labels_of(page_of(otto))) == DEFAULTS


def test_text_of_a_cell_that_is_no_html_is_escaped(ann, monkeypatch):
    raw = Column("col-raw", "Raw", lambda row: row.failure.message)
    monkeypatch.setattr(columns, "COLUMNS", (COLUMNS[0], raw))
    bury(message="<script>alert(1)</script>")
    assert '<td class="col-raw">&lt;script&gt;alert(1)&lt;/script&gt;</td>' in page_of(ann)


def test_the_row_beside_an_open_failure_has_the_message_as_the_list_shows_it(ann):
    (one,) = bury(1, message="x" * 60_000)
    beside = {"HX-Request": "true", "HX-Current-URL": f"http://testserver{reverse('redrive:failure-list')}"}
    page = ann.get(reverse("redrive:failure-detail", args=[one.pk]), headers=beside).content.decode()
    rows = [re.findall(r'<span class="message">(x+)</span>', text) for text in (page_of(ann), page)]
    assert [[len(row) for row in found] for found in rows] == [[300], [300]]


def test_names_of_strangers_are_escaped_in_every_cell(ann):
    bury(
        error_type="<b>x", message="<b>x", task="<b>x", queue="<b>x", tenant="<b>x",
        worker="<b>x", release="<b>x",
    )  # fmt: skip
    Failure.objects.update(job_id="<b>x")
    choose(ann, "where", "tenant", "release", "worker", "job")
    assert "<b>x" not in table_of(page_of(ann))
