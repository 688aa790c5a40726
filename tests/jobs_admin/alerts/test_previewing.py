"""The effect that a rule would have had last week, on samples as they are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs_admin import alerts
from jobs_admin.core.refused import Refused
from jobs_admin.models import DepthSample, Rule
from jobs_admin.queues import depths
from tests.kit.alerts import DEAD, NOW
from tests.kit.people import ANN, BEA

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def sampled(values, queue="emails", source="shop", end=NOW, step=60, **more):
    """One folded row for each value, the last just before the end."""
    rows = [
        DepthSample(
            source=source, queue=queue, step=step, at=end - timedelta(seconds=step) * (len(values) - n), dead=value,
            is_reachable=value is not None, **{name: what[n] for name, what in more.items()},
        )
        for n, value in enumerate(values)
    ]  # fmt: skip
    DepthSample.objects.bulk_create(rows)


def hourly(queue, dead, source="shop"):
    sampled([dead] * 3, queue, source, end=NOW - timedelta(hours=5), step=3600)


def test_it_reports_how_often_it_would_have_fired_and_when(desk):
    sampled([0] * 10 + [150] * 20 + [0] * 30 + [180] * 10 + [0] * 10)
    found = alerts.preview(ANN, DEAD, NOW)
    assert (found.fired, found.notices) == (2, 4)
    last, first = found.episodes
    assert (first.peak, last.peak) == (150, 180)
    assert first.fired_at - first.opened_at == MINUTE and first.resolved_at - first.opened_at == 22 * MINUTE
    (series,) = found.series
    assert (series.subject, max(series.values), len(series.times)) == ("emails", 180, 80)
    assert not Rule.objects.exists()


def test_checks_that_are_not_folded_yet_are_judged_too(desk):
    sampled([150] * 30, step=10)
    found = alerts.preview(ANN, DEAD, NOW)
    assert found.fired == 1 and found.episodes[0].resolved_at is None


def test_it_agrees_with_what_is_folded_for_real(desk):
    values = ([0] * 60 + [150] * 120 + [0] * 180) * 3
    sampled(values, step=10)
    before = alerts.preview(ANN, DEAD, NOW).fired
    while depths.roll_up(NOW):
        pass
    assert DepthSample.objects.filter(step=60).exists()
    assert alerts.preview(ANN, DEAD, NOW).fired == before == 3


def test_while_a_source_could_not_be_reached_nothing_would_have_fired_or_ended(desk):
    sampled([150] * 10 + [None] * 60 + [150] * 10 + [0] * 10)
    assert [e.resolved_at - e.fired_at for e in alerts.preview(ANN, DEAD, NOW).episodes] == [81 * MINUTE]
    sampled([None] * 30 + [0], queue="other", end=NOW)
    found = alerts.preview(ANN, {"name": "x", "metric": "unreachable", "threshold": 600, "for_s": 0}, NOW)
    assert {e.subject for e in found.episodes} <= {""}


def test_queues_that_are_open_together_would_have_been_reported_together(desk):
    sampled([0] * 5 + [150] * 20 + [0] * 10)
    sampled([0] * 5 + [150] * 20 + [0] * 10, "webhooks")
    sampled([0] * 5 + [150] * 20 + [0] * 10, source="bank")
    found = alerts.preview(ANN, {**DEAD, "source": "*"}, NOW)
    assert (found.fired, found.notices) == (3, 4)
    assert alerts.preview(ANN, {**DEAD, "source": "*", "renotify_s": 600}, NOW).notices == 8
    assert alerts.preview(BEA, {**DEAD, "source": "*"}, NOW).fired == 1


def test_what_would_have_fired_more_than_an_hour_later_is_reported_by_itself(desk):
    sampled([150] * 180 + [0] * 10)
    sampled([0] * 90 + [150] * 90 + [0] * 10, "late")
    found = alerts.preview(ANN, DEAD, NOW)
    assert (found.fired, found.notices) == (2, 4)


def test_growth_age_and_shares_are_judged_on_history(desk):
    n = 60
    sampled(
        [*range(0, 300, 10), *[290] * 30],
        oldest_dead_at=[NOW - timedelta(hours=9)] * n,
        failed_per_min=[0.0] * 30 + [30.0] * 30,
        succeeded_per_min=[30.0] * n,
    )
    fired = {
        metric: alerts.preview(ANN, {"name": "x", "metric": metric, "threshold": limit}, NOW).fired
        for metric, limit in {"growth_per_minute": 8, "oldest_dead_s": 8 * 3600, "failure_rate": 0.4}.items()
    }
    assert fired == {"growth_per_minute": 1, "oldest_dead_s": 1, "failure_rate": 1}


@pytest.mark.parametrize(
    "fields", [{"metric": "quarantined"}, {"metric": "retry_rate", "threshold": 0.5}, {"task": "shop.send"}]
)
def test_what_history_does_not_keep_is_reported_in_a_sentence(desk, fields):
    found = alerts.preview(ANN, {**DEAD, **fields}, NOW)
    assert not found.is_possible and len(found.untold) == 1 and found.untold[0].endswith(".")


def test_many_queues_are_read_within_a_bound_the_loudest_most_finely(desk, monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr(alerts.previewing, "MOST_ROWS", 4 * 7 * 1440)
    for n in range(20):
        hourly(f"q{n}", 10 * n)
        sampled([10 * n] * 3, f"q{n}", end=NOW - timedelta(hours=5))
    with django_assert_max_num_queries(60):
        found = alerts.preview(ANN, DEAD, NOW)
    assert len(found.series) == 8 and found.series[0].subject == "q19"
    assert "3 of 20 queues are evaluated per minute, those with lower values in steps of 60 min." in found.untold


def test_an_absurd_rule_is_refused_before_anything_is_read(desk):
    with pytest.raises(Refused):
        alerts.preview(ANN, {**DEAD, "threshold": -1}, NOW)
