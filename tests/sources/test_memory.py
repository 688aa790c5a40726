from __future__ import annotations

import json

import pytest

from jobs_admin.sources import connect
from tests.sources.contract import RecallContract


@pytest.mark.long("Takes thousands of jobs back, beside a sender and a worker.")
class TestMemory(RecallContract):
    raw = json.dumps({"args": [1], "kwargs": {}}).encode()

    @pytest.fixture
    def source(self):
        self.running = connect("here", "memory", "", queues=[self.queue])
        return self.running

    def waiting(self, queue):
        return [job["id"] for job in self.running.queues[queue]]

    def fetch(self, queue):
        job = self.running.fetch(queue)
        return job and job["id"]

    def lose_everything(self):
        self.running.forget()

    def unplug(self, source):
        source.reachable = False
