"""One definition of how often attempts fail: every screen reports the same of a queue in the same moment."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from jobs_admin import queues
from jobs_admin.desk import overview
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.queues import rates
from tests.kit.overview import NOW, count, tick

pytestmark = pytest.mark.django_db


def test_the_overview_and_the_queues_report_the_same_rate_of_a_queue(store):
    for minute, failed in enumerate((9, 400, 310, 250, 90, 20, 7)):
        count(failed, minute, retried=failed // 2)
    for second in (0, 1, 30, 59):
        now = NOW + timedelta(seconds=second)
        tick(store, now)
        rate = re.search(r"webhooks: ([\d,.]+) failed attempts/min", str(overview.sentence(ENGINE, now)))[1]
        assert rate == f"{queues.queue_page(ENGINE, now=now).rows[0].failed_per_minute:,.0f}"


def test_a_rate_is_over_full_minutes_and_what_is_over_of_the_one_that_runs():
    count(50, 5), count(100, 6)
    (rate,) = rates.queue_rates(ENGINE, NOW)
    assert (rate.failed, rate.before) == (10, 10)
    (later,) = rates.queue_rates(ENGINE, NOW + timedelta(seconds=30))
    assert (rates.window_minutes(NOW + timedelta(seconds=30)), round(later.failed, 2)) == (5.5, 9.09)


def test_what_is_retried_counts_and_what_ran_well_is_reported_beside():
    count(5, 1, retried=10, succeeded=20)
    (rate,) = rates.queue_rates(ENGINE, NOW)
    assert (rate.failed, rate.succeeded) == (3, 4)


def test_rates_are_reported_about_the_own_sources_alone():
    count(5, 1)
    assert rates.queue_rates(Viewer("bo", {"bank": "viewer"}), NOW) == []


@pytest.mark.parametrize(
    ("gap_s", "per_minute", "fails"),
    [
        (60, 11, True),
        (61, 11, False),
        (170, 1, True),
        (190, 1, False),
        (50, None, True),
        (70, None, False),
        (5, 0, False),
    ],
)
def test_failures_have_ended_after_a_minute_or_three_of_their_usual_gaps(gap_s, per_minute, fails):
    assert rates.is_failing(NOW - timedelta(seconds=gap_s), per_minute, NOW) is fails
