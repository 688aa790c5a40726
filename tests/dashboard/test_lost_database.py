"""A desk whose database does not answer: pages, parts and acts name what failed, without reading the database again."""

from __future__ import annotations

import pytest
from django.db import InterfaceError, OperationalError, connection

from dashboard.web.error_pages import NO_DATABASE
from jobs_admin.management.commands.token import create
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


@pytest.mark.django_db
def test_a_call_is_answered_in_the_shape_of_the_api(call_api, client):
    def refuse(*_arguments: object) -> None:
        raise OperationalError("connection refused")

    token = create("any", "viewer", "*")
    client.raise_request_exception = False
    with connection.execute_wrapper(refuse):
        answer = call_api("GET", "failures", token=token)
    assert answer.status_code == 503 and answer.json()["error"] == {"code": "unreachable", "message": NO_DATABASE}


def test_a_statement_that_the_database_refuses_is_not_blamed_on_it(ann):
    def mistake(execute, _sql, params, many, context) -> object:
        return execute("SELECT * FROM no_such_table", (), many, context)

    ann.raise_request_exception = False
    with connection.execute_wrapper(mistake):
        part = ann.get("/groups/", headers=HTMX)
    assert part.status_code == 500 and b"database" not in part.content


def test_any_other_error_is_not_blamed_on_the_database(ann):
    def refuse(*_arguments: object) -> None:
        raise ValueError("a mistake")

    ann.raise_request_exception = False
    with connection.execute_wrapper(refuse):
        part = ann.get("/groups/", headers=HTMX)
    assert part.status_code == 500 and b"database" not in part.content
