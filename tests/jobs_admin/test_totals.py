"""Counts for Prometheus: each attempt once, whatever is read twice, pruned, or named by the thousand."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobs_admin import ingest
from jobs_admin.db import counters
from jobs_admin.db.counters import DIED, FAILURES, MOST_SETS, OTHER, RECOVERED, RETRIES, Counted
from jobs_admin.desk import retention
from jobs_admin.models import Failure, Total
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.reports import NOW, entries, file, report

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def read_totals_of(metric, viewer=ENGINE):
    return {counted[1:]: value for counted, value in counters.read_totals(viewer) if counted.metric == metric}


def add(*counted):
    with transaction.atomic():
        counters.add_totals(Counter(counted))


def test_an_attempt_is_counted_once_however_often_it_is_read():
    same = entries(report(kind="retry"), report(attempt=2), report("j2"), report("j3", kind="success", attempt=2))
    for _ in range(3):
        ingest.file(same, NOW)
    assert read_totals_of(FAILURES) == {("shop", "emails", "shop.send", "shop.Refused"): 3}
    assert read_totals_of(RETRIES) == {("shop", "emails", "", ""): 1} and read_totals_of(RECOVERED) == {
        ("shop", "emails", "", ""): 1
    }
    assert read_totals_of(DIED) == {("shop", "emails", "shop.send", ""): 2}


def test_what_was_counted_stays_when_its_rows_are_pruned():
    file(report(), report("j2"))
    retention.prune(NOW + timedelta(days=4000))
    assert not Failure.objects.exists()
    assert sum(read_totals_of(DIED).values()) == 2 and sum(read_totals_of(FAILURES).values()) == 2


def test_a_job_that_ended_its_workers_is_a_failure_and_no_dead_letter():
    file(report(kind="worker_lost", error_type="", crashes='[{"how": "killed"}]'))
    assert read_totals_of(DIED) == {} and read_totals_of(FAILURES) == {
        ("shop", "emails", "shop.send", "worker_lost"): 1
    }


def test_a_lost_attempt_dies_once_also_when_its_worker_speaks_after_all():
    late = NOW + timedelta(hours=2)
    file(report(kind="retry"))
    ingest.reconcile(late)
    assert read_totals_of(DIED) == {("shop", "emails", "shop.send", ""): 1}
    assert read_totals_of(FAILURES)["shop", "emails", "shop.send", "lost"] == 1
    file(report(attempt=2), now=late)
    assert sum(read_totals_of(DIED).values()) == 1 and sum(read_totals_of(FAILURES).values()) == 2


def test_an_error_has_a_label_of_bounded_length():
    assert counters.error_label("x" * 300, "exception") == "x" * 119 + "…"
    assert counters.error_label("", "hard_limit") == "hard_limit"


def test_a_hundred_thousand_errors_of_a_thousand_tasks_stay_within_the_bound():
    for start in range(0, 100_000, 5_000):
        add(*(Counted(FAILURES, "shop", "q", f"t{n % 1000}", f"E{n}") for n in range(start, start + 5_000)))
    rows = read_totals_of(FAILURES)
    assert len(rows) <= MOST_SETS and sum(rows.values()) == 100_000
    assert rows["shop", "q", OTHER, OTHER] > 0


def test_a_task_that_invents_its_errors_leaves_room_to_others():
    add(*(Counted(FAILURES, "shop", "q", "noisy", f"E{n}") for n in range(5_000)))
    add(Counted(FAILURES, "shop", "q", "quiet", "KeyError"))
    rows = read_totals_of(FAILURES)
    assert rows["shop", "q", "quiet", "KeyError"] == 1
    assert rows["shop", "q", "noisy", OTHER] == 5_000 - counters.MOST_ERRORS


def test_sources_by_the_thousand_end_in_one_set():
    add(*(Counted(RETRIES, f"s{n}", "q") for n in range(3_000)))
    rows = read_totals_of(RETRIES)
    assert len(rows) == MOST_SETS and sum(rows.values()) == 3_000 and rows["", OTHER, "", ""] == 3_000 - 999


def test_what_has_a_set_keeps_it_when_there_is_no_room():
    first = Counted(DIED, "shop", "emails", "mail")
    add(first)
    add(*(Counted(DIED, "shop", f"q{n}", "t") for n in range(2_000)))
    add(first, *(Counted(DIED, "shop", f"q{n}", "t") for n in range(2_000)))
    rows = read_totals_of(DIED)
    assert rows["shop", "emails", "mail", ""] == 2 and sum(rows.values()) == 4_002
    assert len(rows) <= MOST_SETS and max(Counter(task for _, _, task, _ in rows).values()) <= 900


def test_a_viewer_is_informed_about_their_sources_alone():
    add(Counted(RETRIES, "shop", "q"), Counted(RETRIES, "bank", "q"), Counted(RETRIES, "", OTHER))
    assert set(read_totals_of(RETRIES, Viewer("ann", {"bank": "viewer"}))) == {("bank", "q", "", "")}
    assert len(read_totals_of(RETRIES)) == 3


def test_a_batch_with_known_labels_costs_two_statements():
    some = [Counted(FAILURES, "shop", "q", f"t{n}", "E") for n in range(50)]
    add(*some)
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        counters.add_totals(Counter(some))
    assert len([one for one in queries if "total" in one["sql"]]) == 2


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_writers_beside_each_other_stay_within_the_bound_and_lose_nothing():
    def write(k):
        for n in range(30):
            add(*(Counted(DIED, "shop", f"q{k}-{n}-{m}", "t") for m in range(20)), Counted(DIED, "shop", "q", "t"))
        connections.close_all()

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read_totals_of(DIED)
    assert len(rows) <= MOST_SETS and sum(rows.values()) == 4 * 30 * 21
    assert rows["shop", "q", "t", ""] == 120 and Total.objects.count() == len(rows)
