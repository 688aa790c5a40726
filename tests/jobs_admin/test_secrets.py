"""Secrets of 249 kinds, and as libraries write them, in arguments, names, headers, messages, causes and lines of source: through a real worker, to every sink.

What holds them is the raw message, which a replay sends: in the stream until it is filed, then encrypted. Nothing else may.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import re
from datetime import timedelta

import pytest
import redis
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from dashboard.setup.engine import Engine
from jobs_admin import config, ingest
from jobs_admin.alerts import judging
from jobs_admin.core import keys
from jobs_admin.core.envelope import decode
from jobs_admin.failures import contents
from jobs_admin.management.commands.token import create
from jobs_admin.models import Failure, Rule
from tests.kit.hostile import HostileWorker
from tests.kit.known_secrets import FIELDS, SECRETS, build_text, field_value
from tests.kit.people import log_in
from tests.kit.sources import forget_configuration
from tests.kit.unseen_secrets import UNSEEN, secrets_in, unmarked

pytestmark = [pytest.mark.server, pytest.mark.django_db]

IN_SOURCE = build_text("in a line of source", 20)
A_JOB = 10  # secrets in one


def needles() -> dict[bytes, str]:
    """The text that must not be read, in lower case (search keeps words so), and of what kind it is."""
    found = {}
    for kind, part in itertools.chain(
        ((secret.kind, part) for secret in SECRETS for part in secret.parts),
        ((f"field {kind}", field_value(kind)) for kind in FIELDS),
        # A short one stands everywhere by chance: `test_redaction` has it.
        ((f"as written: {part}", part) for _, value in UNSEEN for part in secrets_in(value) if len(part) >= 6),
        [("line of source", IN_SOURCE)],
    ):
        # Also each long word of it: an index parts them.
        for word in {part, *re.findall(r"[A-Za-z0-9]{12,}", part)}:
            found[word.lower().encode()] = kind
            found[json.dumps(word)[1:-1].lower().encode()] = kind
    return found


NEEDLES = needles()


def leaks(text: str | bytes) -> set[str]:
    lower = (text.encode("utf-8", "backslashreplace") if isinstance(text, str) else bytes(text)).lower()
    return {kind for needle, kind in NEEDLES.items() if needle in lower}


def jobs() -> list[dict]:
    """The jobs that are sent: several secrets a job, each in its arguments, as a name, in headers, in what it says and in its cause."""
    found = []
    for some in _batched(SECRETS, A_JOB):
        texts = [secret.text for secret in some]
        lines = "\n".join(f"it failed with {text} and gave up" for text in texts)
        found.append({"args": texts, "kwargs": {"deep": [{"note": [{"in": texts}]}], "names": dict.fromkeys(texts, 1),
                      "text": lines, "because": lines, "tenant": texts[0]}, "headers": {"x-note": texts, "x": {"y": texts[0]}}})  # fmt: skip
    for kinds in _batched(list(FIELDS), A_JOB):
        fields = [FIELDS[kind] for kind in kinds]
        lines = "\n".join(f"called with {field!r}, {json.dumps(field, ensure_ascii=False)}" for field in fields)
        found.append({"args": fields, "kwargs": {"deep": fields, "text": lines, "because": lines, **fields[0]},
                      "headers": {"x-fields": fields, **fields[1]}})  # fmt: skip
    for some in _batched([unmarked(value) for _, value in UNSEEN], A_JOB):
        texts = [value if isinstance(value, str) else repr(value) for value in some]
        lines = "\n".join(f"it failed with {text} and gave up" for text in texts)
        found.append({"args": some, "kwargs": {"deep": [{"note": some}, {"written": texts}], "text": lines, "because": lines},
                      "headers": {"x-note": some, "x": {"y": texts}}})  # fmt: skip
    return found


def _batched(all_: object, size: int) -> list[list]:
    waiting = list(all_)
    return [waiting[n : n + size] for n in range(0, len(waiting), size)]


@pytest.fixture(scope="module")
def broken_shop(tmp_path_factory):
    """The store's entries, the elements that were sent, and the worker's log, in which Celery itself says nothing of errors."""
    folder = tmp_path_factory.mktemp("secrets")
    broker, store = Engine(folder / "broker").start(), Engine(folder / "store").start()
    worker = HostileWorker(broker.url, store.url, name="w", environment={"HOSTILE_QUIET": "1"})
    worker.store = store
    sent = {}
    try:
        source = folder / "source.py"
        source.write_text(
            f"def connect(password='{IN_SOURCE}'):\n    raise ValueError('refused')\nconnect(password='{IN_SOURCE}')\n"
        )
        with redis.Redis.from_url(broker.url) as client:
            for job in jobs():
                id_ = worker.send("tells", *job["args"], kwargs=job["kwargs"], headers=job["headers"], queue="held")
                sent[id_] = client.lindex("held", 0)
            id_ = worker.send("tells_source", str(source), queue="held")
            sent[id_] = client.lindex("held", 0)
            worker.start()
            client.rename("held", "celery")
            with redis.Redis.from_url(store.url) as reports:

                def reported_ids():
                    return {decode(fields).job_id for _, fields in reports.xrange(keys.failures("shop"))}

                worker.wait(lambda: reported_ids() == sent.keys(), what="all reports")
                worker.wait(lambda: reports.hgetall(keys.workers("shop")), what="a heartbeat")
                worker.entries = reports.xrange(keys.failures("shop"))
        worker.sent = sent
        yield worker
    finally:
        worker.kill()
        broker.stop()
        store.stop()


@pytest.fixture
def desk(broken_shop, settings):
    """The desk of that store, with all of it filed."""
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": broken_shop.store.url}
    settings.REDRIVE = settings.REDRIVE | {
        "DEMO_BROKER_URL": broken_shop.broker_url,
        "CELERY_BROKER_URL": "",
        "SOURCES": "",
    }
    forget_configuration(config)
    ingest.file(broken_shop.entries)
    yield broken_shop
    forget_configuration(config)


def test_a_report_holds_them_in_the_raw_message_alone(broken_shop):
    assert leaks(base64.b64decode(json.loads(decode(broken_shop.entries[0][1]).raw)["body"]))
    for _, fields in broken_shop.entries:
        assert leaks(b" ".join(value for name, value in fields.items() if name != b"raw")) == set()
        assert decode(fields).raw == broken_shop.sent[decode(fields).job_id]


def test_the_workers_log_has_none_by_us(broken_shop):
    assert "Redrive" in broken_shop.text() and "ready" in broken_shop.text()
    assert leaks(broken_shop.text()) == set()


def test_no_table_no_index_and_no_byte_of_the_database_has_one(desk, caplog):
    Rule.objects.create(name="any", metric="dead", threshold=0, for_s=0, severity="warning")
    now = timezone.now()
    judging.judge(now)
    judging.judge(now + timedelta(seconds=5))
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608  (names from the database itself)
            for row in cursor.fetchall():
                assert (
                    leaks(" ".join(str(value) for value in row if not isinstance(value, bytes | memoryview))) == set()
                ), table
    if connection.vendor == "sqlite":
        assert leaks(connection.connection.serialize()) == set()
    assert Failure.objects.count() == len(desk.sent)
    assert leaks(caplog.text) == set()


def test_what_is_replayed_is_what_was_sent(desk):
    for failure in Failure.objects.all():
        assert contents.opened(failure.payloads.get()) == desk.sent[failure.first_job_id]


@pytest.mark.long("Reports secrets through a worker and reads every page, answer and file.")
def test_no_page_no_answer_and_no_file_has_one(desk, django_user_model, caplog):
    caplog.set_level(logging.DEBUG)
    browser = log_in(django_user_model, "ann", every="admin")
    key = {"Authorization": f"Bearer {create('reader', 'admin')}"}
    shown = {}

    def see(name, *args, **query):
        answer = browser.get(reverse(name if name.startswith("admin:") else f"redrive:{name}", args=args), query)
        assert answer.status_code in {200, 302, 404, 409}, (name, args, answer.status_code)
        shown[name, args] = answer.content

    def read(path):
        answer = browser.get(path, headers=key)
        assert answer.status_code == 200, (path, answer.content[:200])
        return answer.content

    for failure in Failure.objects.select_related("group"):
        for name in ("failure-detail", "failure-opened", "failure-attempts", "failure-related", "failure-edit"):
            see(name, failure.pk)
        for part in ("args", "kwargs", "headers"):
            see("failure-opened", failure.pk, at=part)
        for form in ("python", "json", "traceback"):
            see("failure-text", failure.pk, form)
        see("admin:jobs_admin_failure_change", failure.pk)
        for name in ("group-detail", "group-story", "group-why"):
            see(name, failure.group.fingerprint)
        shown["api", failure.pk] = read(f"/api/failures/{failure.pk}")
    for name in ("overview", "failure-list", "failure-facets", "group-list", "quarantine-list", "queue-list", "incident",
                 "audit-list", "alert-list", "delivery-list", "replay-list", "admin:jobs_admin_failure_changelist",
                 "admin:jobs_admin_group_changelist"):  # fmt: skip
        see(name)
    for form in ("markdown", "json"):
        see("incident-text", form)
    for words in ("kwargs.password:", "tenant:", "message:", "args.0:"):
        see("failure-complete", q=words)
    see("replay-new", q="state:any")
    for path in ("failures?q=state:any", "groups", "queues", "audit", "incident", "alerts"):
        shown["api", path] = read(f"/api/{path}")
    for form in ("jsonl", "csv"):
        answer = browser.post(reverse("redrive:failure-export", args=[form]), {"q": "state:any"})
        shown["export", form] = b"".join(answer.streaming_content)
    shown["metrics"] = read("/metrics")
    assert {where: leaks(text) for where, text in shown.items() if leaks(text)} == {}
    assert leaks(caplog.text) == set()


def test_nothing_of_them_is_left_in_redis_once_they_are_filed(broken_shop, settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": broken_shop.store.url}
    forget_configuration(config)
    with redis.Redis.from_url(broken_shop.store.url) as client:
        for _ in range(200):
            if not ingest.step("test") and not client.xlen(keys.failures("shop")):
                break
        assert client.xlen(keys.failures("shop")) == 0
        read = {b"string": client.get, b"hash": client.hgetall, b"set": client.smembers,
                b"zset": lambda key: client.zrange(key, 0, -1, withscores=True), b"list": lambda key: client.lrange(key, 0, -1),
                b"stream": client.xrange}  # fmt: skip
        values = {key: repr(read[client.type(key)](key)) for key in client.scan_iter()}
    assert values and {key: leaks(value) for key, value in values.items() if leaks(value)} == {}
