"""A producer and worker of Dramatiq, run by an interpreter that has Dramatiq: acts as in `foreign_shop.py`."""

from __future__ import annotations

import json
import sys
import time
import traceback

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.encoder import JSONEncoder, PickleEncoder
from dramatiq.middleware import CurrentMessage
from foreign_shop import PlannedShop, run_acts, take_end

WITHOUT_ERRORS = {"max_retries": 0}
ONCE_MORE = {"max_retries": 1, "min_backoff": 1, "max_backoff": 1}  # Dramatiq stores the error of the first attempt


class PartnerDown(Exception):
    pass


STORE = """if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) end"""


class StoreLastError(dramatiq.Middleware):  # as docs/sources/dramatiq.md has it
    def before_process_message(self, broker, message):
        message.options["redrive_attempt"] = message.options.get("retries", 0) + 1

    def after_process_message(self, broker, message, result=None, exception=None):
        if exception:
            message.options["traceback"] = traceback.format_exc(limit=30)

    def before_nack(self, broker, message):
        message.options["redrive_attempts"] = message.options.get("redrive_attempt")
        queue, name = message.queue_name, message.options["redis_message_id"]
        acks = f"{broker.namespace}:__acks__.{broker.broker_id}.{queue}"
        broker.client.eval(STORE, 2, acks, f"{broker.namespace}:{queue}.msgs", name, message.encode())


class Shop(PlannedShop):
    def __init__(self, url):
        super().__init__(url)
        self.renew()

    def new_broker(self, **options):
        return RedisBroker(url=self.url, **options)

    def renew(self, **options):
        self.broker = self.new_broker(**options)
        self.broker.add_middleware(CurrentMessage())
        dramatiq.set_broker(self.broker)
        self.send = dramatiq.actor(self.run, actor_name="send")
        dramatiq.actor(self.abort, actor_name="abort", throws=(PartnerDown,))
        dramatiq.actor(self.note, actor_name="note")

    def run(self, *args, **kwargs):
        if take_end(self.client, CurrentMessage.get_current_message().message_id) != "ok":
            raise PartnerDown("the partner is down")

    def abort(self, *args, **kwargs):
        self.run()

    def note(self, *args):
        self.client.rpush("called-back", json.dumps(args))

    def do_add(self, queue, jobs):
        """Add messages: `args`, `kwargs`, `options`, `plan`, `id`, `actor`. Return their ids."""
        self.broker.declare_queue(queue)
        ids = []
        for one in jobs:
            given = {"message_id": one["id"]} if "id" in one else {}
            message = dramatiq.Message(
                queue, one.get("actor", "send"), tuple(one.get("args", ())), one.get("kwargs", {}),
                one.get("options", ONCE_MORE), **given,
            )  # fmt: skip
            self.do_plan(message.message_id, one.get("plan", []))
            self.broker.enqueue(message, delay=one.get("delay"))
            ids.append(message.message_id)
        return ids

    def do_work(self, *queues):
        """All that waits there runs, and what is due within a second."""
        for queue in queues:
            self.broker.declare_queue(queue)
        worker = dramatiq.Worker(self.broker, queues=set(queues), worker_timeout=10, worker_threads=1)
        worker.start()
        while any(self.is_busy(queue) for queue in queues):
            time.sleep(0.005)
        worker.stop()
        self.broker.middleware = [one for one in self.broker.middleware if type(one).__name__ != "_WorkerMiddleware"]

    def is_busy(self, queue):
        """A message moves from its queue to the delay queue, and back: they are read in that order."""
        soon = (time.time() + 1) * 1000
        return (
            self.client.hlen(f"dramatiq:{queue}.msgs")
            or any(json.loads(one)["options"]["eta"] < soon for one in self.client.hvals(f"dramatiq:{queue}.DQ.msgs"))
            or self.client.hlen(f"dramatiq:{queue}.msgs")
        )

    def do_due(self, queue, message_id):
        """The time of a retry has come."""
        for name, raw in self.client.hgetall(f"dramatiq:{queue}.DQ.msgs").items():
            message = json.loads(raw)
            if message["message_id"] == message_id:
                message["options"]["eta"] = int(time.time() * 1000)
                self.client.hset(f"dramatiq:{queue}.DQ.msgs", name, json.dumps(message, separators=(",", ":")))

    def do_bring_back(self, queue, message_id):
        """As dashboards for Dramatiq do: the dead letter is enqueued again as it is, and deleted."""
        for name, raw in self.client.hgetall(f"dramatiq:{queue}.XQ.msgs").items():
            message = dramatiq.Message.decode(raw)
            if message.message_id == message_id:
                self.broker.enqueue(message)
                self.forget(queue, name)

    def do_delete(self, queue, message_id):
        for name, raw in self.client.hgetall(f"dramatiq:{queue}.XQ.msgs").items():
            if json.loads(raw)["message_id"] == message_id:
                self.forget(queue, name)

    def forget(self, queue, name):
        self.client.zrem(f"dramatiq:{queue}.XQ", name)
        self.client.hdel(f"dramatiq:{queue}.XQ.msgs", name)

    def do_maintain(self, queue, heartbeat_ms, dead_ms):
        """Dramatiq's own maintenance, which comes by chance: jobs of dead workers return, and old dead letters are dropped."""
        broker = RedisBroker(
            url=self.url, maintenance_chance=1_000_000, heartbeat_timeout=heartbeat_ms, dead_message_ttl=dead_ms
        )
        broker.do_qsize(queue)

    def do_encode(self, encoder):
        dramatiq.set_encoder({"pickle": PickleEncoder, "json": JSONEncoder}[encoder]())

    def do_store_last_error(self):
        self.broker.add_middleware(StoreLastError())

    def do_renew(self):
        self.renew()

    def do_version(self):
        return dramatiq.__version__


class Ends(dramatiq.Middleware):
    """Counts the jobs that ended for good, and those of them that died."""

    def __init__(self):
        self.succeeded, self.count, self.died = set(), 0, 0

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if exception is None:
            self.succeeded.add(message.message_id)

    def after_ack(self, broker, message):
        if message.message_id in self.succeeded:
            self.succeeded.remove(message.message_id)
            self.count += 1

    def after_nack(self, broker, message):
        self.count += 1
        self.died += 1


class ShopOnRabbitMQ(Shop):
    """Jobs on a RabbitMQ; their plans are in the Redis."""

    def __init__(self, url, broker_url):
        self.broker_url = broker_url.removesuffix("//") + "/%2F"  # as pika writes the virtual host "/"
        super().__init__(url)

    def new_broker(self, **options):
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        broker = RabbitmqBroker(url=self.broker_url, confirm_delivery=True, max_priority=10, **options)
        self.ends = Ends()
        broker.add_middleware(self.ends)
        return broker

    def do_declare(self, *queues):
        for queue in queues:
            self.broker.declare_queue(queue, ensure=True)

    def do_work(self, *queues):
        """All that waits there runs to its end."""
        self.do_declare(*queues)
        before = {queue: self.broker.get_queue_message_counts(queue) for queue in queues}
        waiting, dead = (sum(sum(one[part]) for one in before.values()) for part in (slice(2), slice(2, 3)))
        self.ends.count = self.ends.died = 0
        worker = dramatiq.Worker(self.broker, queues=set(queues), worker_timeout=10, worker_threads=1)
        worker.start()
        while self.ends.count < waiting:
            time.sleep(0.005)
        while sum(self.broker.get_queue_message_counts(queue)[2] for queue in queues) < dead + self.ends.died:
            time.sleep(0.005)
        worker.stop()
        self.broker.middleware = [one for one in self.broker.middleware if type(one).__name__ != "_WorkerMiddleware"]


if __name__ == "__main__":
    run_acts(Shop(sys.argv[1]) if len(sys.argv) == 2 else ShopOnRabbitMQ(*sys.argv[1:]))
