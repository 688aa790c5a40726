from __future__ import annotations

import json

import pytest

from jobs_admin import policies
from jobs_admin.core.policy import parse
from jobs_admin.core.refused import Refused
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db

DRAFT = parse({"backoff": {"kind": "exponential", "first_delay_s": 1}, "jitter": {"kind": "full"}, "max_attempts": 4})


def test_a_preview_has_every_wait_their_sum_and_what_a_herd_does():
    found = policies.preview(ANN, DRAFT, jobs=100)
    assert [step["longest_s"] for step in found["schedule"]] == [1, 2, 4]
    assert found["totals"]["longest_s"] == 7
    assert sum(starts for _, starts in found["herd"]) == pytest.approx(300, rel=0.01)
    assert found["current"] is None


def test_a_preview_shows_what_is_in_force_beside_it():
    found = policies.preview(ANN, DRAFT, parse({"max_attempts": 2}))
    assert len(found["current"]["schedule"]) == 1


def test_a_preview_is_json_for_every_policy():
    for fields in (
        {"max_attempts": 1},
        {"max_attempts": 1000, "backoff": {"kind": "decorrelated", "first_delay_s": 9}},
    ):
        json.dumps(policies.preview(ANN, parse(fields)), allow_nan=False)


@pytest.mark.parametrize("jobs", [0, -1, 10**9])
def test_a_number_of_jobs_out_of_bounds_is_refused(jobs):
    with pytest.raises(Refused) as refused:
        policies.preview(ANN, DRAFT, jobs=jobs)
    assert (refused.value.field, refused.value.details["problems"][0].bound) == ("jobs", "1 to 1,000,000")


def test_a_preview_reports_what_is_wrong_with_the_draft_alone():
    wrong = policies.preview(ANN, parse({"jitter": {"kind": "none"}, "max_attempts": 1000}))
    assert wrong["findings"] and {one["where"] for one in wrong["findings"]} == {"policy draft"}
