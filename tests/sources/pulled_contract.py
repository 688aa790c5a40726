"""Contract of every source that keeps its dead letters itself, on its real server.

A subclass supplies `source` (connected, empty), and what people and workers do there, by the system's own means:

    def bury(self, count) -> list[Ref]     that many jobs of `self.queue` die, each in another moment, within ten minutes of now and
                                           with an error and a message. n counts from 0 in each call. The arguments of a job are
                                           `[{"n": n}]`, or `{"n": n}` by name. Ids are never used again
    def waiting(self, queue) -> list[str]  ids that wait in this queue
    def waiting_data(self, queue)          the data `{"n": n}` of each job that waits there (only where `can.edit`)
    def work(self, queue)                  all jobs that wait there succeed; returns when they have
    def fail_again(self, queue)            all jobs that wait there die again; returns when they have (only where `can.outcomes`,
                                           or with `revive`)
    def revive(self, ref)                  an operator brings it back, and it waits (where `can.in_place`); None: not tested
    def take_out(self, ref)                an operator deletes it; None: the system leaves no evidence of that
    def trim(self, ref)                    the system itself drops it by its own rules, and no one acted; None: it never does
    def lose_everything(self)              the server is as a new one
    def unplug(self, source)               from now on it cannot be reached
    def become_unknown(self)               it is of a version that is not known; None: there is no such thing
    def another(self)                      one more adapter on the same server, as another process has it
"""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

from jobs_admin.sources.base import READ_ONLY, OutgoingMessage, Ref, SourceRefused, SourceUnreachable


def read(source, after="", limit=1_000):
    """All that it reports now, as `pulling.py` asks: each page is filed before the next. The reports, and the place."""
    reports = []
    for _ in range(limit):
        pulled = source.dead_letters(after)
        reports += pulled.reports
        assert len(pulled.after) <= 4_000
        after = pulled.after
        source.confirm_filed(pulled)
        if not pulled.is_more:
            return reports, after
    raise AssertionError("it never came to an end")


def read_until(source, is_enough, after="", deadline_s=90):
    """The reports until they are enough: an event there may be reported a moment later."""
    reports, ends = [], time.monotonic() + deadline_s
    while not is_enough(reports):
        assert time.monotonic() < ends, f"not told: {reports}"
        more, after = read(source, after)
        reports += more
        time.sleep(0.05)
    return reports, after


def name(report):
    """The identity of a report."""
    run = report.lineage.run if report.lineage else 1
    return report.queue, report.job_id, run, report.attempt, report.kind


def ref(report, state="dead"):
    return Ref(report.queue, report.job_id, state, report.at)


@pytest.mark.contract
class PulledContract:
    queue = "emails"
    attempts = 1  # of each run of a job of `bury`
    trim = become_unknown = revive = take_out = None

    def outgoing_message(self, report, token=1, **changes):
        lineage = {
            "queue": report.queue, "job_id": report.job_id, "run": 2, "item": token, "replay": "r",
            "sent_as": self.next_id(report),
        }  # fmt: skip
        values = {
            "token": token,
            "raw": report.raw,
            "queue": report.queue,
            "job_id": self.next_id(report),
            "lineage": lineage,
        }
        return OutgoingMessage(**values | changes)

    def next_id(self, report):
        return report.job_id if self.can.in_place else f"new-{report.job_id}"

    @property
    def can(self):
        return self.capabilities

    @pytest.fixture(autouse=True)
    def _capabilities(self, source):
        self.capabilities = source.can

    def data(self, report):
        """The n of a job."""
        args, kwargs = json.loads(report.args or "[]"), json.loads(report.kwargs or "{}")
        return (kwargs or args[0])["n"]

    # Reading

    def test_queues_are_found_and_the_dead_counted(self, source):
        self.bury(3)
        (depth,) = [one for one in source.depths() if one.queue == self.queue]
        assert depth.source_dead == 3 and not depth.waiting and not depth.active

    def test_each_dead_letter_is_reported_once_with_what_it_takes_to_send_it_again(self, source):
        buried = self.bury(3)
        reports, after = read(source)
        assert sorted(self.data(one) for one in reports) == [0, 1, 2]
        assert {ref(one) for one in reports} == set(buried)
        for one in reports:
            assert one.source == source.name and one.is_raw_complete and one.error_type and one.message
            assert one.attempt >= 1 and abs(one.at - time.time()) < 600 and one.kind == "exception"
        assert read(source, after)[0] == []

    def test_what_dies_later_is_reported_from_that_position(self, source):
        self.bury(2)
        before, after = read(source)
        self.bury(1)
        later, _ = read_until(source, lambda reports_: reports_, after)
        assert len(before) == 2 and len(later) == 1 and not {name(one) for one in later} & {name(one) for one in before}

    def test_who_is_started_again_in_the_middle_misses_nothing(self, source):
        self.bury(5)
        pulled = source.dead_letters("")
        first = {name(one) for one in pulled.reports}
        restarted = self.another()  # the first died before it could tell that these were filed
        again, _ = read(restarted, "")
        assert first <= {name(one) for one in again} and len({name(one) for one in again}) == 5
        after = pulled.after
        source.confirm_filed(pulled)
        rest, _ = read(self.another(), after)
        assert len(first | {name(one) for one in rest}) == 5

    def test_a_place_that_is_not_its_own_is_the_beginning(self, source):
        self.bury(1)
        assert len(read(source, '{"of": "somebody else"}')[0]) == 1

    def test_checking_what_is_dead_reports_nothing_new(self, source):
        self.bury(2)
        reports, _ = read(source)
        checked = source.check_jobs([ref(one) for one in reports])
        assert (
            not checked.gone
            and not checked.due
            and {name(one) for one in checked.reports} <= {name(one) for one in reports}
        )

    # Sending

    def test_one_is_replayed_and_its_good_end_comes_home(self, source):
        self.bury(2)
        reports, after = read(source)
        assert source.send("r", [self.outgoing_message(reports[0], 7)]) == {7: "sent"}
        assert source.was_sent("r", [7, 8]) == {7}
        assert len(self.waiting(self.queue)) == 1
        self.work(self.queue)
        if source.can.outcomes:
            ends = []
            read_until(source, lambda seen: ends.extend(self._ends(source, reports[0], seen)) or ends, after)
            assert (ends[0].kind, ends[0].lineage.item, ends[0].lineage.run) == ("success", 7, 2)

    def _ends(self, source, report, report_):
        sent = Ref(report.queue, self.next_id(report), "replaying", report.at)
        return [one for one in [*report_, *source.check_jobs([sent]).reports] if one.lineage is not None]

    def test_one_that_dies_again_is_another_run_of_the_same(self, source):
        if not source.can.outcomes:
            return
        self.bury(1)
        reports, after = read(source)
        source.send("r", [self.outgoing_message(reports[0], 7)])
        self.fail_again(self.queue)
        again, _ = read_until(source, lambda found: [one for one in found if one.kind == "exception"], after)
        (dead,) = {name(one): one for one in again if one.kind == "exception"}.values()
        assert dead.lineage.run == 2 and dead.lineage.job_id == reports[0].job_id and dead.attempt == self.attempts

    def test_in_bulk_each_token_goes_once_whoever_sends_it(self, source):
        self.bury(30)
        reports, _ = read(source)
        messages = [self.outgoing_message(one, n) for n, one in enumerate(reports)]
        assert source.send("r", messages[:10]) == dict.fromkeys(range(10), "sent")
        answers = []
        senders = [
            threading.Thread(target=lambda mine=one: answers.append(self._send_until_answered(mine, messages)))
            for one in (source, self.another())
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert len(answers) == 2
        for n in range(30) if source.can.atomic_send else ():
            assert sorted(answer[n] for answer in answers) == ["already", "already" if n < 10 else "sent"], n
        assert len(self.waiting(self.queue)) == 30

    def _send_until_answered(self, source, messages):
        """The answer; asked again while another one is about to send the same."""
        ends = time.monotonic() + 90
        while True:
            try:
                return source.send("r", messages)
            except SourceUnreachable:
                assert not source.can.atomic_send and time.monotonic() < ends
                time.sleep(0.05)

    def test_what_is_edited_is_what_runs(self, source):
        if not source.can.edit:
            return
        self.bury(1)
        (report,), _ = read(source)
        args, kwargs = source.arguments(report.raw)
        changed = {"kwargs": {**kwargs, "n": 41}} if kwargs else {"args": [{**args[0], "n": 41}]}
        source.send("r", [self.outgoing_message(report, 1, **changed)])
        assert self.waiting_data(self.queue) == [{"n": 41}]

    def waiting_data(self, queue):
        """The data of what waits there."""
        raise NotImplementedError

    def test_a_message_that_is_none_leaves_the_complete_batch_unsent(self, source):
        self.bury(1)
        (report,), _ = read(source)
        with pytest.raises(SourceRefused) as refused:
            source.send(
                "r", [self.outgoing_message(report, 1), self.outgoing_message(report, 2, raw=b"\x80 not a message")]
            )
        assert refused.value.blames(2) and not refused.value.blames(1)
        assert self.waiting(self.queue) == [] and source.was_sent("r", [1, 2]) == set()

    # What others do

    def test_what_a_person_took_out_is_gone(self, source):
        if self.take_out is None:
            return
        self.bury(2)
        reports, after = read(source)
        self.take_out(ref(reports[0]))
        _, after = read(source, after)
        assert set(source.check_jobs([ref(one) for one in reports]).gone) == {ref(reports[0])}

    def test_what_a_person_brought_back_is_gone_and_not_sent_again(self, source):
        if self.revive is None:
            return
        self.bury(2)
        reports, after = read(source)
        self.revive(ref(reports[0]))
        _, after = read(source, after)
        assert set(source.check_jobs([ref(one) for one in reports]).gone) == {ref(reports[0])}
        with pytest.raises(SourceRefused) as refused:
            source.send("r", [self.outgoing_message(reports[0], 1), self.outgoing_message(reports[1], 2)])
        assert refused.value.tokens == {1} and source.was_sent("r", [1, 2]) == set()
        assert len(self.waiting(self.queue)) == 1

    def test_what_a_person_brought_back_and_died_again_is_one_attempt_more(self, source):
        if self.revive is None:
            return
        self.bury(1)
        (report,), after = read(source)
        self.revive(ref(report))
        self.fail_again(self.queue)
        again, _ = read_until(source, lambda found: [one for one in found if one.kind == "exception"], after)
        # By its number, or, where the system counts none, by the time when the job was queued.
        before, after = ((one.made_at or 0, one.attempt) for one in (report, again[-1]))
        assert again[-1].job_id == report.job_id and after > before

    def test_what_the_system_itself_dropped_is_not_gone_and_is_sent_from_our_copy(self, source):
        if self.trim is None:
            return
        self.bury(2)
        reports, after = read(source)
        self.trim(ref(reports[0]))
        read(source, after)
        assert source.check_jobs([ref(one) for one in reports]).gone == {}
        assert source.send("r", [self.outgoing_message(reports[0], 1)]) == {1: "sent"}
        assert self.waiting(self.queue) == [self.next_id(reports[0])]
        self.work(self.queue)

    def test_what_is_discarded_is_taken_out_there(self, source):
        if not source.can.remove:
            return
        self.bury(2)
        reports, _ = read(source)
        assert source.remove([ref(reports[0])]) == {ref(reports[0])}
        assert source.remove([ref(reports[0])]) == set()
        (depth,) = [one for one in source.depths() if one.queue == self.queue]
        assert depth.source_dead == 1

    # What goes wrong

    def test_what_a_server_has_lost_is_not_gone_and_what_dies_there_later_is_reported(self, source):
        self.bury(2)
        reports, after = read(source)
        self.lose_everything()
        found, after = read(source, after)
        assert found == [] and source.check_jobs([ref(one) for one in reports]).gone == {}
        self.bury(1)
        later, _ = read_until(source, lambda seen: seen, after)
        assert len(later) == 1
        assert source.check_jobs([ref(one) for one in reports]).gone == {}

    def test_a_version_that_is_not_known_is_read_and_nothing_is_sent(self, source):
        if self.become_unknown is None:
            return
        self.bury(1)
        (report,), _ = read(source)
        self.become_unknown()
        assert [one.id for one in source.findings() if one.severity == "high"] == [READ_ONLY]
        with pytest.raises(SourceRefused):
            source.send("r", [self.outgoing_message(report, 1)])
        assert source.was_sent("r", [1]) == set() and self.waiting(self.queue) == []
        if source.can.remove:
            with contextlib.suppress(SourceRefused):
                assert source.remove([ref(report)]) == set()
        assert [one.job_id for one in read(self.another())[0]] == [report.job_id]

    def test_a_server_that_is_away_is_unreachable_within_seconds(self, source):
        self.bury(1)
        (report,), after = read(source)
        self.unplug(source)
        began = time.monotonic()
        self.is_away(lambda: source.depths())
        self.is_away(lambda: source.dead_letters(after))
        self.is_away(lambda: source.check_jobs([ref(report)]))
        self.is_away(lambda: source.send("r", [self.outgoing_message(report, 1)]))
        assert time.monotonic() - began < 30

    def is_away(self, action):
        with pytest.raises(SourceUnreachable) as away:
            action()
        assert "secret" not in str(away.value)
