"""Pauses of queues and tasks: the engine, the API, the commands, Django's admin, the metric and the store."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs_admin import config, holds
from jobs_admin.core import keys, pauses
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.fleet import heartbeats
from jobs_admin.holds import breaker_history
from jobs_admin.incidents import Span, incident
from jobs_admin.models import AuditEvent, DepthSample, Failure, Notice, Pause, PolicyVersion, Role, Source, Worker
from tests.kit.alerts import episode
from tests.kit.breakers import create_policy, opened, stored
from tests.kit.breakers import store as put
from tests.kit.depths import build_sample, create_samples
from tests.kit.failures import bury
from tests.kit.metrics import scrape
from tests.kit.pages import text_of
from tests.kit.people import ANN, BEA, EVE, LOU, SAM

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]


@pytest.fixture
def workers(store):
    """Live workers of the shop, as the desk hears of them."""

    def hear(*beats: dict) -> None:
        now = timezone.now()
        for n, beat in enumerate(beats):
            values = {
                "name": f"w{n}",
                "boot": "b",
                "at": now.timestamp(),
                "mode": "enforce",
                "queues": ["emails"],
                **beat,
            }
            store.hset(keys.workers("shop"), values["name"], json.dumps(values))
        heartbeats.count_heartbeats(now)

    hear({"pauses": ["queue", "task"], "paused": {"queues": [], "tasks": []}})
    return hear


@pytest.fixture
def staff(client, django_user_model):
    def log_in(role: str):
        user = django_user_model.objects.create_user(f"staff-{role}", is_staff=True)
        Role.objects.create(user=user, source="shop", role=role)
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def history(workers):
    create_samples(timezone.now() - timedelta(hours=1), 60)


def published(store) -> pauses.Pauses:
    return pauses.parse(store.get(keys.pauses("shop")))


def acts() -> list[tuple[str, str, str]]:
    return list(AuditEvent.objects.filter(act__startswith="pause").order_by("id").values_list("act", "actor", "reason"))


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_pause_is_published_audited_listed_and_resumed(workers, store):
    now = timezone.now()
    made = holds.pause(SAM, "shop", queue="emails", reason=" partner\n down ", for_s=900, now=now)
    assert (made.reason, made.created_by, made.until) == ("partner down", "sam", now + timedelta(seconds=900))
    task = holds.pause(SAM, "shop", task="shop.send", reason="wrong template")
    assert published(store) == pauses.Pauses({"emails": int(made.until.timestamp() * 1000)}, {"shop.send": 0})
    assert holds.listing(LOU) == [task, made] and holds.listing(BEA) == []
    bury(1, queue="emails", task="shop.send")
    places = ("shop", "emails"), ("shop", "webhooks"), ("bank", "emails")
    assert holds.pauses_of(LOU, places, now) == {places[0]: [made, task], places[1]: [], places[2]: []}
    resumed = holds.resume(ANN, made.pk)
    assert resumed.resumed_by == "ann"
    assert published(store) == pauses.Pauses({}, {"shop.send": 0})
    assert holds.listing(LOU, ended=True) == [made]
    assert acts() == [
        ("pause.create", "sam", "partner down"),
        ("pause.create", "sam", "wrong template"),
        ("pause.resume", "ann", "partner down"),
    ]
    with pytest.raises(Refused, match="already ended"):
        holds.resume(ANN, made.pk)
    holds.pause(SAM, "shop", queue="emails", reason="again")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reason": " "}, "Enter a reason"),
        ({"reason": "x" * 501}, "Enter a reason"),
        ({"queue": ""}, "Give one of queue, task, tenant and dependency"),
        ({"task": "shop.send"}, "Give one of queue, task, tenant and dependency"),
        ({"queue": "q" * 256}, "at most 255"),
        ({"for_s": 0}, "within 30 days"),
        ({"for_s": 31 * 86_400}, "within 30 days"),
    ],
)
def test_an_invalid_pause_is_refused_and_changes_nothing(workers, store, given, message):
    with pytest.raises(Refused, match=message):
        holds.pause(SAM, "shop", **{"queue": "emails", "reason": "x", **given})
    assert not Pause.objects.exists() and store.get(keys.pauses("shop")) is None


def test_a_tenant_and_a_dependency_are_paused_from_page_api_and_command(workers, store, ann, client, call_api):
    able = {"pauses": ["queue", "task", "tenant", "dependency"]}
    paused = {"queues": [], "tasks": [], "tenants": ["acme"], "dependencies": ["partner", "prtner"]}
    create_policy("calls", mode="observe", dependency="partner", source="sh*")
    workers({**able, "paused": paused}, {"pauses": ["queue", "task"], "paused": {"queues": [], "tasks": []}})
    form = {"source": "shop", "tenant": "acme", "reason": "asked us to", "for": ""}
    assert "Paused acme until resumed" in text_of(ann.post(reverse("redrive:pause-save"), form, follow=True))
    body = {"source": "shop", "dependency": "partner", "reason": "maintenance"}
    made = call_api("POST", "pauses", body).json()
    assert (made["tenant"], made["dependency"], made["queue"], made["task"]) == ("", "partner", "", "")
    assert published(store) == pauses.Pauses(tenants={"acme": 0}, dependencies={"partner": 0})
    assert not pauses.parse(store.get(keys.pauses("shop"))).queues  # what an older worker reads of it
    found = holds.reach(SAM, Pause.objects.all())
    assert {(one.obeying, len(one.missing)) for one in found.values()} == {(1, 1)}
    assert "too old" in next(iter(found.values())).missing[0][1]
    text = text_of(ann.get(reverse("redrive:pause-list")))
    assert "tenant of shop" in text and "dependency of shop" in text
    create_policy("hooks", queue="webhooks")  # decides there, and has another breaker
    for queue in ("emails", "webhooks"):
        create_samples(timezone.now() - timedelta(hours=1), 60, queue)
    of_emails = text_of(ann.get(reverse("redrive:queue-detail", args=["shop", "emails"])))
    of_webhooks = text_of(ann.get(reverse("redrive:queue-detail", args=["shop", "webhooks"])))
    assert "Dependency partner is paused by" in of_emails and "Dependency partner" not in of_webhooks
    assert all("Tenant acme is paused by ann" in one and "Resume" in one for one in (of_emails, of_webhooks))
    listed = text_of(ann.get(reverse("redrive:queue-list")))
    assert listed.count("Paused: dependency partner until resumed.") == 1
    assert listed.count("Paused: tenant acme until resumed.") == 1
    everything = "Paused: dependency partner until resumed, tenant acme until resumed. View pauses"
    assert everything in text_of(ann.get(reverse("redrive:overview")))
    text = run("pause", "shop", "--dependency", "prtner", "--reason", "x")
    assert "dependency prtner of shop is paused" in text and "No policy in force has a breaker of this name" in text
    wrong = Pause.objects.get(dependency="prtner")
    assert (holds.reach(SAM, [wrong])[wrong.pk].obeying, len(holds.reach(SAM, [wrong])[wrong.pk].missing)) == (0, 2)
    with pytest.raises(CommandError, match="acme is paused already"):
        run("pause", "shop", "--tenant", "acme", "--reason", "x")
    assert 'redrive_pauses{queue="",source="shop",task="",tenant="acme"} 1.0' in scrape(client).text
    assert run("resume", str(made["id"])).startswith("Resumed: dependency partner of shop.")


def test_a_queue_is_paused_once_also_in_the_database(workers):
    holds.pause(SAM, "shop", queue="emails", reason="x")
    with pytest.raises(Refused, match="emails is paused already"):
        holds.pause(ANN, "shop", queue="emails", reason="y")
    fields = {"source": "shop", "reason": "z", "created_at": timezone.now(), "created_by": "z"}
    for place in ({"queue": "emails"}, {}, {"queue": "a", "task": "b"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Pause.objects.create(**fields, **place)


def test_who_may_not_is_refused_and_that_is_audited(workers):
    made = holds.pause(SAM, "shop", queue="emails", reason="x")
    with pytest.raises(Refused, match="needs the role operator on shop"):
        holds.pause(LOU, "shop", queue="webhooks", reason="x")
    with pytest.raises(Refused, match="needs the role operator on shop"):
        holds.resume(EVE, made.pk)
    with pytest.raises(Refused, match="No such source, or you cannot view it"):
        holds.pause(BEA, "shop", queue="webhooks", reason="x")
    with pytest.raises(NotFound):
        holds.resume(BEA, made.pk)
    refused = AuditEvent.objects.filter(allowed=False).values_list("act", "actor")
    assert sorted(refused) == [("pause.create", "lou"), ("pause.resume", "eve")]
    assert not holds.may_resume(LOU, made) and holds.may_resume(SAM, made)


def test_a_source_without_a_guard_cannot_be_paused(db):
    with pytest.raises(Refused, match="none of its workers has the guard"):
        holds.pause(SAM, "shop", queue="emails", reason="x")
    Source.objects.create(name="node", backend="bullmq")
    Worker.objects.create(source="node", name="w", boot="b", seen_at=timezone.now())
    with pytest.raises(Refused, match="pauses need guarded Celery workers, and node is a source of BullMQ"):
        holds.pause(ANN, "node", queue="emails", reason="x")
    assert not Pause.objects.exists()


def test_a_pause_whose_time_has_come_ends_and_is_audited_once(workers, store):
    now = timezone.now()
    made = holds.pause(SAM, "shop", queue="emails", reason="x", for_s=60, now=now - timedelta(seconds=61))
    assert holds.step(now) and not holds.step(now)
    made.refresh_from_db()
    assert (made.resumed_at, made.resumed_by) == (made.until, "")
    assert published(store) == pauses.Pauses()
    assert [act for act, *_ in acts()] == ["pause.create", "pause.expire"]


def test_a_store_that_lost_the_pauses_has_them_again_after_a_round(workers, store):
    holds.pause(SAM, "shop", queue="emails", reason="x")
    for lost in (None, b"{}", b"\xff"):
        store.delete(keys.pauses("shop")) if lost is None else store.set(keys.pauses("shop"), lost)
        assert holds.step(timezone.now())
        assert published(store) == pauses.Pauses({"emails": 0}, {})
    assert not holds.step(timezone.now())


def test_an_older_desk_ends_no_pause_that_it_does_not_know_and_is_named(workers, store, ann):
    holds.pause(SAM, "shop", tenant="acme", reason="unpaid")
    before, page = published(store), reverse("redrive:pause-list")
    assert "An older desk" not in text_of(ann.get(page))
    older = b'{"queues":{"emails":0},"tasks":{"":0},"v":1}'  # as a desk without pauses of tenants renders it
    merged = pauses.parse(older, before)
    assert merged == pauses.Pauses({"emails": 0}, tenants={"acme": 0})
    assert pauses.parse(b'{"queues":{},"tasks":{},"v":1}', merged) == pauses.Pauses()  # the pause has ended
    store.set(keys.pauses("shop"), older)
    assert "An older desk publishes pauses of shop too." in text_of(ann.get(page))
    assert holds.step(timezone.now()) and published(store) == before
    assert "An older desk publishes pauses of shop too." in text_of(ann.get(page))
    assert 0 < store.ttl(keys.older_desk("shop")) <= 60


def test_pauses_of_a_database_that_is_no_more_end_in_the_workers(workers, store):
    Source.objects.get_or_create(name="shop")
    store.set(keys.pauses("shop"), pauses.Pauses({"emails": 0}, {}).render())
    assert holds.step(timezone.now()) and not holds.step(timezone.now())
    assert published(store) == pauses.Pauses()


def test_one_that_has_ended_by_its_time_is_replaced_while_watch_is_away(workers, store, ann, history):
    now = timezone.now()
    first = holds.pause(SAM, "shop", queue="emails", reason="x", for_s=60, now=now - timedelta(seconds=61))
    page = reverse("redrive:queue-detail", args=["shop", "emails"])
    assert "Pause…" in text_of(ann.get(page))
    second = holds.pause(ANN, "shop", queue="emails", reason="y", now=now)
    first.refresh_from_db()
    assert (first.resumed_at, first.resumed_by) == (first.until, "")
    assert [act for act, *_ in acts()] == ["pause.create", "pause.expire", "pause.create"]
    assert holds.listing(ANN) == [second] and published(store) == pauses.Pauses({"emails": 0}, {})


def test_unguarded_workers_count_and_are_unknown_where_the_broker_does_not_report_them(workers):
    made = holds.pause(SAM, "shop", queue="emails", reason="x")
    sample = build_sample(timezone.now(), workers=3, guarded_workers=1)
    sample.save()
    found = holds.reach(SAM, [made])[made.pk]
    assert (found.sentence, found.unguarded) == ("In force in 0 of 3 workers.", 2)
    DepthSample.objects.update(workers=None)
    found = holds.reach(SAM, [made])[made.pk]
    assert (found.sentence, found.unguarded) == ("In force in 0 of 1 guarded worker; others are unknown.", None)


def test_a_queue_that_no_worker_consumes_and_no_one_has_seen_is_named_as_such(workers, store, ann):
    workers({"pauses": ["queue", "task"]})
    bury(1, queue="seen")
    seen, wrong = (holds.pause(SAM, "shop", queue=name, reason="x") for name in ("seen", "emials"))
    found = holds.reach(SAM, [seen, wrong])
    assert found[seen.pk].sentence == "No live worker consumes it."
    assert found[wrong.pk].is_doubtful and "none was ever seen: check the spelling" in found[wrong.pk].sentence
    holds.resume(SAM, wrong.pk)
    assert "check the spelling" in run("pause", "shop", "--queue", "emials", "--reason", "x")


def test_a_task_that_no_worker_has_is_named_as_such(workers, store, ann):
    digest = "c" * 32  # of this test alone: texts are cached by their digest
    store.set(keys.tasks("shop", digest), json.dumps(["shop.send"]))
    can = {"pauses": ["queue", "task"], "paused": {"queues": [], "tasks": ["shop.sned", "shop.send"]}, "tasks": digest}
    workers(can)
    right, wrong = (holds.pause(SAM, "shop", task=name, reason="x") for name in ("shop.send", "shop.sned"))
    found = holds.reach(SAM, [right, wrong])
    assert found[right.pk].sentence == "In force in 1 of 1 guarded worker; others are unknown."
    assert found[wrong.pk].sentence == "No live worker has a task of this name: check the spelling."
    holds.resume(SAM, wrong.pk)
    assert "check the spelling" in run("pause", "shop", "--task", "shop.sned", "--reason", "x")
    holds.resume(SAM, Pause.objects.latest("pk").pk)
    form = {"source": "shop", "task": "shop.sned", "reason": "x", "for": ""}
    assert "check the spelling" in text_of(ann.post(reverse("redrive:pause-save"), form, follow=True))
    workers(can, {**can, "tasks": ""})  # an older worker, or one with too many
    assert not holds.reach(SAM, [wrong])[wrong.pk].is_unknown_task


def test_a_pause_is_made_while_the_store_is_away_and_published_later(workers, store, monkeypatch):
    with monkeypatch.context() as away:
        away.setattr(config, "store", lambda: (_ for _ in ()).throw(config.BadConfiguration("away")))
        made = holds.pause(SAM, "shop", queue="emails", reason="x")
        assert holds.reach(SAM, [made])[made.pk].sentence.startswith("Unknown")
    assert store.get(keys.pauses("shop")) is None
    holds.step(timezone.now())
    assert published(store) == pauses.Pauses({"emails": 0}, {})


def test_workers_in_which_it_is_not_in_force_are_named_with_the_reason(workers, store):
    paused = {"queues": ["emails"], "tasks": []}
    can = ["queue", "task"]
    workers(
        {"pauses": can, "paused": paused},
        {},
        {"pauses": can, "paused": {"queues": [], "tasks": []}},
        {"pauses": [], "paused": {"queues": [], "tasks": []}},
        {"pauses": can, "paused": {"queues": [], "tasks": []}, "mode": "off"},
        {"pauses": ["queue"], "paused": paused, "mode": "capture"},
        {"pauses": can, "paused": {"queues": [], "tasks": []}, "queues": ["other"]},
        {"pauses": "x", "paused": 7},
        {"pauses": can, "paused": {"queues": [], "tasks": []}, "unpausable": ["emails"]},
    )
    queue = holds.pause(SAM, "shop", queue="emails", reason="x")
    task = holds.pause(SAM, "shop", task="shop.send", reason="x")
    found = holds.reach(SAM, [queue, task])
    assert found[queue.pk].sentence == "In force in 2 of 8 guarded workers; others are unknown."
    why = dict(found[queue.pk].missing)
    assert why["w1"] == why["w7"] == "its guard is a version without pauses"
    assert why["w2"] == "it has not confirmed yet, which takes up to 5 s"
    assert "store user may not read" in why["w3"]
    assert "would delete the queue" in why["w8"]
    assert why["w4"] == "its guard is switched off"
    assert "only be paused where policies may act" in dict(found[task.pk].missing)["w5"]
    assert dict(found[task.pk].missing).keys() == {f"w{n}" for n in range(9)}


def test_the_api_pauses_lists_and_resumes(call_api, workers, store):
    made = call_api(
        "POST", "pauses", {"source": "shop", "queue": "emails", "reason": "x", "for_s": 900}, role="operator"
    )
    assert made.status_code == 201
    one = made.json()
    assert (one["queue"], one["task"], one["may_resume"]) == ("emails", "", True)
    assert one["workers"] == {
        "in_force": 0, "total": 1, "unguarded": None, "missing": [{"worker": "w0", "reason": "it has not confirmed yet, which takes up to 5 s"}],
    }  # fmt: skip
    again = call_api("POST", "pauses", {"source": "shop", "queue": "emails", "reason": "x"}, role="operator")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    assert (
        call_api("POST", "pauses", {"source": "shop", "queue": "emails", "reason": "x"}, role="viewer").status_code
        == 403
    )
    assert (
        call_api(
            "POST", "pauses", {"source": "shop", "queue": "q", "reason": "x", "for_s": True}, role="operator"
        ).status_code
        == 422
    )
    assert [row["id"] for row in call_api("GET", "pauses", role="viewer").json()["items"]] == [one["id"]]
    assert call_api("POST", f"pauses/{one['id']}/resume", {}, role="viewer").status_code == 403
    assert call_api("POST", "pauses/99/resume", {}, role="operator").status_code == 404
    for pace in ({"per_s": 1}, "careful"):  # no breaker could release its jobs
        paced = call_api("POST", f"pauses/{one['id']}/resume", {"pace": pace}, role="operator")
        assert paced.status_code in (409, 422) and Pause.objects.get().resumed_at is None
    ended = call_api("POST", f"pauses/{one['id']}/resume", {}, role="operator")
    assert (ended.status_code, ended.json()["workers"]) == (200, None)
    assert call_api("GET", "pauses").json()["items"] == []
    assert call_api("GET", "pauses", ended="true").json()["count"] == 1


def test_a_careful_resume_opens_the_breaker_of_its_jobs_before_the_pause_ends(workers, store, ann):
    now = timezone.now()
    pause = holds.pause(SAM, "shop", queue="webhooks", reason="partner down")
    create_policy("depot", task="depot.send")
    assert "Resume carefully" not in text_of(ann.get("/pauses/"))
    with CaptureQueriesContext(connection) as of_one:
        ann.get("/pauses/")
    other = holds.pause(SAM, "shop", queue="emails", reason="partner down")
    bury(queue="emails", task="depot.send")
    create_policy("store", queue="we*", task="depot.*")
    with CaptureQueriesContext(connection) as of_two:
        assert text_of(ann.get("/pauses/")).count("Resume carefully") == 1
    assert len(of_two) == len(of_one)  # the tasks of all queues at once
    holds.resume(SAM, other.pk, now=now)
    create_policy(queue="webhooks")
    assert "Resume carefully" in text_of(ann.get("/pauses/"))
    ended = holds.resume(SAM, pause.pk, pace="careful", now=now)
    assert stored(store).state == "open" and stored(store).history[-1]["why"] == "Paused jobs resumed by sam"
    assert published(store).queues == {"webhooks": int(ended.resumed_at.timestamp() * 1000)} and ended.resumed_at > now
    assert AuditEvent.objects.filter(act="pause.resume").latest("pk").after == {"pace": "careful"}
    breaker_history.step(timezone.now())
    assert not Notice.objects.exists() and "is waiting for a first job after a pause" in text_of(ann.get("/breakers/"))
    Pause.objects.update(resumed_at=now)
    holds.step(timezone.now())
    assert published(store).queues == {}


def test_a_careful_resume_that_no_breaker_could_pace_is_refused(workers, store):
    create_policy(task="shop.send", mode="observe")
    pause = holds.pause(SAM, "shop", task="shop.send", reason="partner down")
    with pytest.raises(Refused, match="needs a policy with a breaker"):
        holds.resume(SAM, pause.pk, pace="careful")
    PolicyVersion.objects.all().delete()
    create_policy(task="shop.*")
    forced = opened()
    forced.force("closed", time.time())
    put(store, forced)
    with pytest.raises(Refused, match="partner is forced closed"):
        holds.resume(SAM, pause.pk, pace="careful")
    with pytest.raises(Refused, match="Choose one of"):
        holds.resume(SAM, pause.pk, pace="slowly")
    PolicyVersion.objects.all().delete()
    create_policy("default")
    create_policy("send", task="shop.send", mode="observe")  # decides, and holds nothing
    with pytest.raises(Refused, match="needs a policy with a breaker"):
        holds.resume(SAM, pause.pk, pace="careful")
    pause.refresh_from_db()
    assert pause.resumed_at is None and published(store).tasks


def test_a_careful_resume_of_a_queue_opens_the_breakers_that_decide_about_its_failed_jobs(workers, store):
    pause = holds.pause(SAM, "shop", queue="emails", reason="partner down")
    create_policy("default")
    create_policy("mails", queue="emails", mode="observe")
    with pytest.raises(Refused, match="needs a policy with a breaker"):
        holds.resume(SAM, pause.pk, pace="careful")
    create_policy("partner", task="shop.deliver")
    bury(queue="emails")
    holds.resume(SAM, pause.pk, pace="careful")
    assert stored(store).state == "open" and stored(store, "default").state == "closed"


def test_the_commands_pause_list_and_resume(workers, call_api):
    assert run("pause") == "Nothing is paused.\n"
    made = run("pause", "shop", "--queue", "emails", "--reason", "partner down", "--for", "15m")
    number = Pause.objects.get().pk
    assert made.startswith(f"Pause {number}: queue emails of shop is paused until ")
    assert f"resume {number}" in made
    listed = run("pause")
    assert "queue emails of shop" in listed and "0/1" in listed and "partner down" in listed
    assert json.loads(run("pause", "--json")) == call_api("GET", "pauses").json()
    assert run("resume", str(number)).startswith("Resumed: queue emails of shop.")
    assert json.loads(run("pause", "shop", "--task", "t", "--reason", "x", "--json"))["task"] == "t"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pause", "shop", "--queue", "emails"), "Enter a reason"),
        (("pause", "shop", "--reason", "x"), "Give one of queue, task, tenant and dependency"),
        (("pause", "--queue", "emails"), "Name the source"),
        (("pause", "nowhere", "--queue", "emails", "--reason", "x"), "none of its workers has the guard"),
        (("resume", "99"), "No such pause"),
    ],
)
def test_an_invalid_command_is_refused_with_the_reason(workers, arguments, message):
    with pytest.raises(CommandError, match=message):
        run(*arguments)
    assert not Pause.objects.exists()


def test_django_admin_lists_and_resumes(workers, staff):
    made = holds.pause(SAM, "shop", queue="emails", reason="partner down")
    page = staff("viewer").get("/admin/jobs_admin/pause/")
    assert b"partner down" in page.content and b'value="resume"' not in page.content
    chosen = {"action": "resume", "_selected_action": [made.pk]}
    staff("operator").post("/admin/jobs_admin/pause/", chosen)
    made.refresh_from_db()
    assert made.resumed_by == "staff-operator"


def test_the_metric_names_what_is_paused(workers, client):
    holds.pause(SAM, "shop", queue="emails", reason="x")
    past = timezone.now() - timedelta(seconds=61)
    holds.pause(SAM, "shop", queue="webhooks", reason="x", for_s=60, now=past)
    text = scrape(client).text
    assert 'queue="webhooks",source="shop",task=""' not in text
    assert 'redrive_pauses{queue="emails",source="shop",task=""} 1.0' in text


def test_a_queue_is_paused_and_resumed_on_its_page(workers, ann, history):
    page = reverse("redrive:queue-detail", args=["shop", "emails"])
    assert "Pause…" in text_of(ann.get(page))
    form = {"source": "shop", "queue": "emails", "reason": "partner down", "for": "900", "back": page}
    answer = ann.post(reverse("redrive:pause-save"), form, follow=True)
    text = text_of(answer)
    made = Pause.objects.get()
    assert (made.created_by, made.until - made.created_at) == ("ann", timedelta(minutes=15))
    assert "Paused emails until " in text and "Undo" in text
    assert (
        "Paused by ann" in text
        and "partner down" in text
        and "In force in 0 of 1 guarded worker; others are unknown." in text
    )
    assert "w0 : it has not confirmed yet, which takes up to 5 s" in text and "Pause…" not in text
    assert "emails paused" in text_of(ann.get(reverse("redrive:queue-list")))
    assert "Paused: queue emails until " in text_of(ann.get(reverse("redrive:overview")))
    listed = text_of(ann.get(reverse("redrive:pause-list")))
    assert "queue of shop" in listed and "partner down" in listed
    ann.post(reverse("redrive:pause-resume", args=[made.pk]), {"back": page})
    assert "Paused by ann" not in text_of(ann.get(page))
    page = ann.get(reverse("redrive:pause-list"))
    assert "Nothing is paused." in text_of(page)
    assert re.findall(r"<option>(\w+)</option>", page.content.decode()) == ["shop", "bank"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reason": ""}, "Enter a reason"),
        ({"for": "7"}, "Choose how long"),
        ({"queue": ""}, "Give one of queue, task, tenant and dependency"),
    ],
)
def test_an_invalid_form_is_refused_with_the_reason(workers, ann, changes, message):
    form = {"source": "shop", "queue": "emails", "reason": "x", "for": "", **changes}
    assert message in text_of(ann.post(reverse("redrive:pause-save"), form, follow=True))
    answer = ann.post(reverse("redrive:pause-save"), form | {"back": reverse("redrive:pause-list")})
    page = answer.content.decode().partition("<main")[2]
    assert answer.status_code == 422 and message in page and "data-live" not in page  # a refresh would empty the form
    assert all(f'value="{form[name]}"' in page for name in ("queue", "reason") if form[name])
    assert not Pause.objects.exists()


def test_a_viewer_sees_a_pause_and_no_way_to_change_it(workers, vera, history):
    made = holds.pause(SAM, "shop", queue="emails", reason="partner down")
    page = vera.get(reverse("redrive:queue-detail", args=["shop", "emails"]))
    assert "partner down" in text_of(page) and "Resume" not in text_of(page)
    assert "need the role operator" in text_of(vera.get(reverse("redrive:pause-list")))
    assert vera.post(reverse("redrive:pause-resume", args=[made.pk])).status_code == 403


def test_the_page_of_an_alert_pauses_its_queue(workers, ann):
    alert = episode("emails")
    page = reverse("redrive:alert-detail", args=[alert.pk])
    assert "Pause queue…" in text_of(ann.get(page))
    holds.pause(SAM, "shop", queue="emails", reason="partner down")
    text = text_of(ann.get(page))
    assert "Pause queue…" not in text and "Paused by sam" in text and "Resume" in text


def test_a_replay_to_a_paused_queue_or_of_a_paused_task_warns(workers, ann):
    bury(3, queue="emails", task="shop.send")
    new = reverse("redrive:replay-new")
    holds.pause(SAM, "shop", tenant="acme", reason="x")
    bury(1, queue="", task="")
    assert "wait until the pause ends" not in text_of(ann.get(new, {"q": "state:dead"}))
    holds.pause(SAM, "shop", queue="emails", reason="x")
    holds.pause(SAM, "shop", task="shop.send", reason="x")
    text = text_of(ann.get(new, {"q": "state:dead"}))
    assert "Paused: task shop.send and queue emails. Jobs are sent, but wait until the pause ends." in text
    Pause.objects.all().delete()
    create_policy(mode="observe", dependency="smtp", task="shop.send")
    holds.pause(SAM, "shop", dependency="smtp", reason="x")
    assert "Paused: dependency smtp." in text_of(ann.get(new, {"q": "state:dead"}))
    Failure.objects.update(task="other", tenant="acme")
    holds.pause(SAM, "shop", tenant="acme", reason="x")
    assert "Paused: tenant acme." in text_of(ann.get(new, {"q": "state:dead"}))


def test_the_timeline_of_an_incident_has_the_pause_and_its_end(workers):
    now = timezone.now()
    made = holds.pause(SAM, "shop", queue="emails", reason="partner down", now=now - timedelta(minutes=9))
    holds.resume(ANN, made.pk, now=now - timedelta(minutes=2))
    holds.pause(SAM, "shop", queue="webhooks", reason="another", now=now - timedelta(minutes=5))
    holds.pause(SAM, "shop", task="shop.send", reason="wrong template", now=now - timedelta(minutes=4))
    where = Span("shop", "emails", now - timedelta(minutes=10), now, True, "asked")
    found = [one for one in incident(LOU, where, now).timeline if one.kind == "pause"]
    assert [(one.what, one.words, one.who, one.why) for one in found] == [
        ("paused", "Queue emails paused", "sam", "partner down"),
        ("paused", "Task shop.send paused", "sam", "wrong template"),
        ("resumed", "Queue emails resumed", "ann", ""),
    ]
