"""The message of a job's next attempt, whichever language wrote the first one."""

from __future__ import annotations

import json

import pytest

from jobs_admin.worker.next_message import NotCelerys, next_message

MESSAGE = (
    '{"body":"W10=","headers":{"lang":"js","task":"send","id":"j1","retries":0,"redelivered":true,"cost":1.50e3,'
    '"x-death":[{"count":1}],"name":"Zoë 😀"},\n "properties":{"delivery_tag":"t1","priority":3,'
    '"delivery_info":{"exchange":"","routing_key":"emails","redelivered":true}}}'
)


def test_it_differs_in_the_count_and_the_tag_and_what_the_broker_wrote_on_it():
    made = next_message(MESSAGE.encode(), 2).decode()
    tag = json.loads(made)["properties"]["delivery_tag"]
    assert len(tag) == 36
    assert made == (
        '{"body":"W10=","headers":{"lang":"js","task":"send","id":"j1","retries":2,"cost":1.50e3,'
        f'"name":"Zoë 😀"}},\n "properties":{{"delivery_tag":"{tag}","priority":3,'
        '"delivery_info":{"exchange":"","routing_key":"emails"}}}'
    )


def test_it_reports_what_was_waited_where_that_is_requested():
    assert json.loads(next_message(MESSAGE.encode(), 1, 2.34567))["headers"]["redrive_waited"] == 2.34567


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b'{"body": "{}"}', b'{"headers": {}}', b'{"headers": {"id": "j"}}', b"[" * 100_000]
)
def test_what_has_no_place_for_the_count_is_refused(raw):
    with pytest.raises(NotCelerys):
        next_message(raw, 1)
