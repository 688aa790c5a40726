"""Breakers of workers on two hosts, on one store."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from jobs_admin.core import keys
from jobs_admin.core.breaker import CLOSED, Outcome
from jobs_admin.core.pauses import Pauses, parse
from jobs_admin.worker.breakers import Breakers
from jobs_admin.worker.delays import Delays
from jobs_admin.worker.pausing import Pausing
from jobs_admin.worker.policies import Policies
from jobs_admin.worker.queues import Queues
from jobs_admin.worker.report import Origin
from tests.kit.breakers import stored
from tests.kit.policies import policy, published


@pytest.fixture
def members(engine, store, tmp_path):
    """Workers on the hosts `a` and `b`."""
    published(engine.url, policy("calls", "call*", breaker={"dependency": "partner"}))

    def member(host: str) -> Breakers:
        policies = Policies("shop", "enforce", tmp_path / host)
        policies.poll(store, store.get(keys.policies_version()))
        delays = Delays(store, "shop")
        made = Breakers(
            Origin("shop", "", ()), policies.in_force(), delays, store, lambda: None, lambda: policies.are_read
        )
        made._host = host
        return made

    return member("a"), member("b")


def test_only_the_worker_on_a_host_whose_jobs_alone_fail_holds_them(members, store):
    on_a, on_b = members
    now = time.time()
    on_b._note("partner", Outcome(True, 20, host="b", started_at=now))
    on_b._round()
    for number in range(40):
        failed = Outcome(False, host="a", subject=f"{number}", kind="connection", ended_at=now - 20 + number / 2)
        on_a._note("partner", failed)
    for one in (on_a, on_b, on_a):
        one._round()
    assert stored(store).state == CLOSED and set(stored(store).hosts.current) == {"a"}
    assert on_a.is_holding and not on_b.is_holding
    assert [one.open_breakers().find("partner")["here"] for one in members] == [True, False]
    on_a._probed["partner"] = (time.monotonic() - 60, "")
    starts = [on_a._probes_host(stored(store), "1", time.time(), may_probe=True) for _ in range(2)]
    on_a.note_unused(SimpleNamespace(id="1", request_dict={}))
    assert [*starts, on_a._probes_host(stored(store), "1", time.time(), may_probe=True)] == [True, True, False]
    on_a._note("partner", Outcome(True, host="a", started_at=time.time() + 1))
    for one in (on_a, on_b):
        one._round()
    assert not stored(store).hosts.current and not on_a.is_holding


def test_a_pause_that_a_worker_cannot_obey_or_whose_guard_is_off_is_not_reported_as_in_force(members, tmp_path):
    """This one reads no tenants."""
    queues = SimpleNamespace(queues=SimpleNamespace(consume_from={}))
    app = SimpleNamespace(amqp=queues)
    consumer = SimpleNamespace(task_consumer=None, pool=None, hub=None, app=app, call_soon=lambda act: act())
    one = Pausing(consumer, Queues(), "shop", tmp_path, SimpleNamespace(), members[0])
    one.restore(Pauses(tenants={"acme": 0}, dependencies={"partner": 0}).render())
    assert one.describe()["pauses"] == ["queue", "task", "dependency"]
    in_force = {"queues": [], "tasks": [], "dependencies": ["partner"]}
    assert one.describe()["paused"] == in_force
    assert one.check(is_silenced=True) and one.describe()["paused"] == {"queues": [], "tasks": []}
    assert one.check(is_silenced=False) and one.describe()["paused"] == in_force


def test_a_name_that_an_older_desk_does_not_know_ends_no_other_pause():
    assert parse(b'{"v":1,"queues":{},"tasks":{"":0,"call":5}}') == Pauses(tasks={"call": 5})
