from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import AuditEvent, FrozenBatch, Replay
from jobs_admin.replays import settling
from tests.kit.people import ANN, BOB
from tests.kit.replays import counts, start_replay

pytestmark = pytest.mark.django_db


def set_state_since(replay, state, for_days):
    since = timezone.now() - timedelta(days=for_days)
    Replay.objects.filter(pk=replay.pk).update(state=state, state_since=since)


@pytest.mark.parametrize("state", ["held", "paused", "awaiting_approval"])
def test_what_no_one_comes_for_is_stopped_and_its_jobs_are_free(shop, bury, state):
    ids = bury(250)
    replay = replays.start(ANN, replays.draft(ANN, selection=ids, reason="fixed"))
    set_state_since(replay, state, settling.ABANDONED_AFTER.days + 1)
    while replays.settle():
        pass
    assert counts(replay) == {"cancelled": 250} and not FrozenBatch.objects.exists()
    assert replay.state == "stopped" and replay.ended_at and "for 30 days without a decision." in replay.held_because
    event = AuditEvent.objects.get(act="replay.stop")
    assert (event.actor, event.source, event.before) == ("controller", "shop", {"state": state, "planned": 250})
    assert replays.start(BOB, replays.draft(BOB, selection=ids, reason="again")).total == 250


def test_what_ranks_lower_and_what_waits_for_its_hours_stays(shop, bury):
    one, other = start_replay(bury(2)), start_replay(bury(2))
    set_state_since(one, "paused", settling.ABANDONED_AFTER.days - 1)
    set_state_since(other, "waiting", settling.ABANDONED_AFTER.days + 1)
    assert not settling.stop_abandoned(timezone.now())
