"""Tests that every source passes, on its real server.

A subclass supplies:

    raw                              a captured message
    def source(self)                 fixture: an adapter that is connected to an empty server
    def waiting(self, queue)         ids in this queue, the one that runs first first
    def lose_everything(self)        flush the server
    def unplug(self, source)         make the server unreachable for this adapter
    def fetch(self, queue)           take the job that runs next, as a worker does: its id, or None (only `RecallContract`)

The jobs that are sent here were never in the system: where a job stays under its id (`can.in_place`), too.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest

from jobs_admin.sources.base import OutgoingMessage, SourceRefused, SourceUnreachable


def recalled(source, replay, queues):
    """All that a source takes back."""
    return set().union(*source.recall(replay, queues))


class Ran:
    """The tokens of the jobs that a worker took, in that order."""

    def __init__(self):
        self.tokens = []
        self._more = threading.Condition()

    def add(self, token):
        with self._more:
            self.tokens.append(token)
            self._more.notify_all()

    def wait_for(self, count):
        with self._more:
            assert self._more.wait_for(lambda: len(self.tokens) >= count, timeout=90)


@pytest.mark.contract
class SourceContract:
    queue = "emails"
    elsewhere = "webhooks"  # another queue that `raw` may be sent to; None: this message has one of its own

    def outgoing_message(self, token=1, **changes):
        lineage = {"queue": self.queue, "job_id": "old", "run": 2, "item": token, "replay": "r"}
        values = {"token": token, "raw": self.raw, "queue": self.queue, "job_id": f"new-{token}", "lineage": lineage}
        return OutgoingMessage(**values | changes)

    def depth(self, source, queue=None):
        return next(d for d in source.depths() if d.queue == (queue or self.queue))

    def test_a_sent_job_waits_in_its_queue_under_its_new_id(self, source):
        assert source.send("r", [self.outgoing_message(7)]) == {7: "sent"}
        assert self.waiting(self.queue) == ["new-7"]
        assert self.depth(source).waiting == 1

    def test_the_same_token_enqueues_once(self, source):
        source.send("r", [self.outgoing_message(1), self.outgoing_message(2)])
        assert source.send("r", [self.outgoing_message(1), self.outgoing_message(3)]) == {1: "already", 3: "sent"}
        assert sorted(self.waiting(self.queue)) == ["new-1", "new-2", "new-3"]

    def test_a_token_that_comes_twice_in_a_batch_enqueues_once(self, source):
        source.send("r", [self.outgoing_message(1), self.outgoing_message(1), self.outgoing_message(2)])
        assert self.waiting(self.queue) == ["new-1", "new-2"]

    def test_another_replay_has_a_ledger_of_its_own(self, source):
        source.send("r", [self.outgoing_message(1)])
        assert source.send("s", [self.outgoing_message(1, job_id="other")]) == {1: "sent"}

    def test_jobs_run_in_the_order_of_the_batch(self, source):
        source.send("r", [self.outgoing_message(n) for n in range(5)])
        assert self.waiting(self.queue) == [f"new-{n}" for n in range(5)]

    def test_the_ledger_reports_what_was_sent(self, source):
        source.send("r", [self.outgoing_message(1)])
        assert source.was_sent("r", [1, 2]) == {1}
        assert source.was_sent("r", []) == set()

    def test_a_token_that_is_withheld_never_goes_and_one_that_was_sent_stays_so(self, source):
        source.epoch("r")
        source.send("r", [self.outgoing_message(1)])
        assert source.withhold("r", [1, 2]) == {1} == source.withhold("r", [1, 2])
        assert source.send("r", [self.outgoing_message(1), self.outgoing_message(2), self.outgoing_message(3)]) == {
            1: "already",
            2: "recalled",
            3: "sent",
        }
        assert sorted(self.waiting(self.queue)) == ["new-1", "new-3"]
        assert source.was_sent("r", [1, 2, 3]) == {1, 3} and not source.in_doubt("r", [1, 2, 3])
        assert source.withhold("s", []) == set() and source.send("s", [self.outgoing_message(2, job_id="other")]) == {
            2: "sent"
        }

    def test_the_epoch_stays_until_the_ledger_is_lost(self, source):
        before = source.epoch("r")
        source.send("r", [self.outgoing_message(1)])
        assert source.epoch("r") == before
        self.lose_everything()
        assert source.epoch("r") != before

    def test_a_message_that_is_refused_leaves_the_complete_batch_unsent(self, source):
        with pytest.raises(SourceRefused) as refused:
            source.send("r", [self.outgoing_message(1), self.outgoing_message(2, raw=b"\x80 not a message")])
        assert refused.value.token == 2
        assert self.waiting(self.queue) == []
        assert source.was_sent("r", [1, 2]) == set()

    def test_how_many_wait_is_reported_for_the_queues_that_are_requested(self, source):
        elsewhere = [self.outgoing_message(3, queue=self.elsewhere)] if source.can.redirect and self.elsewhere else []
        source.send("r", [self.outgoing_message(1), self.outgoing_message(2), *elsewhere])
        assert source.waiting([self.queue, "nothing-here"]) == {self.queue: 2, "nothing-here": 0}
        assert source.waiting([]) == {}

    def test_it_declares_what_it_can(self, source):
        assert isinstance(self, RecallContract) == source.can.recall
        if source.can.atomic_send:
            source.send("r", [self.outgoing_message(1)])
            assert source.in_doubt("r", [1, 2]) == set()
        if not source.can.recall:
            with pytest.raises(SourceRefused):
                recalled(source, "r", [self.queue])
        if source.can.edit:
            assert source.arguments(self.raw)
        else:
            with pytest.raises(SourceRefused):
                source.arguments(self.raw)

    def test_where_no_one_works_no_one_answers(self, source):
        assert not source.workers()  # None: nobody can be asked

    def test_a_system_that_does_not_answer_is_unreachable(self, source):
        self.unplug(source)
        for question in (
            source.depths,
            source.findings,
            lambda: source.epoch("r"),
            lambda: source.waiting([self.queue]),
            *([lambda: recalled(source, "r", [self.queue])] if source.can.recall else []),
        ):
            with pytest.raises(SourceUnreachable):
                question()
        with pytest.raises(SourceUnreachable):
            source.send("r", [self.outgoing_message(1)])


class RecallContract(SourceContract):
    """And what a source must do that takes back what it sent."""

    def test_what_waits_is_taken_back_and_the_rest_keeps_its_order(self, source):
        source.send("r", [self.outgoing_message(1)])
        source.send("s", [self.outgoing_message(7, job_id="other-7")])
        source.send("r", [self.outgoing_message(2), self.outgoing_message(3, queue="webhooks")])
        source.send("s", [self.outgoing_message(8, job_id="other-8")])
        assert recalled(source, "r", [self.queue]) == {1, 2}
        assert self.waiting(self.queue) == ["other-7", "other-8"]
        assert source.was_sent("r", [1, 2, 3]) == {3} and source.was_sent("s", [7, 8]) == {7, 8}

    def test_a_recall_that_was_broken_off_is_called_again_and_reports_all(self, source):
        source.send("r", [self.outgoing_message(1), self.outgoing_message(2, queue="webhooks")])
        recalled(source, "r", [self.queue])
        assert recalled(source, "r", [self.queue, "webhooks"]) == {1, 2}

    def test_after_a_recall_nothing_of_the_replay_goes(self, source):
        source.send("r", [self.outgoing_message(1), self.outgoing_message(2, queue="webhooks")])
        recalled(source, "r", [self.queue])
        answers = source.send(
            "r", [self.outgoing_message(1), self.outgoing_message(2, queue="webhooks"), self.outgoing_message(3)]
        )
        assert answers == {1: "recalled", 2: "already", 3: "recalled"}
        assert self.waiting(self.queue) == [] and source.was_sent("r", [1, 2, 3]) == {2}

    def test_while_a_worker_drains_the_queue_each_job_ran_or_was_taken_back(self, source):
        tokens, others = range(1, 4_001), range(5_001, 7_001)
        for start in range(0, 2_000, 100):
            source.send("r", [self.outgoing_message(n) for n in tokens[2 * start : 2 * start + 200]])
            source.send("s", [self.outgoing_message(n) for n in others[start : start + 100]])
        with self.drained() as ran:
            ran.wait_for(50)
            back = recalled(source, "r", [self.queue])
        mine = {n for n in ran.tokens if n in tokens}
        assert mine and back and not mine & back and mine | back == set(tokens)
        assert [n for n in ran.tokens if n in others] == list(others)
        assert len(ran.tokens) == len(set(ran.tokens)) and [n for n in ran.tokens if n in mine] == sorted(mine)
        assert source.was_sent("r", list(tokens)) == mine and source.was_sent("s", list(others)) == set(others)

    def test_a_sender_beside_the_recall_sends_what_is_taken_back_or_nothing(self, source):
        answers = {}

        def send():
            for start in range(1, 400_000, 20):  # more than any machine sends before the recall
                batch = source.send("r", [self.outgoing_message(n) for n in range(start, start + 20)])
                answers.update(batch)
                if "recalled" in batch.values():
                    return
                time.sleep(0.001)  # as the worker: else thousands lie between them, which each fetch has to pass

        sender = threading.Thread(target=send)
        sender.start()
        with self.drained() as ran:
            ran.wait_for(50)
            back = recalled(source, "r", [self.queue])
            sender.join()
        sent = {n for n, answer in answers.items() if answer == "sent"}
        assert "recalled" in answers.values()
        assert not set(ran.tokens) & back and set(ran.tokens) | back == sent

    def test_two_recalls_at_once_take_back_what_is_theirs(self, source):
        for start in range(0, 3_000, 30):
            for replay in ("r", "s", "t"):
                lineage = {"queue": self.queue, "replay": replay}
                source.send(replay, [self.outgoing_message(n, lineage=lineage) for n in range(start, start + 30)])
        back = {}
        threads = [
            threading.Thread(target=lambda r=r: back.update({r: recalled(source, r, [self.queue])})) for r in ("r", "s")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert back == {"r": set(range(3_000)), "s": set(range(3_000))}
        assert self.waiting(self.queue) == [f"new-{n}" for n in range(3_000)]

    @contextmanager
    def drained(self):
        """A worker that takes one job after the other until the block has ended and none waits.

        Until then it pauses after each job, so that a busy machine gives the block its turn before the queue is empty.
        """
        ran, is_over = Ran(), threading.Event()

        def work():
            while (job := self.fetch(self.queue)) or not is_over.is_set():
                if job:
                    ran.add(int(job.removeprefix("new-")))
                    is_over.wait(0.001)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield ran
        finally:
            is_over.set()
            worker.join()
