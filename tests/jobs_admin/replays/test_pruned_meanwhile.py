"""A failure that is pruned at the moment in which a replay of it starts."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections

from jobs_admin import replays
from jobs_admin.core.refused import Refused
from jobs_admin.desk import retention
from jobs_admin.models import Failure, ReplayItem
from tests.kit.people import ANN

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True), pytest.mark.databases]


def in_another_process(act, *values) -> None:
    def run():
        act(*values)
        connections.close_all()

    other = threading.Thread(target=run)
    other.start()
    other.join()


def test_a_start_whose_jobs_are_pruned_meanwhile_is_refused_with_a_sentence(shop, bury):
    first, second = bury(2)
    replay = replays.draft(ANN, query="state:dead", pace={"style": "at_once"}, reason="because")
    done = []

    def prune_once(execute, sql, *rest):
        if "jobs_admin_auditevent" in sql and sql.startswith("INSERT") and not done:
            done.append(in_another_process(retention.forget, [first]))
        return execute(sql, *rest)

    with connection.execute_wrapper(prune_once), pytest.raises(Refused, match="pruned"):
        replays.start(ANN, replay)
    replay.refresh_from_db()
    assert done and replay.state == "draft" and not ReplayItem.objects.exists()
    assert list(Failure.objects.values_list("pk", flat=True)) == [second]
    assert replays.start(ANN, replay).total == 1
