"""Page limits of BullMQ that several queues share: each dead job is reported once, whichever queue fills the page."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import redis

from jobs_admin.sources import connect
from jobs_admin.sources.bullmq import dead_letters
from jobs_admin.sources.bullmq import reading as bullmq_reading
from tests.sources.pulled_contract import read

pytestmark = pytest.mark.server

PAGE = bullmq_reading._PAGE


@pytest.fixture
def url(engine):
    return engine.url.removesuffix("/0") + "/6"


@pytest.fixture
def client(url):
    with redis.Redis.from_url(url, decode_responses=True) as made:
        made.flushdb()
        yield made
        made.flushdb()


@pytest.fixture
def sources(url):
    """Connect adapters, each as another process has it."""
    made = []

    def another(options=None):
        made.append(connect("shop", "bullmq", url, [], options or {}))
        return made[-1]

    yield another
    for one in made:
        one.close()


def make_queues(client, sizes, *, is_one_moment=False):
    """Queues by name (`q00`, `q01` …) with that many dead jobs each, and no event of them."""
    now = int(client.time()[0]) * 1000 - 10_000
    with client.pipeline(transaction=False) as pipe:
        for index, size in enumerate(sizes):
            queue = f"q{index:02}"
            pipe.hset(f"bull:{queue}:meta", "version", "bullmq:5.81.5")
            for n in range(size):
                at = now if is_one_moment else now + n
                fields = {"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "finishedOn": at, "atm": 1}
                pipe.hset(f"bull:{queue}:{n}", mapping=fields)
                pipe.zadd(f"bull:{queue}:failed", {str(n): at})
        pipe.execute()
    return Counter({f"q{index:02}": size for index, size in enumerate(sizes) if size})


def count_by_queue(reports):
    jobs = {(one.queue, one.job_id) for one in reports}
    assert len(jobs) == len(reports)  # each job once
    return Counter(queue for queue, _ in jobs)


SIZES = [
    pytest.param([PAGE + more, *others], id=f"{PAGE + more}-beside-{others}")
    for more in (-1, 0, 1)
    for others in ([], [0], [0, 0], [1], [0] * 19, [3] * 19)
]


@pytest.mark.parametrize("is_one_moment", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        *SIZES,
        pytest.param([0, PAGE, 0], id="between-empty-ones"),
        pytest.param([PAGE, PAGE, 0, PAGE, 0], id="several-full"),
        pytest.param([PAGE + 1, 2 * PAGE, 0, PAGE - 1], id="several-over"),
        pytest.param([PAGE // 4] * 4 + [0], id="full-together"),
        pytest.param([PAGE // 20] * 20, id="full-by-twenty"),
        pytest.param([2 * PAGE] + [0] * 19, id="two-pages"),
    ],
)
def test_queues_that_fill_a_page_are_read_to_their_end_beside_empty_ones(client, sources, sizes, is_one_moment):
    expected = make_queues(client, sizes, is_one_moment=is_one_moment)
    source = sources()
    reports, after = read(source)
    assert count_by_queue(reports) == expected

    last = f"q{len(sizes) - 1:02}"
    client.hset(f"bull:{last}:late", mapping={"name": "w", "data": "{}", "timestamp": 1, "failedReason": "x", "atm": 1})
    client.zadd(f"bull:{last}:failed", {"late": int(client.time()[0]) * 1000})
    more, after = read(source, after)
    assert [(one.queue, one.job_id) for one in more] == [(last, "late")]

    again, _ = read(sources(), after)  # a process started again: what it repeats is known, and it comes to an end
    assert count_by_queue(again) <= expected + Counter({last: 1})


def test_a_process_started_within_a_backlog_reads_the_rest_of_every_queue(client, sources):
    expected = make_queues(client, [PAGE, 0, 2 * PAGE, 0])
    pulled = sources().dead_letters("")
    assert pulled.is_more
    first = {(one.queue, one.job_id) for one in pulled.reports}
    rest, _ = read(sources(), pulled.after)
    assert Counter(queue for queue, _ in first | {(one.queue, one.job_id) for one in rest}) == expected


def test_a_long_backlog_of_one_queue_delays_no_other(client, sources):
    make_queues(client, [3 * PAGE, 5, 3 * PAGE, 1])
    reports = sources().dead_letters("").reports
    assert count_by_queue(reports)["q01"] == 5 and count_by_queue(reports)["q03"] == 1
    assert count_by_queue(reports)["q00"] and count_by_queue(reports)["q02"]


COPIES = dead_letters._AT_ONCE


@pytest.mark.parametrize(
    "sizes",
    [
        *([COPIES + more, *others] for more in (-1, 0, 1) for others in ([], [0], [1], [0] * 9)),
        [COPIES] * 3,
        [2 * COPIES, 0, 2 * COPIES + 1],
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["wait", "paused", "prioritized", "failed"])
def test_dead_letter_queues_that_fill_a_page_are_read_to_their_end_beside_empty_ones(client, sources, sizes, place):
    now = int(client.time()[0]) * 1000
    names = [f"dead-{index:02}" for index in range(len(sizes))]
    with client.pipeline(transaction=False) as pipe:
        for name, size in zip(names, sizes, strict=True):
            pipe.hset(f"bull:{name}:meta", "version", "bullmq:5.81.5")
            pipe.set(f"bull:{name}:id", size)
            for n in range(1, size + 1):
                data = {
                    "originalQueue": "emails", "originalJobId": f"{name}.{n}", "originalJobName": "w", "originalData": {},
                    "failureReason": "x", "attemptsMade": 1, "failedAt": "2026-11-20T10:00:00.000Z",
                }  # fmt: skip
                fields = {"name": "failed-job", "data": json.dumps(data), "timestamp": now + n, "failedReason": "y"}
                pipe.hset(f"bull:{name}:{n}", mapping=fields)
                if place in ("wait", "paused"):
                    pipe.lpush(f"bull:{name}:{place}", n)
                else:
                    pipe.zadd(f"bull:{name}:{place}", {str(n): now + n if place == "failed" else n})
        pipe.execute()
    options = {"dead_letter_queues": names}
    reports, after = read(sources(options))
    jobs = {one.job_id for one in reports}
    assert len(jobs) == len(reports) == sum(sizes) and {one.queue for one in reports} <= {"emails"}
    again, _ = read(sources(options), after)  # a process started again comes to an end, too
    assert {one.job_id for one in again} <= jobs
