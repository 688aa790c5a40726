"""Messages of SQS as they are read and sent again, and the settings of a source."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage, SourceRefused, SourceSettings
from jobs_admin.sources.sqs import messages, reports
from jobs_admin.sources.sqs.queues import DeadQueue
from jobs_admin.sources.sqs.settings import Settings

ARN = "arn:aws:sqs:eu-west-1:123456789012"
POINTER = ["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "large", "s3Key": "a/b"}]


def celery_body(args=(1,), content_type="application/json", is_encoded=True):
    """A message as kombu puts it into SQS."""
    body = base64.b64encode(json.dumps([list(args), {"to": "ann"}, {}]).encode()).decode()
    headers = {"lang": "py", "task": "shop.mail", "id": "c-1", "argsrepr": "(1,)", "retries": 0}
    properties = {"body_encoding": "base64", "correlation_id": "c-1", "delivery_info": {"routing_key": "emails"}}
    message = {"body": body, "content-encoding": "utf-8", "content-type": content_type, "headers": headers}
    text = json.dumps(message | {"properties": properties})
    return base64.b64encode(text.encode()).decode() if is_encoded else text


def received(body, attributes=None, **system):
    texts = {name: {"DataType": "String", "StringValue": value} for name, value in (attributes or {}).items()}
    return {"MessageId": "m-1", "ReceiptHandle": "h", "Body": body, "Attributes": system, "MessageAttributes": texts}


def report(message, of=("emails",), receives=3, is_aws=False):
    dead = DeadQueue("emails-dlq", of)
    one = messages.from_sdk(message, dead.name, reports.origin_of(message, dead, is_aws))
    return reports.build_envelope("shop", one, message, reports.lineage_of(one), receives, 9.0)


def outgoing(one, queue="emails", **changes):
    lineage = {"queue": "emails", "job_id": "m-1", "run": 2}
    return OutgoingMessage(7, one.raw, queue, "new-1", lineage, **changes)


@pytest.mark.parametrize(
    ("body", "attributes", "task", "args", "kwargs"),
    [
        ('{"n": 1}', {}, "", "[]", '{"n": 1}'),
        ('{"n": 1', {}, "", '["{\\"n\\": 1"]', ""),  # half of it
        ("\ufffd\x00é", {"task": "mail"}, "mail", r'["\ufffd\u0000\u00e9"]', ""),
        (celery_body(), {}, "shop.mail", "[1]", '{"to": "ann"}'),
        (celery_body(is_encoded=False), {}, "shop.mail", "[1]", '{"to": "ann"}'),
        (celery_body(content_type="application/x-python-serialize"), {}, "shop.mail", "", ""),  # a pickle stays closed
        (base64.b64encode(b"no message").decode(), {}, "", '["bm8gbWVzc2FnZQ=="]', ""),
        ("[" * 100_000, {}, "", None, ""),
        ('{"displayName": "App.Jobs.Mail", "job": "Illuminate"}', {}, "App.Jobs.Mail", None, None),
        ('{"Type": "Notification", "TopicArn": "arn:aws:sns:eu-west-1:1:orders"}', {}, "orders", None, None),
        (json.dumps(POINTER), {}, "", '[{"s3BucketName": "large", "s3Key": "a/b"}]', ""),
    ],
)
def test_the_task_and_arguments_of_a_body(body, attributes, task, args, kwargs):
    found = report(received(body, attributes))
    assert found.task == task and found.job_id == "m-1" and found.is_raw_complete
    assert args is None or found.args == args
    assert kwargs is None or found.kwargs == kwargs
    assert messages.unpack(found.raw).body == body


def test_the_error_is_what_sqs_stores_which_is_only_the_number_of_receives():
    times = {"SentTimestamp": "1795000000000", "ApproximateFirstReceiveTimestamp": "1795000009000"}
    found = report(received("{}", DeadLetterQueueSourceArn=f"{ARN}:orders", **times))
    assert (found.queue, found.attempt, found.max_attempts, found.at) == ("orders", 3, 3, 1795000009.0)
    assert (
        found.message == "SQS moved the message to emails-dlq after 3 receives without a delete. SQS stores no error."
    )
    unknown = report(received("{}"), of=("emails", "orders"), receives=None)
    assert (unknown.queue, unknown.error_type, unknown.at) == ("emails-dlq", "Unexplained", 9.0)
    sent_there = report(received("{}"), receives=None, is_aws=True)  # by SNS, or a consumer: AWS names no source queue
    assert (sent_there.queue, messages.unpack(sent_there.raw).queue) == ("emails-dlq", "")
    assert "Its body is in S3" in report(received(json.dumps(POINTER))).message


def test_an_error_in_attributes_is_shown():
    found = report(received("{}", {"ErrorMessage": "no such box", "error-type": "SMTPError"}))
    assert (found.error_type, found.message) == ("SMTPError", "no such box")


def test_a_replay_omits_error_attributes_unless_a_redrive_policy_moved_the_message():
    attributes = {"tenant": "acme", "error": "E1", "ErrorCode": "3"}
    for system, names in (({}, {"tenant"}), ({"DeadLetterQueueSourceArn": f"{ARN}:emails"}, set(attributes))):
        entry = messages.build_entry("shop", outgoing(report(received("{}", attributes, **system))), reports.STRIPPED)
        assert set(entry["MessageAttributes"]) == names | {"redrive"}


def test_edited_arguments_go_into_the_body_of_their_producer():
    plain, celery, in_s3 = (report(received(one)) for one in ('{"n": 1}', celery_body(), json.dumps(POINTER)))
    entry = messages.build_entry("shop", outgoing(plain, kwargs={"n": 2}), frozenset())
    assert entry["MessageBody"] == '{"n": 2}'
    entry = messages.build_entry("shop", outgoing(celery, args=[2]), frozenset())
    assert messages.arguments(entry["MessageBody"]) == ([2], {"to": "ann"})
    assert not entry["MessageBody"].startswith("{")  # in base64, as it came
    with pytest.raises(SourceRefused, match=r"in S3 \(s3://large/a/b\)"):
        messages.build_entry("shop", outgoing(in_s3, args=[1]), frozenset())
    assert messages.build_entry("shop", outgoing(in_s3), frozenset())["MessageBody"] == json.dumps(POINTER)


def test_a_replay_is_recognised_by_its_attribute_and_body_unless_there_is_no_room():
    entry = messages.build_entry("shop", outgoing(report(received("{}"))), frozenset())
    mark = entry["MessageAttributes"]["redrive"]["StringValue"]
    assert report(received("{}", {"redrive": mark})).job_id == "new-1"
    assert report(received("[]", {"redrive": mark})).lineage is None  # a consumer gave it to another message
    full = report(received("{}", {f"a{n}": "x" for n in range(10)}))
    assert "redrive" not in messages.build_entry("shop", outgoing(full), frozenset())["MessageAttributes"]
    large = messages.size_of(entry)
    for largest, marks in ((large, {"redrive"}), (large - 1, set())):
        entry = messages.build_entry("shop", outgoing(report(received("{}"))), frozenset(), largest)
        assert set(entry["MessageAttributes"]) == marks


@pytest.mark.parametrize(
    ("url", "queues", "options", "message"),
    [
        ("redis://a", ["a"], {}, "its URL must be sqs:// and a region"),
        ("sqs://key:secret@eu-west-1", ["a"], {}, "Credentials come from"),
        ("sqs://eu-west-1", [], {}, "does not select queues automatically"),
        ("sqs://eu-west-1", ["https://sqs.eu-west-1.amazonaws.com/1/a"], {}, "not of URLs"),
        ("sqs://eu-west-1", ["a"], {"mode": "peek"}, "unknown option 'mode'"),
        ("sqs://eu-west-1", ["a"], {"prefix": "https://a"}, "prefix must be the start of queue names"),
        ("sqs://eu-west-1", ["a"], {"read_only": "yes"}, "true or false"),
        ("sqs://eu-west-1", ["a"], {"every_s": 0}, "1 to 3600"),
        ("sqs://eu-west-1", ["a"], {"endpoint_url": "http://ann:secret@host"}, "without a login"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(url, queues, options, message):
    with pytest.raises(SourceRefused, match=message) as refused:
        connect("shop", "sqs", url, queues, options)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint_url", "is_aws"),
    [("", True), ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com", True), ("http://localhost:4566", False)],
)
def test_an_endpoint_of_aws_is_known_from_an_emulator(endpoint_url, is_aws):
    given = SourceSettings("shop", "sqs://eu-west-1", ("a",), {"endpoint_url": endpoint_url})
    assert Settings.from_source(given).is_aws == is_aws


def test_the_sdk_is_loaded_by_the_first_call_and_not_before():
    script = """
import sys
from jobs_admin.sources import connect
source = connect("shop", "sqs", "sqs://eu-west-1", ["emails"])
assert not {"boto3", "botocore"} & set(sys.modules)
sys.modules["boto3"] = None  # as where it is not installed
try:
    source.depths()
except Exception as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    command = "python3 -m pip --python .venv/bin/python install -r requirements-sqs.txt"  # in a checkout
    assert shown == f"Source shop: boto3 is not installed: run `{command}`.\n"
    assert command in (Path(__file__).parents[2] / "docs/sources/sqs.md").read_text()
