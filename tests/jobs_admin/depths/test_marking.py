"""Events of a queue, for those who may know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs_admin.models import Release
from jobs_admin.models.access import Viewer
from jobs_admin.queues import depths
from tests.kit.depths import HOUR, NOW, alert, publish, replay
from tests.kit.overview import bury

pytestmark = pytest.mark.django_db
VERA = Viewer("vera", {"shop": "viewer"})


def marked(queue="emails", source="shop", viewer=VERA) -> list[tuple[str, str]]:
    return [(mark.kind, mark.ref) for mark in depths.marks(viewer, source, queue, NOW - HOUR, NOW)]


def test_alerts_of_the_queue_and_of_its_source_are_marked_when_they_fired():
    mine, of_source = alert(), alert("")
    alert("webhooks"), alert(source="bank"), alert(fired_at=None, state="pending")
    alert(fired_at=NOW - 2 * HOUR, opened_at=NOW - 2 * HOUR)
    assert sorted(marked()) == sorted([("alert", str(mine.pk)), ("alert", str(of_source.pk))])


def test_replays_of_its_jobs_are_marked_when_they_started():
    mine = replay()
    replay("webhooks"), replay(started_at=NOW - 2 * HOUR)
    assert marked() == [("replay", str(mine.pk))]


def test_policies_that_may_decide_about_its_jobs_are_marked():
    publish("shop", "em*", "mine"), publish("*", "*", "all"), publish("shop", "webhooks", "others"), publish("bank")
    assert marked() == [("policy", "all@1"), ("policy", "mine@1")]


def test_a_policy_for_tasks_that_never_failed_there_is_not_marked():
    (job,) = bury(1, queue="emails")
    publish("shop", "*", "mine", job.task[:3] + "*"), publish("shop", "*", "others", "somewhere.else")
    assert marked() == [("policy", "mine@1")]


def test_releases_of_its_source_are_marked():
    Release.objects.create(source="shop", version="v2", at=NOW - HOUR / 2)
    Release.objects.create(source="shop", version="v1", at=NOW - 2 * HOUR)
    Release.objects.create(source="bank", version="v9", at=NOW - HOUR / 2)
    assert marked() == [("release", "v2")]


def test_a_thousand_of_a_kind_are_the_latest_twenty():
    Release.objects.bulk_create(
        Release(source="shop", version=f"v{n}", at=NOW - timedelta(seconds=n)) for n in range(1000)
    )
    assert marked() == [("release", f"v{n}") for n in reversed(range(20))]


def test_they_come_in_the_order_of_time_with_words():
    alert(), publish("shop", "*"), replay()
    Release.objects.create(source="shop", version="v2", at=NOW - timedelta(minutes=1))
    found = depths.marks(VERA, "shop", "emails", NOW - HOUR, NOW)
    assert [mark.words.split(" #")[0] for mark in found] == [
        "Growing (warning)",
        "replay",
        "p v1 observes",
        "release v2",
    ]
