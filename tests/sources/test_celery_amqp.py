"""Celery on a real RabbitMQ: depths, confirmed sends, and what is in doubt when a connection or a queue is lost."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest
import redis
from kombu import Connection

from jobs_admin.sources import connect
from jobs_admin.sources.amqp.management import Management
from jobs_admin.sources.base import SourceRefused, SourceUnreachable
from jobs_admin.worker.report import raw_message
from tests.kit import rabbitmq
from tests.kit.celery import make_app
from tests.kit.network import Road
from tests.kit.rabbit_bus import be_patient
from tests.kit.waiting import wait_until
from tests.sources.contract import SourceContract

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def node(rabbit_host):
    return rabbit_host


@pytest.fixture
def channel(node, monkeypatch):
    """Two empty queues."""
    be_patient(monkeypatch)
    with Connection(node.url) as connection:
        found = connection.default_channel
        for queue in ("emails", "webhooks"):
            found.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-max-priority": 10})
            found.queue_purge(queue)
        yield found


@pytest.fixture
def store(engine):
    client = redis.Redis.from_url(engine.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def source(node, store, channel):
    found = connect("shop", "celery", node.url, queues=["emails", "webhooks"], store=lambda: store)
    yield found
    found.close()


def fetched(channel, queue="emails"):
    """The next message, taken from its queue; None where none waits."""
    return channel.basic_get(queue, no_ack=True)


def captured(node, channel, *args, **options) -> bytes:
    """A message as the guard captures it."""
    app = make_app(node.url)
    try:
        app.send_task("shop.send", args, {"to": "ann"}, queue="emails", **options)
        wait_until(lambda: depth(channel))
        return raw_message(channel.Message(fetched(channel), channel=channel))
    finally:
        app.close()


class TestCeleryOnRabbitMQ(SourceContract):
    @pytest.fixture(autouse=True)
    def set_up_broker(self, node, channel, store):
        self.url, self.store = node.url, store
        self.raw = captured(node, channel, 1)

    def waiting(self, queue):
        with Connection(self.url) as connection:  # whose end puts back what it looked at
            channel = connection.default_channel
            found = []
            while message := channel.basic_get(queue):
                found.append(message.headers["id"])
            channel.close()
        return found

    def lose_everything(self):
        self.store.flushall()

    def unplug(self, source):
        source.close()
        source._sender.url = "amqp://redrive:pass-word@127.0.0.1:1//"


class MessagesOfATest(SourceContract):
    """Outgoing messages made of the message that a test gives; no test of `SourceContract` runs on them."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


@pytest.fixture
def message(node, channel):
    return MessagesOfATest(captured(node, channel, 1)).outgoing_message


@pytest.fixture
def road(node):
    made = Road(node.url)
    yield made
    made.close()


@pytest.fixture
def far(road, store, channel):
    """The source, over a network that can be cut."""
    found = connect("shop", "celery", road.url, ["emails"], {"confirm_within_s": 60}, store=lambda: store)
    yield found
    found.close()


def depth(channel, queue="emails"):
    return channel.queue_declare(queue, passive=True).message_count


def test_what_the_broker_did_not_confirm_is_in_doubt_and_goes_never_again(far, road, message, channel):
    far.send("r", [message(n) for n in range(1, 6)])
    road.sees = lambda sent: setattr(road, "hears_nothing", road.hears_nothing or b"new-6" in sent)
    far._sender._confirm_within_s = 1  # of these nobody hears anything, however long it takes
    with pytest.raises(SourceUnreachable) as raised:
        far.send("r", [message(n) for n in range(1, 11)])
    assert "127.0.0.1" in str(raised.value) and "redrive:" not in str(raised.value)
    wait_until(lambda: depth(channel) == 10)
    road.sees, road.hears_nothing = lambda _: None, False
    far._sender._confirm_within_s = 60
    assert far.was_sent("r", list(range(1, 12))) == {1, 2, 3, 4, 5}
    assert far.in_doubt("r", list(range(1, 12))) == {6, 7, 8, 9, 10}
    with pytest.raises(SourceUnreachable, match="begun by another sender"):
        far.send("r", [message(n) for n in range(1, 12)])
    assert depth(channel) == 11 and far.was_sent("r", [6, 11]) == {11}


def test_where_a_batch_broke_off_each_message_went_or_is_in_doubt_or_may_go_again(far, road, message, channel):
    road.sees = lambda sent: road.cut() if b"new-40" in sent else None
    body = ["x" * 20_000]  # so that not all of them fit into what the network holds
    messages = [message(n, args=body) for n in range(1, 151)]
    with pytest.raises(SourceUnreachable):
        far.send("r", messages)
    road.sees = lambda _: None
    every = list(range(1, 151))
    went, in_doubt = far.was_sent("r", every), far.in_doubt("r", every)
    assert not went & in_doubt and 40 in in_doubt and len(in_doubt) <= 50 and not in_doubt & set(range(51, 151))
    rest = [one for one in messages if one.token not in went | in_doubt]
    assert set(far.send("r", rest).values()) == {"sent"}
    arrived = ids(channel)
    assert len(arrived) == len(set(arrived)) and {f"new-{n}" for n in set(every) - in_doubt} <= set(arrived)


def ids(channel, queue="emails"):
    found = []
    while message := fetched(channel, queue):
        found.append(message.headers["id"])
    return found


def test_a_connection_that_broke_while_it_was_idle_leaves_nothing_in_doubt(far, road, message, channel):
    far.send("r", [message(1)])
    road.cut()
    assert far.send("r", [message(2)]) == {2: "sent"}
    assert depth(channel) == 2 and far.in_doubt("r", [1, 2]) == set()


def test_what_was_confirmed_while_the_store_was_away_is_known_when_it_is_back(road, message, channel, store):
    clients = [store]
    source = connect("shop", "celery", road.url, store=lambda: clients[-1])
    road.sees = lambda sent: clients.append(redis.Redis("127.0.0.1", 1)) if b"new-1" in sent else None
    with pytest.raises(SourceUnreachable, match="store"):
        source.send("r", [message(1)])
    clients.append(store)
    assert source.was_sent("r", [1]) == {1} and source.in_doubt("r", [1]) == set()
    source.close()


def test_messages_for_a_queue_that_is_gone_are_refused_by_name_and_the_others_go(source, message, channel):
    with pytest.raises(SourceRefused, match="no queue 'nowhere'") as refused:
        source.send("r", [message(1), message(2, queue="nowhere"), message(3, queue="nowhere")])
    assert refused.value.tokens == {2, 3}
    assert source.send("r", [message(1), message(4)]) == {1: "already", 4: "sent"} and depth(channel) == 2
    assert source.was_sent("r", [1, 2, 3]) == {1} and source.in_doubt("r", [1, 2, 3]) == set()


def test_messages_that_the_broker_gives_back_were_not_sent(far, road, message, channel):
    """The queue goes between the look at it and the message."""
    channel.queue_declare("going", durable=True, auto_delete=False)
    road.sees = lambda sent: channel.queue_delete("going") if b"redrive.nowhere" in sent else None
    with pytest.raises(SourceRefused, match="no queue 'going'") as refused:
        far.send("r", [message(1), message(2, queue="going"), message(3)])
    assert refused.value.tokens == {2} and depth(channel) == 2
    assert far.was_sent("r", [1, 2, 3]) == {1, 3} and far.in_doubt("r", [1, 2, 3]) == set()
    assert far.send("r", [message(1), message(3)]) == {1: "already", 3: "already"}


def test_a_full_queue_takes_no_more_and_what_it_turned_away_goes_later(node, store, message, channel):
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, auto_delete=False, arguments=full)
    source = connect("shop", "celery", node.url, queues=["full"], store=lambda: store)
    with pytest.raises(SourceUnreachable, match="takes no more jobs into full"):
        source.send("r", [message(n, queue="full") for n in range(1, 5)])
    went = source.was_sent("r", [1, 2, 3, 4])
    assert len(went) == 2 and source.in_doubt("r", [1, 2, 3, 4]) == set()
    channel.queue_purge("full")
    rest = [message(n, queue="full") for n in {1, 2, 3, 4} - went]
    assert set(source.send("r", rest).values()) == {"sent"} and depth(channel, "full") == 2
    channel.queue_delete("full")
    source.close()


def test_two_senders_of_one_token_send_it_once(node, store, message, channel):
    sources = [connect("shop", "celery", node.url, store=lambda: store) for _ in range(4)]

    def send(source):
        with contextlib.suppress(SourceUnreachable):  # it was begun by another one
            source.send("r", [message(n) for n in range(1, 101)])

    threads = [threading.Thread(target=send, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert depth(channel) == 100 == len(sources[0].was_sent("r", list(range(1, 101))))
    for source in sources:
        source.close()


def test_a_check_of_a_missing_queue_disturbs_no_other(source, message):
    source.send("r", [message(1)])
    names = ["nowhere", "emails", "", "x" * 300, "\ud800", "webhooks"]
    assert source.waiting(names) == dict.fromkeys(names, 0) | {"emails": 1}


def test_what_is_not_reported_is_not_zero(source, message):
    source.send("r", [message(1)])
    found = next(one for one in source.depths() if one.queue == "emails")
    assert (found.waiting, found.active, found.delayed, found.source_dead) == (1, None, None, None)


def test_a_configured_queue_that_is_not_there_is_a_finding(node, store, channel):
    source = connect("shop", "celery", node.url, queues=["emails", "gone"], store=lambda: store)
    assert [one.queue for one in source.depths()] == ["emails", "gone"]
    (found,) = source.findings()
    assert (found.id, found.severity) == ("queue-missing", "warning") and "gone" in found.text
    source.close()


def test_a_server_that_hangs_is_given_up_in_time_and_named_without_its_password():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        source = connect("shop", "celery", f"amqp://ann:pass-word@127.0.0.1:{port}//", queues=["emails"])
        begun = time.monotonic()
        with pytest.raises(
            SourceUnreachable, match=f"RabbitMQ at 127.0.0.1:{port} did not answer within 4 s"
        ) as raised:
            source.depths()
        assert time.monotonic() - begun < 30 and "pass-word" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [(("redrive:", "other:"), "refused the login"), (("//", "/nowhere"), "no such virtual host")],
)
def test_why_the_broker_does_not_let_us_in_is_reported(rabbit_node, change, message):
    head, _, tail = rabbit_node.url.rpartition("//")
    url = f"{head}/nowhere" if change[0] == "//" else f"{head.replace(*change)}//{tail}"
    with pytest.raises(SourceUnreachable, match=message) as raised:
        connect("shop", "celery", url, queues=["emails"]).depths()
    assert rabbit_node.url.partition("redrive:")[2].partition("@")[0] not in str(raised.value)


def test_a_message_too_wide_for_a_frame_is_refused_and_the_connection_lives(source, message, channel):
    wide = json.loads(message(1).raw)
    wide["headers"]["note"] = "x" * 130_000
    with pytest.raises(SourceRefused, match="more than RabbitMQ takes") as refused:
        source.send("r", [message(1), message(2, raw=json.dumps(wide).encode())])
    assert refused.value.tokens == {2} and source.send("r", [message(1)]) == {1: "sent"}


def test_without_a_store_nothing_is_sent(node, message, channel):
    with pytest.raises(SourceRefused, match="no store"):
        connect("shop", "celery", node.url).send("r", [message(1)])
    assert depth(channel) == 0


@pytest.fixture
def managed(node, store, channel):
    """The source with the management plugin, and no one who consumes: makes one for each URL of that."""
    made = []

    def make(url=node.management_url, queues=()):
        made.append(connect("shop", "celery", node.url, queues, {"management_url": url}, store=lambda: store))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_management_reports_which_queues_there_are_and_what_workers_hold(managed, message, channel, node):
    source = managed()
    source.send("r", [message(1), message(2), message(3)])
    with Connection(node.url) as connection:
        fetched = connection.default_channel.basic_get("emails")
        assert fetched is not None
        wanted = {"emails": (2, 1), "webhooks": (0, 0)}
        wait_until(lambda: {one.queue: (one.waiting, one.active) for one in source.depths()} == wanted)


def test_queues_beyond_the_first_page_of_the_management_are_found(managed, node, channel):
    with Connection(node.url) as connection:
        for number in range(505):
            connection.default_channel.queue_declare(f"a{number:03}", exclusive=True)
        source = managed()
        wait_until(lambda: "webhooks" in {one.queue for one in source.depths()})


def test_settings_that_lose_jobs_are_findings(managed, channel):
    channel.queue_declare("short", durable=True, auto_delete=False, arguments={"x-max-length": 5})
    channel.queue_declare("hasty", durable=True, auto_delete=False, arguments={"x-message-ttl": 60_000})
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    channel.queue_declare("strict", durable=True, auto_delete=False, arguments=arguments)
    limited = {"x-queue-type": "quorum", "x-delivery-limit": 3}
    channel.queue_declare("limited", durable=True, auto_delete=False, arguments=limited)
    source = managed()
    wait_until(lambda: len(source.depths()) == 6)
    assert [(one.id, one.severity) for one in source.findings()] == [
        ("drops-late", "warning"),
        ("delivery-limit", "info"),
        ("drops-oldest", "high"),
    ]
    for queue in ("short", "hasty", "strict", "limited"):
        channel.queue_delete(queue)


def test_a_management_that_does_not_answer_costs_what_only_it_reports(managed, message, node):
    source = managed("http://ann:pass-word@127.0.0.1:1", ["emails"])
    source.send("r", [message(1)])
    (found,) = source.depths()
    assert (found.waiting, found.active) == (1, None)
    (finding,) = source.findings()
    assert (finding.id, finding.severity) == ("management", "warning")
    assert "127.0.0.1:1 cannot be reached" in finding.text and "pass-word" not in finding.text
    wrong = managed(node.management_url.replace("http://", "http://redrive:wrong@"), ["emails"])
    assert "refused the login" in wrong.findings()[0].text


@pytest.mark.parametrize("url", ["ftp://a", "127.0.0.1:15672", "http://", "http://ann:pass/word@127.0.0.1:1"])
def test_a_management_url_that_cannot_be_used_is_refused_with_a_sentence(url):
    with pytest.raises(SourceRefused, match="management_url cannot be used") as refused:
        connect("shop", "celery", "amqp://ann:hidden@127.0.0.1//", options={"management_url": url})
    assert "hidden" not in str(refused.value) and "pass/word" not in str(refused.value)


def test_an_answer_that_is_none_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            near, _ = server.accept()
            near.recv(10_000)
            near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[[[[[[[[[")
            near.close()

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with pytest.raises(SourceUnreachable, match="cannot be read"):
            Management(f"http://127.0.0.1:{port}", "u", "p", "/").queues()


@pytest.mark.long("Starts a RabbitMQ of its own, with too little memory.")
def test_a_broker_whose_memory_has_run_out_is_noticed_before_anything_is_begun(tmp_path, message, store):
    full = rabbitmq.Node(tmp_path / "full", settings="vm_memory_high_watermark.absolute = 1MB\n").start()
    source = connect("shop", "celery", full.url, queues=["emails"], store=lambda: store)
    try:
        with Connection(full.url) as connection:
            connection.default_channel.queue_declare("emails", durable=True, auto_delete=False)
        for act in (source.findings, lambda: source.epoch("r"), lambda: source.send("r", [message(1)])):
            with pytest.raises(SourceUnreachable, match="takes no messages now"):
                act()
        assert source.in_doubt("r", [1]) == source.was_sent("r", [1]) == set()
        assert source.waiting(["emails"]) == {"emails": 0}  # it can be looked at all the same
    finally:
        source.close()
        full.stop()
