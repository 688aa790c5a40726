"""A replay that is held, or done, leaves a notice: one for each time, and none where the transition was not ours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs_admin import replays
from jobs_admin.models import Notice, Replay
from jobs_admin.replays import controlling, notices
from tests.kit.people import ANN
from tests.kit.replays import Steered

pytestmark = pytest.mark.django_db


@pytest.fixture
def steered(shop, bury):
    return Steered(bury(200))


def test_a_replay_that_is_held_is_reported_with_its_reason_and_counts(steered):
    steered.come_home(steered.send(10), "exception")
    replay = steered.passed()
    notice = Notice.objects.get(type="replay.held")
    assert (notice.severity, notice.source, notice.is_routed_by_event) == ("warning", "shop", True)
    assert notice.body["message"] == replay.held_because and notice.body["title"] == f"Replay #{replay.pk} is held"
    assert notice.body["counts"]["total"] == 200 and notice.body["replay"] == replay.pk
    steered.passed(5)
    assert Notice.objects.count() == 1


def test_each_verdict_is_reported_once_and_the_next_again(steered):
    for n in (3, 3, 4):
        notices.notify_hold(steered.replay, ["shop"], "6 of 10 failed again.", n)
    assert Notice.objects.filter(type="replay.held").count() == 2


def test_what_another_changed_meanwhile_is_not_reported(steered):
    steered.come_home(steered.send(10), "exception")
    stale = Replay.objects.get(pk=steered.replay.pk)
    replays.pause(ANN, Replay.objects.get(pk=stale.pk))
    controlling._control_replay(stale, steered.now + timedelta(seconds=1))
    assert not Notice.objects.exists()


def test_a_replay_that_is_done_reports_how_it_ended(shop, bury):
    steered = Steered(bury(50), {"style": "at_once"})
    items = steered.send(50)
    steered.come_home(items[:47], "success")
    steered.come_home(items[47:], "exception")
    assert steered.passed().state == "done"
    notice = Notice.objects.get(type="replay.done")
    assert (notice.key, notice.severity) == (f"replay:{steered.replay.pk}:done", "warning")
    assert notice.body["message"] == "47 of 50 jobs succeeded, 3 failed again."


def test_what_is_reported_of_several_sources_is_for_those_who_see_all(steered):
    notices.notify_done(steered.replay, ["bank", "shop"])
    assert Notice.objects.get().source == "*"
