"""Messages that never became a job: where they wait, who is like them, and which can be sent again."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pytest

from jobs_admin import config, ingest, replays
from jobs_admin.core.envelope import UNREAD, Envelope, encode
from jobs_admin.failures import contents, triage
from jobs_admin.models import Failure, Group
from jobs_admin.models.failure import Caveat
from tests.kit.garbage import CORPUS, element
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def find_sound() -> set[str]:
    """Return what of the corpus can be given a new id: headers that name a task, and a place for properties."""
    return {
        name
        for name, (make, _) in CORPUS.items()
        if isinstance(made := make(0), dict)
        and isinstance(made.get("headers"), dict)
        and made["headers"].get("task")
        and isinstance(made.get("properties"), dict)
        and "body" in made
    }


@pytest.fixture(autouse=True)
def shop(settings):
    settings.REDRIVE = settings.REDRIVE | {
        "DEMO_BROKER_URL": "redis://127.0.0.1:1/0"
    }  # the source `shop`; nobody asks it
    forget_configuration(config)
    yield
    forget_configuration(config)


def build_envelope(n: int, kind: str, raw: bytes | None = None, **fields) -> Envelope:
    raw = json.dumps({"n": n}).encode() if raw is None else raw
    details = {"raw": raw, "raw_size": len(raw), "raw_sha256": hashlib.sha256(raw).hexdigest()}
    values = {"source": "shop", "queue": "emails", "task": "t", "job_id": f"j{n}", "kind": kind, "attempt": 1}
    return Envelope(**{**values, "at": NOW.timestamp(), **details, **fields})


def filed(*reports: Envelope) -> list[Failure]:
    ingest.file([(b"%d-1" % n, encode(one)) for n, one in enumerate(reports, 1)], NOW)
    return list(Failure.objects.order_by("pk"))


@pytest.mark.parametrize(
    ("kind", "state"),
    [("unknown_task", "dead"), ("expired", "dead"), *((kind, "quarantined") for kind in sorted(UNREAD))],
)
def test_what_could_not_be_read_waits_in_quarantine_and_what_was_only_not_run_is_dead(kind, state):
    (failure,) = filed(build_envelope(1, kind))
    assert (failure.state, failure.kind, failure.crashes) == (state, kind, None)


def test_garbage_is_stored_readmitted_and_only_what_has_a_form_can_be_sent():
    garbage = {name: element(name, n) for n, name in enumerate(CORPUS) if CORPUS[name][1] in UNREAD}
    failures = filed(*(build_envelope(n, CORPUS[name][1], raw) for n, (name, raw) in enumerate(garbage.items())))
    without_form = {name for name, one in zip(garbage, failures, strict=True) if (one.caveats or 0) & Caveat.NO_FORM}
    assert without_form == set(garbage) - find_sound()
    assert [contents.opened(one.payloads.get()) for one in failures] == list(garbage.values())
    assert {one.state for one in failures} == {"quarantined"}
    triage.readmit(ANN, selection=[one.pk for one in failures], reason="whose are they?")
    seen = replays.preview(ANN, query="")
    assert {row["code"]: row["count"] for row in seen.blocked} == {"no_form": len(without_form)}
    assert seen.replayable == len(garbage) - len(without_form)
    triage.discard(ANN, selection=[one.pk for one in failures], reason="nobody's")
    assert set(Failure.objects.values_list("state", flat=True)) == {"discarded"}


def test_one_group_for_each_task_content_type_and_fault_however_many_messages():
    refused = "Refusing to deserialize untrusted content of type {}"
    filed(
        *(build_envelope(n, "unknown_task", message=f"No task of this worker is called {name}.", error_type="NotRegistered")
          for n, name in enumerate(["shop.a", "shop.a", "shop.b"])),
        *(build_envelope(10 + n, "bad_content", message=refused.format(name), error_type="ContentDisallowed")
          for n, name in enumerate(["pickle", "pickle", "yaml"])),
        *(build_envelope(20 + n, "undecodable", message=f"Expecting value: line {n} column 1 (char {n})", error_type="DecodeError")
          for n in range(3)),
        *(build_envelope(30 + n, "expired", error_type="TaskRevokedError",
               message=f"shop.{name} expired {n}.5 s before a worker came to it, at 2026-11-2{n}T10:00:00+00:00; it never ran")
          for n, name in enumerate(["a", "a", "b"])),
    )  # fmt: skip
    assert Group.objects.count() == 2 + 2 + 1 + 2
    assert sorted(Group.objects.values_list("failures__kind", flat=True)) == sorted(
        ["unknown_task"] * 3 + ["bad_content"] * 3 + ["undecodable"] * 3 + ["expired"] * 3
    )


def test_the_head_of_a_message_is_shown_without_its_secrets_and_without_its_body():
    fields = {"headers": {"task": "t", "password": "hunter2"}, "properties": {}, "body": "aHVudGVyMg=="}
    json_, text, binary, large = filed(
        build_envelope(1, "unknown_format", json.dumps(fields).encode()),
        build_envelope(2, "undecodable", b"password=hunter2 <b>\x00"),
        build_envelope(3, "undecodable", b"\xff\xfe Bearer abcdef1234567890"),
        build_envelope(4, "undecodable", b"x" * 3_000_000),
    )
    assert "hunter2" not in contents.head(json_) and "aHVudGVyMg" not in contents.head(json_)
    assert '"task": "t"' in contents.head(json_) and '"body": "… 12 …"' in contents.head(json_)
    assert contents.head(text).startswith("password=[redacted] <b>")
    assert contents.head(binary).startswith("\\xff\\xfe Bearer [redacted]")
    assert contents.head(large) == ""
