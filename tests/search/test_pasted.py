"""Whatever is typed or pasted: a pasted line finds the failure that it came from, and nothing breaks a search."""

from __future__ import annotations

import time

import pytest

from jobs_admin import failures
from jobs_admin.core.query import Query, format, parse, reading
from jobs_admin.core.text import representable
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure
from jobs_admin.models.access import ENGINE
from tests.kit.endurance import times
from tests.kit.searching import NOW
from tests.search import world
from tests.search.strings import PASTED, strings

pytestmark = pytest.mark.django_db


def bury_all():
    """A failure for each line that was pasted, in the order of the lines."""
    common = {"source": "shop", "queue": "q", "task": "t", "state": "dead", "kind": "exception", "failed_at": NOW}
    rows = [
        Failure(
            **common,
            first_job_id=f"p-{n}",
            job_id=f"p-{n}",
            error_type=representable(line["type"]),
            message=representable(line["message"]),
            first_failed_at=NOW,
            received_at=NOW,
        )
        for n, line in enumerate(PASTED)
    ]
    made = Failure.objects.bulk_create(rows)
    indexing.index(made)
    return made


def test_there_are_300_pasted_lines():
    assert len(PASTED) == len({line["pasted"] for line in PASTED}) == 300


def test_each_pasted_line_finds_the_failure_that_it_came_from():
    missed, found = [], []
    for failure, line in zip(bury_all(), PASTED, strict=True):
        page = failures.search(ENGINE, line["pasted"], now=NOW, limit=500)
        found.append(page.count.number)
        if failure.pk not in [row.pk for row in page.rows]:
            missed.append((line["pasted"], page.reading))
    assert missed == []
    assert sorted(found)[len(found) // 2] <= 2  # and hardly anything else


@pytest.mark.long("Reads three thousand strings, and writes them.")
def test_strings_are_read_and_written_as_the_same_query():
    started = time.process_time()
    for text in strings(times(3_000, 10_000)):
        read = parse(text, NOW)
        assert isinstance(read, Query) and reading(read) is not None
        assert parse(format(read), NOW) == read, text
    assert time.process_time() - started < 30


@pytest.mark.long("Searches for two hundred strings in the database, and in Python.")
def test_strings_find_the_same_in_the_database_as_in_python():
    rows = world.make(n=30)
    for text in strings(times(200, 500), seed=2):
        query = parse(text, NOW)
        page = failures.search(ENGINE, text, now=NOW, limit=500)
        wanted = [] if any(t == "replay" for t in query.fields) else world.expected(query, rows)
        if not query.is_cut and "replay" not in query.fields:
            assert [row.pk for row in page.rows] == wanted, (text, page.reading)
        failures.groups(ENGINE, text, now=NOW)


@pytest.mark.long("Opens three pages for each of forty strings.")
def test_forty_strings_have_their_pages(client, django_user_model):
    client.force_login(django_user_model.objects.create_superuser("ann"))
    world.make(n=30)
    for text in strings(40, seed=3):
        for path in ("/failures/", "/groups/", "/failures/facets/"):
            answer = client.get(path, {"q": text.encode("utf-8", "replace").decode()})
            assert answer.status_code in (200, 302), (path, text, answer.status_code)
