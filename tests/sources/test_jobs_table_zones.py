"""Times without a time zone in a PostgreSQL whose sessions do not begin in UTC."""

from __future__ import annotations

import itertools
import time

import psycopg
import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, OutgoingMessage, Ref, SourceRefused
from tests.kit import postgresql_server
from tests.kit.jobs_tables import POSTGRESQL, OnPostgreSQL

_numbers = itertools.count()
FAR = ["America/Los_Angeles", "Asia/Tokyo"]


class Naive(OnPostgreSQL):
    create = POSTGRESQL.replace("timestamptz", "timestamp")


class DefaultsInUTC(OnPostgreSQL):
    create = Naive.create.replace("now()", "(now() AT TIME ZONE 'utc')")


class WithoutDefaults(OnPostgreSQL):
    create = Naive.create.replace("DEFAULT now()", "")


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        yield url


@pytest.fixture
def make_table(server):
    """Makes tables, each in a database whose sessions begin in a zone."""
    closing = []

    def make(kind, zone, options=None, *, role=""):
        table = kind(server, f"zones{next(_numbers)}")
        whose = f"ROLE {role} IN DATABASE {table.name}" if role else f"DATABASE {table.name}"
        table.execute(f"ALTER {whose} SET timezone = '{zone}'")
        table.connection.close()
        table.connection = psycopg.connect(table.url, autocommit=True)
        source = connect("shop", "jobs_table", table.url, (), options or {})
        closing.extend([table, source])
        return table, source

    yield make
    for one in reversed(closing):
        one.close()


def pulled(source):
    return {one.job_id: one for one in source.dead_letters("").reports}


def is_closed(source):
    return [one.text for one in source.findings() if one.id == READ_ONLY]


def happens(table, now="now()"):
    """One dead, one that waits a minute for its next try, one that began to run just now."""
    for job in ("dead", "waits", "runs"):
        table.execute(
            f"INSERT INTO jobs (id, type, payload, max_attempts, created_at, updated_at) VALUES ('{job}', 't', '{{}}', 5, {now}, {now})"
        )
    table.execute("UPDATE jobs SET status = 'failed', attempts = 5, last_error = 'E: x' WHERE id = 'dead'")
    table.execute(
        f"UPDATE jobs SET attempts = 1, last_error = 'E: x', scheduled_at = {now} + interval '60 seconds' WHERE id = 'waits'"
    )
    table.execute(f"UPDATE jobs SET status = 'running', locked_by = 'w', locked_at = {now} WHERE id = 'runs'")


def send(source, job, replay="r1"):
    raw = pulled(source)[job].raw
    lineage = {"failure": 1, "replay": replay, "run": 2, "token": 1}
    return source.send(
        replay, [OutgoingMessage(token=1, queue="jobs", job_id=job, raw=raw, lineage=lineage, retries=0)]
    )


def is_due(table, job, now="now()"):
    (found,) = table.execute(f"SELECT scheduled_at <= {now} FROM jobs WHERE id = '{job}'")
    return found[0]


def is_read_in_its_zone(table, source, now="now()"):
    happens(table, now)
    found = pulled(source)
    assert found.keys() == {"dead", "waits"}, "a row that runs was told as lost"
    assert abs(found["dead"].at - time.time()) < 300
    assert abs(found["waits"].due_at - time.time()) < 300
    (depth,) = source.depths()
    assert (depth.delayed, depth.active, depth.source_dead) == (1, 1, 1)
    assert not is_closed(source)
    table.execute(f"UPDATE jobs SET locked_at = {now} - interval '1 hour' WHERE id = 'runs'")
    assert pulled(source)["runs"].kind == "lost"
    send(source, "dead")
    assert is_due(table, "dead", now)


@pytest.mark.parametrize("zone", FAR)
def test_they_are_read_and_written_in_the_zone_in_which_all_sessions_begin(make_table, zone):
    is_read_in_its_zone(*make_table(Naive, zone))


@pytest.mark.parametrize("zone", FAR)
def test_a_row_that_was_discarded_is_known_in_any_zone(make_table, zone):
    table, source = make_table(Naive, zone, {"discard_deletes": True})
    happens(table)
    discarded = Ref("jobs", "dead", state="discarded", at=pulled(source)["dead"].at)
    assert source.remove([discarded]) == {discarded}


def test_a_default_that_names_a_zone_reports_it_whatever_sessions_begin_in(make_table):
    is_read_in_its_zone(*make_table(DefaultsInUTC, "America/Los_Angeles"), now="(now() AT TIME ZONE 'utc')")


@pytest.mark.parametrize("zone", FAR)
def test_where_the_zone_is_not_sure_nothing_is_lost_or_sent_until_it_is_given(make_table, zone):
    table, source = make_table(WithoutDefaults, zone)
    happens(table)
    table.execute("UPDATE jobs SET locked_at = now() - interval '1 day' WHERE id = 'runs'")
    assert pulled(source).keys() == {"dead", "waits"}
    assert 'timezone = "' in is_closed(source)[0]
    with pytest.raises(SourceRefused, match="read-only"):
        send(source, "dead")
    table.execute("DELETE FROM jobs")
    connected = connect("shop", "jobs_table", table.url, (), {"timezone": zone})
    is_read_in_its_zone(table, connected)
    connected.close()


def test_a_zone_of_one_role_reports_nothing_of_the_others(make_table):
    _, source = make_table(Naive, "Asia/Tokyo", role="CURRENT_USER")
    assert "our own role" in is_closed(source)[0]


def test_a_zone_of_another_role_is_a_doubt(make_table, server):
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("CREATE ROLE wanderer")
    _, source = make_table(Naive, "Asia/Tokyo", role="wanderer")
    assert "some in Asia/Tokyo" in is_closed(source)[0]


def test_what_failed_in_an_hour_that_came_twice_is_reported(make_table):
    table, source = make_table(Naive, "America/New_York")
    table.execute("CREATE INDEX ON jobs (updated_at)")
    table.execute("CREATE INDEX ON jobs (status)")
    after = ""
    for job, at in (
        ("first", "2025-11-02 01:59:50"),
        ("second", "2025-11-02 01:00:10"),
    ):  # 20 seconds apart, at the turn
        table.die(job)
        table.execute(f"UPDATE jobs SET updated_at = '{at}' WHERE id = '{job}'")
        pulled = source.dead_letters(after)
        source.confirm_filed(pulled)
        after = pulled.after
        assert [one.job_id for one in pulled.reports] == [job]


def test_times_with_a_zone_need_no_other(make_table):
    is_read_in_its_zone(*make_table(OnPostgreSQL, "Asia/Tokyo"))


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../../etc/passwd", "UTC'", 3, ["UTC"]])
def test_a_zone_that_there_is_not_is_refused(zone):
    with pytest.raises(SourceRefused, match="timezone"):
        connect("shop", "jobs_table", "postgresql://u@127.0.0.1:1/db", (), {"timezone": zone})
