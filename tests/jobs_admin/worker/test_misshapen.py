"""Faults that are blamed on a message, and others: Celery's own handler and request, with the guard in front, on and off."""

from __future__ import annotations

import re

import pytest
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request, create_request_cls
from kombu import Connection
from kombu.transport.virtual import Message

from jobs_admin.worker.consuming import Consuming, fault
from jobs_admin.worker.guard import Guard
from jobs_admin.worker.report import Origin
from jobs_admin.worker.request import guarded
from jobs_admin.worker.spool import Spool
from jobs_admin.worker.store import Store
from tests.kit.celery import make_app
from tests.kit.garbage import message as sound

ERRORS = [KeyError("a bug"), TypeError("a bug"), RecursionError("deep"), ConnectionResetError("gone"), MemoryError()]


@pytest.fixture
def guard(tmp_path):
    """A guard whose reports are in its spool: the store is away."""
    return Guard(Origin("shop", "", ()), Store("redis://127.0.0.1:1/0", "shop", Spool(tmp_path / "spool", 10**6)))


@pytest.fixture
def consumer(guard):
    """A worker's, as it is before it connects."""
    made = make_app("memory://").Worker(pool="solo", hostname="w@here").consumer
    Consuming(guard, made, "w@here").wrap()
    made.update_strategies()
    return made


def delivered(**changes) -> Message:
    return Message(sound(1, **changes), channel=Connection("memory://").channel())


@pytest.mark.parametrize("is_silenced", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_that_no_fault_of_the_message_explains_goes_on_to_celery(guard, consumer, error, is_silenced):
    def broken(*args):
        raise error

    guard.is_silenced = is_silenced
    consumer.strategies["ok"] = broken
    message = delivered()
    with pytest.raises(type(error)) as raised:
        consumer.create_task_handler()(message)
    assert raised.value is error
    assert not message.acknowledged and not guard.store.spool.waiting and not guard.broken


@pytest.mark.parametrize("error", ERRORS[-2:], ids=lambda error: type(error).__name__)
def test_nor_is_an_error_of_another_kind_blamed_on_a_message_that_has_a_fault(guard, consumer, error):
    def broken(*args):
        raise error

    consumer.strategies["ok"] = broken
    with pytest.raises(type(error)):
        consumer.create_task_handler()(delivered(id=[1]))
    assert not guard.store.spool.waiting


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"eta": 5}, "Its eta is no text."),
        ({"stamped_headers": "a"}, "Its stamped_headers have another type than Celery's."),
        ({"stamps": []}, "Its stamps have another type than Celery's."),
        ({"stamps": {}, "stamped_headers": []}, ""),
    ],
)
def test_the_fault_of_a_message_is_named(changes, text):
    assert fault(delivered(**changes), TypeError("a bug")) == text


@pytest.mark.parametrize("changes", [{"task": ["ok"]}, {"_body": "NQ=="}], ids=["a task", "a body"])
def test_garbage_ends_at_the_guard_and_with_the_guard_off_where_it_does_without_us(guard, consumer, changes):
    stock = make_app("memory://").Worker(pool="solo", hostname="w@here").consumer
    stock.update_strategies()
    with pytest.raises(Exception) as as_stock:  # whatever Celery makes of it
        stock.create_task_handler()(delivered(**changes))
    guard.is_silenced = True
    off = delivered(**changes)
    with pytest.raises(as_stock.type, match=re.escape(str(as_stock.value))):
        consumer.create_task_handler()(off)
    assert not off.acknowledged and not guard.store.spool.waiting
    guard.is_silenced = False
    on = delivered(**changes)
    consumer.create_task_handler()(on)
    assert on.acknowledged and guard.store.spool.waiting == 1 and not guard.broken


class Timed:
    """In the place of a pool of processes, which reckons with limits: it notes what it is asked."""

    uses_semaphore = True

    def __init__(self) -> None:
        self.asked = []

    def apply_async(self, target, **options):
        self.asked.append((options["timeout"], options["soft_timeout"]))


def tried(base: type, limits) -> tuple[Timed, object, str]:
    """Celery's calls of the pool for a job with these limits, its request, and the error that comes of them."""
    app, pool = make_app("memory://"), Timed()
    task = app.tasks["ok"]
    request = create_request_cls(base, task, pool, "w@here", None, app=app)(
        delivered(timelimit=limits), app=app, hostname="w@here", task=task
    )
    try:
        request.execute_using_pool(pool)
    except Exception as error:
        return pool, request, f"{type(error).__name__}: {error}"
    return pool, request, ""


@pytest.mark.parametrize("limits", ["never", ["a", "b"], [1], [1, 2, 3], 5, {"a": 1}, [{}, []], [[1], [2]]], ids=repr)
def test_hostile_time_limits_are_celerys_own_affair_with_the_guard_off(guard, limits):
    as_stock, _, error = tried(Request, limits)
    guard.is_silenced = True
    pool, request, other_error = tried(guarded(Request, guard), limits)
    assert (pool.asked, other_error) == (as_stock.asked, error)
    assert not request.acknowledged and not guard.store.spool.waiting
    guard.is_silenced = False
    pool, request, refused = tried(guarded(Request, guard), limits)
    assert pool.asked == [] and refused.startswith(TaskRevokedError.__name__)
    assert request.acknowledged and guard.store.spool.waiting == 1 and not guard.broken


def test_sound_time_limits_reach_the_pool_on_and_off(guard):
    for guard.is_silenced in (False, True):
        pool, _, error = tried(guarded(Request, guard), [20, 10.5])
        assert (pool.asked, error) == ([(20, 10.5)], "")
