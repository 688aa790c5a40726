"""A queue over time: at most that many points at any span, and gaps that say why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_admin.core.refused import NotFound
from jobs_admin.models import DepthSample
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.queues import depths
from jobs_admin.queues.depths import reading
from jobs_admin.queues.depths.steps import retention_by_step
from tests.kit.depths import NOW, build_sample, create_samples, roll
from tests.kit.endurance import times

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
VERA = Viewer("vera", {"shop": "viewer"})
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def read(since=HOUR, until=NOW, viewer=VERA, queue="emails", **more) -> depths.History:
    return depths.history(viewer, "shop", queue, NOW - since, until, now=NOW, **more)


def reasons(history) -> list[tuple[int, str]]:
    return [(gap.until - gap.since, gap.reason) for gap in history.gaps]


def test_each_span_takes_the_shortest_step_that_is_stored_and_fits():
    spans = (HOUR, 6 * HOUR, DAY, 7 * DAY, 14 * DAY, 90 * DAY, 400 * DAY)
    assert [read(span).step_s for span in spans] == [10, 60, 300, 900, 3600, 21_600, 86_400]


def test_an_hour_of_two_days_ago_is_reported_in_minutes_and_one_of_last_month_in_hours():
    for ago, step in ((2 * DAY, 60), (30 * DAY, 3600)):
        assert depths.history(VERA, "shop", "emails", NOW - ago, NOW - ago + HOUR, now=NOW).step_s == step


@settings(max_examples=times(20, 60))
@given(st.integers(0, 1200 * 86_400), st.integers(0, 1200 * 86_400), st.sampled_from([1, 2, 100, 999, 1000]))
def test_no_span_has_more_points_than_requested(back, long, most):
    since = NOW - timedelta(seconds=back)
    history = depths.history(VERA, "shop", "emails", since, since + timedelta(seconds=long), most=most, now=NOW)
    steps = -(-(history.until - history.since) // history.step_s)
    assert 0 <= steps <= most and history.until <= NOW.timestamp()


def test_folded_further_the_least_the_most_and_the_last_are_the_same():
    days = [NOW.replace(hour=0) - DAY * n for n in range(400)]
    DepthSample.objects.bulk_create(
        build_sample(at, n, step=86_400, dead_min=n // 2, dead_max=2 * n, why="lost" if n == 9 else "")
        for n, at in enumerate(days)
    )
    full, few = read(400 * DAY), read(400 * DAY, most=7)
    assert (full.step_s, len(full.points), len(few.points)) == (86_400, 400, 7)
    for name, choose in (("dead_min", min), ("dead_max", max)):
        assert choose(getattr(p, name) for p in few.points) == choose(getattr(p, name) for p in full.points)
    assert few.points[-1].dead == full.points[-1].dead == 0 and reasons(few) == [(few.step_s, reading.PARTLY)]


def test_a_point_reports_the_step_and_the_age_of_the_oldest_dead_job_at_its_end():
    build_sample(
        NOW - 2 * HOUR, 4, step=3600, oldest_dead_at=NOW - 3 * HOUR, dead_min=1, dead_max=9, source_dead=2
    ).save()
    (point,) = depths.history(VERA, "shop", "emails", NOW - 30 * DAY, NOW, most=800, now=NOW).points
    assert (point.at, point.dead, point.dead_min, point.dead_max) == ((NOW - 2 * HOUR).timestamp(), 4, 1, 9)
    assert point.oldest_dead_age_s == 2 * 3600 and (point.waiting_min, point.source_dead) == (4, 2)


def test_unreachable_is_a_gap_with_what_the_source_reported():
    create_samples(NOW - HOUR, 360)
    away = DepthSample.objects.filter(at__gte=NOW - HOUR / 2, at__lt=NOW - HOUR / 3)
    away.update(is_reachable=False, why="connection refused", waiting=None)
    (gap,) = read().gaps
    assert (gap.until - gap.since, gap.reason, gap.why) == (600, reading.UNREACHABLE, "connection refused")
    assert gap.words == "The source did not answer: connection refused"


def test_a_minute_in_which_the_source_answered_at_times_is_no_gap_and_reports_it():
    create_samples(NOW - 3 * HOUR, 1080)
    DepthSample.objects.filter(at=NOW - HOUR).update(is_reachable=False, why="timed out", waiting=None)
    roll()
    history = read(3 * HOUR)
    assert history.step_s == 60 and reasons(history) == [(60, reading.PARTLY)]
    assert all(point.waiting is not None for point in history.points)


def test_while_no_one_watched_is_a_gap_of_its_own_kind():
    create_samples(NOW - HOUR, 180), create_samples(NOW - HOUR / 4, 90)
    assert reasons(read()) == [(900, reading.UNWATCHED)]


def test_a_check_that_came_late_is_no_gap():
    create_samples(NOW - HOUR, 360)
    DepthSample.objects.filter(at=NOW - HOUR / 2).delete()
    assert read().gaps == []


def test_no_one_watches_now_either():
    create_samples(NOW - HOUR, 300)
    assert reasons(read()) == [(600, reading.UNWATCHED)]


def test_a_queue_that_was_not_there_yet_is_distinguished_from_a_desk_that_slept():
    create_samples(NOW - HOUR, 360, "older"), create_samples(NOW - HOUR / 2, 180)
    assert reasons(read()) == [(1800, reading.UNSEEN)]


def test_before_the_first_check_nothing_is_known():
    create_samples(NOW - HOUR / 2, 180)
    assert reasons(read()) == [(1800, reading.BEFORE)]
    assert [gap.words for gap in read().gaps] == ["Before the first stored sample"]


def test_a_queue_no_one_knows_is_one_gap():
    assert reasons(read(queue="nothing")) == [(3600, reading.BEFORE)]


def test_thousands_of_holes_are_reported_by_the_longest():
    create_samples(NOW - HOUR, 70, every_s=50)
    assert len(read().gaps) == reading._MOST_GAPS


def test_without_sight_of_the_source_the_answer_equals_that_for_nothing():
    create_samples(NOW - HOUR, 6)
    for read_ in (depths.history, depths.marks):
        with pytest.raises(NotFound):
            read_(Viewer("bo", {"bank": "admin"}), "shop", "emails", NOW - HOUR, NOW)
    with pytest.raises(NotFound):
        depths.require_visible(Viewer("bo", {"bank": "admin"}), "shop", "emails")
    with pytest.raises(NotFound):
        depths.require_visible(VERA, "shop", "nothing")
    depths.require_visible(VERA, "shop", "emails")


def test_a_picture_reads_no_more_rows_than_it_has_points_by_one_statement():
    create_samples(NOW - DAY, 8640)
    roll()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        history = read(DAY)
    assert len(queries) == 1 and len(history.points) == 288 and not history.gaps


def test_what_is_stored_for_ever_is_still_a_picture(settings):
    settings.REDRIVE = settings.REDRIVE | {"KEEP": "depths=ever"}
    assert retention_by_step()[86_400] is None and retention_by_step()[10] == DAY
    history = depths.history(ENGINE, "shop", "emails", datetime(2000, 1, 1, tzinfo=UTC), NOW, now=NOW)
    assert history.step_s % 86_400 == 0
