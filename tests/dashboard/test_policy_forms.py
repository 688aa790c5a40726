"""The form of a policy's editor: from a document to inputs, and back."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st

from dashboard.policies.forms import KINDS, Draft
from dashboard.web import quantities as texts
from jobs_admin.core import policy as core
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.core.refused import Refused

NOW = datetime(2026, 11, 22, 2, 6, 30, tzinfo=UTC)


def as_form_data(draft: Draft) -> QueryDict:
    """Return the form as a browser sends it."""
    form = QueryDict(mutable=True)
    for name, text in draft.texts.items():
        form[name] = text
    form.setlist("class.error", [row.error for row in draft.rows])
    form.setlist("class.as", [row.as_ for row in draft.rows])
    if draft.respects:
        form["retry_after.respect"] = "on"
    if draft.files_lost:
        form["file_lost"] = "on"
    if draft.has_breaker:
        form["breaker"] = "on"
    if draft.leaves_retries:
        form["leaves_retries"] = "on"
    form["expires"] = draft.expires
    return form


FULL = {
    "name": "webhooks",
    "match": {"source": "shop", "queue": "webhooks", "task": "shop.*"},
    "mode": "enforce",
    "native": "after",
    "max_attempts": 6,
    "backoff": {"kind": "table", "delays_s": [1, 30, 120, 5400, 86_400]},
    "cap_s": 86_400,
    "jitter": {"kind": "plus_minus", "fraction": 0.125},
    "retry_after": {"respect": False, "jitter": 0.2, "cap_s": 3600},
    "classes": [{"error": "ValueError", "as": "permanent"}, {"error": "*.Throttled", "as": "rate_limited"}],
    "budget": {"per_minute": 600.5, "burst": 20, "group": "partner"},
    "poison": {"crashes": 3, "window_s": 300},
    "concurrency": {"key": "kwargs.customer_id", "limit": 5},
    "rate_limit": {"max": 10, "per_s": 0.5},
    "breaker": {"dependency": "partner", "max_hold_s": 7200},
    "exhausted": "escalate",
    "file_lost": True,
    "expires_at": "2026-11-23T10:00:00Z",
    "note": "as the partner asked",
}


def test_every_part_of_a_policy_has_an_input_that_gives_it_back():
    again = Draft.from_form(as_form_data(Draft.from_document(FULL))).document(NOW)
    assert core.document(core.parse(again)) == core.document(core.parse(FULL))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_as_it_was(name):
    document = PRESETS[name].document
    again = Draft.from_form(as_form_data(Draft.from_document(document))).document(NOW)
    assert core.document(core.parse(again)) == core.document(core.parse(document))


@given(st.floats(0, 2_592_000))
def test_seconds_are_read_as_they_are_written(value):
    assert math.isclose(texts.seconds(texts.in_seconds(value)), value, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("90 s", 90),
        ("1.5 min", 90),
        ("1 h 30 min", 5400),
        ("2d", 172_800),
        ("250ms", 0.25),
        ("1,000", 1000),
    ],
)
def test_seconds_as_people_type_them(text, value):
    assert texts.seconds(text) == value


@pytest.mark.parametrize("text", ["soon", "5 apples", "-", "1..2 s", "min", "2 s later"])
def test_what_is_no_time_stays_a_text_for_the_engine_to_refuse(text):
    assert texts.seconds(text) == text


@pytest.mark.parametrize("text", ["NaN", "inf", "-1", "1e308", "1e9", "∞", "0x10", "9" * 400])
def test_absurd_numbers_are_refused_beside_their_input(text):
    for path in [path for path, kind in KINDS.items() if kind is texts.NUMBER or kind is texts.SECONDS]:
        draft = Draft(
            {"backoff.kind": "exponential", "jitter.kind": "additive", "jitter.seconds": "1", "budget.per_minute": "5"}
            | {"concurrency.key": "tenant", "concurrency.limit": "1", "rate_limit.max": "1"},
            has_breaker=True,
        )
        if path in ("backoff.power", "backoff.plus_s"):
            draft.texts["backoff.kind"] = "polynomial"
        draft.texts[path] = text
        with pytest.raises(Refused) as refused:
            core.parse(draft.document(NOW))
        draft.refuse(refused.value.details["problems"])
        assert path in draft.errors, (path, draft.errors)


def test_what_another_kind_left_behind_is_no_part_of_the_policy():
    draft = Draft(
        {"backoff.kind": "fixed", "backoff.first_delay_s": "5", "backoff.factor": "3", "jitter.fraction": "10"}
    )
    assert draft.document(NOW)["backoff"] == {"kind": "fixed", "first_delay_s": 5}
    assert "jitter" not in draft.document(NOW)


def test_a_breaker_needs_no_more_than_its_choice():
    assert Draft.from_form(QueryDict("breaker=on")).document(NOW)["breaker"] == {}
    assert Draft.from_document({"breaker": {}}).has_breaker
    assert "breaker" not in Draft.from_form(QueryDict("breaker.dependency=partner")).document(NOW)


def test_rows_without_an_error_are_no_classes():
    form = QueryDict("class.error=&class.as=permanent&class.error=ValueError&class.as=transient")
    assert Draft.from_form(form).document(NOW)["classes"] == [{"error": "ValueError", "as": "transient"}]


def test_a_class_that_is_refused_is_named():
    draft = Draft.from_form(QueryDict("class.error=ValueError&class.as=sometimes"))
    with pytest.raises(Refused) as refused:
        core.parse(draft.document(NOW))
    draft.refuse(refused.value.details["problems"])
    assert draft.errors["classes"][0].startswith("ValueError: ")


def test_an_end_is_a_span_from_now_or_a_time():
    assert Draft({}, expires="4h").document(NOW)["expires_at"] == "2026-11-22T06:07:00+00:00"
    at = Draft({"expires_at": "2026-12-01T10:30"}, expires="at")
    assert core.parse(at.document(NOW)).expires_at == datetime(2026, 12, 1, 10, 30, tzinfo=UTC)
    assert "expires_at" not in Draft({"expires_at": "2026-12-01T10:30"}).document(NOW)
