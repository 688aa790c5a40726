"""Dead jobs of a few queues over a day, for the overview."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs_admin.models import Release, Rule
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.queues import depths
from jobs_admin.queues.depths.marking import MOST_QUEUES, desk_marks
from tests.kit.depths import NOW, alert, build_sample, publish, replay

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def quarter(queue: str, ago: timedelta, dead: int) -> None:
    build_sample(NOW - ago, dead, queue, step=900).save()


def test_each_quarter_of_the_last_day_has_its_place_and_what_is_not_known_is_none():
    quarter("emails", 2 * HOUR, 7), quarter("emails", timedelta(0), 0), quarter("emails", 30 * HOUR, 99)
    found = depths.dead_depth(ENGINE, [("shop", "emails")], NOW)
    (line,) = found.lines
    known = {at: dead for at, dead in zip(found.times, line.dead, strict=True) if dead is not None}
    assert known == {int((NOW - 2 * HOUR).timestamp()): 7, int(NOW.timestamp()): 0} and len(found.times) == 96


def test_thousands_of_queues_are_the_first_five_by_one_statement_of_rows():
    names = [("shop", f"q{n}") for n in range(1000)]
    for _, queue in names[:7]:
        quarter(queue, HOUR, 3)
    with CaptureQueriesContext(connection) as queries:
        found = depths.dead_depth(ENGINE, names, NOW)
    assert [line.queue for line in found.lines] == [name for _, name in names[:MOST_QUEUES]] and len(queries) <= 6


def test_a_queue_without_a_dead_job_is_no_line_and_without_a_line_nothing_else_is_queried():
    quarter("emails", HOUR, 0)
    with CaptureQueriesContext(connection) as queries:
        found = depths.dead_depth(ENGINE, [("shop", "emails")], NOW)
    assert not found.lines and len(queries) == 1


def test_only_thresholds_that_one_of_the_queues_may_reach_are_reported_the_lowest_first():
    quarter("emails", HOUR, 3)
    Rule.objects.all().delete()
    for name, value, more in (
        ("high", 900, {}), ("low", 10, {"queue": "em*"}), ("other queue", 5, {"queue": "webhooks"}),
        ("one task", 5, {"task": "t"}), ("off", 5, {"enabled": False}), ("bank", 5, {"source": "bank"}), ("age", 5, {"metric": "oldest_dead_s"}),
    ):  # fmt: skip
        Rule.objects.create(name=name, threshold=value, **{"metric": "dead"} | more)
    found = depths.dead_depth(ENGINE, [("shop", "emails")], NOW)
    assert [one.rule for one in found.thresholds] == ["low", "high"]


def test_what_happened_on_sources_out_of_sight_is_not_reported():
    alert(), alert(source="bank"), publish("bank", name="theirs"), publish("shop", name="ours")
    mine = replay()
    for source in ("shop", "bank"):
        Release.objects.create(source=source, version=f"of-{source}", at=NOW - HOUR / 2)
    seen = desk_marks(Viewer("vera", {"shop": "viewer"}), NOW - HOUR, NOW)
    assert {(mark.kind, mark.ref) for mark in seen if mark.kind != "alert"} == {
        ("policy", "ours@1"), ("replay", str(mine.pk)), ("release", "of-shop"),
    }  # fmt: skip
    assert len([mark for mark in seen if mark.kind == "alert"]) == 1
    theirs = desk_marks(Viewer("bo", {"bank": "viewer"}), NOW - HOUR, NOW)
    assert not [mark for mark in theirs if mark.kind == "replay"] and "of-shop" not in str(theirs)
