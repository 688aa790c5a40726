"""From what is typed on the page of a new replay to the API's words."""

from __future__ import annotations

import pytest
from django.http import QueryDict

from dashboard.replays.forms import Options, Pace
from jobs_admin import replays
from jobs_admin.core import pacing
from jobs_admin.core.refused import Refused


def document(text: str) -> dict | None:
    return Pace(QueryDict(text)).document


@pytest.mark.parametrize(
    "typed, pace",
    [
        ("", None),  # the default by size
        ("style=careful&amount=50&unit=rate", {"style": "careful"}),
        ("style=at_once&amount=50", {"style": "at_once"}),
        ("style=steady&amount=2.5", {"style": "steady", "rate": 2.5}),
        ("amount=30&unit=every", {"style": "steady", "every": 30}),
        ("style=steady&amount=50&over=600", {"style": "steady", "over": 600}),
        ("style=careful&canary_jobs=20&canary_success=90", {"style": "careful", "canary": {"jobs": 20, "success": 0.9}}),
        ("style=careful&ramp_from=2&ramp_to=40", {"style": "careful", "ramp": {"from": 2, "to": 40}}),
        ("style=careful&stop_failed=10+%25&stop_new_groups=no",
         {"style": "careful", "stop": {"failed": 0.1, "new_groups": False}}),
        ("style=careful&per_key_key=tenant&per_key_concurrency=5",
         {"style": "careful", "per_key": {"key": "tenant", "concurrency": 5}}),
        ("style=careful&window_from=22:00&window_to=06:00&window_days=mon&window_days=tue",
         {"style": "careful", "window": {"from": "22:00", "to": "06:00", "days": ["mon", "tue"]}}),
        ("style=careful&in_flight=9&queue_cap=100&priority=3&shuffle=on&jitter=50",
         {"style": "careful", "in_flight": 9, "queue_cap": 100, "priority": 3, "shuffle": True, "jitter": 0.5}),
    ],
)  # fmt: skip
def test_what_is_typed_becomes_the_words_of_the_api_and_the_engine_takes_them(typed, pace):
    assert document(typed) == pace
    pacing.parse(pace, 1000)


@pytest.mark.parametrize(
    "typed, field",
    [
        ("style=careful&canary_jobs=many", "canary_jobs"),
        ("style=careful&canary_success=200", "canary_success"),
        ("style=careful&ramp_from=50&ramp_to=5", "ramp_from"),
        ("style=careful&in_flight=-1", "in_flight"),
        ("style=careful&per_key_concurrency=5", "per_key_key"),
        ("style=careful&per_key_key=tenant", "per_key_key"),
        ("style=careful&window_from=22", "window_from"),
        ("style=careful&window_days=mon", "window_from"),
        ("style=careful&priority=11", "priority"),
        ("style=at_once&canary_jobs=5", "canary_jobs"),
        ("style=careful&stop_failed=lots", "stop_failed"),
        ("style=steady&amount=5&over=nan", "over"),
        ("style=careful&jitter=-1", "jitter"),
    ],
)
def test_what_the_engine_refuses_is_beside_the_field_that_is_to_blame(typed, field):
    form = Pace(QueryDict(typed))
    with pytest.raises(Refused) as refused:
        pacing.parse(form.document, 1000)
    form.refuse(refused.value.field, str(refused.value))
    assert list(form.errors) == [field], form.errors
    assert "must be" not in form.errors[field][0] or form.errors[field][0].startswith("This must be")


@pytest.mark.parametrize(
    "typed, options",
    [
        ("", {}),
        ("attempts=reset&attempts_number=3&to_queue=&patch=", {}),
        ("attempts=number&attempts_number=3", {"attempts": "3"}),
        ("attempts=kept", {"attempts": "kept"}),
        ("to_queue=+slow+&same_job_id=on", {"to_queue": "slow", "same_job_id": True}),
        ("accept=expired&accept=unguarded", {"accept": ["expired", "unguarded"]}),
        ('patch={"kwargs":{"dry_run":true}}', {"patch": {"kwargs": {"dry_run": True}}}),
    ],
)
def test_options_become_those_of_the_engine(typed, options):
    form = Options(QueryDict(typed))
    assert form.document == options
    replays.Options.parse(form.document)


@pytest.mark.parametrize(
    "typed, field, text",
    [
        ("patch={", "patch", "This is not JSON: Expecting property name"),
        ("patch=NaN", "patch", "NaN is not a JSON value"),
        ("patch=[1]", "patch", "A patch is an object"),
        ("attempts=number&attempts_number=none", "attempts_number", "This is reset, kept, or a number"),
        ("attempts=number", "attempts_number", "1 to 1,000"),
    ],
)
def test_an_option_that_cannot_be_is_shown_beside_its_field(typed, field, text):
    form = Options(QueryDict(typed))
    if form.is_valid():
        with pytest.raises(Refused) as refused:
            replays.Options.parse(form.document)
        form.refuse(refused.value.field, refused.value.message)
    assert text in form.errors[field][0], form.errors
