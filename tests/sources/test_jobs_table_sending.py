"""Rows of a jobs table are sent again once, whole batches or nothing, and deleted where that is configured."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs_admin.core.envelope import Lineage
from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref, SourceRefused
from jobs_admin.sources.jobs_table import sql
from jobs_admin.sources.jobs_table.ledger import Ledger
from tests.kit import postgresql_server
from tests.kit.jobs_tables import OnPostgreSQL, OnSQLite, build_message, list_reports, pulled, refs

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    with postgresql_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request, tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "_LOCK_S", 30.0)  # who writes beside us may wait for a busy disk
    if request.param == "sqlite":
        made = OnSQLite(tmp_path / "shop.db")
    else:
        made = OnPostgreSQL(request.getfixturevalue("server"), f"shop{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def source(table):
    made = connect("shop", "jobs_table", table.url, (), table.options)
    yield made
    made.close()


def test_what_is_sent_waits_at_once_with_its_attempts_made_again_and_goes_once(table, source):
    table.die("a"), table.die("b")
    reports, _ = pulled(source)
    assert source.send("r", [build_message(reports[0], 1), build_message(reports[1], 2, retries=None)]) == {
        1: "sent",
        2: "sent",
    }
    first, second = reports[0].job_id, reports[1].job_id
    assert table.row(first, "status", "attempts") == ("pending", 0)
    assert table.row(second, "status", "attempts") == ("pending", 1)
    table.execute("UPDATE jobs SET status = 'failed'")
    assert source.send("r", [build_message(reports[0], 1), build_message(reports[1], 2)]) == {
        1: "already",
        2: "already",
    }
    assert table.row(first, "status") == "failed"
    assert source.was_sent("r", [1, 2, 3]) == {1, 2} and source.in_doubt("r", [1]) == set()


def test_two_senders_at_once_send_each_token_once(table, source):
    for n in range(40):
        table.die(f"j{n}")
    messages = [build_message(one, n) for n, one in enumerate(pulled(source)[0])]
    answers = []

    def send():
        mine = connect("shop", "jobs_table", table.url, (), table.options)
        answers.append(mine.send("r", messages))
        mine.close()

    threads = [threading.Thread(target=send) for _ in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert all(sorted(one[n] for one in answers) == ["already", "already", "sent"] for n in range(40))


def test_several_that_make_the_ledger_at_once_agree_on_its_name(table, source, monkeypatch):
    desks = [connect("shop", "jobs_table", table.url, (), table.options) for _ in range(4)]
    source.epoch("r")
    exists, together, calls = Ledger.exists, threading.Barrier(4), threading.local()

    def none_at_first(ledger):
        calls.made = getattr(calls, "made", 0) + 1
        if calls.made == 2:
            together.wait()  # as close together as can be: each has seen that it is not there
        return calls.made > 2 and exists(ledger)

    monkeypatch.setattr(Ledger, "exists", none_at_first)
    for before in ("DELETE FROM redrive_ledger", "DROP TABLE redrive_ledger") * 5:
        table.execute(before)
        named, wrong = [], []

        def make(desk, named=named, wrong=wrong):
            try:
                named.append(desk.epoch("r"))
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=make, args=(desk,)) for desk in desks]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        assert wrong == [] and len(named) == 4 and len(set(named)) == 1
    [desk.close() for desk in desks]


def test_a_row_that_is_not_dead_any_more_is_refused_by_name_and_nothing_of_the_batch_goes(table, source):
    table.die("a"), table.die("b"), table.die("c")
    reports, _ = pulled(source)
    table.claim("b")
    table.execute("DELETE FROM jobs WHERE id = 'c'")
    with pytest.raises(SourceRefused, match="row b is running, row c does not exist any more") as refused:
        source.send("r", [build_message(one, n) for n, one in enumerate(reports)])
    assert refused.value.tokens == {1, 2}
    assert table.row("a", "status") == "failed" and source.was_sent("r", [0, 1, 2]) == set()


def test_an_edited_payload_replaces_what_is_there_and_one_that_is_not_edited_stays_byte_for_byte(table, source):
    odd = '{"n": 1e2,  "name": "Zoë"}'
    table.enqueue("a", odd, max_attempts=1), table.fail("a")
    table.enqueue("b", odd, max_attempts=1), table.fail("b")
    table.enqueue("c", "not JSON", max_attempts=1), table.fail("c")
    reports = {one.job_id: one for one in pulled(source)[0]}
    assert source.arguments(reports["a"].raw) == ([], {"n": 100.0, "name": "Zoë"})
    source.send("r", [build_message(reports["a"], 1), build_message(reports["b"], 2, kwargs={"name": "Ann"})])
    assert table.row("a", "payload") == odd and table.row("b", "payload") == '{"name":"Ann"}'
    with pytest.raises(SourceRefused, match="not JSON"):
        source.send("r", [build_message(reports["c"], 3, kwargs={"name": "Ann"})])


def test_arguments_that_a_payload_cannot_have_are_refused_before_anything_is_sent(table, source):
    table.die("a", payload='{"n": 1}')
    (report,), _ = pulled(source)
    source.check_arguments(report.raw, [], {"n": 2})
    with pytest.raises(SourceRefused, match="only named arguments"):
        source.check_arguments(report.raw, [1], {"n": 2})


def test_the_end_of_what_was_sent_comes_home_with_its_lineage(table, source):
    (
        table.die("well"),
        table.die("ill"),
        table.die(
            "kept",
        ),
    )
    reports, after = pulled(source)
    by_id = {one.job_id: one for one in reports}
    source.send(
        "r",
        [
            build_message(by_id["well"], 1),
            build_message(by_id["ill"], 2),
            build_message(by_id["kept"], 3, retries=None),
        ],
    )
    assert list_reports(source, after) == []
    table.complete("well"), table.fail("ill", "KeyError: x")
    ended, after = pulled(source, after)
    assert {(one.job_id, one.kind, one.attempt) for one in ended} == {("well", "success", 1), ("ill", "exception", 1)}
    assert {one.lineage for one in ended} == {
        Lineage("jobs", "well", 2, 1, "r", "well"),
        Lineage("jobs", "ill", 2, 2, "r", "ill"),
    }
    table.fail("kept")
    assert list_reports(source, after) == [("kept", "exception", 2)]


def test_a_row_that_was_sent_with_its_attempts_preserved_waits_for_no_retry(table, source):
    table.enqueue("a", max_attempts=5), table.fail("a")
    table.execute("UPDATE jobs SET status = 'failed'")
    (report,), after = pulled(source)
    source.send("r", [build_message(report, retries=None)])
    assert table.row("a", "status", "attempts") == ("pending", 1) and list_reports(source, after) == []
    table.fail("a")
    assert list_reports(source, after) == [("a", "retry", 2)]


def test_the_ledger_has_a_name_until_it_is_lost(table, source):
    table.die("a")
    before = source.epoch("r")
    assert source.epoch("s") == before
    table.execute("DROP TABLE redrive_ledger")
    assert source.epoch("r") != before


def test_dead_rows_are_deleted_only_where_that_is_configured(table, source):
    table.die("a"), table.die("b")
    reports, _ = pulled(source)
    table.execute("UPDATE jobs SET status = 'pending' WHERE id = 'b'")
    assert not source.can.remove
    with pytest.raises(SourceRefused):
        source.remove(refs(reports))
    allowed = connect("shop", "jobs_table", table.url, (), {"discard_deletes": True})
    assert {ref.job_id for ref in allowed.remove([*refs(reports), *refs(reports)])} == {"a"}
    assert table.execute("SELECT id FROM jobs") == [("b",)]
    allowed.close()


def test_only_the_very_row_that_was_discarded_is_deleted(table):
    source = connect("shop", "jobs_table", table.url, (), {"discard_deletes": True})
    for name in ("same", "failed later", "another", "older copy"):
        table.die(name)
    table.execute(f"UPDATE jobs SET updated_at = {table.ago(400)}")
    discarded = refs(pulled(source)[0], "discarded")
    table.execute("DELETE FROM jobs WHERE id = 'another'")
    table.die("another", "ValueError: what nobody has seen")
    table.fail("failed later")
    table.execute(f"UPDATE jobs SET updated_at = {table.ago(500)} WHERE id = 'older copy'")
    never_filed = [Ref("jobs", ref.job_id, "discarded") for ref in discarded if ref.job_id != "same"]
    assert {ref.job_id for ref in source.remove([*discarded, *never_filed])} == {"same"}
    assert source.remove(never_filed) == set()
    assert sorted(table.execute("SELECT id FROM jobs")) == [("another",), ("failed later",), ("older copy",)]
    source.close()


SENDER = """
import sys
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
url, count = sys.argv[1], int(sys.argv[2])
source = connect("shop", "jobs_table", url)
raw = b'{"jobs_table":1,"table":"jobs","id":"x","type":"t","payload":"{}"}'
for n in range(0, count, 20):
    lineage = {"queue": "jobs", "run": 2, "replay": "r"}
    source.send("r", [OutgoingMessage(i, raw, "jobs", f"j{i}", lineage | {"job_id": f"j{i}", "item": i}) for i in range(n, n + 20)])
"""


def test_a_sender_that_is_killed_leaves_no_row_without_its_record_and_no_record_without_its_row(table):
    count = 20_000  # many seconds of work: it must not be over before it is killed
    table.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}) "
        "INSERT INTO jobs (id, type, payload, status, attempts) SELECT 'j' || i, 't', '{}', 'failed', 3 FROM n"
    )
    sender = subprocess.Popen([sys.executable, "-c", SENDER, table.url, str(count)], cwd=ROOT)
    ends = time.monotonic() + 60
    while len(table.execute("SELECT 1 FROM jobs WHERE status = 'pending'")) < 200 and time.monotonic() < ends:
        time.sleep(0.002)
    sender.kill()
    sender.wait()
    source = connect("shop", "jobs_table", table.url)
    went = {int(row[0][1:]) for row in table.execute("SELECT id FROM jobs WHERE status = 'pending'")}
    assert 200 <= len(went) < count and source.was_sent("r", range(count)) == went
    source.close()


def test_a_row_whose_times_have_no_zone_is_known_by_the_zone_that_is_given(server):
    table = OnPostgreSQL(server, f"zone{next(_numbers)}")
    table.execute("ALTER TABLE jobs ALTER updated_at TYPE timestamp USING updated_at AT TIME ZONE 'Asia/Tokyo'")
    table.die("a")
    table.execute("UPDATE jobs SET updated_at = now() AT TIME ZONE 'Asia/Tokyo'")
    source = connect("shop", "jobs_table", table.url, (), {"discard_deletes": True, "timezone": "Asia/Tokyo"})
    assert {ref.job_id for ref in source.remove(refs(pulled(source)[0]))} == {"a"}
    source.close(), table.close()
