"""Hostile values in the store and in reports: no page is a 500, no step ends, and doctor reports its findings."""

from __future__ import annotations

import hashlib
import inspect
import random
import re
import string
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
import redis
from django.core.management import call_command
from django.db.models import Q

from jobs_admin import ingest
from jobs_admin.core import envelope
from jobs_admin.core import keys as store_keys
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.desk import overview
from jobs_admin.models import ApiToken, Failure, Unfiled
from jobs_admin.models.access import ENGINE
from jobs_admin.queues import liveness, sampling
from jobs_admin.sources.bullmq import jobs
from jobs_admin.trust import source_keys
from tests.kit.endurance import crossed, times
from tests.kit.failures import bury
from tests.rigs.shapes import prepare, reports, shapes
from tests.rigs.store_shapes import FIELDS, KEYS, MANY, NAMED_BY, NOT_HERE, PARSERS, reports_of

pytestmark = pytest.mark.django_db
PAGES = (
    "/", "/queues/", "/queues/shop/emails/", "/quarantine/", "/policies/", "/policies/lint/", "/failures/", "/alerts/",
    "/audit/", "/metrics", "/readyz?strict=1", "/api/queues",
)  # fmt: skip
TOKEN = "fuzz-" + "x" * 40
SEED, SHAPES, PAGES_EVERY = 17, times(10, 120), times(10, 40)


def assert_no_page_fails(browser, pages=PAGES) -> None:
    overview.forget()
    liveness.forget()
    for page in pages:
        reported = {"Authorization": f"Bearer {TOKEN}"} if page.startswith(("/api/", "/metrics", "/readyz")) else {}
        answer = browser.get(page, headers=reported)
        assert answer.status_code == 200 or page.startswith("/readyz"), (page, answer.content[:300])


@pytest.fixture
def desk(ann, store, shop):
    ann.raise_request_exception = False
    bury(1, queue="emails")
    prepare(store)
    ApiToken.objects.create(name="fuzz", sha256=hashlib.sha256(TOKEN.encode()).hexdigest(), role="admin")
    return ann


@pytest.mark.parametrize("name", KEYS)
def test_no_shape_of_a_key_stops_a_reader(name, desk, store):
    key = KEYS[name]
    for n, shape in enumerate(shapes(random.Random(f"{SEED} {name}"), key.sound, SHAPES)):
        key.put(store, shape)
        for read in key.read:
            read()
        if n % PAGES_EVERY == 0:
            assert_no_page_fails(desk)
    sampling.sample(datetime.now(UTC))


def test_no_page_fails_while_every_key_is_hostile(desk, store):
    source = random.Random(f"{SEED} all")
    for _ in range(times(3, 8)):
        for key in KEYS.values():
            key.put(store, next(shapes(source, key.sound, 1)))
        assert_no_page_fails(desk)


def test_every_key_of_the_store_is_fuzzed():
    """A function of `core/keys.py` that names a key has its shapes in `store_shapes`, or says there why not."""
    named = {
        name
        for name, function in inspect.getmembers(store_keys, inspect.isfunction)
        if "prefix" in inspect.signature(function).parameters and not name.startswith("_")
    }
    assert named == NAMED_BY.keys() | NOT_HERE.keys()
    assert {key for found in NAMED_BY.values() for key in found} == KEYS.keys()
    assert MANY.keys() | PARSERS.keys() <= KEYS.keys()


@pytest.mark.parametrize("name", PARSERS)
def test_no_shape_of_a_key_stops_its_parser(name, store):
    for shape in shapes(random.Random(f"{SEED} {name}"), KEYS[name].sound, times(400, 2_000)):
        PARSERS[name](shape)


@pytest.mark.parametrize("name", [name for name in MANY if name != "watch"])
def test_no_shape_among_many_stops_a_reader(name, desk, store):
    source = random.Random(f"{SEED} {name}")
    MANY[name].write(store, list(shapes(source, KEYS[name].sound, len(MANY[name].fields))))
    for read in KEYS[name].read:
        read()


def test_every_field_of_an_entry_and_of_its_report_is_fuzzed():
    """Return the fields of an entry as a worker writes it and the desk adds to it (`core/envelope.py`)."""
    in_docs = set(re.findall(r"^    (\w+)  ", envelope.__doc__, re.MULTILINE))
    assert in_docs == {"v", "meta", "raw", "trace", "key", "sig", "lost"} <= {*FIELDS, "meta"}


@pytest.mark.parametrize("field", FIELDS)
def test_no_shape_of_a_field_of_a_report_stops_its_reader(field, monkeypatch):
    monkeypatch.setattr(ingest.log, "disabled", True)  # xdist cannot carry lone surrogates
    key = source_keys.create(ENGINE, "shop")
    entries = enumerate(reports_of(field, random.Random(f"{SEED} {field}"), times(75, 150), key))
    ingest.file([ingest_entry(n, entry) for n, entry in entries])
    # Of `sealed` only "" and the id of a key are taken: the other fields' reports are filed with "".
    assert field in ("v", "key", "sig", "source", "kind", "sealed") or Failure.objects.exists()
    assert not Unfiled.objects.filter(
        Q(why__startswith="reading it failed") | Q(why__startswith="writing it failed")
    ).exists()


def ingest_entry(n: int, fields: dict[bytes, bytes]):
    return f"{n + 1}-1".encode(), fields


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.name])
def test_a_key_of_another_type_is_a_finding_and_no_500(name, desk, store):
    store.delete(KEYS[name].name)
    store.rpush(KEYS[name].name, "x")
    assert_no_page_fails(desk)
    with suppress(SystemExit):
        call_command("doctor", stdout=StringIO())


def test_doctor_reads_every_key_as_hostile(desk, store):
    source = random.Random(SEED)
    for _ in range(times(3, 10)):
        for key in KEYS.values():
            key.put(store, next(shapes(source, key.sound, 1)))
        with suppress(SystemExit):
            call_command("doctor", stdout=StringIO())


def test_no_shape_of_a_report_stops_filing_or_a_page(desk, monkeypatch):
    monkeypatch.setattr(ingest.log, "disabled", True)  # xdist cannot carry lone surrogates
    now = datetime.now(UTC)
    ingest.file([(f"{n}-1".encode(), entry) for n, entry in enumerate(reports(random.Random(SEED), 600))], now)
    assert Failure.objects.count() > 100
    assert not Unfiled.objects.filter(why__startswith="reading it failed").exists()
    for failure in Failure.objects.order_by("pk")[: times(15, 60)]:
        assert_no_page_fails(desk, (f"/failures/{failure.pk}/", f"/failures/{failure.pk}/related/"))
    assert_no_page_fails(desk)


def test_a_saved_job_of_bullmq_whose_name_is_not_utf_8_stops_no_other(store):
    place = store_keys.bullmq_kept("shop")
    store.zadd(place, {b"emails:\xff": 1, b"\xaf:1": 2, "emails:ä": 3})
    assert jobs.saved_waiting(store, place, 0, 10) == ([("emails", "ä")], False)


def test_a_report_dated_before_1970_counts_from_its_arrival(desk):
    now = datetime.now(UTC)
    old = Envelope("shop", "emails", "t", "old", "exception", 1, at=-62135596800.0, worker="w@h")
    ingest.file([(b"1-1", encode(old))], now)
    failure = Failure.objects.get(job_id="old")
    assert abs(failure.failed_at - now) < timedelta(seconds=1)


def test_a_failure_that_an_earlier_version_dated_in_year_1_has_its_related_jobs(desk):
    (failure,) = bury(1, worker="w@h", failed_at=datetime(1, 1, 1, 0, 5, tzinfo=UTC))
    assert desk.get(f"/failures/{failure.pk}/related/").status_code == 200


_QUALIFIERS = (
    "group", "queue", "task", "source", "tenant", "worker", "error", "message", "trace", "kind", "policy", "kwargs.id",
    "state", "attempts", "replay", "priority",
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "star", "sign"),
    crossed(_QUALIFIERS, ("", "*"), ("", "-"), few={f"{name}-{more}" for name in _QUALIFIERS for more in ("-", "*--")}),
)
def test_a_qualifier_with_hundreds_of_values_is_a_page(field, star, sign, desk):
    random_ = random.Random(SEED)
    values = ["".join(random_.choices(string.ascii_lowercase, k=8)) + star for _ in range(200)]
    if field in ("attempts", "replay"):
        values = [str(2 * n) for n in range(200)]
    query = f"{sign}{field}:{','.join(values)}"[:4_000]
    for page in ("/failures/", "/groups/", "/failures/facets/"):
        assert desk.get(page, {"q": query}).status_code == 200, (page, query[:80])


def test_redis_errors_are_what_other_types_raise(store):
    store.rpush("x", "y")
    with pytest.raises(redis.RedisError):
        store.hgetall("x")
