"""A message that never became a job: what the pages say of it, and what can be done there."""

from __future__ import annotations

import hashlib

import pytest

from jobs_admin import config
from jobs_admin.failures import explanations
from jobs_admin.models import Failure, Payload
from jobs_admin.models.failure import Caveat
from tests.kit.failures import bury
from tests.kit.pages import text_of


def one(kind: str, raw: bytes = b"{}", state: str = "dead", **changes) -> Failure:
    (failure,) = bury(kind=kind, state=state, error_type="UnknownFormat", **changes)
    failure = Failure.objects.latest("pk")
    digest = hashlib.sha256(raw).hexdigest()
    body = config.payload_keys().encrypt(raw)
    Payload.objects.create(failure=failure, run=1, body=body, size=len(raw), sha256=digest, is_whole=True)
    return failure


@pytest.mark.parametrize("kind", explanations.UNREAD_KINDS)
def test_its_page_shows_what_happened_and_what_to_do(ann, watched, kind):
    failure = one(kind)
    text = text_of(ann.get(f"/failures/{failure.pk}/"))
    reported = explanations.explain_unread(failure)
    assert "Never ran" in text and reported.what in text and reported.to_do in text


@pytest.mark.parametrize(
    ("args", "message"),
    [("", "Arguments are not plain JSON and were not read."), ("[]", "No arguments.")],
)
def test_arguments_that_no_one_has_read_are_not_called_none(ann, watched, args, message):
    failure = one("exception", args=args, kwargs="")
    assert message in text_of(ann.get(f"/failures/{failure.pk}/"))


def test_messages_of_no_task_are_counted_in_the_quarantine_by_that(ann, watched):
    for n in range(3):
        one("undecodable", state="quarantined", task="" if n else "shop.read_scan")
    text = text_of(ann.get("/quarantine/"))
    assert "3 jobs: 2 without a known task shop.read_scan 1 View all as list" in text


def test_its_head_is_text_whatever_it_is(ann, watched):
    failure = one("undecodable", b"<script>alert(1)</script>\xe2\x80\xae password=hunter2", state="quarantined")
    answer = ann.get(f"/failures/{failure.pk}/").content.decode()
    assert "&lt;script&gt;alert(1)" in answer and "<script>alert(1)" not in answer
    assert "hunter2" not in answer and "\u202e" not in answer


def test_what_has_no_form_shows_that_it_cannot_be_sent(ann, watched):
    failure = one("undecodable", b"hello", caveats=Caveat.NO_FORM)
    answer = ann.get(f"/failures/{failure.pk}/")
    assert "cannot be given a new ID and replayed" in text_of(answer)
    assert f"/failures/{failure.pk}/replay/" not in answer.content.decode()


def test_the_quarantine_does_not_take_it_for_a_poison_pill(ann, watched):
    failure = one("bad_content", state="quarantined", task="")
    answer = ann.get("/quarantine/")
    text = text_of(answer)
    assert "UnknownFormat" in text and "The workers do not accept the content type" in text
    assert "crash" not in text.split("In quarantine")[1].split("Suspects")[0]
    ann.post(f"/quarantine/{failure.pk}/readmit/")
    assert Failure.objects.get().state == "dead"
