"""Policies in a real worker: when a job comes again, when it is dead and why, and what is reported about it."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.core.backoff import schedule
from jobs_admin.core.policy import parse
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.worker.report import Origin
from jobs_admin.worker.retrying import Retrying
from tests.kit.browser import ROOT
from tests.kit.celery import make_app
from tests.kit.policies import attempts, gaps, obeyed, policy, published, running
from tests.kit.streams import of_job

pytestmark = pytest.mark.server

LATE_S = 20  # of a retry, on a machine that is busy with other tests


@pytest.fixture(scope="module")
def shop(worker):
    """The shared worker, with the policies of each test in force and of no other afterwards."""
    yield worker
    obeyed(worker, worker.store_engine.url)


def wait_for_reports(worker, job: str, kinds: list[str]):
    """The reports of a job in the order of its attempts, once there are as many."""
    worker.wait(lambda: len(of_job(worker.store_engine, job)) >= len(kinds), what=f"{kinds} of {job}")
    found = sorted(of_job(worker.store_engine, job), key=lambda one: one.attempt)
    assert [one.kind for one in found] == kinds
    return found


def scaled(document: dict, by: float) -> dict:
    """The same curve, so much quicker."""
    times = {name: document[name] * by for name in ("cap_s",) if name in document}
    for part in ("backoff", "jitter"):
        policy = document[part]
        times[part] = {**policy, **{n: policy[n] * by for n in ("first_delay_s", "plus_s", "seconds") if n in policy}}
    return {**document, **times}


def test_every_preset_is_retried_with_its_own_gaps(shop):
    """Scaled, so that they take no minutes. Two jitters are whole seconds: Celery's keeps its scale, Sidekiq's gets a cap."""
    scales = {"celery": 1, "sidekiq": 0.001}
    documents = [
        scaled(preset.document, scales.get(name, 0.02))
        | ({"cap_s": 0.5} if name == "sidekiq" else {})
        | {"name": name, "match": {"task": f"try{n}"}, "mode": "enforce", "poison": None}
        | {"max_attempts": min(3, preset.document["max_attempts"])}
        for n, (name, preset) in enumerate(PRESETS.items())
    ]
    version = obeyed(shop, shop.store_engine.url, *documents)
    jobs = [shop.send(document["match"]["task"]) for document in documents]
    for document, job in zip(documents, jobs, strict=True):
        name = document["name"]
        found = wait_for_reports(shop, job, ["retry"] * (document["max_attempts"] - 1) + ["exception"])
        for step, one, gap in zip(schedule(parse(document)), found, gaps(shop, job), strict=False):
            assert step.shortest_s - 0.001 <= one.due_at - one.at <= step.longest_s + 0.001, name
            assert step.shortest_s - 0.01 <= gap <= step.longest_s + LATE_S, name
        assert (found[-1].reason, found[-1].policy) == ("exhausted", f"{name}@{version}")
        assert found[-1].escalate is (name == "payments")


def test_a_job_of_celerys_first_protocol_keeps_its_own_retries(shop):
    """The message has no place for a count of ours: no policy decides over the job, and its own retries go on."""
    obeyed(
        shop, shop.store_engine.url, policy("first", max_attempts=3, backoff={"kind": "fixed", "first_delay_s": 0.1})
    )
    second = shop.send("try")
    shop.app.amqp.create_task_message, create = shop.app.amqp.as_task_v1, shop.app.amqp.create_task_message
    try:
        plain, own = shop.send("try"), shop.send("asks", 2, kwargs={"countdown": 0.1})
    finally:
        shop.app.amqp.create_task_message = create
    wait_for_reports(shop, second, ["retry", "retry", "exception"])
    (only,) = wait_for_reports(shop, plain, ["exception"])
    assert (only.reason, only.policy) == ("", "")
    found = shop.wait(lambda: of_job(shop.store_engine, own), what="the retry of the task itself")
    assert found[0].kind == "retry" and not found[0].policy


def test_a_live_edit_decides_the_next_attempt_and_each_attempt_names_its_version(shop):
    url = shop.store_engine.url
    old = obeyed(shop, url, policy("edited", max_attempts=50, backoff={"kind": "fixed", "first_delay_s": 0.3}))
    job = shop.send("try", 4)
    shop.wait(lambda: len(attempts(shop, job)) >= 2, what="two attempts")
    new = obeyed(shop, url, policy("edited", max_attempts=2))
    found = shop.wait(lambda: (all_ := of_job(shop.store_engine, job)) and all_[-1].kind == "exception" and all_)
    assert [one.policy for one in found] == [f"edited@{old}"] * (len(found) - 1) + [f"edited@{new}"]
    assert [one.max_attempts for one in found] == [50] * (len(found) - 1) + [2]
    assert found[-1].reason == "exhausted"


@pytest.mark.parametrize(
    ("error", "error_type", "reason", "runs"),
    [
        ("wrong", "ValueError", "permanent", 1),
        ("unpicklable", "tests.kit.celery.Unpicklable", "exhausted", 2),
        ("refused 999999", "tests.kit.celery.Refused", "retry-after", 1),
    ],
)
def test_a_dead_job_reports_why(shop, error, error_type, reason, runs):
    classes = [{"error": "ValueError", "as": "permanent"}]
    version = obeyed(shop, shop.store_engine.url, policy("why", max_attempts=2, classes=classes))
    *before, last = wait_for_reports(shop, shop.send("try", error), ["retry"] * (runs - 1) + ["exception"])
    assert (last.reason, last.error_type, last.policy, last.attempt) == (reason, error_type, f"why@{version}", runs)
    assert all(one.error_type == error_type and one.message == last.message for one in before)
    assert "jobs_admin" not in last.trace and "redrive" not in last.trace.replace(str(ROOT), "").lower()


def test_what_a_server_requests_is_waited_for_and_reported(shop):
    obeyed(shop, shop.store_engine.url, policy("polite", max_attempts=2))
    job = shop.send("try", "refused 0.5")
    first, _ = wait_for_reports(shop, job, ["retry", "exception"])
    assert 0.5 <= first.due_at - first.at <= 0.6001
    assert gaps(shop, job)[0] >= 0.5
    assert first.reason == "asked to wait 0.5 s"


def test_only_what_matches_is_retried_and_a_success_comes_home(shop):
    version = obeyed(shop, shop.store_engine.url, policy("of-emails") | {"match": {"queue": "emails", "task": "*"}})
    here, there, well = shop.send("try", queue="emails"), shop.send("try"), shop.send("try", "down", 2, queue="emails")
    assert [one.policy for one in wait_for_reports(shop, here, ["retry", "retry", "exception"])] == [
        f"of-emails@{version}"
    ] * 3
    (only,) = wait_for_reports(shop, there, ["exception"])
    assert (only.policy, only.reason, only.max_attempts) == ("", "", 1)
    wait_for_reports(shop, well, ["retry", "success"])


def test_jobs_that_were_given_the_same_id_are_each_tried_again(shop):
    obeyed(shop, shop.store_engine.url, policy("p", backoff={"kind": "fixed", "first_delay_s": 0.3}))
    before = shop.text().count("'at last'")
    for day in ("monday", "tuesday", "wednesday"):
        shop.send("try", "down", 2, task_id="sync-acme", kwargs={"day": day})
    shop.wait(lambda: shop.text().count("'at last'") == before + 3, what="three that ran well")


@pytest.mark.parametrize("task", ["asks", "autoretries"])
def test_celerys_own_retries_are_replaced_or_come_first(shop, task):
    """Natively: one retry after a minute. The policy: three attempts at once."""
    url = shop.store_engine.url
    version = obeyed(shop, url, policy("instead", task))
    *before, last = wait_for_reports(shop, shop.send(task), ["retry", "retry", "exception"])
    assert [one.policy for one in before] == [f"instead@{version}"] * 2
    assert (last.error_type, last.reason) == ("tests.kit.celery.PartnerDown", "exhausted")
    obeyed(shop, url, policy("behind", task, native="after"))
    job = shop.send(task)
    (first,) = wait_for_reports(shop, job, ["retry"])
    assert first.policy == "" and first.due_at - first.at == pytest.approx(
        60, abs=20
    )  # it is told later than it was asked for


def test_after_celerys_own_retries_the_policy_decides(shop):
    version = obeyed(shop, shop.store_engine.url, policy("behind", "asks", native="after", max_attempts=4))
    found = wait_for_reports(shop, shop.send("asks", kwargs={"countdown": 0}), ["retry", "retry", "retry", "exception"])
    assert [one.policy for one in found] == ["", *[f"behind@{version}"] * 3]
    assert found[-1].reason == "exhausted"


def test_a_retry_that_the_task_requested_and_swallowed_comes_all_the_same(shop):
    obeyed(shop, shop.store_engine.url, policy("asked", "asks"))
    wait_for_reports(shop, shop.send("asks", 2, kwargs={"swallows": True}), ["retry", "success"])


def test_a_retry_with_other_arguments_stays_celerys(shop):
    obeyed(shop, shop.store_engine.url, policy("asked", "asks"))
    job = shop.send("asks", kwargs={"args": [1], "kwargs": {}, "countdown": 0})
    first, _ = wait_for_reports(shop, job, ["retry", "success"])
    assert first.policy == ""


def test_a_retry_keeps_the_message_but_for_its_count(shop, broker):
    obeyed(shop, shop.store_engine.url, policy("kept"))
    job = shop.send("try", queue="emails", priority=9, kwargs={"note": "Zoë", "n": 1.50}, headers={"x-own": "é"})
    first, second, last = wait_for_reports(shop, job, ["retry", "retry", "exception"])
    for n, one in enumerate((first, second, last)):
        message, before = json.loads(one.raw), json.loads(first.raw)
        assert message["headers"].pop("retries") == n
        before["headers"].pop("retries")
        assert message["properties"].pop("delivery_tag") != before["properties"].pop("delivery_tag") or n == 0
        assert message == before
        assert (one.queue, one.priority) == ("emails", 9)


def test_callbacks_chains_and_chords_wait_for_the_attempt_that_runs_well(shop):
    obeyed(shop, shop.store_engine.url, policy("linked", max_attempts=3))
    chain = [{"task": "note", "args": ["chained"], "kwargs": {}, "options": {}, "immutable": True}]
    on_error = [{"task": "note", "args": ["errback"], "kwargs": {}, "options": {}, "immutable": True}]
    link = [{"task": "note", "args": ["linked"], "kwargs": {}, "options": {}, "immutable": True}]
    well = shop.send("try", "down", 3, chain=chain, link=link, link_error=on_error)
    wait_for_reports(shop, well, ["retry", "retry", "success"])
    shop.wait(lambda: len(shop.marks("notes")) == 2, what="callback and chain")
    assert sorted(shop.marks("notes")) == ["('chained',)", "('linked',)"]
    wait_for_reports(
        shop, shop.send("try", chain=chain, link=link, link_error=on_error), ["retry", "retry", "exception"]
    )
    shop.wait(lambda: len(shop.marks("notes")) == 3, what="the errback, once")
    assert shop.marks("notes")[-1] == "('errback',)"


def test_a_chord_waits_for_the_attempt_that_runs_well_and_breaks_with_the_last(start, own_store):
    published(own_store.url, policy("linked", backoff={"kind": "fixed", "first_delay_s": 0.01}, max_attempts=2))
    backend = own_store.url.removesuffix("/0") + "/3"
    worker = start(own_store.url, environment={"REAL_BACKEND": backend})
    for well_at, end in ((2, "('body',)"), (9, "('broken',)")):
        worker.send("together", well_at)
        worker.wait(lambda end=end: worker.marks("notes")[-1:] == [end], what=end)
    assert worker.marks("notes") == ["('body',)", "('broken',)"]


def test_a_budget_is_spent_by_retries_alone_and_then_jobs_are_dead(shop):
    version = obeyed(
        shop, shop.store_engine.url, policy("spent", max_attempts=2, budget={"per_minute": 0.001, "burst": 2})
    )
    jobs = [shop.send("try") for _ in range(4)]
    shop.wait(lambda: sum(len(of_job(shop.store_engine, job)) for job in jobs) == 6, what="two retries of four jobs")
    ends = [of_job(shop.store_engine, job)[-1] for job in jobs]
    assert sorted(one.reason for one in ends) == ["budget", "budget", "exhausted", "exhausted"]
    assert {one.policy for one in ends} == {f"spent@{version}"}


def test_a_decorrelated_backoff_knows_what_was_waited_before(shop):
    backoff = {"kind": "decorrelated", "first_delay_s": 0.01}
    obeyed(shop, shop.store_engine.url, policy("drawn", max_attempts=4, cap_s=5, backoff=backoff))
    *retries, last = wait_for_reports(shop, shop.send("try"), ["retry", "retry", "retry", "exception"])
    waits = [one.due_at - one.at for one in retries]
    for before, wait in itertools.pairwise([0.01, *waits]):
        assert 0.01 - 2e-6 <= wait <= 3 * before + 2e-6  # a time since 1970 is a float: good to 0.24 µs
    first, *waited = [json.loads(one.raw)["headers"].get("redrive_waited") for one in (*retries, last)]
    assert first is None and waited == pytest.approx(waits, abs=2e-6)
    assert "redrive_waited" not in last.headers


def test_a_job_that_expires_before_its_retry_is_dead_instead_of_dropped(shop):
    obeyed(shop, shop.store_engine.url, policy("slow", backoff={"kind": "fixed", "first_delay_s": 60}))
    (only,) = wait_for_reports(shop, shop.send("try", expires=30), ["exception"])
    assert only.reason == "expires"


@pytest.mark.parametrize(("task", "error"), [("dies", "WorkerLostError"), ("hangs", "TimeLimitExceeded")])
def test_a_job_whose_process_died_comes_again_under_the_policy(shop, task, error):
    """Natively the first comes back for ever, and the second is dead at once."""
    version = obeyed(shop, shop.store_engine.url, policy("crashes", task, max_attempts=2))
    first, last = wait_for_reports(
        shop, shop.send(task), ["retry", {"dies": "worker_lost", "hangs": "hard_limit"}[task]]
    )
    assert first.error_type.endswith(error) and first.policy == last.policy == f"crashes@{version}"
    assert last.reason == "exhausted"
    job = shop.send(task, 2)
    shop.wait(lambda: of_job(shop.store_engine, job)[-1:] and of_job(shop.store_engine, job)[-1].kind == "success")
    assert len(attempts(shop, job)) == 2  # the pool may give a job to a child that is dying: that attempt never began


def test_a_job_that_ran_well_and_whose_process_died_afterwards_does_not_run_again(start, own_store):
    """Natively neither, from Celery 5.7 on."""
    published(own_store.url, policy("falls", "falls"))
    backend = own_store.url.removesuffix("/0") + "/3"
    worker = start(own_store.url, concurrency=1, environment={"REAL_BACKEND": backend})
    job = worker.send("falls")
    worker.wait(lambda: "succeeded before the worker was lost" in worker.text(), what="Celery's word")

    def counts():
        heartbeats = running(own_store.url)  # nothing yet where its first job ended before its first sign of life
        return heartbeats and heartbeats[0]["counts"].get("celery")

    ends = ("succeeded", "failed", "retried")
    counted = worker.wait(
        lambda: (count := counts()) and any(count[end] for end in ends) and count, what="the heartbeat"
    )
    assert [counted[end] for end in ends] == [1, 0, 0]
    assert len(attempts(worker, job)) == 1 and not of_job(own_store, job)


def test_a_job_that_waits_for_its_turn_has_not_started(shop):
    url = shop.store_engine.url
    obeyed(shop, url, policy("slow", "ok", rate_limit={"max": 1, "per_s": 1}))

    def more() -> Counter:
        return Counter(running(url)[0]["counts"].get("emails"))

    before = more()
    waited = shop.text().count("ignored")
    for n in range(3):
        shop.send("ok", n, queue="emails")
    shop.wait(lambda: (more() - before)["succeeded"] == 3, what="three successes")
    assert shop.text().count("ignored") > waited
    assert (more() - before)["started"] == 3


def test_a_job_that_was_acknowledged_before_it_ran_runs_once_at_most_whatever_the_policy_reports(shop):
    obeyed(shop, shop.store_engine.url, policy("crashes", "killed"))
    (only,) = wait_for_reports(shop, shop.send("killed"), ["worker_lost"])
    assert only.policy == ""


def test_observing_changes_nothing_and_reports_what_it_would_have_done(shop):
    url = shop.store_engine.url
    classes = [{"error": "ValueError", "as": "permanent"}]
    version = obeyed(shop, url, policy("looks", classes=classes, mode="observe"))
    (down,) = wait_for_reports(shop, shop.send("try"), ["exception"])
    assert (down.policy, down.reason, down.observed) == (f"looks@{version}", "", "would retry in 0.05 s")
    (wrong,) = wait_for_reports(shop, shop.send("try", "wrong"), ["exception"])
    assert (wrong.policy, wrong.observed) == (f"looks@{version}", "would be dead: permanent")
    obeyed(shop, url, policy("looks", "autoretries", mode="observe"))
    (native,) = wait_for_reports(shop, shop.send("autoretries"), ["retry"])
    assert native.due_at - native.at > 50 and native.observed == "would retry in 0.05 s"


def test_an_absurd_or_newer_policy_leaves_the_one_before_in_force(shop):
    url = shop.store_engine.url
    version = obeyed(shop, url, policy("good"))
    published(url, policy("good", max_attempts=10**9))
    (heartbeat,) = shop.wait(lambda: (all_ := running(url)) and all_[0]["refused"] and all_)
    assert heartbeat["policies"] == {"good": version} and "1,000" in heartbeat["refused"]["good"]
    assert [one.policy for one in wait_for_reports(shop, shop.send("try"), ["retry", "retry", "exception"])] == [
        f"good@{version}"
    ] * 3
    version = obeyed(shop, url, policy("good", from_the_future={"x": 1}))
    (only,) = wait_for_reports(shop, shop.send("try"), ["exception"])
    assert (only.policy, only.observed) == (f"good@{version}", "would retry in 0.05 s")


def test_off_and_drain_are_obeyed_by_the_pool_too(shop):
    url = shop.store_engine.url
    obeyed(shop, url, policy("held"))
    with redis.Redis.from_url(url) as store:
        store.set(keys.switch(), "drain")
        try:
            shop.wait(lambda: running(url)[0]["mode"] == "capture", what="the switch")
            (only,) = wait_for_reports(shop, shop.send("try"), ["exception"])
            assert only.policy == ""
        finally:
            store.delete(keys.switch())
        shop.wait(lambda: running(url)[0]["mode"] == "enforce", what="the switch")


def test_what_is_around_a_task_makes_way_for_that_of_the_next_worker_in_the_process():
    app = make_app("memory://")
    task = app.tasks["try"]
    run, retry = task.run, task.retry
    first, second = (Retrying(Origin("shop", "", ()), None, None, None, None, None) for _ in range(2))
    first.wrap(task)
    around = task.run
    second.wrap(task)
    assert task.run is not around
    assert (task.run.__wrapped__, task.retry.__wrapped__) == (run, retry)
