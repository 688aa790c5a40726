"""A desk whose database does not answer: pages, parts and acts name what failed, without reading the database again."""

from __future__ import annotations

import pytest
from django.db import InterfaceError, OperationalError, connection

from dashboard.web.views import NO_DATABASE
from tests.kit.pages import HTMX


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_without_a_database_each_answer_names_what_failed_and_what_to_do(ann, error):
    def refuse(*_arguments: object) -> None:
        raise error("connection refused")

    ann.raise_request_exception = False
    with connection.execute_wrapper(refuse):
        page, part = ann.get("/groups/"), ann.get("/groups/", headers=HTMX)
        act = ann.post("/failures/bulk/")
    assert {answer.status_code for answer in (page, part, act)} == {503}
    assert part.content.decode() == NO_DATABASE
    for answer in (page, act):
        assert "database is unreachable" in answer.content.decode() and "<h1" in answer.content.decode()
    assert b"applied before retrying" in act.content and b"applied before retrying" not in page.content


def test_any_other_error_is_not_blamed_on_the_database(ann):
    def refuse(*_arguments: object) -> None:
        raise ValueError("a mistake")

    ann.raise_request_exception = False
    with connection.execute_wrapper(refuse):
        part = ann.get("/groups/", headers=HTMX)
    assert part.status_code == 500 and b"database" not in part.content
