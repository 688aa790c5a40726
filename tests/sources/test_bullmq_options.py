"""Planted mistakes in queues of a real BullMQ: lint finds each in what lies there, quotes it as it lies, and invents none."""

from __future__ import annotations

import json
import time

import pytest
import redis

from jobs_admin.core import lint
from jobs_admin.sources.bullmq import options as bullmq_options
from jobs_admin.sources.bullmq.options import OptionsSurvey, read_job
from tests.kit import node
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.server

SOUND = {
    "attempts": 8,
    "backoff": {"type": "exponential", "delay": 5000, "jitter": 0.5},
    "removeOnFail": {"count": 50000},
}
# queue -> the options of its jobs, and the rules that they break.
PLANTED = {
    "tidy": (SOUND, set()),
    "fixed": ({**SOUND, "backoff": {"type": "fixed", "delay": 300000}}, {lint.GROWTH}),
    "number": ({**SOUND, "backoff": 60000}, {lint.GROWTH}),
    "at-once": ({"attempts": 3}, {lint.GROWTH, "gives-up-before-outage"}),
    "uncapped": ({**SOUND, "attempts": 12}, {lint.GROWTH}),
    "short": ({"attempts": 5, "backoff": {"type": "exponential", "delay": 2000}}, {"gives-up-before-outage"}),
    "dropping": ({**SOUND, "removeOnFail": True}, {"dead-letters-dropped-at-once"}),
    "few": ({"attempts": 1, "removeOnFail": 2}, {"fewer-dead-letters-kept-than-die"}),
    "brief": ({"attempts": 1, "removeOnFail": {"age": 3600}}, {"fewer-dead-letters-kept-than-die"}),
    "idle": ({"backoff": {"type": "exponential", "delay": 5000}}, {"backoff-without-attempts"}),
    "text": ({"attempts": 8, "backoff": "exponential"}, {"backoff-without-strategy"}),
    "unknown": ({"attempts": 8, "backoff": {"type": "custom"}}, {"backoff-without-strategy"}),
    "strategy": ({"attempts": 8, "backoff": {"type": "ours"}}, set()),
    # As Archon (JOB_DEFAULTS) and Villa Life have them: docs/policies.md links to both.
    "emails": ({"attempts": 4, "backoff": {"type": "exponential", "delay": 2000}, "removeOnFail": {"count": 500}}, {"gives-up-before-outage"}),
    "webhooks": ({"attempts": 6, "backoff": {"type": "exponential", "delay": 5000}, "removeOnFail": {"count": 1000}}, {"gives-up-before-outage"}),
    "payments": ({"attempts": 3, "backoff": {"type": "fixed", "delay": 60000}, "removeOnFail": {"count": 5000}}, {lint.GROWTH, "gives-up-before-outage"}),
    "sync": ({"attempts": 5, "backoff": {"type": "exponential", "delay": 1000}, "removeOnFail": 1000}, {"gives-up-before-outage"}),
}  # fmt: skip
QUICK = {"lockDuration": 300, "stalledInterval": 200, "maxStalledCount": 3}


@pytest.fixture(scope="module")
def queue_messages(engine):
    """The messages in the queues, once what has to fail has failed."""
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    client = redis.Redis.from_url(engine.url.removesuffix("/0") + "/5")
    client.flushdb()
    try:
        with node.Bullmq(6, engine.url.removesuffix("/0") + "/5") as bull:
            for queue, (options, _) in PLANTED.items():
                for _ in range(3):
                    bull.add(queue, f"{queue}-job", {"fails": 9}, **options)
            bull.add("mixed", "urgent", **SOUND, priority=1)
            bull.add("mixed", "any", **SOUND)
            # As many put a job aside (tests/node/forwarders), and believes that it comes last.
            bull.add("dead-letter", "failed-job", {"originalJob": {}}, attempts=1, priority=1)
            bull.work("few")
            bull.work("unknown", **QUICK)
            # All three have ended: the last may be active still where two lie there and none waits.
            over = {"failed": 2, "wait": 0, "active": 0}
            counts = {"failed": client.zcard, "wait": client.llen, "active": client.llen}
            wait_until(lambda: {name: counts[name](f"bull:few:{name}") for name in over} == over)
            wait_until(lambda: all(client.hget(f"bull:unknown:{n}", "stc") for n in (1, 2, 3)))
        queues = {queue: f"bull:{queue}:" for queue in (*PLANTED, "mixed", "dead-letter")}
        yield OptionsSurvey(client).sample("shop", time.time(), queues, {"dead-letter"})
    finally:
        client.flushdb()
        client.close()


def test_each_planted_mistake_is_found_and_none_is_invented(queue_messages):
    broken: dict[str, set[str]] = {queue: set() for queue in (*PLANTED, "mixed", "dead-letter")}
    for one in lint.findings(lint.case([], [], lint.Facts(), [queue_messages])):
        broken[one.where.queue].add(one.id)
    priorities = {"mixed": {"no-priority-goes-first"}, "dead-letter": {"dead-letters-go-first"}}
    assert broken == {queue: rules for queue, (_, rules) in PLANTED.items()} | priorities


def test_each_distinct_way_is_quoted_as_it_was_configured_with_how_many_have_it(queue_messages):
    by_queue = {one.queue: one for one in queue_messages.options}
    for queue, (options, _) in PLANTED.items():
        lying = json.loads(by_queue[queue].quoted)
        backoff = options.get("backoff")  # BullMQ itself writes a bare number as what it means
        usual = (
            {"attempts": 0} | options | ({"backoff": {"type": "fixed", "delay": backoff}} if backoff == 60000 else {})
        )
        assert lying == usual, queue
        jobs = 2 if queue == "few" else 3
        assert (by_queue[queue].task, by_queue[queue].jobs) == (f"{queue}-job", jobs), queue
        assert by_queue[queue].example in ("1", "2", "3"), queue  # the newest, by the millisecond


def test_the_check_has_a_verdict_for_each_and_reports_in_which_job_it_is(queue_messages):
    verdicts = {one.where.queue: one for one in lint.check(lint.case([], [], lint.Facts(), [queue_messages])).verdicts}
    found_verdicts = {queue: verdicts[queue].verdict for queue in ("tidy", "short", "uncapped", "idle", "strategy")}
    assert found_verdicts == {
        "tidy": "pass",
        "short": "pass",
        "uncapped": "fail",
        "idle": "not applicable",
        "strategy": "cannot tell",
    }
    example = next(one.example for one in queue_messages.options if one.queue == "fixed")
    assert verdicts["fixed"].why == f"Every wait is the same: 5 min. 3 of 3 jobs checked in fixed, latest {example}."


def test_of_a_long_list_the_latest_are_always_checked_and_the_others_in_turn(engine):
    client = redis.Redis.from_url(engine.url.removesuffix("/0") + "/5")
    with client.pipeline() as pipe:
        for n in range(100):
            pipe.hset(
                f"bull:long:{n}", mapping={"opts": json.dumps({"attempts": n // 10 + 2}), "name": "job", "timestamp": n}
            )
            pipe.lpush("bull:long:wait", n)
        pipe.execute()
    survey = OptionsSurvey(client, of_a_list=(20, 20))
    first = survey.sample("shop", 0, {"long": "bull:long:"})
    assert [one.attempts for one in first.options] == [11, 10]  # the newest ten, and ten more
    assert (first.queues[0].jobs, first.queues[0].of) == (20, 100)
    for _ in range(8):
        sample = survey.sample("shop", 0, {"long": "bull:long:"})
    assert sorted(one.attempts for one in sample.options) == [*range(2, 12)]
    client.delete("bull:long:wait")
    assert survey.sample("shop", 0, {"long": "bull:long:"}).options == ()
    client.flushdb()


@pytest.mark.parametrize("opts", [b"", b"[]", b"[" * 5000, b'{"attempts": NaN, "backoff": {"delay": "x", "type": []}}', b'{"attempts": 1e999, "backoff": 1e400}',
                                  b'{"attempts": -5, "removeOnFail": {"count": [], "age": {}}}', b'{"attempts": %s}' % (b"9" * 5000), b"\xff"])  # fmt: skip
def test_options_that_make_no_sense_break_nothing(opts):
    one = read_job("q", "1", [opts, b"\xff\x00", b"soon", b"-", None])
    queue_messages = bullmq_options.FoundOptions("shop", 0, (one,) if one else ())
    lint.findings(lint.case([], [], lint.Facts(), [queue_messages]))
    lint.check(lint.case([], [], lint.Facts(), [queue_messages]))


def test_what_is_no_queue_or_too_large_is_left_out_and_the_rest_is_reported(engine):
    client = redis.Redis.from_url(engine.url.removesuffix("/0") + "/5")
    client.flushdb()
    client.set("bull:odd:wait", "no list")
    client.rpush("bull:odd:failed", "no set")
    client.zadd("bull:odd:delayed", {"gone": 1, "large": 2, "named": 3, "text": 4, "good": 5})
    client.hset("bull:odd:large", mapping={"opts": json.dumps({"x": "x" * 70_000}), "name": "job"})
    client.hset("bull:odd:named", mapping={"opts": "{}", "name": "n" * 70_000})
    client.set("bull:odd:text", "no hash")
    secret = {"attempts": 2, "backoff": {"type": "ours", "api_key": "sk-live-0123456789abcdef"}}
    client.hset("bull:odd:good", mapping={"opts": json.dumps(secret), "name": "job"})
    queue_messages = OptionsSurvey(client).sample("shop", 0, {"odd": "bull:odd:", "none": "bull:none:"})
    client.flushdb()
    (one,) = queue_messages.options
    assert (one.example, one.backoff) == ("good", "ours") and "sk-live" not in one.quoted
    assert [(queue.queue, queue.jobs, queue.of) for queue in queue_messages.queues] == [("odd", 1, 5), ("none", 0, 0)]
