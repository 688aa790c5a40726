"""Dead letters of SQS on a whole desk: filed before they are deleted, replayed, dead again."""

from __future__ import annotations

import pytest

from jobs_admin import config, replays
from jobs_admin.models import Attempt, Failure, ReplayItem
from jobs_admin.retries import pulling
from jobs_admin.sources.base import SourceUnreachable
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.kit.sqs import REGION, Gate, Shop
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.server]


class TestADesk(Shop):
    @pytest.fixture(autouse=True)
    def _desk(self, _place, settings, tmp_path, store):
        self.gate = Gate(self.url)
        file = tmp_path / "sources.toml"
        file.write_text(
            f'[sources.shop]\nbackend = "sqs"\nurl = "sqs://{REGION}"\nqueues = ["{self.queue}"]\n'
            f'endpoint_url = "{self.gate.url}"\n'
        )
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
        forget_configuration(config)
        yield
        config.adapter("shop").close()
        self.gate.close()

    def pull(self):
        while pulling.pull("shop", "one"):
            pass

    def restart(self):
        """The reader dies, and another process reads when what it had received is visible again."""
        self.become_visible(config.adapter("shop"))
        forget_configuration(config)

    def replay(self):
        ids = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
        draft = replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="partner is back")
        replay = replays.start(ANN, draft)

        def is_sent():
            replays.create_items(), replays.send(f"desk {replay.key}"), replays.settle()
            return not ReplayItem.objects.filter(replay=replay, state="planned").exists()

        wait_until(is_sent)

    def test_a_reader_that_dies_before_or_after_it_filed_loses_and_doubles_nothing(self):
        self.bury(12)
        config.adapter("shop").dead_letters("")
        self.restart()  # nothing was filed
        self.gate.faults["DeleteMessageBatch"] = (503, "ServiceUnavailable")
        with pytest.raises(SourceUnreachable):
            self.pull()
        assert Failure.objects.count() == 12 == self.count_in(self.dlq)  # filed first
        self.gate.faults.clear()
        self.restart()
        self.pull()
        assert Failure.objects.count() == 12 == Attempt.objects.count() and self.count_in(self.dlq) == 0

    def test_from_dead_to_sent_to_dead_again_it_is_one_failure(self):
        self.bury(3)
        self.pull()
        assert set(Failure.objects.values_list("queue", "state", "error_type")) == {
            (self.queue, "dead", "MaxReceiveCount")
        }
        self.replay()
        assert set(ReplayItem.objects.values_list("state", flat=True)) == {"sent"} and self.count_in(self.queue) == 3
        self.fail_again(self.queue)
        self.pull()
        assert set(Failure.objects.values_list("state", "run")) == {("dead", 2)} and Failure.objects.count() == 3
        assert Attempt.objects.count() == 6 and self.count_in(self.dlq) == 0
