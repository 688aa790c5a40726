from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_admin import failures
from jobs_admin.core.query import format, parse
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import counters
from jobs_admin.groups import group_changes
from jobs_admin.models import Attempt, Failure, Group, GroupAlias, Replay, ReplayItem
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.search import failure_search
from jobs_admin.search.failure_search import FailureSearch
from tests.kit.endurance import times
from tests.kit.pasted import PASTED, TANGLED
from tests.kit.searching import NOW, SHOP_ONLY, bury, find_keys, make_group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def test_the_latest_come_first_and_pages_meet_without_gap_or_overlap():
    bury(40), bury(40, state="retrying"), bury(5, state="recovered"), bury(40, queue="webhooks")
    pages, after = [], None
    while True:
        page = failures.search(ENGINE, after=after, now=NOW)
        pages += [f.pk for f in page.rows]
        if not (after := page.next):
            break
    expected = Failure.objects.exclude(state="recovered").order_by("-pk").values_list("pk", flat=True)
    assert pages == list(expected) and page.count.number == 120


def test_a_row_of_a_list_carries_no_arguments_and_a_short_message():
    bury(message="x" * 5000)
    (row,) = failures.search(ENGINE, now=NOW).rows
    assert len(row.message) == 300
    assert row.get_deferred_fields() >= {"args", "kwargs", "headers"}


@pytest.mark.parametrize(("n", "queries"), [(1, 2), (50, 2), (60, 3)])
def test_a_page_costs_the_same_number_of_queries_however_many_rows(n, queries, django_assert_num_queries):
    group = make_group()
    bury(n, group=group)
    with django_assert_num_queries(queries):  # ids, rows; a count where the page does not hold all
        page = failures.search(ENGINE, "queue:emails", now=NOW)
        assert all(row.group.error_type and row.message and row.group.fingerprint for row in page.rows)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "text",
    [
        "",
        "queue:emails",
        "queue:emails,webhooks",
        "state:dead",
        "state:*",
        "tenant:acme",
        "task:mail.send state:recovered",
        "-state:recovered",
        "group:v1-a",
    ],
)
def test_every_slice_of_a_page_comes_sorted_from_its_index(text):
    make_group(), bury(30), bury(30, state="recovered", queue="webhooks", tenant="acme")
    with CaptureQueriesContext(connection) as seen:
        failures.search(ENGINE, text, now=NOW)
    page = next(q["sql"] for q in seen if "slice_0" in q["sql"])
    with connection.cursor() as cursor:
        plan = [row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {page}").fetchall()]
    slices = " ".join(plan).split("CO-ROUTINE ")[1:]
    assert slices
    for one in slices:  # what stands before "SCAN slice" reads the table; what comes after merges 51 ids
        reads = one.split("SCAN slice")[0]
        assert "TEMP B-TREE" not in reads
        assert "SEARCH jobs_admin_failure USING" in reads or text == "state:*"


def test_a_word_is_found_inside_the_type_and_the_message_without_regard_to_case():
    (a,) = bury(error_type="requests.ReadTimeoutError", message="boom")
    (b,) = bury(message="Timed out: TIMEOUT of 5 s")
    bury()
    assert find_keys("timeout") == [b.pk, a.pk]
    assert find_keys("error:ReadTimeout") == [a.pk]
    assert find_keys("message:timeout") == [b.pk]
    assert find_keys("-error:timeout") != find_keys("")[:2] and len(find_keys("-error:timeout")) == 1


@pytest.mark.parametrize("text", ["%", "?", "[]", "_", "'';", "--"])
def test_text_without_words_is_never_a_pattern(text):
    (one,) = bury(message=f"before {text} after")
    bury(message="before 100x a-b Cx x after")
    assert find_keys(f'"{text}"') == [one.pk]


@pytest.mark.parametrize("text", ["a_b", "a-B", r"a\b", "[a] b!", "a é", "'; DROP TABLE jobs_admin_failure; --"])
def test_of_text_the_words_count_and_neither_case_nor_punctuation(text):
    (one,) = bury(message=f"before {text} after")
    bury(message="b a drop é table")
    assert find_keys(f'"{text}"') == [one.pk]


@pytest.mark.parametrize("text", ["a?c", "a[b]c", "a%c", "a_c", "a\\c"])
def test_a_name_with_a_star_is_matched_in_full_and_with_regard_to_case(text):
    (one,) = bury(queue=f"x-{text}-y")
    bury(queue="x-abc-y"), bury(queue=f"X-{text}-y")
    assert find_keys(f"queue:x-{text}*") == [one.pk]
    assert find_keys(f"queue:{text}*") == []


def test_case_is_ignored_for_every_message_on_either_database():
    bury(message="Ärger mit É")
    assert len(find_keys('"ärger"')) == len(find_keys('"ÄRGER MIT é"')) == 1 and find_keys("arger") == []


def test_every_qualifier_narrows_to_its_own():
    group = make_group()
    GroupAlias.objects.create(fingerprint="v0-a", group=group)
    (one,) = bury(
        queue="q",
        task="t",
        source="bank",
        state="retrying",
        group=group,
        worker="w",
        host="h",
        tenant="acme",
        priority=3,
        release="r1",
        kind="retry",
        attempts=4,
        failed_at=NOW - timedelta(hours=1),
    )
    Attempt.objects.create(
        failure=one, run=1, attempt=1, kind="retry", job_id="j", ended_at=NOW, received_at=NOW, policy="slow@3"
    )
    replay = Replay.objects.create(scope_max_id=one.pk, actor="ann")
    ReplayItem.objects.create(replay=replay, n=1, failure=one, run=2)
    bury(failed_at=NOW - timedelta(days=3))
    for text in (
        "queue:q",
        "task:t",
        "source:bank",
        "state:retrying",
        "group:v1-a",
        "group:v0-a",
        "group:v1-*",
        "worker:w",
        "host:h",
        "tenant:acme",
        "priority:>=3",
        "priority:high",
        "priority:HIGH,low",
        "-priority:critical,low tenant:acme",
        "release:r1",
        "kind:retry",
        "attempts:>=3",
        "attempts:2..9",
        "age:<2d",
        "since:2h",
        "policy:slow",
        "policy:slow@3",
        f"replay:{replay.pk}",
        "(queue:q task:t) OR tenant:none",
        "-priority:7 tenant:ac*",
        "until:2026-11-21T02:00Z since:2026-11-20",
        "-age:>2d",
        "-state:dead",
    ):
        assert find_keys(text) == [one.pk], text
    assert len(find_keys("-priority:3")) == len(find_keys("-group:v1-a")) == len(find_keys("-replay:1..999999")) == 1


def test_a_viewer_finds_only_what_the_roles_allow():
    bury(3), bury(2, source="bank"), bury(4, source="other")
    page = failures.search(SHOP_ONLY, now=NOW)
    assert len(page.rows) == page.count.number == 5
    assert len(failures.find_matching(SHOP_ONLY, parse("", NOW), role="operator")) == 3
    assert failures.search(Viewer("nobody"), now=NOW).rows == []
    with pytest.raises(Failure.DoesNotExist):
        failures.get(SHOP_ONLY, Failure.objects.filter(source="other").first().pk)


@pytest.mark.parametrize(
    "text", ["", "queue:emails", "state:dead,recovered", "foo", "group:v1-a OR queue:webhooks", "attempts:1"]
)
def test_the_count_is_the_number_of_rows(text):
    bury(7, group=make_group()), bury(5, queue="webhooks", state="recovered"), bury(3, source="other")
    page = failures.search(SHOP_ONLY, text, now=NOW, limit=500)
    assert page.count.number == len(page.rows) == len(failures.find_matching(SHOP_ONLY, parse(text, NOW)))
    assert page.count == failures.Count(len(page.rows))


@pytest.mark.parametrize("begin", [0, 130, 300, 510])
def test_a_count_is_exact_or_marked_as_an_estimate(monkeypatch, begin):
    """A burst of 90 `foo` among 600, and 60 in a hundred of another source, most of them recovered; what was before is pruned."""
    bury(1)[0].delete()
    sequence = "pg_get_serial_sequence('jobs_admin_failure', 'id')"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE sqlite_sequence SET seq = seq + 50000 WHERE name = 'jobs_admin_failure'" if connection.vendor == "sqlite"
                       else f"SELECT setval({sequence}, nextval({sequence}) + 50000)")  # fmt: skip
    bury(begin, message="else"), bury(90, tenant="acme"), bury(510 - begin, message="else", tenant="zeta")
    for n in range(100):
        bury(source="other", state="dead" if n % 10 == 0 else "recovered", message="needle" if n % 5 == 0 else "foo")
    monkeypatch.setattr(failures, "EXACT", 10)
    exact = {"queue:emails": 610, "foo": 90, "foo state:any": 170, "tenant:acme state:any": 90, "needle": 10}
    for text, n in exact.items():
        count = failures.count(ENGINE, parse(text, NOW))
        assert count == failures.Count(n) and count.text == str(n), text
    monkeypatch.setattr(failure_search, "_FEW", 0)
    monkeypatch.setattr(failure_search, "_WINDOWS", 70)
    estimates = {
        "foo": 90,
        "foo tenant:acme": 90,
        '-"foo" source:shop tenant:zeta': 510 - begin,
        "foo OR tenant:none": 90,
    }
    for text, n in estimates.items():
        for viewer in (ENGINE, SHOP_ONLY):
            count = failures.count(viewer, parse(text, NOW))
            assert 0.7 * n <= count.number <= 1.3 * n, (text, count)
            assert count.is_estimate or count.number == n, (text, count)
    assert failures.count(ENGINE, parse("foo", NOW)).text.startswith("about ")
    assert failures.count(ENGINE, parse("needle", NOW)) == failures.Count(10), "few are counted, however rare they are"
    assert failures.count(ENGINE, parse("foo state:any", NOW)) == failures.Count(170), "the index counts it alone"
    assert failures.count_exactly(ENGINE, parse("foo", NOW), 40) == 40


def test_facets_report_what_they_were_counted_over(monkeypatch):
    bury(8, group=make_group(), tenant="acme"), bury(4, queue="webhooks", tenant="zeta")
    everything = failures.facets(ENGINE, now=NOW)
    assert everything["queue"] == [("emails", 8), ("webhooks", 4)] and everything["error"] == [("KeyError", 8)]
    monkeypatch.setattr(failures, "FACETED", 6)
    some = failures.facets(ENGINE, "foo", now=NOW)
    assert some["tenant"] == [("zeta", 4), ("acme", 2)] and some.counted_over["tenant"] == 6
    assert everything.counted_over["queue"] is None


@pytest.mark.parametrize("text", ["", "foo", "tenant:acme", "queue:emails"])
def test_facets_count_releases(text):
    bury(3, release="2.1", tenant="acme"), bury(1, release="2.0", tenant="acme"), bury(1, tenant="acme")
    assert failures.facets(ENGINE, text, now=NOW)["release"] == [("2.1", 3), ("2.0", 1)]


def test_a_query_that_was_cut_is_no_scope_for_acts():
    bury()
    cut = parse("queue:emails " * 1000, NOW)
    assert list(failures.find_matching(ENGINE, cut)) and not list(failures.find_matching(ENGINE, cut, role="operator"))


@pytest.mark.parametrize(
    ("text", "why"),
    [("queue:none", "No matches"), ("queue:emails", "2 recovered"), ("state:dead", "No matches: state dead")],
)
def test_an_empty_page_reports_why(text, why):
    bury(2, state="recovered")
    assert why in failures.search(ENGINE, text, now=NOW).why_empty


def test_an_empty_desk_and_a_stranger_are_distinguished():
    assert failures.search(ENGINE, now=NOW).why_empty == "No failures yet."
    assert "no role" in failures.search(Viewer("nobody"), now=NOW).why_empty


@pytest.mark.parametrize("after", ["x", "-1", "9" * 40, "1e3", "\0", "٣"])
def test_a_cursor_that_is_none_gives_the_first_page(after):
    (one,) = bury()
    assert find_keys(after=after) == [one.pk]


@pytest.mark.long("Searches for hundreds of generated texts.")
@settings(max_examples=times(37, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40) | TANGLED)
def test_no_text_breaks_a_search(text):
    for page in (failures.search(ENGINE, text, now=NOW), failures.groups(ENGINE, text, now=NOW)):
        assert page.rows == []
        assert parse(format(page.query), NOW) == page.query


def test_pasted_errors_find_the_failure_that_they_came_from():
    for error_type, message, pasted in PASTED:
        (one,) = bury(error_type=error_type, message=message)
        assert one.pk in find_keys(pasted, limit=500), pasted


def test_groups_come_with_counts_trend_and_places():
    group, other = make_group(count=9), make_group("b", last_seen=NOW - timedelta(hours=1), count=30)
    bury(5, group=group), bury(2, group=group, queue="webhooks", state="recovered"), bury(1, group=other)
    counters.add_group_counts(
        {(group.pk, NOW - timedelta(minutes=2)): [9, 1], (group.pk, NOW - timedelta(hours=3)): [4, 0]}
    )
    first, second = failures.groups(ENGINE, now=NOW).rows
    assert (first.group, first.dead, first.jobs_by_state) == (group, 5, {"dead": 5, "recovered": 2})
    assert (first.trend[-1], first.trend[-4], sum(first.trend)) == (10, 4, 14)
    assert first.queues == ["emails", "webhooks"] and first.per_minute == 2
    assert second.group == other
    assert [row.group for row in failures.groups(ENGINE, order="count", now=NOW).rows] == [other, group]
    assert [row.group for row in failures.groups(ENGINE, "queue:webhooks", now=NOW).rows] == [group]


@pytest.mark.parametrize("order", ["last_seen", "first_seen", "count", "dead"])
def test_pages_of_groups_meet_without_gap_or_overlap(order):
    for n in range(7):
        bury(n % 3 + 1, group=make_group(str(n), count=n % 2, last_seen=NOW - timedelta(minutes=n % 4)))
    seen, after = [], None
    while True:
        page = failures.groups(ENGINE, order=order, after=after, limit=2, now=NOW)
        seen += [row.group.pk for row in page.rows]
        if not (after := page.next):
            break
    assert len(seen) == len(set(seen)) == page.count == 7


def test_groups_cost_the_same_number_of_queries_however_many(django_assert_num_queries):
    for n in range(20):
        bury(1, group=make_group(str(n)))
    with django_assert_num_queries(6):
        assert len(failures.groups(ENGINE, now=NOW).rows) == 20


def test_a_group_is_found_by_its_title_and_by_the_words_of_its_representative():
    group = make_group()
    (one,) = bury(group=group, message="'order-4711'")
    Group.objects.update(representative=one)
    for text in ("keyerror", "order-4711", "error:KeyError", "state:new", "-message:other"):
        assert len(failures.groups(ENGINE, text, now=NOW).rows) == 1, text
    assert failures.groups(ENGINE, "state:resolved", now=NOW).rows == []
    assert failures.groups(ENGINE, "worker:nobody", now=NOW).rows == []


def test_one_group_in_full_and_by_its_former_name():
    group = make_group()
    GroupAlias.objects.create(fingerprint="v0-a", group=group)
    bury(3, group=group, tenant="acme", release="r1"), bury(1, group=group, tenant="zeta"), bury(4, queue="webhooks")
    detail = failures.group(ENGINE, "v0-a", now=NOW)
    assert detail.dead == 4 and detail.share_of_dead == 0.5
    assert detail.tenants == [("acme", 3), ("zeta", 1)] and detail.releases == [("r1", 3)]
    assert detail.counted_over is None and detail.representative.group == group


def test_a_group_without_a_visible_failure_does_not_exist():
    bury(group=make_group(), source="other")
    assert failures.groups(SHOP_ONLY, now=NOW).rows == []
    for name in ("v1-a", "v1-none", "\0"):
        with pytest.raises(NotFound):
            failures.group(SHOP_ONLY, name, now=NOW)


def test_of_a_group_of_several_sources_only_the_own_ones_are_reported():
    shared, own = make_group("c", count=1000), make_group("d", count=5)
    bury(3, group=shared), bury(40, group=shared, source="other"), bury(5, group=own)
    counters.add_group_counts({(g.pk, NOW - timedelta(minutes=2)): [43, 0] for g in (shared, own)})
    first, second = failures.groups(SHOP_ONLY, order="count", now=NOW).rows
    assert (first.group, first.count, first.is_partial, sum(first.trend)) == (own, 5, False, 43)
    assert (second.count, second.is_partial, second.trend, second.per_minute) == (3, True, [], None)
    page = failures.groups(SHOP_ONLY, order="count", limit=1, now=NOW)
    assert page.next.startswith("5~") and failures.groups(SHOP_ONLY, order="count", after=page.next).rows[0].count == 3
    detail = failures.group(SHOP_ONLY, shared.fingerprint, now=NOW)
    assert (detail.count, detail.is_partial, detail.trend, detail.per_minute) == (3, True, [], None)


def test_a_failure_out_of_sight_neither_finds_its_group_nor_represents_it():
    group = make_group()
    (hidden,) = bury(group=group, message="'order-4711'", source="other")
    (own,) = bury(group=group)
    Group.objects.update(representative=hidden)
    assert failures.groups(SHOP_ONLY, "order-4711", now=NOW).rows == []
    assert len(failures.groups(ENGINE, "order-4711", now=NOW).rows) == 1
    assert failures.group(SHOP_ONLY, group.fingerprint, now=NOW).representative == own


CURSORS = ("0001-01-01T00:00:00+14:00~1", "9999-12-31T23:59:59-14:00~1", "~", "~~1", "1~\0", "²~²", "9" * 30 + "~1",
           "1~" + "9" * 30, "-1~-1", "2026-01-01~1", "nan~1", "1e9~1", "\ud800~1", "1_0~1_0", "0~0")  # fmt: skip


@pytest.mark.parametrize("after", CURSORS)
@pytest.mark.parametrize("order", ["last_seen", "first_seen", "count", "dead"])
def test_no_cursor_breaks_a_page_of_groups(order, after):
    bury(group=make_group())
    for viewer in (ENGINE, SHOP_ONLY):
        assert failures.groups(viewer, order=order, after=after, now=NOW).count == 1


def test_a_source_out_of_sight_is_not_named_where_a_change_of_a_group_is_refused():
    group = make_group()
    bury(group=group), bury(group=group, source="other")
    with pytest.raises(Refused) as refused:
        group_changes.change(SHOP_ONLY, group, {"note": "n"})
    assert "other" not in refused.value.message


NEWER = ["", "foo", "-error:OSError foo", "queue:emails foo", "*oo", "*oo foo", "state:recovered foo", "tenant:t*", "kind:exception"]  # fmt: skip


@pytest.mark.parametrize("text", NEWER)
@pytest.mark.parametrize("viewer", [ENGINE, SHOP_ONLY], ids=["engine", "ann"])
def test_what_came_since_is_counted_as_the_search_would(text, viewer):
    bury(5), bury(2, state="recovered"), bury(3, source="other")
    last = Failure.objects.order_by("pk")[4].pk
    bury(4, tenant="t1"), bury(2, queue="webhooks"), bury(3, error_type="OSError", message="no")
    latest = FailureSearch(viewer, parse(text, NOW))
    wanted = failures.find_matching(viewer, parse(text, NOW)).filter(pk__gt=last).count()
    assert latest.newer(last, 100) == wanted and latest.newer(last, 2) == min(wanted, 2)


def test_of_a_common_word_only_what_came_since_is_read():
    bury(3_000)
    last = Failure.objects.order_by("-pk")[4].pk
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ANALYZE")
        statement = FailureSearch(ENGINE, parse("foo", NOW)).newer_statement(last, 1_001)
        explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)"
        cursor.execute(f"{explain} {statement[0]}", statement[1])
        plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
    if connection.vendor == "sqlite":
        assert "VIRTUAL TABLE INDEX 0:M1>" in plan  # a word, from a row on
    else:
        assert max(int(rows) for rows in re.findall(r"actual rows=(\d+)", plan)) <= 4, plan
