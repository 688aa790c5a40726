from __future__ import annotations

import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs_admin.models import Failure, FailureCount, Group, Rule
from tests.kit.counts import bury, list_counts, recount

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def test_counts_follow_inserts_moves_and_deletes():
    group = Group.objects.create(
        fingerprint="v1-a", error_type="E", message="", first_seen=timezone.now(), last_seen=timezone.now()
    )
    bury(30)
    bury(5, queue="webhooks", group=group)
    Failure.objects.filter(pk__in=Failure.objects.order_by("pk").values("pk")[:10]).update(state="recovered")
    Failure.objects.filter(state="dead", queue="emails").first().delete()
    Failure.objects.filter(queue="webhooks").update(group=None)
    assert list_counts() == recount()
    assert list_counts()["shop", "emails", "send", 0, "recovered"] == 10


def test_a_row_that_is_written_again_is_counted_once():
    (failure,) = bury(1)
    failure.pk = None
    failure.state = "recovered"
    Failure.objects.bulk_create(
        [failure], update_conflicts=True, unique_fields=["source", "queue", "first_job_id"], update_fields=["state"]
    )
    assert list_counts() == recount() == {("shop", "emails", "send", 0, "recovered"): 1}


@pytest.mark.parametrize("column", ["source", "queue", "task"])
def test_counts_follow_a_change_of_any_part_of_their_key(column):
    bury(3)
    Failure.objects.filter(pk__in=Failure.objects.values("pk")[:2]).update(**{column: "other"})
    assert list_counts() == recount() and sorted(list_counts().values()) == [1, 2]


@pytest.mark.postgresql  # on SQLite: test_migrations.py
@pytest.mark.long("Takes all migrations but two back, and runs them again.")
@pytest.mark.django_db(transaction=True)
def test_counters_that_had_drifted_are_counted_again_once():
    group = Group.objects.create(
        fingerprint="v1-a", error_type="E", message="", first_seen=timezone.now(), last_seen=timezone.now()
    )
    bury(4)
    bury(2, queue="webhooks", group=group)
    Rule.objects.all().delete()  # or taking back would delete one, and alter its table in the same transaction
    call_command("migrate", "jobs_admin", "0002", verbosity=0)
    FailureCount.objects.filter(queue="emails").update(task="as it was once")
    FailureCount.objects.filter(queue="webhooks").update(count=7)
    call_command("migrate", verbosity=0)
    assert list_counts() == recount()
    assert FailureCount.objects.filter(task="as it was once", count=0).exists()


@pytest.mark.django_db(transaction=True)
def test_emptying_all_tables_leaves_no_counts_below_zero():
    bury(3)
    call_command("flush", interactive=False, verbosity=0)
    assert list_counts() == {}
