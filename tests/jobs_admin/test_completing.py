from __future__ import annotations

import json
import sqlite3

import pytest
from django.db import connection

from jobs_admin.failures.completing import MOST, complete, values
from jobs_admin.models import FailureCount, Release, Worker
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.searching import NOW, SHOP_ONLY, bury, find_keys, make_group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def options(text, viewer=ENGINE, at=None):
    done = complete(viewer, text, len(text) if at is None else at)
    return [option.text for option in done.options]


def complete_text(text, n=0, at=None):
    """The text after an option was taken."""
    done = complete(ENGINE, text, len(text) if at is None else at)
    return text[: done.start] + done.options[n].text + text[done.end :]


def test_qualifiers_are_offered_by_their_beginning_and_reported_in_words():
    assert options("qu") == ["queue:"] and options("timeout -qu") == ["queue:"] and options("(stat") == ["state:"]
    assert complete(ENGINE, "qu", 2).options[0].kind == "queue name"
    assert len(options("")) == MOST and options("timeout") == [] and options("queue:a ") == []
    assert complete_text("kw") == "kwargs."


def test_values_come_the_most_frequent_first_with_their_counts():
    bury(3, queue="webhooks"), bury(5), bury(9, queue="old", state="recovered")
    done = complete(ENGINE, "queue:", 6)
    assert [(o.text, o.count) for o in done.options] == [("emails", 5), ("webhooks", 3), ("old", 0)]
    assert options("queue:h") == ["webhooks"] and options("state:r")[0] == "recovered"


def test_an_empty_queue_and_tenant_are_offered_last_and_found():
    bury(3, queue=""), bury(queue="emails", tenant="acme")
    assert options("queue:") == ["emails", '""'] and options("tenant:")[-1] == '""'
    assert len(find_keys('queue:""')) == 3 and len(find_keys('-queue:""')) == 1
    assert len(find_keys('tenant:""')) == 3 and len(find_keys('-tenant:""')) == 1


def test_a_list_and_a_negation_stay_as_they_are_and_values_are_quoted():
    bury(queue="a b"), bury(queue="webhooks"), bury(queue='say "x"')
    assert complete_text("-queue:webhooks,a") == '-queue:webhooks,"a b"'
    assert "webhooks" not in options("queue:webhooks,")
    assert complete_text('x queue:"a') == 'x queue:"a b"' and complete_text("queue:we y", at=8) == "queue:webhooks y"
    for text in options("queue:"):
        assert len(find_keys(f"queue:{text}")) == 1


def test_after_a_complete_value_nothing_is_offered():
    bury()
    assert options("queue:emails") == [] and options("queue:emails ") == []


def test_errors_groups_tenants_workers_and_releases_that_were_seen():
    group = make_group()
    bury(2, group=group, tenant="Acme", worker="celery@web-3", host="web-3")
    Worker.objects.create(source="shop", name="celery@web-9", boot="b", seen_at=NOW, host="web-9")
    Release.objects.create(source="shop", version="2026.11", at=NOW)
    assert options("error:key") == ["KeyError"] and options("group:Key") == ["v1-a"] == options("group:v1")
    assert options("tenant:ac") == ["Acme"] and options("worker:w") == ["celery@web-3", "celery@web-9"]
    assert options("host:") == ["web-3", "web-9"] and options("release:2") == ["2026.11"]
    assert "hard_limit" in options("kind:h") and options("age:") and options("message:x") == []


def test_tenants_are_found_by_their_beginning_however_rare():
    bury(tenant="rare"), bury(250, tenant="common")
    assert options("tenant:ra") == ["rare"]


def test_arguments_are_offered_by_their_paths_and_values():
    bury(3, kwargs=json.dumps({"customer": {"id": 42}, "bad key": 1, "password": "[redacted]"}))
    assert set(options("kwargs.")) == {"kwargs.customer.id:", "kwargs.password:"}
    assert options("kwargs.customer.id:") == ["42"] and options("kwargs.password:") == []
    assert options("args.") == ["args.0:"]


def test_nothing_of_a_source_out_of_sight_is_offered():
    bury(source="other", queue="hidden", tenant="hidden", task="hidden", group=make_group(), args='["hidden"]')
    Worker.objects.create(source="other", name="hidden", boot="b", seen_at=NOW, host="hidden")
    Release.objects.create(source="other", version="hidden", at=NOW)
    for text in ("queue:", "task:", "source:", "tenant:", "tenant:h", "error:", "group:", "worker:", "host:", "release:",
                 "args.", "args.0:"):  # fmt: skip
        assert options(text, SHOP_ONLY) == options(text, Viewer("nobody")) == []
        assert options(text)


@pytest.mark.parametrize(
    "text", ['"', 'queue:"', "x" * 5_000, "kwargs." + "x" * 5_000, "queue:" + '"' * 3_000, "-", "(", "\0"]
)
def test_any_text_and_any_place_has_an_answer(text):
    for at in (-5, 0, 1, len(text) // 2, len(text), len(text) + 9):
        done = complete(ENGINE, text, at)
        assert 0 <= done.start <= done.end <= len(text)


def test_it_costs_few_queries(django_assert_max_num_queries):
    bury(30, group=make_group(), tenant="a")
    for text in ("queue:", "error:", "tenant:", "kwargs.", "worker:", "state:"):
        with django_assert_max_num_queries(16):
            options(text)


@pytest.mark.sqlite
def test_more_groups_than_a_statement_takes_parameters():
    made = [make_group(f"{n}", error_type=f"E{n % 7}") for n in range(70)]
    counts = [FailureCount(source="shop", queue="q", task="t", group_id=g.pk, state="dead", count=1) for g in made]
    FailureCount.objects.bulk_create(counts)
    was = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 60)
    try:
        assert [option.count for option in values(ENGINE, "error", "E3")] == [10]
        assert [option.text for option in values(ENGINE, "group", made[69].fingerprint)] == [made[69].fingerprint]
    finally:
        connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, was)
