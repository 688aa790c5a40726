"""Histories of Dramatiq's dead-letter queues on a real RabbitMQ. Its messages are consumed in this process, as its worker does."""

from __future__ import annotations

import json
import random
from datetime import UTC

from jobs_admin.sources.dramatiq.on_rabbitmq import death_digest
from jobs_admin.sources.rabbitmq.death import Death, RawMessage
from tests.histories.kit import act
from tests.histories.rabbitmq_dead_letters import QUEUES, Job, RabbitMQDeadLetters


class DramatiqOnRabbitMQ(RabbitMQDeadLetters):
    """The source `kiosk` has few queues, so that most histories are cheap."""

    sources, suffix = {"store": ("drain", QUEUES), "kiosk": ("drain", QUEUES[:4])}, ".XQ"

    def settings(self, mode: str, queues: list[str]) -> str:
        return f'backend = "dramatiq"\nqueues = {json.dumps(queues)}'

    def read_body(self, octets: str | bytes) -> dict:
        message = json.loads(octets)
        assert message["queue_name"] in self.queues
        return message["args"][0]

    def choose_outcome(self, rng: random.Random) -> str:
        return rng.choice(("ok", "reject"))

    def consume(self, queue: str, outcomes: list[str], error: str = "") -> None:
        """A worker of Dramatiq forwards nothing: RabbitMQ takes what it rejects to the dead-letter queue."""
        super().consume(queue, ["reject" if one == "forward" else one for one in outcomes])
        by_body = {json.dumps(job.body): job for job in self.jobs if job.run == 1}
        for message in self.bus.bodies(f"{queue}{self.suffix}"):
            job = by_body.get(json.dumps(self.read_body(message.body)))
            if job is not None and "." not in job.id:
                (entry,) = message.headers["x-death"]
                death = Death(queue, "", entry["count"], entry["time"].replace(tzinfo=UTC).timestamp(), "", 0)
                octets = message.body if isinstance(message.body, bytes) else message.body.encode()
                digest = death_digest(queue, RawMessage(b"", octets, "", ""), death)
                job.id = f"{job.id}.{digest}"

    def publish(self, queue: str, body: dict, message_id: str | None, retries: int = 0) -> Job:
        message = {"queue_name": queue, "actor_name": "send", "args": [body], "kwargs": {}, "options": {}}
        message |= {"message_id": message_id, "message_timestamp": 1_700_000_000_000}
        if retries:
            message["options"] = {"retries": retries, "traceback": "Traceback (most recent call last):\nE: broken"}
        self.bus.publish(queue, message)
        job = Job(self.source, queue, str(message_id), body)
        self.jobs.append(job)
        return job

    @act(weight=2)
    def enqueue_again_by_others(self, rng: random.Random) -> None:
        """One that died is enqueued again by its id, and dies at the same attempt or a lower one: each is another job."""
        for old in self.some(rng, lambda job: job.states and job.run == 1):
            self.read()
            self.made += 1
            job = self.publish(old.queue, {"n": self.made}, old.id.partition(".")[0], rng.randint(0, 1))
            job.place, job.states = "dlq", ("dead",)
            self.consume(old.queue, ["reject"])
