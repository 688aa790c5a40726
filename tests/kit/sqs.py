"""SQS's protocol on a real port (moto's server), and what producers, consumers and people do there."""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.base import Ref

REGION, ACCOUNT = "eu-west-1", "123456789012"
HOW_TO_GET_IT = "no boto3 or moto (pip install --require-hashes -r requirements-strict.txt)"
_numbers = count(1)


@pytest.fixture(scope="session")
def sqs_server():
    """The URL of a server that speaks SQS's protocol; one a test process."""
    need_server()
    running, url = start_server()
    yield url
    running.stop()


def need_server():
    if not all(importlib.util.find_spec(name) for name in ("boto3", "moto", "flask_cors")):
        pytest.skip(HOW_TO_GET_IT)


def start_server():
    """Return a server that speaks SQS's protocol, in threads of this process, and its URL."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    return running, "http://{}:{}".format(*running.get_host_and_port())


class Gate:
    """A proxy before the server. `faults`: call -> what becomes of it: an error's status and code, "lost" (the server does
    it, and its answer never arrives), "hang" or an answer; None: nothing. A list: of one call after the other, the last of
    all others. `login`: of the last call."""

    def __init__(self, server):
        self.faults, self.calls, self.login = {}, [], ""
        self._over = threading.Event()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                call = self.headers["X-Amz-Target"].rpartition(".")[2]
                gate.calls.append(call)
                gate.login = self.headers["Authorization"]
                fault = gate.faults.get(call)
                if isinstance(fault, list):
                    fault = fault.pop(0) if len(fault) > 1 else fault[0]
                self.answer(server, content, fault)

            def answer(self, server, content, fault):
                if isinstance(fault, tuple):
                    status, code = fault
                    return self.reply(
                        status, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": ""}).encode()
                    )
                if isinstance(fault, dict):
                    return self.reply(200, json.dumps(fault).encode())
                if fault == "hang":
                    gate._over.wait(60)
                    return None
                request = urllib.request.Request(server + self.path, content, dict(self.headers), method="POST")
                try:
                    with urllib.request.urlopen(request) as answer:
                        status, body = answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    status, body = error.code, error.read()
                return None if fault == "lost" else self.reply(status, body)

            def reply(self, status, body):
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *values):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


class Shop:
    """Two queues of a test's own: jobs, and their dead letters; and other queues where they are needed."""

    max_receives = 1
    suffix = ""

    @pytest.fixture(autouse=True)
    def _place(self, sqs_server, store, monkeypatch):
        import boto3

        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        self.url, self.store = sqs_server, store
        self.client = boto3.session.Session().client("sqs", region_name=REGION, endpoint_url=sqs_server)
        self.queue = f"emails-{next(_numbers)}{self.suffix}"
        self.dlq = self.queue.removesuffix(".fifo") + "-dlq" + self.suffix
        self.made, self.ended = [], []
        self.declare()
        yield
        for one in (*self.made, self.client):
            one.close()

    @pytest.fixture
    def source(self, _place):
        return self.another()

    def another(self, queues=None, **options):
        """One more adapter, as another process has it. Meanwhile what a dead one had received is visible again."""
        for one in self.made:
            self.become_visible(one)
        options = {"endpoint_url": self.url, **options}
        names = (self.queue,) if queues is None else queues
        self.made.append(connect("shop", "sqs", f"sqs://{REGION}", names, options, store=lambda: self.store))
        return self.made[-1]

    def become_visible(self, source):
        """Make visible again, once, the messages that an adapter received and did not delete."""
        receipt = source._out.receipt if source._out else None
        if receipt is None or receipt in self.ended:
            return
        self.ended.append(receipt)
        for start in range(0, len(receipt.handles), 10):
            handles = enumerate(receipt.handles[start : start + 10])
            entries = [{"Id": f"{n}", "ReceiptHandle": handle, "VisibilityTimeout": 0} for n, handle in handles]
            self.client.change_message_visibility_batch(QueueUrl=self.url_of(receipt.queue), Entries=entries)

    def declare(self, queue=None, dlq=None):
        queue, dlq = queue or self.queue, dlq or self.dlq
        fifo = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        self.client.create_queue(QueueName=dlq, Attributes=fifo)
        self.client.create_queue(QueueName=queue, Attributes={"RedrivePolicy": self.policy(dlq), **fifo})

    def policy(self, dlq):
        target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{dlq}"
        return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": self.max_receives})

    def point(self, queue, dlq):
        """Another dead-letter queue for a queue that exists."""
        attributes = {"RedrivePolicy": self.policy(dlq)}
        self.client.set_queue_attributes(QueueUrl=self.url_of(queue), Attributes=attributes)

    def url_of(self, queue):
        return self.client.get_queue_url(QueueName=queue)["QueueUrl"]

    def send(self, queue, body, **more):
        text = body if isinstance(body, str) else json.dumps(body)
        return self.client.send_message(QueueUrl=self.url_of(queue), MessageBody=text, **more)["MessageId"]

    def send_all(self, queue, bodies, **more):
        """Return the ids. `more`: of each message."""
        url, ids = self.url_of(queue), []
        for start in range(0, len(bodies), 10):
            part = [(f"{n}", json.dumps(body)) for n, body in enumerate(bodies[start : start + 10])]
            entries = [{"Id": n, "MessageBody": text, **more} for n, text in part]
            answer = self.client.send_message_batch(QueueUrl=url, Entries=entries)
            ids += [one["MessageId"] for one in answer["Successful"]]
        return ids

    def bury(self, count, queue=None):
        ids = self.send_all(queue or self.queue, [{"n": n} for n in range(count)])
        self.fail_again(queue or self.queue)
        return [Ref(queue or self.queue, message_id) for message_id in ids]

    def fail_again(self, queue):
        """A consumer receives all that waits, and deletes nothing."""
        url = self.url_of(queue)
        # The visibility timeout is over at once; SQS moves a message when it would have to hand it out once too often.
        at_once = 1 if queue.endswith(".fifo") else 10  # moto mixes up a group of which several are in flight
        while self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=at_once, VisibilityTimeout=0).get(
            "Messages"
        ):
            pass

    def work(self, queue, succeeds=None):
        """A consumer receives all that waits, in order, and deletes what `succeeds` with its data (None: all). The messages."""
        url, found = self.url_of(queue), []
        hidden = {} if succeeds is None else {"VisibilityTimeout": 0}
        names = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        while messages := self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **names, **hidden).get(
            "Messages"
        ):
            found += messages
            for one in messages:
                if succeeds is None or succeeds(json.loads(one["Body"])):
                    self.client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return found

    def count_in(self, queue):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = self.client.get_queue_attributes(QueueUrl=self.url_of(queue), AttributeNames=names)["Attributes"]
        return sum(map(int, counts.values()))

    def in_memory(self, queue):
        """The queue in the server's own memory: its messages are seen without being received."""
        from moto.sqs.models import sqs_backends

        return sqs_backends[ACCOUNT][REGION].queues[queue]

    def waiting(self, queue):
        return [
            json.loads(one.message_attributes["redrive"]["StringValue"])["sent_as"]
            for one in self.in_memory(queue).messages
        ]

    def waiting_data(self, queue):
        return [json.loads(one.body) for one in self.in_memory(queue).messages]

    def unplug(self, source):
        source.close()
        source._wire._endpoint_url = "http://127.0.0.1:1"
