"""Page limits of RabbitMQ's dead-letter queues: each letter is reported once, whatever lies in the queues beside it."""

from __future__ import annotations

from collections import Counter

import pytest

from jobs_admin.sources.rabbitmq import reading as rabbitmq_reading
from jobs_admin.sources.rabbitmq import source as rabbitmq_source
from tests.kit.rabbit_bus import Queues
from tests.kit.waiting import wait_until
from tests.sources.pulled_contract import read

pytestmark = pytest.mark.server
PAGES = {"mirror": rabbitmq_source._PAGE, "drain": rabbitmq_reading._DRAINED_AT_ONCE}


@pytest.mark.parametrize("mode", ["mirror", "drain"])
class TestPages(Queues):
    @pytest.mark.parametrize("sizes", [(-1, None), (0, None), (1, None, None), (None, 0, None, 0), (0, 0, 1)], ids=str)
    def test_queues_that_fill_a_page_are_read_to_their_end_beside_empty_ones(self, mode, sizes):
        names = [f"{self.queue}-{index}.dlq" for index in range(len(sizes))]
        counts = [0 if more is None else PAGES[mode] + more for more in sizes]
        for name, count in zip(names, counts, strict=True):
            self.bus.declare(name)
            for n in range(count):
                self.bus.publish(name, {"n": n}, message_id=f"{name}-{n}")
            wait_until(lambda name=name, count=count: self.bus.depth(name) == count)
        options = {"mode": mode, "dead_letter_queues": [{"name": name, "of": f"of-{name}"} for name in names]}
        reports, after = read(self.another(**options))
        expected = Counter({f"of-{name}": count for name, count in zip(names, counts, strict=True) if count})
        assert Counter(one.queue for one in reports) == expected
        assert len({(one.queue, one.job_id) for one in reports}) == len(reports)
        again, _ = read(self.another(**options), after)
        assert Counter(one.queue for one in again) <= (expected if mode == "mirror" else Counter())
