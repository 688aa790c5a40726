"""Particulars of BullMQ: priorities, attempts, jobs that are removed as they end, stalls, flows, ids."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from jobs_admin.core import keys
from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused
from tests.kit import node
from tests.kit.bullmq import Bull
from tests.kit.waiting import wait_until
from tests.sources.contract import SourceContract
from tests.sources.pulled_contract import PulledContract, read, read_until, ref

pytestmark = pytest.mark.server


def dead(reports):
    return [one for one in reports if one.kind in {"exception", "worker_lost"}]


class There(Bull):
    outgoing_message = PulledContract.outgoing_message
    next_id = PulledContract.next_id

    @property
    def can(self):
        return self.another().can

    def buried(self, source, after="", **options):
        """The report of one job that died, and the place."""
        self.die(1, **options)
        self.let_fail()
        reports, after = read_until(source, dead, after)
        return dead(reports)[-1], after

    def hash_of(self, report):
        return self.client.hgetall(self.key(report.job_id, report.queue))

    def attempts_made(self, report):
        fields = self.hash_of(report)
        return int(fields.get("atm") or fields.get("attemptsMade") or 0)

    def run_well(self, queue=None):
        queue = queue or self.queue
        self.bull.fix("partner")
        self.bull.work(queue)
        states = ("wait", "active", "prioritized", "delayed", "paused")
        # An idle BullMQ 4 leaves a mark in its list.
        wait_until(
            lambda: not self.another_of([queue]).depths()[0].waiting and not self.client.llen(self.key("active", queue))
        )
        self.bull.rest(queue)
        self.bull.break_("partner")
        return states


class TestSending(There):
    def test_a_priority_is_preserved_and_one_that_is_given_counts(self, source):
        report, after = self.buried(source, priority=3)
        assert report.priority == 3 and report.made_at == int(self.hash_of(report)["timestamp"]) / 1000
        source.send("r", [self.outgoing_message(report)])
        assert self.client.zrange(self.key("prioritized"), 0, -1) == [report.job_id]
        assert self.bull.job(self.queue, report.job_id, "getState") == "prioritized"
        self.let_fail()
        (again, *_), _ = read_until(source, dead, after)
        source.send("s", [self.outgoing_message(again, 2, priority=7)])
        assert self.hash_of(report)["priority"] == "7"
        assert int(self.client.zscore(self.key("prioritized"), report.job_id) / 2**32) == 7

    def test_one_without_priority_waits_among_those_without(self, source):
        report, _ = self.buried(source, priority=3)
        source.send("r", [self.outgoing_message(report, priority=0)])
        assert self.bull.job(self.queue, report.job_id, "getState") == "waiting"
        self.run_well()
        assert self.client.zcard(self.key("completed")) == 1

    @pytest.mark.parametrize(("retries", "made"), [(0, 0), (None, 2), (1, 1)])
    def test_attempts_are_reset_preserved_or_set(self, source, retries, made):
        report, _ = self.buried(source, attempts=2)
        assert (report.attempt, report.max_attempts) == (2, 2)
        source.send("r", [self.outgoing_message(report, retries=retries)])
        assert self.attempts_made(report) == made

    def test_an_idle_worker_wakes(self, source):
        report, _ = self.buried(source)
        self.bull.fix("partner")
        self.bull.work(self.queue)
        place = self.bull.place()
        source.send("r", [self.outgoing_message(report)])
        assert self.bull.wait_for_event("completed", after=place, id=report.job_id)
        self.bull.rest(self.queue)
        self.bull.break_("partner")

    def test_a_paused_queue_keeps_what_is_sent_until_it_is_resumed(self, source):
        report, _ = self.buried(source)
        self.bull.queue(self.queue, "pause")
        source.send("r", [self.outgoing_message(report)])
        assert source.depths()[0].waiting == 1
        assert [one.id for one in source.findings() if one.id == "paused"]
        self.bull.queue(self.queue, "resume")
        self.run_well()
        assert self.client.zcard(self.key("completed")) == 1

    def test_what_was_to_go_first_goes_first_again(self, source):
        report, _ = self.buried(source, lifo=True)
        other = self.die(2)
        source.send("r", [self.outgoing_message(report)])
        assert self.client.lrange(self.key("wait"), 0, -1) == [other, report.job_id]  # taken from the right

    def test_a_priority_that_bullmq_does_not_have_is_refused(self, source):
        report, _ = self.buried(source)
        for priority in (-1, 2**21 + 1):
            with pytest.raises(SourceRefused, match="between 0 and 2097152"):
                source.send("r", [self.outgoing_message(report, priority=priority)])
        assert self.failed() == 1
        assert source.send("r", [self.outgoing_message(report, priority=2**21)]) == {1: "sent"}

    def test_a_mark_that_wakes_workers_is_no_job_that_waits(self, source):
        self.die(1, delay=3_600_000)
        # BullMQ 4 puts the mark into the list itself.
        assert self.client.llen(self.key("wait")) == (1 if self.bull.major == 4 else 0)
        (depth,) = source.depths()
        assert source.waiting([self.queue]) == {self.queue: 0} and (depth.waiting, depth.delayed) == (0, 1)

    def test_the_order_is_that_of_the_batch(self, source):
        for n in range(3):
            self.die(n)
        self.let_fail(more=3)
        reports, _ = read(source)
        messages = [self.outgoing_message(one, n) for n, one in enumerate(sorted(reports, key=lambda one: one.job_id))]
        source.send("r", messages[::-1])
        place = self.bull.place()
        self.run_well()
        ran = [line["id"] for line in self.bull.list_events("start", queue=self.queue)][-3:]
        assert place and ran == ["3", "2", "1"]

    def test_a_job_that_was_trimmed_keeps_id_data_options_and_time(self, source):
        report, _ = self.buried(source, attempts=2, priority=4, delay=1)
        before = self.hash_of(report)
        self.client.zrem(self.key("failed"), report.job_id)
        self.client.delete(self.key(report.job_id))
        source.send("r", [self.outgoing_message(report)])
        now = self.hash_of(report)
        assert {name: now[name] for name in ("name", "data", "opts", "timestamp", "priority")} == {
            name: before[name] for name in ("name", "data", "opts", "timestamp", "priority")
        }
        self.run_well()
        assert self.client.zrange(self.key("completed"), 0, -1) == [report.job_id]

    def test_a_queue_that_counts_again_gives_the_id_of_a_job_that_came_back_to_no_other(self, source):
        for _ in range(3):
            report, after = self.buried(source)
        assert report.job_id == "3" and after
        self.client.flushall()
        source.send("r", [self.outgoing_message(report)])
        ids = [self.die(n) for n in range(3)]
        assert ids == ["4", "5", "6"]

    def test_a_job_that_has_its_id_now_is_left_alone(self, source):
        report, after = self.buried(source)
        self.client.flushall()
        assert self.die(2) == report.job_id
        with pytest.raises(SourceRefused, match="another job has its id"):
            source.send("r", [self.outgoing_message(report)])
        assert source.check_jobs([ref(report)]).gone == {}
        assert read(source, after)[0] == [] and source.check_jobs([ref(report)]).gone == {}

    def test_what_ran_meanwhile_and_was_removed_is_not_sent_again(self, source):
        report, _ = self.buried(source, removeOnComplete=True)
        self.bull.job(self.queue, report.job_id, "retry", "failed")
        self.run_well()
        assert not self.client.exists(self.key(report.job_id))
        with pytest.raises(SourceRefused, match="no longer there") as refused:
            source.send("r", [self.outgoing_message(report)])
        assert refused.value.tokens == {1} and not self.client.exists(self.key(report.job_id))
        assert "ran" in source.check_jobs([ref(report)]).gone[ref(report)]

    def test_a_child_of_a_flow_goes_back_to_its_parent(self, source):
        tree = {
            "name": "whole", "queueName": self.queue, "data": {"n": 0},
            "children": [{"name": "part", "queueName": self.queue, "data": {"n": 1, "needs": "partner"}, "opts": {}}],
        }  # fmt: skip
        made = self.bull.flow(tree)
        self.let_fail()
        (report,), _ = read(source)
        with pytest.raises(SourceRefused, match="does not say"):
            source.send("r", [self.outgoing_message(report)])  # a FlowProducer leaves no version
        source = self.another(major=self.bull.major)
        assert report.job_id == made["children"][0]["job"]
        source.send("r", [self.outgoing_message(report)])
        self.run_well()
        assert set(self.client.zrange(self.key("completed"), 0, -1)) == {made["job"], report.job_id}


class TestEnds(There):
    def test_a_job_that_is_removed_as_it_ends_well_reports_so_by_its_event(self, source):
        report, after = self.buried(source, removeOnComplete=True)
        source.send("r", [self.outgoing_message(report, 9)])
        self.run_well()
        assert not self.client.exists(self.key(report.job_id))
        reports, _ = read(source, after)
        assert [(one.kind, one.lineage.item) for one in reports] == [("success", 9)]
        assert [one.kind for one in source.check_jobs([ref(report, "replaying")]).reports] == ["success"]

    def test_a_job_that_is_removed_as_it_fails_is_reported_by_its_event_and_has_no_message(self, source):
        self.die(1, removeOnFail=True)
        self.bull.work(self.queue)
        (report, *_), _ = read_until(source, dead)
        self.bull.rest(self.queue)
        assert (report.message, report.raw, report.attempt) == ("the partner is down", None, 1)

    def test_one_that_was_trimmed_is_not_reported_again_by_the_events_of_its_failure(self, source):
        report, _ = self.buried(source)
        self.client.zrem(self.key("failed"), report.job_id)
        self.client.delete(self.key(report.job_id))
        a_clock_behind = Ref(report.queue, report.job_id, "dead", report.at - 1)
        checked = source.check_jobs([ref(report), a_clock_behind])
        assert checked.reports == [] and checked.gone == {}

    def test_what_was_sent_and_is_removed_as_it_fails_again_is_another_run_of_the_same(self, source):
        report, after = self.buried(source, attempts=1)
        self.client.hset(self.key(report.job_id), "opts", json.dumps({"attempts": 1, "removeOnFail": True}))
        source.send("r", [self.outgoing_message(report, 4)])
        self.bull.work(self.queue)
        (report_,), _ = read_until(source, dead, after)
        (checked,) = source.check_jobs([ref(report, "replaying")]).reports
        self.bull.rest(self.queue)
        assert (
            (report_.lineage.item, report_.attempt, report_.kind)
            == (checked.lineage.item, checked.attempt, checked.kind)
            == (4, 1, "exception")
        )

    def test_one_that_waits_for_a_retry_reports_when_it_is_due_and_how_it_ended(self, source):
        job_id = self.die(1, attempts=2, backoff={"type": "fixed", "delay": 3_600_000})
        self.bull.work(self.queue)
        (report,), after = read_until(source, lambda seen: seen)
        self.bull.rest(self.queue)
        assert (report.kind, report.attempt, report.max_attempts) == ("retry", 1, 2)
        # The worker says when it is due before Redis notes that it failed: what lies between may be seconds.
        assert 3_500 < report.due_at - report.at <= 3_601
        reference = ref(report, "retrying")
        checked = source.check_jobs([reference])
        assert abs(checked.due[reference] - report.due_at) < 0.01 and not checked.gone
        self.bull.job(self.queue, job_id, "promote")
        self.let_fail()
        (last,) = dead(read_until(source, dead, after)[0])
        assert (last.job_id, last.attempt) == (job_id, 2)

    def test_one_that_waited_for_a_retry_and_ran_well_reports_it_when_it_is_requested(self, source):
        job_id = self.die(1, attempts=2, backoff={"type": "fixed", "delay": 3_600_000})
        self.bull.work(self.queue)
        (report,), _ = read_until(source, lambda seen: seen)
        self.bull.rest(self.queue)
        self.bull.job(self.queue, job_id, "promote")
        self.run_well()
        (end,) = source.check_jobs([ref(report, "retrying")]).reports
        assert (end.kind, end.job_id, end.attempt > report.attempt) == ("success", job_id, True)

    def test_who_resets_the_attempts_as_he_brings_it_back_makes_one_more_all_the_same(self, source):
        report, after = self.buried(source, attempts=2)
        options = [] if self.bull.major == 4 else [{"resetAttemptsMade": True}]
        self.bull.job(self.queue, report.job_id, "retry", "failed", *options)
        self.let_fail()
        again = dead(read_until(source, dead, after)[0])
        assert [one.attempt > report.attempt for one in again] == [True]

    def test_what_others_brought_back_is_gone_on_a_desk_whose_clock_is_behind(self, source):
        report, _ = self.buried(source)
        known = Ref(report.queue, report.job_id, "dead", report.made_at - 5, made_at=report.made_at)
        assert not source.check_jobs([known]).gone
        self.bull.job(self.queue, report.job_id, "retry", "failed")
        self.run_well()
        assert "ran" in source.check_jobs([known]).gone[known]

    def test_a_job_that_ended_its_worker_too_often_was_lost(self, server, source):
        options = {"stalledInterval": 200, "lockDuration": 200, "maxStalledCount": 0}
        self.bull.add(self.queue, "pill", {"crash": True})
        with node.Bullmq(self.bull.major, server.url) as pill:
            pill.script.write(json.dumps({"n": 0, "do": "work", "queue": self.queue, "options": options}))
            wait_until(lambda: not pill.script.is_running)
        self.bull.work(self.queue, **options)
        (report, *_), _ = read_until(source, dead)
        self.bull.rest(self.queue)
        assert report.kind == "worker_lost" and "stalled" in report.message


class TestReading(There):
    def test_queues_are_found_under_their_prefix_whatever_it_is(self, server):
        with node.Bullmq(self.bull.major, server.url, prefix="{shop}[1]") as other:
            other.add(self.queue, "welcome", {})
            made = connect("shop", "bullmq", server.url, [], {"prefix": "{shop}[1]"})
            self.made.append(made)
            assert [(one.queue, one.waiting) for one in made.depths()] == [(self.queue, 1)]

    def test_failures_whose_events_were_trimmed_are_reported_by_the_set(self, source):
        self.die(1)
        self.let_fail()
        self.client.delete(self.key("events"))
        assert len(read(source)[0]) == 1

    def test_a_failure_of_a_worker_whose_clock_is_an_hour_behind_is_informed_when_its_turn_comes(self, source):
        _, after = read(source)
        job_id = self.die(1)
        self.let_fail()
        late = self.client.zscore(self.key("failed"), job_id) - 3_600_000
        self.client.zadd(self.key("failed"), {job_id: late})
        self.client.hset(self.key(job_id), "finishedOn", int(late))
        self.client.delete(self.key("events"))
        ((report,), _) = read_until(source, lambda seen: seen, after)
        assert report.job_id == job_id

    def test_jobs_that_run_well_are_counted_once_from_when_it_is_first_read(self, source):
        self.bull.add(self.queue, "before", {})
        self.run_well()
        after, ran = "", Counter()

        def pull():
            nonlocal after
            pulled = source.dead_letters(after)
            source.confirm_filed(pulled)
            after = pulled.after
            ran.update({queue: n for (queue, _), n in pulled.ran.items()})

        pull()
        for _ in range(3):
            self.bull.add(self.queue, "after", {})
        self.run_well()
        wait_until(lambda: pull() or ran[self.queue] >= 3)
        pull(), pull()
        assert ran[self.queue] == 3

    def test_many_that_ended_in_one_moment_are_all_reported(self, source):
        report, _ = self.buried(source)
        fields, score = self.hash_of(report), self.client.zscore(self.key("failed"), report.job_id)
        for n in range(2, 1_003):
            self.client.hset(self.key(str(n)), mapping=fields)
            self.client.zadd(self.key("failed"), {str(n): score})
        assert {int(one.job_id) for one in read(self.another())[0]} == set(range(1, 1_003))

    def test_more_data_than_may_be_stored_is_reported_with_its_size_and_not_read(self, source):
        report, _ = self.buried(source)
        self.client.hset(self.key(report.job_id), "data", json.dumps({"x": "y" * 17_000_000}))
        (found,) = read(self.another())[0]
        assert found.raw_size > 17_000_000 and not found.is_raw_complete

    def test_after_a_loss_what_a_person_takes_out_is_known_again(self, source):
        first, after = self.buried(source)
        self.client.flushall()
        _, after = read(source, after)
        self.die(2)
        second, after = self.buried(source, after)
        self.bull.job(self.queue, second.job_id, "remove")
        _, after = read(source, after)
        checked = source.check_jobs([ref(second), Ref(self.queue, "77", "dead", first.at)])
        assert set(checked.gone) == {ref(second)}

    def test_what_would_break_a_step_of_bullmq_half_way_is_refused_before_it(self, source):
        """Else the job would have left `failed` and lie nowhere."""
        job_id = self.die(1)
        self.let_fail()
        (report,), _ = read(source)
        self.client.hset("bull:odd", "name", "parent")
        self.client.set("bull:odd:unsuccessful", "x"), self.client.set("bull:odd:failed", "x")
        stored = self.client.hgetall(self.key("meta"))
        for key, field, value, why in (
            (job_id, "priority", "high", "priority"),
            (job_id, "priority", "nan", "priority"),
            (job_id, "parentKey", "bull:odd", "waits for it"),
            ("meta", "opts.maxLenEvents", "many", "settings"),
            ("meta", "concurrency", "few", "settings"),
            ("pc", None, "many", "settings"),
            ("prioritized", None, "text", "settings"),
        ):
            name = self.key(key)
            self.client.hset(name, field, value) if field else self.client.set(name, value)
            with pytest.raises(SourceRefused, match=why):
                source.send("r", [self.outgoing_message(report)])
            assert self.client.zrange(self.key("failed"), 0, -1) == [job_id] and not source.was_sent("r", [1])
            self.client.hdel(name, field) if field else self.client.delete(name)
            self.client.hset(self.key("meta"), mapping=stored)
        # What BullMQ itself does not reckon with breaks nothing.
        self.client.hset(self.key(job_id), mapping={"atm": "x", "attemptsMade": "inf", "stacktrace": "[" * 5_000})
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        assert json.loads(self.client.hget(self.key(job_id), "redrive"))["made"] == 0

    def test_all_states_are_counted(self, source):
        self.bull.add(self.queue, "a", {})
        self.bull.add(self.queue, "b", {}, priority=2)
        self.bull.add(self.queue, "c", {}, delay=3_600_000)
        self.bull.flow(
            {"name": "whole", "queueName": self.queue, "children": [{"name": "part", "queueName": self.queue}]}
        )
        (depth,) = source.depths()
        assert (depth.waiting, depth.active, depth.delayed, depth.source_dead) == (3, 0, 2, 0)
        assert source.waiting([self.queue, "nothing-here"]) == {self.queue: 3, "nothing-here": 0}

    def test_who_works_is_known_by_the_connection(self, source):
        assert source.workers() in ({}, None) or self.queue not in source.workers()
        self.bull.add(self.queue, "a", {})
        self.bull.work(self.queue)
        wait_until(lambda: len(source.workers().get(self.queue, ())) == 1)
        self.bull.rest(self.queue)

    def test_ids_and_data_that_are_hostile_are_reported_and_sent_as_they_are(self, source):
        strange = "a:b\n'\"{}%*[]\\ ü \U0001f4a5"
        if self.bull.major > 4:
            strange = strange.replace(":", ";")  # refused by BullMQ itself
        self.bull.add(self.queue, strange, {"needs": "partner", "n": 1, "x": "\ud800 \u0000 </script>"}, jobId=strange)
        self.let_fail()
        (report,), _ = read(source)
        assert (report.job_id, report.task) == (strange, strange)
        before = self.hash_of(report)
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        assert self.hash_of(report)["data"] == before["data"]
        self.run_well()
        assert self.client.zcard(self.key("completed")) == 1

    def test_keys_that_are_none_of_its_own_kind_are_passed_over(self, source):
        self.die(1)
        self.let_fail()
        self.client.set(self.key("2"), "no job")
        self.client.zadd(self.key("failed"), {"2": 5, "3": 6})
        self.client.set(self.key("delayed"), "no set")
        reports, _ = read(source)
        assert [one.job_id for one in reports] == ["1"] and source.depths()[0].delayed == 0

    def test_a_redis_that_throws_jobs_away_is_found(self, source):
        assert not [one for one in source.findings() if one.id == "eviction"]
        self.client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            (finding,) = [one for one in source.findings() if one.id == "eviction"]
            assert finding.severity == "high" and "allkeys-lru" in finding.text
        finally:
            self.client.config_set("maxmemory-policy", "noeviction")

    def test_who_may_only_read_reads_on_and_sends_nothing(self, source):
        self.die(1)
        self.let_fail()
        rights = ["+@read", "+@connection", "+eval", "+evalsha", "+script", "+time", "+info"]
        self.client.acl_setuser("viewer", enabled=True, passwords=["+pw"], keys=["*"], commands=rights)
        host = self.server.url.rpartition("@")[2]
        viewer = connect("shop", "bullmq", f"redis://viewer:pw@{host}", [self.queue])
        self.made.append(viewer)
        try:
            (report,), after = read(viewer)
            assert viewer.check_jobs([ref(report)]).gone == {} and read(viewer, after)[0] == []
            assert READ_ONLY in {one.id for one in viewer.findings()}
            with pytest.raises(SourceRefused, match="may not write"):
                viewer.send("r", [self.outgoing_message(report)])
            with pytest.raises(SourceRefused, match="may not write"):
                viewer.remove([ref(report)])
            assert self.failed() == 1
        finally:
            self.client.acl_deluser("viewer")

    def test_large_jobs_are_read_some_megabytes_at_a_time_and_none_is_missed(self, source):
        report, _ = self.buried(source)
        fields, score = self.hash_of(report), self.client.zscore(self.key("failed"), report.job_id)
        large = {f"large-{n}" for n in range(8)}
        for job_id in large:
            self.client.hset(self.key(job_id), mapping=fields | {"data": json.dumps({"text": "x" * 4_500_000})})
            self.client.zadd(self.key("failed"), {job_id: score})
        source = self.another()
        pulled = source.dead_letters("")
        assert pulled.is_more and sum(one.raw_size for one in pulled.reports) < 24_000_000
        assert {one.job_id for one in source.dead_letters("").reports} == {one.job_id for one in pulled.reports}
        source.confirm_filed(pulled)
        # Whoever is started anew from there finds what was not read, as does who goes on.
        first = {one.job_id for one in pulled.reports}
        for reader in (source, self.another()):
            found = {one.job_id for one in read(reader, pulled.after)[0]}
            assert first | found == large | {report.job_id}
        refs = [Ref(self.queue, job_id, "replaying") for job_id in large]
        assert 0 < sum(one.raw_size for one in source.check_jobs(refs).reports) < 24_000_000

    def test_many_queues_are_read_in_a_place_that_stays_short(self, source):
        report, _ = self.buried(source)
        fields, score = self.hash_of(report), self.client.zscore(self.key("failed"), report.job_id)
        names = [f"{self.queue}-{n}" for n in range(400)]
        for n, queue in enumerate(names):
            self.client.hset(self.key("meta", queue), "version", "bullmq:5.1.0")
            self.client.hset(self.key("1", queue), mapping=fields)
            self.client.zadd(self.key("failed", queue), {"1": score - n * 60_000})
        reports, after = read(self.another_of(names))
        assert {one.queue for one in reports} == set(names)
        # Started anew, it tells again what ended in the last seconds, and what has its turn.
        assert len(read(self.another_of(names), after)[0]) <= 5

    def test_of_several_versions_only_the_unknown_one_is_closed(self, source):
        report, _ = self.buried(source)
        self.bull.add(f"{self.queue}-new", "a", {})
        self.client.hset(self.key("meta", f"{self.queue}-new"), "version", "bullmq:99.0.0")
        both = self.another_of([self.queue, f"{self.queue}-new"])
        assert READ_ONLY not in {one.id for one in both.findings()}
        (finding,) = [one for one in both.findings() if one.severity == "high"]
        assert f"{self.queue}-new" in finding.text and "99.0.0" in finding.text
        messages = [self.outgoing_message(report, 1), self.outgoing_message(report, 2, queue=f"{self.queue}-new")]
        with pytest.raises(SourceRefused) as refused:
            both.send("r", messages)
        assert refused.value.tokens == {2}
        assert both.send("r", messages[:1]) == {1: "sent"}


class TestWhatIsSureOfTheAbsent(There):
    def test_only_what_came_after_the_end_that_is_known_and_after_which_nothing_was_lost_makes_one_gone(self, source):
        report, _ = self.buried(source)
        self.bull.job(self.queue, report.job_id, "remove")
        reference, later = ref(report), Ref(report.queue, report.job_id, "dead", report.at + 600)
        assert source.check_jobs([later]).gone == {}
        mark = keys.whole_since("shop")
        mark_value = self.client.get(mark)
        self.client.set(mark, int((report.at + 600) * 1000))  # it was lost after that
        assert source.check_jobs([reference]).gone == {}
        self.client.delete(mark)  # it was lost just now
        assert source.check_jobs([reference]).gone == {}
        self.client.set(mark, mark_value)
        assert set(source.check_jobs([reference]).gone) == {reference}


class TestIdsThatComeAgain(There):
    """An id is free once its job is gone: whoever names jobs (`jobId`) gives it again, and so does a queue that counts again."""

    def fail_again_under_the_same_id(self, of):
        """Another job under the id of this one, which fails too."""
        self.bull.job(self.queue, of.job_id, "remove")
        self.die(2, jobId=of.job_id)
        self.let_fail()

    def test_the_failure_of_the_next_job_with_its_id_is_reported_and_is_not_taken_out_with_the_first(self, source):
        report, after = self.buried(source, jobId="sync-42")
        self.fail_again_under_the_same_id(report)
        assert source.remove([ref(report)]) == set() and self.failed() == 1
        (found,) = dead(read(source, after)[0])
        assert (found.job_id, found.attempt, json.loads(found.kwargs)["n"]) == ("sync-42", 1, 2)
        assert found.made_at > report.made_at and found.at > report.at
        assert source.remove([ref(found)]) == {ref(found)} and self.failed() == 0

    def test_what_a_queue_that_counts_again_gives_the_id_to_is_not_taken_out(self, source):
        report, _ = self.buried(source)
        self.client.flushall()
        later, _ = self.buried(self.another())
        assert later.job_id == report.job_id
        assert source.remove([ref(report)]) == set() and self.failed() == 1
        assert source.remove([Ref(report.queue, report.job_id, "discarded")]) == set() and self.failed() == 1


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("postgresql://localhost/bullmq", {}, "PostgreSQL"),
        ("redis://a,b:1", {}, "Cluster"),
        ("http://localhost", {}, "redis://"),
        ("redis://localhost", {"major": 9}, "4, 5 or 6"),
        ("redis://localhost", {"dead_letter_queues": [{"of": "a"}]}, "dead_letter_queues"),
        ("redis://localhost", {"prefx": "bull"}, "prefx"),
        ("redis://localhost", {"prefix": 5}, "prefix is text"),
        ("redis://localhost", {"prefix": ["a"]}, "prefix is text"),
        ("redis://localhost", {"prefix": ""}, "prefix is text"),
        ("redis://localhost", {"major": [5]}, "4, 5 or 6"),
        ("redis://localhost", {"tenant": 5}, "tenant must be the path"),
        ("redis://localhost", {"tenant": [1]}, "tenant must be the path"),
        ("redis://localhost", {"every_s": "2s"}, "every_s is a number of seconds"),
        ("redis://localhost", {"every_s": 0}, "every_s is a number of seconds"),
        ("redis://localhost", {"every_s": -1}, "every_s is a number of seconds"),
        ("redis://localhost", {"every_s": float("nan")}, "every_s is a number of seconds"),
        ("redis://localhost", {"every_s": True}, "every_s is a number of seconds"),
        ("redis://localhost", {"outcome_within_s": None}, "outcome_within_s is a number of seconds"),
    ],
)
def test_what_cannot_be_configured_is_refused_with_a_sentence(url, options, message):
    with pytest.raises(SourceRefused, match=message):
        connect("shop", "bullmq", url, [], options)


def test_a_ref_is_its_queue_and_id():
    assert Ref("a", "1", "dead", 1.0) == Ref("a", "1")


class TestSource(There, SourceContract):
    """Contract of every source, with letters of jobs that are not there any more: each is put back under the id that the letter has."""

    outgoing_message = SourceContract.outgoing_message
    elsewhere = None  # only what does not say its queue (a dead letter of the form `originalJob`) may be sent to any

    @pytest.fixture(autouse=True)
    def _raw(self, source):
        report, _ = self.buried(source)
        self.raw = report.raw
        self.client.zrem(self.key("failed"), report.job_id)
        self.client.delete(self.key(report.job_id))

    def waiting(self, queue):
        return self.client.lrange(self.key("wait", queue), 0, -1)[::-1]

    def fetch(self, queue):
        return self.client.rpoplpush(self.key("wait", queue), self.key("active", queue))

    def lose_everything(self):
        self.client.flushall()

    unplug = Bull.unplug
