"""The quarantine: jobs with their crashes, and who ran in a worker that died."""

from __future__ import annotations

import json

import pytest

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.policy import parse
from jobs_admin.failures import quarantine
from jobs_admin.models import Attempt, Failure, Source
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.worker.at_start import AtStart, Job
from tests.kit.failures import bury
from tests.kit.patience import patient

pytestmark = pytest.mark.django_db

SHOP = Viewer(name="vera", roles={"shop": "viewer"})
POISON = parse({"name": "p", "mode": "enforce", "poison": {"crashes": 3}})


def crash(seen_at=1_000.0, **fields):
    return {"how": "killed", "at": seen_at - 1, "seen_at": seen_at, "worker": "w1@a", "said": "signal 9"} | fields


def quarantine_jobs(n=1, crashes=None, **changes):
    recorded = json.dumps([crash(), crash(1_040.0)] if crashes is None else crashes)
    bury(n, state="quarantined", crashes=recorded, **changes)
    return list(Failure.objects.order_by("-pk").values_list("pk", flat=True)[:n])


def test_the_latest_come_first_with_their_crashes_and_their_policy():
    first, second = quarantine_jobs()[0], quarantine_jobs(task="shop.resize")[0]
    Attempt.objects.filter(failure=second).update(policy="old@1")
    page = quarantine.listing(ENGINE)
    assert [row.failure.pk for row in page.rows] == [second, first]
    assert page.rows[0].lasted_s == 40 and [one.text for one in page.rows[0].crashes] == ["signal 9"] * 2
    assert page.count == 2 and dict(page.by_task)["shop.resize"] == 1


def test_pages_go_on_where_the_last_one_ended():
    ids = quarantine_jobs(5)
    one = quarantine.listing(ENGINE, limit=3)
    two = quarantine.listing(ENGINE, after=one.next, limit=3)
    assert [row.failure.pk for row in [*one.rows, *two.rows]] == sorted(ids, reverse=True) and two.next is None


def test_a_viewer_sees_only_what_belongs_to_its_sources():
    quarantine_jobs(2)
    quarantine_jobs(1, source="bank")
    page = quarantine.listing(SHOP)
    assert page.count == len(page.rows) == 2


@pytest.mark.parametrize("recorded", ["", "[]", "no json", "[1]"])
def test_one_without_a_record_of_its_crashes_is_listed_all_the_same(recorded):
    quarantine_jobs()
    Failure.objects.update(crashes=recorded)
    (row,) = quarantine.listing(ENGINE).rows
    assert row.crashes == () and row.lasted_s is None


def test_a_page_queries_the_database_the_same_however_many_there_are(django_assert_num_queries):
    quarantine_jobs(40)
    with django_assert_num_queries(4):
        quarantine.listing(ENGINE)


@pytest.mark.server
class TestSuspects:
    @pytest.fixture(autouse=True)
    def dead_worker(self, engine, store):
        self.store = store
        for name in ("shop", "bank"):
            Source.objects.create(name=name)
        self.worker = AtStart(patient(engine.url), "shop", "b1", "w1@a", "a")
        self.worker.beat()
        for self.worker._token, one in ((lambda pid=None: "b1:1", "j1"), (lambda pid=None: "b1:2", "j2")):
            self.worker.starting(POISON, Job(one, 1, "shop.resize", "emails"))
        assert quarantine.suspects(ENGINE) == []
        store.zincrby(keys.boots("shop"), -60_000, "b1")

    def test_those_that_ran_in_a_worker_when_it_died_are_suspects(self):
        suspects = quarantine.suspects(SHOP)
        assert {one.job_id for one in suspects} == {"j1", "j2"}
        assert {(one.task, one.queue, one.worker, one.beside) for one in suspects} == {
            ("shop.resize", "emails", "w1@a", 1)
        }

    def test_whoever_comes_back_is_none_any_more(self, engine):
        new = AtStart(patient(engine.url), "shop", "b2", "w2@a", "a")
        new.beat()
        new.starting(POISON, Job("j1", 1, "shop.resize", "emails"))
        (left,) = quarantine.suspects(SHOP)
        assert (left.job_id, left.beside) == ("j2", 1)

    def test_no_one_is_suspected_of_a_death_that_was_announced(self):
        self.worker.beat("leaving")
        self.store.zincrby(keys.boots("shop"), -60_000, "b1")
        assert quarantine.suspects(SHOP) == []

    @pytest.mark.parametrize("recorded", [b"{", b"[1]", b"\xff", b'{"id":' * 3_000 + b"1" + b"}" * 3_000])
    def test_what_cannot_be_read_hides_nothing_else(self, recorded):
        self.store.hset(keys.boot("shop", "b1"), "died_with", recorded)
        self.store.hset(keys.boot("shop", "b1") + ":running", "b1:3", recorded)
        assert {one.job_id for one in quarantine.suspects(SHOP)} == {"j1", "j2", ""}

    def test_who_may_not_see_the_source_sees_no_suspects_of_it(self):
        assert quarantine.suspects(Viewer(name="v", roles={"bank": "viewer"})) == []

    @pytest.mark.parametrize("key", [keys.boots("bank"), keys.boot("bank", "b9"), keys.boot("bank", "b9") + ":running"])
    def test_a_key_of_another_type_hides_no_suspect_of_another_source(self, key):
        self.store.zadd(keys.boots("bank"), {"b9": self.store.zscore(keys.boots("shop"), "b1")})
        self.store.delete(key)
        self.store.set(key, "x")
        assert {one.job_id for one in quarantine.suspects(ENGINE)} == {"j1", "j2"}

    def test_of_very_many_jobs_in_a_worker_some_are_read_and_all_are_counted(self):
        self.store.hset(
            keys.boot("shop", "b1") + ":running",
            mapping={f"b1:{n}": json.dumps({"id": f"x{n}"}) for n in range(10, 5_010)},
        )
        self.store.hdel(keys.boot("shop", "b1"), "died_with")
        before = self.store.info("stats")["total_net_output_bytes"]
        suspects = quarantine.suspects(ENGINE)
        assert len(suspects) == 200 and {one.beside for one in suspects} == {5_001}
        assert self.store.info("stats")["total_net_output_bytes"] - before < 40_000

    def test_a_store_that_is_away_is_reported(self, settings):
        settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
        config.store.cache_clear()
        assert quarantine.suspects(SHOP) is None

    def test_a_store_that_no_one_named_is_reported_too(self, settings):
        settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": ""}
        config.store.cache_clear()
        assert quarantine.suspects(SHOP) is None
