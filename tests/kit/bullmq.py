"""Queues of BullMQ on a real server, with real producers and workers of each major."""

from __future__ import annotations

from itertools import count

import pytest
import redis

from dashboard.setup.engine import Engine, free_port
from jobs_admin.sources import connect
from tests.kit import node
from tests.kit.waiting import wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    running = Engine(tmp_path_factory.mktemp("bullmq")).start()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=node.MAJORS)
def bull(request, server):
    """A producer and worker of one major, for all tests; what jobs need is broken, so they die."""
    with node.Bullmq(request.param, server.url, broken=["partner"]) as running:
        yield running


@pytest.fixture
def bullmq_client(server):
    with redis.Redis.from_url(server.url, decode_responses=True) as made:
        yield made


class Bull:
    """A test's acts on one queue of its own: BullMQ's keys outlive a test, and a worker of Node its queues."""

    backend = "bullmq"

    @pytest.fixture(autouse=True)
    def _place(self, server, bull, bullmq_client):
        self.server, self.bull, self.client = server, bull, bullmq_client
        self.queue = f"emails-{next(_numbers)}"
        self.made = []
        for key in bullmq_client.scan_iter("redrive:*"):
            bullmq_client.delete(key)
        yield
        bull.break_("partner")
        bull.rest(self.queue)
        for one in self.made:
            one.close()

    def another(self, **options):
        return self.another_of([self.queue], **options)

    def another_of(self, queues, **options):
        made = connect("shop", self.backend, self.server.url, queues, options)
        self.made.append(made)
        return made

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def unplug(self, source):
        source._wire.client.connection_pool.reset()  # its connections know where they go
        source._wire.client.connection_pool.connection_kwargs["port"] = free_port()

    def key(self, name, queue=None):
        return f"bull:{queue or self.queue}:{name}"

    def die(self, n, **options):
        return self.bull.add(self.queue, "welcome", {"n": n, "needs": "partner"}, **options)

    def failed(self):
        return self.client.zcard(self.key("failed"))

    def let_fail(self, queue=None, more=1):
        """A worker runs what waits, until that many more are dead."""
        queue = queue or self.queue
        before = self.client.zcard(self.key("failed", queue))
        self.bull.work(queue)
        wait_until(lambda: self.client.zcard(self.key("failed", queue)) >= before + more)
        self.bull.rest(queue)


class LegacyBull(Bull):
    """The same on Bull: a module supplies `bull` by `node.Bullmq("bull4", …)`."""

    backend = "bull"

    def waiting(self, queue):
        """Ids in a queue, the one that runs first first."""
        lists = [one for state in ("wait", "paused") for one in self.client.lrange(self.key(state, queue), 0, -1)]
        return lists[::-1]

    def let_run(self):
        self.bull.fix("partner")
        self.bull.work(self.queue)
        wait_until(lambda: not self.waiting(self.queue) and not self.client.llen(self.key("active")))
        self.bull.rest(self.queue)
        self.bull.break_("partner")
