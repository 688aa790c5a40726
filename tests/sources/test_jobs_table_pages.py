"""Page limits of a jobs table: each row that has something to report is reported once, whatever lies beside it."""

from __future__ import annotations

import itertools

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.jobs_table import reading as jobs_table_reading
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite

pytestmark = pytest.mark.server
PAGE = jobs_table_reading._ROWS_AT_ONCE
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request, tmp_path):
    if request.param == "sqlite":
        made = OnSQLite(tmp_path / "shop.db")
    else:
        made = OnPostgreSQL(request.getfixturevalue("server"), f"pages{next(_numbers)}")
    made.execute("CREATE INDEX by_time ON jobs (updated_at)")
    made.execute("CREATE INDEX by_status ON jobs (status)")
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "jobs_table", table.url, (), table.options)
    yield made
    made.close()


def make_rows(table, prefix, count, *, status="failed", ago_s=60, locked_ago_s=None):
    """`n` rows that were changed in the same moment."""
    locked = "NULL" if locked_ago_s is None else table.ago(locked_ago_s)
    rows = ", ".join(
        f"('{prefix}{n:05}', 'send', '{{}}', '{status}', 1, 1, {table.ago(ago_s)}, {locked})" for n in range(count)
    )
    if count:
        table.execute(
            "INSERT INTO jobs (id, type, payload, status, attempts, max_attempts, updated_at, locked_at) VALUES " + rows
        )


def read(source, rounds=1):
    """The ids of all that is reported in that many rounds, each until there is no more."""
    after, found = "", []
    for _ in range(rounds):
        is_more = True
        while is_more:
            pulled = source.dead_letters(after)
            found += [one.job_id for one in pulled.reports]
            source.confirm_filed(pulled)
            after, is_more = pulled.after, pulled.is_more
    return found


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_rows_of_one_moment_are_read_to_their_end(table, source, size):
    make_rows(table, "a", size)
    make_rows(table, "b", 3, ago_s=30)
    assert sorted(read(source)) == sorted([*(f"a{n:05}" for n in range(size)), *(f"b{n:05}" for n in range(3))])


@pytest.mark.parametrize("size", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 7])
def test_rows_whose_workers_are_gone_are_all_reported_about_however_many(table, source, size):
    make_rows(table, "r", size, status="running", ago_s=5_000, locked_ago_s=5_000)
    make_rows(table, "f", 2)
    found = read(source, rounds=4)
    assert set(found) == {*(f"r{n:05}" for n in range(size)), "f00000", "f00001"}
    assert len(found) == len(set(found))
