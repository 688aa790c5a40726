"""Counts at a job's start and end: workers are played here, the store and its scripts are real."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from jobs_admin.core import keys
from jobs_admin.core.policy import parse
from jobs_admin.worker.at_start import Alone, AtStart, Job, Proceed, Quarantine, Wait
from jobs_admin.worker.calls import Calls
from tests.kit.patience import patient

pytestmark = pytest.mark.server

BEHIND_THE_SECOND_BEAT = 20_000


def policy(**fields):
    return parse({"name": "p", "mode": "enforce", **fields})


def poison(crashes=3, window_s=300):
    return policy(poison={"crashes": crashes, "window_s": window_s})


def job(name="j1", **fields):
    return Job(name, 1, "charge", "celery", **fields)


class Worker(AtStart):
    """One life of a worker whose jobs all run in this process; its children are distinguished by number."""

    def __init__(self, url, store, boot):
        super().__init__(patient(url), "shop", boot, f"{boot}@here", "here")
        self.store, self.boot, self.child, self.pid = store, boot, 1, os.getpid()
        self.beat()

    def _token(self, pid=None):
        return f"{self.boot}:{self.pid}:{pid or self.child}"

    def ended(self, rule, one):
        super().ended(rule, one)
        self.beat()  # on the same connection: what a test asks next, by another, comes after both

    def start(self, rule, *jobs):
        """Each in a child of its own."""
        decisions = []
        for one in jobs:
            self.child += 1
            decisions.append(self.starting(rule, one))
        return decisions[0] if len(decisions) == 1 else decisions

    def dies(self):
        self.store.zadd(keys.boots("shop"), {self.boot: 1})

    def falls_silent_for(self, milliseconds):
        self.store.zincrby(keys.boots("shop"), -milliseconds, self.boot)


@pytest.fixture
def worker(engine, store):
    made = iter(range(100))
    return lambda: Worker(engine.url, store, f"w{next(made)}")


def ages(store, name, milliseconds):
    """Every start of the job was so much earlier: no one sets the server's clock."""
    key = keys.crash("shop", name)
    for token, text in store.hgetall(key).items():
        start = json.loads(text)
        store.hset(key, token, json.dumps(start | {"at": start["at"] - milliseconds}))


@pytest.mark.parametrize("crashes", [1, 2, 3, 5])
@pytest.mark.parametrize("how", ["killed", "hard_limit", "memory"])
def test_the_crash_that_is_one_too_many_quarantines_at_once(worker, crashes, how):
    one, rule = worker(), poison(crashes)
    for _ in range(crashes - 1):
        assert one.start(rule, job()) == Proceed()
        assert one.crashed(rule, job(), how) is None
    assert one.start(rule, job()) == Proceed()
    decision = one.crashed(rule, job(), how, "signal 9 (SIGKILL)")
    assert [crash.how for crash in decision.crashes] == [how] * crashes
    assert decision.crashes[-1].said == "signal 9 (SIGKILL)" and decision.crashes[-1].worker == "w0@here"
    assert isinstance(one.start(rule, job()), Quarantine)  # a second delivery of its message


def test_the_start_that_convicted_a_job_may_end_in_order_all_the_same(worker):
    """As one does that ran out of memory: its process lives."""
    one, rule = worker(), poison(1)
    one.start(rule, job())
    decision = one.crashed(rule, job(), "memory")
    one.ended(rule, job())
    assert one.start(rule, job()) == decision


def test_an_end_in_order_clears_what_was_known(worker, store):
    one, rule = worker(), poison(2)
    one.start(rule, job())
    one.crashed(rule, job(), "killed")
    one.start(rule, job())
    one.ended(rule, job())
    assert not store.exists(keys.crash("shop", "j1"))
    one.start(rule, job())
    assert one.crashed(rule, job(), "killed") is None


def test_crashes_outside_of_the_window_do_not_count(worker, store):
    one, rule = worker(), poison(2, window_s=60)
    for _ in range(4):
        one.start(rule, job())
        assert one.crashed(rule, job(), "killed") is None
        ages(store, "j1", 61_000)


def test_a_replay_counts_again_also_under_its_old_id(worker):
    one, rule = worker(), poison(1)
    one.start(rule, job())
    assert one.crashed(rule, job(), "killed")
    assert one.start(rule, Job("j1", 2, "charge", "celery")) == Proceed()


def test_who_ran_in_a_worker_that_died_runs_alone_next(worker):
    old, rule = worker(), poison(3)
    old.start(rule, job("pill"), job("good"))
    old.dies()
    new = worker()
    assert new.start(rule, job("pill"), job("good"), job("other")) == [Alone(), Alone(), Proceed()]


def test_a_pill_that_takes_its_worker_along_is_convicted_by_what_it_does_alone(worker):
    rule, decisions = poison(3), []
    for alone in ("", "alone", "alone"):
        old = worker()
        assert old.start(rule, job("pill", alone=alone), job("good", alone=alone)) == [Proceed(), Proceed()]
        old.ended(rule, job("good")) if alone else None
        old.dies()
    decisions = worker().start(rule, job("pill"))
    assert isinstance(decisions, Quarantine)
    assert [(crash.how, crash.alone) for crash in decisions.crashes] == [
        ("lost", False),
        ("lost", True),
        ("lost", True),
    ]
    assert decisions.crashes[0].beside == 1


def test_no_one_is_convicted_by_deaths_that_others_shared(worker):
    rule = poison(1)
    for _ in range(10):
        old = worker()
        assert old.start(rule, job("good", alone="beside"), job("pill", alone="beside")) == [Proceed(), Proceed()]
        old.dies()
    assert worker().start(rule, job("good")) == Alone(deaths=10)
    one = worker()
    one.start(rule, job("good", alone="alone"))
    one.ended(rule, job("good"))
    assert one.start(rule, job("good")) == Proceed()


def test_a_death_that_was_announced_is_held_against_no_one(worker):
    old, rule = worker(), poison(1)
    old.start(rule, job())
    old.beat("leaving")
    old.dies()
    assert worker().start(rule, job()) == Proceed()


def test_a_delivery_that_came_too_early_is_no_crash(worker, store):
    old, new, rule = worker(), worker(), poison(3)
    old.start(rule, job())
    assert new.start(rule, job()) == Wait(5.5, "undecided")
    store.zincrby(keys.boots("shop"), 5_000, "w0")  # its next sign of life
    assert new.start(rule, job()) == Proceed()
    old.ended(rule, job())
    new.ended(rule, job())
    assert not store.exists(keys.crash("shop", "j1"))


def test_a_worker_that_has_just_died_is_waited_for_until_that_is_sure(worker):
    old, new, rule = worker(), worker(), poison(3)
    old.start(rule, job())
    assert new.start(rule, job()) == Wait(5.5, "undecided")
    assert new.start(rule, job()) == Wait(5.5, "undecided")
    old.falls_silent_for(BEHIND_THE_SECOND_BEAT)
    assert new.start(rule, job()) == Alone()


def test_a_job_that_could_be_one_crash_too_many_does_not_run_twice_at_once(worker, store):
    one, rule = worker(), poison(1)
    assert one.start(rule, job(), job()) == [Proceed(), Wait(5.5, "undecided")]


def test_the_time_that_a_job_was_with_a_dead_worker_counts_for_no_window(worker, store):
    rule = poison(2, window_s=60)
    old = worker()
    old.start(rule, job())
    ages(store, "j1", 3_600_000)
    old.falls_silent_for(3_599_000)  # it died a second after the start; the broker kept the job for an hour
    new = worker()
    assert new.start(rule, job()) == Alone()
    assert new.start(rule, job(alone="alone")) == Proceed()
    new.dies()
    assert isinstance(worker().start(rule, job()), Quarantine)


def test_crashes_that_the_store_did_not_hear_of_are_reported_when_it_does(worker, engine, store):
    one, rule = worker(), poison(2)
    for _ in range(2):
        one.start(rule, job())
        there, one._calls = one._calls, Calls("redis://127.0.0.1:1/0", "counts")
        assert one.crashed(rule, job(), "killed") is None
        one._calls = there
        one.report_crashes()
    assert isinstance(one.start(rule, job()), Quarantine)


def unheard(worker, act):
    """The store does not hear what `act` sends."""
    there, worker._calls = worker._calls, Calls("redis://127.0.0.1:1/0", "counts")
    answer = act()
    worker._calls = there
    return answer


def test_a_crash_counts_also_where_no_one_heard_of_its_start(worker):
    one, rule = worker(), poison(2)
    for _ in range(2):
        assert unheard(one, lambda: one.start(rule, job())) == Proceed()
        decision = one.crashed(rule, job(), "killed", pid=one.child)
    assert [crash.worker for crash in decision.crashes] == ["w0@here"] * 2


def test_a_process_that_died_before_it_took_the_job_is_no_crash(worker, store):
    one, rule = worker(), poison(1)
    assert one.crashed(rule, job(), "killed", pid=0) is None
    assert one.crashed(limited(), job(), "killed", pid=7) is None  # nor where crashes are not counted
    assert not store.exists(keys.crash("shop", "j1"))


def test_a_crash_that_is_reported_twice_counts_once(worker, store):
    """The answer may be lost, not the word; and its process may have begun the job again meanwhile."""
    one, rule = worker(), poison(2)
    one.start(rule, job())
    unheard(one, lambda: one.crashed(rule, job(), "memory"))
    (twice,) = one._untold
    one.report_crashes()
    assert one.starting(rule, job()) == Proceed()
    one._untold.append(twice)
    one.report_crashes()
    assert not one._untold and store.hexists(keys.crash("shop", "j1"), one._token())


def test_a_child_reports_what_was_not_heard_before_it_starts_anything(worker):
    one, rule = worker(), poison(2)
    for _ in range(2):
        one.start(rule, job())
        unheard(one, lambda: one.crashed(rule, job(), "memory"))
    assert isinstance(one.start(rule, job()), Quarantine)


def test_an_end_that_no_one_heard_of_does_not_hold_the_job_up_for_ever(worker, store):
    one, rule = worker(), poison(1)
    one.start(rule, job("j1"))
    unheard(one, lambda: one.ended(rule, job("j1")))
    assert one.start(rule, job("j1")) == Wait(5.5, "undecided")
    one.child = 2  # that was its place: it begins something else there, or the job itself again
    assert one.starting(rule, job("j1")) == Proceed()
    unheard(one, lambda: one.ended(rule, job("j1")))
    assert one.starting(rule, job("x" * 300)) == Proceed()
    assert not store.exists(keys.crash("shop", "j1"))
    unheard(one, lambda: one.ended(rule, job("x" * 300)))
    assert one.starting(rule, job("j1")) == Proceed()
    assert not store.exists(keys.crash("shop", "x" * 300))


def test_one_that_began_alone_and_was_joined_is_not_convicted_of_the_death(worker):
    rule = poison(2)
    for alone in ("", "alone"):
        old = worker()
        assert old.start(rule, job("good", alone=alone), job("pill", alone=alone and "beside")) == [
            Proceed(),
            Proceed(),
        ]
        old.dies()
    assert worker().start(rule, job("good")) == Alone(deaths=2)


def limited(**fields):
    return policy(concurrency={"key": "kwargs.customer", "limit": 2} | fields)


def job_of(customer, name):
    return job(name, kwargs={"customer": customer})


def test_only_so_many_at_once_for_each_value_of_the_key(worker):
    one, rule = worker(), limited()
    decisions = one.start(
        rule, job_of("a", "1"), job_of("a", "2"), job_of("a", "3"), job_of("b", "4"), job("5"), job("6"), job("7")
    )
    assert [type(decision) for decision in decisions] == [Proceed, Proceed, Wait, Proceed, Proceed, Proceed, Proceed]
    assert decisions[2].why == "concurrency" and 0.2 <= decisions[2].delay_s <= 30
    one.child = 2
    one.ended(rule, job_of("a", "1"))
    assert worker().start(rule, job_of("a", "3"), job_of("a", "8"))[0] == Proceed()


def test_a_place_is_reserved_while_its_worker_lives_and_given_up_when_it_does_not(worker, store):
    one, two, rule = worker(), worker(), limited(limit=1)
    assert one.start(rule, job_of("a", "1")) == Proceed()
    (leases,) = [key for key in store.keys("*limits:leases*") if b":line" not in key]
    store.zadd(leases, {one._token(): 1})  # thirty seconds are over
    one.beat()
    assert isinstance(two.start(rule, job_of("a", "2")), Wait)
    store.zadd(leases, {one._token(): 1})
    assert two.start(rule, job_of("a", "2")) == Proceed()


def lapse(store, one):
    """Let the lease of a worker that has not renewed it for thirty seconds end."""
    (leases,) = [key for key in store.keys("*limits:leases*") if b":line" not in key]
    store.zadd(leases, {one._token(): 1})


def test_a_limit_that_was_exceeded_is_reported_by_the_worker_that_had_stopped_answering(worker, store):
    frozen, two, rule = worker(), worker(), limited(limit=1)
    assert frozen.start(rule, job_of("a", "1")) == Proceed()
    lapse(store, frozen)
    frozen.beat()
    assert frozen.overrun == 0  # nobody had taken it
    lapse(store, frozen)
    assert two.start(rule, job_of("a", "2")) == Proceed()  # the second where one is allowed
    frozen.beat()
    two.beat()
    assert (frozen.overrun, two.overrun) == (1, 0)
    two.ended(rule, job_of("a", "2"))
    assert isinstance(two.start(rule, job_of("a", "3")), Wait)  # the place is its own again


def test_a_job_that_ends_before_its_frozen_worker_gives_a_sign_reports_that_the_limit_was_exceeded(worker, store):
    frozen, two, rule = worker(), worker(), limited(limit=1)
    assert frozen.start(rule, job_of("a", "1")) == Proceed()
    lapse(store, frozen)
    assert two.start(rule, job_of("a", "2")) == Proceed()
    frozen.ended(rule, job_of("a", "1"))
    frozen.beat()
    assert frozen.overrun == 1


def test_a_worker_knows_how_many_of_its_source_live(worker):
    one, two = worker(), worker()
    one.beat()
    two.beat()
    assert two.live_workers == 2
    two.beat("gone")
    one.beat()
    assert one.live_workers == 1
    one._calls = Calls("redis://127.0.0.1:1/0", "counts")
    one.beat()
    assert one.live_workers == 1


def test_a_crash_gives_the_place_back(worker):
    one, rule = worker(), limited(limit=1)
    one.start(rule, job_of("a", "1"))
    one.crashed(rule, job_of("a", "1"), "killed")
    assert one.start(rule, job_of("a", "2")) == Proceed()


def test_a_place_whose_end_was_never_reported_is_free_for_the_next_job_of_its_process(worker):
    one, rule = worker(), limited(limit=1)
    assert one.start(rule, job_of("a", "1")) == Proceed()  # whose end the store does not hear
    one.child -= 1
    assert one.start(rule, job_of("a", "2")) == Proceed()


@pytest.fixture
def ended_process():
    """The number of a process that is no more, as one of a pool that was replaced."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_place_of_a_process_that_is_no_more_is_free_although_its_worker_lives(worker, ended_process):
    one, two, rule = worker(), worker(), limited(limit=1)
    one.pid = ended_process
    assert one.start(rule, job_of("a", "1")) == Proceed()
    assert isinstance(two.start(rule, job_of("a", "2")), Wait)
    one.beat()  # learns who holds a place
    one.beat()
    assert two.start(rule, job_of("a", "2")) == Proceed()


def test_a_start_of_a_process_that_is_no_more_does_not_hold_its_job_up_although_its_worker_lives(worker, ended_process):
    one, two, rule = worker(), worker(), poison(1)
    one.pid = ended_process
    assert one.start(rule, job()) == Proceed()  # whose end the store does not hear
    assert two.start(rule, job()) == Wait(5.5, "undecided")
    one.beat()  # learns what is open
    one.beat()
    assert two.start(rule, job()) == Proceed()


def test_a_crash_that_is_reported_after_its_process_was_missed_counts_all_the_same(worker, ended_process, store):
    one, rule = worker(), poison(2)
    one.pid = ended_process
    for _ in range(2):
        assert one.start(rule, job()) == Proceed()
        one.beat()
        one.beat()
        assert not store.hkeys(keys.boot("shop", one.boot) + ":running")
        decision = one.crashed(rule, job(), "killed", pid=ended_process)
    assert isinstance(decision, Quarantine) and len(decision.crashes) == 2


def test_only_so_many_starts_in_a_time_and_each_who_waits_has_a_turn_of_its_own(worker, store):
    one, rule = worker(), policy(rate_limit={"max": 3, "per_s": 60})
    decisions = one.start(rule, *(job(str(n)) for n in range(6)))
    assert decisions[:3] == [Proceed()] * 3
    waits = [decision.delay_s for decision in decisions[3:]]
    assert waits[0] == pytest.approx(60, abs=10)
    assert [later - sooner for sooner, later in pairwise(waits)] == pytest.approx(
        [20, 20], abs=8
    )  # this machine may be slow


def test_who_waits_comes_before_who_is_new(worker, store):
    one, rule = worker(), policy(rate_limit={"max": 1, "per_s": 60})
    one.start(rule, job("1"), job("2"))
    starts = keys.starts("shop", "p")
    store.lset(starts, 0, int(store.lindex(starts, 0)) - 60_000_000)  # a minute is over
    assert isinstance(one.start(rule, job("3")), Wait)
    assert one.start(rule, job("2")) == Proceed()


def test_a_rate_that_was_raised_holds_no_one_to_the_turns_of_the_slower_one(worker, store):
    one = worker()
    one.start(policy(rate_limit={"max": 1, "per_s": 86_400}), *(job(str(n)) for n in range(6)))
    raised = policy(rate_limit={"max": 100, "per_s": 1})
    new = one.start(raised, job("new"))
    assert new == Proceed() or new.delay_s < 1
    assert one.start(raised, job("5")) == Proceed()


def test_what_is_refused_takes_nothing(worker, store):
    one = worker()
    rule = policy(concurrency={"key": "task", "limit": 1}, rate_limit={"max": 2, "per_s": 60}, poison={"crashes": 1})
    assert [type(decision) for decision in one.start(rule, job("1"), job("2"))] == [Proceed, Wait]
    assert store.llen(keys.starts("shop", "p")) == 1 and not store.exists(keys.crash("shop", "2"))


def test_a_store_that_is_away_stops_no_job(worker):
    one, rule = worker(), policy(poison={"crashes": 1}, concurrency={"key": "task", "limit": 1})
    one._calls = Calls("redis://127.0.0.1:1/0", "counts")
    assert one.start(rule, job("1"), job("2"), job("3")) == [Proceed()] * 3
    assert one.ended(rule, job("1")) is None


def test_where_no_policy_queries_nothing_is_called(worker):
    one = worker()
    one._calls.run = one._calls.report_crashes = None
    assert one.start(policy(), job()) == Proceed()
    AtStart.ended(one, policy(), job())


def test_everything_in_the_store_has_a_time_to_live(worker, store):
    rule = policy(concurrency={"key": "task", "limit": 2}, rate_limit={"max": 3, "per_s": 60}, poison={"crashes": 3})
    one = worker()
    one.start(rule, *(job(str(n)) for n in range(6)))
    one.crashed(rule, job("1"), "killed")
    names = store.keys("redrive:*")
    assert len(names) >= 7 and all(store.ttl(name) > 0 for name in names)


def test_starts_that_no_one_counted_are_reported_by_the_main_process_also_where_a_child_made_them():
    away = AtStart(Calls("redis://127.0.0.1:1/0", "counts"), "shop", "w0", "w0@here", "here")
    assert away.starting(poison(), job()) == Proceed() and away.uncounted == 1
    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=away.starting, args=(poison(), job()))
        child.start()
        child.join()
    assert away.uncounted == 3


def test_what_no_policy_counts_is_not_called_uncounted():
    away = AtStart(Calls("redis://127.0.0.1:1/0", "counts"), "shop", "w0", "w0@here", "here")
    assert away.starting(policy(), job()) == Proceed() and away.uncounted == 0


def test_a_worker_is_dead_to_the_scripts_when_it_is_to_the_page(worker, store):
    """Both by one number, which the scripts are given."""
    one, other, rule = worker(), worker(), poison()
    one.start(rule, job("j1"))
    one.falls_silent_for(keys.SILENT_MS - 12_000)  # this machine may be slow
    assert other.start(rule, job("j1")) == Wait(5.5, "undecided")
    one.falls_silent_for(12_000)
    assert other.start(rule, job("j1")) == Alone()


def test_what_was_undecided_is_not_stored_when_it_is_decided(worker, store):
    """A job that its broker gives away too early again and again, and that ends its process each time."""
    one, other, rule = worker(), worker(), poison(100)
    for _ in range(20):
        one.start(rule, job())
        assert other.start(rule, job()) == Wait(5.5, "undecided")
        one.crashed(rule, job(), "killed")
    stored = [name for name in store.hkeys(keys.crash("shop", "j1")) if name.startswith(b"look ")]
    assert stored == [] and store.hlen(keys.crash("shop", "j1")) == 20
