"""RQ: its own producer and worker, a real server, and what people do with RQ's own means."""

from __future__ import annotations

import json
import pickle
import time
import zlib

import pytest
import redis

from dashboard.setup.engine import Engine, free_port
from jobs_admin.core.trace_context import find_trace
from jobs_admin.sources import connect
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused, SourceUnreachable
from jobs_admin.sources.rq import job_changes, reading, wire
from tests.kit import shops
from tests.sources.pulled_contract import PulledContract, read, read_until, ref

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shops.need("rq")
    engine = Engine(tmp_path_factory.mktemp("rq")).start()
    running = shops.Shop("rq", engine.url)
    yield running
    running.stop()
    engine.stop()


class Rq:
    """A test's acts on an empty server."""

    queue = "emails"

    @pytest.fixture(autouse=True)
    def _place(self, shop):
        self.shop, self.made = shop, []
        self.client = redis.Redis.from_url(shop.url, decode_responses=True)
        self.client.flushall()
        self.client.set("broken", "fail")
        yield
        for one in (*self.made, self.client):
            one.close()

    def another(self, **options):
        self.made.append(connect("shop", "rq", self.shop.url, options=options))
        return self.made[-1]

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def add(self, *jobs, queue=None):
        """Jobs that a worker runs at once, as the server's `broken` or their plans say. Return their ids."""
        work = "work_json" if any(job.get("serializer") == "json" for job in jobs) else "work"
        ids, _ = self.shop.do(["add", queue or self.queue, list(jobs)], [work, queue or self.queue])
        return ids

    def bury(self, count):
        return [Ref(self.queue, job_id) for job_id in self.add(*({"args": [{"n": n}]} for n in range(count)))]

    def waiting(self, queue):
        return self.client.lrange(f"rq:queue:{queue}", 0, -1)

    def work(self, queue, outcome="ok"):
        self.client.set("broken", outcome)
        self.shop.do(["work", queue])
        self.client.set("broken", "fail")

    def fail_again(self, queue):
        self.work(queue, "fail")

    def waiting_data(self, queue):
        """As RQ's own worker unpickles it."""
        data = [zlib.decompress(self.hash_of(one)[b"data"]) for one in self.waiting(queue)]
        return [pickle.loads(one)[2][0] for one in data]  # noqa: S301 - written by this test

    def hash_of(self, job_id):
        with redis.Redis.from_url(self.shop.url) as client:
            return client.hgetall(f"rq:job:{job_id}")

    def status(self, job_id):
        return self.client.hget(f"rq:job:{job_id}", "status")

    outgoing_message, next_id = PulledContract.outgoing_message, PulledContract.next_id

    @property
    def can(self):
        return self.made[0].can


class TestContract(Rq, PulledContract):
    can = PulledContract.can

    def revive(self, job):
        self.shop.do(["requeue", job.job_id])

    def take_out(self, job):
        self.shop.do(["delete", job.job_id])

    def lose_everything(self):
        self.client.flushall()
        self.client.set("broken", "fail")

    def unplug(self, source):
        pool = source._wire.client.connection_pool
        pool.reset()
        pool.connection_kwargs["port"] = free_port()

    def become_unknown(self):
        self.client.sadd("rq:workers", "rq:worker:w9")
        self.client.hset("rq:worker:w9", mapping={"birth": "2026-11-28T03:10:29.771354Z", "version": "9.0.1"})


class TestReplay(Rq):
    def test_callbacks_dependencies_and_meta_stay_with_the_job(self, source):
        sent_by = {
            "sentry-trace": "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "baggage": "sentry-sampled=true",
        }
        meta = {"order": 7, "_sentry_trace_headers": sent_by}  # as sentry-sdk adds it
        (job_id,) = self.add({"args": [{"n": 1}], "meta": meta, "callback": True, "job_id": "first", "timeout": 77})
        self.shop.do(["add", "later", [{"args": [{"n": 2}], "job_id": "second", "depends_on": "first"}]])
        before = self.hash_of(job_id)
        (report,), _ = read(source)
        assert (
            json.loads(report.headers)["meta"] == meta
            and find_trace(report.headers).trace_id == sent_by["sentry-trace"][:32]
        )
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        after = self.hash_of(job_id)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed <= {b"redrive", b"status", b"enqueued_at", b"started_at", b"ended_at"}
        assert self.status(job_id) == "queued"
        self.work(self.queue)
        assert self.waiting("later") == ["second"] and self.client.lrange("called-back", 0, -1) == ["first"]
        self.work("later")
        assert [self.status(one) for one in ("first", "second")] == ["finished"] * 2

    def test_a_job_that_others_depend_on_is_not_taken_out(self, source):
        self.add({"args": [{"n": 1}], "job_id": "first"}, {"args": [{"n": 2}], "job_id": "alone"})
        self.shop.do(["add", "later", [{"args": [{"n": 2}], "depends_on": "first"}]])
        reports, _ = read(source)
        assert source.remove([ref(one) for one in reports]) == {Ref(self.queue, "alone")}
        assert self.status("first") == "failed" and not self.hash_of("alone")
        (alone,) = (one for one in reports if one.job_id == "alone")
        assert source.check_jobs([ref(alone)]).gone  # another's act, as far as is known
        assert source.send("r", [self.outgoing_message(alone, was_removed=True)]) == {1: "sent"}
        self.work(self.queue)
        assert self.status("alone") == "finished"

    def test_a_job_is_in_its_queue_or_still_failed_whatever_the_server_refuses(self, source):
        self.add({"args": [{"n": 1}], "ttl": 500}, {"args": [{"n": 2}]})
        reports, _ = read(source)
        for report, ttl in zip(reports, ("1e30", "9" * 20), strict=True):
            self.client.hset(f"rq:job:{report.job_id}", "ttl", ttl)
        messages = [self.outgoing_message(one, n) for n, one in enumerate(reports)]
        no_push = ["+@all", "~redrive:*", "~rq:[^q]*", "%R~rq:queue:*", "~rq:queues"]
        for rights in (no_push, ["+@all", "~*", "-persist"]):
            limited = self.limited(*rights)
            assert [one.id for one in limited.findings()][:1] == ([READ_ONLY] if "-persist" in rights else [])
            with pytest.raises((SourceUnreachable, SourceRefused)):
                limited.send("r", messages)
            assert {self.status(one.job_id) for one in reports} == {"failed"} and not source.was_sent("r", [0, 1])
            assert self.client.zcard(f"rq:failed:{self.queue}") == 2 and not self.waiting(self.queue)
        self.client.delete(f"rq:job:{reports[0].job_id}")
        assert source.send("r", messages) == dict.fromkeys((0, 1), "sent")  # the first by its copy
        assert set(self.waiting(self.queue)) == {one.job_id for one in reports}
        assert not self.client.zcard(f"rq:failed:{self.queue}")

    def limited(self, *rights):
        self.client.acl_setuser("limited", enabled=True, nopass=True, reset=True)
        self.client.execute_command("ACL", "SETUSER", "limited", *rights)
        self.made.append(connect("shop", "rq", self.shop.url.replace("//", "//limited:x@"), options={}))
        return self.made[-1]

    def test_what_a_heartbeat_left_of_a_dropped_job_is_completed_from_our_copy(self, source):
        (job_id,) = self.add({"args": [{"n": 1}]})
        (report,), _ = read(source)
        self.client.delete(f"rq:job:{job_id}")
        self.client.hset(f"rq:job:{job_id}", "last_heartbeat", "2026-11-28T03:10:29.771354Z")
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        self.work(self.queue)
        assert self.status(job_id) == "finished"

    def test_a_job_with_a_rate_limit_waits_for_its_place(self, source):
        if int(self.shop.do(["version"])[0].partition(".")[0]) < 3:
            return  # RQ 3 is the first with rate limits
        self.add(*({"args": [{"n": n}], "rate_limit": ["partner", 1]} for n in range(3)))
        reports, _ = read(source)
        self.client.set("rq:job:text", "no hash")
        self.client.zadd("rq:rl:partner:rate_limited", {"text": 0})
        source.send("r", [self.outgoing_message(one, n) for n, one in enumerate(reports)])
        assert len(self.waiting(self.queue)) == 1 and self.client.zcard("rq:rl:partner:rate_limited") == 2
        self.work(self.queue)
        assert {self.status(one.job_id) for one in reports} == {"finished"}

    def test_what_rq_dropped_is_no_ones_act_and_is_sent_from_our_copy(self, source, monkeypatch):
        (job_id,) = self.add({"args": [{"n": 1}], "failure_ttl": 10})
        (report,), after = read(source)
        while self.hash_of(job_id):
            time.sleep(0.05)
        read(source, after)
        self.client.zrem(f"rq:failed:{self.queue}", job_id)  # as RQ's workers do
        assert source.check_jobs([ref(report)]).gone == {}
        with monkeypatch.context() as patch, pytest.raises(SourceRefused, match="may have run"):
            patch.setattr(job_changes, "_SEEN_WITHIN_S", 0)
            source.send("r", [self.outgoing_message(report)])
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        self.work(self.queue)
        assert self.status(job_id) == "finished"

    def test_failures_are_seen_once_more_before_rq_drops_them(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "failure_ttl": 300})
        read(source)
        self.client.zadd("redrive:{shop}:rq:seen", {f"{self.queue}\n{job_id}": 1})
        source.check_jobs([])
        assert self.client.zscore("redrive:{shop}:rq:seen", f"{self.queue}\n{job_id}") > time.time() - 60
        self.client.delete("redrive:{shop}:rq:seen", "redrive:{shop}:rq:expiry")
        source.check_jobs([Ref(self.queue, job_id, "dead", time.time())])
        assert self.client.zscore("redrive:{shop}:rq:seen", f"{self.queue}\n{job_id}") > time.time() - 60
        assert self.client.zscore("redrive:{shop}:rq:expiry", f"{self.queue}\n{job_id}") > time.time() + 60

    def test_a_job_that_was_made_again_in_another_queue_is_neither_sent_nor_removed(self, source):
        self.bury(1)
        (report,), _ = read(source)
        self.client.hset(f"rq:job:{report.job_id}", "origin", "other")
        assert source.check_jobs([ref(report)]).gone
        assert source.remove([ref(report)]) == set()
        with pytest.raises(SourceRefused, match="another queue"):
            source.send("r", [self.outgoing_message(report)])

    def test_each_refusal_names_the_jobs_that_it_is_of(self, source):
        self.bury(2)
        reports, _ = read(source)
        self.client.hset(f"rq:job:{reports[0].job_id}", "status", "finished")
        self.client.zrem(f"rq:failed:{self.queue}", reports[1].job_id)
        with pytest.raises(SourceRefused, match="succeeded") as refused:
            source.send("r", [self.outgoing_message(one, n) for n, one in enumerate(reports)])
        assert refused.value.tokens == {0}

    def test_an_older_copy_of_the_server_proves_nothing(self, source):
        _, after = read(source)
        older = self.client.hgetall("redrive:{shop}:rq:mark")
        while self.client.hgetall("redrive:{shop}:rq:mark") == older:
            _, after = read(source, after)
        self.bury(1)
        (report,), after = read_until(source, lambda reports: reports, after)
        self.client.flushall()
        self.client.hset("redrive:{shop}:rq:mark", mapping=older)
        again = self.another()
        _, after = read(again, after)
        assert again.check_jobs([ref(report)]).gone == {}


class TestRetries(Rq):
    def test_a_retry_is_reported_with_its_time_and_its_last_death_with_all_attempts(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "retry": {"max": 2, "interval": [1000, 2000]}})
        (report,), after = read(source)
        assert (report.kind, report.attempt, report.max_attempts) == ("retry", 1, 3)
        assert abs(report.due_at - time.time() - 1000) < 60
        job = ref(report, "retrying")
        assert source.check_jobs([job]).due == {job: report.due_at}
        attempts = []
        for _ in range(2):
            self.shop.do(["promote", self.queue, job_id], ["work", self.queue])
            attempts += [(one.kind, one.attempt) for one in source.check_jobs([job]).reports]
        assert attempts == [("retry", 2), ("exception", 3)]
        dead, _ = read_until(source, lambda reports: [one for one in reports if one.kind == "exception"], after)
        assert {one.reason for one in dead if one.kind == "exception"} == {"exhausted"}

    def test_a_retry_that_succeeds_is_reported_and_one_that_is_forgotten_too(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "retry": {"max": 1, "interval": 1000}})
        (report,), _ = read(source)
        self.client.set("broken", "ok")
        self.shop.do(["promote", self.queue, job_id], ["work", self.queue])
        assert [one.kind for one in source.check_jobs([ref(report, "retrying")]).reports] == ["success"]
        self.shop.do(["delete", job_id])
        assert source.check_jobs([ref(report, "retrying")]).gone

    def test_a_retry_that_is_cancelled_is_gone(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "retry": {"max": 1, "interval": 1000}})
        (report,), _ = read(source)
        self.client.hset(f"rq:job:{job_id}", "status", "canceled")
        assert "cancelled" in source.check_jobs([ref(report, "retrying")]).gone[ref(report, "retrying")]

    def test_the_retries_of_jobs_are_found_for_lint(self, source):
        shapes = [
            {"max": 3, "interval": [10, 20, 40]},
            {"max": 2, "interval": 60},
            {"max": 2},
            None,
            {"max": 3, "interval": [10, 20]},
        ]
        jobs = [{"args": [{"n": 1}], **({"retry": one} if one else {})} for one in shapes]
        self.shop.do(["add", self.queue, jobs])
        found = {(one.attempts, one.backoff, one.first_delay_s) for one in source.found_options().options}
        assert found == {
            (4, "exponential", 10.0), (3, "fixed", 60.0), (3, "", 0.0), (1, "", 0.0), (4, "listed intervals", 10.0),
        }  # fmt: skip

    def test_overdue_retries_without_a_scheduler_are_a_finding(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "retry": {"max": 1, "interval": 1000}})
        assert source.findings() == []
        self.client.zadd(f"rq:scheduled:{self.queue}", {job_id: time.time() - 1000})
        assert [one.id for one in source.findings()] == ["rq-no-scheduler"]


class TestWorkers(Rq):
    def test_a_job_whose_worker_died_is_reported_once_rq_notices(self, source):
        self.shop.do(["add", self.queue, [{"args": [{"n": 1}], "plan": ["hang"]}]])
        other = shops.Shop("rq", self.shop.url)
        other.start(["work", self.queue])
        while not self.client.llen("ran"):
            time.sleep(0.02)
        (depth,) = source.depths()
        assert (depth.active, depth.waiting) == (1, 0) and len(source.workers()[self.queue]) == 1
        assert read(source)[0] == []
        other.stop()
        self.shop.do(["abandon", self.queue])
        (report,), _ = read(source)
        assert report.kind == "worker_lost" and report.error_type == "AbandonedJobError"
        self.is_reported_with_its_error(report)
        assert source.remove([Ref(self.queue, report.job_id, "dead", report.at - 100)]) == set()  # that was another run
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}

    def is_reported_with_its_error(self, report):
        """As RQ 1.16 leaves it some moments: listed, and its error not written."""
        keys = (f"rq:job:{report.job_id}", f"rq:results:{report.job_id}")
        saved = [(key, self.dump(key)) for key in keys if self.client.exists(key)]
        self.client.hdel(keys[0], "exc_info", "ended_at")
        self.client.delete(keys[1])
        other = self.another()
        pulled, after = read(other)
        assert pulled == [] and other.check_jobs([ref(report, "replaying")]).reports == []
        with redis.Redis.from_url(self.shop.url) as client:
            for key, value in saved:
                client.restore(key, 0, value, replace=True)
        assert [one.message for one in read_until(other, lambda seen: seen, after)[0]] == [report.message]

    def dump(self, key):
        with redis.Redis.from_url(self.shop.url) as client:
            return client.dump(key)

    def test_one_that_died_a_second_time_without_a_trace_of_the_first_is_another_run(self, source):
        (job_id,) = self.add({"args": [{"n": 1}]})
        (report,), after = read(source)
        self.client.delete(f"rq:results:{job_id}")  # RQ lets it expire
        self.shop.do(["requeue", job_id])
        self.fail_again(self.queue)
        (later,), _ = read_until(source, lambda seen: seen, after)
        assert later.made_at > report.made_at

    def test_a_job_that_kills_its_process_is_one_too(self, source):
        self.shop.do(["add", self.queue, [{"args": [{"n": 1}], "plan": ["kill"]}]], ["fork_and_work", self.queue])
        (report,), _ = read(source)
        assert report.kind == "worker_lost" and "signal 9" in report.message

    def test_a_job_that_returned_retry_too_often(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "plan": ["again"] * 3})
        found, _ = read(source)
        if not found:
            return  # RQ 1 knows no such return
        assert [(one.kind, one.attempt) for one in found] == [("retry", 1)]
        for _ in range(2):
            self.shop.do(["promote", self.queue, job_id], ["work", self.queue])
        (report,) = source.check_jobs([ref(found[0], "retrying")]).reports
        assert (report.kind, report.attempt) == ("exception", 3) and "Retry" in report.message


class TestContent(Rq):
    def test_json_is_shown_edited_and_run(self, source):
        self.add({"args": [{"n": 1}], "kwargs": {"to": "ann"}, "serializer": "json"})
        (report,), _ = read(source)
        assert (report.args, report.kwargs, report.task) == ('[{"n": 1}]', '{"to": "ann"}', "rq_shop.send")
        source.send("r", [self.outgoing_message(report, args=[{"n": 2}])])
        sent = json.loads(zlib.decompress(self.hash_of(report.job_id)[b"data"]))
        assert sent == ["rq_shop.send", None, [{"n": 2}], {"to": "ann"}]
        self.client.set("broken", "ok")
        self.shop.do(["work_json", self.queue])
        assert self.status(report.job_id) == "finished"

    def test_a_pickled_object_is_shown_by_its_parts_and_not_edited(self, source):
        self.add({"address": True})
        (report,), _ = read(source)
        assert "Address" in report.args and "Elm" in report.args and "hunter2" not in report.args + report.trace
        with pytest.raises(SourceRefused, match="objects"):
            source.arguments(report.raw)
        assert source.send("r", [self.outgoing_message(report)]) == {1: "sent"}
        self.work(self.queue)
        assert self.status(report.job_id) == "finished"

    def test_hostile_values_stop_no_reading(self, source):
        (good, copied) = self.add({"args": [{"n": 1}]}, {"args": [{"n": 2}]})
        score = self.client.zscore(f"rq:failed:{self.queue}", good)
        fields = self.hash_of(copied)
        strange = {
            "half": {"last_heartbeat": "x"},  # RQ's own heartbeat of a job that was deleted leaves it
            "foreign": fields | {b"data": b"\x01\x02", b"created_at": b"now", b"retries_left": b"9" * 400},
            "deep": fields | {b"data": zlib.compress(b"[" * 100_000), b"meta": b"\x80\x05."},
            "bomb": fields | {b"data": zlib.compress(b"0" * 40_000_000), b"retry_intervals": b'["x", null, {}]'},
            "odd": fields
            | {b"data": zlib.compress(b'["f", {}, 7, []]'), b"redrive": b'{"lineage": "[1]", "made": []}'},
        }
        for job_id, values in strange.items():
            self.client.hset(f"rq:job:{job_id}", mapping=values)
        self.client.set("rq:job:text", "no hash")
        self.client.xadd("rq:results:odd", {"type": "2", "exc_string": "no base64"})
        self.client.set("rq:results:half", "no stream")
        self.client.zadd(f"rq:failed:{self.queue}", dict.fromkeys((*strange, "text", "missing"), score))
        self.client.sadd("rq:queues", "rq:queue:broken", "other", "rq:queue:")
        self.client.rpush("rq:failed:broken", "x")
        pulled = source.dead_letters("")
        found = {one.job_id: one for one in pulled.reports}
        assert found.keys() == {good, copied, *strange, "text", "missing"} and not pulled.unread
        assert list(pulled.failing) == ["broken"]
        assert "neither JSON" in found["foreign"].args and found["foreign"].task == "rq_shop.send"
        assert [found[one].raw for one in ("missing", "text")] == [None, None]
        for bad in ("half", "missing", "text"):
            raw = found[bad].raw or b""
            with pytest.raises(SourceRefused):
                source.send("r", [self.outgoing_message(found[bad], 9, raw=raw), self.outgoing_message(found[good], 1)])
        assert self.waiting(self.queue) == [] and [one.queue for one in source.depths()] == ["broken", self.queue]
        assert source.send("r", [self.outgoing_message(found["foreign"], 2)]) == {2: "sent"}
        assert source.check_jobs([ref(one) for one in found.values()]).gone == {
            ref(found["foreign"]): "someone requeued it in RQ, and it waits or runs"
        }


class TestReading(Rq):
    def test_many_queues_that_are_behind_end_with_the_longest(self, source, monkeypatch):
        monkeypatch.setattr(reading, "_PAGE", 2)
        monkeypatch.setattr(wire, "_QUEUES_FOR_S", 0.0)
        _, after = read(source)
        pages = (2, 3, 5, 7, 11)
        for n in pages:
            self.add(*({"args": [{"n": n}]} for _ in range(2 * n)), queue=f"q{n}")
        reports, _ = read(source, after, limit=max(pages) + 2)
        assert len({one.job_id for one in reports}) == len(reports) == 2 * sum(pages)

    def test_large_results_and_hashes_are_read_within_bounds(self, source, monkeypatch):
        monkeypatch.setattr(wire, "_READ_BYTES", 1_000)
        ids = self.add(*({"args": [{"n": n}]} for n in range(4)))
        for job_id in ids[:3]:
            self.client.xadd(f"rq:results:{job_id}", {"type": "2", "exc_string": "x" * 5_000})
        self.client.hset(f"rq:job:{ids[3]}", mapping={f"more{n}": n for n in range(300)})
        self.client.hset(f"rq:job:{ids[0]}", "redrive", "x" * 100_000)
        before = self.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        reports = {one.job_id: one for one in read(source)[0]}
        assert len(reports) == 4 and self.client.info("commandstats")["cmdstat_evalsha"]["calls"] - before >= 3
        assert not reports[ids[3]].is_raw_complete and source.remove([ref(reports[ids[3]])]) == set()
        (located,) = source._wire.locate(self.queue, ids[:1])
        assert located.status == "failed" and b"redrive" not in located.fields

    def test_many_are_read_in_pages_and_each_once(self, source, monkeypatch):
        monkeypatch.setattr(reading, "_PAGE", 7)
        self.bury(20)
        self.add(*({"args": [{"n": n}], "failure_ttl": 100} for n in range(20)), queue="other")
        reports, after = read(source)
        assert len({one.job_id for one in reports}) == len(reports) == 40
        self.bury(15)
        later, after = read_until(source, lambda seen: len(seen) >= 15, after)
        assert len({one.job_id for one in later}) == 15
        self.add({"args": [{"n": 1}], "failure_ttl": 100}, queue="other")
        assert len(read_until(source, lambda seen: seen, after)[0]) == 1
