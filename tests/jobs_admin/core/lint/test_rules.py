"""Every rule: what it finds, and where just short of it nothing is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jobs_admin.core import lint
from jobs_admin.core.lint.configuration import App, ClientRetries, Configuration, Queue, RetryCall, Task
from jobs_admin.core.lint.options import FoundOptions, Options, SampledQueue, document, read
from jobs_admin.core.lint.rules.exponential_backoff import ID as GROWTH
from jobs_admin.core.policy import parse

REDIS = App(broker="redis", visibility_timeout=3600)
AMQP = App(broker="amqp")
# Retried as it should be: nothing is found here.
GOOD = Task(
    "send", "emails", max_retries=9, autoretry_for=("builtins.ConnectionError",), retry_backoff=2, retry_backoff_max=300,
    default_retry_delay=180, time_limit=60, soft_time_limit=50, acks_late=True,
)  # fmt: skip
GOOD_POLICY = {
    "name": "emails", "match": {"task": "send"}, "mode": "enforce", "max_attempts": 9, "cap_s": 300,
    "backoff": {"kind": "exponential", "first_delay_s": 5, "factor": 2}, "jitter": {"kind": "full"},
    "classes": [{"error": "ValueError", "as": "permanent"}], "budget": {"per_minute": 100, "burst": 10},
    "poison": {"crashes": 3},
}  # fmt: skip
CALL = RetryCall("self.retry(countdown=60)", "60")


def one(task: Task = GOOD, app: App = REDIS, **more) -> Configuration:
    more = {
        "queues": (Queue("emails"),),
        "workers": ("w1",),
        "consumed": ("emails",),
        "modes": frozenset({"capture"}),
    } | more
    return Configuration("shop", app, tasks=(task,), **more)


def find_findings(*configurations: Configuration, policies=(), **facts) -> list[lint.Finding]:
    parsed = [parse(document) for document in policies]
    return lint.findings(lint.case(parsed, list(configurations), lint.Facts(**facts)))


def ids(*configurations: Configuration, policies=(), **facts) -> list[str]:
    return [finding.id for finding in find_findings(*configurations, policies=policies, **facts)]


def outage(seconds: float) -> tuple[lint.Outage, ...]:
    return (lint.Outage("shop", "emails", datetime(2026, 11, 20, 2, 7, tzinfo=UTC), seconds, 1200, 3),)


def test_an_app_and_a_policy_without_a_mistake_have_none():
    busy = {"per_minute": {("shop", "emails"): 5000}, "failed_per_minute": {("shop", "emails"): 900}}
    assert ids(one(), **busy) == []
    assert ids(one(modes=frozenset({"enforce"})), policies=[GOOD_POLICY], **busy, outages=outage(400)) == []


NATIVE = [
    (GROWTH, replace(GOOD, retry_backoff=0), GOOD),
    (GROWTH, replace(GOOD, retry_backoff_max=601), replace(GOOD, retry_backoff_max=600, max_retries=8)),
    ("attempts-without-end", replace(GOOD, max_retries=None), replace(GOOD, max_retries=20)),
    ("autoretry-never-retries", replace(GOOD, max_retries=0), replace(GOOD, max_retries=0, autoretry_for=())),
    ("backoff-above-its-cap", replace(GOOD, retry_backoff=301), replace(GOOD, retry_backoff=300, retry_backoff_max=301)),
    ("backoff-without-autoretry", Task("send", retry_backoff=2, idle_backoff=True), Task("send", retry_backoff=2)),
    ("soft-limit-never-fires", replace(GOOD, soft_time_limit=60), replace(GOOD, soft_time_limit=59)),
    ("requeue-without-late-ack", replace(GOOD, acks_late=False, reject_on_worker_lost=True), replace(GOOD, acks_late=False)),
    ("limit-beyond-visibility-timeout", replace(GOOD, time_limit=3601), replace(GOOD, time_limit=3600)),
    ("limit-beyond-visibility-timeout", replace(GOOD, time_limit=3601), replace(GOOD, time_limit=3601, acks_late=False)),
    ("requeue-without-crash-cap", replace(GOOD, reject_on_worker_lost=True),
     replace(GOOD, reject_on_worker_lost=True, retry_on_worker_lost=True)),
    ("retries-permanent-errors", replace(GOOD, autoretry_for=("builtins.Exception",)),
     replace(GOOD, autoretry_for=("builtins.Exception",), dont_autoretry_for=("builtins.ValueError",))),
    ("retries-permanent-errors", replace(GOOD, autoretry_for=("builtins.KeyError",)),
     replace(GOOD, autoretry_for=("shop.KeyError",))),
    ("retries-multiplied", replace(GOOD, max_retries=1, clients=(ClientRetries("httpx", "client", 2),)),
     replace(GOOD, clients=(ClientRetries("httpx", "client", 1),))),
    ("expires-before-retries-end", replace(GOOD, expires=400), replace(GOOD, expires=3600)),
    ("delay-beyond-visibility-timeout", replace(GOOD, calls=(RetryCall("", "3600"),)), replace(GOOD, calls=(RetryCall("", "error.retry_after"),))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "wrong", "right"), NATIVE, ids=[case[0][-40:] for case in NATIVE])
def test_a_task_is_found_out_and_the_one_beside_it_is_not(rule, wrong, right):
    assert rule in ids(one(wrong))
    assert rule not in ids(one(right))


def test_each_rule_is_tried_here():
    here = {case[0] for case in NATIVE}
    here |= {
        "gives-up-before-outage", "delay-beyond-consumer-timeout", "waits-in-worker-memory", "visibility-timeouts-differ",
        "prefetch-without-bound", "queue-forgets", "no-jitter-at-volume", "no-budget-at-volume", "budget-group-differs", "ignores-retry-after",
        "results-too-short-to-replay", "workers-differ", "rate-limit-per-worker", "policy-held-back", "policy-matches-nothing",
        "one-crash-is-two-starts", "limit-adds-retries",
        "keeps-what-comes-back", "permanent-by-word-only", "dead-letters-dropped-at-once", "fewer-dead-letters-kept-than-die",
        "backoff-without-attempts", "backoff-without-strategy", "no-priority-goes-first", "dead-letters-go-first",
        "breaker-for-all-tasks", "breaker-without-retries",
    }  # fmt: skip
    assert here == set(lint.RULES)


def test_a_job_that_gives_up_before_the_outage_that_was_seen_is_reported_with_it():
    brief = replace(GOOD, max_retries=3)  # 2, 4, 8 s with full jitter
    (finding,) = find_findings(one(brief), outages=outage(3600))
    assert (finding.id, finding.severity) == ("gives-up-before-outage", "high")
    assert finding.evidence == (
        "Retries stop after 7 s on average and 14 s at most (3 retries); "
        "on 20 Nov 02:07 UTC 1,200 attempts of emails failed within about 1 h, and 3 succeeded."
    )
    assert [f.severity for f in find_findings(one(brief), outages=outage(10))] == [
        "medium"
    ]  # on average it gives up before
    assert ids(one(brief), outages=outage(5)) == []
    assert [f.severity for f in find_findings(one(brief))] == ["low"]  # none was seen: five minutes
    elsewhere = (replace(outage(3600)[0], queue="other"),)
    assert [f.severity for f in find_findings(one(brief), outages=elsewhere)] == ["low"]


def test_waits_on_rabbitmq_are_held_against_its_consumer_timeout_unless_the_broker_delays():
    hour = replace(GOOD, calls=(RetryCall("self.retry(countdown=3600)", "3600"),))
    assert "delay-beyond-consumer-timeout" in ids(one(hour, AMQP))
    assert "delay-beyond-visibility-timeout" not in ids(one(hour, AMQP))
    quorum = (Queue("emails", kind="quorum", delays_at_broker=True),)
    assert {"delay-beyond-consumer-timeout", "waits-in-worker-memory"}.isdisjoint(ids(one(hour, AMQP, queues=quorum)))
    assert "waits-in-worker-memory" in ids(one(hour, AMQP))


def test_waits_in_memory_are_graver_where_thousands_would_wait():
    slow = replace(GOOD, retry_backoff=300, retry_backoff_max=1200)
    assert "waits-in-worker-memory" not in ids(one(replace(slow, retry_backoff_max=600)))
    (quiet,) = [f for f in find_findings(one(slow)) if f.id == "waits-in-worker-memory"]
    (loud,) = [
        f
        for f in find_findings(one(slow), failed_per_minute={("shop", "emails"): 200})
        if f.id == "waits-in-worker-memory"
    ]
    assert (quiet.severity, loud.severity) == ("low", "medium")
    assert "At 200 failures/min, as in the worst 15 minutes of the queue, about 2,000 would wait" in loud.evidence


def test_the_shortest_visibility_timeout_of_all_apps_is_reported():
    other = replace(one(), app=replace(REDIS, visibility_timeout=1800), workers=("w2", "w3"))
    (finding,) = find_findings(one(), other)
    assert (finding.id, str(finding.where)) == ("visibility-timeouts-differ", "shop")
    assert finding.evidence == "visibility_timeout: 30 min in 2 workers of shop, 1 h in 1 worker of shop."
    assert ids(one(), replace(other, app=REDIS)) == []
    on_another = replace(other, source="bank", app=replace(other.app, broker_mark="b"))
    assert ids(replace(one(), app=replace(REDIS, broker_mark="a")), on_another) == []
    on_the_same = replace(on_another, app=replace(other.app, broker_mark="a"))
    assert [str(f.where) for f in find_findings(replace(one(), app=replace(REDIS, broker_mark="a")), on_the_same)] == [
        "bank",
        "shop",
    ]


def test_prefetch_and_queues_are_judged_where_they_matter():
    assert ids(one(app=replace(REDIS, prefetch_multiplier=0))) == ["prefetch-without-bound"]
    assert ids(one(app=replace(AMQP, prefetch_multiplier=0))) == []
    assert ids(one(app=AMQP, queues=(Queue("emails", is_durable=False),))) == ["queue-forgets"]
    assert ids(one(queues=(Queue("emails", is_durable=False),))) == []  # Redis keeps lists whatever kombu calls them


def test_jitter_is_requested_only_at_volume():
    plain = replace(GOOD, retry_jitter=False)
    assert ids(one(plain)) == []
    assert ids(one(plain), per_minute={("shop", "emails"): 99}) == []
    (finding,) = find_findings(one(plain), per_minute={("shop", "emails"): 340})
    assert finding.evidence == "emails started 340 jobs/min in its busiest 15 minutes."
    # Of four tasks in one queue, each has a fourth of its jobs, for all that is known.
    four = replace(one(), tasks=(plain, *(replace(GOOD, name=f"other{n}") for n in range(3))))
    assert ids(four, per_minute={("shop", "emails"): 340}) == []


def test_a_policy_without_a_budget_is_reported_at_volume():
    policy = {name: value for name, value in GOOD_POLICY.items() if name != "budget"}
    enforcing = one(modes=frozenset({"enforce"}))
    assert ids(enforcing, policies=[policy]) == []
    assert ids(enforcing, policies=[policy], per_minute={("shop", "emails"): 340}) == ["no-budget-at-volume"]
    assert ids(enforcing, policies=[policy | {"mode": "observe"}], per_minute={("shop", "emails"): 340}) == []


def test_policies_that_share_a_budget_must_agree_on_it():
    one_budget = {"per_minute": 100, "burst": 10, "group": "mail"}
    other = GOOD_POLICY | {"name": "other", "match": {"task": "other"}}
    policies = [GOOD_POLICY | {"budget": one_budget}, other | {"budget": one_budget | {"burst": 20}}]
    findings = find_findings(policies=policies)
    assert [(f.id, f.where.policy) for f in findings] == [
        ("budget-group-differs", "other"),
        ("budget-group-differs", "emails"),
    ]
    assert findings[0].evidence == "The group mail: 100/min, burst 10 (emails); 100/min, burst 20 (other)."
    assert ids(policies=[GOOD_POLICY | {"budget": one_budget}, other | {"budget": one_budget}]) == []


def test_permanent_errors_that_were_seen_make_it_grave():
    broad = replace(GOOD, autoretry_for=("builtins.Exception",))
    (finding,) = find_findings(one(broad), errors={("shop", "send"): {"TypeError": 12, "Timeout": 900}})
    assert (finding.severity, finding.evidence) == (
        "high", "Retries Exception. Stored failures: 12 TypeError.",
    )  # fmt: skip
    assert [f.severity for f in find_findings(one(broad), errors={("shop", "send"): {"Timeout": 900}})] == ["medium"]
    policy = {name: value for name, value in GOOD_POLICY.items() if name != "classes"}
    assert "retries-permanent-errors" in ids(policies=[policy])
    assert "retries-permanent-errors" not in ids(policies=[GOOD_POLICY])


def test_retry_after_is_missed_only_where_a_limit_was_seen():
    assert ids(one()) == []
    assert ids(one(), rate_limited={("shop", "send"): 37}) == ["ignores-retry-after"]
    calling = replace(GOOD, autoretry_for=(), calls=(RetryCall("", "error.retry_after"),))
    assert ids(one(calling), rate_limited={("shop", "send"): 37}) == []
    deaf = GOOD_POLICY | {
        "retry_after": {"respect": False},
        "classes": [{"error": "Limited", "as": "rate_limited"}, {"error": "ValueError", "as": "permanent"}],
    }
    assert ids(policies=[deaf]) == ["ignores-retry-after"]


def test_a_policy_with_poison_bounds_crashes_only_where_it_is_enforced():
    looping = replace(GOOD, reject_on_worker_lost=True)
    assert "requeue-without-crash-cap" in ids(one(looping), policies=[GOOD_POLICY])  # the worker may only capture
    assert ids(one(looping, modes=frozenset({"enforce"})), policies=[GOOD_POLICY]) == []
    bare = {name: value for name, value in GOOD_POLICY.items() if name != "poison"}
    assert ids(one(looping, modes=frozenset({"enforce"})), policies=[bare]) == ["requeue-without-crash-cap"]
    limited = (Queue("emails", kind="quorum", delivery_limit=20),)
    assert ids(one(looping, AMQP, queues=limited)) == []
    (finding,) = find_findings(one(looping, AMQP, queues=(Queue("emails", kind="quorum"),)))
    assert (finding.severity, finding.evidence) == (
        "low", "The quorum queue emails sets no x-delivery-limit: 20 on RabbitMQ 4, none before.",
    )  # fmt: skip


def test_retries_in_layers_are_multiplied_and_grave_from_three_by_three_by_three():
    two = replace(
        GOOD, max_retries=2, clients=(ClientRetries("urllib3", "http", 3), ClientRetries("tenacity", "post", 3))
    )
    (finding,) = [f for f in find_findings(one(two)) if f.id == "retries-multiplied"]
    assert finding.severity == "high"
    assert finding.evidence == (
        "3 attempts of the task × 3 of http (urllib3) × 3 of post (tenacity): up to 27 requests for one job."
    )
    assert [
        f.severity for f in find_findings(one(replace(two, clients=two.clients[:1]))) if f.id == "retries-multiplied"
    ] == ["medium"]
    once = replace(two, autoretry_for=())  # a task that is not retried has one layer
    assert "retries-multiplied" not in ids(one(once))


def test_results_must_outlive_retries_and_a_night():
    stored = replace(GOOD, stores_result=True)
    short = replace(REDIS, result_backend="redis", result_expires=600)
    assert [(f.id, f.severity) for f in find_findings(one(stored, short))] == [
        ("results-too-short-to-replay", "medium")
    ]
    hours = replace(short, result_expires=7200)
    assert [(f.id, f.severity) for f in find_findings(one(stored, hours))] == [("results-too-short-to-replay", "low")]
    assert ids(one(stored, replace(short, result_expires=86_400))) == []
    assert ids(one(stored, replace(short, result_expires=None))) == []  # kept for ever
    assert ids(one(GOOD, short)) == []  # nobody reads results of it


def test_workers_that_retry_one_task_differently_are_reported():
    old = replace(one(replace(GOOD, max_retries=8)), workers=("w2",))
    (finding,) = find_findings(one(), old)
    assert (finding.id, finding.evidence) == ("workers-differ", "2 ways.")
    assert "1 worker: autoretry_for=(ConnectionError,), max_retries=8" in finding.quoted
    assert ids(one(), replace(one(), workers=("w2",))) == []


def test_a_rate_limit_is_multiplied_by_the_workers_that_take_the_jobs():
    limited = replace(GOOD, rate_limit="10/m")
    assert ids(one(limited)) == []
    (finding,) = find_findings(one(limited, workers=("w1", "w2", "w3")))
    assert finding.evidence == "10/m in each of 3 workers that consume emails."
    assert ids(one(limited, workers=("w1", "w2"), consumed=("other",))) == []


def test_a_policy_that_workers_may_not_enforce_is_reported_with_them():
    findings = find_findings(one(workers=("w1", "w2"), modes=frozenset({"capture"})), policies=[GOOD_POLICY])
    assert [(f.id, f.evidence) for f in findings] == [("policy-held-back", "2 workers of shop run in mode capture.")]
    assert ids(one(), policies=[GOOD_POLICY | {"mode": "observe"}]) == []


def test_a_policy_for_no_known_task_is_reported_where_every_worker_reported_its_tasks():
    lost = GOOD_POLICY | {"match": {"task": "sned"}}
    assert "policy-matches-nothing" in ids(one(), policies=[lost], fully_reported=frozenset({"shop"}))
    assert ids(one(), policies=[lost]) == []
    assert "policy-matches-nothing" not in ids(one(left_out=1), policies=[lost], fully_reported=frozenset({"shop"}))
    assert ids(policies=[lost]) == []  # nobody lives


def test_what_a_policy_took_the_place_of_is_not_judged():
    fixed = replace(GOOD, retry_backoff=0)
    enforcing = one(fixed, modes=frozenset({"enforce"}))
    assert GROWTH in ids(enforcing)
    assert ids(enforcing, policies=[GOOD_POLICY]) == []
    assert GROWTH in ids(enforcing, policies=[GOOD_POLICY | {"native": "after"}])
    by_hand = replace(fixed, autoretry_for=(), calls=(CALL,))
    assert ids(one(by_hand, modes=frozenset({"enforce"})), policies=[GOOD_POLICY]) == []
    elsewhere = replace(by_hand, calls=(replace(CALL, is_plain=False),))  # with another queue: that stays Celery's
    assert GROWTH in ids(one(elsewhere, modes=frozenset({"enforce"})), policies=[GOOD_POLICY])


def test_the_worst_come_first_and_the_order_is_always_the_same():
    task = replace(GOOD, max_retries=None, retry_backoff=900, soft_time_limit=60)
    findings = find_findings(one(task))
    assert [f.severity for f in findings] == sorted((f.severity for f in findings), key=lint.SEVERITIES.index)
    assert findings == find_findings(one(task))


def test_one_crash_is_two_starts_where_a_complete_worker_dies():
    once = GOOD_POLICY | {"poison": {"crashes": 1}}
    assert ids(policies=[once]) == ["one-crash-is-two-starts"]
    assert "one-crash-is-two-starts" not in ids(policies=[GOOD_POLICY | {"poison": {"crashes": 2}}])


def test_keeping_jobs_that_come_back_by_themselves_is_reported_and_keeping_others_is_not():
    keeping = GOOD_POLICY | {"file_lost": True}
    early = replace(GOOD, acks_late=False)
    enforced = {"modes": frozenset({"enforce"})}
    (finding,) = find_findings(one(**enforced), policies=[keeping])
    assert (finding.id, finding.severity, finding.where.policy) == ("keeps-what-comes-back", lint.LOW, "emails")
    assert finding.evidence == "The only matching task is acknowledged late."
    assert "keeps-what-comes-back" not in ids(one(early, **enforced), policies=[keeping])
    assert "keeps-what-comes-back" not in ids(one(**enforced), one(early, **enforced), policies=[keeping])
    assert "keeps-what-comes-back" not in ids(policies=[keeping])
    assert "keeps-what-comes-back" not in ids(one(**enforced), policies=[GOOD_POLICY])


def test_a_breaker_holds_what_one_dependency_needs_and_has_a_second_attempt():
    good = GOOD_POLICY | {"breaker": {}}
    every = good | {"match": {}}
    assert "breaker-for-all-tasks" in ids(policies=[every])
    assert "breaker-for-all-tasks" not in ids(policies=[GOOD_POLICY | {"match": {}}])
    assert "breaker-for-all-tasks" not in ids(policies=[good])
    assert "breaker-without-retries" in ids(policies=[good | {"max_attempts": 1}])
    assert "breaker-without-retries" not in ids(
        policies=[{"name": "only", "match": good["match"], "breaker": {}}, good]
    )


# -- options of jobs that lie in queues -------------------------------------------------------------------------------

LYING = Options(
    "hooks", "hook", '{"attempts": 8}', attempts=8, backoff="exponential", first_delay_s=5, jobs=3, sample_size=9
)


def lying(options: Options = LYING, dead: int = 0, **facts) -> list[tuple[str, str]]:
    some = FoundOptions("shop", options=(options,), queues=(SampledQueue(options.queue, 9, 9, dead),))
    find_findings = lint.findings(lint.case([], [], lint.Facts(**facts), [some]))
    assert all(one.quoted == options.quoted and "3 of 9 jobs checked in hooks" in one.evidence for one in find_findings)
    return [(one.id, one.severity) for one in find_findings]


def test_a_job_that_is_retried_as_it_should_be_breaks_no_rule():
    assert lying() == []


@pytest.mark.parametrize(
    ("attempts", "first_s", "verdict"), [(8, 9, "pass"), (8, 9.4, "fail"), (2, 500, "pass"), (9, 5, "fail"), (1, 5000, "not applicable")]
)  # fmt: skip
def test_the_attempts_are_the_cap_of_a_backoff_that_has_none(attempts, first_s, verdict):
    some = FoundOptions("shop", options=(replace(LYING, attempts=attempts, first_delay_s=first_s),))
    (one,) = lint.check(lint.case([], [], lint.Facts(), [some])).verdicts
    assert (one.verdict, one.by) == (verdict, "job options")


@pytest.mark.parametrize(
    ("keeps", "keeps_s", "dead", "failed", "severity"),
    [
        (500, None, 500, 0, "high"), (500, None, 499, 0, None), (500, None, 499, 33, None), (500, None, 499, 34, "medium"),
        (None, 3600, 10**6, 10**6, "low"), (None, 86_400, 0, 0, None), (None, None, 10**6, 10**6, None),
    ],
)  # fmt: skip
def test_dead_letters_that_a_system_drops_by_itself(keeps, keeps_s, dead, failed, severity):
    find_findings = lying(
        replace(LYING, keeps=keeps, keeps_s=keeps_s, jitter=1), dead, failed_per_minute={("shop", "hooks"): failed}
    )
    assert find_findings == ([("fewer-dead-letters-kept-than-die", severity)] if severity else [])


def test_options_that_lose_dead_letters_or_do_nothing():
    assert lying(replace(LYING, keeps=0)) == [("dead-letters-dropped-at-once", "high")]
    assert lying(replace(LYING, attempts=1)) == [("backoff-without-attempts", "medium")]
    assert lying(replace(LYING, attempts=1, backoff="", first_delay_s=0)) == []


def test_a_queue_in_which_only_some_jobs_have_a_priority():
    def find_evidence(**more: int) -> list[str]:
        some = FoundOptions("shop", options=(replace(LYING, **more),), queues=(SampledQueue("hooks", 9, 9, 0),))
        return [f"{one.where}: {one.evidence}" for one in lint.findings(lint.case([], [], lint.Facts(), [some]))]

    assert find_evidence(without_priority=3) == find_evidence(with_priority=3) == []
    assert find_evidence(without_priority=2, with_priority=1) == [
        "shop · queue hooks: 2 of 9 jobs checked in hooks have no priority, 1 have one."
    ]


def test_retries_without_jitter_where_many_fail():
    volume = {("shop", "hooks"): 100.0}
    assert lying(failed_per_minute=volume) == [("no-jitter-at-volume", "medium")]
    assert lying(replace(LYING, jitter=0.1), failed_per_minute=volume) == []
    assert lying(failed_per_minute={("shop", "hooks"): 99.0}) == []


def test_a_strategy_of_the_worker_is_missed_where_jobs_stall():
    own = replace(LYING, backoff="ours", first_delay_s=0)
    assert lying(own) == []
    assert lying(replace(own, stalled=1)) == [("backoff-without-strategy", "high")]
    assert lying(replace(own, is_named=False)) == [("backoff-without-strategy", "medium")]


def test_an_error_that_calls_itself_permanent_is_retried():
    find_evidence = lint.findings(lint.case([], [], lint.Facts(permanent_retried={("shop", "sync"): 3})))
    assert [(one.id, str(one.where), one.evidence) for one in find_evidence] == [
        ("permanent-by-word-only", "shop · sync", "3 stored failures with such a message and several attempts.")
    ]  # fmt: skip


def test_what_is_reported_about_options_is_read_again_as_it_was():
    some = FoundOptions(
        "shop", 5.0, (LYING, replace(LYING, queue="mail", keeps=0)), (SampledQueue("hooks", 9, 10, 2),), 3
    )
    assert read(document(some), "shop") == some
    assert read(b'{"v": 2}', "shop") is None and read(b"[" * 9999, "shop") is None
    assert (
        read(b'{"v": 1, "options": [{"queue": "q", "task": 5}, 7], "queues": {}, "left_out": -1}', "shop").options == ()
    )


def test_a_policy_for_a_limit_that_gives_retries_to_tasks_without_any_is_found():
    bare = one(Task("send", "emails"), modes=frozenset({"enforce"}))
    limit = {"name": "two", "match": {"task": "send"}, "mode": "enforce", "concurrency": {"limit": 2, "key": "queue"}}
    # As a version stored it in which each policy decided about retries.
    older = limit | {"max_attempts": 5, "native": "replace", "exhausted": "dead"}
    (finding,) = [one for one in find_findings(bare, policies=[older]) if one.id == "limit-adds-retries"]
    assert finding.evidence == "Up to 5 attempts for 1 task without retries, such as send."
    for policy in (limit, older | {"max_attempts": 3}, older | {"mode": "observe"}, older | {"concurrency": None}):
        assert "limit-adds-retries" not in ids(bare, policies=[policy])
    assert "limit-adds-retries" not in ids(one(modes=frozenset({"enforce"})), policies=[older])
