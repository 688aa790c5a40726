"""Breakers on the desk: reading the store, forcing, history, notices, pages, API, commands, metrics, Django's admin."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from dashboard.holds import breaker_page
from dashboard.web.moments import clock
from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.core.breaker import Breaker, Outcome
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.fleet import heartbeats
from jobs_admin.holds import breaker_history, breakers
from jobs_admin.holds.breaker_documents import MOST_NAMES, read_documents
from jobs_admin.incidents import Span, incident
from jobs_admin.models import AuditEvent, BreakerEvent, Notice, PolicyVersion, Role, Source
from jobs_admin.retries import promoting
from jobs_admin.worker.delays import Delays, Head, Hold
from tests.kit.alerts import episode
from tests.kit.breakers import create_policy, failures, opened, stored
from tests.kit.breakers import store as put
from tests.kit.depths import create_samples
from tests.kit.failures import bury
from tests.kit.metrics import scrape
from tests.kit.pages import text_of
from tests.kit.people import ANN, BEA, BOB, EVE, LOU, SAM
from tests.rigs.breaker_hosts import SINCE_S
from tests.rigs.breaker_hosts import run as run_hosts

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]
PAGE = "/breakers/shop/partner/"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A desk that has read no document yet."""
    restarted(monkeypatch)


@pytest.fixture
def policy(db):
    return create_policy(queue="webhooks")


@pytest.fixture
def outage(policy, store):
    """The partner is down since a minute, and 1,243 jobs are held."""
    sample = {"count": 1_243, "sampled": 300, "queues": {"webhooks": 300}, "tasks": {"shop.send": 300},
            "tenants": {"acme": 290, "ibex": 10}, "jobs": [{"job_id": "j1", "task": "shop.send", "queue": "webhooks", "tenant": "acme"}]}  # fmt: skip
    store.set(keys.on_hold("shop"), json.dumps({"at": time.time(), "breakers": {"partner": sample}}))
    return put(store, opened(on_hold=1_243))


def restarted(monkeypatch) -> None:
    monkeypatch.setattr(breaker_history, "_mirrored", {})
    monkeypatch.setattr(breaker_history, "_sampled", {})
    monkeypatch.setattr(breaker_history, "_withdrawn", {})
    monkeypatch.setattr(breaker_history, "_sent", set())


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def notices() -> list[tuple[str, str]]:
    return list(Notice.objects.order_by("pk").values_list("type", "body__title"))


# -- reading ------------------------------------------------------------------------------------------------------


def test_breakers_are_those_of_policies_and_of_the_store_that_a_viewer_may_see(store):
    create_policy("partner", source="*", task="shop.send")
    create_policy("mails", dependency="smtp", queue="emails")
    create_policy("letters", mode="observe", dependency="smtp", queue="letters")
    put(store, opened("gone"))
    put(store, opened("smtp", on_hold=3))
    found = [(one.source, one.name, one.mode, one.state) for one in breakers.listing(ANN).rows]
    assert found == [
        ("shop", "smtp", "enforce", "open"),
        ("shop", "gone", "off", "open"),
        ("bank", "partner", "enforce", "closed"),
        ("shop", "partner", "enforce", "closed"),
    ]
    assert {one.source for one in breakers.listing(BEA).rows} == {"bank"}
    smtp = breakers.get(LOU, "shop", "smtp")
    assert [one.name for one in smtp.policies] == ["letters", "mails"] and smtp.is_dependency
    with pytest.raises(NotFound):
        breakers.get(BEA, "shop", "smtp")


def test_a_breaker_of_a_source_that_cannot_hold_is_named_as_such(ann):
    Source.objects.filter(pk="shop").update(backend="bullmq")
    Source.objects.get_or_create(name="node", defaults={"backend": "bullmq"})
    create_policy(source="node")
    assert breakers.listing(ANN).unable == ("node",)
    assert "Cannot hold jobs: node." in text_of(ann.get(reverse("redrive:breaker-list")))


HOSTILE = (
    b"", b"x", b"1", b"1 ", b"1 []", b"1 null", b"-1 {}", b"1 {}", b'1 {"state":"ajar"}', b'1 {"state":["open"]}',
    b"\xff\xfe", b'99999999999999999999 {"state":"open"}', b"1 " + b"[" * 50_000, b'1 {"state":"open","x":"' + b"x" * 70_000 + b'"}',
)  # fmt: skip
ODD = (
    {"since": 1e300, "opened_at": "x", "held": -1, "rate": "fast", "tenants": 7, "history": "x", "evidence": [], "forced": 1},
    {"since": True, "held": 1e300, "history": [1, None, {}, {"at": -5, "to": "open"}, {"at": 1, "to": "\x00"}]},
    {"tenants": ["a\x00b", None, ["x"], "<script>", "\ud800", *["t"] * 500], "held": 2**63},
    {"evidence": {"failures": "x", "share": 7, "kinds": {"\x00": 1, "a": "b", "c": -1}, "first_error": ["x"], "p": -1}},
    {"forced": {"as": "open", "until": "never", "by": {"x": 1}, "reason": "\ud800" * 900}},
    {"held_by": {"queues": ["x"], "tenants": {"": 1, "\x00": 5, "x" * 900: 2}}, "at_bound": 1e99, "probe": [1]},
)  # fmt: skip


def test_hostile_documents_hide_no_other_and_break_no_page(store, ann, policy):
    now = time.time()
    for n, text in enumerate(HOSTILE):
        store.hset(keys.breakers("shop"), f"hostile-{n}", text)
    for n, values in enumerate(ODD):
        text = json.dumps({"state": "open", "since": now, **values}).encode()
        store.hset(keys.breakers("shop"), f"odd-{n}", b"1 " + text)
    store.hset(keys.breakers("shop"), b"\xff\x00<b>", b'1 {"state":"open"}')
    store.hset(keys.breakers("shop"), "x" * 300, b'1 {"state":"open"}')
    store.set(keys.breakers("bank"), "a key of another type")
    put(store, opened())
    names = {one.name for one in breakers.listing(ANN).rows}
    assert "partner" in names and {f"odd-{n}" for n in range(len(ODD))} <= names
    assert not any(name.startswith("hostile") or len(name) > 200 for name in names)
    for name in sorted(names):
        create_policy(f"p{len(name)}-{abs(hash(name)) % 9999}", dependency=name, task=name.replace("*", "")[:50] or "x")
    breaker_history.step(timezone.now())
    for path in ("/breakers/", "/", *(reverse("redrive:breaker-detail", args=["shop", name]) for name in names)):
        assert ann.get(path).status_code == 200, path
    assert len(breakers.listing(ANN).rows) == len(names)
    for name in sorted(names):
        breakers.force(ANN, "shop", name, "open", reason="x")
        assert breakers.get(ANN, "shop", name).state == "open"


def test_a_hash_with_too_many_names_is_read_in_part(store):
    store.hset(keys.breakers("shop"), mapping={f"n{n}": b'1 {"state":"open"}' for n in range(5_000)})
    assert 0 < len(read_documents(["shop"])) <= MOST_NAMES


def test_a_store_that_is_away_is_named_and_breaks_no_page(policy, ann, monkeypatch):
    with monkeypatch.context() as away:
        away.setattr(config, "store", lambda: (_ for _ in ()).throw(config.BadConfiguration("away")))
        assert "States of breakers are not known" in text_of(ann.get("/breakers/"))
        assert "not known" in text_of(ann.get(PAGE))
        with pytest.raises(Refused, match="store does not answer"):
            breakers.force(SAM, "shop", "partner", "open", reason="x")
    assert not AuditEvent.objects.filter(act="breaker.force", allowed=True).exists()


def test_jobs_on_hold_are_sampled_where_they_wait(store, monkeypatch, settings, engine, tmp_path, policy):
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.shop]\nbackend = "celery"\nurl = "{engine.url}"\n')
    settings.REDRIVE = {**settings.REDRIVE, "SOURCES": str(file)}
    delays = Delays(store, "shop")
    for n in range(700):
        head = Head(f"j{n}", 1, "shop.send", "webhooks" if n % 7 else "emails")
        delays.schedule(head, b"m" * 100, 900, hold=Hold("partner", 0, "acme" if n % 2 else "ibex"))
    delays.schedule(Head("k", 1, "shop.send", "webhooks"), b"m", 900, hold=Hold("\x00<b>", 0))
    store.sadd(keys.holding_breakers("shop"), "odd"), store.set(keys.holds("shop", "odd"), "x")
    config.sources.cache_clear()
    for state in (promoting._places, promoting._sampled_at):
        state.clear()
    promoting.step()
    found = breakers.on_hold(breakers.get(ANN, "shop", "partner"))
    assert (found.count, found.is_estimate, found.by_task) == (700, True, {"shop.send": 700})
    assert found.by_queue["webhooks"] == pytest.approx(600, abs=60) and found.by_tenant["acme"] == pytest.approx(
        350, abs=60
    )
    assert len(found.jobs) == 20 and {job.queue for job in found.jobs} <= {"webhooks", "emails"}
    assert delays.release("partner", 1_000, "") + delays.release("\x00<b>", 9, "") == 701
    promoting.step()
    assert store.exists(keys.on_hold("shop"))  # not sampled again within seconds
    promoting._sampled_at.clear()
    promoting.step()
    assert not store.exists(keys.on_hold("shop"))


# -- forcing ------------------------------------------------------------------------------------------------------


def test_forcing_is_written_to_the_store_and_audited_and_auto_takes_it_back(policy, store):
    now = timezone.now()
    one = breakers.force(SAM, "shop", "partner", "open", reason=" their\nmaintenance ", for_s=900, now=now)
    assert (one.state, one.document.forced.by, one.document.forced.reason) == ("open", "sam", "their maintenance")
    assert stored(store).forced["until"] == pytest.approx((now + timedelta(seconds=900)).timestamp())
    assert breakers.force(ANN, "shop", "partner", "closed", reason="works").state == "closed"
    assert breakers.force(ANN, "shop", "partner", "auto").document.forced is None
    acts = AuditEvent.objects.filter(act="breaker.force").order_by("id").values_list("actor", "object", "after__as")
    assert list(acts) == [(who, "breaker:shop/partner", as_) for who, as_ in (("sam", "open"), ("ann", "closed"), ("ann", "auto"))]  # fmt: skip


def test_forcing_keeps_what_workers_wrote_beside_and_what_they_write_meanwhile(outage, store, monkeypatch):
    put(store, outage, lease=["boot", 5])
    real, writes = time.sleep, iter(range(3))
    pipeline = type(store.pipeline())
    watch = pipeline.watch

    def interrupted(self, *names):
        watch(self, *names)
        if next(writes, None) is not None:  # a worker writes between our reading and our writing
            breaker = stored(store)
            breaker.note(failures(1), time.time())
            put(store, breaker)

    monkeypatch.setattr(pipeline, "watch", interrupted)
    before = stored(store).number
    breakers.force(SAM, "shop", "partner", "closed", reason="x")
    after = stored(store)
    assert (after.state, after.extra["lease"]) == ("closed", ["boot", 5]) and after.number >= before + 4
    assert real is time.sleep


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reason": " "}, "Enter a reason"),
        ({"reason": "x" * 501}, "Enter a reason"),
        ({"as_": "ajar"}, "Choose one of open, closed, auto"),
        ({"for_s": 0}, "within 30 days"),
        ({"for_s": 31 * 86_400}, "within 30 days"),
        ({"as_": "auto", "for_s": 60}, "Automatic has no end"),
    ],
)
def test_an_invalid_act_is_refused_and_changes_nothing(policy, store, given, message):
    with pytest.raises(Refused, match=message):
        breakers.force(SAM, "shop", "partner", **{"as_": "open", "reason": "x", **given})
    assert not store.exists(keys.breakers("shop"))


def test_who_may_not_force_is_refused_and_that_is_audited(policy):
    for viewer, message in ((LOU, "operator on shop"), (EVE, "operator on shop"), (BEA, "No such source")):
        with pytest.raises(Refused, match=message):
            breakers.force(viewer, "shop", "partner", "open", reason="x")
    refused = AuditEvent.objects.filter(act="breaker.force", allowed=False).values_list("actor", flat=True)
    assert sorted(refused) == ["eve", "lou"]


def test_what_no_worker_would_obey_is_refused(store):
    create_policy("watched", mode="observe")
    put(store, opened("gone"))
    with pytest.raises(Refused, match="watched is only observed"):
        breakers.force(SAM, "shop", "watched", "open", reason="x")
    with pytest.raises(Refused, match="gone has no policy in force"):
        breakers.force(SAM, "shop", "gone", "closed", reason="x")
    with pytest.raises(NotFound):
        breakers.force(SAM, "shop", "nothing", "open", reason="x")
    create_policy("capped", queue="webhooks")
    capped = put(store, opened("capped", observe=True))
    with pytest.raises(Refused, match="Set REDRIVE_MODE of its workers to enforce"):
        breakers.force(SAM, "shop", "capped", "open", reason="x")
    assert not breakers.may_force(SAM, breakers.get(SAM, "shop", "capped"))
    capped.force("closed", time.time())
    put(store, capped)
    assert breakers.may_force(SAM, breakers.get(SAM, "shop", "capped"))
    assert breakers.force(SAM, "shop", "capped", "auto").document.forced is None


# -- history and notices ------------------------------------------------------------------------------------------


def test_transitions_are_recorded_once_with_one_notice(outage, monkeypatch):
    now = timezone.now()
    assert breaker_history.step(now) and not breaker_history.step(now)
    restarted(monkeypatch)
    assert not breaker_history.step(now)
    event = BreakerEvent.objects.exclude(BreakerEvent.IS_SAMPLE).get()
    assert (event.source, event.name, event.from_state, event.to_state) == ("shop", "partner", "closed", "open")
    assert "attempts failed: timeout" in event.why and not event.is_observed
    (notice,) = Notice.objects.all()
    assert (notice.type, notice.severity, notice.source) == ("breaker.opened", "warning", "shop")
    assert notice.body["title"] == "partner is down: its jobs are held"
    assert notice.body["queues"] == ["webhooks"] and notice.body["url"].endswith(PAGE)
    assert "TimeoutError: partner.example" in notice.body["message"]


def test_one_that_is_still_open_after_fifteen_minutes_has_one_more_notice(outage, monkeypatch):
    now = timezone.now()
    for minutes in (0, 13, 15, 16, 40):
        breaker_history.step(now + timedelta(minutes=minutes))
    restarted(monkeypatch)
    breaker_history.step(now + timedelta(minutes=41))
    assert [title for _, title in notices()] == [
        "partner is down: its jobs are held",
        "partner is still down after 15 min: 1,243 jobs are held",
    ]


def test_no_room_for_held_jobs_has_one_notice(outage, store, monkeypatch):
    put(store, outage, at_bound=time.time())
    for _ in range(3):
        breaker_history.step(timezone.now())
    restarted(monkeypatch)
    breaker_history.step(timezone.now())
    assert [kind for kind, _ in notices()] == ["breaker.opened", "hold.at_bound"]
    assert Notice.objects.get(type="hold.at_bound").severity == "critical"


def test_a_desk_that_was_down_learns_of_all_transitions_and_alarms_for_none_that_is_over(policy, store, monkeypatch):
    at = time.time() - 600
    breaker = opened(at=at, on_hold=2)
    breaker.force("closed", at + 300, by="sam", reason="works")
    breaker.force("auto", at + 310, by="sam")
    put(store, breaker)
    breaker_history.step(timezone.now())
    restarted(monkeypatch)
    breaker_history.step(timezone.now())
    assert [one.to_state for one in breaker_history.events(ANN, "shop", "partner")] == ["closed", "closed", "open"]
    ((kind, title),) = notices()
    assert kind == "breaker.closed" and title == "partner is back: its breaker closed after 5 min 1 s"
    again = failures(20)
    for n, one in enumerate(again):
        breaker.note([one], at + 500 + n / 10)
    put(store, breaker)
    breaker_history.step(timezone.now())
    assert [kind for kind, _ in notices()] == ["breaker.closed", "breaker.opened"]
    keys_ = {notice.body["dedup_key"] for notice in Notice.objects.all()}
    assert len(keys_) == 2  # of two openings


def test_an_outage_that_a_careful_resume_meets_is_reported(policy, store):
    at = time.time() - 60
    breaker = Breaker("partner")
    breaker.open_to_release("sam", at)
    breaker.tick(at, 3)
    ticket = breaker.ticket(at)
    breaker.released(1, at, ticket)
    breaker.note([Outcome(True, ticket=ticket)], at + 1)
    put(store, breaker)
    breaker_history.step(timezone.now())
    assert breaker.state == "half_open" and notices() == []
    breaker._open("Released jobs fail", at + 2)
    put(store, breaker)
    breaker_history.step(timezone.now())
    assert notices() == [("breaker.opened", "partner is down: its jobs are held")]
    breaker.force("closed", at + 32)
    put(store, breaker)
    breaker_history.step(timezone.now())
    assert notices()[1:] == [("breaker.closed", "partner is back: its breaker closed after 30 s")]
    assert len({notice.body["dedup_key"] for notice in Notice.objects.all()}) == 1


def test_the_hold_of_one_host_is_recorded_and_notified_once(policy, store, ann, monkeypatch):
    breaker = Breaker("partner")
    breaker.note([Outcome(True, n=10)], time.time() - 900)
    evidence = opened("other").evidence
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=800)

    def step(minutes: float) -> list[str]:
        put(store, breaker)
        breaker_history.step(at + timedelta(minutes=minutes))
        restarted(monkeypatch)
        breaker_history.step(at + timedelta(minutes=minutes))
        return [title for _, title in notices()]

    def now_s(minutes: float) -> float:
        return at.timestamp() + 60 * minutes

    breaker._add_host("web-3", evidence, now_s(0))
    titles = ["partner fails only on host web-3: its jobs there are held"]
    assert step(0) == step(1) == titles
    breaker._release_hosts(now_s(2), "a job succeeded")
    titles.append("partner: the hold of host web-3 ended after 2 min")
    assert step(2) == titles
    for minute in range(3, 9, 2):  # it fails now and then
        breaker._add_host("web-3", evidence, now_s(minute))
        assert step(minute) == titles
        breaker._release_hosts(now_s(minute + 1), "a job succeeded")
        assert step(minute + 1) == titles
    breaker._add_host("web-3", evidence, now_s(10))
    assert step(24) == titles
    assert step(25) == [*titles, titles[0]]
    assert [kind for kind, _ in notices()] == ["breaker.opened", "breaker.closed", "breaker.opened"]
    assert len({notice.body["dedup_key"] for notice in Notice.objects.all()}) == 2
    text = text_of(ann.get(PAGE))
    assert (
        f"Host web-3 on hold: {evidence['failures']} of " in text
        and "Host web-3 resumed: a job succeeded" in text
        and "one host" in text
    )
    where = Span("shop", "webhooks", at - timedelta(minutes=1), at + timedelta(minutes=30), True, "requested")
    found = [one.words for one in incident(LOU, where, at + timedelta(minutes=30)).timeline if one.kind == "breaker"]
    assert len(found) == 9 and found[-1].startswith("Breaker partner: Host web-3 on hold: ")
    breaker._open("16 of 16 attempts failed", now_s(30))  # the breaker itself has its own notices
    assert step(30)[3:] == ["partner is down: its jobs are held"]


def test_the_notices_of_one_opening_share_their_key(outage, store):
    breaker_history.step(timezone.now())
    outage.force("closed", time.time(), by="sam", reason="works")
    put(store, outage)
    breaker_history.step(timezone.now())
    assert [kind for kind, _ in notices()] == ["breaker.opened", "breaker.closed"]
    assert len({notice.body["dedup_key"] for notice in Notice.objects.all()}) == 1


def test_a_breaker_that_is_only_observed_is_recorded_without_a_notice(store, ann):
    create_policy(mode="observe", queue="webhooks")
    breaker = opened(at=time.time() - 660, observe=True)
    breaker.note([Outcome(False, kind="timeout", n=1)] * 40, time.time() - 300, starts=1_243)
    put(store, breaker)
    breaker_history.step(timezone.now())
    assert BreakerEvent.objects.latest("at").is_observed and not Notice.objects.exists()
    text = text_of(ann.get(PAGE))
    assert f"would have held {breaker.starts:,} jobs for 11 min" in text and breaker.starts > 1_243
    assert "The policy only observes" in text and "Next probe" not in text
    assert "partner has been down" not in text_of(ann.get("/")) and breakers.open_breakers(ANN, ["shop"]) == []


def test_a_breaker_whose_workers_only_observe_holds_nothing(policy, store, ann):
    put(store, opened(observe=True))
    breaker_history.step(timezone.now())
    assert BreakerEvent.objects.latest("at").is_observed and not Notice.objects.exists()
    text = text_of(ann.get(PAGE))
    assert "would have held" in text and "Workers only observe this breaker: nothing is held." in text
    assert breakers.open_breakers(ANN, ["shop"]) == []


def test_the_timeline_of_an_incident_has_the_breaker(outage):
    now = timezone.now()
    breaker_history.step(now)
    where = Span("shop", "webhooks", now - timedelta(minutes=10), now, True, "asked")
    (found,) = [one for one in incident(LOU, where, now).timeline if one.kind == "breaker"]
    assert (found.what, found.words, found.ref.name) == ("open", "Breaker partner opened", "shop/partner")


# -- pages --------------------------------------------------------------------------------------------------------


def test_the_page_names_what_is_held_why_and_what_closing_would_do(outage, ann):
    breaker_history.step(timezone.now())
    since = datetime.fromtimestamp(outage.opened_at, UTC).strftime("%H:%M")
    text = text_of(ann.get(PAGE))
    assert f"partner has been down since {since}: 1,243 jobs held, none dead" in text
    for part in (
        "TimeoutError: partner.example", "timeout", "Usual share", "Next probe", "queue webhooks 1,243", "tenant acme 1,202", "task shop.send", "parts are estimates", "j1",
        "If forced closed now: 1,243 jobs would start at the careful pace.", "attempts failed: timeout", "Force open…", "Force closed…",
    ):  # fmt: skip
        assert part in text, part
    assert "Return to automatic" not in text


def test_the_page_names_a_failing_host_a_task_alone_and_older_workers(policy, store, ann, call_api):
    found = run_hosts(lambda host, task, at: host == "a" and at >= SINCE_S).breaker
    assert put(store, found).covers_host("a")
    text = text_of(ann.get(PAGE))
    assert "jobs running normally" in text and ", but not on host a" in text and "Failing hosts" in text
    assert "connection" in text and "Older guard" not in text
    api = call_api("GET", "breakers/partner").json()
    assert [(one["host"], one["failures"] >= 10) for one in api["hosts"]] == [("a", True)] and api["tasks"] == []
    breaker = opened()
    breaker.tenants = ["#task:shop.send"]
    put(store, breaker)
    assert "partner has been down for task shop.send since" in text_of(ann.get(PAGE))
    row = breakers.get(ANN, "shop", "partner")
    assert row.holds_task("shop.send", "*") and not row.holds_task("shop.other", "*")
    values = {"source": "shop", "boot": "b", "at": time.time(), "mode": "enforce", "breakers": ["partner"]}
    for name, more in (
        ("celery@old", {}),
        ("celery@new", {"narrows": ["host", "task"]}),
        ("celery@eye", {"mode": "observe"}),
    ):
        store.hset(keys.workers("shop"), name, json.dumps(values | more | {"name": name}))
    heartbeats.count_heartbeats(timezone.now())
    assert breakers.older_workers(row) == ["celery@old"] and "Older guard on celery@old." in text_of(ann.get(PAGE))


def test_held_jobs_are_sampled_and_drawn_over_time(outage, store, ann):
    now = timezone.now()
    for seconds in range(0, 30, 5):
        breaker_history.step(now + timedelta(seconds=seconds))
    outage.tick(time.time(), 2_000)
    put(store, outage)
    breaker_history.step(now + timedelta(seconds=40))
    found = BreakerEvent.objects.filter(BreakerEvent.IS_SAMPLE).order_by("at")
    assert [one.on_hold for one in found] == [1_243, 1_243, 1_243, 2_000]
    outage.force("closed", time.time())
    outage.tick(time.time(), 0)
    put(store, outage)
    breaker_history.step(now + timedelta(seconds=41))
    breaker_history.step(now + timedelta(seconds=60))
    assert [one.on_hold for one in found.all()][4:] == [0]  # and no more once it is closed and empty
    text = text_of(ann.get(PAGE))
    assert "Held over time" in text and "Open from" in text and "2,000" in text
    assert len(breaker_history.events(ANN, "shop", "partner")) == BreakerEvent.objects.count() - 5


def test_a_breaker_without_a_policy_is_sampled_while_its_jobs_are_released(outage, store, policy):
    now = timezone.now()
    breaker_history.step(now)
    policy.delete()
    for seconds in range(60, 200, 10):
        breaker_history.step(now + timedelta(seconds=seconds))
        if seconds == 60:
            store.delete(keys.on_hold("shop"))  # all are released; its document says otherwise for a week
    found = BreakerEvent.objects.filter(BreakerEvent.IS_SAMPLE).order_by("at")
    assert [one.on_hold for one in found] == [1_243, 1_243, 0]
    assert breakers.get(ANN, "shop", "partner").document.on_hold is None


def test_an_opening_has_its_own_times_beyond_the_picture_and_no_end_that_is_not_known(outage, store):
    now = timezone.now()
    row = breakers.get(ANN, "shop", "partner")

    def event(hours: float, before: str, after: str, count: int | None) -> BreakerEvent:
        at = now - timedelta(hours=hours)
        return BreakerEvent(source="shop", name="partner", at=at, from_state=before, to_state=after, on_hold=count)

    events = [
        event(100, "closed", "open", 1),
        event(90, "open", "closed", 0),
        event(72, "closed", "open", 3),
        event(1, "open", "open", 9),
    ]
    (band,) = breaker_page.draw(row, events, now).bands
    assert band.words == f"Open from {clock(events[2].at, now)} to now" and band.x == 0 and band.width == 1000
    (band,) = breaker_page.draw(replace(row, document=None, is_known=False), events, now).bands
    assert band.words == f"Open from {clock(events[2].at, now)} until at least {clock(events[3].at, now)}"


def test_dead_jobs_of_its_policies_are_counted_in_the_sentence(outage, ann):
    bury(2, queue="webhooks")
    bury(3, queue="other")
    assert "1,243 jobs held, 2 dead" in text_of(ann.get(PAGE))


def test_it_is_forced_and_put_back_by_the_forms_of_its_page(outage, store, ann):
    force = reverse("redrive:breaker-force", args=["shop", "partner"])
    text = text_of(ann.post(force, {"as": "closed", "reason": "it works", "for": "900"}, follow=True))
    assert "partner is forced closed: held jobs start at the careful pace." in text and "Undo" in text
    assert "partner is forced closed by ann until" in text and "Return to automatic" in text and "it works" in text
    text = text_of(ann.post(force, {"as": "open", "reason": "it does not", "for": ""}, follow=True))
    assert re.search(r"partner is forced open by ann: \S+ jobs held", text) and "until changed" in text
    assert "partner is automatic again." in text_of(ann.post(force, {"as": "auto"}, follow=True))
    assert stored(store).forced is None
    assert "Enter a reason" in text_of(ann.post(force, {"as": "open", "reason": "", "for": ""}, follow=True))
    assert "Choose how long" in text_of(ann.post(force, {"as": "open", "reason": "x", "for": "7"}, follow=True))


def test_two_people_force_it_where_a_replay_of_its_jobs_would_need_two(outage, store, ann, settings):
    settings.REDRIVE = {**settings.REDRIVE, "APPROVE_ABOVE": "1,000"}
    first = breakers.force(ANN, "shop", "partner", "closed", reason="it works", for_s=900)
    assert (
        first.awaits.startswith("1,243 jobs are held. Above 1,000, another operator must confirm")
        and stored(store).forced is None
    )
    text = text_of(ann.get(PAGE))
    assert "ann asked" in text and "to force the breaker closed: “it works”" in text and "Approve force closed" in text
    with pytest.raises(Refused, match="You started forcing partner closed yourself"):
        breakers.force(ANN, "shop", "partner", "closed", reason="it works", for_s=900)
    assert breakers.force(SAM, "shop", "partner", "closed", reason="for good").awaits  # which is another thing
    assert breakers.force(SAM, "shop", "partner", "auto").awaits == ""
    assert breakers.force(SAM, "shop", "partner", "open", reason="stop").awaits == ""
    assert breakers.force(SAM, "shop", "partner", "auto").awaits and stored(store).forced["as"] == "open"
    assert breakers.force(SAM, "shop", "partner", "open", reason="stop", for_s=1).awaits
    assert breakers.force(SAM, "shop", "partner", "auto").awaits
    assert "Approve automatic" in text_of(ann.get(PAGE))
    assert breakers.force(ANN, "shop", "partner", "auto").awaits == "" and stored(store).forced is None
    assert breakers.force(SAM, "shop", "partner", "closed", reason="it works", for_s=900).awaits
    late = timezone.now() + timedelta(hours=2)
    assert breakers.force(ANN, "shop", "partner", "closed", reason="it works", for_s=900, now=late).awaits
    assert breakers.force(SAM, "shop", "partner", "closed", reason="it works", for_s=900).awaits == ""
    assert stored(store).forced["by"] == "sam"
    acts = AuditEvent.objects.filter(act="breaker.request", allowed=True).values_list("actor", "after__as")
    assert [who for who, _ in acts] == ["ann", *["sam"] * 5, "ann"]
    assert [as_ for _, as_ in acts] == ["closed", "closed", "auto", "open", "auto", "closed", "closed"]
    settings.REDRIVE = {**settings.REDRIVE, "APPROVE_ABOVE": "", "DANGEROUS_TASKS": ["shop.se*", "pay"]}
    reason = breakers.force(BOB, "shop", "partner", "closed", reason="x").awaits
    assert "because of task shop.send (" in reason  # it never failed
    create_policy("wild", task="pay*")
    assert breakers.force(SAM, "shop", "wild", "closed", reason="x").awaits.endswith(
        "task pay (REDRIVE_DANGEROUS_TASKS)."
    )
    beat = {"name": "w", "boot": "b", "at": time.time(), "mode": "enforce", "queues": ["q"], "tasks": "d" * 32}
    store.hset(keys.workers("shop"), "w", json.dumps(beat))
    store.set(keys.tasks("shop", "d" * 32), json.dumps(["pay_back"]))
    heartbeats.count_heartbeats(timezone.now())
    assert breakers.force(SAM, "shop", "wild", "closed", reason="x").awaits == ""  # no worker has a dangerous task
    create_policy("p" * 130, task="pay")
    create_policy("p" * 131, task="pay", queue="x")
    assert breakers.force(SAM, "shop", "p" * 130, "closed", reason="x").awaits
    assert breakers.force(ANN, "shop", "p" * 131, "closed", reason="x").awaits  # another one


def test_a_release_is_shown_and_stopped(outage, store, ann):
    outage.tick(outage.next_probe_at + 1, 1_243)
    ticket = outage.ticket(outage.next_probe_at + 1)
    outage.released(1, outage.next_probe_at + 1, ticket)
    outage.note([Outcome(True, ticket=ticket)], outage.next_probe_at + 2)
    assert outage.state == "half_open"
    put(store, outage)
    text = text_of(ann.get(PAGE))
    assert "partner has been recovering since" in text and "Stop release" in text
    ann.post(reverse("redrive:breaker-force", args=["shop", "partner"]), {"as": "open", "reason": "Release stopped"})
    assert stored(store).state == "open" and stored(store).forced["by"] == "ann"


def test_a_search_for_held_jobs_names_the_breakers_that_hold_them(outage, ann, call_api, without_role):
    for search in ("state:held", "queue:webhooks (state:dead,held OR task:x)"):
        page = ann.get("/failures/", {"q": search})
        assert "Held jobs have not failed" in text_of(page) and "partner of shop: 1,243 held" in text_of(page)
        assert f'href="{PAGE}"' in page.content.decode()
    assert call_api("GET", "failures", q="state:held").json()["hints"][1:] == ["partner of shop: 1,243 held"]
    assert "1,243 held" not in without_role.get("/failures/", {"q": "state:held"}).content.decode()
    assert "1,243 held" not in text_of(ann.get("/failures/", {"q": "state:dead"}))


def test_other_pages_name_an_open_breaker(outage, ann):
    for queue in ("webhooks", "emails"):
        create_samples(timezone.now() - timedelta(hours=1), 60, queue)
    alert = episode("webhooks")
    assert "1,243 jobs held, none dead" in text_of(ann.get("/"))
    assert "partner has been down" in text_of(ann.get(reverse("redrive:queue-detail", args=["shop", "webhooks"])))
    assert "partner has been down" not in text_of(ann.get(reverse("redrive:queue-detail", args=["shop", "emails"])))
    assert "partner has been down" in text_of(ann.get(reverse("redrive:alert-detail", args=[alert.pk])))
    assert "Breakers" in text_of(ann.get(reverse("redrive:queue-list")))


def test_a_viewer_sees_it_without_the_acts_and_a_stranger_nothing(outage, vera, django_user_model):
    text = text_of(vera.get(PAGE))
    assert "1,243 jobs held" in text and "Force open…" not in text and "needs the role operator" in text
    assert vera.post(reverse("redrive:breaker-force", args=["shop", "partner"]), {"as": "closed"}).status_code == 403
    assert vera.get("/breakers/bank/partner/").status_code == 404
    assert vera.get("/breakers/shop/nothing/").status_code == 404


def test_a_desk_without_breakers_explains_how_to_add_one(ann):
    assert "Add “breaker” to a policy." in text_of(ann.get("/breakers/"))


# -- API, commands, metrics, admin --------------------------------------------------------------------------------


def test_the_api_lists_shows_and_forces(call_api, outage):
    breaker_history.step(timezone.now())
    (one,) = call_api("GET", "breakers", role="viewer").json()["items"]
    expected = {
        "source": "shop", "name": "partner", "dependency": None, "policies": ["partner"], "mode": "enforce", "state": "open",
        "held": 1_243, "would_hold": None, "tenants": [], "forced": None, "may_force": False,
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert one["evidence"]["kinds"].keys() == {"timeout"} and one["next_probe_at"] and one["since"]
    detail = call_api("GET", "breakers/partner").json()
    assert [event["to_state"] for event in detail["history"]] == ["open"]
    body = {"as": "closed", "reason": "works", "for_s": 900}
    assert call_api("POST", "breakers/partner/force", body, role="viewer").status_code == 403
    assert call_api("POST", "breakers/nothing/force", body, role="operator").status_code == 404
    assert call_api("POST", "breakers/partner/force", {"as": "open"}, role="operator").status_code == 422
    forced = call_api("POST", "breakers/partner/force", body, role="operator")
    assert forced.status_code == 200 and forced.json()["forced"]["state"] == "closed"
    assert call_api("POST", "breakers/partner/force", {"as": "auto"}, role="operator").json()["forced"] is None


def test_a_name_that_two_sources_have_needs_the_source(call_api):
    create_policy(source="*")
    assert call_api("GET", "breakers/partner").status_code == 422
    assert call_api("GET", "breakers/partner", source="bank").json()["source"] == "bank"


def test_the_commands_list_show_and_force(call_api, outage):
    breaker_history.step(timezone.now())
    listed = run("breakers")
    assert "partner" in listed and "1,243" in listed and "open" in listed
    assert json.loads(run("breakers", "--json"))["items"][0]["held"] == 1_243
    shown = run("breaker", "partner")
    assert shown.startswith("partner has been down since ") and "attempts failed: timeout" in shown
    assert run("breaker", "partner", "--force", "closed", "--reason", "works", "--for", "15m").splitlines()[1].endswith("breaker partner --force auto")  # fmt: skip
    assert json.loads(run("breaker", "partner", "--json"))["forced"]["reason"] == "works"
    assert run("breaker", "partner", "--force", "auto").startswith("partner")
    for arguments, message in ((("--force", "open"), "Enter a reason"), (("--reason", "x"), "need --force")):
        with pytest.raises(CommandError, match=message):
            run("breaker", "partner", *arguments)
    with pytest.raises(CommandError, match="No such breaker"):
        run("breaker", "nothing")


def test_no_breakers_are_listed_as_such():
    assert run("breakers").startswith("No breakers.")


def test_metrics_count_held_jobs_and_name_the_state(outage, client):
    text = scrape(client).text
    assert 'redrive_held_jobs{dependency="partner",queue="webhooks",source="shop"} 1243.0' in text
    assert 'redrive_breaker_state{dependency="partner",mode="enforce",source="shop"} 2.0' in text


def test_django_admin_lists_transitions(outage, client, django_user_model):
    breaker_history.step(timezone.now())
    for source, is_shown in (("shop", True), ("bank", False)):
        user = django_user_model.objects.create_user(f"staff-{source}", is_staff=True)
        Role.objects.create(user=user, source=source, role="viewer")
        client.force_login(user)
        page = client.get("/admin/jobs_admin/breakerevent/")
        assert page.status_code == 200 and (b"partner" in page.content) is is_shown


def test_a_policy_that_ends_leaves_its_breaker_off(outage, ann):
    PolicyVersion.objects.update(is_published=False, ended_at=timezone.now())
    text = text_of(ann.get(PAGE))
    assert "no policy in force has this breaker" in text and "Force open…" not in text
    breaker_history.step(timezone.now())
    assert not Notice.objects.exists()
