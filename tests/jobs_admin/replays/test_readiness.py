"""Jobs that can be sent: the same by every road, whatever is asked for, and without reading every failure."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.ingest import indexing
from jobs_admin.models import DepthSample, Failure, ReplayItem, Source
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.failure import Caveat
from jobs_admin.models.replay import OPEN_ITEM
from jobs_admin.replays import target
from jobs_admin.replays.options import Options
from jobs_admin.replays.readiness import Readiness
from tests.kit.people import ANN

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

NOW = timezone.now()
PAST = NOW - timedelta(days=3)
WEB = Viewer("w", {"web": OPERATOR, "shop": VIEWER})


@pytest.fixture
def world(shop, bury):
    """Jobs of every kind in every place."""
    for queue, source in product(("emails", "webhooks"), ("shop", "web", "away")):
        place = {"queue": queue, "source": source, "task": f"shop.{queue}"}
        for tenant, at in (("acme", NOW), ("bolt", PAST)):
            common = place | {"tenant": tenant, "failed_at": at}
            bury(3, **common)
            bury(1, **common, state="retrying")
            bury(1, **common, state="recovered")
            bury(2, **common, state="quarantined")
            bury(2, **common, is_complete=False)
            bury(1, **common, payload=False)
            bury(1, **common, caveats=Caveat.CHORD)
            bury(1, **common, caveats=Caveat.EXPIRES, expires_at=PAST)
            bury(1, **common, caveats=Caveat.EXPIRES, expires_at=NOW + timedelta(days=1))
    DepthSample.objects.create(source="shop", queue="webhooks", at=NOW, workers=2, guarded_workers=1)
    Source.objects.create(name="away", is_configured=True, is_reachable=False)
    ids = list(Failure.objects.filter(state="dead", caveats=None, source="shop").values_list("pk", flat=True))
    replays.start(ANN, replays.draft(ANN, selection=ids[:4], reason="mine", options=Options(accept=("unguarded",))))
    # One that a worker tries again by itself, and is open.
    tried = ReplayItem.objects.filter(failure__in=ids[:1]).get()
    Failure.objects.filter(pk=tried.failure_id).update(state="retrying")


QUERIES = [
    "",
    "state:any",
    "state:dead",
    "state:retrying",
    "-state:dead",
    "queue:emails",
    "queue:emails,webhooks",
    "queue:web*",
    "-queue:emails",
    "queue:emails task:shop.emails",
    "source:shop",
    "source:shop,web queue:webhooks",
    "tenant:acme",
    "tenant:a*",
    "tenant:acme queue:emails",
    "kind:exception",
    "kind:exc* tenant:bolt",
    "attempts:1 queue:emails",
    f"since:{NOW - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}",
    f"until:{NOW - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}",
    f"since:{NOW - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ} queue:emails state:dead",
    "slow",
    "slow queue:webhooks",
    "slow tenant:acme age:<1d",
    "error:TimeoutError state:any",
    "error:A OR queue:emails",
    "-slow",
    "absent",
    "queue:nowhere",
]
OPTIONS = [Options(), Options(accept=("unguarded", "chord")), Options(accept=("expired",), to_queue="webhooks")]


def expected(viewer, scope, options, now):
    """By looking at every failure in Python."""
    open_ids = set(ReplayItem.objects.filter(state__in=OPEN_ITEM).values_list("failure_id", flat=True))
    found = []
    inside = list(scope.within(viewer, now))
    for f in inside:
        bits = f.caveats or 0
        to = options.to_queue or f.queue
        if (
            f.state == "dead"
            and f.pk not in open_ids
            and f.source in ("shop", "web")
            and ("unguarded" in options.accept or (f.source, to) != ("shop", "webhooks"))
            and not bits & (Caveat.TRUNCATED | Caveat.NO_MESSAGE)
            and ("chord" in options.accept or not bits & Caveat.CHORD)
            and ("expired" in options.accept or not (f.expires_at and f.expires_at <= now))
        ):
            found.append(f.pk)
    return len(inside), sorted(found)


def ids_of(ready):
    """The jobs that a start would freeze."""
    return [pk for pk, _, _ in ready.owned()]


@pytest.mark.parametrize("viewer", [ANN, WEB], ids=["everywhere", "one source"])
def test_every_road_gives_the_same_jobs(world, viewer):
    indexing.index(Failure.objects.all())
    for text, options in product(QUERIES, OPTIONS):
        scope = target.build_target(text, (), NOW)
        ready = Readiness(viewer, scope, max_id=target.highest_failure(), options=options, now=NOW)
        matched, ids = expected(viewer, scope, options, NOW)
        accepted = (text, options.accept)
        assert (accepted, ids_of(ready)) == (accepted, ids)
        assert (accepted, ready.count, ready.matched) == (accepted, len(ids), matched)
        assert (accepted, sum(row["count"] for row in ready.blocked)) == (accepted, matched - len(ids))
        assert sorted(ready.rows().values_list("pk", flat=True)) == ids
        assert ready.latest(10_000) == ids[::-1]
        assert ready.sources == sorted(set(Failure.objects.filter(pk__in=ids).values_list("source", flat=True)))


def test_a_selection_gives_those_of_it_that_can_go(world):
    chosen = tuple(Failure.objects.order_by("pk").values_list("pk", flat=True)[::3])
    scope = target.Target(selection=chosen)
    ready = Readiness(ANN, scope, max_id=2**62, now=NOW)
    matched, ids = expected(ANN, scope, Options(), NOW)
    assert (ids_of(ready), ready.count, ready.matched) == (ids, len(ids), matched)
    assert ready.latest(5) == ids[::-1][:5]


def test_what_came_after_is_not_in_it(world, bury):
    for text in ("", "queue:emails", "slow"):
        indexing.index(Failure.objects.all())
        scope, highest = target.build_target(text, (), NOW), target.highest_failure()
        before = Readiness(ANN, scope, max_id=highest, now=NOW)
        had = (before.matched, before.count, ids_of(before), before.blocked)
        bury(3)
        after = Readiness(ANN, scope, max_id=highest, now=NOW)
        assert (after.matched, after.count, ids_of(after), after.blocked) == had


def test_what_is_shown_is_what_starts(world):
    for text in ("queue:emails", "tenant:bolt", ""):
        seen = replays.preview(ANN, query=text, now=NOW)
        draft = replays.draft(ANN, query=seen.query, snapshot=seen.snapshot, reason="fixed", now=NOW)
        assert replays.start(ANN, draft, now=NOW).total == seen.replayable > 0


PLANNED = [
    "",
    "queue:emails",
    "group:v1-a",
    "since:2026-11-20T10:00Z state:dead",
    "tenant:acme since:2026-11-20T10:00Z",
]


def plan(statement):
    sql, values = statement
    how = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"{how} {sql}", values)
        return [str(row[-1]) for row in cursor.fetchall()]


@pytest.mark.sqlite
@pytest.mark.parametrize("text", PLANNED)
def test_no_row_of_a_failure_is_read_to_know_which_can_go(world, text):
    scope = target.build_target(text, (), NOW)
    Failure.objects.filter(source="web", queue="webhooks").delete()  # else the name alone does not say whose it is
    Failure.objects.filter(source="away", queue="webhooks").delete()
    ready = Readiness(ANN, scope, max_id=2**40, now=NOW)
    assert {one.code for one in ready._obstacles} >= {
        "open",
        "not_configured",
        "unguarded",
        "truncated",
        "chord",
        "expired",
    }
    # The tables that have rows of their own to be read are small: groups, names of groups.
    of_failures = [line for line in plan(ready._ids_of_ready) if "jobs_admin_failure" in line or " o " in f"{line} "]
    assert of_failures and all("COVERING INDEX" in line for line in of_failures), of_failures


@pytest.mark.postgresql
@pytest.mark.parametrize("text", PLANNED)
def test_an_index_leads_to_those_that_can_go(world, text):
    ready = Readiness(ANN, target.build_target(text, (), NOW), max_id=2**40, now=NOW)
    assert not any("Seq Scan on jobs_admin_failure" in line for line in plan(ready._ids_of_ready))


def test_what_counters_know_is_not_counted_again(shop, bury):
    bury(20)
    bury(10, source="elsewhere")
    bury(5, state="quarantined")
    ready = Readiness(ANN, target.build_target("", (), NOW), max_id=target.highest_failure(), now=NOW)
    assert ready._obstacles and not ready._of_rows
    with CaptureQueriesContext(connection) as queries:
        assert (ready.matched, ready.count) == (35, 20)
    assert not [q for q in queries.captured_queries if "COUNT(*)" in q["sql"] and '"jobs_admin_failure"' in q["sql"]]


@pytest.mark.parametrize("text", ["", "queue:emails task:shop.send"])
def test_the_latest_that_can_go_are_found_behind_many_that_cannot(shop, bury, text):
    able = bury(20)
    bury(30, source="elsewhere")
    ready = Readiness(ANN, target.build_target(text, (), NOW), max_id=target.highest_failure(), now=NOW)
    assert ready.latest(5) == able[:-6:-1] and ready.latest(100) == able[::-1]
