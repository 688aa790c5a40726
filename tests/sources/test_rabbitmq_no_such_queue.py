"""A dead-letter queue that is not there: what is in it is not known, which is not zero."""

from __future__ import annotations

import pytest

from tests.kit.rabbit_bus import Queues

pytestmark = pytest.mark.server


class TestNoSuchQueue(Queues):
    @pytest.mark.parametrize("of", ["", "nosuch"])
    def test_a_queue_that_is_not_there_is_not_empty(self, of):
        self.bus.declare(self.dlq)
        named = {"name": "nosuch.dlq", "of": of} if of else "nosuch.dlq"
        source = self.another(dead_letter_queues=[named, self.dlq], management_url="")
        depths = {one.queue: (one.waiting, one.source_dead) for one in source.depths()}
        assert depths[of or "nosuch.dlq"] == (None, None)
        assert depths[self.dlq] == (0, 0)
