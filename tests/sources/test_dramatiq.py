"""Dramatiq: its own producer and worker, a real server, and what people do with the means of its dashboards."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import replace

import pytest
import redis

from dashboard.setup.engine import Engine, free_port
from jobs_admin.sources import connect, death_reading
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused, SourceUnreachable
from jobs_admin.sources.dramatiq import absences, delayed, wire
from jobs_admin.sources.dramatiq.message import Message
from jobs_admin.sources.dramatiq.reports import build_report
from tests.kit import shops
from tests.sources.contract import SourceContract
from tests.sources.pulled_contract import PulledContract, read, read_until, ref

pytestmark = pytest.mark.server


def test_a_secret_of_the_arguments_is_hidden_where_the_error_repeats_it():
    trace = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in login\n    ask("hunter2")\nE: hunter2 failed\n'
    fields = {"queue_name": "mail", "actor_name": "login", "args": [], "message_id": "m", "message_timestamp": 1}
    fields |= {"kwargs": {"password": "hunter2"}, "options": {"redis_message_id": "x", "traceback": trace}}
    raw = json.dumps(fields).encode()
    stored = wire.StoredMessage("mail", "x", 1.0, len(raw), Message.read(raw))
    report = build_report("shop", stored, "exception", None, is_first=True)
    assert report.message == "[redacted] failed" and "hunter2" not in report.trace + report.kwargs
    assert report.redacted == 4


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shops.need("dramatiq")
    engine = Engine(tmp_path_factory.mktemp("dramatiq")).start()
    running = shops.Shop("dramatiq", engine.url)
    yield running
    running.stop()
    engine.stop()


class Dramatiq:
    """A test's acts on an empty server."""

    queue = "emails"

    @pytest.fixture(autouse=True)
    def _place(self, shop, monkeypatch):
        monkeypatch.setattr(absences, "_APART_S", 0)
        self.shop, self.made = shop, []
        self.client = redis.Redis.from_url(shop.url)
        self.client.flushall()
        self.client.set("broken", "fail")
        yield
        for one in (*self.made, self.client):
            one.close()

    def another(self, **options):
        self.made.append(connect("shop", "dramatiq", self.shop.url, options=options))
        return self.made[-1]

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def add(self, *jobs, queue=None):
        """Messages that a worker runs at once, as the server's `broken` or their plans say. Return their ids."""
        ids, _ = self.shop.do(["add", queue or self.queue, list(jobs)], ["work", queue or self.queue])
        return ids

    def bury(self, count):
        ids = self.add(*({"args": [{"n": n}]} for n in range(count)))
        died = {message["message_id"]: at for message, at in self.dead()}
        return [Ref(self.queue, one, at=died[one] / 1000) for one in ids]

    def dead(self, queue=None):
        """Dead letters and their times, by time."""
        key = f"dramatiq:{queue or self.queue}.XQ"
        found = self.client.zrange(key, 0, -1, withscores=True)
        return [(json.loads(self.client.hget(f"{key}.msgs", name)), at) for name, at in found]

    def messages(self, queue):
        names = self.client.lrange(f"dramatiq:{queue}", 0, -1)
        found = [json.loads(self.client.hget(f"dramatiq:{queue}.msgs", name)) for name in names]
        assert [one["options"]["redis_message_id"].encode() for one in found] == names
        return found

    def waiting(self, queue):
        return [one["message_id"] for one in self.messages(queue)]

    def waiting_data(self, queue):
        return [one["args"][0] for one in self.messages(queue)]

    def work(self, queue, outcome="ok"):
        self.client.set("broken", outcome)
        self.shop.do(["work", queue])
        self.client.set("broken", "fail")

    def fail_again(self, queue):
        self.work(queue, "fail")

    def lose_everything(self):
        self.client.flushall()
        self.client.set("broken", "fail")

    def ends(self, source, *refs):
        """Reports of the second search: both have to miss a job."""
        assert source.check_jobs(refs).reports == []
        return source.check_jobs(refs).reports

    def unplug(self, source):
        pool = source._wire.client.connection_pool
        pool.reset()
        pool.connection_kwargs["port"] = free_port()

    outgoing_message, next_id = PulledContract.outgoing_message, PulledContract.next_id

    @property
    def can(self):
        return self.made[0].can


class TestContract(Dramatiq, PulledContract):
    can = PulledContract.can
    attempts = 2  # so that an error is stored

    def revive(self, job):
        self.shop.do(["bring_back", job.queue, job.job_id])

    def take_out(self, job):
        self.shop.do(["delete", job.queue, job.job_id])

    def become_unknown(self):
        (message, _), *_ = self.dead()
        name = message["options"]["redis_message_id"]
        self.client.hset(f"dramatiq:{self.queue}.msgs", name, json.dumps(message | {"schema": 9}))
        self.client.rpush(f"dramatiq:{self.queue}", name)
        self.waiting = lambda queue: []


class TestSending(Dramatiq, SourceContract):
    elsewhere = None
    outgoing_message = SourceContract.outgoing_message
    raw = json.dumps(
        {
            "queue_name": "emails", "actor_name": "send", "args": [1], "kwargs": {}, "options": {"redis_message_id": "r"},
            "message_id": "old", "message_timestamp": 1,
        }
    ).encode()  # fmt: skip


class TestWhatDramatiqStores(Dramatiq):
    def test_the_error_of_the_last_attempt_is_stored_only_by_the_middleware_of_the_docs(self, source):
        never, once = self.add({"options": {"max_retries": 0}}, {})
        found = {one.job_id: one for one in read(source)[0]}
        assert (found[never].error_type, found[never].attempt, found[never].trace) == ("", 1, "")
        assert "stores no error" in found[never].message
        assert (found[once].attempt, found[once].max_attempts) == (2, 2)
        assert found[once].error_type.endswith("PartnerDown") and found[once].message == "the partner is down"
        self.shop.do(["store_last_error"])
        never, once, thrown = self.add({"options": {"max_retries": 0}}, {}, {"actor": "abort", "plan": ["fail"]})
        self.shop.do(["renew"])
        found = {one.job_id: one for one in read(self.another())[0]}
        assert [found[one].attempt for one in (never, once, thrown)] == [1, 2, 1]
        assert all(found[one].error_type.endswith("PartnerDown") for one in (never, once, thrown))
        assert not self.client.hlen(f"dramatiq:{self.queue}.msgs")

    def test_a_job_that_is_never_retried_dies_again_as_another_run(self, source):
        (job_id,) = self.add({"actor": "abort"})
        (report,), after = read(source)
        self.shop.do(["bring_back", self.queue, job_id], ["work", self.queue])
        (later,), after = read_until(source, lambda seen: seen, after)
        assert later.made_at > report.made_at and later.attempt == report.attempt == 1
        source.send("r", [self.outgoing_message(later)])
        for _ in range(2):
            self.work(self.queue, "fail")
            (again,), after = read_until(source, lambda seen: seen, after)
            self.shop.do(["bring_back", self.queue, job_id])
            if again.lineage is None:
                break
            first = again
        assert first.lineage.run == 2 and again.lineage is None and again.made_at > first.at

    def test_queues_their_delayed_jobs_and_what_a_worker_has(self, source):
        self.shop.do(["add", self.queue, [{"delay": 1_000_000}, {}]])
        self.shop.do(["add", "hang", [{"plan": ["hang"]}]])
        other = shops.Shop("dramatiq", self.shop.url)
        other.start(["work", "hang"])
        while not self.client.llen("ran"):
            time.sleep(0.02)
        counts = {one.queue: (one.waiting, one.active, one.delayed, one.source_dead) for one in source.depths()}
        assert counts == {self.queue: (1, 0, 1, 0), "hang": (0, 1, 0, 0)}
        other.stop()


class TestReplay(Dramatiq):
    def test_what_is_sent_is_what_dramatiq_would_enqueue_and_all_else_stays(self, source):
        options = {"max_retries": 1, "min_backoff": 1, "max_backoff": 1, "on_success": "note", "pipe_target": None}
        numbers = {"n": 1, "large": 12345678901234567890123, "exact": 1.10}
        (job_id,) = self.add({"args": [numbers], "kwargs": {"to": "ann é"}, "options": options})
        (before, _), *_ = self.dead()
        (report,), _ = read(source)
        assert source.arguments(report.raw) == ([numbers], {"to": "ann é"})
        assert [source.send("r", [self.outgoing_message(report)]) for _ in range(2)] == [{1: "sent"}, {1: "already"}]
        (after,) = self.messages(self.queue)
        name = after["options"].pop("redis_message_id")
        assert name != before["options"].pop("redis_message_id") and after["options"].pop("redrive")["item"] == 1
        assert {"retries", "traceback", "requeue_timestamp"} <= before["options"].keys()
        assert after == before | {"options": options} and not self.dead()
        assert not self.client.hlen(f"dramatiq:{self.queue}.XQ.msgs")
        self.work(self.queue)
        self.work("default")  # of its callback
        assert self.client.llen("called-back") == 1
        assert [one.kind for one in self.ends(source, Ref(self.queue, job_id, "replaying"))] == ["success"]

    def test_a_replayed_job_that_waits_for_a_retry_has_not_succeeded(self, source):
        (job_id,) = self.add({})
        (report,), _ = read(source)
        later = report.raw.replace(b'"min_backoff":1,"max_backoff":1', b'"min_backoff":9000000')
        source.send("r", [self.outgoing_message(report, raw=later, retries=0)])
        sent = Ref(self.queue, job_id, "replaying", report.at)
        assert source.check_jobs([sent]).reports == []
        self.work(self.queue, "fail")
        assert source.depths()[0].delayed == 1 and source.check_jobs([sent]).reports == []
        assert self.another().check_jobs([sent]).reports == []

    def test_a_success_takes_two_searches_that_may_take_many_checks(self, source, monkeypatch):
        self.bury(1)
        (report,), _ = read(source)
        source.send("r", [self.outgoing_message(report)])
        self.work(self.queue)
        sent, checks = [ref(report, "replaying")], 1
        monkeypatch.setattr(absences, "_PAGES", 1)
        while not source.check_jobs(sent).reports:
            checks += 1
        assert checks == 8  # of four places each
        monkeypatch.setattr(absences, "_PAGES", 100)
        monkeypatch.setattr(absences, "_APART_S", 60)
        other = self.another()
        assert [other.check_jobs(sent).reports for _ in range(3)] == [[]] * 3

    def test_what_was_brought_back_is_not_sent_although_its_first_failure_was_before_a_loss(self, source):
        (job_id,) = self.add({"options": {"max_retries": 1, "min_backoff": 10**9}})
        _, after = read(source)
        time.sleep(0.01)
        self.client.hset(source._wire.own_key("mark"), "since", int(time.time() * 1000))
        self.shop.do(["due", self.queue, job_id], ["work", self.queue])
        (report,), _ = read_until(source, lambda seen: [one for one in seen if one.kind == "exception"], after)
        self.shop.do(["bring_back", self.queue, job_id])
        self.work(self.queue)
        with pytest.raises(SourceRefused, match="requeued it"):
            source.send("r", [self.outgoing_message(report)])

    def test_a_mark_that_could_not_be_written_before_begins_now(self, source):
        source.dead_letters("[5, 5, 0]")
        assert source._wire.mark.complete_since() > 5

    def test_what_dramatiq_dropped_is_no_ones_act_and_is_not_sent(self):
        source = self.another(dead_message_ttl_s=2)
        self.add({})
        (report,), _ = read(source)
        time.sleep(max(0.0, report.at + 2.1 - time.time()))
        self.shop.do(["maintain", self.queue, 60_000, 2_000])
        assert not self.dead() and source.check_jobs([ref(report)]).gone == {}
        with pytest.raises(SourceRefused, match="may have run"):
            source.send("r", [self.outgoing_message(report)])
        assert not self.waiting(self.queue)

    def test_dead_letters_that_are_dropped_soon_are_a_finding(self):
        source = self.another(dead_message_ttl_s=86_400)
        self.bury(2)
        assert source.findings() == []
        self.client.zincrby(
            f"dramatiq:{self.queue}.XQ", -50_000_000, self.client.zrange(f"dramatiq:{self.queue}.XQ", 0, 0)[0]
        )
        (found,) = source.findings()
        assert found.id == "dead-letters-dropped-soon" and "1, of emails." in found.text

    def test_a_discarded_dead_letter_is_put_back(self, source):
        self.bury(2)
        reports, _ = read(source)
        older = {f"older {n}": n for n in range(1, 201)}  # as many as one search reads
        self.client.zadd(f"dramatiq:{self.queue}.XQ", older)
        assert source.remove([ref(reports[0]), Ref(self.queue, reports[1].job_id, "dead", reports[1].at - 5)]) == {
            ref(reports[0])
        }
        self.client.zrem(f"dramatiq:{self.queue}.XQ", *older)
        assert source.send("r", [self.outgoing_message(reports[0], was_removed=True)]) == {1: "sent"}
        assert self.waiting(self.queue) == [reports[0].job_id] and len(self.dead()) == 1
        self.work(self.queue, "fail")
        assert len(self.dead()) == 2 and self.ends(source, ref(reports[0], "replaying")) == []

    def test_a_dead_letter_is_on_its_queue_or_still_dead_whatever_the_server_refuses(self, source):
        self.bury(2)
        reports, _ = read(source)
        messages = [self.outgoing_message(one, n) for n, one in enumerate(reports)]
        no_push = ["+@all", "~redrive:*", "%R~dramatiq:*", "~dramatiq:emails.*"]
        for rights in (no_push, ["+@all", "~*", "-zrem"]):
            self.client.acl_setuser("limited", enabled=True, nopass=True, reset=True)
            self.client.execute_command("ACL", "SETUSER", "limited", *rights)
            limited = connect("shop", "dramatiq", self.shop.url.replace("//", "//limited:x@"))
            self.made.append(limited)
            assert [one.id for one in limited.findings()][:1] == ([READ_ONLY] if "-zrem" in rights else [])
            with pytest.raises((SourceUnreachable, SourceRefused)):
                limited.send("r", messages)
            assert len(self.dead()) == 2 and not self.waiting(self.queue) and not source.was_sent("r", [0, 1])
            assert not self.client.hlen(f"dramatiq:{self.queue}.msgs")
        assert source.send("r", messages) == dict.fromkeys((0, 1), "sent")

    def test_a_job_whose_worker_was_killed_ends_once_another_has_it(self, source):
        (job_id,) = self.add({})
        (report,), _ = read(source)
        self.shop.do(["plan", job_id, ["hang"]])
        self.client.delete("ran")
        source.send("r", [self.outgoing_message(report)])
        other = shops.Shop("dramatiq", self.shop.url)
        other.start(["work", self.queue])
        while not self.client.llen("ran"):
            time.sleep(0.02)
        other.stop()
        sent = Ref(self.queue, job_id, "replaying", report.at)
        assert source.check_jobs([sent]).reports == [] and source.depths()[0].active == 1
        self.shop.do(["maintain", self.queue, 0, 10**10])
        assert self.waiting(self.queue) == [job_id]
        self.work(self.queue)
        assert [one.kind for one in self.ends(source, sent)] == ["success"]


class TestFinding(Dramatiq):
    """Dead letters are found by their time of death and the id in their message."""

    def test_one_that_died_by_a_clock_that_is_ahead_is_found_until_it_is_removed(self, source):
        self.bury(3)
        names = self.client.zrange(f"dramatiq:{self.queue}.XQ", 0, -1)
        for name in names[:2]:
            self.client.zincrby(f"dramatiq:{self.queue}.XQ", 100_000, name)
        reports, _ = read(source)
        refs = [ref(one) for one in reports]
        assert all(one.at <= time.time() for one in reports) and source.check_jobs(refs).gone == {}
        ahead = [one for one in refs if one.job_id in {message["message_id"] for message, at in self.dead()[1:]}]
        assert source.remove(ahead[:1]) == {ahead[0]} and len(self.dead()) == 2
        self.shop.do(["delete", self.queue, ahead[1].job_id])
        assert set(source.check_jobs(refs).gone) == set(ahead)

    def test_large_ones_of_one_moment_are_searched_within_bounds(self, source, monkeypatch):
        self.add(*({"args": [{"n": n}, "x" * 5_000]} for n in range(4)))
        key = f"dramatiq:{self.queue}.XQ"
        names = self.client.zrange(key, 0, -1)
        self.client.zadd(key, dict.fromkeys(names[:3], int(self.dead()[0][1])))
        refs = [ref(one) for one in read(source)[0]]
        monkeypatch.setattr(wire, "_AT_BYTES", 1_000)
        assert source.check_jobs(refs).gone == {}
        removed = source.remove(refs)
        assert refs[3] in removed and len(removed) == 4 - len(self.dead())
        monkeypatch.setattr(wire, "_AT_BYTES", 100_000)
        assert source.remove(refs) == set(refs) - removed and not self.dead()

    def test_ids_that_json_escapes(self, source):
        ids = ["ann é", 'a"b\\c', "\U0001f600/x"]
        self.add(*({"id": one} for one in ids))
        reports, _ = read(source)
        refs = [ref(one) for one in reports]
        assert {one.job_id for one in refs} == set(ids) and source.check_jobs(refs).gone == {}
        later = [one.raw.replace(b'"min_backoff":1,"max_backoff":1', b'"min_backoff":9000000') for one in reports]
        source.send("r", [self.outgoing_message(one, n, raw=later[n]) for n, one in enumerate(reports[:2])])
        assert source.remove(refs[2:]) == set(refs[2:]) and not self.dead()
        self.work(self.queue, "fail")
        assert source.depths()[0].delayed == 2
        sent = [ref(one, "replaying") for one in reports[:2]]
        assert self.ends(source, *sent) == []
        for one in sent:
            self.shop.do(["due", self.queue, one.job_id])
        self.work(self.queue)
        assert {one.job_id for one in self.ends(source, *sent)} == {one.job_id for one in sent}


class TestRetries(Dramatiq):
    later = {"max_retries": 2, "min_backoff": 10**9}

    @pytest.fixture(autouse=True)
    def _each_reading_has_its_turn(self, monkeypatch):
        monkeypatch.setattr(delayed, "_TURN_MS", 0)

    def test_a_retry_is_reported_with_its_error_and_its_last_death_with_all_attempts(self, source):
        (job_id,) = self.add({"options": self.later})
        self.shop.do(["add", self.queue, [{"delay": 10**9}]])  # no attempt of it has ended
        (report,), after = read(source)
        assert (report.kind, report.attempt, report.max_attempts, report.message) == (
            "retry",
            1,
            3,
            "the partner is down",
        )
        assert report.due_at > time.time() + 86_400 > report.at
        ends = []
        for _ in range(2):
            self.shop.do(["due", self.queue, job_id], ["work", self.queue])
            (end,), after = read_until(source, lambda seen: seen, after)
            ends.append((end.kind, end.attempt, end.made_at))
        assert ends == [("retry", 2, report.made_at), ("exception", 3, report.made_at)]
        assert source.check_jobs([ref(report, "retrying")]).reports == []

    def test_a_retry_that_succeeds_is_reported_and_one_that_others_removed_is_gone(self, source):
        (job_id,) = self.add({"options": self.later})
        (report,), after = read(source)
        waiting = ref(report, "retrying")
        for _ in range(8):
            _, after = read(source, after)
        assert source.check_jobs([waiting]).reports == []
        self.shop.do(["due", self.queue, job_id])
        self.work(self.queue)
        for _ in range(8):
            _, after = read(source, after)
        (end,) = self.ends(source, waiting)
        assert (end.kind, end.attempt, end.task, end.lineage) == ("success", 2, "send", None)
        other = self.another()
        for _ in range(8):
            _, after = read(other, after)
        assert self.ends(other, waiting) == [] and set(other.check_jobs([waiting]).gone) == {waiting}

    def test_a_retry_has_ended_by_two_searches_between_which_no_round_met_it(self, source):
        self.add({"options": self.later})
        (report,), after = read(source)
        waiting, messages = ref(report, "retrying"), f"dramatiq:{self.queue}.DQ.msgs"
        ((name, message),) = self.client.hgetall(messages).items()
        found = []
        for is_there in (False, True, False):
            (self.client.hset if is_there else self.client.hdel)(messages, name, *[message] * is_there)
            for _ in range(8):
                _, after = read(source, after)
            found += source.check_jobs([waiting]).reports
        later = replace(waiting, at=waiting.at + 1)  # of another attempt
        assert not found and [len(source.check_jobs([later]).reports) for _ in range(2)] == [0, 1]

    def test_a_turn_reads_many_queues_and_few_large_messages(self, source, monkeypatch):
        later = {"options": self.later, "args": ["x" * 3_000]}
        self.add(*(later for _ in range(20)))
        for n in range(30):
            self.client.hset(f"dramatiq:q{n}.msgs", "x", "x")
        self.add(later, queue="zz")
        _, after = read(source)
        read(source, after)
        assert source._reading.delayed.find_left(self.queue, "none") == (True, None)
        monkeypatch.setattr(delayed, "_TURN_BYTES", 1_000)
        first = self.another().dead_letters("")
        assert 1 <= len(first.reports) < 20 and first.is_more
        assert len(read(self.another())[0]) == 21


class TestContent(Dramatiq):
    def test_a_message_of_another_encoder_is_stored_and_never_unpickled(self, source):
        self.shop.do(["encode", "pickle"])
        self.add({"options": {"max_retries": 0}})
        self.shop.do(["encode", "json"])
        (name,) = self.client.zrange(f"dramatiq:{self.queue}.XQ", 0, -1)
        raw = pickle.dumps(Bomb())
        self.client.hset(f"dramatiq:{self.queue}.XQ.msgs", name, raw)
        (report,), _ = read(source)
        assert report.raw == raw and report.job_id == name.decode() and "not JSON" in report.message
        assert source.check_jobs([ref(report)]).gone == {} and source.findings() == []
        with pytest.raises(SourceRefused, match="not JSON"):
            source.send("r", [self.outgoing_message(report)])
        assert source.remove([ref(report)]) == {ref(report)}

    def test_hostile_values_stop_no_reading(self, source):
        self.bury(1)
        (good, at), *_ = self.dead()
        strange = {
            "missing": None,
            "list": b"[1]",
            "deep": b'{"options": ' + b"[" * 100_000,
            "surrogate": json.dumps(good | {"actor_name": "\ud800", "message_id": ["x"]}).encode(),
            "numbers": json.dumps(
                good | {"options": {"retries": 1e300, "traceback": 7, "redrive": {"run": 1e999}}}
            ).encode(),
            "odd": json.dumps(
                good | {"args": {}, "kwargs": [], "options": {"max_retries": -1, "max_age": 1e18}}
            ).encode(),
        }
        for name, raw in strange.items():
            self.client.zadd(f"dramatiq:{self.queue}.XQ", {name: at + 100})
            if raw is not None:
                self.client.hset(f"dramatiq:{self.queue}.XQ.msgs", name, raw)
        self.client.hset("dramatiq:broken.msgs", "x", "x")
        self.client.set("dramatiq:broken.XQ", "text")
        pulled = source.dead_letters("")
        assert len(pulled.reports) == len(strange) + 1 and not pulled.unread and list(pulled.failing) == ["broken"]
        for one in pulled.reports:
            source.is_chord_member(one.raw or b"")
            source.expires_at(one.raw or b"")
        assert source.check_jobs([ref(one) for one in pulled.reports]).gone == {}
        assert [one.queue for one in source.depths()] == ["broken", self.queue]


class Bomb:
    def __reduce__(self):
        return int, ("it was unpickled",)


class TestReading(Dramatiq):
    def test_many_queues_that_are_behind_end_with_the_longest(self, source, monkeypatch):
        monkeypatch.setattr(death_reading, "_PAGE", 2)
        monkeypatch.setattr(wire, "_QUEUES_FOR_S", 0.0)
        monkeypatch.setattr(wire, "_SEARCH_SHARE", 0)
        _, after = read(source)
        pages = (2, 3, 5, 7, 11)
        for n in pages:
            self.add(*({"args": [{"n": n}]} for _ in range(2 * n)), queue=f"q{n}")
        reports, after = read(source, after, limit=max(pages) + 2)
        assert len({one.job_id for one in reports}) == len(reports) == 2 * sum(pages)
        assert read(source, after)[0] == []

    def test_large_messages_are_read_within_bounds(self, source, monkeypatch):
        monkeypatch.setattr(wire, "_READ_BYTES", 1_000)
        monkeypatch.setattr(wire, "RAW_BYTES", 20_000)
        self.add(*({"args": [{"n": n}, "x" * size]} for n, size in enumerate((10, 5_000, 5_000, 30_000))))
        before = self.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        reports, _ = read(source)
        assert len(reports) == 4 and self.client.info("commandstats")["cmdstat_evalsha"]["calls"] - before >= 3
        (large,) = [one for one in reports if not one.is_raw_complete]
        assert large.raw_size > 30_000 and source.remove([ref(large)]) == set()

    def test_one_that_is_listed_late_is_found_at_the_next_reading_of_all(self, source, monkeypatch):
        self.bury(1)
        _, after = read(source)
        (name,) = self.client.zrange(f"dramatiq:{self.queue}.XQ", 0, 0)
        self.client.zadd(f"dramatiq:{self.queue}.XQ", {"late": 1_000})
        self.client.hset(
            f"dramatiq:{self.queue}.XQ.msgs", "late", self.client.hget(f"dramatiq:{self.queue}.XQ.msgs", name)
        )
        found, after = read(source, after)
        assert found == []
        monkeypatch.setattr(death_reading, "_AGAIN_MS", 0)
        assert [one.at for one in read(source, after)[0]] == [1.0]
