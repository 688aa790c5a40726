"""A desk whose jobs run on RabbitMQ: what is sent is confirmed; what is in doubt is uncertain, and goes never again."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from django.utils import timezone
from kombu import Connection

from dashboard.setup import checkup
from jobs_admin import config, ingest, replays
from jobs_admin.core import keys
from jobs_admin.failures import triage
from jobs_admin.models import DepthSample, Failure, Replay
from jobs_admin.queues import sampling
from tests.kit.celery import RealWorker
from tests.kit.network import Road
from tests.kit.people import ANN
from tests.kit.sources import forget_configuration
from tests.rigs.replay_kills import Havoc

pytestmark = [pytest.mark.server, pytest.mark.django_db]


@pytest.fixture(scope="module", autouse=True)
def node(rabbit_host):
    return rabbit_host


@pytest.fixture
def road(node):
    made = Road(node.url)
    yield made
    made.close()


@pytest.fixture
def worker(node, road, store, engine, settings, tmp_path):
    """A guarded worker of the source `shop`, which the desk reaches over a network that can be cut. Not started."""
    file = tmp_path / "sources.toml"
    file.write_text(
        f'[sources.shop]\nbackend = "celery"\nurl = "{road.url}"\nqueues = ["emails"]\nconfirm_within_s = 60\n'
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    with Connection(node.url) as connection:
        connection.default_channel.queue_declare(
            "emails", durable=True, auto_delete=False, arguments={"x-max-priority": 10}
        )
        connection.default_channel.queue_purge("emails")
    running = RealWorker(node.url, engine.url, pool="solo", concurrency=1, queues="emails")
    yield running
    running.stop()
    config.adapter("shop").close()
    forget_configuration(config)


LAST = 1_000  # the number of a job that no replay sends


def message(n):
    return {
        "body": json.dumps([[n], {}, {}]), "content-type": "application/json", "content-encoding": "utf-8",
        "headers": {"task": "noted", "id": f"j{n}", "lang": "py"}, "properties": {"delivery_mode": 2},
    }  # fmt: skip


def start_replay(bury, count, **more):
    ids = [bury(raw=json.dumps(message(n)).encode(), task="noted")[0] for n in range(count)]
    pace = {"style": "at_once"}
    return replays.start(ANN, replays.draft(ANN, selection=ids, pace=pace, reason="mended", **more))


def desk_until(worker, reached, what):
    def stepped():
        ingest.step("test"), replays.create_items(), replays.send("test"), replays.settle()
        return reached()

    # On a busy disk RabbitMQ hands out nothing for a second or two, again and again.
    return worker.wait(stepped, 90, what)


def counts(replay):
    replay.refresh_from_db()
    return Counter({name: getattr(replay, name) for name in ("planned", "sent", "succeeded", "uncertain", "cancelled")})


def ran(worker):
    return Counter(int(line.split()[2]) for line in worker.marks("noted") if line.startswith("start"))


def test_every_job_runs_once_and_recovers(worker, bury):
    worker.start()
    replay = start_replay(bury, 120)
    desk_until(worker, lambda: Replay.objects.filter(state="done"), "the replay to end")
    assert counts(replay)["succeeded"] == 120 and ran(worker) == Counter(dict.fromkeys(range(120), 1))
    assert set(Failure.objects.values_list("state", flat=True)) == {"recovered"}


def test_discarded_jobs_that_are_restored_are_replayed(worker, bury):
    worker.start()
    ids = [bury(raw=json.dumps(message(n)).encode(), task="noted")[0] for n in range(5)]
    discarded = triage.discard(ANN, selection=ids, reason="a test")
    assert triage.undo(ANN, discarded.key).count == 5
    replays.start(ANN, replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="mended"))
    desk_until(worker, lambda: Replay.objects.filter(state="done"), "the replay to end")
    assert ran(worker) == Counter(dict.fromkeys(range(5), 1))
    assert set(Failure.objects.values_list("state", flat=True)) == {"recovered"}


@pytest.mark.long("Runs workers on RabbitMQ and senders, and breaks connections or kills them.")
def test_what_arrived_unconfirmed_is_uncertain_until_it_reports_how_it_ended(worker, road, bury):
    replay = start_replay(bury, 120)
    config.adapter("shop")._sender._confirm_within_s = 5  # or a minute would pass until the sixtieth is in doubt
    road.sees = lambda passing: setattr(road, "hears_nothing", road.hears_nothing or id_of(60) in passing)
    desk_until(worker, lambda: road.hears_nothing, "the sixtieth")
    road.sees = lambda _: None
    desk_until(worker, lambda: "did not answer" in why(replay), "a word about it")
    road.hears_nothing = False
    desk_until(worker, lambda: not counts(replay)["planned"], "the others")
    totals = counts(replay)
    assert 1 <= totals["uncertain"] <= 50 and totals["uncertain"] + totals["sent"] == 120
    assert "whether it was sent is unknown" in replay.items.filter(state="uncertain").first().outcome
    worker.start()
    desk_until(worker, lambda: counts(replay)["succeeded"] == 120, "all, also those in doubt")
    assert ran(worker) == Counter(dict.fromkeys(range(120), 1))


def id_of(n):
    """The end of the id under which the job in this place is sent."""
    return b"-%012x" % n


def why(replay):
    replay.refresh_from_db()
    return replay.held_because


def test_what_never_arrived_stays_uncertain_and_goes_never_again(worker, road, bury):
    worker.start()
    replay = start_replay(bury, 30)
    road.sees = lambda passing: road.cut() if id_of(10) in passing else None
    desk_until(worker, lambda: counts(replay)["uncertain"], "some that are uncertain")
    road.sees = lambda _: None
    # Behind what arrived, which has begun when this has; and what has begun must have been heard of.
    worker.send("noted", LAST, queue="emails")
    worker.wait(lambda: LAST in ran(worker), 90, "what was sent last")

    def is_over():
        totals = counts(replay)
        return not totals["planned"] and not totals["sent"] and totals["succeeded"] == len(ran(worker)) - 1

    desk_until(worker, is_over, "the others")
    counted = counts(replay)
    assert counted["uncertain"] + counted["succeeded"] == 30
    # Perhaps none arrived: the network may have made one piece of all thirty.
    assert counted["uncertain"] and set(ran(worker).values()) <= {1} and len(ran(worker)) - 1 == counted["succeeded"]
    item = replay.items.filter(state="uncertain").first()
    replays.resolve_item(ANN, replay, item.n, "lost")
    item.refresh_from_db()
    assert item.state != "uncertain" and Failure.objects.get(pk=item.failure_id).state == "dead"


def test_the_desk_sees_the_queue_its_workers_and_what_they_report(worker, bury, store, client, django_user_model):
    worker.start()
    worker.wait(lambda: config.adapter("shop").workers(), what="a worker that answers")
    replay = start_replay(bury, 3)
    desk_until(worker, lambda: counts(replay)["succeeded"] == 3, "the replay")
    # A busy worker answers late, and then it is none of those who answered.
    depths, workers = config.adapter("shop").depths(), worker.wait(config.adapter("shop").workers, what="an answer")
    assert [(one.queue, one.waiting, one.active) for one in depths] == [("emails", 0, None)]
    assert list(workers) == ["emails"] and len(workers["emails"]) == 1

    def sampled():
        sampling.sample(timezone.now())
        return DepthSample.objects.filter(queue="emails", workers=1, guarded_workers=1, is_reachable=True).first()

    sample = worker.wait(sampled, 90, "a sample with its worker")
    assert (sample.waiting, sample.active, sample.delayed) == (0, None, None)
    (part,) = [one for one in checkup.check_sources(timezone.now()) if one.part == "source shop"]
    assert part.text == "Celery, 1 queue, 1 guarded worker" and {one.id for one in part.findings} <= {"store-user"}
    (name,) = store.hkeys(keys.workers("shop"))
    heartbeat = json.loads(store.hget(keys.workers("shop"), name))
    worker.stop()
    store.hset(keys.workers("shop"), name, json.dumps(heartbeat | {"repeated": 2, "unasked": 1}))
    found = {one.id: one.text for one in next(checkup.check_sources(timezone.now())).findings}
    assert "(2)" in found["copies-dropped"] and "(1)" in found["copies-unasked"]
    client.force_login(django_user_model.objects.create_superuser("root", "r@example.org", "x"))
    page = client.get("/queues/").content.decode()
    assert "emails" in page and "cannot be reached" not in page


def test_jobs_for_a_queue_that_is_gone_stay_dead_and_the_reason_is_reported(node, worker, bury):
    ids = bury(3, raw=json.dumps(message(1)).encode(), queue="nowhere")
    replay = replays.start(ANN, replays.draft(ANN, selection=ids, pace={"style": "at_once"}, reason="mended"))
    desk_until(worker, lambda: counts(replay)["cancelled"] == 3, "their end")
    assert "RabbitMQ has no queue 'nowhere'" in replay.items.first().outcome
    assert set(Failure.objects.filter(pk__in=ids).values_list("state", flat=True)) == {"dead"}


@pytest.mark.long("Runs workers on RabbitMQ and senders, and breaks connections or kills them.")
@pytest.mark.sqlite
def test_sender_store_and_web_are_killed_and_each_job_runs_once_or_is_uncertain(tmp_path, node):
    with Connection(node.url) as connection:
        connection.default_channel.queue_delete("emails")
    with Havoc(tmp_path, jobs=300, rate=100, outcome_within_s=15, seed=5, on_rabbitmq=node.url) as havoc:
        found = havoc.run(kills=5)
    assert sum(found["kills"].values()) == 5
    assert (found["never_ran_and_not_uncertain"], found["ran_twice"]) == (0, 0), found
    assert found["left_in_the_queue"] == found["replay"]["planned"] == 0, found
