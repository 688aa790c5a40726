"""A role of few rights on a jobs table in PostgreSQL: it reads all the same, and the SQL that the desk prints gives it what it lacks."""

from __future__ import annotations

import re

import psycopg
import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, OutgoingMessage, Ref, SourceRefused
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL

ROLES = {'de"sk': "SELECT, UPDATE", "looker": "SELECT", "reader": "SELECT, UPDATE"}


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        with psycopg.connect(url, autocommit=True) as admin:
            for role in ROLES:
                quoted = '"' + role.replace('"', '""') + '"'
                admin.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD 'x'")
        yield url


@pytest.fixture
def table(server, request):
    made = OnPostgreSQL(server, f"rights_{abs(hash(request.node.name)) % 10**8}")
    made.execute("REVOKE CREATE ON SCHEMA public FROM public")
    for role, rights in ROLES.items():
        quoted = '"' + role.replace('"', '""') + '"'
        made.execute(f"GRANT {rights} ON jobs TO {quoted}")
    made.die("a")
    yield made
    made.close()


@pytest.fixture
def as_role(table):
    opened = []

    def connected(role, **options):
        url = re.sub(r"//redrive:[^@]+@", f"//{role.replace(chr(34), '%22')}:x@", table.url)
        opened.append(connect("shop", "jobs_table", url, (), options))
        return opened[-1]

    yield connected
    for one in opened:
        one.close()


def reported_deaths(source):
    return [(one.job_id, one.kind) for one in source.dead_letters("").reports]


def outgoing_message(report):
    lineage = {"queue": report.queue, "job_id": report.job_id, "run": 2, "item": 1, "replay": "r", "sent_as": "a"}
    return OutgoingMessage(token=1, raw=report.raw, queue=report.queue, job_id=report.job_id, lineage=lineage)


def find_finding(source, id):
    return next((one for one in source.findings() if one.id == id), None)


def follow(table, finding):
    """Run the printed commands as a person would, to the letter."""
    for statement in finding.fix.partition("run:\n")[2].split(";\n"):
        if statement:
            table.execute(statement)


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_is_reported_to_have_run_gives_it_all_that_sending_needs(table, as_role, role):
    source = as_role(role)
    (report,) = source.dead_letters("").reports
    finding = find_finding(source, READ_ONLY)
    follow(table, finding)
    assert find_finding(source, READ_ONLY) is None
    assert source.send("r", [outgoing_message(report)]) == {1: "sent"}
    assert table.row("a", "status") == "pending"


def test_a_right_that_is_there_is_not_requested(table, as_role):
    fix = find_finding(as_role('de"sk'), READ_ONLY).fix
    assert 'GRANT SELECT, INSERT, DELETE ON "redrive_ledger" TO "de""sk";' in fix and "UPDATE" not in fix
    assert 'GRANT UPDATE ON "jobs" TO "looker";' in find_finding(as_role("looker"), READ_ONLY).fix
    assert (
        'GRANT UPDATE, DELETE, INSERT ON "jobs"' in find_finding(as_role("looker", discard_deletes=True), READ_ONLY).fix
    )


@pytest.mark.parametrize("role", ["looker", "reader"])
def test_a_ledger_that_may_not_be_read_keeps_no_row_from_being_read(table, as_role, role):
    follow(table, find_finding(as_role('de"sk'), READ_ONLY))
    sender, other = as_role('de"sk'), as_role(role)
    sender.epoch("r")
    assert reported_deaths(other) == [("a", "exception")]
    assert "outcomes of replays of jobs are unknown" in find_finding(other, "jobs-table-ledger-hidden").text
    assert find_finding(sender, "jobs-table-ledger-hidden") is None
    with pytest.raises(SourceRefused):  # never "it was not sent": nobody may know
        other.was_sent("r", [1])


def test_a_ledger_that_is_hidden_later_is_no_other_table(table, as_role):
    follow(table, find_finding(as_role("reader"), READ_ONLY))
    source = as_role("reader")
    source.epoch("r")
    first = source.dead_letters("")
    source.confirm_filed(first)
    table.execute("REVOKE ALL ON redrive_ledger FROM reader")
    assert source.dead_letters(first.after).reports == []
    table.execute("DELETE FROM jobs")
    assert list(source.check_jobs([Ref("jobs", "a", "dead", first.reports[0].at)]).gone) != []


def test_what_is_long_over_stays_where_it_may_not_be_taken_out(table, as_role):
    follow(table, find_finding(as_role("reader"), READ_ONLY))
    table.execute("REVOKE DELETE ON redrive_ledger FROM reader")
    assert as_role("reader").epoch("r")
