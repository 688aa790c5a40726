"""Sidekiq: its own producer and worker from Debian's package, a real server, and what people do in its dashboard."""

from __future__ import annotations

import base64
import json
import time
import tracemalloc
import zlib

import pytest
import redis

from dashboard.setup.engine import Engine, free_port
from jobs_admin.core.display import TRACE_HEAD, TRACE_TAIL
from jobs_admin.sources import connect, death_reading
from jobs_admin.sources.base import READ_ONLY, Ref, SourceRefused, SourceUnreachable
from jobs_admin.sources.sidekiq import retries, wire
from jobs_admin.sources.sidekiq.message import Job
from tests.kit import shops
from tests.sources.pulled_contract import PulledContract, read, read_until, ref

pytestmark = pytest.mark.server
WRAPPERS = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", "Sidekiq::ActiveJob::Wrapper"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    shops.need("sidekiq")
    engine = Engine(tmp_path_factory.mktemp("sidekiq")).start()
    running = shops.Shop("sidekiq", engine.url)
    yield running
    running.stop()
    engine.stop()


class Sidekiq:
    """A test's acts on an empty server."""

    queue = "emails"

    @pytest.fixture(autouse=True)
    def _place(self, shop):
        self.shop, self.made = shop, []
        self.client = redis.Redis.from_url(shop.url)
        self.lose_everything()
        yield
        for one in (*self.made, self.client):
            one.close()

    def another(self, queues=(), **options):
        self.made.append(connect("shop", "sidekiq", self.shop.url, queues, options))
        return self.made[-1]

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def add(self, *jobs, queue=None):
        """Jobs that a worker runs at once, as the server's `broken` or their plans say. Return their ids."""
        ids, _ = self.shop.do(["add", queue or self.queue, list(jobs)], ["work", queue or self.queue])
        return ids

    def bury(self, count):
        return [Ref(self.queue, job_id) for job_id in self.add(*({"args": [{"n": n}]} for n in range(count)))]

    def waiting(self, queue):
        return [json.loads(one)["jid"] for one in self.client.lrange(f"queue:{queue}", 0, -1)]

    def work(self, queue, outcome="ok"):
        self.client.set("broken", outcome)
        self.shop.do(["work", queue])
        self.client.set("broken", "fail")

    def fail_again(self, queue):
        self.work(queue, "fail")

    def lose_everything(self):
        self.client.flushall()
        self.client.set("broken", "fail")

    def store(self, score, job, key="dead"):
        raw = job if isinstance(job, bytes) else json.dumps(job).encode()
        self.client.zadd(key, {raw: score})
        return raw

    def copy(self):
        """Return a copy of the server's data."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def restore(self, copy):
        self.client.flushall()
        for key, content in copy.items():
            self.client.restore(key, 0, content)

    def limited(self, *rights):
        self.client.acl_setuser("limited", enabled=True, nopass=True, reset=True)
        self.client.execute_command("ACL", "SETUSER", "limited", *rights)
        self.made.append(connect("shop", "sidekiq", self.shop.url.replace("//", "//limited:x@")))
        return self.made[-1]

    def job(self, job_id, **members):
        """A job as Sidekiq writes it."""
        now = time.time()
        return {
            "retry": 0, "queue": self.queue, "class": "Send", "args": [{"n": 1}], "jid": job_id, "created_at": now - 9,
            "enqueued_at": now - 8, "error_message": "the partner is down", "error_class": "PartnerDown",
            "failed_at": now - 7, "retry_count": 0,
        } | members  # fmt: skip


class TestContract(Sidekiq, PulledContract):
    def revive(self, job):
        self.shop.do(["requeue", job.job_id])

    def take_out(self, job):
        self.shop.do(["delete", job.job_id])

    def unplug(self, source):
        pool = source._wire.client.connection_pool
        pool.reset()
        pool.connection_kwargs["port"] = free_port()

    def become_unknown(self):
        self.client.sadd("processes", "w9")
        self.client.hset("w9", mapping={"info": json.dumps({"version": "9.0.1"}), "beat": time.time()})


class TestReports(Sidekiq):
    def test_error_backtrace_arguments_tags_and_batch_are_those_of_the_job(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "backtrace": True, "tags": ["vip"], "bid": "b-1"})
        (stored,) = self.client.zrange("dead", 0, -1)
        (report,), _ = read(source)
        assert (report.job_id, report.task, report.error_type) == (job_id, "Send", "PartnerDown")
        assert (report.message, report.attempt, report.max_attempts) == ("the partner is down", 1, 1)
        assert "sidekiq_shop.rb" in report.trace.splitlines()[0] and "`perform'" in report.trace
        headers = json.loads(report.headers)
        assert (headers["tags"], headers["bid"]) == (["vip"], "b-1")
        assert report.raw == stored and source.is_chord_member(report.raw)
        assert report.made_at == pytest.approx(json.loads(stored)["created_at"])

    def test_the_class_of_an_active_job_is_the_wrapped_one(self, source):
        data = {"job_class": "MailJob", "arguments": ["ann", {"shop": 7}]}
        for n, wrapper in enumerate(WRAPPERS):
            self.store(time.time(), self.job(f"a{n}", wrapped="MailJob", args=[data], **{"class": wrapper}))
            self.store(time.time(), self.job(f"b{n}", args=[data], **{"class": wrapper}))
        reports, _ = read(self.another(tenant="args.1.shop"))
        assert [(one.task, one.tenant) for one in reports] == [("MailJob", "7")] * 4
        assert [json.loads(one.args) for one in reports] == [data["arguments"]] * 4

    def test_times_are_seconds_or_as_in_sidekiq_8_milliseconds(self, source):
        ms = int((time.time() - 60) * 1000)
        self.store(time.time(), self.job("a", created_at=ms, failed_at=ms))
        self.store(time.time() + 30, self.job("b", retry=3, created_at=ms, failed_at=ms, retried_at=ms + 5), "retry")
        reports, _ = read(source)
        assert [one.made_at for one in reports] == [ms / 1000] * 2
        (waiting,) = [one for one in reports if one.kind == "retry"]
        assert waiting.at == (ms + 5) / 1000

    def test_what_ruby_marshalled_and_hostile_entries_stop_no_reading(self, source):
        now = time.time()
        marshalled = base64.b64encode(zlib.compress(b"\x04\bo:\vObject\x00")).decode()
        entries = [
            self.job("marshalled", error_backtrace=marshalled),
            self.job("untruth", retry_count="x", retry={}, failed_at=-1, created_at="now", error_backtrace={"a": 1}),
            self.job("args", args={"a": 1}), self.job("x" * 300), self.job("\ud800"), self.job("nul", queue="a\0"),
            self.job("lone", queue="\ud800", error_message="\ud800", **{"class": "\ud800"}), self.job("q", queue="q" * 300),
            b"no json", b"\x04\bo:\vObject\x00", b"[]", b"", b"[" * 9_000,
        ]  # fmt: skip
        for n, one in enumerate(entries):
            self.store(now - n, one)
        for score in ("inf", "0"):
            self.store(score, self.job(f"at {score}"))
        self.store("inf", self.job("never", retry=True), "retry")
        self.store(now, self.job("good"))
        reports, after = read(source)
        assert len(reports) == len(entries) + 4 and not source.dead_letters(after).unread
        by_id = {one.job_id: one for one in reports}
        assert by_id["good"].error_type == "PartnerDown" and by_id["marshalled"].trace == ""
        assert all(abs(one.at - now) < 60 for one in reports)
        assert source.check_jobs([ref(one) for one in reports if one.kind == "exception"]).gone == {}
        self.client.zremrangebyscore("dead", now, now)
        gone = source.check_jobs([ref(one) for one in reports]).gone
        assert {one.job_id for one in gone} == {"marshalled", "good"}
        assert {one.queue for one in source.depths()} == {self.queue}

    @pytest.mark.parametrize(
        "stored",
        [
            "",
            "no base64",
            "####",
            "QUJD",
            "é",
            base64.b64encode(zlib.compress(b'["a:1"]')[:-7]).decode(),
            "A" * 10**6,
            7,
            [7],
        ],
    )
    def test_a_backtrace_that_is_broken_is_empty_and_the_job_is_read(self, source, stored):
        self.store(time.time(), self.job("broken", error_backtrace=stored))
        self.store(time.time() + 60, self.job("waits", error_backtrace=stored, retry=3), "retry")
        reports, _ = read(source)
        assert {(one.job_id, one.trace, one.message) for one in reports} == {
            ("broken", "", "the partner is down"), ("waits", "", "the partner is down"),
        }  # fmt: skip

    @pytest.mark.parametrize("text", [b'["' + b"x" * 50 + b'","' * 9_000_000, b'"' + b"x" * 10**8, b"[" * 10**8])
    def test_a_backtrace_is_decompressed_within_its_bound(self, source, text):
        compressed = base64.b64encode(zlib.compress(text)).decode()
        assert len(compressed) < 10**6 < len(text)
        raw = self.store(time.time(), self.job("bomb", error_backtrace=compressed))
        tracemalloc.start()
        read_trace = Job.read(raw).trace
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 5_000_000 and len(read_trace) <= TRACE_HEAD + TRACE_TAIL
        ((report,), _) = read(source)
        assert report.trace == read_trace and report.message == "the partner is down"

    def test_complete_lines_of_a_long_backtrace_are_shown(self, source):
        lines = [f"app/jobs/send.rb:{n}:in `perform'" for n in range(10_000)]
        compressed = base64.encodebytes(zlib.compress(json.dumps(lines, separators=(",", ":")).encode())).decode()
        self.store(time.time(), self.job("long", error_backtrace=compressed))
        ((report,), _) = read(source)
        shown = report.trace.splitlines()
        assert shown == lines[: len(shown)] and len(shown) > 3_000

    def test_a_set_of_another_type_is_named_and_the_others_are_read(self, source):
        self.client.set("dead", "x")
        self.store(time.time() + 60, self.job("waits", retry=3), "retry")
        pulled = source.dead_letters("")
        assert [one.job_id for one in pulled.reports] == ["waits"] and "dead" in pulled.failing
        assert [one.id for one in source.findings() if one.severity == "high"] == [READ_ONLY]
        (depth,) = source.depths()
        assert (depth.source_dead, depth.delayed) == (None, 1)

    def test_ids_that_json_escapes_or_that_are_in_other_jobs_are_compared(self, source):
        now = time.time()
        for n, job_id in enumerate(("a", 'x"y', "b\\c", "é/ü")):
            jobs = self.job(job_id), self.job(f"p{n}", args=[{"jid": job_id}])
            for one, escapes in zip(jobs, (True, False), strict=True):
                self.store(now + n, json.dumps(one, ensure_ascii=escapes).encode())
        reports, _ = read(source)
        refs = [ref(one) for one in reports]
        assert len(refs) == 8 and source.check_jobs(refs).gone == {}
        for raw in self.client.zrange("dead", 0, -1):
            if not json.loads(raw)["jid"].startswith("p"):
                self.client.zrem("dead", raw)
        assert {one.job_id for one in source.check_jobs(refs).gone} == {"a", 'x"y', "b\\c", "é/ü"}

    def test_a_user_who_may_only_read_is_enough(self, source):
        self.add({"args": [1]}, {"args": [2], "retry": 3})
        self.client.acl_setuser("reader", enabled=True, nopass=True, reset=True)
        self.client.execute_command("ACL", "SETUSER", "reader", "~*", "+@read", "+@scripting", "+ping", "+time")
        try:
            reader = connect("shop", "sidekiq", self.shop.url.replace("://", "://reader:x@"))
            self.made.append(reader)
            reports, _ = read(reader)
            assert sorted(one.kind for one in reports) == ["exception", "retry"]
            assert [(one.source_dead, one.delayed) for one in reader.depths()] == [(1, 1)]
            refs = [ref(one, "dead" if one.kind == "exception" else "retrying") for one in reports]
            assert reader.check_jobs(refs).gone == {} and reader.workers() == {}
            assert [one.id for one in reader.findings()] == [READ_ONLY, "settings-unknown"]
            with pytest.raises(SourceRefused, match="may not write"):
                reader.remove(refs)
            assert not self.client.keys("redrive:*")
        finally:
            self.client.acl_deluser("reader")


class TestRetries(Sidekiq):
    @pytest.fixture(autouse=True)
    def _each_reading_has_its_turn(self, monkeypatch):
        monkeypatch.setattr(retries, "_TURN_MS", 0)
        monkeypatch.setattr(retries, "APART_S", 0)

    def retrying(self, source):
        (job_id,) = self.add({"args": [{"n": 1}], "retry": 3})
        (report,), after = read(source)
        assert (report.kind, report.attempt, report.max_attempts, report.job_id) == ("retry", 1, 4, job_id)
        ((_, due),) = self.client.zrange("retry", 0, -1, withscores=True)
        waits = ref(report, "retrying")
        assert report.due_at == due and source.check_jobs([waits]).due == {waits: due}
        return waits, after

    def checks(self, source, waits, after):
        """Checks until one finds it gone; the evidence of each."""
        found = []
        for _ in range(8):
            _, after = read(source, after)
            found.append(source.check_jobs([waits]).gone.get(waits, ""))
        return found

    def test_one_that_fails_again_is_the_next_attempt_of_the_same_run(self, source):
        waits, after = self.retrying(source)
        self.shop.do(["due"], ["work", self.queue])
        (report,), after = read(source, after)
        assert (report.kind, report.attempt, report.job_id) == ("retry", 2, waits.job_id)
        for _ in range(2):
            self.shop.do(["due"], ["work", self.queue])
        (dead,), _ = read(source, after)
        assert (dead.kind, dead.attempt, dead.made_at) == ("exception", 4, report.made_at)

    def test_one_that_succeeds_is_gone_and_not_while_it_waits_in_its_queue(self, source):
        waits, after = self.retrying(source)
        self.shop.do(["due"])
        assert self.waiting(self.queue) == [waits.job_id]
        assert set(self.checks(source, waits, after)) == {""}
        self.work(self.queue)
        assert any("succeeded" in one for one in self.checks(source, waits, after))

    def test_one_that_a_process_runs_is_not_gone(self, source):
        waits, after = self.retrying(source)
        (stored,) = self.client.zrange("retry", 0, -1)
        self.client.delete("retry")
        for work in ("work", "workers"):  # of Sidekiq 7 and 6
            self.client.sadd("processes", "w1")
            self.client.hset("w1", mapping={"info": "{}", "beat": time.time()})
            self.client.hset(f"w1:{work}", "t1", json.dumps({"queue": self.queue, "payload": stored.decode()}))
            assert set(self.checks(source, waits, after)) == {""}
            self.client.delete(f"w1:{work}")
        assert any(self.checks(source, waits, after))

    def test_one_that_is_killed_and_brought_back_starts_another_run(self, source):
        waits, after = self.retrying(source)
        self.shop.do(["kill", waits.job_id])
        (killed,), after = read(source, after)
        self.shop.do(["requeue", waits.job_id], ["work", self.queue])
        (again,), after = read(source, after)
        assert (again.kind, again.attempt, again.made_at) == ("retry", 1, killed.at) and killed.made_at < killed.at
        self.shop.do(["kill", waits.job_id])
        (dead,), after = read(source, after)
        assert (dead.kind, dead.made_at) == ("exception", killed.at)
        assert [one.made_at for one in read(self.another())[0]] == [killed.at]
        self.shop.do(["requeue", waits.job_id], ["work", self.queue])
        assert [one.made_at for one in read(source, after)[0]] == [dead.at]

    def test_jobs_that_are_no_longer_requested_are_forgotten(self, source, monkeypatch):
        waits, after = self.retrying(source)
        self.client.delete("retry")
        missed = source._reading.retries._missed
        source.check_jobs([waits])
        read(source, after)
        source.check_jobs([waits])
        assert set(missed) == {waits.job_id}
        monkeypatch.setattr(retries, "_REQUESTED_WITHIN_S", 0)
        other = Ref(self.queue, "other", "retrying", time.time())
        source.check_jobs([other])
        assert set(source._reading.retries._missed) == {"other"} and not source._reading.retries.due

    def test_one_of_a_queue_that_is_too_long_to_search_is_not_gone(self, source, monkeypatch):
        waits, after = self.retrying(source)
        monkeypatch.setattr(wire, "_SEARCHED", 40)
        monkeypatch.setattr(wire, "_SEARCHED_AT_ONCE", 20)
        self.client.delete("retry")
        self.client.lpush(f"queue:{self.queue}", *(json.dumps(self.job(f"j{n}")) for n in range(40)))
        assert set(self.checks(source, waits, after)) == {""}
        self.client.rpop(f"queue:{self.queue}")
        assert any(self.checks(source, waits, after))

    def test_one_that_an_operator_kills_is_dead(self, source):
        waits, after = self.retrying(source)
        self.shop.do(["kill", waits.job_id])
        (dead,), _ = read(source, after)
        assert (dead.kind, dead.attempt, dead.job_id) == ("exception", 1, waits.job_id)

    def test_pages_of_every_size_meet_all_retries_and_deaths_once(self, source, monkeypatch):
        now = time.time()
        for n in range(20):
            self.store(now + n // 4, self.job(f"r{n}"), "retry")
            self.store(now - 50 + n // 4, self.job(f"d{n}"))
        for size in (1, 3, 4, 5, 19, 20, 21):
            monkeypatch.setattr(retries, "_TURN_JOBS", size)
            monkeypatch.setattr(death_reading, "_PAGE", size)
            reports, _ = read(self.another())
            assert sorted(one.job_id for one in reports) == sorted(f"{kind}{n}" for n in range(20) for kind in "rd")


class TestSending(Sidekiq):
    outgoing_message = PulledContract.outgoing_message

    def next_id(self, report):
        return report.job_id

    def test_a_job_is_pushed_as_sidekiq_itself_retries_it(self, source):
        number = "12345678901234567890.1234567890123456789"
        for n, of in enumerate(("ours", "theirs")):
            text = json.dumps(self.job(of, retry=3, retry_count=3, tags=["é"], backtrace=5, args=[1])).replace(
                "[1]", f"[{number}]"
            )
            self.store(time.time() - 9 + n, text.encode())
        reports, _ = read(source)
        (ours,) = [one for one in reports if one.job_id == "ours"]
        assert source.send("r", [self.outgoing_message(ours)]) == {1: "sent"}
        self.shop.do(["requeue", "theirs"])
        theirs, sent = self.client.lrange(f"queue:{self.queue}", 0, -1)
        assert number.encode() in sent
        fields, expected = json.loads(sent), json.loads(theirs)
        assert fields.pop("redrive")["run"] == 2 and abs(fields.pop("enqueued_at") - expected.pop("enqueued_at")) < 60
        assert fields == expected | {"jid": "ours"} | {n: fields[n] for n in ("created_at", "failed_at")}
        assert fields["retry_count"] == 2 and self.client.smembers("queues") == {self.queue.encode()}
        assert not self.client.exists("dead")

    def test_times_of_sidekiq_8_are_milliseconds(self, source):
        self.store(time.time(), self.job("a", created_at=int(time.time() * 1000)))
        ((report,), _) = read(source)
        source.send("r", [self.outgoing_message(report)])
        at = json.loads(self.client.lrange(f"queue:{self.queue}", 0, -1)[0])["enqueued_at"]
        assert isinstance(at, int) and abs(at / 1000 - time.time()) < 60

    def test_one_that_fails_again_is_the_run_that_was_sent_until_others_bring_it_back(self, source):
        (job_id,) = self.add({"args": [1], "retry": 1})
        self.shop.do(["kill", job_id])
        ((report,), after) = read(source)
        source.send("r", [self.outgoing_message(report, 7)])
        self.fail_again(self.queue)
        ((again,), after) = read_until(source, lambda found: found, after)
        assert (again.kind, again.attempt, again.lineage.run, again.lineage.item) == ("retry", 1, 2, 7)
        self.shop.do(["due"], ["work", self.queue])
        ((dead,), after) = read(source, after)
        assert (dead.kind, dead.attempt, dead.lineage.run) == ("exception", 2, 2)
        assert [one.lineage.run for one in read(self.another())[0]] == [2]
        self.shop.do(["requeue", job_id])
        self.fail_again(self.queue)
        ((theirs,), after) = read(source, after)
        assert theirs.lineage is None and theirs.made_at == dead.at

    def test_an_absent_job_is_restored_only_if_it_cannot_have_run(self):
        source = self.another(dead_max_jobs=10)
        for n in range(10):
            self.store(time.time() - 50 + n, self.job(f"d{n}"))
        reports, after = read(source)
        self.client.zremrangebyrank("dead", 0, 0)  # as Sidekiq drops the oldest
        source.check_jobs([ref(one) for one in reports])
        with pytest.raises(SourceRefused, match="Sidekiq dropped it") as refused:
            source.send("r", [self.outgoing_message(reports[0])])
        assert refused.value.tokens == {1} and self.waiting(self.queue) == []
        assert source.remove([ref(reports[5])]) == {ref(reports[5])}
        assert (
            source.check_jobs([Ref(reports[5].queue, reports[5].job_id, "dead", reports[5].at, was_removed=True)]).gone
            == {}
        )
        with pytest.raises(SourceRefused, match="someone else"):
            source.send("r", [self.outgoing_message(reports[5])])
        assert source.send("r", [self.outgoing_message(reports[5], was_removed=True)]) == {1: "sent"}
        assert self.waiting(self.queue) == ["d5"]
        self.lose_everything()
        read(source, after)
        assert source.send("r", [self.outgoing_message(reports[7], 2)]) == {2: "sent"}
        assert self.waiting(self.queue) == ["d7"]

    def test_after_a_stop_that_lost_the_latest_moment_a_job_that_others_retried_is_gone_and_not_sent(self, source):
        self.bury(2)
        reports, after = read(source)
        copy = self.copy()
        _, after = read(source, after)
        self.restore(copy)
        source = self.another()
        _, after = read(source, after)
        self.shop.do(["requeue", reports[0].job_id])
        self.work(self.queue)
        _, after = read(source, after)
        refs = [ref(one) for one in reports]
        assert set(source.check_jobs(refs).gone) == {refs[0]}
        with pytest.raises(SourceRefused, match="someone else"):
            source.send("r", [self.outgoing_message(reports[0])])
        assert self.waiting(self.queue) == []
        assert source.send("r", [self.outgoing_message(reports[1])]) == {1: "sent"}

    def test_one_that_died_after_the_copy_from_which_redis_was_restored_is_refused(self, source):
        self.bury(1)
        _, after = read(source)
        copy = self.copy()
        self.bury(1)
        ((report,), after) = read(source, after)
        self.restore(copy)
        read(source, after)
        with pytest.raises(SourceRefused, match="may have run"):
            source.send("r", [self.outgoing_message(report)])
        assert self.waiting(self.queue) == []

    def test_one_that_others_retried_while_the_user_could_only_read_is_refused(self):
        self.bury(1)
        reader = self.limited("~*", "+@read", "+@scripting", "+ping", "+time")
        ((report,), after) = read(reader)
        self.shop.do(["requeue", report.job_id])
        self.work(self.queue)
        writer = self.limited("~*", "+@all")
        for _ in range(2):
            with pytest.raises(SourceRefused, match="may have run"):
                writer.send("r", [self.outgoing_message(report)])
            _, after = read(writer, after)
        assert self.waiting(self.queue) == []
        self.client.acl_deluser("limited")

    def test_a_dead_job_is_on_its_queue_or_still_dead_whatever_the_server_refuses(self, source):
        self.bury(2)
        reports, _ = read(source)
        messages = [self.outgoing_message(one, n) for n, one in enumerate(reports)]
        before = self.client.zrange("dead", 0, -1, withscores=True)
        no_push = ["+@all", "~redrive:*", "%R~*", "~dead", "~queues"]
        no_removal = ["+@all", "~redrive:*", "~queue:*", "~queues", "%R~*"]
        for rights in (no_push, no_removal, ["+@all", "~*", "-zrem"], ["+@all", "~*", "-zadd"]):
            limited = self.limited(*rights)
            assert [one.id for one in limited.findings()][:1] == ([READ_ONLY] if "~*" in rights else [])
            for _ in range(2):
                with pytest.raises((SourceUnreachable, SourceRefused)):
                    limited.send("r", messages)
                assert self.client.zrange("dead", 0, -1, withscores=True) == before
                assert not self.waiting(self.queue) and not source.was_sent("r", [0, 1])
        self.client.acl_deluser("limited")
        self.client.set(f"queue:{self.queue}", "x")
        with pytest.raises(SourceRefused, match="type that Sidekiq gives it"):
            source.send("r", messages)
        self.client.delete(f"queue:{self.queue}")
        rights = "%R~* ~redrive:* ~queue:* ~queues ~dead +@read +@write +@scripting +@transaction +ping +time"
        least = self.limited(*rights.split())
        assert [one.id for one in least.findings()] == ["settings-unknown"]
        assert least.send("r", messages) == dict.fromkeys((0, 1), "sent")
        self.client.acl_deluser("limited")
        assert source.send("r", messages) == dict.fromkeys((0, 1), "already") and len(self.waiting(self.queue)) == 2

    def test_recorded_deaths_are_bounded_and_expire(self, monkeypatch):
        monkeypatch.setattr(wire, "_KNOWN_DEATHS", 3)
        source = self.another(dead_max_jobs=1)
        self.bury(1)
        ((lost,), after) = read(source)
        self.lose_everything()
        _, after = read(source, after)
        now = time.time()
        for n in range(12):
            self.store(now + n / 100, self.job(f"d{n}"))
        _, after = read(source, after)
        own = "redrive:{shop}:sidekiq:"
        assert self.client.zcard(own + "died") == 10
        source.check_jobs([ref(lost)])
        assert self.client.ttl(own + "died") > 0 and self.client.ttl(own + "dropped") > 0
        for n in range(12):
            self.store(now + 1 + n / 100, self.job(f"d{n}"))
        read(source, after)
        assert self.client.zcard(own + "before") <= 10 and self.client.ttl(own + "before") > 0
        with pytest.raises(SourceRefused, match="may have run"):  # its own record may have been among those removed
            source.send("r", [self.outgoing_message(lost)])

    def test_what_was_withheld_is_never_sent(self, source):
        self.bury(2)
        reports, _ = read(source)
        source.epoch("r")
        assert source.withhold("r", [0]) == set()
        messages = [self.outgoing_message(one, n) for n, one in enumerate(reports)]
        assert source.send("r", messages) == {0: "recalled", 1: "sent"}
        assert self.client.zcard("dead") == 1 and len(self.waiting(self.queue)) == 1

    def test_only_the_discarded_one_of_a_moment_is_removed(self, source):
        now = time.time()
        for n in range(5):
            self.store(now, self.job(f"d{n}"))
        reports, _ = read(source)
        wanted = [ref(one) for one in reports if one.job_id in ("d1", "d3")]
        assert source.remove([*wanted, Ref(self.queue, "unknown", "dead", now)]) == set(wanted)
        assert sorted(json.loads(one)["jid"] for one in self.client.zrange("dead", 0, -1)) == ["d0", "d2", "d4"]


class TestBounds(Sidekiq):
    def test_large_jobs_are_read_within_bounds(self, source, monkeypatch):
        monkeypatch.setattr(wire, "_PAGE_BYTES", 150_000)
        monkeypatch.setattr(wire, "RAW_BYTES", 100_000)
        now = time.time()
        for n, size in enumerate((10, 90_000, 90_000, 200_000, 10)):
            self.store(now - 9 + n, self.job(f"d{n}", args=["x" * size]))
        assert len(source.dead_letters("").reports) == 2
        reports, _ = read(source)
        assert [one.is_raw_complete for one in reports] == [True, True, True, False, True]

    def test_counts_of_too_many_or_too_large_jobs_are_unknown(self, source, monkeypatch):
        for n in range(5):
            self.store(time.time() - n, self.job(f"d{n}", queue="ab"[n % 2]))
        monkeypatch.setattr(wire, "_COUNTED_AT_ONCE", 2)
        assert {one.queue: one.source_dead for one in source.depths()} == {"a": 3, "b": 2}
        self.client.sadd("queues", "a")
        monkeypatch.setattr(wire, "_COUNTED", 4)
        assert [one.source_dead for one in self.another().depths()] == [None]
        monkeypatch.setattr(wire, "_COUNTED", 5)
        monkeypatch.setattr(wire, "_COUNTED_BYTES", 100)
        assert [one.source_dead for one in self.another().depths()] == [None]

    def test_jobs_are_found_within_bounds_and_those_of_one_moment_are_read_once(self, source, monkeypatch):
        now = time.time()
        for n in range(10):
            # every third one is parsed: its id is escaped, or another one is in its arguments
            other = {"args": [{"jid": "d1"}, "x" * 500], "error_message": "é"} if n % 3 else {}
            self.store(now - 50 + n // 2 * 2, self.job(f"d{n}", **other))
        reports, _ = read(source)
        refs = [ref(one) for one in reports]
        self.client.zrem("dead", *self.client.zrange("dead", 4, 5))
        for most in (4_000, 10_000, 4_000_000):
            monkeypatch.setattr(wire, "_FOUND_BYTES", most)
            assert {one.job_id for one in source.check_jobs(refs).gone} == {"d4", "d5"}
        self.client.config_resetstat()
        source.check_jobs(refs)
        assert self.client.info("commandstats")["cmdstat_zrange"]["calls"] <= 10
        monkeypatch.setattr(wire, "_FOUND_BYTES", 1)  # of each moment, the first one
        assert {one.job_id for one in source.check_jobs(refs).gone} == {"d4", "d5"}
        self.client.zrem("dead", self.client.zrange("dead", 1, 1)[0])
        assert {one.job_id for one in source.check_jobs(refs).gone} >= {"d4", "d5"}
        alone = [one for n, one in enumerate(refs) if n % 2]  # each of another moment
        self.client.config_resetstat()
        source.check_jobs(alone)
        assert self.client.info("commandstats")["cmdstat_evalsha"]["calls"] >= len(alone), "one moment a call"
        first, second = sorted((ref(one) for one in reports if one.job_id in ("d8", "d9")), key=lambda one: one.job_id)
        assert source.remove([second]) == set() and source.remove([first]) == {first}

    @pytest.mark.parametrize("most", [1, 1_000, 2_000_000])
    def test_a_queue_is_searched_within_bounds(self, source, monkeypatch, most):
        monkeypatch.setattr(wire, "_SEARCHED_BYTES", most)
        for n in range(45):
            self.client.lpush(
                f"queue:{self.queue}", json.dumps(self.job(f"j{n}", args=[{"jid": "x"}] if n % 2 else []))
            )
        assert source._wire.search_queue(self.queue, ["j0", "j19", "j44", "x"]) == {"j0", "j19", "j44"}

    def test_reading_and_sampling_take_as_many_calls_with_one_queue_as_with_200(self, source):
        def calls():
            before = self.client.info("stats")["total_reads_processed"]
            source.depths(), source.dead_letters(after), source.findings()
            return self.client.info("stats")["total_reads_processed"] - before

        self.bury(1)
        _, after = read(source)
        calls()
        few = calls()
        self.client.sadd("queues", *(f"q{n}" for n in range(200)))
        assert len(source.depths()) == 201 and calls() <= few + 5

    def test_only_the_named_queues_are_read(self):
        self.bury(1)
        self.add({"args": []}, queue="others")
        source = self.another(["others"])
        assert [one.queue for one in read(source)[0]] == ["others"] == [one.queue for one in source.depths()]


class TestDropping(Sidekiq):
    def test_what_sidekiq_dropped_from_a_full_set_is_not_gone(self):
        source = self.another(dead_max_jobs=10)
        now = time.time()
        stored = [self.store(now - 50 + n, self.job(f"d{n}")) for n in range(12)]
        reports, _ = read(source)
        self.client.zrem("dead", *stored[:3])  # as `DeadSet#kill` trims
        refs = [ref(one) for one in reports]
        assert source.check_jobs(refs).gone == {}
        self.client.zrem("dead", stored[6])
        assert [one.job_id for one in self.another(dead_max_jobs=10).check_jobs(refs).gone] == ["d6"]
        self.client.delete("dead")
        assert sorted(one.job_id for one in source.check_jobs(refs).gone)[:2] == ["d10", "d11"]
        assert not {"d0", "d1", "d2"} & {one.job_id for one in source.check_jobs(refs).gone}

    def test_what_sidekiq_dropped_while_the_desk_was_away_is_not_gone(self):
        source = self.another(dead_max_jobs=100)
        now = time.time()
        for n in range(20):
            self.store(now - 500 + n, self.job(f"d{n}"))
        reports, after = read(source)
        refs = [ref(one) for one in reports]
        self.client.zadd("redrive:{shop}:sidekiq:dropped", {"sampled": now - 300})
        for n in range(20):
            self.store(now - 100 + n, self.job(f"e{n}"))
        self.client.zremrangebyrank("dead", 0, 9)  # as Sidekiq drops the oldest; then someone retries many
        self.client.zrem("dead", *self.client.zrange("dead", 5, 14))
        more, after = read(self.another(dead_max_jobs=100), after)
        gone = {one.job_id for one in source.check_jobs([*refs, *(ref(one) for one in more)]).gone}
        assert gone == {f"d{n}" for n in range(15, 20)}
        self.client.zadd("redrive:{shop}:sidekiq:dropped", {"sampled": now - 300})
        self.client.delete("dead")
        assert source.check_jobs(refs).gone == {}

    def test_a_set_that_is_nearly_full_and_jobs_near_their_end_are_findings(self):
        source = self.another(dead_max_jobs=5, dead_timeout_s=1_000_000)
        assert [one.id for one in source.findings()] == []
        for n in range(4):
            self.store(time.time() - n, self.job(f"d{n}"))
        assert [one.id for one in source.findings()] == ["dead-set-full"]
        self.store(time.time() - 999_000, self.job("old"))
        assert [one.id for one in source.findings()] == ["dead-set-full", "dead-jobs-dropped-soon"]


def test_nothing_is_written_but_our_own_keys(shop):
    client = redis.Redis.from_url(shop.url)
    client.flushall()
    client.set("broken", "fail")
    shop.do(["add", "emails", [{"args": []}, {"args": [], "retry": 3}]], ["work", "emails"])
    before = {key: client.dump(key) for key in client.scan_iter()}
    source = connect("shop", "sidekiq", shop.url)
    reports, _ = read(source)
    source.depths(), source.findings(), source.workers()
    source.check_jobs([ref(one) for one in reports])
    assert {key: client.dump(key) for key in before} == before
    assert all(key.startswith(b"redrive:{shop}:sidekiq:") for key in set(client.keys()) - set(before))
    source.close()
    client.close()


@pytest.mark.parametrize("options", [{"namespace": 1}, {"dead_max_jobs": 0}, {"dead_max_jobs": True}, {"x": 1}])
def test_unusable_options_are_refused(options):
    with pytest.raises(SourceRefused):
        connect("shop", "sidekiq", "redis://127.0.0.1:1", options=options)


def test_a_namespace_precedes_every_key(shop):
    client = redis.Redis.from_url(shop.url)
    client.flushall()
    client.zadd("app:dead", {b'{"class":"Send","args":[],"queue":"emails","jid":"j"}': time.time()})
    source = connect("shop", "sidekiq", shop.url, options={"namespace": "app"})
    reports, _ = read_until(source, lambda found: found)
    assert [one.job_id for one in reports] == ["j"]
    source.close()
    client.close()
