"""The way a job is sent: with which attempts, id, queue, priority and arguments."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from jobs_admin import replays
from jobs_admin.models import Replay
from jobs_admin.replays.messages import Writer
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db

RAW = b'{"args": [1, 2], "kwargs": {"to": "ann", "token": "s3cret", "deep": {"a": 1, "b": 2}}, "retries": 2}'


@pytest.fixture
def send_one(shop, bury):
    """Send one job of a replay with these columns; answers the message in its queue, or why there is none."""

    def send(queue="emails", failure=None, **columns):
        replay = replays.start(ANN, replays.draft(ANN, selection=bury(raw=RAW, **(failure or {})), reason="fixed"))
        Replay.objects.filter(pk=replay.pk).update(**columns)
        for _ in range(50):
            if not replays.send("one"):
                break
        jobs = shop.queues[queue]
        return jobs[0] if jobs else replay.items.get().outcome

    return send


def test_attempts_start_again_unless_otherwise_reported(send_one):
    assert send_one()["retries"] == 0


def test_attempts_are_preserved(send_one):
    assert send_one(attempts="kept")["retries"] == 2


def test_a_number_of_attempts_is_what_the_job_has_left(send_one):
    assert send_one(attempts="3", failure={"max_attempts": 7})["retries"] == 4


def test_more_attempts_than_it_may_have_are_all_of_them(send_one):
    assert send_one(attempts="9", failure={"max_attempts": 7})["retries"] == 0


def test_a_number_of_attempts_is_refused_where_their_bound_is_not_known(send_one):
    assert send_one(attempts="3") == "its maximum attempts are unknown, so it cannot be given 3"


def test_a_job_goes_to_another_queue_and_its_name_stays(send_one):
    job = send_one(queue="slow", to_queue="slow")
    assert job["redrive"]["queue"] == "emails"


def test_a_job_keeps_its_id_on_request(send_one):
    job = send_one(same_job_id=True)
    assert job["id"] == job["redrive"]["job_id"] == job["redrive"]["sent_as"]


def test_a_new_id_is_the_same_for_every_try_and_is_beside_its_like(send_one):
    job = send_one()
    writer = Writer(Replay.objects.get())
    first, second = (uuid.UUID(writer.job_id(SimpleNamespace(n=n, source="shop"))) for n in (1, 2))
    assert (job["id"], first.version, first.variant) == (str(first), 8, uuid.RFC_4122)
    assert second.int == first.int + 1


def test_a_pace_s_priority_is_the_message_s(send_one):
    assert send_one(pace={"style": "at_once", "priority": 9})["priority"] == 9


def test_a_level_is_the_number_that_the_queue_system_has_for_it(send_one):
    assert send_one(pace={"style": "at_once", "priority": "high"})["priority"] == 3


def test_a_patch_is_applied_to_the_real_arguments(send_one):
    job = send_one(patch={"kwargs": {"to": "bob", "deep": {"a": None}}})
    assert job["kwargs"] == {"to": "bob", "token": "s3cret", "deep": {"b": 2}} and job["args"] == [1, 2]


def test_a_patch_of_args_takes_their_place(send_one):
    assert send_one(patch={"args": [7]})["args"] == [7]


def test_a_patch_never_sends_what_only_represents_something_hidden(send_one):
    assert "[redacted]" in send_one(patch={"kwargs": {"token": "[redacted]"}})
