"""Each metric is one record: the database, measuring, sentences, bounds and the documentation follow from it."""

from pathlib import Path

import pytest
from django.utils import timezone

from jobs_admin.alerts import wording
from jobs_admin.alerts.measuring import Measured
from jobs_admin.core.alert_metrics import METRICS, Link, Subject, Unit
from jobs_admin.models import Alert, Rule, SavedView

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
DOCS = Path(__file__).parents[3] / "docs/alerts.md"


@every_metric
def test_a_rule_on_it_can_be_saved_and_is_measured(metric):
    view = (
        SavedView.objects.create(name="mine", query="state:dead", is_shared=True)
        if metric.subject is Subject.VIEW
        else None
    )
    rule = Rule.objects.create(name=metric.name, metric=metric.name, threshold=1, view=view)
    assert Measured(timezone.now()).read(rule) is not None


@every_metric
def test_its_sentences_are_complete(metric):
    for source, subject in (("shop", "emails"), ("", "emails")):
        alert = Alert(
            rule=Rule(name="r", metric=metric.name, threshold=0.5), source=source, subject=subject, value=1, peak=2,
            threshold=0.5,
        )  # fmt: skip
        for sentence in (wording.state(alert), wording.past_state(alert)):
            assert not set("{}") & set(sentence)
            assert "  " not in sentence
    assert wording.state(alert) != wording.past_state(alert)


def test_a_stalled_source_that_goes_on_again_made_no_progress_for_its_longest_time():
    alert = Alert(rule=Rule(metric="stalled_s"), source="shop", value=0, peak=300)
    assert wording.past_state(alert) == "shop made no progress for 5 min"


@every_metric
def test_it_has_a_history_or_says_why_not(metric):
    assert (metric.history is None) == bool(metric.no_history)


@every_metric
def test_what_it_counts_and_links_to_fit_its_subject_and_unit(metric):
    assert (metric.subject is Subject.VIEW) == (metric.link is Link.VIEW)
    assert (metric.unit is Unit.SHARE) == (metric.ratio is not None)
    assert bool(metric.any_source) == (metric.subject is Subject.SOURCE)
    assert metric.bound()[0] > 0


@every_metric
def test_the_documentation_names_it(metric):
    assert f"`{metric.name}`" in DOCS.read_text()
