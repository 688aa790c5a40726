"""Whatever stands in an entry, reading it gives a report or names it unreadable: nothing else, for any field."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from itertools import product

import pytest

from jobs_admin import ingest
from jobs_admin.core.envelope import _META, Unreadable
from jobs_admin.ingest.report import NotOurs, parse_report
from jobs_admin.models import Failure, Unfiled

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LEAST = {
    "source": '"s"', "queue": '"q"', "task": '"t"', "job_id": '"j"', "kind": '"exception"', "attempt": "1",
    "at": "1.7e9", "error_type": '"E"', "message": '"m"',
}  # fmt: skip
MANY = "9" * 400
VALUES = [
    "Infinity", "-Infinity", "NaN", "1e999", MANY, f"-{MANY}", f'"{MANY}"', "9" * 5000, "null", "true", "[]", "{}",
    '"x"', "[[1]]", '""', "-1", "0", "1e300", "-1e308", '{"a":Infinity}', r'["\ud800"]', r'"\ud800"', r'"\u0000"',
    '{"queue":"q","job_id":"j","run":2,"item":Infinity}', '{"queue":"q","job_id":"j","run":Infinity}',
    '{"queue":"q","job_id":"j","run":NaN}', f'{{"queue":"q","job_id":"j","run":{MANY},"item":-{MANY}}}',
]  # fmt: skip


def entry(**fields):
    meta = "{" + ",".join(f'"{name}":{value}' for name, value in {**LEAST, **fields}.items()) + "}"
    return {b"v": b"1", b"meta": meta.encode(), b"trace": b"x"}


def outcome(**fields):
    try:
        return parse_report(b"1-1", entry(**fields), NOW, lambda raw: raw)
    except (NotOurs, Unreadable) as error:
        return error


@pytest.mark.parametrize("kind", ["exception", "retry", "success"])
@pytest.mark.parametrize("field", [*_META, "lineage"])
def test_no_value_of_any_field_stops_the_reader(field, kind):
    due = {"due_at": "1.8e9"} if kind == "retry" else {}
    for value in VALUES:
        result = outcome(**{"kind": json.dumps(kind), **due, field: value})
        if isinstance(result, Exception):
            continue
        numbers = [result.delay_s, result.duration_s, result.priority, result.max_attempts, result.item]
        assert all(n is None or math.isfinite(n) for n in numbers)
        assert max(result.run, result.attempt, result.redacted, result.raw_size) < 2**31


def test_a_number_beyond_any_column_is_left_out_and_the_rest_is_filed():
    result = outcome(
        priority=MANY, duration_s=MANY, max_attempts="Infinity", lineage='{"queue":"q","job_id":"j","run":NaN}'
    )
    assert (result.priority, result.duration_s, result.max_attempts, result.run, result.job_id) == (
        None,
        None,
        None,
        1,
        "j",
    )


@pytest.mark.parametrize(("item", "stored"), [(2**63 - 1, 2**63 - 1), (2**63, None), (0, None)])
def test_the_item_of_a_replay_is_a_number_that_its_column_holds(item, stored):
    assert outcome(lineage=f'{{"queue":"q","job_id":"j","run":2,"item":{item}}}').item == stored


@pytest.mark.django_db
def test_every_value_of_every_field_is_filed_or_stored_raw():
    entries = [
        {"job_id": f'"{n}"', field: value} for n, (field, value) in enumerate(product([*_META, "lineage"], VALUES))
    ]
    batch = [(f"{n}-1".encode(), entry(**one)) for n, one in enumerate(entries)] + [(b"9999-1", entry(job_id='"last"'))]
    filed = ingest.file(batch, NOW)
    assert Failure.objects.filter(job_id="last").exists()
    assert filed.unfiled == Unfiled.objects.count() < len(batch) / 2
    assert not Unfiled.objects.filter(why__startswith="reading it failed").exists()
