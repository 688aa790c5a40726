"""Dead letters of RabbitMQ on a whole desk: pulled, replayed, dead again, discarded; on a real node."""

from __future__ import annotations

import time

import pytest

from jobs_admin import config, replays
from jobs_admin.failures import triage
from jobs_admin.models import Attempt, Failure, ReplayItem
from jobs_admin.retries import pulling, rechecking
from tests.kit.people import ANN
from tests.kit.rabbit_bus import Queues, broken
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.django_db, pytest.mark.server]


@pytest.mark.parametrize("mode", ["mirror", "drain"])
class TestADesk(Queues):
    @pytest.fixture(autouse=True)
    def _desk(self, _place, settings, tmp_path, mode, store):
        file = tmp_path / "sources.toml"
        file.write_text(
            f'[sources.bus]\nbackend = "rabbitmq"\nurl = "{self.node.url}"\nmode = "{mode}"\n'
            f'management_url = "{self.node.management_url}"\ndead_letter_queues = ["{self.dlq}"]\n'
        )
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        yield
        config.adapter("bus").close()

    def bury(self, count):
        for n in range(count):
            self.bus.publish(self.queue, {"n": n}, message_id=f"m-{n}", type="mail")
        self.bus.consume(self.queue, self.dlq, broken)

    def pull(self):
        rechecking._rested.clear()  # the dead and the discarded are seen to every few seconds: here at each pull
        while pulling.pull("bus", "one"):
            pass

    def replay(self):
        ids = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
        draft = replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="partner is back")
        replay = replays.start(ANN, draft)
        ends = time.monotonic() + 90
        while ReplayItem.objects.filter(replay=replay, state="planned").exists() and time.monotonic() < ends:
            replays.create_items(), replays.send(f"desk {replay.key}"), replays.settle()

    def test_from_dead_to_sent_to_dead_again_it_is_one_failure(self, mode):
        self.bury(3)
        self.pull()
        assert set(Failure.objects.values_list("queue", "state", "task")) == {(self.queue, "dead", "mail")}
        assert Failure.objects.count() == 3
        self.replay()
        assert set(ReplayItem.objects.values_list("state", flat=True)) == {"sent"}
        assert self.bus.depth(self.queue) == 3
        self.pull()
        assert self.bus.depth(self.dlq) == 0 and Failure.objects.count() == 3
        self.bus.consume(self.queue, self.dlq, broken)
        self.pull()
        assert set(Failure.objects.values_list("state", "run")) == {("dead", 2)} and Failure.objects.count() == 3
        assert Attempt.objects.count() == 6

    def test_what_is_discarded_is_taken_out_of_the_queue(self, mode):
        self.bury(2)
        self.pull()
        triage.discard(ANN, selection=[Failure.objects.order_by("id")[0].pk], reason="a test")
        self.pull()
        assert self.bus.depth(self.dlq) == (1 if mode == "mirror" else 0)
        assert sorted(Failure.objects.values_list("state", flat=True)) == ["dead", "discarded"]
