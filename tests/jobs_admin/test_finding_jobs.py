"""Finding by a job's id, and where a viewer's own source is the small one."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs_admin import failures
from jobs_admin.core.query import parse, reading
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.search.failure_search import FailureSearch
from tests.kit.searching import NOW, bury, find_keys, make_group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
ID = "7f6c1f0e-3b1d-4f7e-9d53-0a4b9e0c7a11"


@pytest.fixture
def replayed():
    [failure] = bury()
    Failure.objects.update(first_job_id=ID, job_id="second-run")
    indexing.index([failure])
    bury(2, queue="webhooks")
    return failure


@pytest.mark.parametrize("text", [ID, "second-run", f'"{ID}"', f"{ID} queue:emails", f"{ID} OR queue:none"])
def test_a_job_is_found_by_its_id_of_the_first_run_and_of_this_one(replayed, text):
    assert find_keys(text) == [replayed.pk]
    assert failures.count(ENGINE, parse(text, NOW)) == failures.Count(1)


def test_an_id_is_matched_in_full_and_may_be_excluded(replayed):
    assert find_keys(ID[:8]) == [] and find_keys(ID.upper()) == []
    assert replayed.pk not in find_keys(f'-"{ID}"') and len(find_keys(f'-"{ID}"')) == 2


def test_the_reading_reports_that_a_word_may_be_the_jobs_id():
    assert f'type or message has "{ID}" (or is the job\'s id)' in reading(parse(ID, NOW))
    assert "job's id" not in reading(parse('"two words"', NOW))
    assert "job's id" not in failures.groups(ENGINE, ID, now=NOW).reading


def test_words_still_search_the_groups(replayed):
    group = make_group(message="second-run")
    Failure.objects.update(group=group)
    assert [row.group.pk for row in failures.groups(ENGINE, "second-run", now=NOW).rows] == [group.pk]


@pytest.mark.parametrize("text", ["", "state:any", "source:bank", "-attempts:5"])
def test_a_viewer_of_an_empty_source_does_not_walk_through_what_is_dead_elsewhere(text):
    bury(3), bury(1, source="bank")
    viewer = Viewer("ann", {"bank": "viewer"})
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert find_keys(text, viewer) == [Failure.objects.get(source="bank").pk]
    page = next(q["sql"] for q in queries if "slice_0" in q["sql"])
    slices = re.findall(r"WHERE .*? ORDER BY", page)
    assert slices and all(re.search(r"\.source = '?bank'? AND .*\.state = ", one) for one in slices)


def test_a_job_that_was_sent_again_and_did_not_yet_fail_is_found_by_its_new_id(replayed):
    Failure.objects.filter(pk=replayed.pk).update(job_id="third-run")
    assert find_keys("third-run") == [replayed.pk] and find_keys("third-run queue:webhooks") == []


def test_facets_are_counted_over_no_more_than_the_latest(monkeypatch):
    monkeypatch.setattr(failures, "FACETED", 6)
    bury(20, tenant="old"), bury(6, tenant="new")
    facets = failures.facets(ENGINE, "foo", now=NOW)
    assert facets["tenant"] == [("new", 6)] and facets["queue"] == [("emails", 6)]
    assert sum(n for _, n in failures.facets(ENGINE, now=NOW)["tenant"]) == 6


def test_tenants_that_begin_so_are_found_by_the_index_of_terms_and_not_by_walking():
    bury(20, tenant="acme"), bury(2, tenant="acorn")
    assert len(find_keys("tenant:aco*")) == 2 and len(find_keys("tenant:a*")) == 22 and find_keys("tenant:zz*") == []
    assert FailureSearch(ENGINE, parse("tenant:zz*", NOW)).driver is not None
    assert FailureSearch(ENGINE, parse("tenant:acme", NOW)).driver is None
