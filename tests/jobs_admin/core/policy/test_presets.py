from __future__ import annotations

import random

import pytest
from celery.utils.time import get_exponential_backoff_interval

from jobs_admin.core import backoff
from jobs_admin.core.policy import parse
from jobs_admin.core.policy.presets import PRESETS
from tests.kit.policy_documents import CASES

VECTORS = {vector["name"]: vector for vector in CASES["vectors"]}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_policy_that_lacks_only_its_name_and_its_match(name):
    document = PRESETS[name].document
    assert parse({**document, "name": "mine", "match": {"task": "shop.*"}}).max_attempts == document["max_attempts"]
    assert not document.keys() & {"name", "match", "mode"}


@pytest.mark.parametrize(
    ("preset", "vector"),
    [
        ("standard", "standard"),
        ("aggressive", "aggressive"),
        ("fixed", "fixed 60 s"),
        ("linear", "linear 30 s"),
        ("bullmq", "BullMQ exponential, jitter 0.5"),
        ("sidekiq", "Sidekiq"),
    ],
)
def test_the_curves_are_the_published_ones(preset, vector):
    policy = parse(PRESETS[preset].document)
    for published in VECTORS[vector]["delays"]:
        found = backoff.bounds(policy, published["attempt"])
        assert (found.shortest_s, found.longest_s) == (published["shortest_s"], published["longest_s"])


@pytest.mark.parametrize(
    ("preset", "attempts"), [("emails", 4), ("webhooks", 6), ("payments", 3), ("celery", 4), ("sidekiq", 26)]
)
def test_they_try_as_often_as_their_source_does(preset, attempts):
    assert PRESETS[preset].document["max_attempts"] == attempts


@pytest.mark.parametrize(("preset", "curve"), [("emails", "standard"), ("webhooks", "aggressive")])
def test_a_preset_for_a_use_never_waits_longer_than_its_curve(preset, curve):
    used, published = (parse(PRESETS[name].document) for name in (preset, curve))
    for step in backoff.schedule(used):
        assert step.longest_s == backoff.bounds(published, step.attempt).longest_s


def test_a_payment_is_never_tried_early_and_then_reported_to_a_person():
    policy = parse(PRESETS["payments"].document)
    assert min(step.shortest_s for step in backoff.schedule(policy)) == 60 and policy.exhausted == "escalate"


def test_celerys_own_is_what_celery_itself_computes():
    """Compared with the function that Celery calls: the same whole seconds, both ends included."""
    policy = parse({**PRESETS["celery"].document, "max_attempts": 20})
    for retries in range(19):
        found = {get_exponential_backoff_interval(1, retries, 600, full_jitter=True) for _ in range(2000)}
        ours = {backoff.delay(policy, retries + 1, random.random) for _ in range(2000)}
        bounds = backoff.bounds(policy, retries + 1)
        assert (bounds.shortest_s, bounds.longest_s) == (0, get_exponential_backoff_interval(1, retries, 600))
        assert found | ours <= set(range(int(bounds.longest_s) + 1))
        assert len(ours) == pytest.approx(len(found), rel=0.05) or (bounds.longest_s < 64 and ours == found)
