"""Deliveries that are a second copy of a replayed job. Requests are played; the store is real."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.next_message import next_message
from jobs_admin.worker.once import Once
from tests.kit.patience import patient

pytestmark = pytest.mark.server

REDRIVE = {
    "queue": "emails",
    "job_id": "first",
    "run": 2,
    "item": 7,
    "replay": "r" * 32,
    "once": True,
    "sent_as": "new-7",
}
OLDER = {name: value for name, value in REDRIVE.items() if name != "sent_as"}


def delivery(redrive=REDRIVE, retries=0, redelivered=False, job_id="new-7", **headers):
    return SimpleNamespace(
        id=job_id,
        request_dict={"redrive": redrive, "retries": retries, **headers},
        delivery_info={"redelivered": redelivered},
    )


@pytest.fixture
def client(engine):
    with redis.Redis.from_url(engine.url) as found:
        found.flushall()
        yield found


@pytest.fixture
def worker(engine, client):
    """Makes workers, each with its own connection."""
    return lambda: Once(patient(engine.url), "shop", "boot")


def test_the_second_copy_is_not_run_whoever_gets_it(worker):
    one, other = worker(), worker()
    assert [w.is_repeated(delivery()) for w in (one, one, other)] == [False, True, True]
    assert (one.repeated, other.repeated, one.unasked) == (1, 1, 0)


def test_what_the_broker_delivers_again_runs_again(worker):
    """A worker died before it acknowledged, or let go of the job: no one else runs it."""
    one, other = worker(), worker()
    assert not one.is_repeated(delivery())
    assert not other.is_repeated(delivery(redelivered=True))
    assert not other.is_repeated(delivery(redelivered=True))


def test_a_first_start_that_was_delivered_again_counts_as_one(worker):
    one = worker()
    assert not one.is_repeated(delivery(redelivered=True))
    assert one.is_repeated(delivery())


def test_what_went_round_through_a_dead_letter_exchange_runs_again(worker):
    one = worker()
    assert not one.is_repeated(delivery())
    assert not one.is_repeated(delivery(**{"x-death": [{"count": 1}]}))


def test_celery_s_own_retry_runs_and_a_copy_of_an_attempt_before_it_does_not(worker):
    one = worker()
    assert [one.is_repeated(delivery(retries=n)) for n in (0, 1, 2, 0, 1)] == [False, False, False, True, True]


def test_what_stored_its_retries_runs(worker):
    assert not worker().is_repeated(delivery(retries=3))


def test_what_a_policy_puts_off_or_tries_again_queries_no_more(worker, client):
    """A job that only waited for a place comes back as the same attempt."""
    one = worker()
    assert not one.is_repeated(delivery())
    record = json.loads(
        next_message(json.dumps({"headers": {"task": "t", "redrive": REDRIVE}, "properties": {}}).encode(), 0)
    )
    again = record["headers"]["redrive"]
    assert again == {name: value for name, value in REDRIVE.items() if name != "once"}
    assert not one.is_repeated(delivery(again)) and not one.is_repeated(delivery(again))


def test_a_job_that_was_handed_the_headers_runs_and_queries_no_one(worker, client):
    one = worker()
    assert not one.is_repeated(delivery()) and not one.is_repeated(delivery(job_id="child"))
    assert len(client.keys("*")) == 1 and one.is_repeated(delivery())


def test_it_runs_also_where_the_desk_did_not_report_whose_the_header_is(worker):
    one = worker()
    assert [one.is_repeated(delivery(OLDER, job_id=name)) for name in ("new-7", "child", "new-7")] == [
        False, False, True
    ]  # fmt: skip


def test_what_takes_a_task_s_place_is_no_copy_of_it_and_has_copies_of_its_own(worker):
    one = worker()
    nestings = ({}, {"replaced_task_nesting": 1}, {"replaced_task_nesting": 2}, {"replaced_task_nesting": 1}, {})
    assert [one.is_repeated(delivery(**headers)) for headers in nestings] == [False, False, False, True, True]


@pytest.mark.parametrize("nesting", [None, "x", [], {}, float("inf"), -1, "9" * 10_000])
def test_a_nesting_that_is_no_number_counts_as_none(worker, nesting):
    one = worker()
    assert not one.is_repeated(delivery())
    assert one.is_repeated(delivery(replaced_task_nesting=nesting))


def test_another_item_or_replay_is_another_job(worker):
    one = worker()
    for redrive in (REDRIVE, REDRIVE | {"item": 8}, REDRIVE | {"replay": "s" * 32}):
        assert not one.is_repeated(delivery(redrive))


@pytest.mark.parametrize(
    "redrive",
    [None, "once", {}, {"once": True}, REDRIVE | {"once": "yes"}, REDRIVE | {"once": False}, REDRIVE | {"item": None},
     REDRIVE | {"item": "x"}, REDRIVE | {"replay": None}, {k: v for k, v in REDRIVE.items() if k != "once"},
     REDRIVE | {"sent_as": "other"}, REDRIVE | {"sent_as": 7}, REDRIVE | {"sent_as": ["new-7"]}, REDRIVE | {"sent_as": ""}],
)  # fmt: skip
def test_whatever_does_not_request_it_queries_no_one(redrive):
    calls = Calls("redis://127.0.0.1:1/0", "copies")
    one = Once(calls, "shop", "boot")
    assert not one.is_repeated(delivery(redrive)) and not one.is_repeated(delivery(redrive))
    assert one.unasked == 0 and calls._dial is None and calls._line is None


def test_a_store_that_does_not_answer_lets_the_job_run_and_that_is_counted():
    one = Once(Calls("redis://127.0.0.1:1/0", "copies"), "shop", "boot")
    assert [one.is_repeated(delivery()) for _ in range(2)] == [False, False]
    assert (one.unasked, one.repeated) == (2, 0)


def test_a_mark_is_stored_for_a_week_under_a_name_that_no_job_shapes(worker, client):
    hostile = REDRIVE | {"replay": "}:x\r\n" + "y" * 10_000}
    worker().is_repeated(delivery(hostile))
    (name,) = client.keys("*")
    assert name.startswith(b"redrive:{shop}:once:x") and len(name) < 100 and 600_000 < client.ttl(name) <= 7 * 86400
    worker().is_repeated(delivery())
    assert client.exists(keys.once("shop", f"{'r' * 32}-7-new-7-1", 1))
