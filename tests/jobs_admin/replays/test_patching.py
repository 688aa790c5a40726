from __future__ import annotations

import json

import pytest
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.core.redacted_view import build_display
from jobs_admin.replays import target
from tests.kit.people import ANN
from tests.kit.replays import refusal

pytestmark = pytest.mark.django_db


def page(patch, **more):
    return replays.list_patched_jobs(ANN, target.build_target("queue:emails", (), timezone.now()), patch, **more)


def test_each_job_is_shown_before_and_after(shop, bury):
    bury(2)
    got = page({"kwargs": {"to": "bob", "dry_run": True}})
    assert (got.changed, got.unchanged, got.unreadable, got.next) == (2, 0, 0, None)
    row = got.rows[0]
    assert build_display(row.before.kwargs) == {"to": "ann"} and build_display(row.after.kwargs) == {
        "to": "bob",
        "dry_run": True,
    }
    assert build_display(row.after.args) == [1]


def test_what_would_not_change_or_cannot_be_read_is_reported(shop, bury):
    bury(1)
    bury(1, raw=b"no json", args="")
    bury(1, raw=json.dumps({"args": [], "kwargs": {"to": "bob"}}).encode())
    got = page({"kwargs": {"to": "bob"}})
    assert (got.changed, got.unchanged) == (1, 1)
    assert got.unreadable + got.changed + got.unchanged == len(got.rows)
    assert all(row.why for row in got.rows if row.after is None)


def test_secrets_are_hidden_before_and_after(shop, bury):
    bury(1, raw=json.dumps({"args": [], "kwargs": {"password": "swordfish", "n": 1}}).encode())
    (row,) = page({"kwargs": {"n": 2}}).rows
    text = json.dumps([build_display(row.before.kwargs), build_display(row.after.kwargs)])
    assert "swordfish" not in text and "redacted" in text


def test_it_goes_page_by_page(shop, bury):
    ids = bury(5)
    seen, after = [], None
    while True:
        got = page({"kwargs": {"x": 1}}, after=after, limit=2)
        seen += [row.failure.pk for row in got.rows]
        if not (after := got.next):
            break
    assert seen == ids


@pytest.mark.parametrize("patch", [{}, {"kwargs": None}, {"args": {"0": 1}}, {"kwargs": {"a": "[redacted]"}}, {"x": 1}])
def test_a_patch_that_cannot_be_is_refused(shop, patch):
    refused = refusal(page, patch)
    assert (refused.code, refused.field) == ("bad_option", "patch")
