"""The preview of an alert rule on stored history, in the browser: counts, picture, and refusals beside fields."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin.models import Channel, DepthSample, Rule
from tests.kit.alerts import typed
from tests.kit.failures import bury
from tests.kit.pages import HTMX, text_of
from tests.kit.people import log_in

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean(watched):
    """The store answers, and no rule stands."""
    Rule.objects.all().delete()


# --- the preview -------------------------------------------------------------------------------------------------


def grow(values: list[int], queue: str = "webhooks", *, every: timedelta = timedelta(minutes=1)) -> None:
    """Dead jobs of a queue of the shop, the last value now."""
    now = timezone.now()
    bury(0)
    DepthSample.objects.bulk_create(
        DepthSample(source="shop", queue=queue, at=now - every * (len(values) - n), step=60, dead=value)
        for n, value in enumerate(values)
    )


def test_the_preview_shows_how_often_it_would_have_fired_and_draws_it(vera):
    grow([0] * 60 + [150] * 30 + [0] * 60 + [300] * 30 + [0] * 30)
    answer = vera.post("/alerts/rules/preview/", typed(), headers=HTMX)
    text = text_of(answer)
    assert "Would have fired twice in the last week. No channel: no one is notified." in text
    Channel.objects.create(name="ops-slack", kind="webhook", url="https://hooks.example/x")
    with_channel = vera.post("/alerts/rules/preview/", typed(channels="ops-slack"), headers=HTMX)
    assert "Would have fired twice in the last week, with 4 notices." in text_of(with_channel)
    page = answer.content.decode()
    assert page.count('class="fired"') == 2 and re.search(r'<path d="M[\d.]+ \d+L', page)
    assert "300 jobs" in text and not Rule.objects.exists()


def test_a_higher_threshold_would_not_have_fired(vera):
    grow([0] * 60 + [150] * 30 + [0] * 60)
    text = text_of(vera.post("/alerts/rules/preview/", typed(threshold="1000"), headers=HTMX))
    assert "Would not have fired in the last week." in text
    assert "never over the threshold for long enough" in text


def test_the_preview_is_a_page_without_scripts_and_keeps_what_is_typed(vera):
    grow([0] * 60 + [150] * 30 + [0] * 60)
    page = vera.post("/alerts/rules/preview/", typed(name="half done", threshold="120")).content.decode()
    assert "<html" in page and 'value="half done"' in page and 'value="120"' in page
    assert "Would have fired once" in page


def test_what_is_refused_is_drawn_without_it_and_shown_beside_its_field(vera):
    grow([0] * 60 + [150] * 30 + [0] * 60)
    page = vera.post("/alerts/rules/preview/", typed(for_s="9 d"), headers=HTMX).content.decode()
    assert "The preview ignores them." in page and 'hx-swap-oob="morph"' in page and "a day" in page
    broken = text_of(vera.post("/alerts/rules/preview/", typed(threshold="x"), headers=HTMX))
    assert "No preview until the fields are valid." in broken


def test_a_rule_without_a_name_is_previewed_all_the_same(vera):
    grow([0] * 10)
    page = vera.post("/alerts/rules/preview/", typed(name=""), headers=HTMX).content.decode()
    assert "Would not have fired" in page and 'class="refusal"' not in page


def test_the_preview_shows_nothing_of_a_source_that_is_out_of_sight(django_user_model):
    grow([500] * 120, "zircon-queue")
    eve = log_in(django_user_model, "eve", bank="operator")
    text = eve.post("/alerts/rules/preview/", typed(source="*", queue="*"), headers=HTMX).content.decode()
    assert "zircon" not in text and "500" not in text


def test_without_history_nothing_is_claimed(vera):
    text = text_of(vera.post("/alerts/rules/preview/", typed(queue="never-seen"), headers=HTMX))
    assert "No preview: check Source and Queue" in text and "Would not have fired" not in text


def test_what_the_history_does_not_keep_is_shown_instead_of_drawn(vera):
    text = text_of(vera.post("/alerts/rules/preview/", typed(metric="quarantined"), headers=HTMX))
    assert "Quarantine counts are not recorded in the history." in text
