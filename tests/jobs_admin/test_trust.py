"""Accepted reports: by signature, by time, by source; and what becomes of the others."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.utils import timezone

from jobs_admin import config, ingest, trust
from jobs_admin.core import envelope, keys
from jobs_admin.core.envelope import encode
from jobs_admin.core.refused import Refused
from jobs_admin.core.report_signature import SigningKey, is_signed_with, sign
from jobs_admin.db import counters
from jobs_admin.fleet import heartbeats, uncaptured, worker_store
from jobs_admin.ingest import refiling
from jobs_admin.models import (
    AuditEvent,
    Failure,
    QueueCounter,
    RefusedReports,
    Source,
    SourceKey,
    Total,
    Unfiled,
    UnsignedReports,
    Worker,
)
from jobs_admin.models.access import ADMIN, ENGINE, OPERATOR, Viewer
from jobs_admin.trust import admission, source_keys, unsealing
from tests.kit.reports import _ids, report
from tests.kit.signed_reports import create_sources, end_unsigned, entry, file, forged, refile
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db


def jobs():
    return sorted(Failure.objects.values_list("source", "first_job_id"))


@pytest.fixture
def key():
    return source_keys.create(ENGINE, "shop")


# -- signatures ---------------------------------------------------------------------------------------------------


def test_a_signed_report_is_filed_and_its_key_and_source_report_when(key):
    end_unsigned()
    assert file(entry(key=key)).new_failures == 1
    assert Source.objects.get().signed_since and SourceKey.objects.get().last_used_at


def test_two_keys_of_a_source_are_in_force_at_once(key):
    second = source_keys.create(ENGINE, "shop")
    file(entry("j1", key=key), entry("j2", key=second))
    assert jobs() == [("shop", "j1"), ("shop", "j2")]


def test_a_report_with_a_wrong_signature_is_stored_raw_and_never_filed(key):
    create_sources("shop", "bank")
    for words, one in forged(key).items():
        assert (file(one).new_failures, jobs()) == (0, [])
        assert words in Unfiled.objects.order_by("-id").first().why
    with pytest.raises(Refused):
        admission.file_unsigned(ENGINE, "shop")
    refiling.restart()
    refile()
    assert jobs() == [] and RefusedReports.objects.get().refused == Unfiled.objects.count() == 6


@pytest.mark.parametrize("key_id", [b"\x00a", b"\xff\xfe", b"<b>", b"f" * 11, b"f" * 13, b""])
def test_what_is_no_id_of_a_key_is_stored_and_shown_nowhere(key_id):
    create_sources("shop")
    (number, fields), good = entry(), entry("good")
    refused = (number, {**fields, b"key": key_id, b"sig": b"x"})
    assert file(refused, good) == ingest.Filed(1, 1, 1)
    (one,) = admission.state(ENGINE, timezone.now()).refused
    assert one.why == "it is signed with a key that is not known here (its id is none that a key can have)"
    assert Unfiled.objects.get().why == one.why


def test_a_reason_with_what_no_database_takes_is_stored_as_what_it_is():
    refused = admission.RefusedEntry("shop/1-0", "shop", trust.Cause.SIGNATURE, "a\x00b\udfff", {})
    assert admission.store([refused], timezone.now()).new == 1
    assert Unfiled.objects.get().why == RefusedReports.objects.get().why == "a␀b\\udfff"


def test_a_refused_report_that_the_database_does_not_take_is_dropped_and_counted_and_the_others_land(key):
    create_sources("shop")
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON jobs_admin_unfiled WHEN NEW.entry_id = '77-7' "
                "BEGIN SELECT RAISE(ABORT, 'no 77'); END"
            )
        else:
            cursor.execute("ALTER TABLE jobs_admin_unfiled ADD CONSTRAINT refuse CHECK (entry_id <> '77-7')")
    wrong = [(n, sign(fields, SigningKey("shop", "f" * 12, bytes(32)))) for n, fields in (entry(), entry(), entry())]
    wrong[1] = (b"77-7", wrong[1][1])
    assert file(*wrong, entry("good", key=key)) == ingest.Filed(1, 1, 2)
    row = RefusedReports.objects.get()
    assert (row.refused, row.dropped, Unfiled.objects.count()) == (3, 1, 2)


def test_a_database_that_is_away_drops_no_refused_report():
    create_sources("shop")
    _, fields = entry()
    with connection.execute_wrapper(_away), pytest.raises(OperationalError):
        ingest._store_refused(
            [admission.RefusedEntry("shop/1-0", "shop", trust.Cause.SIGNATURE, "wrong", fields)], timezone.now()
        )
    assert not RefusedReports.objects.exists()


def _away(execute, sql, params, many, context):
    raise OperationalError("server closed the connection unexpectedly")


def test_a_key_that_no_payload_key_opens_is_no_key_and_reports_it(key, settings):
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    forget_configuration(config)
    assert file(entry(key=key)).unfiled == 1
    assert "cannot be opened with REDRIVE_PAYLOAD_KEYS" in Unfiled.objects.get().why
    forget_configuration(config)


def test_the_time_that_a_report_carries_does_not_matter(key):
    now = timezone.now()
    end_unsigned(now + timedelta(hours=1))
    create_sources("shop")
    file(entry("past", ago=10**7), entry("ahead", ago=-(10**7)), now=now)
    assert len(jobs()) == 2
    file(entry("back", ago=10**7), now=now + timedelta(hours=1))
    assert len(jobs()) == 2 and "unsigned reports are not accepted since" in Unfiled.objects.get().why


# -- unsigned reports ---------------------------------------------------------------------------------------------


def test_a_new_database_accepts_unsigned_reports_for_thirty_days():
    left = UnsignedReports.objects.get().until - timezone.now()
    assert timedelta(days=28) < left <= timedelta(days=30)


def test_unsigned_reports_are_refused_once_their_time_is_over_and_filed_by_one_act(key):
    end_unsigned()
    create_sources("shop")
    many = [entry(f"j{n}") for n in range(30)]
    assert (file(*many).unfiled, jobs()) == (30, [])
    assert file(*many).unfiled == 0  # they are read again, after a crash
    assert admission.state(ENGINE, timezone.now()).refused[0].stored == 30
    assert admission.file_unsigned(ENGINE, "shop") == 30
    refile()
    assert len(jobs()) == 30 and not Unfiled.objects.exists() and not RefusedReports.objects.exists()
    assert AuditEvent.objects.get(act="reports.file").after == {"reports": 30}


def test_a_source_that_signs_takes_no_unsigned_reports_after_a_day(key):
    now = timezone.now()
    file(entry("signed", key=key), now=now)
    file(entry("old-worker"), now=now + timedelta(hours=23))
    file(entry("forged"), now=now + timedelta(hours=25))
    assert [job for _, job in jobs()] == ["old-worker", "signed"]
    assert "have been signing since" in Unfiled.objects.get().why


def test_what_is_refused_is_stored_within_bounds_and_counted_beyond(key, monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, trust.Cause.UNSIGNED, admission._Bound(5, 10**9))
    end_unsigned()
    create_sources("shop")
    file(*(entry(f"a{n}") for n in range(4)))
    file(*(entry(f"b{n}") for n in range(4)))
    row = RefusedReports.objects.get()
    assert (row.refused, row.dropped, Unfiled.objects.count()) == (8, 3, 5)


def counted_refused():
    rows = Total.objects.filter(metric=counters.REFUSED).values_list("source", "queue", "value")
    return {(source, cause): value for source, cause, value in rows}


def test_refused_reports_are_counted_by_cause_and_the_count_outlives_them(key):
    end_unsigned()
    create_sources("bank")
    file(*forged(key).values(), entry("j1"), entry("j2", source="bank"), entry("good", key=key))
    counts = counted_refused()
    assert counts[("bank", "unsigned")] >= 1 and counts[("shop", "unsigned")] >= 1
    assert sum(counts.values()) == sum(RefusedReports.objects.values_list("refused", flat=True))
    for source in ("shop", "bank"):
        admission.discard_refused(ENGINE, source)
    assert counted_refused() == counts
    file(*garbage("shop", 2))
    assert counted_refused()[("shop", "unsigned")] == counts[("shop", "unsigned")] + 2


def test_invented_sources_make_one_count(key):
    end_unsigned()
    file(*(entry(f"j{n}", source=f"s{n:03}") for n in range(60)))
    assert counted_refused() == {("", "unknown"): 60}


def test_what_is_believed_and_cannot_be_filed_is_no_refused_report(key):
    create_sources("shop")
    file(*garbage("shop", 3))
    assert Unfiled.objects.count() == 3 and counted_refused() == {}


def test_a_large_report_beyond_the_bytes_is_dropped_and_a_small_one_behind_it_stored(monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, trust.Cause.UNSIGNED, admission._Bound(50, 30_000))
    end_unsigned()
    create_sources("shop")
    file(entry("large", raw=b"x" * 40_000), entry("small"))
    assert (Unfiled.objects.count(), RefusedReports.objects.get().dropped) == (1, 1)


def test_refused_reports_are_discarded_by_one_act(key):
    create_sources("shop", "bank")
    file(*forged(key).values())
    assert admission.discard_refused(ENGINE, "shop") == 6
    assert not Unfiled.objects.exists() and not RefusedReports.objects.exists()


@pytest.mark.parametrize("days", [-1, 0, 91])
def test_unsigned_reports_are_extended_by_ninety_days_at_most(days):
    now = timezone.now()
    with pytest.raises(Refused):
        admission.extend(ENGINE, now + timedelta(days=days), now)
    assert not AuditEvent.objects.exists()


def test_the_commands_extend_and_end_the_time_and_the_audit_has_it(capsys):
    until = timezone.now() + timedelta(days=60)
    call_command("unsigned_reports", until=f"{until:%Y-%m-%d}")
    assert f"accepted until {until:%Y-%m-%d} 00:00 UTC" in capsys.readouterr().out
    call_command("unsigned_reports", end=True)
    assert "not accepted" in capsys.readouterr().out
    assert list(AuditEvent.objects.order_by("id").values_list("act", flat=True)) == [
        "unsigned_reports.extend",
        "unsigned_reports.end",
    ]
    with pytest.raises(CommandError, match="is not a date"):
        call_command("unsigned_reports", until="soon")


# -- unknown sources ----------------------------------------------------------------------------------------------


def test_the_first_new_sources_are_accepted_while_unsigned_reports_are_and_the_next_one_waits():
    file(*(entry("j", source=f"s{n}") for n in range(admission.MOST_AUTOMATIC)))
    assert len(jobs()) == admission.MOST_AUTOMATIC
    file(entry("j", source="late"), entry("again", source="s1"))
    assert len(jobs()) == admission.MOST_AUTOMATIC + 1 and not Source.objects.filter(name="late").exists()
    assert [one.source for one in admission.state(ENGINE, timezone.now()).waiting] == ["late"]
    assert AuditEvent.objects.filter(act="source.accept").count() == admission.MOST_AUTOMATIC


def test_no_new_source_is_accepted_once_unsigned_reports_are_not():
    end_unsigned()
    file(entry(source="new"))
    assert jobs() == [] and not Source.objects.exists()


def test_an_invented_source_leaves_nothing_but_what_waits_and_only_twenty_wait():
    end_unsigned()
    file(*(entry(f"j{n}", source=f"s{n:03}") for n in range(300)))
    state = admission.state(ENGINE, timezone.now())
    assert (len(state.waiting), state.beyond, Unfiled.objects.count()) == (20, 280, 20)
    assert not Source.objects.exists() and jobs() == []


def test_what_invented_sources_report_they_could_not_capture_is_in_no_number(store):
    create_sources("shop")
    now = timezone.now()
    fields = {"host": "h", "count": 3, "since": now.timestamp(), "last": now.timestamp()}
    for n in range(50):
        store.hset(keys.dropped(f"inv{n}"), "e1", json.dumps(fields))
        store.hset(keys.shared("dropped"), f"x{n}", json.dumps({**fields, "source": f"old{n}"}))
    store.hset(keys.dropped("shop"), "e1", json.dumps(fields))
    trust.forget()
    uncaptured.record_counts(now)
    assert list(Total.objects.values_list("source", "value")) == [("shop", 3)]
    assert not store.exists(keys.shared("dropped"))
    create_sources("inv7")
    trust.forget()
    uncaptured.record_counts(now)  # accepted later: what its workers say counts from then on
    assert uncaptured.totals_by_source(ENGINE) == [("inv7", 3), ("shop", 3)]


def test_a_signature_makes_an_invented_source_no_less_unknown():
    end_unsigned()
    file(*(entry(f"j{n}", f"s{n:03}", SigningKey(f"s{n:03}", "f" * 12, bytes(32))) for n in range(60)))
    state = admission.state(ENGINE, timezone.now())
    assert (len(state.waiting), state.refused, RefusedReports.objects.count()) == (20, [], 21)


def test_of_a_source_that_waits_a_thousand_reports_are_stored(monkeypatch):
    assert admission._BOUNDS[trust.Cause.UNKNOWN].reports == 1_000
    monkeypatch.setitem(admission._BOUNDS, trust.Cause.UNKNOWN, admission._Bound(3, 10**9))
    end_unsigned()
    for n in range(5):
        file(entry(f"j{n}", source="new"))
    assert (Unfiled.objects.count(), RefusedReports.objects.get().dropped) == (3, 2)


def test_an_accepted_source_has_its_reports(capsys):
    end_unsigned()
    file(entry("j1", source="new"), entry("j2", source="new"), entry("j3", source="other"))
    call_command("sources", "accept", "new")
    assert "2 stored reports are filed" in capsys.readouterr().out
    refile()
    assert jobs() == [("new", "j1"), ("new", "j2")]
    call_command("sources", "list")
    assert "other" in (out := capsys.readouterr().out) and "new" not in out
    with pytest.raises(CommandError, match="accepted already"):
        call_command("sources", "accept", "new")


def test_a_discarded_source_leaves_nothing_and_waits_again_when_it_comes_again():
    end_unsigned()
    file(entry("j1", source="new"))
    assert admission.discard(ENGINE, "new") == 1
    assert not Unfiled.objects.exists() and not RefusedReports.objects.exists()
    file(entry("j2", source="new"))
    assert [one.stored for one in admission.state(ENGINE, timezone.now()).waiting] == [1]


def test_a_source_with_a_key_is_known(key):
    end_unsigned()
    assert file(entry(key=key)).new_failures == 1


@pytest.mark.parametrize(
    "act", [admission.accept, admission.discard, admission.file_unsigned, admission.discard_refused]
)
@pytest.mark.parametrize("roles", [{"*": OPERATOR}, {"other": ADMIN}, {}])
def test_who_may_not_is_refused_and_the_audit_has_it(act, roles):
    end_unsigned()
    create_sources("shop")
    file(entry("j1", source="new"), entry("j2"))
    before = sorted(Unfiled.objects.values_list("source", "cause"))
    source = "new" if act in (admission.accept, admission.discard) else "shop"
    with pytest.raises(Refused, match="needs an admin"):
        act(Viewer("somebody", roles=roles), source)
    assert sorted(Unfiled.objects.values_list("source", "cause")) == before
    assert [event.allowed for event in AuditEvent.objects.all()] == [False]


def test_an_admin_of_one_source_sees_no_unknown_source_and_nothing_of_others():
    end_unsigned()
    create_sources("shop", "bank")
    file(entry(source="new"), entry("j2"), entry("j3", source="bank"))
    state = admission.state(Viewer("ann", roles={"shop": ADMIN}), timezone.now())
    assert ([one.source for one in state.refused], state.waiting) == (["shop"], [])


# -- the command --------------------------------------------------------------------------------------------------


def test_a_key_is_printed_once_and_stored_sealed(capsys):
    call_command("source_key", "create", "shop")
    out = capsys.readouterr().out
    key = SigningKey.parse(out.removeprefix("REDRIVE_SOURCE_KEY="))
    assert key.source == "shop" and is_signed_with(sign({b"v": b"1"}, key), key)
    secret = str(key).rpartition(".")[2]
    call_command("source_key", "list")
    assert key.id in (listed := capsys.readouterr().out) and secret not in listed
    stored = [*SourceKey.objects.values_list(), *AuditEvent.objects.values_list()]
    event = AuditEvent.objects.get()
    assert secret not in str(stored) and event.act == "source_key.create" and event.actor.endswith(" (terminal)")


def test_a_key_is_revoked_once(key, capsys):
    call_command("source_key", "revoke", key.id)
    assert "revoked." in capsys.readouterr().err
    with pytest.raises(CommandError, match="is in force"):
        call_command("source_key", "revoke", key.id)
    with pytest.raises(CommandError, match="cannot name a source"):
        call_command("source_key", "create", "No Source")


def test_what_the_desk_itself_reports_is_signed_by_it():
    end_unsigned()
    create_sources("shop")
    assert file((b"1-0", trust.sign_as_desk(encode(report())))).new_failures == 1


def test_an_accepted_report_that_cannot_be_filed_stays_stored_with_the_reason_and_is_not_tried_for_ever():
    end_unsigned()
    create_sources("shop")
    file(entry("", raw=None))
    file(entry("good"))
    admission.file_unsigned(ENGINE, "shop")
    refile()
    assert [job for _, job in jobs()] == ["good"]
    assert Unfiled.objects.values_list("cause", "why").get() == ("", "the report names no job")


def test_workers_of_an_invented_source_are_not_listed_nor_counted(store):
    """A heartbeat is not signed, so it makes no source known once unsigned reports have ended."""
    now = timezone.now()

    def beat(source):
        word = {"v": 1, "source": source, "name": "w1", "boot": "b", "at": now.timestamp(), "queues": ["emails"]}
        store.hset(keys.workers(source), "w1", json.dumps(word | {"counts": {"emails": {"started": 5}}}))
        worker_store.restart_search()
        return [one.source for one in heartbeats.count_heartbeats(now)]

    create_sources("shop")
    assert beat("shop") == ["shop"]
    end_unsigned(now)
    trust.forget()
    assert beat("invented") == ["shop"]
    assert [worker.source for worker in Worker.objects.all()] == ["shop"] and Source.objects.count() == 1
    assert not QueueCounter.objects.exclude(source="shop").exists()


# -- what cannot be read ------------------------------------------------------------------------------------------


def garbage(stream, count):
    """Entries of a stream that no version of the desk can read, unsigned: id, fields, stream."""
    kinds = [{b"v": b"99"}, {b"v": b"1", b"meta": b"["}, {b"x": b"y"}]
    return [(f"{next(_ids)}-0".encode(), kinds[n % 3], stream) for n in range(count)]


def test_what_cannot_be_read_and_is_not_signed_is_held_to_the_bounds_of_refused_reports(key, monkeypatch):
    for cause in (trust.Cause.UNSIGNED, trust.Cause.UNKNOWN):
        monkeypatch.setitem(admission._BOUNDS, cause, admission._Bound(7, 10**9))
    end_unsigned()
    many = [one for n in range(30) for one in garbage(f"s{n:03}", 10)]
    file(*garbage("shop", 40), *many)
    assert not Unfiled.objects.filter(cause="").exists()
    assert Unfiled.objects.filter(source="shop", cause="unsigned").count() == 7
    state = admission.state(ENGINE, timezone.now())
    assert (len(state.waiting), state.beyond) == (20, 100)
    assert Unfiled.objects.filter(cause="unknown").count() == 140


@pytest.mark.parametrize("bound", [admission._Bound(5, 10**9), admission._Bound(10**6, 1_000)])
def test_what_cannot_be_filed_is_stored_within_bounds_of_its_source_and_left_beyond(monkeypatch, bound):
    monkeypatch.setitem(admission._BOUNDS, trust.Cause.UNFILED, bound)
    create_sources("shop", "bank")
    sized = [(n, fields | {b"n" * 190: b""}, stream) for n, fields, stream in garbage("shop", 8)]
    filed = file(*sized)
    assert (filed.unfiled, filed.left) == (5, {f"shop/{n.decode()}" for n, *_ in sized[5:]})
    again = file(*sized)  # they come again
    assert (again.unfiled, again.known_unfiled, again.left) == (0, 5, filed.left)
    assert not file(*garbage("bank", 2), entry("good")).left
    assert sorted(Unfiled.objects.values_list("source", "cause")) == [("bank", "")] * 2 + [("shop", "")] * 5
    assert jobs() == [("shop", "good")]
    now = timezone.now()
    (one,) = admission.state(ENGINE, now).refused
    assert (one.source, one.word, one.refused, one.stored, one.dropped) == ("shop", "unfiled", 3, 5, 0)
    (finding,) = admission.findings(admission.state(ENGINE, now), now)[:1]
    assert "shop: 5 reports that cannot be filed are stored." in finding.text and "sources file shop" in finding.fix
    assert not admission.state(ENGINE, now + timedelta(minutes=11)).refused  # nothing was left since
    admission.discard_refused(ENGINE, "shop")
    assert not RefusedReports.objects.exists() and Unfiled.objects.filter(source="shop").count() == 5


def test_unfiled_reports_are_filed_again_or_discarded_and_none_is_deleted_that_still_cannot_be(monkeypatch):
    create_sources("shop")
    file(*garbage("shop", 2))
    fields = encode(report("newer")) | {b"v": str(envelope.VERSION + 2).encode()}
    file((b"5-0", fields, "shop"))
    assert Unfiled.objects.filter(cause="").count() == 3
    monkeypatch.setattr(envelope, "VERSION", envelope.VERSION + 1)
    assert admission.file_unsigned(ENGINE, "shop") == 3
    refile()
    assert jobs() == [("shop", "newer")] and Unfiled.objects.filter(cause="").count() == 2
    numbers = list(Unfiled.objects.values_list("pk", flat=True))
    with pytest.raises(Refused, match="admin"):
        admission.discard_unfiled(Viewer("ann", {"shop": ADMIN}), numbers)
    assert admission.discard_unfiled(ENGINE, numbers) == 2 and not Unfiled.objects.exists()
    assert AuditEvent.objects.latest("pk").act == "reports.discard"


def test_of_an_entry_larger_than_any_report_the_head_is_stored():
    create_sources("shop")
    large = {b"v": b"99", b"meta": b"{}", b"raw": bytes(18 * 2**20), b"n" * 2**20: b""}
    allowed = {b"v": b"99", b"meta": b"{}", b"raw": bytes(16 * 2**20)}
    assert file((b"1-0", large, "shop"), (b"2-0", allowed, "shop")).unfiled == 2
    partial, full = Unfiled.objects.order_by("id")
    fields, _ = unsealing.decode_entry(config.payload_keys().decrypt(bytes(partial.body)))
    assert (fields[b"v"], fields[b"meta"], partial.size) == (b"99", b"{}", 64 * 1024)
    assert partial.why.startswith("envelope version '99'") and "it has 19,922,956 bytes" in partial.why
    assert full.size == unsealing.entry_size(allowed)


def test_a_signed_report_of_a_newer_guard_is_stored_and_filed_by_the_version_that_knows_it(key, monkeypatch):
    end_unsigned()
    fields = encode(report("newer")) | {b"v": str(envelope.VERSION + 2).encode()}
    assert file((b"1-0", sign(fields, key), "shop")).unfiled == 1
    assert Unfiled.objects.values_list("source", "cause").get() == ("shop", "")
    monkeypatch.setattr(envelope, "VERSION", envelope.VERSION + 1)
    refiling.restart()
    refile()
    assert jobs() == [("shop", "newer")] and not Unfiled.objects.exists()
