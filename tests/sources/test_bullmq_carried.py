"""Jobs that carry another one: the forms in which people keep dead letters of BullMQ, as bytes."""

from __future__ import annotations

import json
import time
from itertools import product

import pytest

from jobs_admin.sources.bullmq import job_hash as bullmq_job_hash
from jobs_admin.sources.bullmq.carried import find_carried
from tests.kit.cases import with_cases

STACK = "PartnerRefused: order {n}\n    at deliver (/srv/hooks.js:4:2)"
# As a listener writes it (tests/node/forwarders).
OF_QUEUE = {
    "originalQueue": "webhooks",
    "originalJobId": "7",
    "originalJobName": "deliver",
    "originalData": {"order": 1},
    "originalOptions": {
        "attempts": 2,
        "priority": 3,
        "failParentOnFailure": True,
        "parent": {"id": "9", "queue": "bull:orders"},
    },
    "failureReason": "order 2",
    "failureStack": "\n".join(STACK.format(n=n) for n in (1, 2)),
    "attemptsMade": 2,
    "failedAt": "2026-11-22T14:54:00.211Z",
}
# As PoisonPillDetector.quarantine writes it.
PILL = {
    "originalQueue": "webhooks",
    "originalJobId": "7",
    "originalData": {"order": 1},
    "poisonPillRecord": {
        "jobId": "7", "crashCount": 3, "firstCrashAt": "2026-11-22T14:54:00.000Z", "lastCrashAt": "2026-11-22T14:55:00.000Z",
    },
    "quarantinedAt": "2026-11-22T14:55:00.100Z",
}  # fmt: skip
# As decision 0003 writes `job.asJSON()` of BullMQ 5: what is text in it, is.
AS_JSON = {
    "originalJob": {
        "id": "7",
        "name": "sync",
        "data": '{"unit": 12345678901234567890, "at": 1.0}',
        "opts": {"attempts": 2, "fpof": True},
        "progress": 0,
        "attemptsMade": 2,
        "attemptsStarted": 2,
        "stalledCounter": 0,
        "finishedOn": 1795359240191,
        "processedOn": 1795359240189,
        "timestamp": 1795359240188,
        "failedReason": '"order 2"',
        "stacktrace": json.dumps([STACK.format(n=n) for n in (1, 2)]),
        "returnvalue": "null",
    },
    "error": "order 2",
    "failedAt": "2026-11-22T14:54:00.192Z",
}


def carried_report(copy):
    one = find_carried(json.dumps(copy).encode())
    return one, bullmq_job_hash.build_report("shop", one.queue or "?", one.job_id, one.fields, 6, crashes=one.crashes)


def test_a_copy_that_names_its_queue_reports_what_the_job_itself_would():
    one, report = carried_report(OF_QUEUE)
    assert (one.queue, one.job_id, report.task, report.kwargs) == ("webhooks", "7", "deliver", '{"order": 1}')
    assert (report.kind, report.attempt, report.max_attempts, report.priority) == ("exception", 2, 2, 3)
    assert (report.error_type, report.message, report.trace) == ("PartnerRefused", "order 2", STACK.format(n=2))
    assert report.at == 1795359240.211
    headers = json.loads(report.headers)
    assert headers["opts"]["failParentOnFailure"] and headers["parent"] == {"queue": "orders", "id": "9"}
    assert json.loads(one.fields[b"opts"])["fpof"]  # as a hash has it


def test_a_pill_is_reported_by_its_crashes():
    one, report = carried_report(PILL)
    assert (report.kind, report.attempt, b"name" in one.fields) == ("worker_lost", 3, False)
    times = [crash["seen_at"] for crash in json.loads(report.crashes)]
    assert times == [1795359240.0, None, 1795359300.0]


def test_a_job_as_json_is_reported_in_full_but_for_its_queue():
    one, report = carried_report(AS_JSON)
    assert (one.queue, one.job_id, report.task) == (None, "7", "sync")
    assert (report.attempt, report.error_type, report.message, report.duration_s) == (
        2,
        "PartnerRefused",
        "order 2",
        0.002,
    )
    assert one.fields[b"timestamp"] == b"1795359240188" and report.trace == STACK.format(n=2)


def test_data_goes_back_as_it_was_written_digit_by_digit():
    assert carried_report(AS_JSON)[0].fields[b"data"] == b'{"unit": 12345678901234567890, "at": 1.0}'
    written = b'{"a": 1.50, "b": 12345678901234567890, "c": "\\ud83d", "__proto__": {"x": []}}'
    copy = b'{"originalQueue":"q","originalData": %s , "originalJobId":"1","failedAt":"x"}' % written
    assert find_carried(copy).fields[b"data"] == written


@pytest.mark.parametrize(
    "data", [b"[" * 50_000 + b"]" * 50_000, b'"' + b'\\"' * 500_000 + b'"', b"[" + b"1," * 500_000 + b"1]"]
)
def test_data_however_deep_or_long_is_passed_over_at_once(data):
    copy = b'{"originalQueue":"q","originalJobId":"1","failedAt":"x","originalData":%s}' % data
    begun = time.process_time()
    one = find_carried(copy)
    report = bullmq_job_hash.build_report("shop", "q", "1", one.fields, 6)
    assert one.fields[b"data"] == data and time.process_time() - begun < 5
    assert bullmq_job_hash.unpack(report.raw).fields[b"data"] == data


@with_cases(
    "name, hostile",
    product(
        [*OF_QUEUE, "poisonPillRecord"],
        [None, True, -1, 1e308, 10**400, "", "\ud800", [], {}, [[]], {"id": {}}, "x" * 10_000],
    ),
)
def test_whatever_is_in_a_copy_nothing_breaks(name, hostile):
    one = find_carried(json.dumps(OF_QUEUE | {name: hostile}).encode())
    if one is not None:
        assert (
            bullmq_job_hash.build_report(
                "shop", one.queue or "?", one.job_id, one.fields, 6, crashes=one.crashes
            ).attempt
            >= 1
        )


@with_cases(
    "name, hostile",
    product(AS_JSON["originalJob"], [None, True, -1, 10**400, "", "\ud800", [], {}, {"id": {}}]),
)
def test_whatever_is_in_a_job_as_json_nothing_breaks(name, hostile):
    one = find_carried(json.dumps(AS_JSON | {"originalJob": AS_JSON["originalJob"] | {name: hostile}}).encode())
    if one is not None:
        assert bullmq_job_hash.build_report("shop", one.queue or "?", one.job_id, one.fields, 6).attempt >= 1


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"{}", b'{"a": 1}', b'["originalData"]', b'{"originalData": 1}', b'{"originalJob": "7", "error": "x"}',
        b'{"originalData": {}, "originalQueue": "q"}', b'{"originalJob": {"id": "7"}, "error": ""}', b'{"originalData": ',
        b'{"originalData" 1}', b'{"originalData": "\xff"}', b'{"originalQueue":"q","originalJobId":"1","originalData":{}}',
    ],
)  # fmt: skip
def test_other_jobs_carry_none(data):
    assert find_carried(data) is None
