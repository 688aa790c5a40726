from __future__ import annotations

import json
import re

from django.urls import reverse

from dashboard.failures.columns import COLUMNS
from jobs_admin.failures import exporting
from jobs_admin.models import AuditEvent, SavedView
from tests.kit.failures import bury
from tests.kit.pages import HTMX


def text_of(client, name, *args, **query):
    return client.get(reverse(f"redrive:{name}", args=args), query).content.decode()


def save(client, **values):
    return client.post(reverse("redrive:view-save"), {"name": "Tonight", "query": "queue:webhooks age:<2h"} | values)


def test_a_search_is_saved_from_the_list_and_is_over_it_with_its_count(ann):
    bury(3)
    answer = save(ann)
    assert answer.url == "/failures/?q=queue%3Awebhooks+age%3A%3C2h"
    tabs = ann.get(reverse("redrive:view-tabs"), {"q": "queue:webhooks age:<2h"}, headers=HTMX).content.decode()
    assert "Tonight" in tabs and ">3</span>" in tabs and 'aria-current="page"' in tabs


def test_the_page_of_views_names_owner_search_and_draft_of_a_replay(ann, vera):
    save(ann, is_shared="1")
    text = text_of(vera, "view-list")
    assert "Tonight" in text and "ann" in text and "queue:webhooks age:&lt;2h" in text and "/replays/new/" not in text
    assert "/replays/new/?q=queue%3Awebhooks" in text_of(ann, "view-list")


def test_a_search_that_can_be_repeated_is_offered_for_an_automation(ann, vera):
    save(ann, name="Dead webhooks", query="state:dead queue:webhooks", is_shared="1")
    save(ann, name="Tonight")
    page = text_of(ann, "view-list")
    assert re.findall(r'/automations/new/\?([^"]+)"', page) == [
        "q=state%3Adead+queue%3Awebhooks&amp;name=dead-webhooks"
    ]
    form = ann.get("/automations/new/?q=state:dead+queue:webhooks&name=dead-webhooks").content.decode()
    assert 'value="dead-webhooks"' in form and 'value="state:dead queue:webhooks"' in form
    assert "/automations/new/" not in text_of(vera, "view-list")


def test_the_count_of_a_view_is_a_part_of_its_own(ann):
    bury(2)
    save(ann)
    part = ann.get(reverse("redrive:view-count", args=[SavedView.objects.get().pk]), headers=HTMX).content.decode()
    assert ">2</a>" in part and "<html" not in part


def test_a_view_is_changed_and_unshared_and_deleted_and_brought_back(ann):
    save(ann, is_shared="1")
    pk = SavedView.objects.get().pk
    ann.post(reverse("redrive:view-change", args=[pk]), {"name": "Later", "query": "x", "shares": "1"})
    view = SavedView.objects.get()
    assert (view.name, view.query, view.is_shared) == ("Later", "x", False)
    answer = ann.post(reverse("redrive:view-delete", args=[pk]), follow=True)
    assert "Undo" in answer.content.decode() and not SavedView.objects.exists()


def test_what_is_refused_is_shown(ann, vera):
    save(ann, is_shared="1")
    pk = SavedView.objects.get().pk
    answer = vera.post(reverse("redrive:view-change", args=[pk]), {"name": "Hers"}, follow=True)
    assert "Only the owner" in answer.content.decode()
    answer = ann.post(reverse("redrive:view-save"), {"name": "Tonight", "query": "queue:emails"})
    text = answer.content.decode()
    assert answer.status_code == 422 and "A view “Tonight” already exists." in text
    # What was typed is there to be changed.
    assert 'value="Tonight" aria-invalid="true"' in text and 'name="query" value="queue:emails"' in text


def test_a_view_of_another_person_is_not_there(ann, vera):
    save(ann)
    pk = SavedView.objects.get().pk
    assert vera.get(reverse("redrive:view-count", args=[pk])).status_code == 404
    assert vera.post(reverse("redrive:view-delete", args=[pk])).status_code == 404


def test_a_get_changes_no_view(ann):
    save(ann)
    pk = SavedView.objects.get().pk
    for name, args in (("view-save", []), ("view-change", [pk]), ("view-delete", [pk])):
        assert ann.get(reverse(f"redrive:{name}", args=args)).status_code == 405


def test_a_hostile_name_is_text(ann):
    save(ann, name='<img src=x onerror=alert(1)> "\u202e', query='"><script>alert(1)</script>')
    for text in (text_of(ann, "view-list"), text_of(ann, "view-tabs")):
        assert "<img src=x" not in text and "<script>alert" not in text and "\u202e" not in text.split("value=")[0]


# ---------- export ----------


def test_the_list_is_exported_as_a_file_named_by_the_time_and_that_is_audited(vera):
    bury(2)
    answer = vera.post(reverse("redrive:failure-export", args=["jsonl"]), {"q": "queue:webhooks"})
    rows = [json.loads(line) for line in answer.getvalue().decode().splitlines()]
    assert len(rows) == 3 and rows[-1]["end"]
    assert 'filename="failures-20' in answer["Content-Disposition"] and answer["Content-Disposition"].endswith(
        '.jsonl"'
    )
    assert AuditEvent.objects.get().after["query"] == "queue:webhooks"


def test_an_export_has_the_columns_that_its_reader_chose_or_all_of_them(ann):
    bury(1, release="v7")
    assert list(exported(ann, {"q": "", "columns": ""})[0]) == list(exporting.DEFAULT_COLUMNS)
    ann.post(reverse("redrive:failure-columns-save"), {"column": ["state", "release"]})
    form = ann.get(reverse("redrive:view-tabs"), headers=HTMX).content.decode()
    assert re.search(r'name="columns"\s+value="error,state,release"', form) and 'name="all_fields"' in form
    row, end = exported(ann, {"q": "", "columns": "state,release"})
    wanted = ["id", "source", "queue", "state", "error_type", "message", "due_at", "release"]
    assert list(row) == wanted and row["release"] == "v7"
    assert end == {"end": True, "failures": 1}
    assert len(exported(ann, {"q": "", "columns": "state,release", "all_fields": "1"})[0]) == len(exporting.COLUMNS)
    unknown = list(exported(ann, {"q": "", "columns": "nothing"})[0])
    assert {"id", "error_type", "queue"} <= {*unknown} != {*exporting.DEFAULT_COLUMNS}, "the list's own columns"
    without = [one.name for one in COLUMNS if not one.fields or not {*one.fields} <= {*exporting.COLUMNS}]
    assert without == [], "`fields` of a column names its columns in an export"


def exported(client, form: dict[str, str]) -> list[dict]:
    text = client.post(reverse("redrive:failure-export", args=["jsonl"]), form).getvalue().decode()
    return [json.loads(line) for line in text.splitlines()]


def test_an_export_is_no_get_and_works_in_a_read_only_desk(vera, settings):
    bury(1)
    assert vera.get(reverse("redrive:failure-export", args=["csv"])).status_code == 405
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    answer = vera.post(reverse("redrive:failure-export", args=["csv"]), {"q": ""})
    assert answer.status_code == 200 and answer.getvalue().count(b"\r\n") == 3


def test_who_has_no_role_exports_nothing(without_role):
    assert without_role.post(reverse("redrive:failure-export", args=["csv"])).status_code == 403
