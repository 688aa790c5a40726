from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import connection

from jobs_admin import replays
from jobs_admin.models import Failure
from jobs_admin.queues import rates
from tests.kit.replays import buried, came_home, counts, sent_all, start_replay

pytestmark = pytest.mark.django_db


@contextmanager
def watched():
    """Every depth that a person could have read meanwhile: after each statement that changed something."""
    seen, quiet = [], []

    def count_after_write(execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        if not quiet and not sql.lstrip().upper().startswith("SELECT"):
            quiet.append(True)
            seen.append(rates.count_unrecovered())
            quiet.clear()
        return answer

    with connection.execute_wrapper(count_after_write):
        yield seen


def test_a_replay_that_fails_in_full_leaves_the_depth_as_it_was_at_every_moment(shop):
    ids = buried(500)
    with watched() as seen:
        replay = start_replay(ids)
        sent_all()
        assert Failure.objects.filter(state="dead").count() == 0  # so `dead` alone would say that all is well
        for kind, attempt in (("retry", 1), ("exception", 2)):
            for item in replay.items.all():
                came_home(item, kind, attempt=attempt)
            replays.settle()
    assert counts(replay) == {"failed_again": 500} and Failure.objects.filter(state="dead").count() == 500
    assert len(seen) > 1_000 and {tuple(depth.items()) for depth in seen} == {((("shop", "emails"), 500),)}


def test_what_ran_well_is_no_longer_counted(shop):
    replay = start_replay(buried(3))
    sent_all()
    came_home(replay.items.get(n=1), "success")
    assert rates.count_unrecovered("shop") == {("shop", "emails"): 2}
    assert rates.count_unrecovered("web") == {}


def test_a_job_that_retries_in_its_first_run_has_not_died(shop):
    buried(2, state="retrying")
    assert rates.count_unrecovered() == {}
