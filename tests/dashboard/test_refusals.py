"""Refusals and missing objects of the engine that no page shows itself."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import jobs_admin
from dashboard.web.error_pages import RefusalMiddleware
from jobs_admin.core.refused import Refused


@pytest.mark.parametrize(
    ("code", "status"), [("forbidden", 403), ("changed", 409), ("invalid", 422), ("unreachable", 503)]
)
def test_a_refusal_that_no_page_shows_is_its_sentence_with_its_status(rf, code, status):
    request = rf.post("/", headers={"HX-Request": "true"})
    refused = Refused(code, "Another operator was first. Nothing was changed.")
    answer = RefusalMiddleware(lambda request: None).process_exception(request, refused)
    assert (answer.status_code, answer.content) == (status, b"Another operator was first.")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "sentence"),
    [("/policies/none/", "Policy not found"), ("/groups/none/", "Group not found")],
)
def test_what_is_not_there_is_a_page_that_names_it(admin_client, address, sentence):
    answer = admin_client.get(address)
    assert answer.status_code == 404 and sentence in answer.content.decode()


def test_acts_have_one_refusal_and_one_not_found():
    root = Path(inspect.getfile(jobs_admin)).parent
    found = set()
    for file in root.rglob("*.py"):
        for name in re.findall(
            r"^class (\w*(?:Refused|NotFound|NoSuch\w+|NotAllowed))\((?:\w*Exception|\w*Error)\)",
            file.read_text(),
            re.M,
        ):
            found.add((str(file.relative_to(root)), name))
    # A queue system and a report are not acts.
    apart = {("sources/base.py", "SourceRefused"), ("trust/__init__.py", "ReportRefused")}
    assert found - apart == {("core/refused.py", "Refused"), ("core/refused.py", "NotFound")}
