from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jobs_admin import config, replays
from jobs_admin.models import Replay
from jobs_admin.replays import Options
from jobs_admin.sources.base import Capabilities
from tests.kit.people import ANN
from tests.kit.replays import refusal


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "field, value",
    [
        ("attempts", 0), ("attempts", 1001), ("attempts", "many"), ("attempts", True), ("attempts", 2.5),
        ("to_queue", 7), ("to_queue", "q" * 201), ("to_queue", "a\0b"), ("same_job_id", "yes"), ("accept", ["all"]),
        ("accept", 3), ("patch", {}), ("patch", []), ("patch", {"kwargs": {"a": "x… (cut)"}}),
        ("patch", {"kwargs": {"a": math.nan}}), ("patch", {"kwargs": {"a": "\0"}}), ("patch", {"kwargs": {"a": "x" * 100_001}}),
        ("patch", {"args": [{"[redacted]": 1}]}), ("unknown", 1), ("patch", {"kwargs": {"a": nested(900)}}),
        ("patch", {"args": [nested(100_000)]}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_beside_its_field(field, value):
    refused = refusal(Options.parse, {field: value})
    assert (refused.code, refused.field) == ("bad_option", field)


def test_what_can_be_is_read():
    fields = {
        "attempts": "3",
        "to_queue": " slow ",
        "same_job_id": True,
        "patch": {"kwargs": {"a": None}},
        "accept": ["chord"],
    }
    assert Options.parse(fields) == Options(3, "slow", True, {"kwargs": {"a": None}}, ("chord",))
    assert Options.parse(None) == Options.parse({}) == Options.parse({"attempts": None}) == Options()


@pytest.mark.parametrize("options", [Options(), Options(3, "slow", True, {"args": []}, ("chord", "expired"))])
def test_a_row_keeps_them(options):
    assert Options.from_replay(Replay(**options.as_columns())) == replace(options, without_groups=())


@pytest.mark.django_db
def test_a_draft_keeps_them_and_names_a_queue_that_is_known(shop, bury):
    ids = bury(1)
    bury(1, queue="slow")
    draft = replays.draft(ANN, selection=ids, options=Options(attempts=3, to_queue="slow"))
    draft.refresh_from_db()
    assert Options.from_replay(draft) == Options(attempts=3, to_queue="slow", without_groups=())
    refused = refusal(replays.draft, ANN, selection=ids, options=Options(to_queue="slwo"))
    assert refused.field == "to_queue" and "slwo" in refused.message


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [Options(attempts="kept"), Options(to_queue="emails"), Options(same_job_id=True), Options(patch={"args": []})],
)
def test_what_a_source_cannot_do_is_refused(shop, bury, monkeypatch, options):
    monkeypatch.setattr(type(config.adapter("shop")), "can", Capabilities())
    assert refusal(replays.draft, ANN, selection=bury(1), options=options).code == "bad_option"
