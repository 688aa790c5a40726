"""A failure is found by its trace and by its Sentry event, on both databases."""

from __future__ import annotations

import json

import pytest

from jobs_admin import failures
from jobs_admin.ingest import indexing
from jobs_admin.models import terms
from tests.kit.people import ROOT
from tests.kit.reports import file, misindexed, report

TRACE, EVENT = "4bf92f3577b34da6a3ce929d0e0e4736", "0123456789abcdef" * 2
HEADERS = json.dumps({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})


def found_by(text: str) -> list[str]:
    return [row.job_id for row in failures.search(ROOT, text).rows]


@pytest.mark.databases
@pytest.mark.django_db
def test_a_failure_is_found_by_its_trace_also_after_the_index_is_rebuilt():
    file(
        report("j1", headers=HEADERS, event_id=EVENT),
        report("j2", headers=HEADERS.replace(TRACE, "f" * 32)),
        report("j3"),
    )
    assert found_by(TRACE) == found_by(TRACE.upper()) == found_by(f"{TRACE} {EVENT} queue:emails") == ["j1"]
    assert found_by(f"trace:{TRACE}") == found_by(f"00-{TRACE}-00f067aa0ba902b7-01") == ["j1"] and misindexed() == []
    # An id is no word of the error: a word that begins like it does not find the failure.
    assert found_by(f"{TRACE[:2]}*") == found_by(f"error:{TRACE}") == found_by(f"message:{EVENT}") == []
    indexing.mark_all_outdated()
    while indexing.step():
        pass
    assert misindexed() == [] and found_by("f" * 32) == ["j2"] and found_by(EVENT) == ["j1"]
    # Another attempt, in another trace: the failure is known by its latest.
    file(report("j1", attempt=2, headers=HEADERS.replace(TRACE, "e" * 32)))
    assert found_by("e" * 32) == ["j1"] and found_by(TRACE) == found_by(EVENT) == [] and misindexed() == []


@pytest.mark.databases
@pytest.mark.django_db
def test_the_index_is_written_again_for_another_trace_and_for_no_other_header(monkeypatch):
    written = []
    write = terms.write_failures
    monkeypatch.setattr(terms, "write_failures", lambda rows: (written.append(len(rows)), write(rows)))

    def attempt(number: int, trace: str) -> int:
        headers = json.dumps({"retries": number, "traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        written.clear()
        file(report("j1", attempt=number, headers=headers))
        return sum(written)

    assert [attempt(1, TRACE), attempt(2, TRACE), attempt(3, "e" * 32)] == [1, 0, 1]
    assert found_by("e" * 32) == ["j1"] and misindexed() == []
