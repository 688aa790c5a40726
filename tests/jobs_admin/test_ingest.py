from __future__ import annotations

import json
import random
import threading
import time
from datetime import timedelta

import pytest
import redis
from django.db import OperationalError, connection, connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_admin import config, ingest
from jobs_admin.core import keys
from jobs_admin.core.envelope import Lineage, encode
from jobs_admin.core.stream import weight
from jobs_admin.db import grouping_rules
from jobs_admin.ingest import filing, suspects
from jobs_admin.models import (
    Attempt,
    Failure,
    FailureCount,
    Group,
    GroupAlias,
    GroupCounter,
    GroupRule,
    GroupSource,
    Payload,
    QueueCounter,
    Release,
    Replay,
    ReplayItem,
    Source,
    Traceback,
    Unfiled,
)
from tests.kit.counts import list_counts, recount
from tests.kit.endurance import times
from tests.kit.reports import NOW, TRACE, drain, entries, file, misindexed, of_run, report

pytestmark = pytest.mark.databases


@pytest.mark.django_db
def test_ids_rise_in_the_order_in_which_failures_arrived():
    file(*(report(job_id) for job_id in ("j9", "j1", "j5")))
    assert list(Failure.objects.order_by("id").values_list("first_job_id", flat=True)) == ["j9", "j1", "j5"]


# -- what a failure becomes -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_failed_job_is_a_dead_failure_with_its_attempt_message_stack_and_group():
    assert file(report(args="[17]", worker="w1")) == ingest.Filed(1, 1, 0)
    failure = Failure.objects.get()
    assert (failure.state, failure.kind, failure.run, failure.attempts) == ("dead", "exception", 1, 1)
    assert (failure.args, failure.worker, failure.tenant, failure.failed_at) == ("[17]", "w1", "acme", NOW)
    assert failure.group.title == "shop.Refused: order <number> refused"
    assert failure.group.representative == failure and failure.group.state == "new"
    assert failure.traceback.text.endswith("\nshop.Refused\n")
    payload = failure.payloads.get()
    assert config.payload_keys().decrypt(bytes(payload.body)) == b"raw of attempt 1" and payload.is_whole
    assert failure.attempt_set.get().group == failure.group


@pytest.mark.django_db
def test_a_retry_waits_for_its_time_and_a_success_brings_the_job_home():
    file(report(kind="retry"))
    failure = Failure.objects.get()
    assert (failure.state, failure.due_at) == ("retrying", NOW + timedelta(seconds=60))
    file(report(kind="success", attempt=2))
    failure.refresh_from_db()
    assert (failure.state, failure.due_at, failure.message) == ("recovered", None, "order 17 refused")
    assert list(failure.attempt_set.order_by("attempt").values_list("kind", "delay_s")) == [
        ("retry", 60),
        ("success", None),
    ]


@pytest.mark.django_db
def test_the_search_index_goes_with_what_the_list_shows():
    file(report(kind="retry"))
    assert misindexed() == []
    file(report("j1", attempt=2, message="no such customer", args='["c17"]', trace=TRACE.format("other")))
    assert misindexed() == []
    file(of_run(2, "j2", message="again"), of_run(3, "j3", "success"))
    assert Failure.objects.get().job_id == "j3" and misindexed() == []


@pytest.mark.django_db
def test_a_late_retry_does_not_undo_the_success_that_came_before_it():
    file(report(kind="success", attempt=2))
    assert Failure.objects.get().state == "recovered" and misindexed() == []
    file(report(kind="retry", attempt=1))
    failure = Failure.objects.get()
    assert (failure.state, failure.message, failure.group.count) == ("recovered", "order 17 refused", 1)


@pytest.mark.django_db
def test_a_job_that_ran_well_at_once_is_none_of_our_business():
    assert file(report(kind="success")) == ingest.Filed()
    assert not Failure.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["replaying", "gone"])  # gone: sent where nobody was to tell how it ends
def test_a_replayed_job_that_fails_again_is_the_same_row_with_one_run_more(state):
    file(report(attempt=3))
    Failure.objects.update(state=state, run=2, job_id="j2")
    failure = Failure.objects.get()
    replay = Replay.objects.create(query="", scope_max_id=failure.pk, total=1, actor="x")
    ReplayItem.objects.create(pk=5, replay=replay, n=1, failure=failure, run=2, job_id="j2")
    assert file(of_run(2, "j2", item=5, message="other")).new_failures == 0
    failure = Failure.objects.get()
    assert (failure.state, failure.run, failure.job_id, failure.message) == ("dead", 2, "j2", "other")
    assert failure.attempt_set.get(run=2).item_id == 5
    assert failure.payloads.count() == 2


@pytest.mark.django_db
def test_a_replay_that_ran_well_recovers_the_failure():
    file(report())
    Failure.objects.update(state="replaying", run=2, job_id="j2")
    file(of_run(2, "j2", "success", item=5))
    assert Failure.objects.get().state == "recovered"


@pytest.mark.django_db
def test_a_run_whose_header_was_lost_comes_home_by_its_job_id():
    file(report())
    Failure.objects.update(state="replaying", run=2, job_id="j2")
    assert file(report("j2", "worker_lost")).new_failures == 0
    failure = Failure.objects.get()
    assert (failure.state, failure.run, failure.kind) == ("dead", 2, "worker_lost")


@pytest.mark.django_db
def test_news_of_an_earlier_run_changes_nothing_now():
    file(report())
    Failure.objects.update(state="replaying", run=2, job_id="j2")
    file(report(attempt=2, kind="success"))
    failure = Failure.objects.get()
    assert (failure.state, failure.run, failure.attempt_set.count()) == ("replaying", 2, 2)


@pytest.mark.django_db
def test_only_something_newer_moves_a_discarded_failure():
    file(report(kind="retry"))
    Failure.objects.update(state="discarded")
    file(report(kind="exception", attempt=1))
    assert Failure.objects.get().state == "discarded"
    file(report(attempt=2))
    assert Failure.objects.get().state == "dead"


@pytest.mark.django_db
def test_the_latest_attempt_s_message_is_stored_whichever_comes_first():
    file(report(attempt=3), report(kind="retry", attempt=1))
    file(report(kind="retry", attempt=2))
    assert config.payload_keys().decrypt(bytes(Payload.objects.get().body)) == b"raw of attempt 3"


@pytest.mark.django_db
def test_a_message_that_was_cut_is_marked_so():
    file(report(raw=b"head", raw_size=99))
    assert (Payload.objects.get().is_whole, Payload.objects.get().size) == (False, 99)


@pytest.mark.django_db
def test_a_worker_s_clock_that_is_ahead_is_not_believed():
    file(report(ago=-600), report("j2", "retry", ago=-600))
    assert Failure.objects.filter(failed_at=NOW).count() == 2
    assert Failure.objects.get(job_id="j2").due_at == NOW + timedelta(seconds=60)


# -- groups -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_break_in_two_tasks_and_sources_is_one_group():
    file(report(), report("j2", source="other", task="x", order=18))
    assert Group.objects.get().count == 2
    assert Traceback.objects.count() == 1
    assert set(Source.objects.values_list("name", "is_configured")) == {("shop", False), ("other", False)}
    assert Release.objects.count() == 2


@pytest.mark.django_db
def test_a_group_seen_over_an_hour_is_no_longer_new():
    file(report(ago=3601))
    file(report("j2"))
    group = Group.objects.get()
    assert (group.state, group.last_seen - group.first_seen) == ("ongoing", timedelta(seconds=3601))


@pytest.mark.django_db
def test_a_resolved_group_that_comes_back_reports_after_what():
    file(report(ago=500))
    Group.objects.update(state="resolved", resolved_at=NOW - timedelta(seconds=100))
    file(report("late", ago=200))
    assert Group.objects.get().state == "resolved"
    file(report("j2", release="r2"))
    assert (Group.objects.get().state, Group.objects.get().regressed_after) == ("regressed", "release:r2")


def replayed(failure, sent_at):
    """A report of j1's second run by this failure's item; the worker's clock is 30 s behind."""
    replay = Replay.objects.create(scope_max_id=1, actor="ann", state="running")
    item = ReplayItem.objects.create(replay=replay, n=1, failure=failure, run=2, state="sent", sent_at=sent_at)
    file(of_run(2, "again", item=item.pk, ago=30))
    return replay


@pytest.mark.django_db
def test_a_resolved_group_that_comes_back_in_a_replay_reports_which_whatever_the_worker_s_clock_reports():
    file(report("j1", ago=500))
    Group.objects.update(state="resolved", resolved_at=NOW - timedelta(seconds=10))
    replay = replayed(Failure.objects.get(), sent_at=NOW - timedelta(seconds=5))
    group = Group.objects.get()
    assert (group.state, group.regressed_after) == ("regressed", f"replay:{replay.pk}")


@pytest.mark.django_db
def test_what_was_sent_before_its_group_was_resolved_proves_nothing():
    file(report("j1", ago=500))
    Group.objects.update(state="resolved", resolved_at=NOW - timedelta(seconds=10))
    replayed(Failure.objects.get(), sent_at=NOW - timedelta(seconds=40))
    assert Group.objects.get().state == "resolved"


@pytest.mark.django_db
def test_the_number_of_another_failure_s_item_names_no_replay():
    file(report("j1", ago=500), report("j2", ago=500))
    Group.objects.update(state="resolved", resolved_at=NOW - timedelta(seconds=400))
    replayed(Failure.objects.get(first_job_id="j2"), sent_at=NOW)  # reports of j1
    assert (Group.objects.get().state, Group.objects.get().regressed_after) == ("regressed", "release:r1")


@pytest.mark.django_db
@pytest.mark.parametrize("by", ["task", "queue", "source", "tenant", "release"])
def test_people_s_rules_of_grouping_hold_for_what_comes(by):
    file(report("j1"))
    GroupRule.objects.create(kind="split", group=Group.objects.get(), by=by, author="ada")
    grouping_rules.forget()
    file(report("j2"), report("j3", **{by: "other"}), report("j4", **{by: "other"}))
    grouping_rules.forget()
    groups = Failure.objects.order_by("first_job_id").values_list("group", flat=True)
    assert len(set(groups)) == 3 and groups[2] == groups[3]


@pytest.mark.django_db
def test_an_old_fingerprint_leads_to_its_group():
    file(report())
    group = Group.objects.get()
    GroupAlias.objects.create(fingerprint=group.fingerprint, group=group)
    Group.objects.update(fingerprint="v2-x")
    file(report("j2"))
    assert Group.objects.get().count == 2


# -- idempotence ------------------------------------------------------------------------------------------------

JOBS = [
    [report("j1", "retry", 1, ago=90), report("j1", "retry", 2, ago=60), report("j1", "success", 3, ago=30)],
    [report("j2", "retry", 1, ago=100), report("j2", "exception", 2, order=99)],
    [report("j3")],
    [report("j4", "retry", 1), report("j4", "success", 2, ago=-5)],
    [
        report("j1x", ago=200),
        *(of_run(2, f"j1b{n}", k, n, item=3, ago=50 - n) for n, k in [(1, "retry"), (2, "exception")]),
    ],
]


def everything():
    """All that the tables say, without ids and arrival times."""
    return {
        "failures": sorted(
            Failure.objects.values_list(
                "first_job_id", "state", "run", "job_id", "kind", "attempts", "message", "group__fingerprint",
                "failed_at", "first_failed_at", "due_at",
            )
        ),
        "attempts": sorted(Attempt.objects.values_list("failure__first_job_id", "run", "attempt", "kind", "ended_at")),
        "payloads": sorted(
            (f, r, config.payload_keys().decrypt(bytes(b)))
            for f, r, b in Payload.objects.values_list("failure__first_job_id", "run", "body")
        ),
        "groups": sorted(Group.objects.values_list("fingerprint", "count", "first_seen", "last_seen", "state")),
        "groups over time": sorted(
            GroupCounter.objects.values_list("group__fingerprint", "step", "at", "failed", "retried")
        ),
        "queues over time": sorted(
            QueueCounter.objects.values_list("queue", "step", "at", "failed", "retried", "recovered")
        ),
    }  # fmt: skip


def forget():
    for model in (Attempt, Payload, GroupCounter, QueueCounter, Failure, GroupSource, Group, Traceback, FailureCount):
        model.objects.all()._raw_delete("default")


@pytest.fixture
def in_order(db):
    """The rows of all reports, each filed alone and in order."""
    for job in JOBS:
        for one in job:
            ingest.file(entries(one), NOW)
    rows = everything()
    assert len(rows["failures"]) == 5 and rows["queues over time"]
    return rows


@pytest.mark.long("Files many reports in forty orders.")
@settings(max_examples=times(15, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pick=st.randoms(use_true_random=False), times=st.integers(1, 5), batch=st.integers(1, 40))
def test_any_order_any_batches_and_any_repetition_give_the_same_rows(in_order, pick, times, batch):
    forget()
    flat = [r for job in JOBS for r in job]
    many = [(f"{pick.getrandbits(60)}-0".encode(), encode(r)) for r in flat * times]
    pick.shuffle(many)
    for start in range(0, len(many), batch):
        ingest.file(many[start : start + batch], NOW)
    assert everything() == in_order
    assert list_counts() == recount()
    assert misindexed() == []


@pytest.mark.django_db
@pytest.mark.parametrize("step", [60, 900, 3600])
def test_counters_of_every_step_equal_a_recount_of_the_attempts(step):
    pick = random.Random(3)
    many = [
        report(
            f"j{pick.randrange(60)}",
            pick.choice(["retry", "exception", "success"]),
            pick.randint(1, 4),
            ago=pick.randrange(600),
        )
        for _ in range(400)
    ]
    file(*many)
    kinds = list(Attempt.objects.values_list("kind", flat=True))
    counts = {"failed": 0, "retried": 0, "recovered": 0}
    for row in QueueCounter.objects.filter(step=step).values("at", *counts):
        assert row["at"].timestamp() % step == 0
        counts = {k: counts[k] + row[k] for k in counts}
    assert counts == {
        "failed": kinds.count("exception"),
        "retried": kinds.count("retry"),
        "recovered": kinds.count("success"),
    }
    assert Group.objects.get().count == counts["failed"] + counts["retried"]


# -- what cannot be filed ---------------------------------------------------------------------------------------

DEEP = {b"v": b"1", b"meta": b"[" * 20_000, b"raw": b"whole"}


@pytest.mark.django_db
def test_a_damaged_entry_is_stored_raw_and_the_rest_of_its_batch_lands():
    batch = entries(*(report(f"j{n}") for n in range(20)))
    batch[7] = (b"7-7", DEEP)
    batch[9] = (b"9-9", {b"v": b"99", b"meta": b"{}"})
    batch[11] = (b"11-1", encode(report(source="not a name!")))
    assert ingest.file(batch, NOW) == ingest.Filed(17, 17, 3)
    unfiled = Unfiled.objects.get(entry_id="7-7")
    assert b"d2hvbGU=" in config.payload_keys().decrypt(bytes(unfiled.body))
    assert "99" in Unfiled.objects.get(entry_id="9-9").why
    assert ingest.file(batch, NOW) == ingest.Filed(known_unfiled=3)


class TooMuch(bytes):
    def decode(self, *_):
        raise MemoryError("no room for it")


@pytest.mark.django_db
def test_whatever_an_entry_does_to_its_reader_the_others_land():
    batch = entries(report("j1"), report("j2"), report("j3"))
    batch[1][1][b"trace"] = TooMuch(b"endless")
    assert ingest.file(batch, NOW) == ingest.Filed(2, 2, 1)
    assert "MemoryError: no room for it" in Unfiled.objects.get().why


@pytest.mark.django_db
def test_text_that_no_database_takes_is_shown_for_what_it_is():
    file(report(message="a\x00b\ud800", args='["\x00"]', queue="q\x00", tenant="\udfff", trace="x\x00"))
    failure = Failure.objects.get()
    assert (failure.message, failure.queue, failure.tenant) == ("a␀b\\ud800", "q␀", "\\udfff")


@pytest.mark.django_db
def test_absurd_values_are_bounded():
    file(
        report(
            "a" * 900,
            task="t" * 900,
            attempt=10**30,
            priority=10**30,
            max_attempts=-1,
            at=float("nan"),
            duration_s=float("inf"),
        ),
        report("b", "retry", at=1e300, due_at=1e308, release="r" * 500, error_type="E" * 900, message="m" * 10**6),
        report(
            "c",
            task=None,
            duration_s=float("inf"),
            worker=["x"],
            labels=(1, 2),
            lineage=Lineage("q", "c", 10**30, item=10**30),
        ),
    )
    assert Failure.objects.count() == 3


def test_a_batch_is_what_is_written_while_others_may_wait():
    assert ingest._next_batch_size(500, took_s=0.5) == 100
    assert ingest._next_batch_size(1, took_s=0.01) == 50 and ingest._next_batch_size(50, took_s=0.01) == 500


def test_a_batch_has_at_least_one_report_however_small_its_bound_and_slow_the_database(monkeypatch):
    monkeypatch.setattr(ingest, "_BATCH", 5)
    assert ingest._next_batch_size(1, took_s=60.0) == 1


@pytest.mark.django_db
def test_a_row_that_the_database_refuses_is_found_by_halves_and_stored_raw():
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON jobs_admin_attempt WHEN NEW.job_id = 'j13' "
                "BEGIN SELECT RAISE(ABORT, 'no 13'); END"
            )
        else:
            cursor.execute("ALTER TABLE jobs_admin_attempt ADD CONSTRAINT refuse CHECK (job_id <> 'j13')")
    filed = ingest.file(entries(*(report(f"j{n}") for n in range(100))), NOW)
    assert filed == ingest.Filed(99, 99, 1)
    assert "refused" in Unfiled.objects.get().why


@pytest.fixture
def defect(monkeypatch):
    """A fault of ours: no notices can be written for a batch with the job j13."""
    write = filing.write_notices

    def fails(noted):
        noted = list(noted)
        if any(report.job_id == "j13" for _, report in noted):
            raise TypeError("unexpected")
        return write(noted)

    monkeypatch.setattr(filing, "write_notices", fails)
    monkeypatch.setattr(ingest, "_reading", ingest._Reading())


@pytest.mark.django_db
def test_a_report_that_cannot_be_written_three_times_is_stored_raw_and_the_others_land(defect):
    batch = entries(*(report(f"j{n}") for n in range(100)))
    for _ in range(2):
        with pytest.raises(TypeError):
            ingest.file(batch, NOW)
        assert Failure.objects.count() == 0
    assert ingest.file(batch, NOW) == ingest.Filed(99, 99, 1)
    assert Unfiled.objects.get().why == "writing it failed: TypeError: unexpected"


@pytest.mark.django_db
def test_a_database_that_is_away_keeps_no_report_raw_however_often(monkeypatch):
    def away(reports, now):
        raise OperationalError("the database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(filing, "write", away)
        for _ in range(5):
            with pytest.raises(OperationalError):
                ingest.file(entries(report()), NOW)
    assert ingest.file(entries(report()), NOW) == ingest.Filed(1, 1, 0)


# -- the stream -------------------------------------------------------------------------------------------------


def write(store, *reports):
    with store.pipeline() as pipe:
        for r in reports:
            pipe.xadd(keys.failures("shop"), encode(r))
        pipe.execute()


def begin(store):
    """The group in which processes read the stream, as the first of them makes it."""
    store.xgroup_create(keys.failures("shop"), ingest.GROUP, id="0", mkstream=True)
    drain()


@pytest.mark.server
@pytest.mark.django_db
def test_the_stream_is_emptied_into_the_tables(store):
    write(store, *(report(f"j{n}") for n in range(1200)))
    drain()
    assert Failure.objects.count() == 1200
    assert store.xlen(keys.failures("shop")) == 0
    assert store.xpending(keys.failures("shop"), ingest.GROUP)["pending"] == 0
    began = time.monotonic()
    assert not ingest.step("test", NOW, wait_s=0.2) and time.monotonic() - began >= 0.19, "an idle step waits"


@pytest.mark.server
@pytest.mark.django_db
def test_what_a_dead_process_took_is_taken_over(store, monkeypatch):
    begin(store)
    write(store, report())
    assert store.xreadgroup(ingest.GROUP, "dead", {keys.failures("shop"): ">"})
    monkeypatch.setattr(ingest, "_ABANDONED_S", 0)
    drain("c2")
    assert Failure.objects.count() == 1 and store.xlen(keys.failures("shop")) == 0


@pytest.mark.server
@pytest.mark.django_db
def test_a_batch_that_two_processes_filed_makes_room_once(store, monkeypatch):
    drain()
    write(store, *(report(f"j{n}") for n in range(4)))
    entries = [encode(report(f"j{n}")) for n in range(4)]
    store.set(keys.failures_bytes("shop"), 1000 + sum(map(weight, entries)))  # and what others have written there
    write(store, report("behind"))
    slow, put = [], ingest._file_batches

    def overtaken(batches, now):
        """Both have it now: the one that is slow, and the one that took it over, which ends first."""
        if not slow:
            slow.append(True)
            assert ingest.step("quick", NOW, wait_s=0.01)
            assert int(store.get(keys.failures_bytes("shop"))) == 1000
        return put(batches, now)

    monkeypatch.setattr(ingest, "_file_batches", overtaken)
    monkeypatch.setattr(ingest, "_ABANDONED_S", 0)
    ingest._reading.count = 4
    assert ingest.step("slow", NOW, wait_s=0.01)
    assert int(store.get(keys.failures_bytes("shop"))) == 1000
    assert store.xlen(keys.failures("shop")) == 1
    assert store.xpending(keys.failures("shop"), ingest.GROUP)["pending"] == 0


@pytest.mark.server
@pytest.mark.django_db
def test_who_takes_the_place_of_a_killed_process_files_all_of_its_batch_at_once(store):
    begin(store)
    drain("place 0")
    write(store, *[report(f"j{n}") for n in range(7)])
    assert store.xreadgroup(ingest.GROUP, "place 0", {keys.failures("shop"): ">"}, count=7)
    ingest._reading.finished.clear()  # as in a new process
    ingest._reading.count = 1
    drain("place 0")
    assert Failure.objects.count() == 7 and store.xlen(keys.failures("shop")) == 0


@pytest.mark.server
@pytest.mark.django_db
def test_an_entry_that_ended_its_reader_alone_is_stored_raw_and_the_others_land(store):
    write(store, report("j1"), report("fatal"), report("j3"))
    fatal = "shop/" + store.xrange(keys.failures("shop"))[1][0].decode()
    left = {"ids": [fatal], "deaths": suspects.DEATHS_TOGETHER + 1, "at": time.time()}
    store.hset(keys.reading(), "a dead process", json.dumps(left))
    drain()
    assert sorted(Failure.objects.values_list("job_id", flat=True)) == ["j1", "j3"]
    assert "ended the process" in Unfiled.objects.get(entry_id=fatal).why
    assert store.xlen(keys.failures("shop")) == 0


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_a_database_that_refuses_makes_no_entry_suspect(store):
    write(store, report())
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_admin_attempt RENAME TO elsewhere")
    try:
        with pytest.raises(Exception, match="jobs_admin_attempt"):
            drain()
        assert not store.exists(keys.reading())
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO jobs_admin_attempt")


@pytest.mark.server
@pytest.mark.django_db
def test_consumers_that_ended_long_ago_are_forgotten(store, monkeypatch):
    begin(store)
    drain("old")
    monkeypatch.setattr(ingest, "_FORGOTTEN_S", 0)
    monkeypatch.setattr(ingest, "_ABANDONED_S", 0)
    time.sleep(0.005)  # idle is counted in milliseconds
    drain("new")
    assert b"old" not in [c["name"] for c in store.xinfo_consumers(keys.failures("shop"), ingest.GROUP)]


@pytest.mark.server
@pytest.mark.django_db
def test_a_batch_that_failed_is_done_first_by_the_next_process_of_that_name(store):
    begin(store)
    write(store, report())
    assert store.xreadgroup(ingest.GROUP, "place", {keys.failures("shop"): ">"})
    ingest.step("place", NOW, wait_s=0.01)
    assert Failure.objects.count() == 1 and store.xlen(keys.failures("shop")) == 0


@pytest.mark.server
@pytest.mark.django_db
def test_a_stream_that_vanished_is_begun_again(store):
    drain()
    store.flushall()
    write(store, report())
    drain()
    assert Failure.objects.count() == 1


@pytest.mark.server
@pytest.mark.django_db
def test_a_store_that_refuses_to_give_reports_does_not_appear_empty(store):
    write(store, report())
    store.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            ingest.step("place", NOW, wait_s=0.01)
    finally:
        store.config_set("min-replicas-to-write", 0)
    drain()
    assert Failure.objects.count() == 1


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_nothing_is_acknowledged_while_the_database_refuses(store):
    write(store, report())
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_admin_attempt RENAME TO elsewhere")
    try:
        with pytest.raises(Exception, match="jobs_admin_attempt"):
            drain()
        assert store.xlen(keys.failures("shop")) == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO jobs_admin_attempt")


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_several_processes_file_the_same_reports_at_once_and_each_is_counted_once():
    many = entries(
        *(report(f"j{n}", kind, attempt) for n in range(200) for kind, attempt in [("retry", 1), ("exception", 2)])
    )
    problems = []

    def work(seed):
        try:
            mine = many * 2
            random.Random(seed).shuffle(mine)
            for start in range(0, len(mine), 50):
                ingest.file(mine[start : start + 50], NOW)
        except Exception as error:
            problems.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not problems
    assert (Failure.objects.filter(state="dead").count(), Attempt.objects.count()) == (200, 400)
    assert Group.objects.get().count == 400
    assert list_counts() == recount()


@pytest.mark.django_db
def test_a_job_that_is_retried_under_another_task_is_counted_there_alone():
    file(report("j", kind="retry", task="shop.a"))
    file(report("j", kind="retry", task="shop.b", attempt=2))
    assert [key[2] for key in list_counts()] == ["shop.b"]
