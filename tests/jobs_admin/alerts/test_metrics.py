"""Each metric is one record: the database, measuring, sentences, bounds and the documentation follow from it."""

import re
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from django.utils import timezone

from dashboard.alerts.rules.words import amount
from jobs_admin.alerts import measuring, wording
from jobs_admin.alerts.measuring import Measured
from jobs_admin.core import alert_metrics
from jobs_admin.core.alert_metrics import METRICS, Link, Subject, Unit
from jobs_admin.models import Alert, DepthSample, Rule, SavedView

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs/alerts.md"


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
            assert "  " not in sentence, "`{subject}` is empty here: begin the sentence with it, or set `no_source`"
    assert wording.state(alert) != wording.past_state(alert)


def test_a_stalled_source_that_goes_on_again_made_no_progress_for_its_longest_time():
    alert = Alert(rule=Rule(metric="stalled_s"), source="shop", value=0, peak=300)
    assert wording.past_state(alert) == "shop made no progress for 5 min"


@every_metric
def test_it_has_a_history_or_reports_why_not(metric):
    assert (metric.history is None) == bool(metric.no_history)


@every_metric
def test_what_it_counts_and_links_to_fit_its_subject_and_unit(metric):
    assert (metric.subject is Subject.VIEW) == (metric.link is Link.VIEW)
    assert metric.ratio is None or metric.unit is Unit.SHARE, "`ratio` is of a share of the attempts that ended"
    assert bool(metric.any_source) == (metric.subject is Subject.SOURCE)
    assert metric.bound()[0] > 0


@every_metric
def test_the_documentation_names_it(metric):
    assert f"`{metric.name}`" in DOCS.read_text()


def test_the_documentation_lists_the_metrics_that_need_their_source():
    (listed,) = re.findall(
        r"^- \*\*Held\*\* alerts [^:]+:\n  - ([^:;]+) while their source", DOCS.read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", listed)) == {metric.name for metric in METRICS.values() if metric.needs_source}


@every_metric
def test_the_editor_shows_its_inputs(metric):
    css = (ROOT / "static/redrive/css/rules.css").read_text()
    assert f'.kinds:has(option[value="{metric.name}"]:checked) [data-of~="{metric.name}"]' in css


@pytest.mark.parametrize("metric, one, two", [("dead", "1 job", "2 jobs"), ("view", "1 failure", "2 failures")])
def test_a_noun_is_singular_after_one(metric, one, two):
    assert (amount(metric, 1), amount(metric, 2)) == (one, two)
    alert = Alert(rule=Rule(metric=metric), source="shop", subject="emails", value=1, peak=2)
    assert one.replace("1 job", "1 dead job") in wording.state(alert)
    assert two.replace("2 jobs", "2 dead jobs") in wording.past_state(alert)


def test_the_example_of_the_how_to_works(monkeypatch):
    page = (ROOT / "docs/how-to/add-an-alert-metric.md").read_text()
    record, measure, example = map(dedent, re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (metric,) = eval(f"[{record}]", vars(alert_metrics))
    monkeypatch.setitem(METRICS, metric.name, metric)
    body = {}
    exec(measure, vars(measuring), body)
    names = {**globals(), "Measured": type("Measured", (Measured,), body), "timedelta": timedelta}
    exec(example, names)
    names["test_waiting_is_the_latest_sample_of_a_queue"]()
    assert DepthSample.objects.count() == 1
