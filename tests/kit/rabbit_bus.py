"""Producers and consumers on RabbitMQ, and what people do by its management."""

from __future__ import annotations

import base64
import json
import traceback
import urllib.request
from itertools import count
from urllib.parse import quote

import amqp
import pytest
from kombu import Connection

from jobs_admin.sources import connect
from jobs_admin.sources.amqp import management, wire
from jobs_admin.sources.base import OutgoingMessage, Ref
from jobs_admin.sources.rabbitmq import death as rabbitmq_death
from jobs_admin.sources.rabbitmq import messages as rabbitmq_messages
from jobs_admin.sources.rabbitmq import reading as rabbitmq_reading
from jobs_admin.sources.rabbitmq.death import RawMessage
from tests.kit.waiting import wait_until

_numbers = count(1)


def be_patient(monkeypatch):
    """On a busy disk RabbitMQ answers nothing for seconds; a desk asks again later, a test does not."""
    monkeypatch.setattr(wire, "ANSWER_S", 60.0)
    monkeypatch.setattr(management, "_ANSWER_S", 60.0)
    monkeypatch.setattr(rabbitmq_reading, "_SHORT_S", 1e9)  # no pass is so long that the next one has to wait


class Broker:
    """Acts by RabbitMQ's management, over HTTP."""

    def __init__(self, node):
        self.url = node.management_url
        self.login = "Basic " + base64.b64encode(f"redrive:{node._password}".encode()).decode()

    def request(self, method, path, content=None):
        headers = {"Authorization": self.login, "Content-Type": "application/json"}
        data = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method)) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def queue(self, queue):
        try:
            return self.request("GET", f"/api/queues/%2F/{quote(queue, safe='')}")
        except urllib.error.HTTPError:
            return None


class Bus:
    """An event bus with its own retries, as in
    https://dev.to/wesleyskap/error-state-machinesdesigning-dead-letter-queues-dlq-and-jittered-retries-8im:
    what fails five times goes to the dead-letter queue, with its stack trace in the headers."""

    attempts = 5

    def __init__(self, url):
        self.connection = Connection(url)
        self.channel = self.connection.default_channel

    def declare(self, queue, **arguments):
        self.channel.queue_declare(
            queue,
            durable=True,
            auto_delete=False,
            arguments={f"x-{k.replace('_', '-')}": v for k, v in arguments.items()},
        )

    def publish(self, queue, body, **properties):
        octets = body if isinstance(body, bytes) else json.dumps(body).encode()
        properties = {"content_type": "application/json", "delivery_mode": 2, **properties}
        self.channel.basic_publish(amqp.Message(octets, **properties), exchange="", routing_key=queue)

    def consume(self, queue, dlq, handle):
        """All that waits, each once: runs, or is forwarded to the dead-letter queue."""
        while message := self.channel.basic_get(queue):
            try:
                handle(json.loads(message.body))
            except Exception as error:
                fields = {
                    "x-exception-message": str(error),
                    "x-exception-type": type(error).__name__,
                    "x-exception-stacktrace": traceback.format_exc(),
                    "x-attempts": self.attempts,
                }
                headers = {**message.properties.get("application_headers", {}), **fields}
                properties = {**message.properties, "application_headers": headers}
                self.channel.basic_publish(amqp.Message(message.body, **properties), exchange="", routing_key=dlq)
            self.channel.basic_ack(message.delivery_tag)

    def depth(self, queue):
        return self.channel.queue_declare(queue, passive=True).message_count

    def bodies(self, queue):
        """The messages there, as another consumer sees them and puts them back."""
        with self.connection.clone() as other:
            channel = other.default_channel
            found = []
            while message := channel.basic_get(queue):
                found.append(message)
            channel.close()
        return found

    def close(self):
        self.connection.close()


def broken(message):
    raise ConnectionError(f"partner refused job {message['n']}")


class Queues:
    """Two queues of a test's own: jobs, and their dead letters."""

    mode = "mirror"
    error_headers = ()

    @pytest.fixture(autouse=True)
    def _place(self, rabbit_node, store, monkeypatch):
        be_patient(monkeypatch)
        self.node, self.store = rabbit_node, store
        self.queue = f"emails-{next(_numbers)}"
        self.dlq = f"{self.queue}.dlq"
        self.bus, self.broker = Bus(rabbit_node.url), Broker(rabbit_node)
        self.made, self.buried = [], 0
        self.declare()
        yield
        for one in self.made:
            one.close()
        self.bus.close()

    def declare(self):
        self.bus.declare(self.dlq)
        self.bus.declare(self.queue, dead_letter_exchange="", dead_letter_routing_key=self.dlq)
        wait_until(lambda: self.broker.queue(self.dlq))

    def another(self, **options):
        fields = {
            "dead_letter_queues": [{"name": self.dlq, "of": self.queue}],
            "management_url": self.node.management_url,
            "mode": self.mode,
            **options,
        }
        self.made.append(
            connect("shop", "rabbitmq", fields.pop("url", self.node.url), (), fields, store=lambda: self.store)
        )
        return self.made[-1]

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def bury(self, count):
        """`n` jobs die five times and are forwarded."""
        known = {message.message_id for message in self.bus.bodies(self.dlq)} if self.mode == "mirror" else set()
        for n in range(self.buried, self.buried + count):
            self.bus.publish(self.queue, {"n": n}, message_id=f"m-{n}")
        self.buried += count
        self.bus.consume(self.queue, self.dlq, broken)
        found = self.bus.bodies(self.dlq) if self.mode == "mirror" else []
        return [self.ref_of(message) for message in found if message.message_id not in known]

    def ref_of(self, message):
        lineage = None
        from_queue = rabbitmq_death.Death(self.queue, "", 1, None, "", 0)
        parts = {"message_id": rabbitmq_messages.amqp_fields.short(message.message_id)}
        return Ref(
            self.queue,
            rabbitmq_death._base(
                RawMessage(b"", message.body.encode() if isinstance(message.body, str) else message.body, "", ""),
                parts,
                from_queue,
                lineage,
            ),
        )

    def list_sent(self, queue):
        return [message.headers["redrive"]["sent_as"] for message in self.bus.bodies(queue)]


def build_message(report, token=1, **changes):
    home = report.lineage
    lineage = {
        "queue": home.queue if home else report.queue,
        "job_id": home.job_id if home else report.job_id,
        "run": (home.run if home else 1) + 1,
        "item": token,
        "replay": "r",
        "sent_as": f"new-{token}",
    }
    values = {"token": token, "raw": report.raw, "queue": report.queue, "job_id": f"new-{token}", "lineage": lineage}
    return OutgoingMessage(**values | changes)
